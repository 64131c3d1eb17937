"""One run at the byte level: load and faults, healing, a final read, and the check of history and logs."""

from __future__ import annotations

import errno
import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import trio
from tidelog_replica.storage.log import Log

import tidelog
from tidelog.batch.format import decode_batch, split
from tidelog.errors import TidelogError
from tidelog.net.link import PATIENCE
from tidelog.testing.hardware.loop import stream
from tidelog.testing.invariants.ghost import Violation
from tidelog.testing.shells.determinism import determined, run
from tidelog.testing.shells.services import CONTROLLERS, GATEWAY_URL, REPLICAS, Services
from tidelog.testing.shells.streams import NODE, Net
from tidelog.testing.shells.users import TOPIC, Receiver, Sender, create_topic, drain
from tidelog.types import TopicConfig
from tidelog.verify.checker import check
from tidelog.verify.history import OK, OperationHistory, SendCall

KINDS = ("kill", "power", "stall", "cut", "slow", "flush_error", "slow_threads", "kill_gateway")
LOAD_S = 6.0
IN_SYNC_S = 30.0
NOTICED_S = PATIENCE.most_s + 1.0
"""The seconds after which every side has closed its mute connections."""


class ByteCluster:
    """A run of a seed at the byte level. ``counts`` and ``digest`` describe it afterwards."""

    def __init__(self, seed: int, trace: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.counts: dict[str, int] = {}
        self.history = OperationHistory()
        self.seconds = 0.0
        self._hash = hashlib.blake2b(digest_size=16)
        self._listener = trace
        self._rng = stream(seed, "bytes faults")
        self._thread_s = 0.002
        self._mutes = stream(seed, "bytes silent")
        self._net = Net(stream(seed, "bytes network"), self._trace)
        self._mute = self._mutes.random() < 0.3
        """Whether connections also become mute."""
        self._partitions = self._rng.choice((1, 2))
        self._config: dict[str, object] = {
            "min_insync_replicas": self._rng.choice((1, 2)),
            "replica_max_lag_ms": 3000,
            "segment_max_bytes": self._rng.choice((1024, 1 << 20)),
        }

    @property
    def digest(self) -> str:
        """The digest of the whole trace."""
        return self._hash.hexdigest()

    def count(self, what: str, by: int = 1) -> None:
        """Add to a statistic of the run."""
        self.counts[what] = self.counts.get(what, 0) + by

    def _trace(self, line: str) -> None:
        self._hash.update(line.encode())
        self.count("pieces received")
        if self._listener is not None:
            self._listener(line)

    def run(self) -> None:
        """Run everything and check the history. Raises ``Violation``, ``AssertionError``, ``trio.TooSlowError``, or
        an exception of a service."""
        rng, threads = stream(self.seed, "bytes entropy"), stream(self.seed, "bytes threads")
        with (
            tempfile.TemporaryDirectory() as folder,
            determined(rng, lambda: threads.uniform(0.0, self._thread_s)),
            mock.patch.object(trio, "open_tcp_stream", self._net.open_tcp_stream),
            mock.patch.object(trio, "open_tcp_listeners", self._net.open_tcp_listeners),
        ):
            run(lambda: self._main(Path(folder)))
        anomalies = check(self.history)
        if anomalies:
            raise Violation("; ".join(f"{a.kind}: {a.text}" for a in anomalies[:5]))

    async def _main(self, folder: Path) -> None:
        async with trio.open_nursery() as nursery:
            services = Services(self._net, nursery, folder, stream(self.seed, "bytes disks"))
            for node in services.names:
                services.start(node)
            with trio.fail_after(IN_SYNC_S):
                await create_topic(self._partitions, self._config)
            senders = (self._sender(1), self._sender(2))
            receivers = [self._receiver("k1", "leader"), self._receiver("k2", "any")]
            for main in (*(sender.run for sender in senders), *(receiver.run for receiver in receivers)):
                nursery.start_soon(main)
            if self._mute:
                nursery.start_soon(self._mute_now_and_then)
            with trio.move_on_after(LOAD_S):
                await self._strike_for_ever(services)
            await self._heal(services)
            for sender in senders:
                sender.stopped = True
                with trio.fail_after(10.0):
                    await sender.done.wait()
            with trio.fail_after(IN_SYNC_S):
                await self._wait_in_sync()
                await drain(self.history)
                await self._wait_all_read(receivers)
            self._dump(services)
            self.seconds = trio.current_time()
            self.count("exits", services.exits)
            for node in services.names:
                services.kill(node)
            nursery.cancel_scope.cancel()
        sends = [op for op in self.history.operations if isinstance(op, SendCall)]
        self.count("sends", len(sends))
        self.count("sends ok", sum(op.result == OK for op in sends))

    def _sender(self, number: int) -> Sender:
        name = f"p{number}"
        return Sender(name, self.history, stream(self.seed, f"bytes {name}"), self._partitions)

    def _receiver(self, name: str, read_from: str) -> Receiver:
        options = tidelog.ConsumerOptions(read_from=read_from)
        return Receiver(name, self.history, self._partitions, options)

    # --- faults ------------------------------------------------------------------------------------------

    async def _strike_for_ever(self, services: Services) -> None:
        """Strike with random faults at random times until cancelled."""
        while True:
            await trio.sleep(self._rng.expovariate(1 / 0.4))
            kind = self._rng.choice(KINDS)
            node = self._rng.choice((*CONTROLLERS, *REPLICAS))
            seconds = self._rng.choice((0.1, 0.5, 2.0)) * self._rng.uniform(0.5, 1.5)
            self.count(f"fault {kind}")
            self._trace(f"{trio.current_time():.6f} FAULT {kind} {node} {seconds:.3f}")
            self._strike(services, kind, node, seconds)

    def _strike(self, services: Services, kind: str, node: str, seconds: float) -> None:
        """Perform one fault at a node."""
        net, others = self._net, [name for name in services.names if name != node]
        if kind == "kill_gateway":
            node = "g1"
        if kind in ("kill", "power", "kill_gateway"):
            services.kill(node, power=kind == "power")
            services.start_later(node, seconds)
        elif kind == "stall":
            for other in [name for name in others if self._rng.random() < 0.6]:
                net.block(node, other, seconds)
                if self._rng.random() < 0.6:
                    net.block(other, node, seconds)
        elif kind == "cut":
            net.cut(node, *self._rng.choice(([], [self._rng.choice(others)])))
        elif kind == "slow":
            net.latency = self._rng.choice((0.0005, 0.01, 0.05))
        elif kind == "slow_threads":
            self._thread_s = self._rng.choice((0.002, 0.1, 1.0))
        elif node in services.disks:
            services.disks[node].fail_syncs(errno.EIO, after=self._rng.randrange(3))

    async def _mute_now_and_then(self) -> None:
        """Make the connections of random pairs of processes mute, one way or both; new connections work."""
        rng, end = self._mutes, trio.current_time() + LOAD_S
        while True:
            await trio.sleep(rng.expovariate(1 / 0.7))
            if trio.current_time() >= end:
                return
            node, other = rng.choice(self._net.connected)
            for source, target in rng.choice((((node, other),), ((node, other), (other, node)))):
                self._trace(f"{trio.current_time():.6f} FAULT mute {source} {target}")
                self.count("connections mute", self._net.mute(source, target))
            self.count("fault mute")

    async def _heal(self, services: Services) -> None:
        """End all faults, start all processes, and wait until the clients must succeed again."""
        self._net.heal()
        self._thread_s = 0.002
        for disk in services.disks.values():
            disk.heal()
        for node in services.names:
            services.start(node)
        if self._mute:
            await trio.sleep(NOTICED_S)
        await trio.sleep(4.0)  # sessions, back-off of the clients
        now = trio.current_time()
        self.history.healthy.append((now, now + 3.0))
        self.history.patience = 2.0
        await trio.sleep(3.0)

    # --- the end -----------------------------------------------------------------------------------------

    async def _wait_in_sync(self) -> None:
        """Wait until every partition has a full ISR."""
        NODE.set("admin")
        while True:
            try:
                async with tidelog.connect(GATEWAY_URL) as log:
                    topic = await log.topics.describe(TOPIC)
                    if all(len(partition.isr) == 3 for partition in topic.partitions):
                        return
            except TidelogError as error:
                self._trace(f"{trio.current_time():.6f} not yet: {error.code}")
            await trio.sleep(0.2)

    async def _wait_all_read(self, receivers: list[Receiver]) -> None:
        """Wait until every receiver has read the whole final log."""
        ends = {p: len(self.history.final.get(f"{TOPIC}/{p}", ())) for p in range(self._partitions)}
        while any(receiver.positions != ends for receiver in receivers):  # noqa: ASYNC110 (virtual time)
            await trio.sleep(0.1)

    def _dump(self, services: Services) -> None:
        """Add the records on the disk of every replica to the history."""
        for node, disk in services.disks.items():
            copy = disk.clone()
            for folder in copy.listdir("/data"):
                if "-" not in folder or "." in folder:
                    continue
                name = f"{TOPIC}/{folder.rpartition('-')[2]}"
                if not name.rpartition("/")[2].isdigit():
                    continue
                log = Log.open(copy, f"/data/{folder}", TopicConfig())
                rows = []
                for buffer in log.read(0, 1 << 30):
                    for _, batch in split(buffer):
                        rows += [(record.offset, record.value or b"") for record in decode_batch(batch)]
                self.history.dumps.setdefault(node, {})[name] = rows
