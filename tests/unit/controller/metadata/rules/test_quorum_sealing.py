"""Commit rule ``quorum``: which servers keep their promises, how the old epoch is sealed, and which one leads the
next. Tests ``metadata/rules/leader_election.py`` and ``active/leader_replacement.py``."""

from __future__ import annotations

import pytest
from support.applied_commands import Log, code, who
from tidelog.types import TopicPartition
from tidelog.wire.messages import Seal, SealPart
from tidelog_controller.active.leader_replacement import LeaderReplacement
from tidelog_controller.metadata.commands import Command, RemoveTopic, SetDraining

SERVERS = ("r1", "r2", "r3")


@pytest.fixture
def log() -> Log:
    """Return three servers, and one partition with commit rule quorum, led by r1."""
    log = Log()
    for node in SERVERS:
        log.register(node, lives=(f"{node}-0",))
    log.topic(*SERVERS, commit_rule="quorum")
    return log


def sealing(log: Log) -> bool:
    p = log.partition
    assert p.sealing == (p.leader is None)
    return p.sealing


# --- promises --------------------------------------------------------------------------------------------


def test_a_new_topic_has_the_promises_of_all_replicas_also_of_those_that_are_away() -> None:
    log = Log()
    log.register(*SERVERS)
    log.fence("r1")
    log.topic(*SERVERS, commit_rule="quorum")
    assert who(log.partition) == ("r2", "r1 r2 r3", "") and not sealing(log)


def test_a_follower_that_ends_or_restarts_keeps_its_promise(log: Log) -> None:
    before = log.partition
    log.fence("r2")
    log.power_up("r3")
    assert log.partition == before


def test_a_follower_that_lost_its_data_has_no_promise_until_the_leader_adds_it(log: Log) -> None:
    log.power_up("r3", wiped=True)
    assert who(log.partition) == ("r1", "r1 r2", "")
    assert log.partition.leader_epoch == 0
    log.fence("r2")  # it is away, and in the ISR all the same
    log.shrink("r1", "r2", "r3")
    assert who(log.partition) == ("r1", "r1 r2 r3", "")


def test_no_leader_takes_anybody_out(log: Log) -> None:
    assert code(log.write(log.proposal("r1", "r2"))) == "UNSUPPORTED"
    assert log.partition.epoch == 0


def test_a_replica_that_joins_the_isr_must_be_fit_but_a_member_need_not(log: Log) -> None:
    log.power_up("r3", wiped=True)
    proposal = log.proposal(*SERVERS)
    log.power_up("r3")
    assert code(log.write(proposal)) == "STALE_EPOCH"
    assert who(log.partition) == ("r1", "r1 r2", "")


# --- sealing ---------------------------------------------------------------------------------------------


def test_a_leader_whose_session_ends_is_not_replaced_before_its_epoch_is_sealed(log: Log) -> None:
    log.fence("r1")
    assert who(log.partition) == ("-", "r1 r2 r3", "") and sealing(log)
    assert (log.partition.leader_epoch, log.last.event) == (1, "sealing")
    log.write(log.seal("r3", "r2"))
    assert who(log.partition) == ("r3", "r1 r2 r3", "") and not sealing(log)
    assert (log.partition.leader_epoch, log.last.cause, log.last.evidence) == (2, "sealed", {"seals": "2"})


def test_a_leader_that_restarts_leads_no_further_epoch_without_a_seal(log: Log) -> None:
    log.power_up("r1")
    assert sealing(log)
    log.write(log.seal("r1", "r2"))
    assert (log.partition.leader, log.partition.leader_epoch) == ("r1", 2)


def test_a_reported_leader_is_sealed_off(log: Log) -> None:
    log.write(log.report())
    assert sealing(log) and log.last.cause == "leader_reported"


def test_a_reported_leader_stays_where_no_majority_could_seal_it_off() -> None:
    """It may be healthy; replacing it would leave only an unclean election."""
    log = Log()
    servers = ("r1", "r2", "r3", "r4", "r5")
    log.register(*servers)
    log.topic(*servers, commit_rule="quorum", unclean_election=True)
    log.fence("r3", "r4", "r5")
    before = log.partition
    log.write(log.report())
    assert log.partition == before and before.leader == "r1"
    log.unfence("r3")
    log.write(log.report())
    assert sealing(log)


def test_a_leader_hands_over_by_a_seal_where_the_others_are_a_majority(log: Log) -> None:
    log.hand_over("r1")
    assert sealing(log) and who(log.partition)[1] == "r1 r2 r3", "its promise holds"
    log.write(log.seal("r2", "r3"))
    log.fence("r3")
    before = log.partition
    log.hand_over("r2")
    assert log.partition == before, "r1 alone is no majority"
    log.hand_over("r2", lost=True)
    assert sealing(log) and who(log.partition)[1] == "r1 r3"


def test_an_election_counts_in_its_sealing_epoch_and_in_the_lives_that_sealed(log: Log) -> None:
    log.fence("r1")
    late = log.seal("r2", "r3", leader_epoch=0)
    log.write(late)
    assert sealing(log)
    old_life = log.seal("r2", "r3")
    log.power_up("r3")
    log.write(old_life)
    assert sealing(log), "r3 has begun another life"
    wiped = log.seal("r2", "r3")
    log.power_up("r3", wiped=True)
    log.write(wiped)
    assert sealing(log) and who(log.partition)[1] == "r1 r2"
    dead = log.seal("r1", "r2")
    log.write(dead)
    assert sealing(log), "r1 is not live"
    log.unfence("r1")
    log.write(dead)
    assert log.partition.leader == "r1"
    log.write(dead)
    assert log.partition.leader_epoch == 2, "once"


def test_while_it_is_sealed_nothing_starts_another_epoch(log: Log) -> None:
    log.fence("r1")
    for node in ("r1", "r2", "r3"):
        log.power_up(node)
    log.fence("r2")
    assert sealing(log) and log.partition.leader_epoch == 1


def test_without_a_majority_of_promises_only_an_unclean_election_helps(log: Log) -> None:
    log.fence("r1")
    log.power_up("r2", wiped=True)
    log.power_up("r3", wiped=True)
    assert sealing(log) and who(log.partition)[1] == "r1"
    log.configure(unclean_election=True)
    assert who(log.partition) == ("r2", "r2", "") and log.last.cause == "unclean_election"
    assert log.partition.unclean_epoch == log.partition.leader_epoch == 2


def test_an_unclean_election_prefers_the_last_leader_then_a_promise(log: Log) -> None:
    log.configure(unclean_election=True)
    log.fence("r2", "r3", "r1")
    assert sealing(log)
    log.unfence("r3")
    assert who(log.partition) == ("r3", "r3", "")


# --- seals as they come ----------------------------------------------------------------------------------


class Active:
    """The failure detection of an active controller over a log of commands. All sessions last."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.leader_replacement = LeaderReplacement(10.0, 1.0, 5.0)
        self.leader_replacement.become_active(log.state, 0.0)

    def seal(self, node: str, last_epoch: int, end: int, *, leader_epoch: int | None = None, now: float = 1.0) -> str:
        """Send the seal of a server, and return the leader that is elected by it; "-" if none is."""
        epoch = self.log.partition.leader_epoch if leader_epoch is None else leader_epoch
        part = SealPart("id", 0, epoch, end, last_epoch)
        seal = Seal(node, self.log.epoch_of(node), (part,))
        decision = self.leader_replacement.on_seal(self.log.state, seal, now, 0)
        if decision is None:
            return "-"
        (chosen,) = decision.parts
        self.decision: Command = decision
        self.evidence = chosen.evidence
        return chosen.leader

    def apply(self, command: Command) -> None:
        """Write a command to the log, and report it to the failure detection."""
        applied = self.log.write(command)
        self.leader_replacement.on_applied(self.log.state, command, [key for key, _ in applied.changes], 1.0)


@pytest.fixture
def active(log: Log) -> Active:
    """Return an active controller while the partition that r1 led is being sealed."""
    log.write(log.report())
    return Active(log)


def test_a_majority_elects_the_log_that_reaches_furthest(active: Active) -> None:
    assert active.seal("r2", 0, 10) == "-"
    assert active.seal("r3", 0, 12) == "r3"
    assert active.evidence == {
        "seals": "2",
        "replicas": "3",
        "seal_r2": "epoch 0, end 10",
        "seal_r3": "epoch 0, end 12",
    }
    active.apply(active.decision)
    assert active.log.partition.leader == "r3"


def test_the_last_epoch_counts_before_the_end(active: Active) -> None:
    active.seal("r2", 1, 10)
    assert active.seal("r3", 0, 12) == "r2"


def test_among_equals_the_replica_order_decides(active: Active) -> None:
    active.seal("r3", 0, 10)
    assert active.seal("r2", 0, 10) == "r2"


def test_but_not_for_a_server_that_is_being_drained(active: Active) -> None:
    active.apply(SetDraining(0, "r2", True))
    active.seal("r2", 0, 10)
    assert active.seal("r3", 0, 10) == "r3"


def test_though_it_leads_where_it_has_more_than_the_others(active: Active) -> None:
    active.apply(SetDraining(0, "r2", True))
    active.seal("r2", 0, 11)
    assert active.seal("r3", 0, 10) == "r2"


def test_one_server_is_no_majority_however_often_it_seals(active: Active) -> None:
    assert [active.seal("r2", 0, 10) for _ in range(3)] == ["-"] * 3


def test_an_election_on_its_way_is_not_held_again(active: Active) -> None:
    active.seal("r2", 0, 10)
    assert active.seal("r3", 0, 10) == "r2"
    assert active.seal("r1", 0, 20) == "-"
    active.apply(active.decision)
    assert active.seal("r1", 0, 20, leader_epoch=1) == "-", "it is led again"


def test_an_election_that_came_to_nothing_is_held_again(active: Active) -> None:
    active.seal("r2", 0, 10)
    assert active.seal("r3", 0, 12) == "r3"
    decision = active.decision
    active.log.power_up("r3")
    active.apply(decision)
    assert active.log.partition.sealing
    assert active.seal("r2", 0, 10) == "-", "the seal of r3 was of its former life"
    assert active.seal("r3", 0, 12) == "r3"


def test_seals_of_other_leader_epochs_do_not_count(active: Active) -> None:
    active.seal("r2", 0, 10)
    assert active.seal("r3", 0, 10, leader_epoch=0) == "-"
    assert active.seal("r3", 0, 10, leader_epoch=2) == "-"
    assert active.seal("r3", 0, 10) == "r2", "and put none out that does"


def test_seals_of_the_dead_and_of_those_without_a_promise_do_not_count(active: Active) -> None:
    active.log.power_up("r3", wiped=True)
    active.leader_replacement.become_active(active.log.state, 0.0)
    assert active.seal("r3", 5, 50) == "-"
    assert active.seal("r2", 0, 10) == "-"
    assert active.seal("r1", 0, 10) == "r1"
    active.leader_replacement.become_active(active.log.state, 0.0)
    active.seal("r1", 0, 10)
    active.leader_replacement.sessions.on_heartbeat(active.log.state, "r2", 1, 9.0, 0)
    assert active.seal("r2", 0, 10, now=11.0) == "-", "the session of r1 is over"


def test_a_new_active_controller_hears_the_seals_again(active: Active) -> None:
    active.seal("r2", 0, 10)
    active.leader_replacement.become_active(active.log.state, 1.0)
    assert active.seal("r3", 0, 10) == "-"
    assert active.seal("r2", 0, 10) == "r2"


def test_a_leader_that_handed_over_does_not_count_while_the_others_are_enough(log: Log) -> None:
    active = Active(log)
    log.hand_over("r1")
    active.leader_replacement.on_applied(log.state, log.commands[-1], [TopicPartition("id", 0)], 1.0)
    assert active.seal("r1", 0, 20) == "-"
    assert active.seal("r2", 0, 10) == "-"
    assert active.seal("r3", 0, 12) == "r3"
    log.fence("r3")
    assert active.seal("r2", 0, 10) == "-"
    active.apply(active.decision)
    assert log.partition.sealing, "r3 is gone"
    assert active.seal("r2", 0, 10) == "r1"


def test_a_reported_leader_does_not_count_either(log: Log) -> None:
    """Its log reaches furthest, but its followers could not fetch from it."""
    active = Active(log)
    active.apply(log.report())
    assert active.seal("r1", 0, 20) == "-"
    assert active.seal("r2", 0, 10) == "-"
    assert active.seal("r3", 0, 12) == "r3"


def test_deleted_topics_are_forgotten(active: Active) -> None:
    active.seal("r2", 0, 10)
    active.apply(RemoveTopic(0, "id"))
    part = SealPart("id", 0, 1, 10, 0)
    assert active.leader_replacement.on_seal(active.log.state, Seal("r3", 3, (part,)), 1.0, 0) is None
