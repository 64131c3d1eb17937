"""Servers under other rules: commit rule quorum with its sealing, losses that are allowed, learners, stalls. Tests
``node.py`` and ``partition/leader_replica.py``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.replica_network import KEY, Net, cluster, code, outcome
from tidelog.errors import TimedOut, refuse
from tidelog.types import Acks, TopicConfig
from tidelog.wire import codec
from tidelog.wire.messages import EpochOffset, Fetch, HandOver, MetadataUpdate, Produce, ReportLoss, Seal
from tidelog_replica.config import ReplicaSettings

QUORUM = TopicConfig(commit_rule="quorum")


def seal(net: Net) -> None:
    """The controller begins an election under rule quorum."""
    net.push(leader=None, leader_epoch=net.state().leader_epoch + 1, sealing=True)
    net.run()


def elect(net: Net, leader: str) -> None:
    """Let the election end with this leader."""
    net.push(leader=leader, leader_epoch=net.state().leader_epoch + 1, sealing=False)
    net.run()


# --- commit rule quorum ----------------------------------------------------------------------------------


def test_a_quorum_leader_begins_its_epoch_with_a_control_batch() -> None:
    net = cluster(config=QUORUM)
    assert [net.partition(name).log.end for name in net.names] == [1, 1, 1]
    assert net.partition("r1").high_watermark == 1
    ack = net.acks[net.send("r1", b"a")]
    assert (ack.offset, code(ack)) == (1, "")
    assert net.values("r2") == [b"a"], "readers skip it"


def test_a_write_is_acked_while_one_replica_hangs() -> None:
    net = cluster(config=QUORUM)
    net.slow_flush["r3"] = []
    assert code(net.acks[net.send("r1", b"a")]) == ""
    net.stop("r2")
    waits = net.send("r1", b"b")
    assert waits not in net.acks
    (flush,) = net.slow_flush.pop("r3")
    net.flush("r3", flush)
    net.run()
    assert code(net.acks[waits]) == ""


def test_every_replica_that_sees_the_sealing_reports_the_end_of_its_log() -> None:
    net = cluster(config=QUORUM)
    net.send("r1", b"a")
    seal(net)
    parts = {message.node: message.parts for message in net.seals}
    assert set(parts) == {"r1", "r2", "r3"}
    for (part,) in parts.values():
        assert (part.topic_id, part.partition, part.leader_epoch, part.last_epoch, part.end) == (*KEY, 1, 0, 2)


def test_R6_a_sealed_replica_takes_and_serves_nothing_of_an_older_epoch() -> None:
    net = cluster(config=QUORUM, settings=ReplicaSettings(notify_max_bytes=0))
    net.hold = lambda name, call: name == "r2" and isinstance(call.message, Fetch)
    net.send("r1", b"a")
    held = len(net.held)
    assert held and net.values("r2") == []
    seal(net)
    for name, call in net.held:
        net.deliver(name, call)
    net.run()
    assert net.values("r2") == [], "the answer came after the seal"
    assert code(net.acks[net.send("r1", b"b")]) == "NOT_LEADER"
    before = len(net.messages(Fetch))
    net.advance(10)
    assert len(net.messages(Fetch)) == before


def test_a_seal_names_only_what_is_durable() -> None:
    net = cluster(config=QUORUM)
    net.slow_flush["r2"] = []
    net.send("r1", b"a")
    seal(net)
    assert {message.node for message in net.seals} == {"r1", "r3"}
    (flush,) = net.slow_flush.pop("r2")
    net.flush("r2", flush)
    net.run()
    (sealed,) = [message for message in net.seals if message.node == "r2"]
    assert sealed.parts[0].end == net.partition("r2").log.durable == 2


def test_a_seal_is_repeated_until_somebody_is_elected() -> None:
    net = cluster(config=QUORUM)
    seal(net)
    net.advance(2.0)
    assert len(net.messages(Seal, "r2")) in (4, 5)
    elect(net, "r2")
    before = len(net.seals)
    net.advance(5.0)
    assert len(net.seals) == before
    assert code(net.acks[net.send("r2", b"a")]) == ""
    assert net.acks[net.send("r2", b"b")].leader_epoch == 2


def test_a_follower_that_begins_a_life_during_the_sealing_seals_too() -> None:
    net = cluster(config=QUORUM)
    net.send("r1", b"a")
    net.stop("r3")
    seal(net)
    net.start("r3")
    (part,) = next(message for message in net.seals if message.node == "r3").parts
    assert (part.leader_epoch, part.last_epoch, part.end) == (1, 0, 2)


def test_RAFT_an_uncommitted_record_of_an_older_epoch_is_committed_with_the_new_leaders_first() -> None:
    net = cluster(config=QUORUM)
    net.slow_flush.update(r2=[], r3=[])
    id = net.send("r1", b"a", timeout_ms=60_000)
    for name in ("r2", "r3"):
        for flush in net.slow_flush.pop(name):
            net.hold = lambda name, call: isinstance(call.message, Fetch)  # nobody tells r1
            net.flush(name, flush)
            net.run()
    assert id not in net.acks
    seal(net)
    net.hold = lambda name, call: isinstance(call.message, EpochOffset)
    elect(net, "r2")
    assert net.partition("r2").high_watermark < 2
    net.hold = lambda name, call: False
    for name, call in net.held:
        net.deliver(name, call)
    net.run()
    assert net.partition("r2").high_watermark == 3
    assert outcome(net.acks[id]) == ("NOT_LEADER", True)


# --- losses that are allowed -----------------------------------------------------------------------------


def diverged(**fields: Any) -> Net:
    """r2 has committed b, which r1, who leads next, never had."""
    net = cluster(2, config=TopicConfig(min_insync_replicas=1, **fields))
    net.send("r1", b"a")
    net.advance(4)
    net.stop("r1")
    net.lead("r2", "r2")
    net.send("r2", b"b")
    net.send("r2", b"c")
    net.advance(6)
    assert net.partition("r2").high_watermark == 3
    net.stop("r2")
    net.start("r1")
    return net


def test_C10_after_an_unclean_election_a_follower_cuts_committed_records_and_reports_them() -> None:
    net = diverged(unclean_election=True)
    net.push(leader="r1", isr=("r1",), leader_epoch=2, unclean_epoch=2)
    net.start("r2")
    net.advance(1)
    assert net.values("r1") == net.values("r2") == [b"a"]
    assert net.partition("r2").high_watermark == 1
    ((name, event),) = net.happened("committed_records_lost")
    assert (name, event.fields["start"], event.fields["end"]) == ("r2", 1, 3)
    (loss,) = net.losses
    assert (loss.node, loss.topic_id, loss.partition, loss.leader_epoch, loss.start, loss.end) == (
        "r2",
        *KEY,
        2,
        1,
        3,
    )
    assert code(net.acks[net.send("r1", b"d")]) == ""
    assert net.values("r2") == [b"a", b"d"]


def test_R4_without_an_unclean_election_no_replica_cuts_committed_records() -> None:
    net = diverged(unclean_election=True)
    net.push(leader="r1", isr=("r1",), leader_epoch=2)
    net.start("r2")
    net.advance(1)
    assert net.partition("r2").offline is not None
    assert net.values("r2") == [b"a", b"b", b"c"]
    assert not net.losses


def test_R4_a_replica_that_followed_an_unclean_election_cuts_nothing_committed_after_it() -> None:
    net = diverged(unclean_election=True)
    net.push(leader="r2", isr=("r2",), leader_epoch=2, unclean_epoch=2)
    net.start("r2")
    net.send("r2", b"d")
    net.advance(6)
    net.stop("r2")
    net.disks["r1"] = type(net.disks["r1"])()
    net.push(leader="r1", isr=("r1",), leader_epoch=3)
    net.stop("r1")
    net.start("r1", "r2")
    net.push(leader="r1", isr=("r1",), leader_epoch=4)
    net.run()
    net.advance(1)
    assert net.partition("r2").offline is not None


def test_under_commit_rule_leader_a_copy_that_was_ahead_is_cut() -> None:
    net = diverged(commit_rule="leader")
    net.push(leader="r1", isr=("r1",), leader_epoch=2)
    net.start("r2")
    net.advance(1)
    assert net.values("r2") == [b"a"]
    assert len(net.losses) == 1


def test_C10_records_above_the_high_watermark_known_to_a_follower_are_reported_as_possibly_lost() -> None:
    net = diverged(unclean_election=True)
    net.stop("r1")
    net.start("r2")
    net.lead("r2", "r2")
    net.send("r2", b"d")
    net.stop("r2")  # before the next checkpoint
    net.start("r1")
    epoch = net.state().leader_epoch + 1
    net.push(leader="r1", isr=("r1",), leader_epoch=epoch, unclean_epoch=epoch)
    net.start("r2")
    net.advance(1)
    assert net.values("r2") == [b"a"]
    assert [(loss.start, loss.end, loss.possible) for loss in net.losses] == [(1, 3, False), (3, 4, True)]
    assert len(net.happened("committed_records_lost")) == len(net.happened("records_possibly_lost")) == 1
    assert not net.partition("r2").log.pending_losses.ranges


def test_records_cut_after_the_election_of_a_member_were_not_committed_and_are_no_loss() -> None:
    net = cluster(2, config=TopicConfig(min_insync_replicas=2, unclean_election=True))
    net.send("r1", b"a")
    net.stop("r2")
    net.send("r1", b"b")
    net.stop("r1")
    net.start("r2")
    net.lead("r2", "r2")
    net.start("r1")
    net.advance(1)
    assert net.values("r1") == [b"a"] and len(net.happened("log_truncated")) == 1
    assert not net.losses


def test_R7_no_crash_leaves_a_high_watermark_above_the_loss() -> None:
    net = diverged(unclean_election=True)
    net.push(leader="r1", isr=("r1",), leader_epoch=2, unclean_epoch=2)
    net.start("r2")
    net.slow_flush["r1"] = []
    net.send("r1", b"d", acks=Acks.LEADER)
    net.send("r1", b"e", acks=Acks.LEADER)
    assert net.partition("r2").log.durable == 3
    net.stop("r1")
    net.stop("r2", power=True)
    net.start("r2")
    assert net.partition("r2").high_watermark == 1


def test_a_loss_is_reported_until_the_controller_has_it() -> None:
    net = diverged(unclean_election=True)
    net.push(leader="r1", isr=("r1",), leader_epoch=2, unclean_epoch=2)
    net.refuse_loss = refuse("NO_QUORUM", "not now")
    net.start("r2")
    net.advance(2)
    assert len(net.losses) > 3
    net.hold = lambda name, call: isinstance(call.message, ReportLoss)
    net.advance(1)
    net._answer(net.held[0][0], net.held[0][1].token, TimedOut("lost"))
    net.hold = lambda name, call: False
    net.refuse_loss = None
    net.advance(1)
    count = len(net.messages(ReportLoss))
    net.advance(5)
    assert len(net.messages(ReportLoss)) == count


@pytest.mark.parametrize("refusal", ["METADATA_WENT_BACK", "UNSUPPORTED_LEVEL", "UNSUPPORTED", "FORBIDDEN"])
def test_C10_a_refusal_that_passes_does_not_forget_a_loss(refusal: str) -> None:
    net = diverged(unclean_election=True)
    net.push(leader="r1", isr=("r1",), leader_epoch=2, unclean_epoch=2)
    net.refuse_loss = refuse(refusal, "not now")
    net.start("r2")
    net.advance(3)
    assert net.partition("r2").log.pending_losses.ranges
    net.stop("r2")
    net.refuse_loss = None
    net.losses.clear()
    net.start("r2")
    net.advance(3)
    assert len(net.losses) == 1 and not net.partition("r2").log.pending_losses.ranges


@pytest.mark.parametrize("refusal", ["UNKNOWN_TOPIC", "NOT_REPLICA", "MALFORMED"])
def test_a_loss_that_the_controller_refuses_for_good_is_not_reported_again(refusal: str) -> None:
    net = diverged(unclean_election=True)
    net.push(leader="r1", isr=("r1",), leader_epoch=2, unclean_epoch=2)
    net.refuse_loss = refuse(refusal, "never")
    net.start("r2")
    net.advance(5)
    assert len(net.losses) == 1 and not net.partition("r2").log.pending_losses.ranges


def test_the_eligible_replicas_come_from_the_metadata_and_not_from_the_answer_to_a_proposal() -> None:
    net = cluster()
    partition, life = net.partition("r1"), net.servers["r1"].broker_epoch
    answered = replace(net.state(), epoch=1, isr=("r1",), elr=("r2", "r3"))
    partition.on_state(answered, life, net.now)
    told = replace(answered, elr=("r2",))
    partition.on_state(told, life, net.now)
    assert partition.state == told
    assert partition.leading is not None and partition.leading.core.eligible == ("r2",)


# --- learners --------------------------------------------------------------------------------------------


def test_a_follower_whose_fetch_came_before_its_registration_joins_when_the_leader_learns_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = cluster(3)
    net.stop("r3")
    net.push(0, isr=("r1", "r2"))
    net.run()
    held: list[MetadataUpdate] = []
    tell = net._tell

    def hold(name: str, update: MetadataUpdate) -> None:
        if name == "r1":
            held.append(update)
        else:
            tell(name, update)

    monkeypatch.setattr(net, "_tell", hold)
    net.start("r3")
    net.advance(0.3)
    assert net.state().isr == ("r1", "r2"), "r1 does not know that the life in which r3 fetches is registered"
    for update in held:
        tell("r1", update)
    net.run()
    assert set(net.state().isr) == {"r1", "r2", "r3"}, "no time has passed"


def test_a_learner_copies_and_counts_for_nothing() -> None:
    net = Net(3, config=TopicConfig(min_insync_replicas=2))
    net.start()
    net.create()
    net.push(replicas=("r1", "r2"), isr=("r1", "r2"), learners=("r3",))
    net.run()
    net.slow_flush["r3"] = []
    assert code(net.acks[net.send("r1", b"a")]) == ""
    assert net.values("r3") == [b"a"]
    net.advance(15)
    assert net.state().isr == ("r1", "r2")
    net.push(learners=())
    net.run()
    net.send("r1", b"b")
    assert (KEY not in net.nodes["r3"].partitions) and net.values("r1") == [b"a", b"b"], "its copy is deleted"


# --- a stalled disk --------------------------------------------------------------------------------------


def test_B9_a_leader_whose_disk_stalls_hands_over_and_its_followers_stay_in_sync() -> None:
    net = cluster()
    net.slow_flush["r1"] = []
    waits = net.send("r1", b"a", timeout_ms=60_000)
    net.advance(4.9)
    assert not net.hand_overs
    net.advance(0.2)
    (message,) = net.hand_overs
    assert (message.node, message.reason, message.lost) == ("r1", "disk_stalled", False)
    (part,) = message.parts
    assert (part.topic_id, part.partition, part.epoch, part.leader_epoch) == (*KEY, 0, 0)
    refused = net.acks[net.send("r1", b"b")]
    assert (code(refused), refused.error.unknown_outcome) == ("OFFLINE", False)
    net.advance(35)
    assert not net.proposals
    assert 60 <= len(net.hand_overs) <= 80, "asked again and again"
    net.lead("r2", "r2 r3")
    assert outcome(net.acks[waits]) == ("NOT_LEADER", True)
    assert net.values("r2") == [b"a"]
    assert code(net.acks[net.send("r2", b"b")]) == ""
    before = len(net.hand_overs)
    net.advance(5)
    assert len(net.hand_overs) == before


def test_a_disk_that_answers_again_ends_the_stall() -> None:
    net = cluster()
    net.slow_flush["r1"] = []
    waits = net.send("r1", b"a", timeout_ms=60_000)
    net.advance(6)
    (flush,) = net.slow_flush.pop("r1")
    net.flush("r1", flush)
    net.run()
    assert code(net.acks[waits]) == ""
    assert code(net.acks[net.send("r1", b"b")]) == ""
    before = len(net.hand_overs)
    net.advance(5)
    assert len(net.hand_overs) == before
    assert [event.name for _, event in net.events if event.name.startswith("disk")] == [
        "disk_stalled",
        "disk_answers",
    ]


def test_a_stall_is_noticed_well_before_followers_would_seem_to_lag() -> None:
    config = TopicConfig(min_insync_replicas=2, replica_max_lag_ms=1000)
    net = cluster(config=config, settings=ReplicaSettings(replica_max_idle_wait_s=0.3))
    net.slow_flush["r1"] = []
    net.send("r1", b"a", timeout_ms=60_000)
    net.advance(0.6)
    assert len(net.messages(HandOver)) == 1


def test_a_leader_that_is_alone_has_nobody_to_hand_over_to() -> None:
    net = cluster(1)
    net.slow_flush["r1"] = []
    waits = net.send("r1", b"a", timeout_ms=60_000)
    net.advance(20)
    assert not net.hand_overs
    assert code(net.acks[net.send("r1", b"b")]) == "OFFLINE"
    (flush,) = net.slow_flush.pop("r1")
    net.flush("r1", flush)
    net.run()
    assert code(net.acks[waits]) == ""


def test_settings_of_a_topic_that_change_are_acted_on() -> None:
    net = cluster()
    net.reconfigure(min_insync_replicas=3)
    net.push(isr=("r1", "r2"))
    net.refuse_isr = refuse("NO_QUORUM", "not now")
    net.run()
    assert code(net.acks[net.send("r1", b"a")]) == "NOT_ENOUGH_REPLICAS"
    net.reconfigure(min_insync_replicas=2)
    assert code(net.acks[net.send("r1", b"a")]) == ""
    net.reconfigure(max_batch_bytes=1000)
    assert code(net.acks[net.send("r1", b"x" * 1000)]) == "BATCH_TOO_LARGE"


@pytest.mark.parametrize("rule", ["isr", "quorum"])
def test_nothing_is_sent_where_nothing_is_due(rule: str) -> None:
    net = cluster(config=TopicConfig(commit_rule=rule))
    net.send("r1", b"a")
    net.advance(30)
    assert not net.messages(Seal) and not net.messages(HandOver) and not net.messages(ReportLoss)
    assert not net.messages(Produce)


def test_an_empty_log_is_sealed_too() -> None:
    net = Net(3, config=QUORUM)
    net.start()
    net.hold = lambda name, call: isinstance(call.message, EpochOffset | Fetch)
    net.slow_flush["r1"] = []
    net.create()
    seal(net)
    (part,) = next(message for message in net.seals if message.node == "r2").parts
    assert (part.last_epoch, part.end) == (-1, 0)
    head, _ = codec.encode(net.seals[0], id=1)
    assert codec.decode(head, answers=lambda re: None).message == net.seals[0]
