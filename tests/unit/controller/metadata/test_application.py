"""The metadata state machine: examples of every rule. Restarts are in ``rules/test_server_restarts.py``,
unclean elections in ``rules/test_unclean_elections.py``, commit rule ``quorum`` in ``rules/test_quorum_sealing.py``,
random logs in ``metadata/test_application_random.py``."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.applied_commands import Log, code, live, who
from tidelog.types import PartitionState, TopicConfig
from tidelog.wire.messages import AlterIsrAnswer, Done, ProducerIds, Registered, TopicCreated
from tidelog_controller.metadata.changeset import HISTORY_LENGTH
from tidelog_controller.metadata.commands import (
    AddTopic,
    ConfirmLeadership,
    FenceServer,
    LeaveParts,
    RecordLoss,
    RegisterServer,
    RemoveTopic,
    SetLearners,
    TakeProducerIds,
    decode_command,
    encode_command,
)
from tidelog_controller.metadata.rules.leader_election import elect


@pytest.fixture
def log() -> Log:
    """Return three servers and one topic with one partition on all of them, led by r1."""
    log = Log()
    log.register("r1", "r2", "r3")
    log.topic("r1", "r2", "r3")
    return log


def test_broker_epoch_is_the_index_of_the_registration() -> None:
    log = Log()
    assert log.write(RegisterServer(0, "r1", "ws://r1")).answer == Registered(1, 1, 0, "test")
    assert log.write(RegisterServer(0, "r1", "ws://r1")).answer == Registered(2, 2, 0, "test")


def test_new_topic_is_led_by_its_preferred_replica(log: Log) -> None:
    assert log.partition == PartitionState(("r1", "r2", "r3"), ("r1", "r2", "r3"), "r1", 0, 0)
    assert log.state.history["id"][0][0].event == "created"


def test_topic_names_are_taken_once(log: Log) -> None:
    again = AddTopic(0, "other", "orders", TopicConfig(), (("r1",),))
    assert code(log.write(again)) == "TOPIC_EXISTS"
    assert log.write(RemoveTopic(0, "id")).deleted_ids == ("id",)
    assert log.write(again).answer == TopicCreated("other")
    assert list(log.state.history) == ["other"]


def test_server_fenced_between_placement_and_creation_is_left_out_of_the_isr() -> None:
    log = Log()
    log.register("r1", "r2")
    log.fence("r1")
    log.topic("r1", "r2")
    assert (log.partition.isr, log.partition.leader) == (("r2",), "r2")
    log.fence("r2")
    assert code(log.write(AddTopic(0, "x", "x", TopicConfig(), (("r1", "r2"),)))) == "INVALID_REPLICATION_FACTOR"


def test_restarted_follower_leaves_the_isr(log: Log) -> None:
    log.register("r2")
    assert (log.partition.isr, log.partition.leader) == (("r1", "r3"), "r1")
    assert (log.partition.epoch, log.partition.leader_epoch) == (1, 0)


def test_restarted_leader_leaves_the_isr_and_another_leads(log: Log) -> None:
    log.register("r1")
    assert (log.partition.isr, log.partition.leader) == (("r2", "r3"), "r2")
    assert (log.partition.epoch, log.partition.leader_epoch) == (1, 1)
    last = log.state.history["id"][0][-1]
    assert (last.event, last.cause, last.evidence["node"]) == ("leader_elected", "registered", "r1")


@pytest.mark.parametrize("fenced_first", [False, True])
def test_restarted_sole_isr_member_leads_again_in_a_new_leader_epoch(log: Log, fenced_first: bool) -> None:
    log.write(log.proposal("r1"))
    before = log.partition
    if fenced_first:
        log.fence("r1")
        assert log.partition.leader is None
    log.register("r1")
    assert (log.partition.isr, log.partition.leader) == (("r1",), "r1")
    assert log.partition.leader_epoch > before.leader_epoch
    assert log.partition.epoch > before.epoch


def test_fenced_leader_is_replaced_and_the_last_one_keeps_the_isr(log: Log) -> None:
    log.fence("r1")
    assert (log.partition.isr, log.partition.leader, log.partition.leader_epoch) == (("r2", "r3"), "r2", 1)
    log.fence("r3")
    assert (log.partition.isr, log.partition.leader, log.partition.leader_epoch) == (("r2",), "r2", 1)
    log.fence("r2")
    assert (log.partition.isr, log.partition.leader, log.partition.leader_epoch) == (("r2",), None, 2)
    log.unfence("r1")  # not in the ISR: may have missed committed records
    assert log.partition.leader is None
    log.unfence("r2")
    assert (log.partition.isr, log.partition.leader, log.partition.leader_epoch) == (("r2",), "r2", 3)
    assert [e.event for e in log.state.history["id"][0]] == [
        "created",
        "leader_elected",
        "isr_shrunk",
        "offline",
        "leader_elected",
    ]


def test_fence_of_a_former_life_does_nothing(log: Log) -> None:
    former = log.epoch_of("r1")
    log.register("r1")
    before = log.state
    assert code(log.write(FenceServer(0, "r1", former))) == "FENCED_BROKER_EPOCH"
    assert replace(log.state, index=before.index) == before


def test_fencing_and_unfencing_twice_is_fencing_and_unfencing_once(log: Log) -> None:
    log.fence("r3")
    assert not log.fence("r3").visible
    log.unfence("r3")
    assert not log.unfence("r3").visible


def test_leader_shrinks_and_expands_its_isr(log: Log) -> None:
    assert log.write(log.proposal("r1", "r2")).answer == AlterIsrAnswer(1, ("r1", "r2"))
    assert log.write(log.proposal("r1", "r3", "r2")).answer == AlterIsrAnswer(2, ("r1", "r2", "r3"))
    assert (log.partition.leader, log.partition.leader_epoch) == ("r1", 0)
    assert log.state.history["id"][0][-1].evidence == {"who": "r3"}


def test_repeated_proposal_is_stale(log: Log) -> None:
    proposal = log.proposal("r1", "r2")
    log.write(proposal)
    assert code(log.write(proposal)) == "STALE_EPOCH"


def test_proposal_that_changes_nothing_moves_the_epoch(log: Log) -> None:
    assert log.write(log.proposal("r1", "r2", "r3")).answer == AlterIsrAnswer(1, ("r1", "r2", "r3"))


def test_proposals_are_refused_that_do_not_come_from_the_present_leader(log: Log) -> None:
    proposal = log.proposal("r1", "r2")
    assert code(log.write(replace(proposal, topic_id="no"))) == "UNKNOWN_TOPIC"
    assert code(log.write(replace(proposal, partition=1))) == "UNKNOWN_TOPIC"
    assert code(log.write(replace(proposal, broker_epoch=99))) == "FENCED_BROKER_EPOCH"
    assert code(log.write(log.proposal("r2", sender="r2"))) == "NOT_LEADER"
    assert code(log.write(replace(proposal, leader_epoch=9))) == "FENCED_LEADER_EPOCH"
    assert code(log.write(replace(proposal, epoch=9))) == "STALE_EPOCH"
    log.register("r4")
    assert code(log.write(log.proposal("r1", "r4"))) == "NOT_REPLICA"
    assert code(log.write(log.proposal("r2", "r3"))) == "NOT_REPLICA"
    assert log.partition.epoch == 0


@pytest.mark.parametrize("restart", [False, True])
def test_unfit_member_is_refused_and_the_proposal_can_never_be_applied_later(log: Log, restart: bool) -> None:
    log.write(log.proposal("r1", "r2"))
    delayed = log.proposal("r1", "r2", "r3")
    if restart:
        log.register("r3")
    else:
        log.fence("r3")
    assert code(log.write(delayed)) == "STALE_EPOCH"
    assert (log.partition.epoch, log.partition.isr) == (2, ("r1", "r2"))
    assert log.state.history["id"][0][-1].event == "isr_refused"
    if not restart:
        log.unfence("r3")
    assert code(log.write(delayed)) == "STALE_EPOCH"
    assert log.partition.isr == ("r1", "r2")


def test_reported_leader_is_replaced_and_leaves_the_isr_in_one_change(log: Log) -> None:
    command = log.report()
    assert log.write(command).answer == Done()
    assert log.partition == PartitionState(("r1", "r2", "r3"), ("r2", "r3"), "r2", 1, 1)
    assert log.state.history["id"][0][-1].cause == "leader_reported"
    log.write(command)
    assert log.partition.epoch == 1


def test_reported_leader_stays_when_nobody_else_holds_everything(log: Log) -> None:
    log.write(log.proposal("r1"))
    before = log.partition
    log.write(log.report())
    assert log.partition == before


def test_producer_ids_are_given_once() -> None:
    log = Log()
    assert log.write(TakeProducerIds(0, 10)).answer == ProducerIds(1, 10)
    assert log.write(TakeProducerIds(0, 5)).answer == ProducerIds(11, 5)


def test_history_keeps_the_last_changes(log: Log) -> None:
    for _ in range(HISTORY_LENGTH):
        log.write(log.proposal("r1", "r2", "r3"))
    log.write(log.proposal("r1", "r2"))
    history = log.state.history["id"][0]
    assert len(history) == HISTORY_LENGTH
    assert history[-1].event == "isr_shrunk"
    assert [e.epoch for e in history] == list(range(2, HISTORY_LENGTH + 2))


def test_elect_keeps_a_live_leader_and_takes_the_first_live_one_otherwise() -> None:
    partition = PartitionState(("r3", "r1", "r2"), ("r3", "r1", "r2"), "r1", 4, 9)
    everybody, config = live("r1", "r2", "r3"), TopicConfig()
    assert elect(partition, config, ("r2", "r1", "r3"), everybody) is partition
    assert elect(partition, config, ("r1", "r2"), everybody) == replace(partition, isr=("r1", "r2"), epoch=10)
    elected = elect(partition, config, ("r2", "r3"), live("r2"))
    assert elected == replace(partition, isr=("r3", "r2"), leader="r2", leader_epoch=5, epoch=10)


def test_a_command_of_a_newer_version_is_not_skipped() -> None:
    data = encode_command(TakeProducerIds(0, 1)).replace(b"take_producer_ids", b"take_producer_idz")
    with pytest.raises(ValueError, match="later release"):
        decode_command(data)


# --- leaders that go, or ask whether they are leaders -----------------------------------------------------


def test_a_leader_hands_over_to_the_next_in_sync(log: Log) -> None:
    assert log.hand_over("r1").answer == Done()
    assert who(log.partition) == ("r2", "r2 r3", "") and log.partition.leader_epoch == 1
    assert (log.last.event, log.last.cause) == ("leader_elected", "handed_over")
    assert log.last.evidence == {"node": "r1", "reason": "shutdown"}


def test_a_follower_that_goes_leaves_the_isr_and_is_eligible_below_the_minimum() -> None:
    log = Log()
    log.register("r1", "r2")
    log.topic("r1", "r2", min_insync_replicas=2)
    log.hand_over("r2")
    assert who(log.partition) == ("r1", "r1", "r2") and log.partition.leader_epoch == 0
    log.hand_over("r1")
    assert who(log.partition) == ("r2", "r2", "r1"), "the eligible one takes over"


def test_a_leader_without_a_possible_successor_stays(log: Log) -> None:
    log.shrink("r1")
    before = log.partition
    log.hand_over("r1")
    assert log.partition == before


def test_a_leader_that_lost_its_data_is_removed_even_without_a_successor(log: Log) -> None:
    log.shrink("r1")
    log.hand_over("r1", lost=True)
    assert who(log.partition) == ("-", "", "")
    assert log.partition.last_leader is None, "it is no candidate for what it lost"
    assert (log.last.event, log.last.cause) == ("offline", "data_lost")


def test_a_replica_that_lost_its_data_is_not_eligible_any_more(log: Log) -> None:
    log.configure(min_insync_replicas=3)
    log.fence("r2")
    log.unfence("r2")
    assert who(log.partition) == ("r1", "r1 r3", "r2")
    log.hand_over("r2", lost=True)
    assert who(log.partition) == ("r1", "r1 r3", "") and log.last.event == "elr_changed"


def test_a_loss_outside_the_isr_is_a_new_epoch_so_that_no_proposal_under_way_brings_the_copy_in(log: Log) -> None:
    log.shrink("r1", "r2")
    before = log.partition
    log.hand_over("r3", lost=True)
    assert log.partition == replace(before, epoch=before.epoch + 1)
    assert (log.last.event, log.last.cause) == ("copy_lost", "data_lost")


def test_a_loss_reported_for_an_older_epoch_is_refused_and_must_be_reported_again(log: Log) -> None:
    before = log.partition
    assert code(log.hand_over("r3", age=-1, lost=True)) == "STALE_EPOCH"
    assert log.partition == before


def test_a_replica_that_lost_its_data_leads_uncleanly_where_allowed_and_no_other_is_live(log: Log) -> None:
    log.configure(unclean_election=True)
    log.shrink("r1")
    log.fence("r2")
    log.fence("r3")
    epoch = log.partition.leader_epoch
    log.hand_over("r1", lost=True)
    assert who(log.partition) == ("r1", "r1", "")
    assert log.partition.leader_epoch == log.partition.unclean_epoch == epoch + 1


def test_handing_over_counts_in_the_present_life_and_epoch_only(log: Log) -> None:
    before = log.partition
    assert log.hand_over("r1", age=-1).answer == Done()
    assert log.partition == before, "passed over"
    log.hand_over("r1")
    request = log.commands[-1]
    assert isinstance(request, LeaveParts)
    log.register("r1")
    assert code(log.write(request)) == "FENCED_BROKER_EPOCH"


def test_leadership_is_confirmed_for_life_and_leader_epoch_and_changes_nothing(log: Log) -> None:
    ask = ConfirmLeadership(0, "r1", log.epoch_of("r1"), "id", 0, 0)
    applied = log.write(ask)
    assert applied.answer == Done() and not applied.visible and not applied.changes
    assert code(log.write(replace(ask, leader_epoch=1))) == "FENCED_LEADER_EPOCH"
    assert code(log.write(replace(ask, topic_id="no"))) == "UNKNOWN_TOPIC"
    assert code(log.write(replace(ask, node="r2", broker_epoch=2))) == "NOT_LEADER"
    log.shrink("r1")
    log.register("r1")
    assert code(log.write(ask)) == "FENCED_BROKER_EPOCH"
    assert code(log.write(replace(ask, broker_epoch=log.epoch_of("r1")))) == "FENCED_LEADER_EPOCH"


def test_lost_records_are_remembered_once_and_change_nothing_else(log: Log) -> None:
    report = RecordLoss(9, "r2", log.epoch_of("r2"), "id", 0, 4, 10, 13)
    before = log.partition
    applied = log.write(report)
    assert applied.answer == Done() and not applied.visible and log.partition == before
    assert log.last.event == "records_lost"
    assert log.last.evidence == {"node": "r2", "start": "10", "end": "13", "count": "3", "leader_epoch": "4"}
    log.write(replace(report, time_ms=11))
    assert len(log.state.history["id"][0]) == 2, "an identical report tells nothing new"
    log.write(replace(report, end=14))
    assert len(log.state.history["id"][0]) == 3
    assert code(log.write(replace(report, broker_epoch=99))) == "FENCED_BROKER_EPOCH"
    assert code(log.write(replace(report, partition=1))) == "UNKNOWN_TOPIC"
    log.register("r4")
    assert code(log.write(replace(report, node="r4", broker_epoch=log.epoch_of("r4")))) == "NOT_REPLICA"


# --- settings and learners -------------------------------------------------------------------------------


def test_settings_change_and_every_partition_remembers_it(log: Log) -> None:
    applied = log.configure(retention_ms=5)
    assert applied.answer == Done() and [topic.config.retention_ms for topic in applied.topics] == [5]
    assert (log.last.event, log.last.evidence) == ("settings_changed", {"retention_ms": "-1 -> 5"})
    assert log.partition.epoch == 0, "no change of the partition"
    assert not log.configure(retention_ms=5).visible


def test_the_eligible_are_forgotten_when_the_isr_alone_is_enough(log: Log) -> None:
    log.configure(min_insync_replicas=3)
    log.shrink("r1", "r2")
    assert who(log.partition) == ("r1", "r1 r2", "r3")
    log.configure(min_insync_replicas=2)
    assert who(log.partition) == ("r1", "r1 r2", ""), "from now on the HW moves on without r3"
    log.configure(min_insync_replicas=3)
    assert who(log.partition) == ("r1", "r1 r2", "")


def test_a_greater_minimum_is_a_new_epoch_so_that_no_leader_commits_without_it(log: Log) -> None:
    """A proposal under way was made by a leader that may commit alone. If it counted, the replicas that it leaves out
    would be eligible, and lack committed records."""
    alone = log.proposal("r1")
    log.configure(min_insync_replicas=2)
    assert (log.partition.epoch, log.partition.leader_epoch) == (1, 0)
    assert (log.last.event, log.last.epoch, log.last.evidence) == (
        "settings_changed",
        1,
        {"min_insync_replicas": "1 -> 2"},
    )
    assert code(log.write(alone)) == "STALE_EPOCH"
    assert who(log.partition) == ("r1", "r1 r2 r3", "")
    log.configure(min_insync_replicas=1)
    assert log.partition.epoch == 1, "a leader that waits for more than it must commits nothing wrong"


def test_learners_are_set_in_a_new_epoch(log: Log) -> None:
    log.write(SetLearners(0, "id", 0, ("r4", "r5")))
    assert (log.partition.learners, log.partition.epoch, log.partition.leader_epoch) == (("r4", "r5"), 1, 0)
    assert (log.last.event, log.last.evidence) == ("learners_changed", {"learners": "r4 r5"})
    assert not log.write(SetLearners(0, "id", 0, ("r4", "r5"))).visible
    log.shrink("r1", "r2")
    log.register("r1")
    assert log.partition.learners == ("r4", "r5"), "whatever else changes"
    log.write(RemoveTopic(0, "id"))
    assert code(log.write(SetLearners(0, "id", 0, ()))) == "UNKNOWN_TOPIC"
    assert code(log.configure(retention_ms=5)) == "UNKNOWN_TOPIC"
