"""The coordinator of the consumer groups of one partition of ``__groups``, for one leader epoch of the partition.

All its state is in the log: ``take_entries`` returns the changes of each input as records, and the caller answers no
request before these are committed. That includes refusals and answers that change nothing, which may depend on
records written just before. So the next coordinator, which reads the log, knows everything that was ever answered. A
server that is no coordinator any more and does not know it yet can commit nothing, and so it can answer nothing new.

    load_records  begins with the contents of the log; every member gets a full session timeout, since the time of its
                  last heartbeat is not known
    handle        serves a request; a refused one changes nothing
    on_topics     adapts groups to new, larger or deleted topics: targets change, positions in deleted ones go
    on_tick       removes members that sent no heartbeat or did not give up their partitions, and deletes groups that
                  were not used for ``offsets_retention_ms``

No member is removed while nothing can be written (``postpone``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable
from dataclasses import replace
from math import inf

from tidelog.errors import TidelogError, refuse
from tidelog.principal_bounds import refuse_excess
from tidelog.sansio.counters import count
from tidelog.sansio.timers import Timers
from tidelog.types import YEAR_2025_MS, NodeId, TopicPartition
from tidelog.wire.messages import (
    CommitOffsets,
    DeleteGroup,
    DescribeGroup,
    DescribeGroupAnswer,
    Done,
    FetchOffsets,
    FetchOffsetsAnswer,
    GroupHeartbeat,
    GroupHeartbeatAnswer,
    GroupInfo,
    GroupMember,
    GroupPosition,
    JoinGroup,
    JoinGroupAnswer,
    LeaveGroup,
    ListGroups,
    ListGroupsAnswer,
    MemberWork,
    Message,
    TopicShare,
    WriteMarker,
)

from tidelog_replica.config import GroupSettings
from tidelog_replica.coordinators.groups.group import Group, Member, Topics
from tidelog_replica.coordinators.groups.recent_events import LEFT, SILENT, SLOW
from tidelog_replica.coordinators.groups.records import Entry, OffsetRecord, StoredGroups, shares_of
from tidelog_replica.coordinators.groups.validation import check_commit, check_join, check_name
from tidelog_replica.coordinators.tally import Tally
from tidelog_replica.counters import ReplicaCounts

SWEEP_S = 60.0
"""Pause between two searches for unused groups, in seconds."""
POSTPONED_S = 1.0
"""Pause in seconds after which due timers are checked again while no records can be appended."""
SHORT_LIFE_MS = 60_000
"""Milliseconds from the join within which the end of a member that has not got on is counted: its program may be
started again and again."""
SWEEP = "sweep"
"""Key of the timer of the search for unused groups."""

READS = (FetchOffsets, ListGroups, DescribeGroup)
"""Requests that only read. Their answers wait for a proof that this server still leads."""
WRITES = (JoinGroup, LeaveGroup, CommitOffsets, DeleteGroup)
KINDS = (*READS, *WRITES, GroupHeartbeat)
"""The requests that clients send to a group coordinator. ``WriteMarker`` is not among them: transaction coordinators
send it."""


class GroupCoordinator:
    """The coordinator of all groups of one partition of ``__groups``, as long as this server leads the partition. It
    does no I/O: the caller appends the records of ``take_entries`` to the log and sends the answers. ``now`` is the
    caller's clock in seconds, ``wall_ms`` the wall clock in ms since 1970."""

    def __init__(self, node: NodeId, settings: GroupSettings, topics: Topics, counts: ReplicaCounts) -> None:
        self._counts = counts
        self.groups: dict[str, Group] = {}
        self._node = node
        self._settings = settings
        self._topics = topics
        self._timers: Timers[Hashable] = Timers()
        self._entries: list[Entry] = []
        self._joins, self._joins_until = 0, 0.0
        self._begun, self._members = Tally(), Tally()
        """The number of groups that each principal has begun, and of members that it has in all groups."""

    def load_records(self, stored: StoredGroups, now: float) -> None:
        """Restore all groups from the contents of the log. Every member gets a full session timeout, and a full
        rebalance timeout if it has partitions to give up. Groups are adapted to the known topics. Called one time,
        before all other methods."""
        for name, record in stored.groups.items():
            self.groups[name] = Group(name, record, self._members)
            self._begun.add(record.principal)
        for (name, member), entry in sorted(stored.members.items()):
            self._group(name).restore(member, entry)
        for (name, partition), offset in stored.offsets.items():
            self._group(name).offsets[partition] = offset
        for (name, producer_id), held in stored.pending.items():
            self._group(name).pending[producer_id] = held
        for group in list(self.groups.values()):
            for restored in group.members.values():
                restored.expires_at = now + restored.session_ms / 1000
                restored.must_by = now + restored.rebalance_ms / 1000 if restored.leaving else restored.must_by
            self._revise(group, now)
        self._timers.set(SWEEP, now + SWEEP_S)

    # --- time, and the world around ----------------------------------------------------------------------

    def on_topics(self, topics: Topics, now: float) -> None:
        """Replace the known topics. In groups that subscribe to a changed topic, assign the partitions again; delete
        committed positions in partitions that no longer exist. Does nothing more if no topic has changed."""
        before, self._topics = self._topics, topics
        names = {*before.by_name, *topics.by_name}
        moved = {name for name in names if before.by_name.get(name) != topics.by_name.get(name)}
        for group in list(self.groups.values()) if moved else ():
            if any(moved.intersection(member.topics) for member in group.members.values()) or any(
                not topics.has(partition) for partition in group.offsets
            ):
                self._revise(group, now)

    def _revise(self, group: Group, now: float) -> None:
        """Adapt a group to the known topics: delete positions in partitions that no longer exist, and assign the
        partitions again."""
        gone = sorted(p for p in group.offsets if not self._topics.has(p))
        group.forget_offsets(gone)
        if group.members:
            group.retarget(self._topics, now)
        self._touch(group)

    def on_tick(self, now: float, wall_ms: int) -> None:
        """Do all that is due. Remove members that sent no heartbeat, or did not give up their partitions in time, and
        assign their partitions to others. Delete groups that were unused for ``offsets_retention_ms``.
        ``take_entries`` then returns the records; ``deadline`` is later than ``now``."""
        for key in self._timers.pop_due(now):
            self._on_timer(key, now, wall_ms)

    def _on_timer(self, key: Hashable, now: float, wall_ms: int) -> None:
        """Handle one due timer: search for unused groups, or remove the member whose session or rebalance timeout has
        passed. If the member's deadline was extended, only set the timer again."""
        if key == SWEEP:
            self._sweep(wall_ms)
            self._timers.set(SWEEP, now + SWEEP_S)
            return
        member = self._member_of(key)
        if member is not None and member.deadline <= now:
            assert isinstance(key, tuple)
            self._counts.group_expelled += 1
            group, silent = self.groups[key[0]], member.expires_at <= now
            timeout_ms = member.session_ms if silent else member.rebalance_ms
            self._record_end(group, member, SILENT if silent else SLOW, wall_ms, timeout_ms)
            self._remove(group, member, now, wall_ms)
        elif member is not None:
            self._timers.set(key, member.deadline)

    def _member_of(self, key: Hashable) -> Member | None:
        """Return the member that a timer's key names by group and member name; None if it is no member any more, or
        if the key is ``SWEEP``."""
        group = self.groups.get(key[0]) if isinstance(key, tuple) else None
        return None if group is None or not isinstance(key, tuple) else group.members.get(key[1])

    def _record_end(self, group: Group, member: Member, event: str, wall_ms: int, timeout_ms: int = 0) -> None:
        """Remember for operators that a member has left, or was expelled since it exceeded ``timeout_ms``. Count
        it if it was short-lived and had not moved a position forward."""
        advanced = member.advanced_ms >= 0
        self._counts.group_short_lived += not advanced and wall_ms - member.joined_ms < SHORT_LIFE_MS
        group.recent.add_gone(event, wall_ms, member.name, member.node, timeout_ms, advanced=advanced)

    def _remove(self, group: Group, member: Member, now: float, wall_ms: int) -> None:
        """Remove a member from its group, and assign its partitions to the other members."""
        group.remove(member.name, wall_ms)
        group.retarget(self._topics, now)
        self._touch(group)

    def postpone(self, now: float) -> None:
        """Move all timers that are due ``POSTPONED_S`` ahead, since no records can be appended now. Members that
        would be removed get more time, enough for two heartbeats after the pause."""
        later = now + POSTPONED_S + 2 * self._settings.heartbeat_ms / 1000
        for key in self._timers.pop_due(now):
            member = self._member_of(key)
            if member is not None:
                member.expires_at, member.must_by = max(member.expires_at, later), max(member.must_by, later)
            self._timers.set(key, now + POSTPONED_S)

    def deadline(self) -> float | None:
        """Return the earliest time at which ``on_tick`` has something to do, in seconds; None if no timer is set."""
        return self._timers.deadline()

    def _sweep(self, wall_ms: int) -> None:
        """Delete the positions of each group that has had no members and commits for ``offsets_retention_ms``; unless
        a transaction is open, the group is deleted with them."""
        for group in list(self.groups.values()):
            if not group.members and group.last_ms() + self._settings.offsets_retention_ms <= wall_ms:
                group.forget_offsets(sorted(group.offsets))
                self._touch(group)

    def take_entries(self) -> list[Entry]:
        """Return the records of all changes since the last call, in order, and forget them. The caller must append
        them to the log before it sends any answer. An empty list if nothing has changed."""
        entries, self._entries = self._entries, []
        return entries

    def _touch(self, group: Group) -> None:
        """Collect the records of a changed group, delete the group if it ``is_obsolete``, and set the timers of its
        members. It is called after each step, so that the records that free a partition precede those that assign it
        again."""
        self._counts.group_generations += group.begins_generation
        self._entries += group.take_entries()
        if group.is_obsolete and self.groups.pop(group.name, None) is not None:
            self._begun.drop(group.principal)
        for member in group.members.values():
            self._timers.set((group.name, member.name), member.deadline)

    def _group(self, name: str, wall_ms: int = 0, principal: str = "") -> Group:
        """Return the group of that name; if there is none make one, which belongs to ``principal``. The generation of
        a new group begins at the seconds since 2025. So no generation of an earlier group of that name is given
        again, even after a rescue that lost the topic."""
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = Group(name, tally=self._members)
            group.principal = principal
            self._begun.add(principal)
            group.generation = max(0, wall_ms - YEAR_2025_MS) // 1000
        return group

    # --- requests ----------------------------------------------------------------------------------------

    def handle(self, message: Message, now: float, wall_ms: int) -> Message | TidelogError:
        """Handle a request of ``KINDS`` or a ``WriteMarker``: change the groups and return the answer, or return the
        error that refuses the request; a refused request changes nothing. The caller sends the answer only when the
        records of ``take_entries``, and all earlier ones, are committed."""
        try:
            match message:
                case JoinGroup():
                    return self._join(message, now, wall_ms)
                case GroupHeartbeat():
                    return self._heartbeat(message, now, wall_ms)
                case LeaveGroup():
                    return self._leave(message, now, wall_ms)
                case CommitOffsets():
                    return self._commit(message, wall_ms)
                case FetchOffsets():
                    return self._fetch(message)
                case ListGroups():
                    return self._list(message)
                case DescribeGroup():
                    return self._describe(message, now, wall_ms)
                case DeleteGroup():
                    return self._delete(message)
                case WriteMarker():
                    return self._settle(message)
                case _:
                    raise refuse("UNSUPPORTED", f"a coordinator does not know {message.OP}")
        except TidelogError as error:
            if isinstance(message, CommitOffsets):
                count(self._counts.group_commit_refusals, error.code)
                self._on_refused_commit(message, error.code, wall_ms)
            return error

    def _on_refused_commit(self, asked: CommitOffsets, code: str, wall_ms: int) -> None:
        """Remember for operators that the commit of a member, or of one that is no member any more, was refused.
        Nothing is remembered of groups that do not exist."""
        group = self.groups.get(asked.group)
        if group is not None and asked.member:
            member = group.members.get(asked.member)
            group.recent.add_refused(wall_ms, asked.member, "" if member is None else member.node, code)

    def _join(self, asked: JoinGroup, now: float, wall_ms: int) -> JoinGroupAnswer:
        """Add a member, or change its subscription, time-outs or assignor, and assign the group's partitions again. A
        request that changes nothing only extends the member's session. Return the member's generation, heartbeat
        interval and partitions. A new process of a static member takes over the place of the last one. Raises
        ``INVALID_GROUP``, ``INVALID_TOPIC``, ``GROUP_FULL``, ``LIMIT_EXCEEDED`` or ``OVERLOADED``."""
        check_join(asked, self._settings)
        group = self.groups.get(asked.group)
        member = None if group is None else group.members.get(asked.member)
        about = (asked.topics, asked.session_timeout_ms, asked.rebalance_timeout_ms)
        if group is None or member is None:
            self._admit(asked, group, now)
            group = self._group(asked.group, wall_ms, asked.principal)
            member = Member(
                asked.member, asked.instance, asked.node, *about, principal=asked.principal, joined_ms=wall_ms
            )
            group.recent.add_joined(wall_ms, asked.member, asked.node)
            group.use(asked.assignor)
            group.add(member)
            group.retarget(self._topics, now)
            group.release(member, set(), now)  # what a static member is not to have any more, this process never had
        elif member.instance != asked.instance:
            raise refuse("INVALID_GROUP", f"{asked.member} joined as another static member: {member.instance!r}")
        elif (member.topics, member.session_ms, member.rebalance_ms) != about or asked.assignor not in (
            "",
            group.assignor,
        ):
            member.topics, member.session_ms, member.rebalance_ms = about
            group.use(asked.assignor)
            group.mark_changed(member)
            group.retarget(self._topics, now)
        if group.has_changes:
            self._touch(group)
        self._extend_session(group, member, now)
        return JoinGroupAnswer(
            member.generation,
            min(self._settings.heartbeat_ms, member.session_ms // 3),
            _shares_of(member.assigned, self._topics),
        )

    def _admit(self, asked: JoinGroup, group: Group | None, now: float) -> None:
        """Check that the group, the coordinator and the principal may have one more member, and count the request for
        the limit of joins per second. A static member that takes over a place passes the limits of the group and the
        principal. Raises ``GROUP_FULL``, ``LIMIT_EXCEEDED`` or ``OVERLOADED``."""
        limits = self._settings
        if group is None:
            self._check_room(asked.principal)
        takes_over = group is not None and asked.instance in group.instances
        if group is not None and len(group.members) >= limits.max_members and not takes_over:
            raise refuse("GROUP_FULL", f"{asked.group} has {limits.max_members} members: it takes no more")
        held, most = self._members.of(asked.principal), limits.principal_max_members
        over = refuse_excess(
            asked.principal, "members of groups", held, "settings.groups.principal_max_members", most
        )
        if over is not None and not takes_over:
            raise over
        if now >= self._joins_until:
            self._joins, self._joins_until = 0, now + 1.0
        if self._joins >= limits.max_joins_per_s:
            raise refuse("OVERLOADED", f"the coordinator takes {limits.max_joins_per_s} joins per second")
        self._joins += 1

    def _check_room(self, principal: str) -> None:
        """Check that the principal, and the coordinator, may have one more group. Raises ``LIMIT_EXCEEDED`` or
        ``GROUP_FULL``."""
        limits = self._settings
        held, most = self._begun.of(principal), limits.principal_max_groups
        over = refuse_excess(principal, "groups", held, "settings.groups.principal_max_groups", most)
        if over is not None:
            raise over
        if len(self.groups) >= limits.max_groups:
            raise refuse("GROUP_FULL", f"the coordinator has {limits.max_groups} groups: it takes no more")

    def _heartbeat(self, asked: GroupHeartbeat, now: float, wall_ms: int) -> GroupHeartbeatAnswer:
        """Extend the member's session, and free the partitions that it reports to have given up. Return the member's
        generation and partitions. Raises ``INVALID_GROUP``, ``UNKNOWN_MEMBER``, ``FENCED_INSTANCE`` or
        ``FENCED_GENERATION``."""
        group, member = self._find(asked.group, asked.member, asked.instance)
        if asked.generation > member.generation:
            raise refuse("FENCED_GENERATION", f"{asked.member} is in generation {member.generation}")
        self._extend_session(group, member, now)
        member.heard_at, member.work = now, _work_of(member, asked.work, self._topics)
        if member.joined_ms < 0:
            member.joined_ms = wall_ms
        if asked.generation == member.generation and member.leaving:
            owned = {TopicPartition(share.topic_id, number) for share in asked.owned for number in share.partitions}
            group.release(member, owned, now)
            self._touch(group)
        return GroupHeartbeatAnswer(member.generation, _shares_of(member.assigned, self._topics))

    def _extend_session(self, group: Group, member: Member, now: float) -> None:
        """Extend the member's session by a full session timeout from ``now``, and set its timer. A static member that
        was away is back."""
        member.expires_at, member.away = now + member.session_ms / 1000, False
        self._timers.set((group.name, member.name), member.deadline)

    def _leave(self, asked: LeaveGroup, now: float, wall_ms: int) -> Done:
        """Remove the member and assign its partitions to the others. With ``keep`` a static member stays, with its
        assigned partitions, until its session times out; only those that it had to give up are freed. Does nothing
        for an unknown member. Raises ``INVALID_GROUP`` for a bad name."""
        check_name(asked.group)
        group = self.groups.get(asked.group)
        member = None if group is None else group.members.get(asked.member)
        if group is None or member is None:
            return Done()
        if asked.keep and member.instance:
            member.away = True
            group.release(member, set(), now)
            self._touch(group)
        else:
            self._record_end(group, member, LEFT, wall_ms)
            self._remove(group, member, now, wall_ms)
        return Done()

    def _commit(self, asked: CommitOffsets, wall_ms: int) -> Done:
        """Store the committed positions of a group; those of a transaction become valid only if it is committed. A
        member must own the partitions in its present generation. A request without a member name is accepted only if
        the group has no members; it makes the group if there is none. Raises ``TidelogError``."""
        check_commit(asked, self._settings, self._topics)
        offsets = {
            TopicPartition(p.topic_id, p.partition): OffsetRecord(
                p.offset, p.leader_epoch, p.metadata, wall_ms, asked.member, asked.generation
            )
            for p in asked.positions
        }
        if asked.member:
            group, member = self._find(asked.group, asked.member, asked.instance)
            if asked.generation != member.generation:
                raise refuse("FENCED_GENERATION", f"{asked.member} is in generation {member.generation}")
            for partition in offsets:
                if not group.owns(member, partition):
                    raise refuse("FENCED_GENERATION", f"{partition.topic_id}/{partition.partition} is not its own")
        else:
            found = self.groups.get(asked.group)
            if found is not None and found.members:
                raise refuse("GROUP_NOT_EMPTY", f"{asked.group} has {len(found.members)} members: only they commit")
            if found is None:
                self._check_room(asked.principal)
            group = self._group(asked.group, wall_ms, asked.principal)
        if asked.transaction:
            group.hold(asked.producer_id, asked.producer_epoch, offsets)
        else:
            group.commit(offsets)
            self._counts.group_commits += 1
        self._touch(group)
        return Done()

    def _settle(self, asked: WriteMarker) -> Done:
        """Apply a transaction's end in all groups: the positions that the producer holds in the marker's producer
        epoch or an older one are committed, or discarded. Does nothing if no group holds such positions."""
        for group in list(self.groups.values()):
            held = group.pending.get(asked.producer_id)
            if held is not None and held.epoch <= asked.producer_epoch:
                group.settle(asked.producer_id, asked.commit)
                self._counts.group_commits += asked.commit
                group.forget_offsets(sorted(p for p in held.offsets if not self._topics.has(p)))
                self._touch(group)
        return Done()

    def _fetch(self, asked: FetchOffsets) -> FetchOffsetsAnswer:
        """Return the committed positions of the requested partitions; of all partitions if none is named; none for an
        unknown group. Raises ``UNSTABLE_OFFSETS`` while an open transaction may change one of them, and
        ``INVALID_GROUP``."""
        check_name(asked.group)
        group = self.groups.get(asked.group)
        if group is None:
            return FetchOffsetsAnswer()
        shares = ((share.topic_id, number) for share in asked.parts for number in share.partitions)
        wanted = list(dict.fromkeys(TopicPartition(*each) for each in shares))
        if group.pending and group.is_unstable(wanted or [p for h in group.pending.values() for p in h.offsets]):
            raise refuse("UNSTABLE_OFFSETS", f"a transaction that moves positions of {asked.group} is not at its end")
        if not asked.parts:
            return FetchOffsetsAnswer(_positions_of(group))
        return FetchOffsetsAnswer(tuple(_position_of(p, group.offsets[p]) for p in wanted if p in group.offsets))

    def _list(self, asked: ListGroups) -> ListGroupsAnswer:
        """Return one page of the groups in the order of their names: at most ``most`` groups (0: all) whose names
        come after ``after``, and whether more follow. With ``topic_id`` each has its committed position in that
        partition, even if an open transaction may change it."""
        names = sorted(self.groups)
        first = bisect_right(names, asked.after) if asked.after else 0
        end = first + asked.most if asked.most else len(names)
        partition = TopicPartition(asked.topic_id, asked.topic_partition) if asked.topic_id else None
        infos = tuple(
            GroupInfo(
                group.name,
                group.state,
                len(group.members),
                self._node,
                None if partition is None else _positions_in(group, partition),
            )
            for group in (self.groups[name] for name in names[first:end])
        )
        return ListGroupsAnswer(infos, more=end < len(names))

    def _describe(self, asked: DescribeGroup, now: float, wall_ms: int) -> DescribeGroupAnswer:
        """Return a group's state, generation, assignor, members and positions. Raises ``UNKNOWN_GROUP`` or
        ``INVALID_GROUP``."""
        group = self._known(asked.group)
        members = (group.members[name] for name in sorted(group.members))
        return DescribeGroupAnswer(
            group.name,
            group.state,
            group.generation,
            group.assignor,
            self._node,
            tuple(_describe_member(member, self._topics, now) for member in members),
            tuple(_paced_position(group, at) for at in _positions_of(group)),
            group.recent.events,
            group.recent.moved(wall_ms),
            wall_ms,
        )

    def _delete(self, asked: DeleteGroup) -> Done:
        """Delete a group and its positions. Raises ``GROUP_NOT_EMPTY`` if it has members, ``UNSTABLE_OFFSETS`` if a
        transaction with its positions is open, ``UNKNOWN_GROUP`` or ``INVALID_GROUP``."""
        group = self._known(asked.group)
        if group.members:
            raise refuse("GROUP_NOT_EMPTY", f"{asked.group} has {len(group.members)} members")
        if group.pending:
            raise refuse("UNSTABLE_OFFSETS", f"a transaction that moves positions of {asked.group} is not at its end")
        group.forget_offsets(sorted(group.offsets))
        self._touch(group)
        return Done()

    def _known(self, name: str) -> Group:
        """Return the group of that name. Raises ``INVALID_GROUP`` for a bad name, ``UNKNOWN_GROUP`` if there is no
        such group."""
        check_name(name)
        group = self.groups.get(name)
        if group is None:
            raise refuse("UNKNOWN_GROUP", f"there is no group {name!r}")
        return group

    def _find(self, name: str, member: str, instance: str) -> tuple[Group, Member]:
        """Return the group and its member of these names. Raises ``FENCED_INSTANCE`` if another process is the static
        ``instance`` now, ``UNKNOWN_MEMBER`` if there is no such group or member, ``INVALID_GROUP`` for a bad name."""
        check_name(name)
        group = self.groups.get(name)
        found = None if group is None else group.members.get(member)
        if group is not None and found is not None:
            return group, found
        if group is not None and instance in group.instances:
            raise refuse("FENCED_INSTANCE", f"{instance} is {group.instances[instance]} now, not {member}")
        raise refuse("UNKNOWN_MEMBER", f"{name} has no member {member}, or no more: join again")


# --- groups as they travel ---------------------------------------------------------------------------


def _shares_of(partitions: Iterable[TopicPartition], topics: Topics) -> tuple[TopicShare, ...]:
    """Return the partitions as messages carry them: numbers by topic, each with the topic's name ("" if the topic is
    deleted), in order."""
    return tuple(
        TopicShare(topic_id, numbers, topics.by_id[topic_id].name if topic_id in topics.by_id else "")
        for topic_id, numbers in shares_of(partitions).items()
    )


def _work_of(member: Member, work: MemberWork | None, topics: Topics) -> MemberWork | None:
    """Return what a member reports of its application, as it is kept: of the paused partitions those that the member
    has. So a report takes no more memory than the member's share."""
    if work is None or not work.paused:
        return work
    paused = {TopicPartition(share.topic_id, number) for share in work.paused for number in share.partitions}
    return replace(work, paused=_shares_of(paused & (member.assigned | member.leaving), topics))


def _position_of(partition: TopicPartition, offset: OffsetRecord) -> GroupPosition:
    """Return the committed position of a partition in the form in which messages carry it."""
    return GroupPosition(*partition, offset.offset, offset.leader_epoch, offset.metadata, offset.ms)


def _positions_in(group: Group, partition: TopicPartition) -> tuple[GroupPosition, ...]:
    """Return the committed position of a group in a partition; an empty tuple if it has none there."""
    held = group.offsets.get(partition)
    return () if held is None else (_position_of(partition, held),)


def _positions_of(group: Group) -> tuple[GroupPosition, ...]:
    """Return all committed positions of a group in the form in which messages carry them, in the order of
    partitions."""
    return tuple(_position_of(p, group.offsets[p]) for p in sorted(group.offsets))


def _paced_position(group: Group, at: GroupPosition) -> GroupPosition:
    """Return a committed position of a group with an earlier one, from which the pace of its members follows."""
    offset, ms = group.recent.earlier(TopicPartition(at.topic_id, at.partition))
    return replace(at, earlier_offset=offset, earlier_ms=ms)


def _describe_member(member: Member, topics: Topics, now: float) -> GroupMember:
    """Return a member in the form in which the answer to ``DescribeGroup`` carries it."""
    asked_at = member.must_by - member.rebalance_ms / 1000
    return GroupMember(
        member.name,
        member.generation,
        member.instance,
        member.node,
        member.topics,
        _shares_of(member.assigned, topics),
        _shares_of(member.leaving, topics),
        _shares_of(member.target, topics),
        member.session_ms,
        member.away,
        max(0, round(1000 * (now - member.heard_at))) if member.heard_at > -inf else -1,
        max(0, round(1000 * (now - asked_at))) if member.leaving and asked_at < inf else -1,
        member.work,
        member.joined_ms,
        member.advanced_ms,
    )
