"""Copies of a partition that do not hold the same: the odd one out of three is found and fetched again, by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulation.faults.altered import alter, forget_indexes, segment_of
from support.replica_network import KEY, Net, cluster, code
from tidelog.batch.format import NewRecord, encode_batch
from tidelog.feature_levels import COPY_CHECKS
from tidelog.sansio.majority import find_odd_copies
from tidelog.types import PartitionState, TopicConfig
from tidelog.wire.messages import Digest, ScrubServer, ScrubStatus
from tidelog_replica.config import ReplicaSettings
from tidelog_replica.copies.checks import AGAIN_S, MOST_TRIES, reason_to_keep
from tidelog_replica.storage.compaction import Compaction
from tidelog_replica.storage.log import Log

PATH = f"/data/{KEY.topic_id}-0"
VALUES = [f"{number:02}".encode() * 20 for number in range(12)]
SETTINGS = ReplicaSettings(scrub_bytes_per_s=0, retention_check_interval_s=10)
SMALL = TopicConfig(min_insync_replicas=2, segment_max_bytes=400)


def filled(nodes: int = 3, config: TopicConfig = SMALL, level: int = COPY_CHECKS) -> Net:
    """Logs of several segments, everything committed; r1 leads. Nothing is scrubbed unless it is asked for."""
    net = cluster(nodes, config=config, settings=SETTINGS, level=level)
    for value in VALUES:
        net.send("r1", value)
    net.advance(20)
    assert len(net.partition("r1").log.segments.extents()) > 3
    return net


def alter_stopped(net: Net, name: str, offset: int, *, in_order: bool = False, known: bool = False) -> None:
    """Stop a server, make a record on its disk another, and start it. ``known``: what its indexes say of the segments
    stays, so that the copy still believes what was written."""
    if in_order:
        assert net.close(name)
    else:
        net.stop(name)
    disk = net.disks[name]
    alter(disk, segment_of(disk, PATH, offset), offset)
    if not known:
        forget_indexes(disk, PATH)
    net.start(name)
    net.advance(20)


def scrub(net: Net, *names: str) -> None:
    for name in names or net.names:
        assert isinstance(net.answers[net.ask(name, ScrubServer(name, begin=True))], ScrubStatus)
    net.advance(10)


def happened(net: Net, event: str) -> list[str]:
    return [name for name, _ in net.happened(event)]


def differing(net: Net, name: str) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    return [(one.odd, tuple(sorted(one.compared))) for one in net.nodes[name].copy_checks.differing()]


def is_whole(net: Net) -> bool:
    return all(net.values(name) == VALUES for name in net.names) and set(net.state().isr) == set(net.names)


# --- the disk against what was written -------------------------------------------------------------------------


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("offset", [4, 11])
def test_a_record_that_was_altered_under_a_stopped_follower_is_found_by_its_scrubber(offset: int, in_order: bool):
    """In a full segment and in the one that is written; the CRC of its batch is right."""
    net = filled()
    alter_stopped(net, "r3", offset, in_order=in_order, known=True)
    if in_order:
        assert net.values("r3") != VALUES, "the copy believes what was written, and holds something else"
    scrub(net)
    net.advance(20)
    assert is_whole(net) and set(happened(net, "segment_quarantined")) == {"r3"}


def test_a_flipped_bit_in_the_segment_that_is_written_is_found_after_a_clean_restart():
    net = filled()
    assert net.close("r3")
    net.disks["r3"].flip(segment_of(net.disks["r3"], PATH, 11), 100, 0)
    net.start("r3")
    net.advance(20)
    assert net.partition("r3").offline is None
    scrub(net, "r3")
    net.advance(20)
    assert happened(net, "segment_quarantined") == ["r3"] and is_whole(net)


# --- the copies against each other -----------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 4, 7, 11])
def test_the_odd_copy_out_of_three_is_quarantined_and_fetched_again(offset: int):
    """The copy has read the altered record at its start, and takes it for what was written."""
    net = filled()
    alter_stopped(net, "r3", offset)
    assert net.values("r3")[offset] != VALUES[offset]
    scrub(net)
    assert differing(net, "r1") == [(("r3",), ("r1", "r2", "r3"))]
    assert not any(one.below for one in net.nodes["r1"].copy_checks.differing())
    (event,) = [event for name, event in net.happened("odd_copy_given_up")]
    assert event.fields["start"] <= offset < event.fields["end"]
    net.advance(20)
    assert is_whole(net) and happened(net, "segment_quarantined") == ["r3"]
    net.advance(AGAIN_S + 1)
    assert [differing(net, name) for name in net.names] == [[], [], []]
    assert set(happened(net, "copies_agree")) == set(happened(net, "copies_differ"))
    edges = {net.partition(name).log.chain_at(len(VALUES)) for name in net.names}
    assert len(edges) == 1 and net.stopped == []


def test_a_leader_with_the_odd_copy_resigns_and_is_repaired_by_its_successor():
    net = filled()
    alter_stopped(net, "r1", 4)
    net.lead("r1", "r1 r2 r3")
    net.advance(10)
    scrub(net, "r1")
    net.advance(30)
    assert net.state().leader != "r1" and net.hand_overs[-1].lost
    assert is_whole(net)


def test_of_two_copies_that_differ_nobody_is_judged():
    net = filled(2)
    alter_stopped(net, "r2", 4)
    scrub(net)
    net.advance(2 * AGAIN_S)
    assert [differing(net, name) for name in net.names] == [[((), ("r1", "r2"))]] * 2
    assert happened(net, "odd_copy_given_up") == [] and set(net.state().isr) == {"r1", "r2"}


def test_a_difference_is_remembered_while_its_partition_is_paused():
    net = filled(2)
    alter_stopped(net, "r2", 4)
    scrub(net)
    known = differing(net, "r1")
    assert known
    net.push(paused=True)
    net.run()
    net.advance(2 * AGAIN_S)
    assert not net.nodes["r1"].partitions and differing(net, "r1") == differing(net, "r2") == known
    net.push(paused=False, leader="r1", leader_epoch=net.state().leader_epoch + 1)
    net.run()
    asked = len(net.messages(Digest))
    net.advance(2 * AGAIN_S)
    assert differing(net, "r1") == known and len(net.messages(Digest)) > asked


def test_a_difference_is_forgotten_where_the_topic_or_the_copy_is_gone():
    net = filled(2)
    alter_stopped(net, "r2", 4)
    scrub(net)
    net.push(replicas=("r1",), isr=("r1",))
    net.run()
    net.advance(2 * AGAIN_S)
    assert differing(net, "r2") == []
    net.delete()
    net.advance(2 * AGAIN_S)
    assert differing(net, "r1") == []


def test_without_the_third_nobody_is_judged_and_with_it_the_odd_one_is():
    net = filled(config=replace(SMALL, min_insync_replicas=1))
    alter_stopped(net, "r3", 4)
    net.stop("r2")
    scrub(net, "r1", "r3")
    assert differing(net, "r1") == [((), ("r1", "r3"))] and happened(net, "odd_copy_given_up") == []
    net.start("r2")
    net.advance(20 + 2 * AGAIN_S)
    assert happened(net, "odd_copy_given_up") == ["r3"] and is_whole(net)
    net.advance(AGAIN_S)
    assert differing(net, "r1") == []


def test_a_learner_that_agrees_with_the_majority_keeps_its_copy():
    net = filled(4)
    three = ("r1", "r2", "r3")
    net.push(replicas=three, isr=three, learners=("r4",), leader_epoch=net.state().leader_epoch + 1)
    net.run()
    net.advance(5)
    alter_stopped(net, "r3", 4)
    scrub(net, "r1", "r4")
    assert differing(net, "r1") == differing(net, "r4") == [(("r3",), ("r1", "r2", "r3", "r4"))]
    assert happened(net, "odd_copy_given_up") == []
    scrub(net, "r3")
    net.advance(20)
    assert happened(net, "odd_copy_given_up") == ["r3"]
    assert all(net.values(name) == VALUES for name in net.names)


def test_a_copy_without_which_nothing_could_be_written_is_kept():
    net = filled(config=replace(SMALL, min_insync_replicas=3))
    alter_stopped(net, "r3", 4)
    scrub(net)
    assert happened(net, "odd_copy_given_up") == [] and set(happened(net, "odd_copy_kept")) == {"r3"}
    assert differing(net, "r2") == [(("r3",), ("r1", "r2", "r3"))]
    assert set(net.state().isr) == {"r1", "r2", "r3"}


def test_three_copies_that_all_differ_are_reported_only():
    net = filled()
    alter_stopped(net, "r3", 4)
    alter_stopped(net, "r2", 7)
    scrub(net)
    assert differing(net, "r1") == [((), ("r1", "r2", "r3"))] and happened(net, "odd_copy_given_up") == []


def test_a_copy_that_differs_again_and_again_is_not_given_up_for_ever():
    """What is wrong then is not the disk: the server reckons its hash chain in another way, say."""
    net, chain_at = filled(), Log.chain_at

    def of_another_kind(log: Log, offset: int) -> tuple[int, bytes]:
        end, chain = chain_at(log, offset)
        return (end, bytes(16)) if log._disk is net.disks["r3"] and offset else (end, chain)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Log, "chain_at", of_another_kind)
        scrub(net, "r3")
        net.advance(10 * AGAIN_S)
    assert happened(net, "odd_copy_given_up") == ["r3"] * MOST_TRIES
    assert happened(net, "copy_restarted") == ["r3"] * (MOST_TRIES - 1) or is_whole(net)
    assert "times since this server started" in str(net.happened("odd_copy_kept")[-1][1].fields["reason"])


def test_a_difference_below_the_beginning_of_a_log_is_reported_only():
    net = filled()
    alter_stopped(net, "r3", 0)
    for name in net.names:
        assert net.partition(name).log.advance_start(6)
    scrub(net)
    assert differing(net, "r1") == [(("r3",), ("r1", "r2", "r3"))] and happened(net, "odd_copy_given_up") == []
    assert all(one.below for name in net.names for one in net.nodes[name].copy_checks.differing())


def test_logs_that_begin_elsewhere_or_reach_further_are_compared_where_both_are():
    net = filled()
    assert net.partition("r2").log.advance_start(6)
    net.cut |= {("r3", "r1")}
    net.advance(1)
    net.send("r1", b"more")
    scrub(net)
    assert happened(net, "copies_differ") == [] and net.messages(Digest)


def test_a_copy_that_compaction_has_thinned_out_is_the_same_as_one_that_it_has_not():
    net = cluster(3, config=replace(SMALL, cleanup="compact"), settings=SETTINGS, level=COPY_CHECKS)
    net.wall_ms = 10_000
    net.slow_job["r2"] = []
    for number in range(40):
        net.send_batch("r1", encode_batch([NewRecord(b"%d" % number * 20, b"key-%d" % (number % 3))]))
    net.advance(30)
    for effect in net.slow_job.pop("r2"):
        if not isinstance(effect.job, Compaction):
            net.work("r2", effect)
    assert {name for name, _ in net.happened("log_compacted")} == {"r1", "r3"}
    scrub(net)
    assert happened(net, "copies_differ") == [] and len(net.messages(Digest)) >= 6


def test_nobody_is_asked_below_the_feature_level():
    net = filled(level=COPY_CHECKS - 1)
    alter_stopped(net, "r3", 4)
    scrub(net)
    assert net.messages(Digest) == [] and happened(net, "copies_differ") == []


def test_an_answer_of_another_leader_epoch_does_not_count():
    net = filled()
    alter_stopped(net, "r3", 4)
    net.hold = lambda name, call: isinstance(call.message, Digest)
    scrub(net, "r3")
    assert net.held
    net.hold = lambda name, call: False
    net.lead("r2", "r1 r2 r3")
    for name, call in net.held:
        net.deliver(name, call)
    net.run()
    assert happened(net, "odd_copy_given_up") == happened(net, "copies_differ") == []
    scrub(net, "r3")
    net.advance(20)
    assert happened(net, "odd_copy_given_up") == ["r3"] and is_whole(net)


def test_a_log_that_was_cut_meanwhile_is_not_judged():
    net = filled()
    alter_stopped(net, "r3", 4)
    net.hold = lambda name, call: isinstance(call.message, Digest)
    scrub(net, "r3")
    net.hold = lambda name, call: False
    net.partition("r3").log._generation += 1
    for name, call in net.held:
        net.deliver(name, call)
    net.run()
    assert happened(net, "odd_copy_given_up") == happened(net, "copies_differ") == []


# --- a round that is asked for -----------------------------------------------------------------------------------


def test_a_requested_scrub_round_begins_now_and_reports_its_progress():
    net = filled()
    before = net.answers[net.ask("r2", ScrubServer("r2"))]
    assert before == ScrubStatus(0, running=False)
    begun = net.answers[net.ask("r2", ScrubServer("r2", begin=True))]
    assert (begun.round, begun.running, begun.left) == (1, True, 1)
    net.advance(5)
    after = net.answers[net.ask("r2", ScrubServer("r2"))]
    log = net.partition("r2").log
    assert after == ScrubStatus(
        1, False, 0, len(log.segments.extents()), sum(extent.bytes for extent in log.segments.extents())
    )
    assert code(net.answers[net.ask("r2", ScrubServer("r1"))]) == "NOT_REPLICA"


def test_a_round_that_is_asked_for_during_another_begins_anew():
    net = filled()
    net.slow_job["r2"] = []
    net.ask("r2", ScrubServer("r2", begin=True))
    net.advance(1)
    (job,) = net.slow_job["r2"]
    again = net.answers[net.ask("r2", ScrubServer("r2", begin=True))]
    assert (again.round, again.segments) == (2, 0)
    net.slow_job.pop("r2")
    net.work("r2", job)
    net.run()
    net.advance(5)
    status = net.answers[net.ask("r2", ScrubServer("r2"))]
    assert status.segments == len(net.partition("r2").log.segments.extents()) and not status.running


# --- the judgement -------------------------------------------------------------------------------------------------

STATE = PartitionState(("r1", "r2", "r3"), ("r1", "r2", "r3"), "r1", 1, 1)
GOOD, BAD, OTHER = (5, b"good"), (5, b"bad"), (5, b"other")


def test_a_majority_of_the_replicas_decides_which_copy_is_right():
    three, five = ("r1", "r2", "r3"), ("r1", "r2", "r3", "r4", "r5")
    none = ((), ())
    assert find_odd_copies({"r1": GOOD, "r2": GOOD, "r3": BAD}, three) == (("r1", "r2"), ("r3",))
    assert find_odd_copies({"r1": GOOD, "r3": GOOD, "r2": (4, b"good")}, three) == (("r1", "r3"), ("r2",))
    assert find_odd_copies({"r1": GOOD, "r2": BAD, "r3": OTHER}, three) == none
    assert find_odd_copies({"r1": GOOD, "r2": BAD}, three) == none
    assert find_odd_copies({"r1": BAD, "r2": GOOD, "r3": GOOD}, three) == (("r2", "r3"), ("r1",))
    assert find_odd_copies({"r1": GOOD, "l1": GOOD, "r2": BAD}, three) == none, "learners do not vote"
    assert find_odd_copies({"r1": GOOD, "r2": GOOD, "l1": BAD}, three) == (("r1", "r2"), ("l1",))
    assert find_odd_copies({"r1": GOOD, "r2": GOOD, "r3": BAD, "l1": GOOD}, three) == (("r1", "r2"), ("r3",))
    assert find_odd_copies({"r1": GOOD, "r2": GOOD, "r3": BAD}, five) == none, "two of five"


def test_the_odd_copy_is_given_up_only_where_the_others_can_go_on():
    assert reason_to_keep("r3", STATE, ("r1", "r2"), 2) is None
    assert "min_insync_replicas is 3" in str(reason_to_keep("r3", STATE, ("r1", "r2"), 3))
    assert reason_to_keep("r1", STATE, ("r2", "r3"), 2) is None
    assert "not one of r2, r3" in str(
        reason_to_keep("r4", replace(STATE, isr=("r1", "r2", "r3", "r4")), ("r2", "r3"), 2)
    )
    four = replace(STATE, isr=("r1", "r2", "r3", "r4"))
    assert "not one of r2, r3" in str(reason_to_keep("r1", four, ("r2", "r3"), 2)), "r4 might lead next"
    assert "r2 are in sync" in str(reason_to_keep("r3", replace(STATE, isr=("r1", "r3")), ("r1", "r2"), 1))
