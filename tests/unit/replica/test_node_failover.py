"""Replica servers on a toy network: leaders change, followers come and go. Tests ``node.py`` and
``partition/partition.py``."""

from __future__ import annotations

from typing import Any

import pytest
from support.replica_network import KEY, cluster, code, outcome
from tidelog.errors import TidelogError, TimedOut, refuse
from tidelog.types import Acks, TopicConfig
from tidelog.wire.messages import (
    AlterIsr,
    EpochOffset,
    Fetch,
    ListOffset,
    OffsetAnswer,
)


def test_A1_records_of_a_follower_survive_its_restart_and_the_leaders_death() -> None:
    net = cluster(2, config=TopicConfig(min_insync_replicas=1))
    net.send("r1", b"m1")
    net.hold = lambda name, call: name == "r2" and isinstance(call.message, Fetch)
    net.send("r1", b"m2")
    net.hold = lambda name, call: False
    for name, call in net.held:
        net.deliver(name, call)
    net.run()
    net.stop("r2")
    net.start("r2")
    net.stop("r1")
    net.lead("r2", "r2")
    assert net.values("r2") == [b"m1", b"m2"]


def test_A3_a_diverged_batch_of_an_older_epoch_goes() -> None:
    net = cluster(2, config=TopicConfig(min_insync_replicas=1))
    net.send("r1", b"m0")
    net.stop("r2")
    net.send("r1", b"a1", acks=Acks.LEADER)
    net.send("r1", b"a2", acks=Acks.LEADER)
    net.stop("r1")
    net.start("r2")
    net.lead("r2", "r2")
    net.slow_flush["r2"] = []
    net.send("r2", b"b1", acks=Acks.NONE)
    del net.slow_flush["r2"]
    net.stop("r2")
    net.start("r1")
    net.lead("r1", "r1")
    net.send("r1", b"a3")
    net.start("r2")
    assert net.values("r1") == net.values("r2") == [b"m0", b"a1", b"a2", b"a3"]


def test_a_new_leader_fails_waiters_of_the_old_as_unknown() -> None:
    net = cluster()
    net.cut |= {("r2", "r1"), ("r3", "r1")}
    net.hold = lambda name, call: isinstance(call.message, Fetch)
    net.drop_notify = True
    id = net.send("r1", b"a")
    net.hold, net.drop_notify = lambda name, call: False, False
    net.lead("r2", "r2 r3")
    assert outcome(net.acks[id]) == ("NOT_LEADER", True)
    net.cut.clear()
    net.advance(1.0)
    assert net.values("r1") == []
    assert net.happened("log_truncated")
    assert code(net.acks[net.send("r1", b"b")]) == "NOT_LEADER"
    assert net.acks[net.send("r2", b"b")].leader_epoch == 1


def test_a_copy_of_an_uncommitted_batch_is_acked_when_the_original_is_committed() -> None:
    net = cluster()
    net.slow_flush["r2"] = []
    first = net.send("r1", b"a", producer_id=5)
    second = net.send("r1", b"a", producer_id=5)
    assert not net.acks
    net.flush("r2", net.slow_flush.pop("r2")[0])
    net.run()
    assert (net.acks[first].offset, net.acks[second].offset) == (0, 0)
    assert net.acks[second].duplicate


def test_B17_a_new_leader_does_not_answer_a_lower_high_watermark_than_the_old_one() -> None:
    net = cluster()
    net.send("r1", b"a")
    assert net.partition("r2").high_watermark == 0
    net.hold = lambda name, call: call.to == "r2" and isinstance(call.message, Fetch)
    net.lead("r2", "r1 r2 r3")
    latest = ListOffset(KEY.topic_id, 0, "latest")
    net.advance(0.3)
    refusal = net.answers[net.ask("r2", latest)]
    assert isinstance(refusal, TidelogError) and refusal.code == "OFFSET_NOT_AVAILABLE"
    assert (refusal.detail["awaited"], refusal.detail["awaited_offset"]) == ("r1 r3", 1)
    assert 300 <= refusal.detail["waited_ms"] <= 400
    assert "waits for r1, r3" in refusal.message
    assert code(net.answers[net.read("r2", 1)]) == "OFFSET_NOT_AVAILABLE"
    assert code(net.answers[net.read("r2", 0)]) == "OFFSET_NOT_AVAILABLE"
    net.hold = lambda name, call: False
    for name, call in net.held:
        net.deliver(name, call)
    net.run()
    assert net.answers[net.ask("r2", latest)] == OffsetAnswer(1, 0)


def test_a_dead_leader_is_reported_at_once_and_again_until_things_change() -> None:
    net = cluster()
    net.stop("r1")
    assert {report.node for report in net.reports} == {"r2", "r3"}
    before = len(net.reports)
    net.advance(2.0)
    assert 4 <= len(net.reports) - before <= 12
    net.lead("r2", "r2 r3")
    before = len(net.reports)
    net.advance(5.0)
    assert len(net.reports) == before
    assert code(net.acks[net.send("r2", b"a")]) == ""


def test_a_new_active_controller_gets_the_reports_of_dead_leaders_at_once() -> None:
    net = cluster()
    net.stop("r1")
    before = len(net.reports)
    net.reconnect_controller()
    assert {report.node for report in net.reports[before:]} == {"r2", "r3"}


def test_C2_a_replica_outside_the_isr_reports_nobody() -> None:
    net = cluster()
    net.push(isr=("r1", "r2"))
    net.refuse_isr = refuse("NO_QUORUM", "not now")
    net.run()
    net.cut.add(("r3", "r1"))
    net._take("r3", net.nodes["r3"].on_peer_down("r1", net.now))
    net.run()
    net.advance(3.0)
    assert not net.reports


def test_a_silent_leader_is_reported() -> None:
    net = cluster()
    net.silent.add("r1")
    net.advance(4.0)
    assert {report.reason for report in net.reports} == {"request_timed_out"}


def test_B10_a_dead_follower_leaves_the_isr_and_the_high_watermark_moves_on() -> None:
    net = cluster()
    net.stop("r3")
    id = net.send("r1", b"a", timeout_ms=60_000)
    assert id not in net.acks
    net.advance(11)
    assert net.state().isr == ("r1", "r2")
    assert net.acks[id].offset == 0
    net.start("r3")
    net.advance(1)
    assert net.state().isr == ("r1", "r2", "r3")
    assert net.values("r3") == [b"a"]


def test_a_lost_proposal_is_sent_again_identical() -> None:
    net = cluster()
    net.stop("r3")
    net.send("r1", b"a")
    net.hold = lambda name, call: isinstance(call.message, AlterIsr)
    net.advance(11)
    name, call = net.held.pop()
    net._answer(name, call.token, TimedOut("lost"))
    net.run()
    net.advance(1)
    first, second = net.messages(AlterIsr)
    assert first == second


def test_B8_pending_batches_get_an_explicit_error_when_the_isr_becomes_too_small() -> None:
    net = cluster()
    net.slow_flush["r2"] = []
    id = net.send("r1", b"a", producer_id=5)
    net.refuse_isr = refuse("NO_QUORUM", "not now")
    net.push(isr=("r1",))
    net.run()
    assert outcome(net.acks[id]) == ("NOT_ENOUGH_REPLICAS", True)
    refused = net.send("r1", b"b")
    assert outcome(net.acks[refused]) == ("NOT_ENOUGH_REPLICAS", False)
    assert net.values("r1") == [b"a"]
    net.refuse_isr = None
    net.flush("r2", net.slow_flush.pop("r2")[0])
    net.advance(4)
    again = net.send("r1", b"a", producer_id=5)
    assert (net.acks[again].offset, net.acks[again].duplicate) == (0, True)


def test_no_ack_in_time_means_unknown() -> None:
    net = cluster()
    net.cut.add(("r3", "r1"))
    net.hold = lambda name, call: name == "r3" and isinstance(call.message, Fetch)
    id = net.send("r1", b"a", timeout_ms=700)
    net.advance(0.8)
    assert outcome(net.acks[id]) == ("REQUEST_TIMED_OUT", True)


def test_R4_a_copy_too_old_to_be_remembered_is_never_an_ack() -> None:
    net = cluster()
    for sequence in range(7):
        net.send("r1", b"x", producer_id=5, base_sequence=sequence)
    for sequence, value in ((0, b"x"), (0, b"y"), (1, b"x")):
        copy = net.send("r1", value, producer_id=5, base_sequence=sequence)
        assert outcome(net.acks[copy]) == ("UNVERIFIED_SEQUENCE", True)


def test_R4_E14_another_batch_with_the_same_id_and_sequence_is_refused_and_never_acked() -> None:
    """Ids were given twice: two producers send under one id. Also where the other batch is not committed yet, and at
    the leader that comes next."""
    net = cluster()
    net.slow_flush["r2"] = []
    first = net.send("r1", b"x", producer_id=5)
    second = net.send("r1", b"y", producer_id=5)
    assert first not in net.acks and outcome(net.acks[second]) == ("SEQUENCE_CONFLICT", False)
    (held,) = net.slow_flush.pop("r2")
    net.flush("r2", held)
    net.run()
    assert net.acks[first].error is None
    net.lead("r2", "r1 r2 r3")
    again = net.send("r2", b"x", producer_id=5)
    assert (net.acks[again].offset, net.acks[again].duplicate) == (0, True)
    assert outcome(net.acks[net.send("r2", b"y", producer_id=5)]) == ("SEQUENCE_CONFLICT", False)
    assert net.values("r2") == [b"x"]


def test_R10_a_gap_at_a_new_leader_is_certain_only_when_it_knows_all_that_is_committed() -> None:
    net = cluster()
    net.send("r1", b"a")
    net.hold = lambda name, call: call.to == "r2" and isinstance(call.message, Fetch)
    net.lead("r2", "r1 r2 r3")
    early = net.send("r2", b"x", producer_id=5, base_sequence=1)
    assert outcome(net.acks[early]) == ("OUT_OF_ORDER_SEQUENCE", True)
    net.hold = lambda name, call: False
    for name, call in net.held:
        net.deliver(name, call)
    net.run()
    late = net.send("r2", b"x", producer_id=5, base_sequence=1)
    assert outcome(net.acks[late]) == ("OUT_OF_ORDER_SEQUENCE", False)


def test_R10_a_gap_at_a_new_leader_is_in_doubt_while_a_member_may_hold_what_the_old_leader_appended() -> None:
    net = cluster()
    net.send("r1", b"a")
    net.advance(5)
    assert net.partition("r2").high_watermark == net.partition("r2").log.end == 1
    net.hold = lambda name, call: call.to == "r2" and isinstance(call.message, Fetch | EpochOffset)
    net.lead("r2", "r1 r2 r3")
    assert net.partition("r2").leading.core.knows_end
    early = net.send("r2", b"x", producer_id=5, base_sequence=1)
    assert outcome(net.acks[early]) == ("OUT_OF_ORDER_SEQUENCE", True)
    net.hold = lambda name, call: False
    for name, call in net.held:
        net.deliver(name, call)
    net.run()
    late = net.send("r2", b"x", producer_id=5, base_sequence=1)
    assert outcome(net.acks[late]) == ("OUT_OF_ORDER_SEQUENCE", False)


@pytest.mark.parametrize(
    ("settings", "unclean_epoch", "lossy"),
    [
        ({}, -1, False),
        ({"unclean_election": True}, -1, True),
        ({"commit_rule": "leader"}, -1, True),
        ({}, 1, True),  # the topic has been allowed to lose records, and has
    ],
)
def test_a_gap_where_records_may_be_lost_says_so(settings: dict[str, Any], unclean_epoch: int, lossy: bool) -> None:
    net = cluster(config=TopicConfig(**settings))
    net.push(unclean_epoch=unclean_epoch)
    net.run()
    gap = net.send("r1", b"x", producer_id=5, base_sequence=1)
    error = net.acks[gap].error
    assert error is not None
    assert (error.code, error.unknown_outcome) == ("OUT_OF_ORDER_SEQUENCE", False)
    assert error.detail == ({"lossy": "1"} if lossy else {})


def test_an_idle_follower_asks_again_soon_after_its_link_broke() -> None:
    net = cluster()
    net.send("r1", b"a")
    net.advance(1.0)
    for name in ("r2", "r3"):
        net._take("r1", net.nodes["r1"].on_link_closed(net.names.index(name), net.now))
        net._take(name, net.nodes[name].on_peer_down("r1", net.now))
    net.run()
    id = net.send("r1", b"b")
    net.advance(0.1)
    assert net.acks[id].offset == 1
    reports = len(net.reports)
    net.advance(3.0)
    assert len(net.reports) == reports  # its answer has shown that the leader lives
