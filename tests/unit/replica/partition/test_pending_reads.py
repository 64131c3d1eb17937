"""Readers on a toy network of replica servers: at followers, within a bound, and of what is certainly the latest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.replica_network import KEY, Net, cluster, code
from tidelog.batch.format import decode_batch, split
from tidelog.types import TopicConfig
from tidelog.wire.codec import payload_view
from tidelog.wire.messages import (
    ConfirmLeader,
    DescribeLogs,
    DescribeLogsAnswer,
    Fetch,
    ListOffset,
    LogBounds,
    OffsetAnswer,
    ReadAnswer,
    TopicShare,
)


def values(answer: ReadAnswer) -> list[bytes | None]:
    return [record.value for _, batch in split(payload_view(answer.payload)) for record in decode_batch(batch)]


def read(net: Net, name: str, offset: int, **fields: Any) -> Any:
    """Read at whichever replica; its answer, None while it waits."""
    return net.answers.get(net.read(name, offset, any_replica=True, **fields))


def bounded(net: Net, name: str, offset: int, staleness_ms: int, **fields: Any) -> Any:
    return read(net, name, offset, consistency="bounded", max_staleness_ms=staleness_ms, **fields)


def latest(net: Net, name: str, **fields: Any) -> int:
    return net.ask(name, ListOffset(KEY.topic_id, 0, "latest", **fields))


def cut_off(net: Net, name: str) -> None:
    """From here on ``name`` reaches no other replica server and none reaches it; the controller it hears no news of,
    but its heartbeats pass."""
    others = [other for other in net.names if other != name]
    net.cut |= {(name, other) for other in others} | {(other, name) for other in others}
    net.watchers.remove(name)


# --- at a follower -------------------------------------------------------------------------------------------


def test_R7_a_follower_serves_records_that_it_knows_to_be_committed_and_no_others() -> None:
    net = cluster()
    net.send("r1", b"a")
    net.slow_flush["r3"] = []
    net.send("r1", b"b")
    net.advance(4)
    assert net.partition("r2").log.end == 2
    assert values(read(net, "r2", 0)) == [b"a"]
    assert code(net.answers[net.read("r2", 0)]) == "NOT_LEADER", "only where the reader allows it"


def test_a_reader_that_is_ahead_of_a_follower_waits_for_it_then_is_sent_away() -> None:
    net = cluster()
    net.slow_flush["r3"] = []
    net.send("r1", b"a")
    soon, never = (net.read("r2", 1, any_replica=True, max_wait_ms=wait) for wait in (5000, 50))
    net.advance(0.1)
    assert code(net.answers[never]) == "OFFSET_NOT_AVAILABLE"
    assert soon not in net.answers
    for flush in net.slow_flush.pop("r3"):
        net.flush("r3", flush)
    net.run()
    net.send("r1", b"b")
    net.advance(4)
    assert values(net.answers[soon]) == [b"b"]


def test_E4_a_follower_says_that_a_position_diverges_once_it_knows() -> None:
    net = cluster()
    net.send("r1", b"a")
    net.lead("r2", "r1 r2 r3")
    net.send("r2", b"b")
    net.advance(4)
    answer = read(net, "r3", 2, last_epoch=0)
    assert (code(answer), answer.detail["end_offset"], answer.detail["leader_epoch"]) == ("LOG_TRUNCATED", 1, 0)
    assert code(read(net, "r3", 0, leader_epoch=0)) == "FENCED_LEADER_EPOCH"
    assert code(read(net, "r3", 0, leader_epoch=9)) == "UNKNOWN_LEADER_EPOCH"


def test_a_position_above_a_followers_high_watermark_is_not_judged_by_what_may_still_be_cut() -> None:
    """The reader has b of epoch 1 from r2; r3 holds another record there, of epoch 0, which was never committed."""
    net = cluster(config=TopicConfig(min_insync_replicas=1))
    net.send("r1", b"a")
    net.advance(4)
    cut_off(net, "r3")
    net.slow_flush["r2"] = []
    net.cut.discard(("r3", "r1"))
    net.send("r1", b"lost")
    net.cut.add(("r3", "r1"))
    assert (net.partition("r3").log.end, net.partition("r3").high_watermark) == (2, 1)
    assert code(read(net, "r3", 2, last_epoch=0)) == "OFFSET_NOT_AVAILABLE"


def parted(config: TopicConfig, **election: Any) -> Net:
    """r1 has committed "lost" alone at offset 1; r2 leads without it in leader epoch 1, and has "b" there. r1 knows
    that, and cannot reach r2 yet."""
    net = cluster(config=config)
    net.send("r1", b"a")
    net.advance(4)
    net.cut |= {("r2", "r1"), ("r3", "r1"), ("r1", "r2")}
    net.drop_notify = True
    net.push(isr=("r1",))
    net.run()
    net.send("r1", b"lost")
    net.drop_notify = False
    net.push(leader="r2", isr=("r2", "r3"), leader_epoch=1, **election)
    net.run()
    net.send("r2", b"b")
    net.advance(4)
    return net


@pytest.mark.parametrize(
    ("config", "election"),
    [
        (TopicConfig(min_insync_replicas=1, commit_rule="leader"), {}),
        (TopicConfig(min_insync_replicas=1, unclean_election=True), {"unclean_epoch": 1}),
    ],
    ids=["commit rule leader", "unclean election"],
)
def test_R7_where_records_may_be_lost_a_follower_serves_nothing_before_it_agrees_with_its_leader(
    config: TopicConfig, election: dict[str, Any]
) -> None:
    net = parted(config, **election)
    assert net.partition("r1").following is not None
    assert net.partition("r1").high_watermark == 2
    for offset, last_epoch in ((0, -1), (1, 0), (2, 1)):
        answer = read(net, "r1", offset, last_epoch=last_epoch)
        assert code(answer) == "OFFSET_NOT_AVAILABLE", (offset, last_epoch, answer)
    net.cut.clear()
    net.advance(4)
    assert values(read(net, "r1", 0)) == [b"a", b"b"]
    assert read(net, "r1", 2, last_epoch=1).payload == b""


def test_where_none_may_be_lost_a_follower_serves_on_without_its_leader() -> None:
    net = cluster(config=TopicConfig(min_insync_replicas=1))
    net.send("r1", b"a")
    net.advance(4)
    cut_off(net, "r3")
    net.watchers.append("r3")
    net.lead("r2", "r1 r2 r3")
    assert net.partition("r3").state == net.state()
    assert values(read(net, "r3", 0)) == [b"a"]


def test_waiting_readers_leave_with_the_followers_role() -> None:
    net = cluster()
    waiting = net.read("r2", 0, any_replica=True, max_wait_ms=5000)
    net.lead("r2", "r1 r2 r3")
    assert code(net.answers[waiting]) == "NOT_LEADER"


def test_a_learner_serves_readers_too() -> None:
    net = Net(3, config=TopicConfig(min_insync_replicas=1))
    net.start()
    net.create()
    net.push(replicas=("r1", "r2"), isr=("r1", "r2"), learners=("r3",))
    net.run()
    net.send("r1", b"a")
    net.advance(4)
    assert values(bounded(net, "r3", 0, 100, max_wait_ms=500)) == [b"a"]


# --- within a bound ------------------------------------------------------------------------------------------


def test_E9_a_follower_that_was_shown_the_end_within_the_bound_serves_without_asking() -> None:
    net = cluster()
    net.send("r1", b"a")
    net.advance(3.5)
    asked = len(net.messages(ListOffset))
    assert bounded(net, "r2", 0, 30_000).high_watermark == 1
    assert len(net.messages(ListOffset)) == asked


def test_E9_a_follower_that_is_not_fresh_enough_asks_its_leader_and_serves_its_committed_records() -> None:
    net = cluster()
    net.send("r1", b"a")
    net.advance(1)
    assert [net.partition(name).high_watermark for name in ("r1", "r2")] == [1, 0]
    answer = bounded(net, "r2", 0, 100, max_wait_ms=500)
    assert (values(answer), answer.high_watermark) == ([b"a"], 1)
    assert [m.leader_epoch for m in net.messages(ListOffset, "r2")] == [0]


def test_E9_a_cut_off_follower_sends_the_reader_to_the_leader_and_never_serves_older_than_promised() -> None:
    net = cluster()
    net.send("r1", b"a")
    net.advance(4)
    cut_off(net, "r3")
    net.lead("r1", "r1 r2")
    net.send("r1", b"b")
    net.advance(1)
    answer = bounded(net, "r3", 0, 500, max_wait_ms=300)
    assert (code(answer), answer.detail["leader"]) == ("STALE_REPLICA", "r1")
    assert values(read(net, "r3", 0)) == [b"a"], "who asks for no bound is served"


def test_E9_a_silent_leader_costs_a_bounded_reader_its_own_wait_and_no_more() -> None:
    net = cluster()
    net.send("r1", b"a")
    net.advance(4)
    net.hold = lambda name, call: call.to == "r1"
    waiting = net.read("r2", 0, any_replica=True, consistency="bounded", max_staleness_ms=100, max_wait_ms=300)
    net.advance(0.29)
    assert waiting not in net.answers
    net.advance(0.02)
    assert code(net.answers[waiting]) == "STALE_REPLICA"


def test_E9_the_answer_to_a_question_is_as_old_as_the_question() -> None:
    """Held back, it proves nothing about the time in between."""
    net = cluster()
    net.advance(4)
    net.hold = lambda name, call: isinstance(call.message, ListOffset | Fetch)
    waiting = net.read("r2", 0, any_replica=True, consistency="bounded", max_staleness_ms=200, max_wait_ms=300)
    net.advance(0.5)
    assert code(net.answers[waiting]) == "STALE_REPLICA"
    net.hold = lambda name, call: False
    for name, call in net.held:
        net.deliver(name, call)
    net.run()
    assert net.partition("r2").following.core.confirmed_at == pytest.approx(net.now - 0.5)  # type: ignore[union-attr]


def test_E9_a_bounded_reader_that_waits_for_news_in_vain_is_answered_freshly() -> None:
    net = cluster()
    net.send("r1", b"a")
    net.advance(4)
    waiting = net.read("r2", 1, any_replica=True, consistency="bounded", max_staleness_ms=200, max_wait_ms=3000)
    net.advance(2.9)
    assert waiting in net.answers
    assert net.answers[waiting] == ReadAnswer(0, 1, 0)
    assert len(net.messages(ListOffset, "r2")) == 2, "when it came, and before it was answered"


def test_E9_a_bound_tighter_than_any_question_is_met_by_one_question() -> None:
    net = cluster()
    net.send("r1", b"a")
    net.advance(0.1)
    assert values(bounded(net, "r2", 0, 0, max_wait_ms=100)) == [b"a"]
    assert len(net.messages(ListOffset, "r2")) == 1


def test_a_bounded_read_at_the_leader_is_confirmed_first() -> None:
    net = cluster()
    net.send("r1", b"a")
    net.advance(2)
    assert bounded(net, "r1", 0, 500).high_watermark == 1
    for other in ("r2", "r3"):
        net.cut.add((other, "r1"))
    net.controller_up = False
    net.advance(0.6)
    id = net.read("r1", 0, consistency="bounded", max_staleness_ms=500)
    net.advance(1.1)
    assert code(net.answers[id]) == "STALE_REPLICA"


# --- certainly the latest --------------------------------------------------------------------------------------


def deposed() -> Net:
    """r1 led and has not heard that r2 does, which has committed more."""
    net = cluster()
    net.send("r1", b"a")
    net.advance(4)
    cut_off(net, "r1")
    net.lead("r2", "r1 r2 r3")
    net.push(isr=("r2", "r3"))
    net.run()
    net.acks.clear()
    assert net.acks[net.send("r2", b"b")].offset == 1
    return net


def test_A9_a_deposed_leader_never_answers_its_old_high_watermark_as_the_latest() -> None:
    net = deposed()
    by_name, by_time = latest(net, "r1"), net.ask("r1", ListOffset(KEY.topic_id, 0, "timestamp", 5000))
    net.advance(1.1)
    assert [code(net.answers[id]) for id in (by_name, by_time)] == ["STALE_REPLICA"] * 2
    now = latest(net, "r2")
    net.advance(1)
    assert net.answers[now] == OffsetAnswer(2, 1)


def test_A9_a_deposed_leader_serves_no_linearizable_read() -> None:
    net = deposed()
    stale = net.read("r1", 0, consistency="linearizable")
    eventual = net.read("r1", 0)
    net.advance(1.1)
    assert code(net.answers[stale]) == "STALE_REPLICA"
    assert values(net.answers[eventual]) == [b"a"]


def test_A9_a_proof_that_began_before_the_request_came_is_none() -> None:
    net = cluster()
    net.send("r1", b"a")
    net.advance(1)
    net.hold = lambda name, call: True
    id = net.read("r1", 0, consistency="linearizable", max_wait_ms=5000)
    net.advance(0.1)
    assert id not in net.answers
    net.hold = lambda name, call: False
    for name, call in net.held:
        net.deliver(name, call)
    net.run()
    net.advance(0.1)
    assert values(net.answers[id]) == [b"a"]


def test_a_leader_without_voters_has_the_controller_confirm_it() -> None:
    net = cluster(1)
    net.send("r1", b"a")
    assert net.answers[latest(net, "r1")] == OffsetAnswer(1, 0)
    assert len(net.messages(ConfirmLeader)) == 1
    net.controller_up = False
    net.advance(0.1)
    id = latest(net, "r1")
    net.advance(1.1)
    assert code(net.answers[id]) == "STALE_REPLICA"


def test_the_offsets_of_many_logs_are_what_their_leaders_know_without_a_proof() -> None:
    """A leader that was deposed and has not heard of it answers its own; a follower answers nothing."""
    net = deposed()
    asked = DescribeLogs((TopicShare(KEY.topic_id, (0, 7)), TopicShare("gone", (0,))))
    old = LogBounds(KEY.topic_id, 0, 0, 1, bytes=70)
    assert net.answers[net.ask("r1", asked)] == DescribeLogsAnswer((old,))
    assert net.answers[net.ask("r2", asked)] == DescribeLogsAnswer((replace(old, high_watermark=2, bytes=140),))
    assert net.answers[net.ask("r3", asked)] == DescribeLogsAnswer()
    many = DescribeLogs((TopicShare(KEY.topic_id, tuple(range(1001))),))
    assert code(net.answers[net.ask("r2", many)]) == "MALFORMED"


def test_a_leader_that_does_not_know_the_end_leaves_the_log_out() -> None:
    net = cluster()
    net.send("r1", b"a")
    cut_off(net, "r1")
    cut_off(net, "r3")
    net.lead("r2", "r1 r2 r3")
    asked = DescribeLogs((TopicShare(KEY.topic_id, (0,)),))
    assert net.answers[net.ask("r2", asked)] == DescribeLogsAnswer()


def test_the_earliest_offset_and_a_record_found_by_time_need_no_proof() -> None:
    net = deposed()
    assert net.answers[net.ask("r1", ListOffset(KEY.topic_id, 0, "earliest"))] == OffsetAnswer(0, -1, bytes=70)
    assert net.answers[net.ask("r1", ListOffset(KEY.topic_id, 0, "timestamp", 900))].offset == 0


def test_followers_are_no_place_for_linearizable_reads() -> None:
    net = cluster()
    assert code(read(net, "r2", 0, consistency="linearizable")) == "NOT_LEADER"
    assert code(net.answers[latest(net, "r2")]) == "NOT_LEADER"


@pytest.mark.parametrize(
    "fields",
    [{"consistency": "strong"}, {"consistency": "bounded"}, {"max_staleness_ms": 4}],
)
def test_a_read_that_makes_no_sense_is_refused(fields: dict[str, Any]) -> None:
    net = cluster()
    assert code(net.answers[net.read("r1", 0, **fields)]) == "MALFORMED"


# --- news at followers -----------------------------------------------------------------------------------------


def test_readers_that_wait_at_a_follower_hear_of_a_commit_when_it_happens() -> None:
    net = cluster()
    net.send("r1", b"a")
    net.advance(4)
    waiting = [net.read(name, 1, any_replica=True, max_wait_ms=5000) for name in ("r2", "r3")]
    net.advance(1)
    net.send("r1", b"b")
    assert [values(net.answers[id]) for id in waiting] == [[b"b"], [b"b"]]


def test_where_nobody_reads_a_commit_costs_no_further_message() -> None:
    net = cluster(config=TopicConfig(min_insync_replicas=2, flush="os"))
    net.send("r1", b"a")
    net.advance(1)
    before = len(net.messages(Fetch))
    net.send("r1", b"b")
    assert len(net.messages(Fetch)) - before == 2


def test_a_follower_reports_once_to_its_leader_that_it_has_readers() -> None:
    net = cluster()
    net.send("r1", b"a")
    net.advance(4)
    before = len(net.messages(Fetch, "r2"))
    for _ in range(5):
        net.read("r2", 1, any_replica=True, max_wait_ms=5000)
    assert [fetch.parts[0].readers for fetch in net.messages(Fetch, "r2")[before:]] == [True]


# --- how much an answer has -----------------------------------------------------------------------------------


def test_with_a_hard_limit_a_batch_that_is_larger_stays_behind() -> None:
    net = cluster()
    net.send("r1", b"x" * 5000)
    net.send("r1", b"y")
    net.advance(4)
    for limit, found in [(100, []), (5100, [b"x" * 5000]), (1 << 20, [b"x" * 5000, b"y"])]:
        answer = net.answers[net.read("r1", 0, max_bytes=limit, hard_limit=True)]
        assert values(answer) == found and bool(answer.needed) == (not found)
    assert values(net.answers[net.read("r1", 0, max_bytes=100)]) == [b"x" * 5000]


def test_news_that_are_larger_than_a_wait_may_bring_end_it_without_them() -> None:
    net = cluster()
    wait = net.read("r1", 0, max_bytes=100, max_wait_ms=5000, hard_limit=True)
    assert wait not in net.answers
    net.send("r1", b"x" * 5000)
    net.advance(0.1)
    answer = net.answers[wait]
    assert values(answer) == [] and answer.high_watermark == 1
