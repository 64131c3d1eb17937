"""The consumer groups whose partition of ``__groups`` this server leads: ``core/groups`` on
``coordinators/runtime.py``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import ClassVar

from tidelog.client.core.partitioner import partition_of
from tidelog.errors import TidelogError, refuse
from tidelog.types import GROUPS
from tidelog.wire.messages import CommitOffsets, Done, EnrolPartition, ListGroups, Message, WriteMarker

from tidelog_replica.assignment.assignment import Assignment
from tidelog_replica.assignment.leadership import Leadership
from tidelog_replica.context import NodeContext
from tidelog_replica.coordinators.groups.coordinator import KINDS as KINDS
from tidelog_replica.coordinators.groups.coordinator import POSTPONED_S, READS, GroupCoordinator
from tidelog_replica.coordinators.groups.group import Group, Topic, Topics
from tidelog_replica.coordinators.groups.records import StoredGroups
from tidelog_replica.coordinators.runtime import CoordinatorRuntime, CoordinatorShard
from tidelog_replica.coordinators.transactions.service import TransactionCoordinatorService
from tidelog_replica.partition.transaction_gate import ASK_TIMEOUT_S, PASSED_ON

MAX_ENROLLING = 10_000
"""Most transactions that wait at a time. Others are refused, and come again."""
TOPICS_PAUSE_S = 0.05
"""The topics are looked through when the metadata has been still for so long, at least."""


@dataclass(frozen=True, slots=True, eq=False)
class _Enrolment:
    """A request with positions of a transaction, whose coordinator is being asked."""

    producer_id: int


class GroupCoordinatorService(CoordinatorRuntime[GroupCoordinator, StoredGroups]):
    """The coordinators of consumer groups on this server."""

    TOPIC: ClassVar[str] = GROUPS

    def __init__(
        self,
        context: NodeContext,
        assignment: Assignment,
        leadership: Leadership,
        transactions: TransactionCoordinatorService,
    ) -> None:
        super().__init__(context, assignment, leadership)
        self._transactions = transactions
        self._enrolling: dict[_Enrolment, None] = {}
        """Requests whose positions wait until this partition is part of their transaction."""
        self._topics = Topics()
        self._look_at = inf
        self._topics_due = False

    @property
    def groups(self) -> Iterator[Group]:
        """All that are coordinated here."""
        for led in self._led.values():
            if led.core is not None and led.is_led:
                yield from led.core.groups.values()

    def _store(self) -> StoredGroups:
        return StoredGroups()

    def _make(self, led: CoordinatorShard[GroupCoordinator, StoredGroups], now: float) -> GroupCoordinator:
        self._check_topics()
        core = GroupCoordinator(self._node, self._settings.groups, self._topics, self._effects.counts)
        core.load_records(led.stored, now)
        return core

    def _on_begun(self, led: CoordinatorShard[GroupCoordinator, StoredGroups], core: GroupCoordinator) -> None:
        fields = {"partition": led.partition.key.partition, "groups": len(core.groups)}
        self._effects.event("groups_coordinated", **fields, log_end=led.partition.log.end)

    def _on_unreadable(self, led: CoordinatorShard[GroupCoordinator, StoredGroups]) -> None:
        self._effects.event("groups_unreadable", partition=led.partition.key.partition, reason=led.broken)

    def _number(self, message: Message) -> int:
        if isinstance(message, ListGroups | WriteMarker):
            return message.partition
        return partition_of(getattr(message, "group", "").encode(), self.partitions)

    def _changes(self, message: Message) -> bool:
        return not isinstance(message, READS)

    def _needs_proof(self, message: Message, wrote: bool) -> bool:
        return isinstance(message, READS) or (isinstance(message, WriteMarker) and not wrote)

    # --- transactions ------------------------------------------------------------------------------------

    def on_request(self, source: int, id: int | None, message: Message, now: float) -> None:
        """A request for a coordinator. Positions of a transaction count with it only where this partition of
        ``__groups`` is part of it, so that it gets its marker. The application's coordinator is asked for every such
        request, also where the transaction has positions here already: it alone knows whether the producer id is that
        of the application to which the client has the right."""
        if isinstance(message, WriteMarker):
            for enrolment in [one for one in self._enrolling if one.producer_id == message.producer_id]:
                del self._enrolling[enrolment]
        if isinstance(message, CommitOffsets) and message.transaction and self._coordinates(message, now):
            self._enrol(source, id, message, now)
            return
        super().on_request(source, id, message, now)

    def _coordinates(self, message: Message, now: float) -> bool:
        return not isinstance(self._find(message, now), TidelogError)

    def _enrol(self, source: int, id: int | None, message: CommitOffsets, now: float) -> None:
        number, producer, epoch = self._number(message), message.producer_id, message.producer_epoch
        coordinator = self._transactions.coordinator_of(message.transaction)
        enrolment = _Enrolment(producer)
        request = EnrolPartition(self._node, message.transaction, producer, epoch, self.topic_id, number)

        def done(answer: Message | TidelogError, now: float) -> None:
            known = enrolment in self._enrolling
            self._enrolling.pop(enrolment, None)
            if isinstance(answer, Done) and known:
                super(GroupCoordinatorService, self).on_request(source, id, message, now)
                return
            why = answer if isinstance(answer, TidelogError) else refuse("NOT_COORDINATOR", "it has just ended")
            if why.code not in PASSED_ON:
                why = refuse("NOT_COORDINATOR", f"the coordinator of {message.transaction} says: {why.message}")
            self._effects.answer(source, id, why)

        if coordinator is None:
            done(refuse("NOT_COORDINATOR", f"nobody is known to coordinate {message.transaction}"), now)
            return
        if len(self._enrolling) >= MAX_ENROLLING:
            del self._enrolling[next(iter(self._enrolling))]
        self._enrolling[enrolment] = None
        self._effects.call(coordinator, request, ASK_TIMEOUT_S, done)

    # --- topics ------------------------------------------------------------------------------------------

    def on_metadata(self, now: float) -> None:
        """The metadata is another."""
        super().on_metadata(now)
        if self._led and self._look_at == inf:
            self._look_at = now + TOPICS_PAUSE_S
            self._set_timer(now)

    def on_tick(self, now: float) -> None:
        """Everything that is due."""
        self._topics_due = now >= self._look_at
        if self._topics_due:
            self._look_at = inf
            self._check_topics()
            if any(led.core is not None and self._refuse_write(led) is not None for led in self._led.values()):
                self._look_at = now + POSTPONED_S
        super().on_tick(now)

    def _on_due(
        self, led: CoordinatorShard[GroupCoordinator, StoredGroups], core: GroupCoordinator, now: float
    ) -> None:
        if self._topics_due:
            core.on_topics(self._topics, now)
        super()._on_due(led, core, now)

    def _due(self) -> float | None:
        return None if self._look_at == inf else self._look_at

    def _check_topics(self) -> None:
        topics = (Topic(topic.topic_id, topic.name, len(topic.partitions)) for topic in self._assignment.image.topics)
        self._topics = Topics(topics)
