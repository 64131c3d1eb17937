"""One consumer group: its members, their partitions, and how far it has come (the idea of KIP-848).

The *target* says what each member is to have in the end; it is made anew whenever members, subscriptions or topics
change. Reconciliation moves what the members have towards it, partition by partition:

    assigned   the member owns it, and hears so with its next heartbeat
    leaving    the member owned it, hears that it has to give it up, and may still commit it
    free       no member has it: the one whose target it is in gets it at once

    free --target--> assigned --other target--> leaving --heartbeat without it, leave, time-out--> free

The *generation* of the group grows with every input that changes what some member has to hear; those members are in
that generation then, the others stay in theirs. So members that keep their partitions notice nothing.

Invariants: a partition is assigned to or leaving at most one member (``owners``). A commit is taken from the owner
only, in its present generation: since a member that gets a partition is in a generation that is new, no two
members commit the same partition in one generation. What is given up is only taken as such from the present
generation: a late heartbeat from before the member heard of it says nothing about it.

``take_entries`` gives what has changed as records. Losses come before gains, so that also the
beginning of these records, which may be all that a failover leaves, gives no partition to two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from tidelog.types import TopicPartition

from tidelog_replica.coordinators.groups.assignors import ASSIGNORS
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
    """A topic as the metadata has it."""

    topic_id: str
    name: str
    partitions: int


class Topics:
    """All topics, by name and by id."""

    def __init__(self, topics: Iterable[Topic] = ()) -> None:
        self.by_name = {topic.name: topic for topic in topics}
        self.by_id = {topic.topic_id: topic for topic in self.by_name.values()}

    def has(self, partition: TopicPartition) -> bool:
        """Whether there is such a partition."""
        topic = self.by_id.get(partition.topic_id)
        return topic is not None and 0 <= partition.partition < topic.partitions


@dataclass(slots=True)
class Member:
    """A member. The times are not written down: a new coordinator gives every member all of them again."""

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
    """Whose it is."""
    expires_at: float = inf
    """Without a heartbeat until then it is out (seconds of the coordinator's clock)."""
    must_by: float = inf
    """Until then it must have given up what is leaving."""
    away: bool = False
    """A static member whose process has ended."""

    @property
    def label(self) -> str:
        """Its name for the assignor: a static member keeps it when it comes back."""
        return f"static {self.instance}" if self.instance else f"member {self.name}"

    @property
    def deadline(self) -> float:
        """When it is out, as things are."""
        return min(self.expires_at, self.must_by)

    def record(self) -> MemberRecord:
        """It as it is written."""
        shares = (shares_of(self.assigned), shares_of(self.leaving), shares_of(self.target))
        about = (self.instance, self.node, self.topics, self.session_ms, self.rebalance_ms)
        return MemberRecord(self.generation, *about, *shares, self.principal)


class Group:
    """Inputs change it; ``take_entries`` then says what is to be written. Times are seconds."""

    def __init__(self, name: str, record: GroupRecord | None = None, tally: Tally | None = None) -> None:
        """``tally``: the members of each principal, of all groups."""
        self.name = name
        written = record or GroupRecord()
        self.generation, self.assignor = written.generation, written.assignor
        self.empty_ms, self.principal = written.empty_ms, written.principal
        self._tally = tally or Tally()
        self.members: dict[str, Member] = {}
        self.instances: dict[str, str] = {}
        """Which member a static one is now."""
        self.owners: dict[TopicPartition, str] = {}
        self.offsets: dict[TopicPartition, OffsetRecord] = {}
        self.pending: dict[int, PendingRecord] = {}
        """Positions of transactions that are not at their end, by producer id."""
        self._bumped = False
        self._rewrite = record is None
        self._changed: dict[str, None] = {}
        self._committed: dict[TopicPartition, None] = {}
        self._held: dict[int, None] = {}

    # --- what it is --------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """The group's state as ``GroupInfo`` has it."""
        if not self.members:
            return "empty"
        moving = any(m.leaving or m.assigned != m.target for m in self.members.values())
        return "moving" if moving else "stable"

    @property
    def is_vain(self) -> bool:
        """There is nothing to remember of it."""
        return not self.members and not self.offsets and not self.pending

    @property
    def begins_generation(self) -> bool:
        """Whether some member has an assignment that it has not heard of."""
        return self._bumped

    @property
    def has_news(self) -> bool:
        """Something is to be written."""
        return self._bumped or self._rewrite or bool(self._changed or self._committed or self._held)

    def owns(self, member: Member, partition: TopicPartition) -> bool:
        """Whether the partition is the member's to commit."""
        return self.owners.get(partition) == member.name

    def last_ms(self) -> int:
        """When it last had a member, or a commit (wall clock)."""
        return max([self.empty_ms, *(offset.ms for offset in self.offsets.values())])

    # --- members -----------------------------------------------------------------------------------------

    def restore(self, name: str, record: MemberRecord) -> None:
        """A member as it was written."""
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
        """A new member; a static one takes over what its last process had, and that one is out."""
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
        self._tell(member)

    def remove(self, name: str, wall_ms: int) -> None:
        """The member is out; what it had is free."""
        self._forget(name)
        if not self.members:
            self.empty_ms = max(1, wall_ms)

    def use(self, assignor: str) -> None:
        """Another assignor from now on ("": the same)."""
        if assignor not in ("", self.assignor):
            self.assignor, self._rewrite = assignor, True

    def _forget(self, name: str) -> None:
        member = self.members.pop(name)
        self._tally.drop(member.principal)
        for partition in member.assigned | member.leaving:
            del self.owners[partition]
        if member.instance:
            del self.instances[member.instance]
        self._bump()
        self._changed[name] = None

    def mark_changed(self, member: Member) -> None:
        """Something about the member is to be written."""
        self._changed[member.name] = None

    def _tell(self, member: Member) -> None:
        """The member has a new assignment to hear of: it is in a new generation."""
        self._bump()
        member.generation = self.generation
        self.mark_changed(member)

    def _bump(self) -> None:
        if not self._bumped:
            self._bumped = True
            self.generation += 1

    # --- assignment ---------------------------------------------------------------------------------------

    def retarget(self, topics: Topics, now: float) -> None:
        """Members, subscriptions or topics have changed: who is to have what? Then as much of it as goes at once."""
        for member in self._in_order():
            gone = [p for p in member.assigned | member.leaving if not topics.has(p)]
            if gone:
                self._free(member, gone)
                self._tell(member)
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
        """The member, in its present generation, says what it owns: what it gave up is free."""
        given_up = [p for p in member.leaving if p not in owned]
        if given_up:
            self._free(member, given_up)
            self.mark_changed(member)
            self.reconcile(now)

    def _free(self, member: Member, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            member.assigned.discard(partition)
            member.leaving.discard(partition)
            del self.owners[partition]
        if not member.leaving:
            member.must_by = inf

    def reconcile(self, now: float) -> None:
        """Move everything towards the target that can be moved now."""
        for member in self._in_order():
            lost, back = member.assigned - member.target, member.leaving & member.target
            if lost or back:
                member.assigned = (member.assigned - lost) | back
                member.leaving = (member.leaving - back) | lost
                due = now + member.rebalance_ms / 1000
                member.must_by = min(member.must_by, due) if member.leaving else inf
                self._tell(member)
        for member in self._in_order():
            got = [p for p in member.target - member.assigned if p not in self.owners]
            if got:
                member.assigned.update(got)
                self.owners.update(dict.fromkeys(got, member.name))
                self._tell(member)

    def _in_order(self) -> list[Member]:
        return sorted(self.members.values(), key=lambda member: member.name)

    # --- positions ---------------------------------------------------------------------------------------

    def commit(self, offsets: Mapping[TopicPartition, OffsetRecord]) -> None:
        """It has come so far."""
        self.offsets.update(offsets)
        self._committed.update(dict.fromkeys(offsets))

    def forget_offsets(self, partitions: Iterable[TopicPartition]) -> None:
        """These positions mean nothing any more."""
        for partition in partitions:
            self.offsets.pop(partition, None)
            self._committed[partition] = None

    # --- what is to be written ---------------------------------------------------------------------------

    def take_entries(self) -> list[Entry]:
        """The records of everything that has changed; of a group that is vain only that it is gone."""
        entries = [
            member_entry(self.name, name, self.members[name].record() if name in self.members else None)
            for name in self._changed
        ]
        entries += [offset_entry(self.name, p, self.offsets.get(p)) for p in self._committed]
        entries += [pending_entry(self.name, id, self.pending.get(id)) for id in self._held]
        if self.is_vain:
            entries.append(group_entry(self.name, None))
        elif self._bumped or self._rewrite:
            record = GroupRecord(self.generation, self.assignor, self.empty_ms, self.principal)
            entries.append(group_entry(self.name, record))
        self._bumped = self._rewrite = False
        self._changed, self._committed, self._held = {}, {}, {}
        return entries

    # --- transactions ------------------------------------------------------------------------------------

    def is_unstable(self, partitions: Iterable[TopicPartition]) -> bool:
        """A transaction may be about to move the position of one of these."""
        return any(partition in held.offsets for held in self.pending.values() for partition in partitions)

    def hold(self, producer_id: int, epoch: int, offsets: Mapping[TopicPartition, OffsetRecord]) -> None:
        """These count when the transaction is committed; those of an earlier call, too."""
        before = self.pending.get(producer_id)
        kept = before.offsets if before is not None and before.epoch == epoch else {}
        self.pending[producer_id] = PendingRecord(epoch, {**kept, **offsets})
        self._held[producer_id] = None

    def settle(self, producer_id: int, commit: bool) -> None:
        """The transaction is at its end."""
        held = self.pending.pop(producer_id)
        self._held[producer_id] = None
        if commit:
            self.commit(held.offsets)
