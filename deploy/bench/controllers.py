"""What a large cluster costs its controllers: many partitions on servers of which only the registrations are real.

    .venv/bin/python deploy/bench/controllers.py [--partitions 10000] [--changes 10000] [--servers 6]
        [--controllers 3]

The controllers are real processes on a real disk. The replica servers are not: this process registers them, sends
their heartbeats and watches for them, as it does for one gateway. Then it

    create      makes topics of 1,000 partitions each, replication factor 3, and says how long the first and the last
                tenth of them took
    image       connects one more gateway: until it has all metadata, and their bytes
    change      has one leader change the in-sync replicas of one partition: what each watcher is sent
    changes     has leaders change them of ``--changes`` partitions, 100 at a time
    fail over   ends one server's heartbeats and links: until every partition that it led has another leader
    restart     kills the active controller with SIGKILL: until another answers; and starts the killed one again:
                until it has all of the metadata

CPU is that of the active controller. Each step also tells the longest wait for an answer of the active and of any
other controller (``harness/answer_waits.py``), which is as long as the longest step of its event loop, and by how
much the Raft term grew: above 0 the controllers elected a leader anew. At the end the sizes of the newest snapshot
and of the largest entry of the log are those on the disk of a controller.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import click
import trio
from rich.console import Console
from tidelog.cli.local.local_cluster import LocalCluster, free_base_port
from tidelog.errors import TidelogError
from tidelog.feature_levels import service_hello
from tidelog.net.controller_link import ControllerLink
from tidelog.net.link import connect_link
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.types import TIMELINE, ClusterImage, NodeId, PartitionState, TopicPartition
from tidelog.wire.codec import payload_view
from tidelog.wire.messages import (
    AlterIsr,
    CreateTopic,
    DescribeQuorum,
    Heartbeat,
    IsrMember,
    Message,
    MetadataUpdate,
    QuorumAnswer,
    Register,
    Registered,
    Watch,
)
from tidelog.wire.metadata_image import apply_update

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench.harness.answer_waits import AnswerWaits
from bench.harness.processes import cpu_s, end_with_sigterm, require_linux, resident_bytes

CONSOLE = Console(highlight=False, soft_wrap=True)
PER_TOPIC = 1000
"""Most partitions of a topic."""
AT_A_TIME = 100
"""Number of changes of partitions under way at a time."""
TIMEOUT_S = 60.0
"""Longest wait in seconds for an answer or a change."""


class Watcher:
    """A gateway or a replica server as the controllers see it: a link, a watch on the metadata, and heartbeats, but
    no data. With ``keep`` it applies the updates to ``image``."""

    def __init__(self, cluster: LocalCluster, role: str, node: NodeId, *, keep: bool) -> None:
        self.node = node
        self.image = ClusterImage()
        self.received = 0
        """Bytes of metadata that were received."""
        self.broker_epoch = 0
        self.largest = 0
        """Bytes of the largest update."""
        self._keep = keep
        self._news = trio.Event()
        self._scope = trio.CancelScope()
        hello = service_hello(role, node, cluster.cluster)
        urls = [process.url for process in cluster.of_role("controller")]
        self.controller = ControllerLink(
            WebSocketTransport(), urls, hello, on_message=self._on_message, on_up=self._on_up
        )

    async def run(self) -> None:
        """Keep a link to the active controller, watch the metadata and send heartbeats, until ``end`` is called."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.controller.run)
                nursery.start_soon(self._heartbeat)

    def end(self) -> None:
        """Close the link, as a process that is killed does."""
        self._scope.cancel()

    def _on_up(self) -> None:
        self.controller.start_call(Watch(), TIMEOUT_S, lambda answer: None)

    def _on_message(self, message: Message) -> None:
        assert isinstance(message, MetadataUpdate)
        size = len(payload_view(message.payload))
        self.received += size
        self.largest = max(self.largest, size)
        if self._keep:
            self.image = apply_update(self.image, message)
            self._news.set()
            self._news = trio.Event()

    async def until(self, condition: Callable[[ClusterImage], bool]) -> None:
        """Wait until the metadata image fulfils the condition. Raises ``trio.TooSlowError`` after ``TIMEOUT_S``
        seconds."""
        with trio.fail_after(TIMEOUT_S):
            while not condition(self.image):
                await self._news.wait()

    def partitions(self) -> Iterator[tuple[TopicPartition, PartitionState]]:
        """Yield every partition of every topic with its state."""
        for topic in self.image.topics:
            for number, state in enumerate(topic.partitions):
                yield TopicPartition(topic.topic_id, number), state

    async def register(self) -> None:
        """Register as a replica server and keep its broker epoch, after which heartbeats are sent."""
        message = Register(self.node, f"ws://{self.node}:1", lives=(self.node,), clean=True)
        answer = await self.controller.call(message, TIMEOUT_S)
        assert isinstance(answer, Registered)
        self.broker_epoch = answer.broker_epoch

    async def _heartbeat(self) -> None:
        while True:
            if self.broker_epoch:
                self.controller.start_call(Heartbeat(self.node, self.broker_epoch), TIMEOUT_S, lambda answer: None)
            await trio.sleep(0.5)


class Bench:
    """One run of the benchmark: a cluster of controllers, a watching gateway and registered replica servers."""

    def __init__(self, cluster: LocalCluster, servers: int, partitions: int, changes: int) -> None:
        self.cluster = cluster
        self.partitions = partitions
        self.changes = changes
        self.gateway = Watcher(cluster, "gateway", "g1", keep=True)
        self.servers = {f"r{i + 1}": Watcher(cluster, "replica", f"r{i + 1}", keep=False) for i in range(servers)}

    async def run(self) -> None:
        """Start the cluster, measure every step, and print the figures as they come."""
        self.cluster.start()
        self._controllers = self.cluster.of_role("controller")
        self._waits = AnswerWaits(self.cluster.cluster, [process.url for process in self._controllers])
        try:
            async with trio.open_nursery() as nursery:
                for watcher in (self.gateway, *self.servers.values()):
                    nursery.start_soon(watcher.run)
                for server in self.servers.values():
                    await server.register()
                await self._create()
                await self._connect()
                await self._change_one()
                await self._change_many()
                await self._fail_over()
                await self._restart()
                nursery.cancel_scope.cancel()
        finally:
            self._waits.end()

    async def _active(self, *, but: NodeId = "") -> NodeId:
        """Wait for an active controller other than ``but``, and return its name."""
        return (await self._quorum(but=but)).active

    async def _quorum(self, *, but: NodeId = "") -> QuorumAnswer:
        """Wait for an active controller other than ``but``, and return what it says about the group."""
        while True:
            try:
                answer = await self.gateway.controller.call(DescribeQuorum(), TIMEOUT_S)
            except TidelogError:
                continue
            assert isinstance(answer, QuorumAnswer)
            if answer.active not in ("", but):
                return answer
            await trio.sleep(0.01)

    @asynccontextmanager
    async def _measured(self, what: str) -> AsyncIterator[None]:
        quorum = await self._quorum()
        pid = self.cluster.get(quorum.active).pid
        self._waits.take()
        began, cpu, received = time.monotonic(), cpu_s(pid), self.gateway.received
        yield
        seconds, used = time.monotonic() - began, cpu_s(pid) - cpu
        after = await self._quorum()
        waits = dict(zip([process.id for process in self._controllers], self._waits.take(), strict=True))
        CONSOLE.print(
            f"{what}: {seconds:.2f} s, {used:.2f} s of CPU, {self.gateway.received - received:,} bytes to each"
            f" watcher, {resident_bytes(pid) / 1e6:.0f} MB resident; longest wait for an answer of"
            f" {quorum.active} {waits.pop(quorum.active):.2f} s, of the others {max(waits.values()):.2f} s; term"
            f" +{after.term - quorum.term}"
        )

    async def _create(self) -> None:
        topics = -(-self.partitions // PER_TOPIC)
        async with self._measured(f"create {self.partitions:,} partitions"):
            times = [time.monotonic()]
            for number in range(topics):
                count = min(PER_TOPIC, self.partitions - number * PER_TOPIC)
                await self.gateway.controller.call(CreateTopic(f"t{number}", count, 3), TIMEOUT_S)
                times.append(time.monotonic())
            await self.gateway.until(
                lambda image: sum(len(t.partitions) for t in image.topics if t.name != TIMELINE) == self.partitions
            )
        tenth = -(-topics // 10)
        CONSOLE.print(
            f"  the first {tenth} topics {times[tenth] - times[0]:.2f} s,"
            f" the last {times[-1] - times[-1 - tenth]:.2f} s"
        )

    async def _connect(self) -> None:
        """Measure how long one more gateway waits for all metadata."""
        new = Watcher(self.cluster, "gateway", "g3", keep=True)
        async with self._measured("connect one more gateway"), trio.open_nursery() as nursery:
            nursery.start_soon(new.run)
            began, before = time.monotonic(), resident_bytes(os.getpid())
            await new.until(lambda image: bool(image.topics))
            seconds, grown = time.monotonic() - began, resident_bytes(os.getpid()) - before
            nursery.cancel_scope.cancel()
        CONSOLE.print(
            f"  it has all metadata, {new.received:,} bytes, after {seconds:.2f} s;"
            f" they take {grown / 1e6:.0f} MB in it"
        )

    def print_sizes(self) -> None:
        """Print the sizes of the stored log and snapshot, and of the largest update that a watcher got. The
        controllers must have ended, since each has its database for itself alone."""
        for process in self._controllers:
            with closing(sqlite3.connect(self.cluster.folder / process.id / "data" / "raft.db")) as db:
                entries, largest = db.execute("SELECT count(*), max(length(data)) FROM entries").fetchone()
                snapshot = db.execute("SELECT max(length(data)) FROM snapshot").fetchone()[0] or 0
            CONSOLE.print(
                f"{process.id}: snapshot {snapshot:,} bytes, {entries} entries, the largest {largest:,} bytes"
            )
        CONSOLE.print(f"largest metadata update: {self.gateway.largest:,} bytes")

    async def _alter(self, key: TopicPartition, state: PartitionState) -> None:
        """Have the partition's leader propose an ISR without its last member, or, if that is the leader, without its
        first."""
        assert state.leader is not None
        leader = self.servers[state.leader]
        isr = tuple(IsrMember(node, self.servers[node].broker_epoch) for node in state.isr if node != state.isr[-1])
        if leader.node == state.isr[-1]:
            isr = tuple(IsrMember(node, self.servers[node].broker_epoch) for node in state.isr[1:])
        message = AlterIsr(
            leader.node, leader.broker_epoch, *key, state.leader_epoch, state.epoch, isr, "follower_lagging"
        )
        await leader.controller.call(message, TIMEOUT_S)

    async def _change_one(self) -> None:
        key, state = next(self.gateway.partitions())
        async with self._measured("change the in-sync replicas of 1 partition"):
            await self._alter(key, state)
            await self.gateway.until(lambda image: len(next(self.gateway.partitions())[1].isr) < len(state.isr))

    async def _change_many(self) -> None:
        full = [(key, state) for key, state in self.gateway.partitions() if len(state.isr) == 3][: self.changes]
        limit = trio.CapacityLimiter(AT_A_TIME)

        async def alter(key: TopicPartition, state: PartitionState) -> None:
            async with limit:
                await self._alter(key, state)

        async with self._measured(f"change those of {len(full):,} partitions"), trio.open_nursery() as nursery:
            for key, state in full:
                nursery.start_soon(alter, key, state)

    async def _fail_over(self) -> None:
        lost = self.servers["r1"]
        led = [key for key, state in self.gateway.partitions() if state.leader == lost.node]
        async with self._measured(f"fail over the {len(led):,} partitions of {lost.node}"):
            lost.end()
            await self.gateway.until(lambda image: all(s.leader != lost.node for _, s in self.gateway.partitions()))
        offline = sum(state.leader is None for _, state in self.gateway.partitions())
        CONSOLE.print(f"  {offline} of them have no leader")

    async def _restart(self) -> None:
        quorum = await self._quorum()
        killed, began = quorum.active, time.monotonic()
        self._waits.take()
        self.cluster.kill(killed)
        active = await self._active(but=killed)
        CONSOLE.print(f"kill -9 of the active controller: {active} answers after {time.monotonic() - began:.2f} s")
        await self._settle()
        began = time.monotonic()
        self.cluster.restart(killed)
        url = self.cluster.get(killed).url
        async with trio.open_nursery() as nursery:
            follower = Watcher(self.cluster, "gateway", "g2", keep=True)
            nursery.start_soon(self._watch_one, follower, url)
            await follower.until(lambda image: image.topics == self.gateway.image.topics)
            nursery.cancel_scope.cancel()
        seconds, pid = time.monotonic() - began, self.cluster.get(killed).pid
        CONSOLE.print(
            f"restart of a controller: everything is there after {seconds:.2f} s, {cpu_s(pid):.2f} s of CPU,"
            f" {resident_bytes(pid) / 1e6:.0f} MB resident"
        )

    async def _settle(self) -> None:
        """Wait until the new active controller has answered all watchers, and print its longest wait."""
        began = time.monotonic()
        for watcher in (self.gateway, *self.servers.values()):
            if watcher is not self.servers["r1"]:  # which has ended
                await watcher.controller.call(DescribeQuorum(), TIMEOUT_S)
        await trio.sleep(1.0)
        quorum = await self._quorum()
        CONSOLE.print(
            f"  all watchers are answered after {time.monotonic() - began - 1:.2f} s more; longest wait for an answer"
            f" of a controller {max(self._waits.take()):.2f} s; term {quorum.term}"
        )

    async def _watch_one(self, watcher: Watcher, url: str) -> None:
        """Watch the controller at ``url``, whether it is the active one or not; connect again after a failure. Never
        returns."""
        hello = service_hello("gateway", watcher.node, self.cluster.cluster)
        while True:
            try:
                async with connect_link(
                    WebSocketTransport(), url, hello, lambda link, id, message: watcher._on_message(message)
                ) as link:
                    await link.call(Watch(), TIMEOUT_S)
                    await link.wait_closed()
            except TidelogError:
                await trio.sleep(0.02)


@click.command(help=__doc__)
@click.option("--partitions", default=10_000, show_default=True)
@click.option("--changes", default=10_000, show_default=True, help="Partitions whose in-sync replicas are changed.")
@click.option("--servers", default=6, show_default=True)
@click.option("--controllers", default=3, show_default=True, type=click.IntRange(3), help="One of them is killed.")
@click.option("--data", type=click.Path(path_type=Path), help="An empty folder on the disk to be measured.")
def main(partitions: int, changes: int, servers: int, controllers: int, data: Path | None) -> None:
    require_linux()
    end_with_sigterm()
    folder = Path(tempfile.mkdtemp(prefix="tidelog-controllers-")) if data is None else data
    cluster = LocalCluster.create(
        folder, controllers=controllers, replicas=0, gateways=0, base_port=free_base_port(controllers)
    )
    cluster.forget_secret()  # the servers of this process do not have it
    bench = Bench(cluster, servers, partitions, changes)
    try:
        trio.run(bench.run)
        cluster.stop_started()
        bench.print_sizes()
    finally:
        cluster.stop_started()
        if data is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
