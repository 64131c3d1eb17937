"""Retention that waits for consumer groups (``retention_waits_for``): asks how far the groups have read, and
remembers for which partitions it waits.

The log cleaner calls ``ask`` when retention wants to delete segments of such a topic. Each group's coordinator is
asked for the group's committed position in the partition; the rule ``storage/retention.awaited_start`` decides with
the lowest of them. So no position is kept from one check to the next, and nothing is asked while there is nothing to
delete. A coordinator that does not answer, and a group without a position, count as a group that has read nothing:
the log keeps its records, within the bound of the wait. A position that is reset to an earlier offset counts from the
next check on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from tidelog.errors import TidelogError
from tidelog.types import NodeId, TopicPartition
from tidelog.wire.messages import FetchOffsets, FetchOffsetsAnswer, Message, TopicShare

from tidelog_replica.context import NodeContext
from tidelog_replica.partition.partition import Partition
from tidelog_replica.storage.retention import AwaitedStart

ASK_TIMEOUT_S = 5.0
"""Seconds for which a coordinator may be silent before its group counts as one that has read nothing."""


@dataclass(frozen=True, slots=True)
class GroupRead:
    """How far a consumer group has read a partition: its committed position, or -1 if it has none or ``error`` says
    why it is not known."""

    group: str
    position: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class RetentionWait:
    """A partition whose retention waits: the slowest group, and what the wait costs."""

    slowest: GroupRead
    result: AwaitedStart


OnRead = Callable[[GroupRead], None]
"""Called with the slowest of the groups that retention of a partition waits for."""


@dataclass(slots=True)
class _Question:
    """A partition whose groups are being asked: those that have not answered yet, and the answers of the others."""

    open: set[str]
    done: OnRead
    reads: list[GroupRead] = field(default_factory=list)


class RetentionWaits:
    """The part of a node that knows for which consumer groups retention waits. ``partitions`` are the open
    partitions, a live view, and ``coordinator_of`` returns the server that coordinates a group, None if none is
    known. It lives as long as the node."""

    def __init__(
        self,
        context: NodeContext,
        partitions: Mapping[TopicPartition, Partition],
        coordinator_of: Callable[[str], NodeId | None],
    ) -> None:
        self._partitions = partitions
        self._effects = context.effects
        self._coordinator_of = coordinator_of
        self._questions: dict[TopicPartition, _Question] = {}
        self._waits: dict[TopicPartition, RetentionWait] = {}

    @property
    def waits(self) -> dict[TopicPartition, RetentionWait]:
        """Return the partitions led here whose retention keeps segments for a group, as of their last check."""
        led = ((key, self._partitions.get(key)) for key in self._waits)
        return {key: self._waits[key] for key, found in led if found is not None and found.leading is not None}

    def ask(self, partition: Partition, done: OnRead) -> None:
        """Ask how far the groups have read that retention of the partition waits for, and call ``done`` with the
        slowest when all have answered. Does nothing while an earlier question about the partition is open."""
        key, groups = partition.key, partition.config.awaited_groups
        if key in self._questions:
            return
        self._questions[key] = _Question(set(groups), done)
        for group in groups:
            coordinator = self._coordinator_of(group)
            if coordinator is None:
                self._on_read(key, GroupRead(group, -1, "no coordinator is known"))
                continue
            request = FetchOffsets(group, (TopicShare(key.topic_id, (key.partition,)),))
            self._effects.call(coordinator, request, ASK_TIMEOUT_S, partial(self._on_answer, key, group))

    def _on_answer(self, key: TopicPartition, group: str, answer: Message | TidelogError, now: float) -> None:
        """Record what a coordinator has answered about the position of a group."""
        if isinstance(answer, FetchOffsetsAnswer):
            offsets = [p.offset for p in answer.positions if (p.topic_id, p.partition) == key]
            self._on_read(key, GroupRead(group, offsets[0] if offsets else -1))
        else:
            self._on_read(key, GroupRead(group, -1, str(answer)))

    def _on_read(self, key: TopicPartition, read: GroupRead) -> None:
        """Record how far a group has read; if it was the last one, report the slowest."""
        question = self._questions[key]
        question.open.discard(read.group)
        question.reads.append(read)
        if not question.open:
            del self._questions[key]
            question.done(min(question.reads, key=lambda read: read.position))

    def record(self, key: TopicPartition, slowest: GroupRead, result: AwaitedStart) -> None:
        """Record the result of a check: retention of the partition keeps segments for the slowest group, or it keeps
        none."""
        if result.held_bytes:
            self._waits[key] = RetentionWait(slowest, result)
        else:
            self.forget(key)

    def forget(self, key: TopicPartition) -> None:
        """Record that retention of the partition waits for nobody."""
        self._waits.pop(key, None)

    def forget_closed(self) -> None:
        """Forget partitions that this server does not have open any more."""
        self._waits = {key: wait for key, wait in self._waits.items() if key in self._partitions}
