"""The client for programs without trio: the same API, blocking. For scripts, threads and Spark executors.

    with tidelog.sync.connect("ws://127.0.0.1:9292") as log:
        with log.producer("orders") as producer:
            ack = producer.send(b"...", key=b"k")
        for record in log.consume("orders", start="earliest", end="latest"):
            ...

Each connection runs trio in one background thread of its own, so no event loop of the caller is touched and any
number of threads may use it. Ctrl-C ends the waiting call, not the connection.

**Fork.** A connection belongs to the process that opened it. After a fork the child has the memory but not the
thread: using the connection there raises ``Closed``, closing it does nothing (the parent's goes on undisturbed), and
``connect`` in the child opens the child's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

from tidelog.client import backward_consumer as async_backward
from tidelog.client import consumer as async_consumer
from tidelog.client import group_consumer as async_group
from tidelog.client import trio_loop
from tidelog.client.admin.groups import Progress
from tidelog.client.consumer import Where
from tidelog.client.consumers import Reading
from tidelog.client.group_consumer import Start
from tidelog.client.log import DEFAULT_URL, NO_FILES
from tidelog.client.options import ConsumerOptions, GroupOptions, ProducerOptions
from tidelog.client.rebalance_listener import NO_HOOKS, Hooks
from tidelog.net.tls import TlsOptions
from tidelog.sync.admin import Administering
from tidelog.sync.consumer import BackwardConsumer, Consumer, GroupConsumer, in_threads
from tidelog.sync.portal import Portal
from tidelog.sync.producer import Pending, Producer
from tidelog.sync.transactions import Transacting, Transaction
from tidelog.types import Position
from tidelog.wire.messages import (
    DescribeGroupAnswer,
    GroupInfo,
    HistoryEntry,
    MetadataAnswer,
    MetricsAnswer,
    OffsetAnswer,
    QuorumAnswer,
    TopicInfo,
)

if TYPE_CHECKING:
    from tidelog.tracing import Tracing

__all__ = ["BackwardConsumer", "Consumer", "GroupConsumer", "Log", "Pending", "Producer", "Transaction", "connect"]


class Log(Administering, Transacting):
    """A connected client; any thread may use it. Made by ``connect``. Its methods are those of ``tidelog.Log``."""

    def __init__(self, portal: Portal) -> None:
        self._portal = portal

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int = 1,
        config: Mapping[str, object] | None = None,
    ) -> TopicInfo:
        """Create a topic, and wait until its partitions have leaders."""
        create = self._portal.log.create_topic
        return self._portal.run(
            partial(create, name, partitions=partitions, replication_factor=replication_factor, config=config)
        )

    def delete_topic(self, name: str) -> None:
        """Delete a topic and all its records."""
        self._portal.run(self._portal.log.delete_topic, name)

    def topics(self) -> tuple[TopicInfo, ...]:
        """Describe every topic."""
        return self._portal.run(self._portal.log.topics)

    def describe(self, topic: str, *, offsets: bool = False) -> TopicInfo:
        """Describe one topic."""
        return self._portal.run(partial(self._portal.log.describe, topic, offsets=offsets))

    def history(self, topic: str, partition: int) -> tuple[HistoryEntry, ...]:
        """Every change of a partition that is remembered, with its cause."""
        return self._portal.run(self._portal.log.history, topic, partition)

    def status(self, *, offsets: bool = False) -> MetadataAnswer:
        """Cluster, servers and topics as the gateway knows them; ``offsets``: with what the leaders tell of each
        partition."""
        return self._portal.run(partial(self._portal.log.status, offsets=offsets))

    def quorum(self) -> QuorumAnswer:
        """The controllers, and which is the active one."""
        return self._portal.run(self._portal.log.quorum)

    def metrics(self, node: str = "") -> MetricsAnswer:
        """What a replica server, the active controller or this gateway counts."""
        return self._portal.run(self._portal.log.metrics, node)

    def add_controller(self, node: str, url: str) -> None:
        """Take a running controller into the group."""
        self._portal.run(self._portal.log.add_controller, node, url)

    def remove_controller(self, node: str) -> None:
        """Take a controller out of the group."""
        self._portal.run(self._portal.log.remove_controller, node)

    def list_offset(self, topic: str, partition: int, at: str | datetime = "latest") -> OffsetAnswer:
        """The offset at a place of one partition."""
        return self._portal.run(self._portal.log.list_offset, topic, partition, at)

    def list_offsets(
        self, topic: TopicInfo, at: str | datetime, partitions: Iterable[int], isolation: str = "committed"
    ) -> dict[int, OffsetAnswer]:
        """``list_offset`` of many partitions at a time."""
        return self._portal.run(self._portal.log.list_offsets, topic, at, tuple(partitions), isolation)

    def producer(self, topic: str, options: ProducerOptions | None = None) -> Producer:
        """``with log.producer("orders") as producer``."""
        return Producer(self._portal, topic, options)

    @overload
    def consume(
        self,
        topic: str,
        *,
        start: Where = "latest",
        end: Where | None = None,
        partitions: Iterable[int] | None = None,
        reverse: Literal[False] = False,
        options: ConsumerOptions | None = None,
        **reading: Unpack[Reading],
    ) -> Consumer: ...

    @overload
    def consume(
        self,
        topic: str,
        *,
        start: Where = "latest",
        end: Where | None = None,
        partitions: Iterable[int] | None = None,
        reverse: Literal[True],
        options: ConsumerOptions | None = None,
        **reading: Unpack[Reading],
    ) -> BackwardConsumer: ...

    @overload
    def consume(
        self,
        topic: str | Iterable[str],
        *,
        group: str,
        start: Start = "earliest",
        instance: str = "",
        hooks: Hooks = NO_HOOKS,
        options: ConsumerOptions | None = None,
        group_options: GroupOptions | None = None,
        **reading: Unpack[Reading],
    ) -> GroupConsumer: ...

    def consume(
        self, topic: str | Iterable[str], *, hooks: Hooks = NO_HOOKS, **how: Any
    ) -> Consumer | BackwardConsumer | GroupConsumer:
        """``for record in log.consume("orders", start="earliest", end="latest")``; see ``tidelog.Log.consume``. Hooks
        of members of a group run in threads of their own, and may use the client."""
        if "group" in how:
            how["hooks"] = in_threads(hooks)
        inner = self._portal.log.consume(topic, **how)
        if isinstance(inner, async_group.GroupConsumer):
            return GroupConsumer(self._portal, inner)
        if isinstance(inner, async_backward.BackwardConsumer):
            return BackwardConsumer(self._portal, inner)
        assert isinstance(inner, async_consumer.Consumer)
        return Consumer(self._portal, inner)

    def groups(self) -> tuple[GroupInfo, ...]:
        """Every consumer group, by name."""
        return self._portal.run(self._portal.log.groups)

    def describe_group(self, group: str) -> DescribeGroupAnswer:
        """Who is in a group, who has what, and how far it has come."""
        return self._portal.run(self._portal.log.describe_group, group)

    def group_progress(self, group: str) -> tuple[Progress, ...]:
        """Position and lag of every partition that the group has come to or that a member has."""
        return self._portal.run(self._portal.log.group_progress, group)

    def fetch_offsets(self, group: str, topic: str) -> dict[int, Position]:
        """How far the group has come in a topic; partitions without a position are not there."""
        return self._portal.run(self._portal.log.fetch_offsets, group, topic)

    def reset_group(self, group: str, topic: str, positions: Mapping[int, Position | int]) -> None:
        """Have a group without members go on there."""
        self._portal.run(self._portal.log.reset_group, group, topic, positions)

    def delete_group(self, group: str) -> None:
        """Forget a group without members, and its positions."""
        self._portal.run(self._portal.log.delete_group, group)

    def close(self) -> None:
        """Close the connection. Close producers first: what they have not sent is given up."""
        self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect(
    urls: str | Iterable[str] = DEFAULT_URL,
    *,
    connect_timeout_s: float = 10.0,
    request_timeout_s: float = 30.0,
    tls: TlsOptions = NO_FILES,
    token: str = "",
    name: str = "client",
    tracing: Tracing | None = None,
) -> Log:
    """Connect to any of the gateways; see ``tidelog.connect``. Use it with ``with``, or ``close`` it."""
    given: dict[str, Any] = {"connect_timeout_s": connect_timeout_s, "request_timeout_s": request_timeout_s}
    return Log(Portal(lambda: trio_loop.connect(urls, tls=tls, token=token, name=name, tracing=tracing, **given)))
