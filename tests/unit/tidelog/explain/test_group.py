"""What ``tidelog why group`` says, cause by cause. Tests ``tidelog.explain.group``."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tidelog.errors import refuse
from tidelog.explain.explanation import Explanation, moment
from tidelog.explain.group import GroupEvidence, Lag, Unread, ask_group, explain_group
from tidelog.wire.messages import (
    DescribeGroupAnswer,
    GroupMember,
    GroupPosition,
    MemberWork,
    OffsetAnswer,
    PartitionInfo,
    StableOffset,
    TopicInfo,
    TopicShare,
    TransactionInfo,
)

T0 = 1_795_255_109_771
PARTITION = PartitionInfo(0, ("r1",), ("r1",), "r1", 3, 7, log_start=0, high_watermark=150)
TOPIC = TopicInfo("abc", "orders", {}, (PARTITION,))
SHARE = TopicShare("abc", (0,), "orders")
MEMBER = GroupMember(
    "m1", 4, "", "host", ("orders",), (SHARE,), session_timeout_ms=45_000, heard_ms=100, work=MemberWork(0)
)
LAG = Lag(
    TOPIC, PARTITION, GroupPosition("abc", 0, 100, committed_ms=T0), MEMBER, unread=Unread(95, 104, 7, T0 - 500)
)


def told(one: Lag = LAG, state: str = "stable", members: tuple[GroupMember, ...] = (MEMBER,)) -> Explanation:
    group = DescribeGroupAnswer("billing", state, 4, "sticky", "r1", members)
    return explain_group(GroupEvidence(group, (one,), T0 + 30_000))


def cause(one: Lag = LAG, **more: Any) -> str:
    return " ".join(told(one, **more).sentences)


def of_member(**changes: Any) -> str:
    member = replace(MEMBER, **changes)
    return cause(replace(LAG, owner=member), members=(member,))


async def test_all_logs_of_a_group_are_asked_for_by_one_request_without_a_proof() -> None:
    """Of topics in which it has a position or a partition, and of no others. What is not there is counted."""
    asked: list[tuple[list[str], dict[str, Any]]] = []
    owned = TopicInfo("def", "payments", {}, (replace(PARTITION, high_watermark=0),))

    async def describe(group: str) -> DescribeGroupAnswer:
        positions = (GroupPosition("abc", 0, 150), GroupPosition("gone", 0, 1))
        member = replace(MEMBER, assignment=(TopicShare("def", (0,), "payments"),))
        return DescribeGroupAnswer(group, "stable", 1, "sticky", "r1", (member,), positions)

    async def find(ids: list[str], **how: Any) -> tuple[TopicInfo, ...]:
        asked.append((ids, how))
        return (owned, TOPIC)

    log: Any = SimpleNamespace(groups=SimpleNamespace(describe=describe), topics=SimpleNamespace(find=find))
    evidence = await ask_group(log, "billing")
    assert asked == [(["abc", "def", "gone"], {"offsets": True, "consistency": "eventual"})]
    assert {(one.place, one.lag) for one in evidence.lags} == {("orders/0", 0), ("payments/0", -1)}
    assert evidence.missing == ("gone",) and not evidence.unknown

    async def fail(ids: list[str], **how: Any) -> tuple[TopicInfo, ...]:
        raise refuse("OVERLOADED", "later")

    async def describe_ahead(group: str) -> DescribeGroupAnswer:
        positions = (GroupPosition("abc", 0, 160, committed_ms=T0),)
        return DescribeGroupAnswer(group, "empty", 1, "sticky", "r1", (), positions)

    async def list_offsets(topic: TopicInfo, at: str, partitions: list[int], isolation: str) -> Any:
        assert (at, isolation) == ("latest", "uncommitted")
        return {number: OffsetAnswer(155) for number in partitions}

    log.groups.describe, log.partitions = describe_ahead, SimpleNamespace(list_offsets=list_offsets)
    (ahead,) = (await ask_group(log, "billing")).lags
    assert ahead.is_beyond and ahead.confirmed_end == 155, "the end is asked for again"

    log.topics.find = fail
    evidence = await ask_group(log, "billing")
    assert evidence.missing == () and "OVERLOADED" in evidence.unknown[0]


def test_how_far_behind_and_since_when() -> None:
    found = told()
    assert found.sentences[:2] == (
        "Group billing is stable, with 1 member in generation 4.",
        "It is 50 offsets behind in 1 partition.",
    )
    assert found.sentences[2].startswith(
        f"orders/0: 50 offsets behind, at 100 of 150; the first unread record is of {moment(T0 - 500)}; last commit"
        f" {moment(T0)} (30.0 s ago)."
    )
    assert found.facts["partitions"][0]["lag"] == 50 and found.facts["members"][0]["work"]["idle_ms"] == 0


def test_no_lag() -> None:
    ahead = replace(LAG, position=GroupPosition("abc", 0, 150))
    assert told(ahead).sentences[1:] == ("It does not lag: its positions are at the high watermarks.",)
    unknown = replace(LAG, position=None)
    assert "does not lag as far as known; 1 partition without" in told(unknown).sentences[1]


def test_a_position_beyond_the_end() -> None:
    beyond = replace(LAG, position=GroupPosition("abc", 0, 160), confirmed_end=150)
    found = told(beyond, "empty", ())
    assert found.sentences[1:] == (
        "It does not lag, but 1 position lies beyond the end.",
        "orders/0: the position 160 is beyond the end 150: somebody has set it there, or records were lost. A reader"
        " that begins there gets OFFSET_OUT_OF_RANGE.",
    )
    assert found.next_steps == (
        "'tidelog groups reset billing -t orders --to earliest' goes on where the log begins, and '--to latest' at"
        " its end.",
    )
    assert found.facts["partitions"][0]["beyond_end"] is True
    caught_up = told(replace(beyond, confirmed_end=160))
    assert caught_up.sentences[1:] == ("It does not lag: its positions are at the high watermarks.",)
    assert "as far as known" in told(replace(beyond, confirmed_end=-1)).sentences[1]


def test_no_leader_and_a_pause_come_first() -> None:
    assert "It waits for a leader" in cause(replace(LAG, partition=replace(PARTITION, leader="")))
    assert "The partition is paused" in cause(replace(LAG, partition=replace(PARTITION, leader="", paused=True)))


def test_deleted_records() -> None:
    found = told(replace(LAG, partition=replace(PARTITION, log_start=120)))
    assert (
        f"at 100 of 150; the first record that is left is of {moment(T0 - 500)}; last commit {moment(T0)} (30.0 s"
        " ago). Offsets 100 to 119 are deleted: m1 (host) goes on with those that it has read or holds in memory, and"
        " gets OFFSET_OUT_OF_RANGE where it asks for more of them." in found.sentences[2]
    )
    assert found.facts["partitions"][0]["first_unread"] is None
    reset = "'tidelog groups reset billing -t orders --to earliest' goes on with what is left."
    stop = "If its readers end with OFFSET_OUT_OF_RANGE: stop all members of the group first; then"
    assert found.next_steps == (f"{stop} {reset}",), "a group with members refuses it"
    nobody = told(replace(LAG, partition=replace(PARTITION, log_start=101), owner=None), "empty", ())
    assert "Offset 100 is deleted: a reader that begins at the position gets" in nobody.sentences[2]
    assert nobody.next_steps == (reset,)


HELD = replace(LAG, partition=replace(PARTITION, stable=StableOffset(100, 57, 1, 5000)))


def test_a_transaction_that_holds_the_last_stable_offset() -> None:
    known = replace(HELD, transaction=TransactionInfo("etl", "open", 57, 1, since_ms=T0))
    assert (
        f"It waits for the transaction of application etl (producer 57), which is open since {moment(T0)}: the last"
        " stable offset has stood at 100 for at least 5.0 s." in cause(known)
    )
    assert "has stood at 100 for 5.0 s." in cause(replace(HELD, led_ms=3_600_000))
    assert "for at least 5.0 s, about as long as r1 has led." in cause(replace(HELD, led_ms=5_400))
    assert "tidelog transactions abort etl" in told(known).next_steps[0]
    assert "It waits for an open transaction of producer 57" in cause(HELD)
    written = replace(HELD, partition=replace(PARTITION, stable=StableOffset(100, 57, -1, 5000)))
    assert "the end of a transaction of producer 57, which is written and not committed" in cause(written)


def test_a_transaction_beyond_the_position_is_no_cause() -> None:
    later = replace(LAG, partition=replace(PARTITION, stable=StableOffset(140, 57, 1, 5000)))
    assert "transaction" not in cause(later)


def test_nobody_reads() -> None:
    nobody = replace(LAG, owner=None)
    assert "It waits for a member: nobody reads as this group." in cause(nobody, state="empty", members=())
    assert told(nobody, "empty", ()).sentences[0] == "Group billing has no members."
    assert "It waits for m2 (host), which gets the partition" in cause(replace(nobody, heir="m2 (host)"))
    other = replace(MEMBER, topics=("refunds",), assignment=())
    assert "No member reads topic orders any more." in cause(nobody, members=(other,))
    assert "It waits for an owner: no member has the partition yet." in cause(nobody)


def test_a_batch_that_cannot_be_decoded() -> None:
    bad = replace(LAG, unread=Unread(100, 104, 7, T0, "no CBOR"))
    assert "at a batch that no reader can decode, offsets 100 to 104 (producer id 7): no CBOR." in cause(bad)


def test_a_static_member_that_is_away() -> None:
    assert "It waits for i1 (host), a static member whose process has ended" in of_member(away=True, instance="i1")


def test_a_silent_member() -> None:
    assert "It waits for m1 (host), which has sent no heartbeat for 30.0 s; it is removed after 45.0 s." in of_member(
        heard_ms=30_000
    )
    assert "no heartbeat" not in of_member(heard_ms=20_000)


def test_what_a_member_reported_some_time_ago_may_have_changed() -> None:
    text = of_member(heard_ms=20_000, work=MemberWork(9900))
    assert text.endswith("asked for a record for 9.9 s. That was so at its last heartbeat, 20.0 s ago.")
    assert "at its last heartbeat, 20.0 s ago" in of_member(heard_ms=20_000, work=None)
    assert "at its last heartbeat" not in of_member(heard_ms=6000, work=None)


def test_a_rebalance_waits_for_a_member_to_give_up() -> None:
    member = replace(MEMBER, assignment=(), leaving=(SHARE,), leaving_ms=7000)
    text = cause(replace(LAG, owner=member, leaving=True, heir="m2"), state="moving", members=(member,))
    assert "Group billing is moving partitions between its members" in text
    assert (
        "It waits for m1 (host), which must give the partition up to m2, asked for it 7.0 s ago: a rebalance" in text
    )
    assert "Rebalance: m1 (host) has been asked for 7.0 s to give up orders/0." in text


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (MemberWork(0, paused=(SHARE,)), "m1 (host) has paused the partition."),
        (MemberWork(9900), "m1 (host) does not poll: its application has not asked for a record for 10.0 s"),
        (
            MemberWork(9900, "abc", 0, 100),
            "m1 (host) is processing: its application has had orders/0@100 for 10.0 s and not asked for the next.",
        ),
        (
            MemberWork(0, quota_ms=1500),
            "m1 (host) waits for its quota of bytes out: the gateway holds records for 1.5",
        ),
        (MemberWork(quota_ms=1500), "m1 (host) waits for its quota of bytes out"),
        (MemberWork(0), "m1 (host) waits for records: they are on their way"),
        (MemberWork(500, "abc", 0, 100), "m1 (host) reads and processes, and has not caught up."),
        (None, "m1 (host) has not committed for 30.0 s: it is processing, or does not ask for more"),
    ],
)
def test_what_the_application_of_a_member_does(work: MemberWork | None, words: str) -> None:
    assert words in of_member(work=work)


@pytest.mark.parametrize(("partitions", "helps"), [((0,), "only a faster member helps"), ((0, 1), "more members")])
def test_more_members_help_only_where_one_has_several_partitions(partitions: tuple[int, ...], helps: str) -> None:
    works = replace(MEMBER, work=MemberWork(500, "abc", 0, 100), assignment=(TopicShare("abc", partitions),))
    group = DescribeGroupAnswer("billing", "stable", 4, "sticky", "r1", (works,))
    found = explain_group(GroupEvidence(group, (replace(LAG, owner=works),), T0))
    assert helps in " ".join(found.next_steps)


def test_only_the_worst_partitions_are_looked_at_one_by_one() -> None:
    lags = tuple(replace(LAG, partition=replace(PARTITION, partition=number)) for number in range(7))
    group = DescribeGroupAnswer("billing", "stable", 4, "sticky", "r1", (MEMBER,))
    found = explain_group(GroupEvidence(group, lags, T0, missing=("gone",)))
    assert found.sentences[1] == "It is 350 offsets behind in 7 partitions."
    assert "2 more partitions with smaller lags were not looked at one by one." in found.sentences
    assert "1 topic in which it has positions are deleted, or hidden from you." in found.sentences
