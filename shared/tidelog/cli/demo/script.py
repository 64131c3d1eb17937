"""The demo's script: the steps in their order, and the records that it sends."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio

import tidelog
from tidelog.cli.demo import report
from tidelog.cli.demo.check import check, digest
from tidelog.cli.demo.report import Incident, Result
from tidelog.cli.exit_status import BY_SIGNAL
from tidelog.cli.local.local_cluster import LocalCluster, free_base_port
from tidelog.cli.output import say
from tidelog.errors import TidelogError

TOPIC, SECONDS = "demo", "demo-seconds"
PARTITIONS = 3
KILL_LEADER_AT, KILL_CONTROLLER_AT, RESTART_AT = 0.25, 0.5, 0.75
"""When the leader and the active controller are killed, and when both are restarted: shares of the time during which
records flow."""
CATCH_UP_S = 60.0
"""Longest time in seconds to wait, after the last record, until all replicas are in sync."""
METRICS_PER_S = 2_000
"""Records per second when the demo sends metrics of this host."""


def file_lines(path: Path) -> list[tuple[bytes | None, bytes]]:
    """Read a file, and return (None, line) for each of its lines, without the line's end. None is the record's key:
    without a key, records are spread over the partitions."""
    lines = path.read_bytes().split(b"\n")
    if lines and not lines[-1]:
        lines.pop()
    return [(None, line.removesuffix(b"\r")) for line in lines]


def host_metrics() -> Iterator[tuple[bytes | None, bytes]]:
    """Yield (metric name, JSON with time and value) without end. All metrics of this host are read again after each
    round: from /proc, or the few that any system has."""
    sample = _sample if Path("/proc/stat").exists() else _few
    while True:
        for name, value in sample():
            document = {"time": time.time_ns() // 1_000_000, "metric": name, "value": value}
            yield name.encode(), json.dumps(document).encode()


def _sample() -> Iterator[tuple[str, float]]:
    """Read the metrics of this host from /proc, and yield the name and the value of each."""
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name.startswith("cpu"):
            for label, ticks in zip(("user", "nice", "system", "idle", "iowait"), fields, strict=False):
                yield f"{name}.{label}_ticks", float(ticks)
        elif name in ("ctxt", "processes", "procs_running"):
            yield name, float(fields[0])
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, value, *_ = line.split()
        yield f"memory.{name.rstrip(':')}_kb", float(value)
    for label, value in zip(("1m", "5m", "15m"), Path("/proc/loadavg").read_text().split(), strict=False):
        yield f"load.{label}", float(value)
    for line in Path("/proc/net/dev").read_text().splitlines()[2:]:
        device, _, rest = line.partition(":")
        fields = rest.split()
        yield f"net.{device.strip()}.received_bytes", float(fields[0])
        yield f"net.{device.strip()}.sent_bytes", float(fields[8])


def _few() -> Iterator[tuple[str, float]]:
    """Ask the system for the metrics that do not take /proc, and yield the name and the value of each: processor time
    of this process and its children, load, and disk space."""
    for label, seconds in zip(("user", "system", "children_user", "children_system"), os.times(), strict=False):
        yield f"cpu.{label}_ticks", seconds * os.sysconf("SC_CLK_TCK")
    for label, value in zip(("1m", "5m", "15m"), os.getloadavg(), strict=True):
        yield f"load.{label}", value
    space = shutil.disk_usage("/")
    yield "disk.used_bytes", float(space.used)
    yield "disk.free_bytes", float(space.free)


class DemoRun:
    """One run of the demo. It starts a cluster of processes, sends records while two of the processes are killed,
    checks the logs on disk, and writes the report."""

    def __init__(self, folder: Path, out: Path, source: Path | None, seconds: int, spark: bool) -> None:
        """``folder`` is for the cluster's data, ``out`` for the report and the logs, ``source`` a file of lines
        (None: metrics of this host), ``seconds`` the time for which records flow."""
        self.out = out
        self.seconds = seconds
        self.spark = spark
        self.cluster = LocalCluster.create(folder, controllers=3, replicas=3, gateways=2, base_port=free_base_port(8))
        self.records: Iterator[tuple[bytes | None, bytes]]
        self.pipeline = "metrics.toml" if source is None else "lines.toml"
        if source is None:
            self.records, self.rate = host_metrics(), float(METRICS_PER_S)
            self.result = Result(f"live metrics of this host, {METRICS_PER_S} records per second")
        else:
            lines = file_lines(source)
            self.records, self.rate = iter(lines), max(1.0, len(lines) / seconds)
            self.result = Result(f"{source.name}: {len(lines)} lines")
        self.acked: dict[tuple[int, int], bytes] = {}
        self.consumed: dict[tuple[int, int], bytes] = {}
        self.unknown = 0
        self.began = 0.0
        self.news = trio.Event()

    def say(self, text: str) -> None:
        """Print one line of progress on stdout."""
        say(text)

    async def run(self) -> bool:
        """Run the demo from start to end, and return whether nothing was lost. On SIGTERM or Ctrl-C it stops the
        cluster's processes and raises ``SystemExit``."""
        ended_by: list[int] = []
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with trio.open_nursery() as nursery:

                async def end() -> None:
                    async for number in signals:
                        ended_by.append(number)
                        nursery.cancel_scope.cancel()

                nursery.start_soon(end)
                ok = await self._play()
                nursery.cancel_scope.cancel()
        if ended_by:
            sys.exit(BY_SIGNAL + ended_by[0])
        return ok

    async def _play(self) -> bool:
        """Run the cluster and its load, stop its processes, and copy their logs to ``out``. Then print the report,
        write it there as HTML, and return whether nothing was lost."""
        try:
            await self._with_cluster()
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self.cluster.stop)
            for process in self.cluster.processes:
                shutil.copy(process.log, self.out / f"{process.id}.log")
        lines = report.text(self.result)
        self.say("")
        for line in lines:
            say(line)
        (self.out / "report.html").write_text(report.page(self.result))
        self.say(f"report     {self.out / 'report.html'}")
        return self.result.verdict.ok

    async def _with_cluster(self) -> None:
        """Start the cluster, and send and consume records while processes are killed. Then check the logs on disk,
        and run the Spark pipeline if that is wanted."""
        started = trio.current_time()
        self.say("starting 3 controllers, 3 replica servers, 2 gateways …")
        await trio.to_thread.run_sync(self.cluster.start)
        await self.cluster.wait_ready()
        self.result.started_s = trio.current_time() - started
        async with tidelog.connect(self.cluster.gateways()) as log:
            topic = await log.topics.create(
                TOPIC, partitions=PARTITIONS, replication_factor=3, config={"min_insync_replicas": "2"}
            )
            self.say(f"topic {TOPIC}: {PARTITIONS} partitions, 3 replicas each; sending {self.result.source}")
            self.began = trio.current_time()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._consume)
                nursery.start_soon(self._disturb, log)
                await self._produce(log)
                self.say("all sent; waiting until every replica is in sync …")
                await self._wait_in_sync(log)
                await self._wait_consumed(log)
                nursery.cancel_scope.cancel()
            await self._read_causes(log)
        self._check_logs(topic.topic_id)
        if self.spark:
            await self._run_spark()

    def _now(self) -> float:
        return trio.current_time() - self.began

    # --- load --------------------------------------------------------------------------------------------

    async def _produce(self, log: Any) -> None:
        """Send the records at their rate until the time is over or the source ends. Returns when every record is
        acknowledged or has failed."""
        queues: dict[int, trio.MemorySendChannel[Any]] = {}
        async with log.producer(TOPIC) as producer, trio.open_nursery() as nursery:
            for partition in range(PARTITIONS):
                queues[partition], receive = trio.open_memory_channel[Any](200_000)
                nursery.start_soon(self._collect, receive)
            for number in itertools.count():
                if self._now() >= self.seconds:
                    break
                entry = next(self.records, None)
                if entry is None:
                    break
                await trio.sleep_until(self.began + number / self.rate)
                key, value = entry
                pending = await producer.submit(value, key=key)
                queues[pending.partition].send_nowait((pending, digest(key, value), len(value)))
            await producer.flush()
            for queue in queues.values():
                queue.close()

    async def _collect(self, receive: Any) -> None:
        """Wait for the acknowledgements of one partition, in order, and record each with its time and its digest. A
        record without one is counted as refused, or as unknown if it may be in the log."""
        async for pending, wanted, size in receive:
            try:
                ack = await pending.wait()
            except TidelogError as error:
                if error.unknown_outcome:
                    self.unknown += 1
                else:
                    self.result.failed += 1
                continue
            self.acked[ack.partition, ack.offset] = wanted
            self.result.acks.append((self._now(), ack.partition, size))
            self.result.bytes += size

    async def _consume(self) -> None:
        """Read the topic from its beginning until cancelled, and keep the digest of each record. A record that comes
        twice is added as a fault."""
        async with tidelog.connect(self.cluster.gateways()[::-1]) as log:
            async for record in log.consume(TOPIC, start="earliest"):
                place = (record.partition, record.offset)
                if place in self.consumed:
                    self.result.verdict.fault(f"consumer saw partition {place[0]}, offset {place[1]} twice")
                self.consumed[place] = digest(record.key, record.value)
                self.news.set()
                self.news = trio.Event()

    # --- faults ------------------------------------------------------------------------------------------

    async def _disturb(self, log: Any) -> None:
        """Kill the leader of partition 0, later the active controller, and later restart both, each at its time."""
        await trio.sleep_until(self.began + KILL_LEADER_AT * self.seconds)
        leader = (await log.topics.describe(TOPIC)).partitions[0].leader
        await self._kill(leader, f"kill -9 {leader}, leader of partition 0")
        await trio.sleep_until(self.began + KILL_CONTROLLER_AT * self.seconds)
        active = (await log.cluster.quorum()).active
        await self._kill(active, f"kill -9 {active}, the active controller")
        await trio.sleep_until(self.began + RESTART_AT * self.seconds)
        for node, incident in zip((leader, active), self.result.incidents, strict=True):
            self.say(f"{self._now():5.1f} s  restart {node}")
            incident.restarted_at = self._now()
            await trio.to_thread.run_sync(self.cluster.restart, node)

    async def _kill(self, node: str, what: str) -> None:
        """Kill a process with SIGKILL, print that, and add an incident to the result."""
        self.say(f"{self._now():5.1f} s  {what}")
        self.result.incidents.append(Incident(self._now(), what))
        await trio.to_thread.run_sync(self.cluster.kill, node)

    async def _wait_in_sync(self, log: Any) -> None:
        """Wait until both killed processes are restarted and all replicas are in sync. If that takes longer than
        ``CATCH_UP_S``, add a fault and return."""
        with trio.move_on_after(CATCH_UP_S) as scope:
            while True:
                topic = await log.topics.describe(TOPIC)
                restarted = len(self.result.incidents) == 2 and self.result.incidents[1].restarted_at > 0
                if restarted and all(len(p.isr) == len(p.replicas) for p in topic.partitions):
                    return
                await trio.sleep(0.1)
        if scope.cancelled_caught:
            self.result.verdict.fault(f"replicas were not in sync {CATCH_UP_S:.0f} s after the last record")

    async def _wait_consumed(self, log: Any) -> None:
        """Wait until the consumer has read every committed record. If that takes longer than ``CATCH_UP_S``, add a
        fault and return."""
        topic = await log.topics.describe(TOPIC, offsets=True)
        wanted = sum(p.high_watermark for p in topic.partitions)
        with trio.move_on_after(CATCH_UP_S) as scope:
            while len(self.consumed) < wanted:
                await self.news.wait()
        if scope.cancelled_caught:
            self.result.verdict.fault(f"the consumer saw {len(self.consumed)} of {wanted} records")

    # --- judgement ---------------------------------------------------------------------------------------

    async def _read_causes(self, log: Any) -> None:
        """Ask the controllers for the history of each partition, and add its changes with their causes to the
        result."""
        for partition in range(PARTITIONS):
            for entry in (await log.partitions.history(TOPIC, partition))[1:]:
                self.result.changes.append(
                    {
                        "where": f"{TOPIC}/{partition} epoch {entry.epoch}",
                        "what": f"{entry.event}: leader {entry.leader or 'none'}, in sync {' '.join(entry.isr)}",
                        "why": entry.cause,
                    }
                )

    def _check_logs(self, topic_id: str) -> None:
        """Read the replicas' files, check that every acknowledged record is on each of them, and put the verdict into
        the result. Also computes the gaps around the incidents. Faults found before stay in the verdict."""
        self._measure_gaps()
        self.say("looking for every acked record on every replica …")
        directories = {
            process.id: {
                partition: self.cluster.folder / process.id / "data" / f"{topic_id}-{partition}"
                for partition in range(PARTITIONS)
            }
            for process in self.cluster.of_role("replica")
        }
        earlier = self.result.verdict.faults
        self.result.verdict = check(self.acked, directories, self.consumed)
        self.result.verdict.faults[:0] = earlier
        self.result.verdict.unknown = self.unknown
        self.result.consumed = len(self.consumed)
        if not self.acked:
            self.result.verdict.fault("nothing was acked")

    def _measure_gaps(self) -> None:
        """Compute the longest time without an acknowledgement before the first incident and from each incident to the
        next, and put these into the result."""
        edges = [incident.at for incident in self.result.incidents]
        ends = [*edges[1:], self.result.seconds]
        self.result.quiet_gap_s = self._longest_gap(0.0, edges[0] if edges else self.result.seconds)
        for incident, end in zip(self.result.incidents, ends, strict=True):
            incident.gap_s = self._longest_gap(incident.at - 0.5, end)

    def _longest_gap(self, start: float, end: float) -> float:
        """Return the longest time in seconds between two consecutive acknowledgements of one partition, among those
        from ``start`` to ``end``; 0 if there are fewer than two."""
        longest = 0.0
        for partition in range(PARTITIONS):
            times = [time for time, of, _ in self.result.acks if of == partition and start <= time <= end]
            longest = max([longest, *(b - a for a, b in itertools.pairwise(times))])
        return longest

    async def _run_spark(self) -> None:
        """Run the Spark pipeline over the topic, in a process of its own, and add its counts and its plot to the
        result. Adds a fault if the process fails or counts other rows than the log has. Without Java only a note is
        added."""
        if shutil.which("java") is None:
            self.result.spark_note = "no Java; install Java 17 (Debian: apt-get install openjdk-17-jre-headless)"
            return
        self.say("running the Spark pipeline …")
        folder = self.out / "spark"
        shutil.rmtree(folder, ignore_errors=True)
        async with tidelog.connect(self.cluster.gateways()) as log:
            await log.topics.create(SECONDS, partitions=1)
        gateway = ",".join(self.cluster.gateways())
        command = [sys.executable, "-m", "tidelog.cli.demo.spark_job", self.pipeline, gateway, str(folder)]
        done = await trio.run_process(
            command,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            start_new_session=True,
            deliver_cancel=_kill_group,
        )
        if done.returncode != 0:
            tail = "\n".join(done.stderr.decode(errors="replace").splitlines()[-15:])
            self.result.verdict.fault(f"the Spark job failed:\n{tail}")
            return
        self.result.spark = json.loads(done.stdout.splitlines()[-1])
        self.result.plot = next(folder.glob("*.svg")).read_text()
        if self.result.spark["rows"] != self.result.verdict.stored:
            self.result.verdict.fault(f"Spark saw {self.result.spark['rows']} rows of {self.result.verdict.stored}")


async def _kill_group(process: trio.Process) -> None:
    """Kill the Spark job and the JVM that it has started, which are one process group, with SIGKILL."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
