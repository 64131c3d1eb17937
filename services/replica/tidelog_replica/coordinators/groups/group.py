"""One consumer group: its members, their partitions, and its committed positions (the idea of KIP-848).

The *target* is the assignment that the group moves to. It is computed again whenever members, subscriptions or topics
change. Reconciliation moves each partition towards it:

    assigned   the member owns the partition; the answer to its next heartbeat says so
    leaving    the member must give the partition up; the answer to its next heartbeat says so. Until then it may
               still commit positions of the partition
    free       no member owns the partition; its target member gets it at once

    free --target--> assigned --other target--> leaving --heartbeat without it, leave, time-out--> free

The *generation* of the group rises with every input that changes the assignment of some member. Members whose
assignment changes are put into the new generation; the others stay in theirs and are not disturbed.

Invariants: a partition is assigned to or leaving at most one member (``owners``). A commit is accepted only from the
owner in its present generation. A member that gets a partition is in a new generation, so no two members commit the
same partition in one generation. A member gives up partitions only by a heartbeat of its present generation: an older
heartbeat was sent before the member knew what to give up.

``take_entries`` returns what has changed as records. Losses precede gains: after a failover the log may hold only the
first of these records, and they must not give one partition to two members.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from tidelog.types import TopicPartition
from tidelog.wire.messages import MemberWork

from tidelog_replica.coordinators.groups.assignors import ASSIGNORS
from tidelog_replica.coordinators.groups.recent_events import RecentEvents
from tidelog_replica.coordinators.groups.records import (
    Entry,
    GroupRecord,
    MemberRecord,
    OffsetRecord,
    PendingRecord,
    group_entry,
    member_entry,
    offset_entry,
    partitions_of,
    pending_entry,
    shares_of,
)
from tidelog_replica.coordinators.tally import Tally


class Topic(NamedTuple):
    """A topic as the metadata have it: its id, its name and its number of partitions."""

    topic_id: str
    name: str
    partitions: int


class Topics:
    """An immutable list of all topics of the metadata, indexed by name and by id."""

    def __init__(self, topics: Iterable[Topic] = ()) -> None:
        self.by_name = {topic.name: topic for topic in topics}
        self.by_id = {topic.topic_id: topic for topic in self.by_name.values()}

    def has(self, partition: TopicPartition) -> bool:
        """Return whether the topic exists and has a partition of that number."""
        topic = self.by_id.get(partition.topic_id)
        return topic is not None and 0 <= partition.partition < topic.partitions


@dataclass(slots=True)
class Member:
    """A member of a group in the coordinator's memory: its subscription, its partitions and its deadlines. The
    deadlines are not stored in the log: a new coordinator gives every member the full time-outs again."""

    name: str
    instance: str
    node: str
    topics: tuple[str, ...]
    session_ms: int
    rebalance_ms: int
    generation: int = 0
    assigned: set[TopicPartition] = field(default_factory=set)
    leaving: set[TopicPartition] = field(default_factory=set)
    target: frozenset[TopicPartition] = frozenset()
    principal: str = ""
    """The principal that the member belongs to; "": not known."""
    expires_at: float = inf
    """Time at which the member is removed unless a heartbeat comes before, in seconds of the coordinator's clock."""
    must_by: float = inf
    """Time at which the member is removed unless it has given up the partitions in ``leaving`` (seconds); inf: it has
    none to give up."""
    away: bool = False
    """Whether this is a static member whose process has ended and may come back."""
    heard_at: float = -inf
    """Time of the last heartbeat in seconds; -inf: none has come to this coordinator."""
    work: MemberWork | None = None
    """What the application of the member did at the last heartbeat; None: not known."""
    joined_ms: int = -1
    """When it joined, or was first heard of by this coordinator, in ms of the wall clock since 1970; -1: not yet. For
    operators only, as ``advanced_ms``."""
    advanced_ms: int = -1
    """When it last moved a position forward, in ms since 1970; -1: not since ``joined_ms``."""

    @property
    def label(self) -> str:
        """Return the name under which the assignor knows the member. A static member has the same one when it comes
        back."""
        return f"static {self.instance}" if self.instance else f"member {self.name}"

    @property
    def deadline(self) -> float:
        """Return the time at which the member is removed if it sends nothing more, in seconds."""
        return min(self.expires_at, self.must_by)

    def record(self) -> MemberRecord:
        """Return the ``MemberRecord`` that stores the member in the log, without its deadlines."""
        shares = (shares_of(self.assigned), shares_of(self.leaving), shares_of(self.target))
        about = (self.instance, self.node, self.topics, self.session_ms, self.rebalance_ms)
        return MemberRecord(self.generation, *about, *shares, self.principal)


class Group:
    """One consumer group in the coordinator's memory: its members, the assignment of partitions to them, and the
    committed positions. Every change is queued as a record, which ``take_entries`` returns. Times are seconds of the
    coordinator's clock. The group lives until it ``is_obsolete``, or until the coordinator's role ends."""

    def __init__(self, name: str, record: GroupRecord | None = None, tally: Tally | None = None) -> None:
        """Make a group from its stored record, or a new one if there is none. ``tally`` counts the members of each
        principal over all groups."""
        self.name = name
        written = record or GroupRecord()
        self.generation, self.assignor = written.generation, written.assignor
        self.empty_ms, self.principal = written.empty_ms, written.principal
        self._tally = tally or Tally()
        self.members: dict[str, Member] = {}
        self.instances: dict[str, str] = {}
        """The name of the member that each static instance has now, by instance."""
        self.owners: dict[TopicPartition, str] = {}
        """The name of the member to which each partition is assigned, or which has not given it up yet."""
        self.offsets: dict[TopicPartition, OffsetRecord] = {}
        self.pending: dict[int, PendingRecord] = {}
        """Positions of transactions that are not at their end, by producer id."""
        self.recent = RecentEvents()
        """What happened lately, for operators; it is in no record."""
        self._bumped = False
        """Whether the generation was raised since the last ``take_entries``."""
        self._rewrite = record is None
        """Whether the group's own record must be written."""
        self._changed: dict[str, None] = {}
        """Members whose records must be written."""
        self._committed: dict[TopicPartition, None] = {}
        """Partitions whose positions must be written."""
        self._held: dict[int, None] = {}
        """Producer ids whose pending positions must be written."""

    # --- what it is --------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """Return the group's state for ``GroupInfo``: "empty" without members, "moving" while partitions move between
        members, otherwise "stable"."""
        if not self.members:
            return "empty"
        moving = any(m.leaving or m.assigned != m.target for m in self.members.values())
        return "moving" if moving else "stable"

    @property
    def is_obsolete(self) -> bool:
        """Return whether the group has no members, no positions and no open transaction, so that it can be
        deleted."""
        return not self.members and not self.offsets and not self.pending

    @property
    def begins_generation(self) -> bool:
        """Return whether the generation was raised since the last ``take_entries``, because the assignment of some
        member has changed."""
        return self._bumped

    @property
    def has_changes(self) -> bool:
        """Return whether any change of the group is not yet returned by ``take_entries``."""
        return self._bumped or self._rewrite or bool(self._changed or self._committed or self._held)

    def owns(self, member: Member, partition: TopicPartition) -> bool:
        """Return whether the partition is assigned to the member or still being given up by it, so that the member
        may commit positions of it."""
        return self.owners.get(partition) == member.name

    def last_ms(self) -> int:
        """Return when the group last had a member or a commit, in ms of the wall clock since 1970; 0 if it never had
        any, or has members and no commits."""
        return max([self.empty_ms, *(offset.ms for offset in self.offsets.values())])

    # --- members -----------------------------------------------------------------------------------------

    def restore(self, name: str, record: MemberRecord) -> None:
        """Add a member from its stored record, without deadlines. If the records give a partition to two members, the
        one that was restored first keeps it. Queues no records."""
        about = (record.instance, record.node, record.topics, record.session_ms, record.rebalance_ms)
        target = partitions_of(record.target)
        member = Member(name, *about, generation=record.generation, target=target, principal=record.principal)
        self._tally.add(member.principal)
        self.generation = max(self.generation, record.generation)
        member.assigned.update(p for p in partitions_of(record.assigned) if self.owners.setdefault(p, name) == name)
        member.leaving.update(p for p in partitions_of(record.leaving) if self.owners.setdefault(p, name) == name)
        self.members[name] = member
        if member.instance:
            self.instances[member.instance] = name

    def add(self, member: Member) -> None:
        """Add a new member, in a new generation. A static member takes over partitions and target of the member that
        has its instance now, which is removed."""
        before = self.members.get(self.instances.get(member.instance, "")) if member.instance else None
        if before is not None:
            self._forget(before.name)
            member.target = before.target
            member.assigned = {p for p in before.assigned if p not in self.owners}
            self.owners.update(dict.fromkeys(member.assigned, member.name))
        self.members[member.name] = member
        self._tally.add(member.principal)
        self.empty_ms = 0
        if member.instance:
            self.instances[member.instance] = member.name
        self._begin_member_generation(member)

    def remove(self, name: str, wall_ms: int) -> None:
        """Remove a member, so that its partitions have no owner, and raise the generation. If it was the last one,
        the group is empty since ``wall_ms`` (ms since 1970). Raises ``KeyError`` if there is no such member."""
        self._forget(name)
        if not self.members:
            self.empty_ms = max(1, wall_ms)

    def use(self, assignor: str) -> None:
        """Set the group's assignor, which ``retarget`` uses next. Does nothing for "", or if it is the present
        one."""
        if assignor not in ("", self.assignor):
            self.assignor, self._rewrite = assignor, True

    def _forget(self, name: str) -> None:
        """Remove a member, so that its partitions have no owner. Raise the generation, and queue the deletion of the
        member's record."""
        member = self.members.pop(name)
        self._tally.drop(member.principal)
        for partition in member.assigned | member.leaving:
            del self.owners[partition]
        if member.instance:
            del self.instances[member.instance]
        self._raise_generation()
        self._changed[name] = None

    def mark_changed(self, member: Member) -> None:
        """Queue the member's record, so that the next ``take_entries`` returns it."""
        self._changed[member.name] = None

    def _begin_member_generation(self, member: Member) -> None:
        """Raise the group's generation and put the member into it, since its assignment has changed. The answer to
        the member's next heartbeat carries the assignment. Queues the member's record."""
        self._raise_generation()
        member.generation = self.generation
        self.mark_changed(member)

    def _raise_generation(self) -> None:
        """Raise the group's generation by one, unless it was raised since the last ``take_entries``."""
        if not self._bumped:
            self._bumped = True
            self.generation += 1

    # --- assignment ---------------------------------------------------------------------------------------

    def retarget(self, topics: Topics, now: float) -> None:
        """Compute the target assignment with the group's assignor, since members, subscriptions or topics have
        changed. Then move partitions towards it, as ``reconcile`` does. Partitions that no longer exist are taken
        from their members first."""
        for member in self._in_order():
            gone = [p for p in member.assigned | member.leaving if not topics.has(p)]
            if gone:
                self._free(member, gone)
                self._begin_member_generation(member)
        previous = dict(self.owners)
        for member in self._in_order():
            previous.update(dict.fromkeys(member.target, member.name))
        labels = {member.name: member.label for member in self.members.values()}
        subscriptions = {
            member.label: tuple(topics.by_name[name].topic_id for name in member.topics if name in topics.by_name)
            for member in self.members.values()
        }
        counts = {topic.topic_id: topic.partitions for topic in topics.by_id.values()}
        had = {partition: labels[name] for partition, name in previous.items() if topics.has(partition)}
        shares = ASSIGNORS[self.assignor](subscriptions, counts, had)
        for member in self._in_order():
            target = frozenset(shares[member.label])
            if target != member.target:
                member.target = target
                self.mark_changed(member)
        self.reconcile(now)

    def release(self, member: Member, owned: set[TopicPartition], now: float) -> None:
        """Free the partitions in the member's ``leaving`` that are not in ``owned``, the partitions that the member
        still uses by its own report. Then assign what is free, as ``reconcile`` does. Does nothing if the member has
        given up none."""
        given_up = [p for p in member.leaving if p not in owned]
        if given_up:
            self._free(member, given_up)
            self.mark_changed(member)
            self.reconcile(now)

    def _free(self, member: Member, partitions: Iterable[TopicPartition]) -> None:
        """Take the partitions from the member, so that they have no owner. If the member has nothing left to give up,
        its rebalance deadline ends."""
        for partition in partitions:
            member.assigned.discard(partition)
            member.leaving.discard(partition)
            del self.owners[partition]
        if not member.leaving:
            member.must_by = inf

    def reconcile(self, now: float) -> None:
        """Move partitions one step towards the target: a partition that its member must lose becomes ``leaving``, and
        one without owner is assigned to its target. Members whose assignment changes are put into a new generation.
        Those that must give up partitions have ``rebalance_ms`` from ``now`` for it."""
        for member in self._in_order():
            lost, back = member.assigned - member.target, member.leaving & member.target
            if lost or back:
                member.assigned = (member.assigned - lost) | back
                member.leaving = (member.leaving - back) | lost
                due = now + member.rebalance_ms / 1000
                member.must_by = min(member.must_by, due) if member.leaving else inf
                self._begin_member_generation(member)
        for member in self._in_order():
            got = [p for p in member.target - member.assigned if p not in self.owners]
            if got:
                member.assigned.update(got)
                self.owners.update(dict.fromkeys(got, member.name))
                self._begin_member_generation(member)

    def _in_order(self) -> list[Member]:
        """Return the members in the order of their names, so that every run decides alike."""
        return sorted(self.members.values(), key=lambda member: member.name)

    # --- positions ---------------------------------------------------------------------------------------

    def commit(self, offsets: Mapping[TopicPartition, OffsetRecord]) -> None:
        """Set the committed positions of these partitions, and queue their records."""
        for partition, new in offsets.items():
            member, old = self.members.get(new.member), self.offsets.get(partition)
            if member is not None and old is not None and new.offset > old.offset:
                member.advanced_ms = new.ms
        self.recent.on_commit(self.offsets, offsets)
        self.offsets.update(offsets)
        self._committed.update(dict.fromkeys(offsets))

    def forget_offsets(self, partitions: Iterable[TopicPartition]) -> None:
        """Delete the committed positions of these partitions, and queue the deletion of their records."""
        gone = list(partitions)
        self.recent.forget(gone)
        for partition in gone:
            self.offsets.pop(partition, None)
            self._committed[partition] = None

    # --- what is to be written ---------------------------------------------------------------------------

    def take_entries(self) -> list[Entry]:
        """Return the records of all changes since the last call, and forget them; the caller appends them to the log.
        Deletions and losses precede gains. If the group ``is_obsolete`` its own record is deleted too. An empty list
        if nothing has changed."""
        entries = [
            member_entry(self.name, name, self.members[name].record() if name in self.members else None)
            for name in self._changed
        ]
        entries += [offset_entry(self.name, p, self.offsets.get(p)) for p in self._committed]
        entries += [pending_entry(self.name, id, self.pending.get(id)) for id in self._held]
        if self.is_obsolete:
            entries.append(group_entry(self.name, None))
        elif self._bumped or self._rewrite:
            record = GroupRecord(self.generation, self.assignor, self.empty_ms, self.principal)
            entries.append(group_entry(self.name, record))
        self._bumped = self._rewrite = False
        self._changed, self._committed, self._held = {}, {}, {}
        return entries

    # --- transactions ------------------------------------------------------------------------------------

    def is_unstable(self, partitions: Iterable[TopicPartition]) -> bool:
        """Return whether an open transaction has positions of one of these partitions, so that their committed
        positions may change."""
        return any(partition in held.offsets for held in self.pending.values() for partition in partitions)

    def hold(self, producer_id: int, epoch: int, offsets: Mapping[TopicPartition, OffsetRecord]) -> None:
        """Store positions that a producer commits within its open transaction; ``settle`` makes them valid or
        discards them. Positions from earlier calls in the same producer epoch are kept; those of an older epoch are
        dropped. Queues the record."""
        before = self.pending.get(producer_id)
        kept = before.offsets if before is not None and before.epoch == epoch else {}
        self.pending[producer_id] = PendingRecord(epoch, {**kept, **offsets})
        self._held[producer_id] = None

    def settle(self, producer_id: int, commit: bool) -> None:
        """End the transaction of a producer in this group: commit its positions if ``commit``, otherwise discard
        them. Queues the records. Raises ``KeyError`` if the group holds no positions of the producer."""
        held = self.pending.pop(producer_id)
        self._held[producer_id] = None
        if commit:
            self.commit(held.offsets)
