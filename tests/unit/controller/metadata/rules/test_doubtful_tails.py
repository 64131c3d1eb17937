"""What the controller does with copies that have doubtful tails."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.applied_commands import Log, code, who
from tidelog.errors import TidelogError
from tidelog.feature_levels import DOUBTFUL_TAILS
from tidelog.types import PartitionState
from tidelog.wire.messages import ReportDoubt
from tidelog.wire.schema import STORED
from tidelog_controller.metadata.application import Applied
from tidelog_controller.metadata.commands import NoteDoubt
from tidelog_controller.metadata.rules.doubtful_tails import plan_doubt


def report(log: Log, node: str, step: str, start: int = 3, end: int = 9, age: int = 0) -> Applied:
    p = log.partition
    return log.write(NoteDoubt(0, node, log.epoch_of(node), "id", 0, p.leader_epoch, p.epoch - age, step, start, end))


def offline(*members: str, **config: object) -> Log:
    """Return a partition whose servers are all fenced; ISR and ELR are the named members."""
    log = Log()
    log.register("r1", "r2", "r3")
    log.topic("r1", "r2", "r3", **{"min_insync_replicas": 2, **config})
    log.fence(*(node for node in ("r1", "r2", "r3") if node not in members), *members)
    return log


def test_a_doubtful_member_is_passed_over_for_another_that_is_back():
    log = offline("r2", "r3")
    assert who(log.partition) == ("-", "r3", "r2")
    log.register("r3", "r2")
    assert log.partition.leader == "r3"
    report(log, "r3", "doubtful")
    assert who(log.partition) == ("r2", "r2", "r3") and log.partition.doubtful == ("r3",)
    assert (log.last.event, log.last.cause) == ("leader_elected", "tail_doubtful")
    assert log.last.evidence["doubtful"] == "r3"


def test_the_partition_waits_while_the_only_member_that_is_back_is_doubtful():
    log = offline("r2", "r3")
    log.register("r3")
    report(log, "r3", "doubtful")
    assert who(log.partition) == ("-", "r3", "r2") and log.partition.doubtful == ("r3",)
    log.register("r1")
    assert log.partition.leader is None, "it is no member"
    log.register("r2")
    assert log.partition.leader == "r2"


def test_a_settled_member_leads_again_and_what_is_possibly_lost_is_in_the_history():
    log = offline("r2", "r3")
    log.register("r3", "r2")
    report(log, "r3", "doubtful")
    report(log, "r2", "doubtful")
    assert log.partition.leader is None and log.partition.doubtful == ("r2", "r3")
    report(log, "r2", "settled", 5, 9)
    assert log.partition.leader == "r2" and "r2" not in log.partition.doubtful
    lost = [entry for entry in log.state.history["id"][0] if entry.event == "records_possibly_lost"]
    assert [(entry.evidence["node"], entry.evidence["start"], entry.evidence["end"]) for entry in lost] == [
        ("r2", "5", "9")
    ]


def test_a_member_that_gives_up_its_tail_is_in_neither_isr_nor_elr():
    log = offline("r2", "r3")
    log.register("r3", "r2")
    report(log, "r3", "doubtful")
    report(log, "r3", "given_up")
    assert who(log.partition) == ("r2", "r2", "") and not log.partition.doubtful
    epoch = log.partition.epoch
    report(log, "r1", "given_up")
    assert log.partition.epoch == epoch + 1, "also of one that was no member"


def test_with_commit_rule_quorum_a_doubtful_promise_makes_no_majority():
    log = offline("r1", "r2", "r3", commit_rule="quorum")
    log.register("r1", "r2")
    report(log, "r1", "doubtful")
    assert log.partition.sealing and "r1" in log.partition.isr
    log.write(log.seal("r2", "r1"))
    assert log.partition.leader is None
    log.register("r3")
    log.write(log.seal("r2", "r3"))
    assert log.partition.leader == "r2"


def test_a_new_life_is_not_doubtful_until_it_says_so():
    log = offline("r2", "r3")
    log.register("r3")
    report(log, "r3", "doubtful")
    log.power_up("r3")
    assert not log.partition.doubtful


@pytest.mark.parametrize("others", ["live", "away"])
def test_an_unclean_election_waits_only_while_all_members_are_there_to_settle(others):
    log = offline("r2", "r3", unclean_election=True)
    if others == "live":
        log = Log()
        log.register("r1", "r2", "r3")
        log.topic("r1", "r2", "r3", min_insync_replicas=1, unclean_election=True)
        log.fence("r1", "r2")
        report(log, "r3", "doubtful")
        assert log.partition.leader is None and log.partition.doubtful == ("r3",)
    else:
        log.register("r3")
        report(log, "r3", "doubtful")
        assert log.partition.leader == "r3" and log.partition.unclean_epoch == log.partition.leader_epoch


def test_reports_of_other_epochs_and_lives_change_nothing():
    log = offline("r2", "r3")
    log.register("r3")
    before = log.partition
    assert code(report(log, "r3", "doubtful", age=1)) == "STALE_EPOCH"
    p = log.partition
    late = NoteDoubt(0, "r3", log.epoch_of("r3") - 1, "id", 0, p.leader_epoch, p.epoch, "doubtful", 3, 9)
    assert code(log.write(late)) == "FENCED_BROKER_EPOCH"
    assert log.partition == before


def test_doubt_needs_its_feature_level_and_the_steps_that_there_are():
    log = offline("r2", "r3")
    message = ReportDoubt("r3", log.epoch_of("r3"), "id", 0, 1, 1, "doubtful", 3, 9)
    for state, wrong, expected in (
        (replace(log.state, level=DOUBTFUL_TAILS - 1), message, "UNSUPPORTED_LEVEL"),
        (replace(log.state, level=DOUBTFUL_TAILS), replace(message, step="other"), "MALFORMED"),
        (replace(log.state, level=DOUBTFUL_TAILS), replace(message, end=2), "MALFORMED"),
    ):
        refused = plan_doubt(state, wrong, 0)
        assert isinstance(refused, TidelogError) and refused.code == expected


def test_a_snapshot_without_a_doubtful_tail_has_the_format_of_earlier_releases():
    state = PartitionState(("r1",), ("r1",), "r1", 0, 0)
    assert "doubtful" not in STORED.to_map(state)
    doubted = replace(state, leader=None, doubtful=("r1",))
    assert STORED.from_map(PartitionState, STORED.to_map(doubted)) == doubted
