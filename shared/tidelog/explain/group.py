"""Why a consumer group lags: which partition, since when, and what it waits for.

The evidence is the group as its coordinator has it (members, assignment, positions with the times of their commits,
what each member's client reports of its application), the ends of the partitions, and for the partitions that lag
most the first unread batch. A partition waits for the first of these that is true: a leader; records that are gone;
a transaction; an owner; a member that is silent, or has paused, or has not asked for more; a quota; more speed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from tidelog.errors import CorruptBatch
from tidelog.explain.explanation import Explanation, iso, listed, moment, span
from tidelog.explain.inquiry import Asked, Inquiry
from tidelog.explain.partition_state import led_for, stood_for
from tidelog.quantities import counted
from tidelog.types import Position, TopicPartition

if TYPE_CHECKING:
    from tidelog.batch.format import BatchHeader
    from tidelog.client.log import Log
    from tidelog.wire.messages import (
        DescribeGroupAnswer,
        GroupMember,
        GroupPosition,
        HistoryEntry,
        MemberWork,
        OffsetAnswer,
        PartitionInfo,
        TopicInfo,
        TransactionInfo,
    )

T = TypeVar("T")
MOST_PARTITIONS = 5
"""Partitions of a group whose first unread batch is looked at, those that lag most first."""
SILENT_SHARE = 0.5
"""Share of its session timeout for which a member may send no heartbeat before it is called silent."""
HEARD_MS = 6000
"""Time in milliseconds since the last heartbeat of a member after which the answer says how old its report is: two of
the usual intervals between heartbeats."""
IDLE_MS = 1000
"""Time in milliseconds for which an application may keep a record before that is called a cause."""


@dataclass(frozen=True, slots=True)
class Unread:
    """The first batch that a group has not read in a partition. ``fault``: why no reader can decode it; "": one can.
    ``timestamp_ms`` is that of its first record."""

    base_offset: int = -1
    last_offset: int = -1
    producer_id: int = 0
    timestamp_ms: int = -1
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Lag:
    """A partition of a group: its state, the group's position in it (None: it has none) and its owner (None:
    nobody)."""

    topic: TopicInfo
    partition: PartitionInfo
    position: GroupPosition | None
    owner: GroupMember | None
    leaving: bool = False
    """Whether the owner must give the partition up."""
    heir: str = ""
    """The member that gets the partition in the end, if that is not the owner; "": there is none."""
    unread: Unread | None = None
    transaction: TransactionInfo | None = None
    """The transaction that holds the last stable offset, as its coordinator has it."""
    led_ms: int = -1
    """For how many milliseconds the leader has led the partition at least; -1: not known."""
    confirmed_end: int = -1
    """The high watermark, asked for once more since the position lies beyond ``partition.high_watermark``; -1: it was
    not asked for, or is not known."""

    @property
    def place(self) -> str:
        """Return the partition's name, such as ``orders/0``."""
        return f"{self.topic.name}/{self.partition.partition}"

    @property
    def lag(self) -> int:
        """Return how many offsets lie between the position and the high watermark; -1 if one is not known."""
        end = self.partition.high_watermark
        return -1 if end < 0 or self.position is None else max(0, end - self.position.offset)

    @property
    def seems_beyond(self) -> bool:
        """Return whether the position lies beyond the high watermark that the leader knew first, which may be old."""
        return self.position is not None and 0 <= self.partition.high_watermark < self.position.offset

    @property
    def is_beyond(self) -> bool:
        """Return whether the position lies beyond the end of what is committed, so that nobody can have read so far.
        Somebody has set it there, or records were lost."""
        return self.position is not None and 0 <= self.confirmed_end < self.position.offset


@dataclass(frozen=True, slots=True)
class GroupEvidence:
    """All that was found out about a group. ``now_ms`` is the wall clock of the client."""

    group: DescribeGroupAnswer
    lags: tuple[Lag, ...]
    now_ms: int
    unknown: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """Ids of topics in which the group has a position and that are gone, or may not be seen."""


# --- asking ----------------------------------------------------------------------------------------------


async def why_group(log: Log, group: str) -> Explanation:
    """Explain why a consumer group lags, or say that it does not. Raises ``UNKNOWN_GROUP``."""
    return explain_group(await ask_group(log, group))


async def ask_group(log: Log, group: str) -> GroupEvidence:
    """Ask the cluster for all that it knows of a group. Raises ``UNKNOWN_GROUP``."""
    from tidelog.client.loop import wall_ms

    described = await log.groups.describe(group)
    inquiry = Inquiry()
    ids = {at.topic_id for at in described.positions}
    owned = {share.topic_id for member in described.members for share in (*member.assignment, *member.leaving)}
    # a lag need not be newer than what the leaders know now: a proof for each partition takes most of the time
    find = partial(log.topics.find, sorted((ids | owned) - {""}), offsets=True, consistency="eventual")
    topics = inquiry.ask("how far the logs of its topics reach", find)
    await inquiry.run()
    found = sorted(topics.value or (), key=lambda topic: topic.name)
    lags = sorted(_lags(described, found), key=lambda one: -one.lag)
    looked_at = [one for one in lags if one.lag > 0][:MOST_PARTITIONS]
    unread = {
        one.place: inquiry.ask(f"the first unread batch of {one.place}", partial(_unread, log, one))
        for one in looked_at
        if one.partition.leader
    }
    holders = {one.partition.stable.producer_id for one in looked_at if one.partition.stable is not None}
    transactions = {
        id: inquiry.ask(f"the transaction of producer {id}", partial(_transactions, log, id))
        for id in sorted(holders)
    }
    histories = {
        one.place: inquiry.ask(f"since when {one.place} has its leader", partial(_history, log, one))
        for one in looked_at
        if one.partition.stable is not None
    }
    ends = {
        one.place: inquiry.ask(f"the end of {one.place}", partial(_end, log, one))
        for one in [one for one in lags if one.seems_beyond][:MOST_PARTITIONS]
    }
    await inquiry.run()
    now = wall_ms()
    detailed = [
        replace(
            _with_details(one, unread.get(one.place), transactions),
            led_ms=led_for(entries, one.partition, now) if (entries := _value(histories.get(one.place))) else -1,
            confirmed_end=-1 if (end := _value(ends.get(one.place))) is None else end.offset,
        )
        for one in lags
    ]
    gone = tuple(sorted(ids - {topic.topic_id for topic in found})) if topics.value is not None else ()
    return GroupEvidence(described, tuple(detailed), now, inquiry.failures(), gone)


def _value(asked: Asked[T] | None) -> T | None:
    return None if asked is None else asked.value


async def _history(log: Log, one: Lag) -> tuple[HistoryEntry, ...]:
    number = one.partition.partition
    return (await log.partitions.histories(one.topic, [number]))[number]


async def _end(log: Log, one: Lag) -> OffsetAnswer:
    number = one.partition.partition
    return (await log.partitions.list_offsets(one.topic, "latest", [number], "uncommitted"))[number]


def _lags(group: DescribeGroupAnswer, topics: Iterable[TopicInfo]) -> list[Lag]:
    """Return every partition of these topics in which the group has a position or an owner."""
    positions = {TopicPartition(at.topic_id, at.partition): at for at in group.positions}
    owners: dict[TopicPartition, tuple[GroupMember, bool]] = {}
    heirs: dict[TopicPartition, str] = {}
    for member in group.members:
        for shares, leaving in ((member.assignment, False), (member.leaving, True)):
            for share in shares:
                owners.update({TopicPartition(share.topic_id, p): (member, leaving) for p in share.partitions})
        for share in member.target:
            heirs.update({TopicPartition(share.topic_id, p): name_of(member) for p in share.partitions})
    found = []
    for topic in topics:
        for info in topic.partitions:
            key = TopicPartition(topic.topic_id, info.partition)
            owner, leaving = owners.get(key, (None, False))
            if key in positions or owner is not None:
                heir = heirs.get(key, "")
                heir = "" if owner is not None and heir == name_of(owner) else heir
                found.append(Lag(topic, info, positions.get(key), owner, leaving, heir))
    return found


def _with_details(
    one: Lag, unread: Asked[Unread] | None, transactions: Mapping[int, Asked[list[TransactionInfo]]]
) -> Lag:
    stable = one.partition.stable
    asked = transactions.get(stable.producer_id) if stable is not None else None
    holder = next(iter(asked.value), None) if asked is not None and asked.value else None
    return replace(one, unread=_value(unread), transaction=holder)


async def _transactions(log: Log, producer_id: int) -> list[TransactionInfo]:
    """Return the transactions of a producer id that have not ended, the latest epoch first."""
    found = [one for one in await log.transactions.of_producer(producer_id) if one.state != "aborted"]
    return sorted(found, key=lambda one: -one.producer_epoch)


async def _unread(log: Log, one: Lag) -> Unread:
    """Read the batch at the group's position, and return what it is; an empty ``Unread`` if there is none."""
    assert one.position is not None
    at = Position(-1, max(one.position.offset, one.partition.log_start))
    place = one.topic.topic_id, one.partition.partition
    _, batches = await log.read_batches(*place, at, max_bytes=1, isolation="uncommitted")
    for header, view in batches:
        if header.end_offset > at.offset:
            return _judge(header, view)
    return Unread()


def _judge(header: BatchHeader, view: memoryview) -> Unread:
    from tidelog.batch.format import decode_batch

    fault = ""
    try:
        decode_batch(view)
    except CorruptBatch as error:
        fault = error.message
    time = header.first_timestamp
    return Unread(header.base_offset, header.end_offset - 1, header.producer_id, time, fault)


def name_of(member: GroupMember) -> str:
    """Return the name by which people know a member: its program and its own name, or its instance."""
    own = member.instance or member.member
    return f"{own} ({member.node})" if member.node else own


# --- explaining ------------------------------------------------------------------------------------------


def explain_group(evidence: GroupEvidence) -> Explanation:
    """Return the explanation of a group's lag from what was found out about it."""
    group = evidence.group
    behind = [one for one in evidence.lags if one.lag > 0]
    state = {"empty": "has no members", "moving": "is moving partitions between its members", "stable": "is stable"}
    members = counted(len(group.members), "member")
    head = f"Group {group.group} {state.get(group.state, group.state)}"
    head += f", with {members} in generation {group.generation}." if group.members else "."
    sentences, steps = [head], []
    if not behind:
        sentences.append(_no_lag(evidence))
    else:
        total = sum(one.lag for one in behind)
        sentences.append(f"It is {counted(total, 'offset')} behind in {counted(len(behind), 'partition')}.")
    for one in behind[:MOST_PARTITIONS]:
        cause, step = _cause(one, evidence)
        sentences.append(f"{one.place}: {_since(one, evidence.now_ms)}. {cause}")
        steps += [step] if step else []
    if len(behind) > MOST_PARTITIONS:
        rest = len(behind) - MOST_PARTITIONS
        sentences.append(f"{counted(rest, 'more partition')} with smaller lags were not looked at one by one.")
    for one in [one for one in evidence.lags if one.is_beyond][:MOST_PARTITIONS]:
        assert one.position is not None
        sentences.append(
            f"{one.place}: the position {one.position.offset} is beyond the end {one.confirmed_end}: somebody has set"
            " it there, or records were lost. A reader that begins there gets OFFSET_OUT_OF_RANGE."
        )
        steps.append(_reset(one, evidence, "goes on where the log begins, and '--to latest' at its end"))
    sentences += _rebalance(evidence)
    if evidence.missing:
        gone = f"{counted(len(evidence.missing), 'topic')} in which it has positions"
        sentences.append(f"{gone} are deleted, or hidden from you.")
    return Explanation(
        "group", group.group, tuple(sentences), _facts(evidence), evidence.unknown, tuple(dict.fromkeys(steps))
    )


def _no_lag(evidence: GroupEvidence) -> str:
    unknown = [one.place for one in evidence.lags if one.lag < 0 or (one.seems_beyond and one.confirmed_end < 0)]
    beyond = sum(one.is_beyond for one in evidence.lags)
    if not evidence.lags:
        return "It has no position and owns no partition, so it has no lag."
    if unknown:
        return f"It does not lag as far as known; {counted(len(unknown), 'partition')} without a position or an end."
    if beyond:
        verb = "lies" if beyond == 1 else "lie"
        return f"It does not lag, but {counted(beyond, 'position')} {verb} beyond the end."
    return "It does not lag: its positions are at the high watermarks."


def _since(one: Lag, now_ms: int) -> str:
    """Return how far the group is behind in a partition, and since when."""
    assert one.position is not None
    text = f"{counted(one.lag, 'offset')} behind, at {one.position.offset} of {one.partition.high_watermark}"
    if one.unread is not None and one.unread.timestamp_ms >= 0:
        which = "first record that is left" if _is_deleted(one) else "first unread record"
        text += f"; the {which} is of {moment(one.unread.timestamp_ms)}"
    if one.position.committed_ms >= 0:
        committed = one.position.committed_ms
        text += f"; last commit {moment(committed)} ({span(max(0, now_ms - committed))} ago)"
    return text


def _cause(one: Lag, evidence: GroupEvidence) -> tuple[str, str]:
    """Return a sentence that names what the group waits for in a partition, and the next step ("": none)."""
    assert one.position is not None
    partition, at = one.partition, one.position.offset
    if partition.paused:
        step = f"'tidelog topics resume {one.topic.name}' lets it be read again."
        return "The partition is paused: nothing is read from it.", step
    if not partition.leader:
        step = f"'tidelog why {one.place}' shows why nobody leads."
        return "It waits for a leader: the partition has none, so nobody can read it.", step
    if _is_deleted(one):
        return _deleted(one, at, evidence)
    if (held := _held(one, at)) is not None:
        return held
    if one.owner is None:
        return _no_owner(one, evidence)
    if one.unread is not None and one.unread.fault:
        unread = one.unread
        which = f"offsets {unread.base_offset} to {unread.last_offset} (producer id {unread.producer_id})"
        step = (
            f"Let its consumers skip the batch (on_unreadable), or 'tidelog groups reset {evidence.group.group} -t"
            f" {one.topic.name} --to …' behind it: docs/operations.md, Batches that cannot be decoded."
        )
        return f"It waits at a batch that no reader can decode, {which}: {unread.fault}.", step
    return _of_member(one, one.owner, evidence)


def _is_deleted(one: Lag) -> bool:
    """Return whether the records at the position are deleted."""
    return one.position is not None and one.position.offset < one.partition.log_start


def _deleted(one: Lag, at: int, evidence: GroupEvidence) -> tuple[str, str]:
    """Return the cause and next step of a position below the log start. A member may have read the deleted records
    before they were deleted, or hold them in memory, and commit later."""
    last = one.partition.log_start - 1
    gone = f"Offsets {at} to {last} are deleted" if last > at else f"Offset {at} is deleted"
    if one.owner is None:
        then = "a reader that begins at the position gets OFFSET_OUT_OF_RANGE"
    else:
        then = (
            f"{name_of(one.owner)} goes on with those that it has read or holds in memory, and gets"
            " OFFSET_OUT_OF_RANGE where it asks for more of them"
        )
    return f"{gone}: {then}.", _reset(one, evidence, "goes on with what is left")


def _reset(one: Lag, evidence: GroupEvidence, effect: str) -> str:
    """Return the next step that sets the position in a topic to the log start; a group with members refuses it."""
    group = evidence.group
    command = f"'tidelog groups reset {group.group} -t {one.topic.name} --to earliest'"
    if group.members:
        first = "If its readers end with OFFSET_OUT_OF_RANGE: stop all members of the group first"
        return f"{first}; then {command} {effect}."
    return f"{command} {effect}."


def _held(one: Lag, at: int) -> tuple[str, str] | None:
    """Return the cause and next step if a transaction holds readers of committed records at the position; None if
    none does."""
    stable = one.partition.stable
    if stable is None or stable.offset > at:
        return None
    whose = f"producer {stable.producer_id}"
    if one.transaction is not None:
        known = one.transaction
        since = f" since {moment(known.since_ms)}" if known.since_ms >= 0 else ""
        step = (
            f"End it: 'tidelog transactions abort {known.app}'; 'tidelog transactions describe {known.app}' shows it."
        )
        what = f"the transaction of application {known.app} ({whose}), which is {known.state}{since}"
    elif stable.producer_epoch < 0:
        step = f"'tidelog why {one.place}' shows which replicas it waits for."
        what = f"the end of a transaction of {whose}, which is written and not committed"
    else:
        step = "'tidelog doctor' says whether a coordinator has the transaction, and how to settle it."
        what = f"an open transaction of {whose}"
    since = stood_for(stable, one.partition.leader, one.led_ms)
    held = f"the last stable offset has stood at {stable.offset} {since}"
    return f"It waits for {what}: {held}.", step


def _no_owner(one: Lag, evidence: GroupEvidence) -> tuple[str, str]:
    """Return the cause and next step of a partition that no member owns."""
    group = evidence.group
    if not group.members:
        return "It waits for a member: nobody reads as this group.", f"Start what reads as {group.group}."
    if one.heir:
        return f"It waits for {one.heir}, which gets the partition and does not have it yet.", ""
    wanted = any(one.topic.name in member.topics for member in group.members)
    if not wanted:
        return (
            f"No member reads topic {one.topic.name} any more.",
            f"If that is meant, 'tidelog groups reset' or deleting the group ends the lag of {one.topic.name}.",
        )
    return "It waits for an owner: no member has the partition yet.", ""


def _of_member(one: Lag, owner: GroupMember, evidence: GroupEvidence) -> tuple[str, str]:
    """Return the cause and next step of a partition whose owner does not keep up."""
    name, work = name_of(owner), owner.work
    session = owner.session_timeout_ms
    if owner.away:
        text = f"It waits for {name}, a static member whose process has ended"
        return f"{text}; others get its partitions after {span(session)} without it.", f"Start {name} again."
    if owner.heard_ms >= 0 and session and owner.heard_ms > session * SILENT_SHARE:
        text = f"It waits for {name}, which has sent no heartbeat for {span(owner.heard_ms)}"
        return f"{text}; it is removed after {span(session)}.", f"Look at the process and the network of {name}."
    if one.leaving:
        asked = f", asked for it {span(owner.leaving_ms)} ago" if owner.leaving_ms >= 0 else ""
        to = f" to {one.heir}" if one.heir else ""
        return (
            f"It waits for {name}, which must give the partition up{to}{asked}: a rebalance is under way.",
            f"{name} gives it up when its application asks for the next record or commits.",
        )
    if work is None or (work.idle_ms < 0 and not work.quota_ms):
        text, step = _without_report(one, name, evidence)
    else:
        text, step = _of_work(one, name, owner, work, evidence)
    if owner.heard_ms > HEARD_MS:
        text += f" That was so at its last heartbeat, {span(owner.heard_ms)} ago."
    return text, step


def _of_work(one: Lag, name: str, owner: GroupMember, work: MemberWork, evidence: GroupEvidence) -> tuple[str, str]:
    """Return the cause and next step of a partition whose owner reports what its application does."""
    here = any(
        share.topic_id == one.topic.topic_id and one.partition.partition in share.partitions for share in work.paused
    )
    if here:
        return f"{name} has paused the partition.", f"The application of {name} must call resume."
    idle = work.idle_ms + (owner.heard_ms if 0 <= owner.heard_ms <= HEARD_MS else 0)
    if work.idle_ms > IDLE_MS:
        if work.partition < 0:
            text = f"{name} does not poll: its application has not asked for a record for {span(idle)}"
            sends = ", though it sends heartbeats" if owner.heard_ms <= HEARD_MS else ""
            return f"{text}{sends}.", f"Look at what the application of {name} does instead."
        topic = next((o.topic.name for o in evidence.lags if o.topic.topic_id == work.topic_id), "a topic")
        record = f"{topic}/{work.partition}@{work.offset}"
        text = f"{name} is processing: its application has had {record} for {span(idle)} and not asked for the next"
        return f"{text}.", f"Look at what the application of {name} does with {record}."
    if work.quota_ms:
        return (
            f"{name} waits for its quota of bytes out: the gateway holds records for {span(work.quota_ms)} more.",
            "'tidelog quotas list' shows the quotas; 'tidelog quotas set' raises one. All that its principal is sent"
            " counts, such as answers to other programs and to commands.",
        )
    ago = evidence.now_ms - one.position.committed_ms if one.position and one.position.committed_ms >= 0 else -1
    if work.idle_ms == 0:
        return (
            f"{name} waits for records: they are on their way, or it has read them and not committed yet.",
            "" if ago < 60_000 else f"If that stays so, look at whether {name} commits what it has processed.",
        )
    shares = sum(len(share.partitions) for share in owner.assignment)
    helps = "more members, or faster ones, help" if shares > 1 else "only a faster member helps: it has one partition"
    return (
        f"{name} reads and processes, and has not caught up.",
        f"If the lag grows, it is slower than what is written: {helps}.",
    )


def _without_report(one: Lag, name: str, evidence: GroupEvidence) -> tuple[str, str]:
    """Return the cause and next step of a partition whose owner does not report what its application does."""
    ago = evidence.now_ms - one.position.committed_ms if one.position and one.position.committed_ms >= 0 else -1
    since = f"has not committed for {span(ago)}" if ago >= 0 else "has committed nothing yet"
    text = f"{name} {since}: it is processing, or does not ask for more (its client does not report which)"
    return f"{text}.", f"Look at what the application of {name} does."


def _rebalance(evidence: GroupEvidence) -> list[str]:
    """Return a sentence about members that must give partitions up, if the group is moving."""
    slow = [member for member in evidence.group.members if member.leaving]
    words = []
    for member in slow:
        places = [f"{share.topic}/{p}" for share in member.leaving for p in share.partitions]
        since = f" for {span(member.leaving_ms)}" if member.leaving_ms >= 0 else ""
        words.append(f"Rebalance: {name_of(member)} has been asked{since} to give up {listed(places[:10])}.")
    return words


def _facts(evidence: GroupEvidence) -> dict[str, Any]:
    """Return the evidence as values that JSON has."""
    group = evidence.group
    return {
        "group": group.group,
        "state": group.state,
        "generation": group.generation,
        "coordinator": group.coordinator,
        "members": [
            {
                "member": member.member,
                "instance": member.instance,
                "program": member.node,
                "away": member.away,
                "heard_ms": member.heard_ms,
                "leaving_ms": member.leaving_ms,
                "work": None if member.work is None else _work_facts(member.work),
            }
            for member in group.members
        ],
        "partitions": [
            {
                "place": one.place,
                "lag": one.lag,
                "position": -1 if one.position is None else one.position.offset,
                "committed": None if one.position is None else iso(one.position.committed_ms),
                "high_watermark": one.partition.high_watermark,
                "log_start": one.partition.log_start,
                "leader": one.partition.leader,
                "owner": None if one.owner is None else name_of(one.owner),
                "last_stable_offset": None if one.partition.stable is None else one.partition.stable.offset,
                "first_unread": None if one.unread is None or _is_deleted(one) else iso(one.unread.timestamp_ms),
                "beyond_end": one.is_beyond,
            }
            for one in evidence.lags
            if one.lag != 0 or one.seems_beyond
        ],
    }


def _work_facts(work: MemberWork) -> dict[str, Any]:
    return {
        "idle_ms": work.idle_ms,
        "topic_id": work.topic_id,
        "partition": work.partition,
        "offset": work.offset,
        "quota_ms": work.quota_ms,
        "paused": [f"{share.topic_id}/{p}" for share in work.paused for p in share.partitions],
    }
