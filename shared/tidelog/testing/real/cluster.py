"""``RealCluster``: a cluster in the process of a test, for tests on trio, on asyncio and without a loop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

import trio

from tidelog.runtime.logs import errors_alone
from tidelog.testing.real.cluster_tasks import ClusterTasks, running_cluster
from tidelog.testing.real.service_thread import ServiceThread

if TYPE_CHECKING:
    from tidelog.batch.format import Record
    from tidelog.wire.messages import TopicInfo

T = TypeVar("T")


class RealCluster:
    """A cluster of one controller (``c1``), replica servers (``r1``, …) and one gateway (``g1``), with real sockets
    on the loopback interface and real files, from the beginning to the end of its ``with`` block:

        with RealCluster(folder, replicas=3) as cluster:
            cluster.topic("orders", partitions=2)
            with tidelog.sync.connect(cluster.address) as log: …

    The services run in a thread with a trio loop of its own. Every method blocks the thread that calls it; the same
    methods, to be awaited in trio or asyncio, are those of ``awaitable``.

    What is other than in a cluster of processes: the disks do not sync (see ``slow_disk``), no timeline is written,
    the internal topics have one partition, and members of groups heartbeat every 0.1 s and may have session time-outs
    from 0.2 s on."""

    def __init__(self, folder: Path, replicas: int = 1) -> None:
        """``folder`` gets the data. ``replicas``: number of replica servers."""
        self.address = ""
        """URL of the gateway, for ``tidelog.connect``. It stays the same for as long as the cluster runs."""
        self.awaitable = AwaitableCluster(self)
        """The methods of this object as coroutine functions."""
        self._folder = folder
        self._replicas = replicas
        self._thread: ServiceThread[ClusterTasks]

    def __enter__(self) -> Self:
        with ExitStack() as leaving:
            leaving.enter_context(errors_alone())
            self._thread = ServiceThread(partial(running_cluster, self._folder, self._replicas))
            leaving.callback(self._thread.close)
            self._leaving = leaving.pop_all()
        self.address = self._tasks.address
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leaving.close()

    @property
    def _tasks(self) -> ClusterTasks:
        return self._thread.value

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of all servers: ``c1``, ``r1``, …, ``g1``."""
        return self._tasks.nodes

    def topic(
        self, name: str, *, partitions: int = 1, replication_factor: int | None = None, **config: object
    ) -> TopicInfo:
        """Create a topic, wait until its partitions have leaders, and return its description. ``config``: fields of
        ``TopicConfig``. ``replication_factor`` None: a replica on each replica server. Raises the errors of
        ``Log.topics.create``."""
        factor = self._replicas if replication_factor is None else replication_factor
        return self._thread.run(self._tasks.create_topic, name, partitions, factor, config)

    def records(self, topic: str) -> list[Record]:
        """Return every committed record of a topic, by partition and offset."""
        return self._thread.run(self._tasks.records, topic)

    def leader(self, topic: str, partition: int = 0) -> str:
        """Return the name of a partition's leader, and wait until it has one. Raises ``UNKNOWN_TOPIC``, also
        for an unknown partition, and ``TooSlowError`` after a minute without a leader."""
        return self._thread.run(self._tasks.leader, topic, partition)

    def wait_in_sync(self, topic: str) -> None:
        """Wait until every replica of the topic's partitions is in sync, so that each alone has all committed
        records: before another server is killed. Raises ``UNKNOWN_TOPIC``, and
        ``TooSlowError`` after a minute, as when a server is down."""
        self._thread.run(self._tasks.wait_in_sync, topic)

    def kill(self, node: str) -> None:
        """Kill a server, as SIGKILL does: it says no goodbye, and what it has written to its files is found again by
        ``restart``. Does nothing if it is killed already. Raises ``ConfigError`` for an unknown name, as the other
        methods do."""
        self._thread.run(self._tasks.kill, node)

    def kill_leader(self, topic: str, partition: int = 0) -> str:
        """Kill the replica server that leads a partition, and return its name. Raises ``UNKNOWN_TOPIC``, also
        for an unknown partition."""
        node = self.leader(topic, partition)
        self.kill(node)
        return node

    def restart(self, node: str) -> None:
        """Start a server again on its own data and at its own port, after killing it if it runs. Returns when it is
        live: a replica server is registered, and the gateway knows that. If a cut, a pause or a killed server is in
        the way, returns when it listens. Raises ``trio.TooSlowError`` after a minute."""
        self._thread.run(self._tasks.restart, node)

    def cut(self, node: str, other: str | None = None) -> None:
        """Cut a server off from every other and from all clients, or from ``other`` alone: open connections break,
        and new ones are refused, until ``heal``."""
        self._thread.run(self._tasks.cut, node, other)

    def pause(self, node: str) -> None:
        """Let a server neither receive nor send until ``heal``. Its connections stay open, as those of a process that
        hangs."""
        self._thread.run(self._tasks.pause, node)

    def heal(self) -> None:
        """End every cut, every pause and every slow disk. Killed servers stay killed until ``restart``."""
        self._thread.run(self._tasks.heal)

    def slow_disk(self, node: str, seconds: float) -> None:
        """Let each sync of a replica server's disk take so many seconds, until ``heal`` or until it is called with 0.
        A record counts as durable on the server when its sync has ended, if its topic has ``flush=fsync``."""
        self._thread.run(self._tasks.slow_disk, node, seconds)


class AwaitableCluster:
    """The methods of a ``RealCluster``, to be awaited in trio or asyncio: other tasks of the loop go on meanwhile.
    ``await cluster.awaitable.kill_leader("orders")``. Arguments, results and errors are those of the methods of
    ``RealCluster``. A method that is cancelled completes nevertheless."""

    def __init__(self, cluster: RealCluster) -> None:
        self._cluster = cluster

    async def topic(
        self, name: str, *, partitions: int = 1, replication_factor: int | None = None, **config: object
    ) -> TopicInfo:
        """Create a topic, and return its description."""
        create = self._cluster.topic
        return await _in_thread(
            lambda: create(name, partitions=partitions, replication_factor=replication_factor, **config)
        )

    async def records(self, topic: str) -> list[Record]:
        """Return every committed record of a topic, by partition and offset."""
        return await _in_thread(partial(self._cluster.records, topic))

    async def leader(self, topic: str, partition: int = 0) -> str:
        """Return the name of a partition's leader."""
        return await _in_thread(partial(self._cluster.leader, topic, partition))

    async def wait_in_sync(self, topic: str) -> None:
        """Wait until every replica of the topic's partitions is in sync."""
        await _in_thread(partial(self._cluster.wait_in_sync, topic))

    async def kill(self, node: str) -> None:
        """Kill a server."""
        await _in_thread(partial(self._cluster.kill, node))

    async def kill_leader(self, topic: str, partition: int = 0) -> str:
        """Kill the replica server that leads a partition, and return its name."""
        return await _in_thread(partial(self._cluster.kill_leader, topic, partition))

    async def restart(self, node: str) -> None:
        """Start a server again, and wait until it is live."""
        await _in_thread(partial(self._cluster.restart, node))

    async def cut(self, node: str, other: str | None = None) -> None:
        """Cut a server off from all others, or from one other."""
        await _in_thread(partial(self._cluster.cut, node, other))

    async def pause(self, node: str) -> None:
        """Let a server neither receive nor send until ``heal``."""
        await _in_thread(partial(self._cluster.pause, node))

    async def heal(self) -> None:
        """End every cut, every pause and every slow disk."""
        await _in_thread(self._cluster.heal)

    async def slow_disk(self, node: str, seconds: float) -> None:
        """Let each sync of a replica server's disk take so many seconds."""
        await _in_thread(partial(self._cluster.slow_disk, node, seconds))


async def _in_thread(call: Callable[[], T]) -> T:
    """Call a blocking function in a thread, wait for it in the loop of the caller, trio or asyncio, and return its
    result."""
    if trio.lowlevel.in_trio_task():
        return await trio.to_thread.run_sync(call)
    import asyncio

    return await asyncio.to_thread(call)
