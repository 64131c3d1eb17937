"""The group coordinators of this server, one for each partition of ``__groups`` that it leads:
``groups/coordinator.py`` on ``coordinators/runtime.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import ClassVar

from tidelog.client.core.partitioner import partition_of
from tidelog.errors import TidelogError, refuse
from tidelog.types import GROUPS, NodeId
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
"""Most commits of transactional positions that wait for a transaction coordinator. If one more comes, the oldest is
given up, and refused when the coordinator has answered."""
TOPICS_PAUSE_S = 0.05
"""Seconds from a change of the metadata to the update of the groups' topics, which covers all changes of that
time."""


@dataclass(frozen=True, slots=True, eq=False)
class _Enrolment:
    """A commit of transactional positions that waits until the transaction coordinator has made this partition of
    ``__groups`` part of the transaction."""

    producer_id: int


class GroupCoordinatorService(CoordinatorRuntime[GroupCoordinator, StoredGroups]):
    """The coordinators of consumer groups on this server, one for each partition of ``__groups`` that it leads.
    Besides what every coordinator needs, it keeps the groups' topics up to date, and has the partition enrolled in a
    transaction before positions are committed within it. It lives as long as the node."""

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
        """Commits that wait until this partition of ``__groups`` is part of their transaction."""
        self._topics = Topics()
        self._look_at = inf
        self._topics_due = False

    @property
    def groups(self) -> Iterator[Group]:
        """Iterate over all groups of the coordinators that serve requests on this server now."""
        for led in self._led.values():
            if led.core is not None and led.is_led:
                yield from led.core.groups.values()

    def coordinator_of(self, group: str) -> NodeId | None:
        """Return the server that coordinates a group, by the newest metadata: the leader of its partition of
        ``__groups``. None if the partition has no leader, or if the topic does not exist yet."""
        topic = self._transactions.topic(self.topic_id)
        return None if topic is None else topic.partitions[partition_of(group.encode(), self.partitions)].leader

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
        """Return whether the answer waits for a proof that no other server led when the request came: for requests
        that only read, and for a marker that changed nothing (``wrote`` is False)."""
        return isinstance(message, READS) or (isinstance(message, WriteMarker) and not wrote)

    # --- transactions ------------------------------------------------------------------------------------

    def on_request(self, source: int, id: int | None, message: Message, now: float) -> None:
        """Pass a request to its group coordinator, as the base class does. A commit of positions within a transaction
        is handled only after the transaction coordinator has enrolled this partition of ``__groups``, so that the
        transaction's marker is sent here too. The coordinator is asked for each such commit: only it knows whether
        the producer id belongs to the transactional id for which the client has rights. A marker ends the wait of its
        producer's commits, which are then refused."""
        if isinstance(message, WriteMarker):
            for enrolment in [one for one in self._enrolling if one.producer_id == message.producer_id]:
                del self._enrolling[enrolment]
        if isinstance(message, CommitOffsets) and message.transaction and self._coordinates(message, now):
            self._enrol(source, id, message, now)
            return
        super().on_request(source, id, message, now)

    def _coordinates(self, message: Message, now: float) -> bool:
        """Return whether a coordinator on this server can handle the request now: it has read its log, this server
        leads the partition, and records can be appended if the request needs that."""
        return not isinstance(self._find(message, now), TidelogError)

    def _enrol(self, source: int, id: int | None, message: CommitOffsets, now: float) -> None:
        """Send the transaction coordinator an ``EnrolPartition`` for this partition of ``__groups``, and handle the
        commit of positions when it has agreed. Answer the commit with an error if the coordinator is not known or
        refuses, or if a marker has ended a transaction of the producer meanwhile."""
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
        """If groups are coordinated here, set a timer, ``TOPICS_PAUSE_S`` from now, to adapt them to topics that the
        new metadata have changed. Also look up the internal topic while it is unknown."""
        super().on_metadata(now)
        if self._led and self._look_at == inf:
            self._look_at = now + TOPICS_PAUSE_S
            self._set_timer(now)

    def on_tick(self, now: float) -> None:
        """Adapt the groups to changed topics if that is due, then do what the base class does. If a coordinator
        cannot append records now, its groups are adapted later."""
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
        """Replace the list of topics, by which groups assign partitions, by that of the newest metadata."""
        topics = (Topic(topic.topic_id, topic.name, len(topic.partitions)) for topic in self._assignment.image.topics)
        self._topics = Topics(topics)
