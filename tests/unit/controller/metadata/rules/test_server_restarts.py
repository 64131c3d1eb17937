"""Servers that come back: what their directories prove, and which stay eligible. Tests ``metadata/rules/servers.py``
and ``metadata/rules/leader_election.py``."""

from __future__ import annotations

from itertools import permutations

import pytest
from support.applied_commands import SERVERS, Log, alone, cluster, code, who
from tidelog.types import TopicConfig
from tidelog_controller.metadata.commands import AddTopic

# --- lives -----------------------------------------------------------------------------------------------


def test_the_life_is_known_from_the_registration_on() -> None:
    log = cluster()
    log.register("r1", lives=("r1-0", "a", "b"))
    assert log.state.servers["r1"].life == "b"


def test_a_wiped_directory_is_no_leader_though_nobody_else_is() -> None:
    log = alone()
    log.power_up("r1", wiped=True)
    assert who(log.partition) == ("-", "", "")
    assert log.partition.last_leader is None, "nothing speaks for an empty directory"
    assert (log.last.event, log.last.cause, log.last.evidence["data"]) == (
        "offline",
        "registered",
        "wiped, or restored from an old copy",
    )


def test_a_directory_restored_from_an_old_copy_is_no_leader() -> None:
    log = alone()
    for life in ("a", "b", "c"):
        log.register("r1", lives=(log.state.servers["r1"].life, life))
    assert who(log.partition) == ("r1", "r1", "")
    log.register("r1", lives=("a", "b2"), clean=True)
    assert who(log.partition) == ("-", "", "")


def test_lives_that_ended_before_they_were_registered_do_not_matter() -> None:
    log = alone()
    log.register("r1", lives=("r1-0", "a", "b", "c"))  # a and b were begun, and told nobody
    assert who(log.partition) == ("r1", "r1", "")
    log.register("r1", lives=("r1-0", "a", "b", "c", "d"))  # c was registered, but the server never heard of it
    assert who(log.partition) == ("r1", "r1", "")
    log.register("r1", lives=("d", "e"))
    assert who(log.partition) == ("r1", "r1", "")


def test_a_late_registration_of_an_earlier_life_changes_nothing() -> None:
    log = alone()
    log.register("r1", lives=("r1-0", "a", "b"))
    before = log.state
    assert code(log.register("r1", lives=("r1-0", "a"))) == "FENCED_BROKER_EPOCH"
    assert (log.state.servers, log.state.topics) == (before.servers, before.topics)
    assert code(log.register("r1", lives=("b",))) == "done", "but the same life may register again"
    assert code(log.register("r1", lives=("r1-0", "a"))) == "FENCED_BROKER_EPOCH"
    assert code(log.register("r1", lives=("b", "c"))) == "done"
    assert code(log.register("r1", lives=("r1-0", "a", "b"))) == "FENCED_BROKER_EPOCH"
    assert who(log.partition) == ("r1", "r1", "")


def test_servers_that_name_no_lives_are_believed() -> None:
    log = Log()
    log.register("r1")
    log.topic("r1")
    log.register("r1")
    assert who(log.partition) == ("r1", "r1", "")


@pytest.mark.parametrize("flush", ["fsync", "interval", "os"])
@pytest.mark.parametrize("clean", [True, False])
def test_the_last_in_sync_stays_if_nothing_it_vouched_for_can_be_gone(flush: str, clean: bool) -> None:
    log = alone(flush=flush)
    before = log.partition
    log.power_up("r1", clean=clean)
    if clean or flush == "fsync":
        assert who(log.partition) == ("r1", "r1", "")
        assert log.partition.leader_epoch == before.leader_epoch + 1, "no leader epoch is resumed"
    else:
        assert who(log.partition) == ("-", "", "")
        assert log.partition.last_leader == "r1"


def test_safety_is_judged_by_each_topics_flush_policy() -> None:
    log = alone(flush="fsync")
    log.write(AddTopic(0, "lazy", "lazy", TopicConfig(flush="os"), (("r1",),)))
    log.power_up("r1")
    lazy = log.state.topics["lazy"].partitions[0]
    assert (who(log.partition), who(lazy)) == (("r1", "r1", ""), ("-", "", ""))


def test_a_replica_that_lost_power_returns_to_the_isr_by_the_leaders_proposal() -> None:
    log = cluster(flush="os")
    log.power_up("r2")
    assert who(log.partition) == ("r1", "r1 r3", "")
    log.shrink("r1", "r2", "r3")
    assert who(log.partition) == ("r1", "r1 r2 r3", "")


# --- eligible leader replicas ----------------------------------------------------------------------------


def test_a_replica_that_leaves_an_isr_below_the_minimum_stays_eligible() -> None:
    log = cluster()
    log.shrink("r1", "r3")
    assert who(log.partition) == ("r1", "r1 r3", ""), "the HW moves on without r2"
    log.shrink("r1")
    assert who(log.partition) == ("r1", "r1", "r3"), "from here on it stands still"
    log.shrink("r1", "r2")
    assert who(log.partition) == ("r1", "r1 r2", ""), "and now it moves on without r3"


def test_b6_the_eligible_lead_where_the_isr_died_uncleanly() -> None:
    log = cluster(flush="os")
    log.fence("r2", "r3")
    assert who(log.partition) == ("r1", "r1", "r3")
    log.power_up("r1")
    assert who(log.partition) == ("-", "", "r3")
    assert log.last.evidence["elr"] == "r3"
    log.unfence("r2")
    assert who(log.partition) == ("-", "", "r3"), "r2 may have missed committed records"
    log.unfence("r3")
    assert who(log.partition) == ("r3", "r3", "")
    assert (log.last.event, log.last.cause) == ("leader_elected", "session_resumed")
    assert log.last.evidence["elected_from"] == "elr"


def test_an_eligible_leader_makes_the_isr_it_replaces_eligible() -> None:
    log = cluster()
    log.fence("r2", "r3")
    log.unfence("r3")
    log.fence("r1")
    assert who(log.partition) == ("r3", "r3", "r1")
    log.fence("r3")
    assert who(log.partition) == ("-", "r3", "r1")
    log.unfence("r1")
    assert who(log.partition) == ("r1", "r1", "r3")


def test_an_eligible_server_that_restarts_safely_stays_eligible() -> None:
    log = cluster()
    log.fence("r2", "r3")
    log.power_up("r3")
    assert who(log.partition) == ("r1", "r1", "r3")
    log.power_up("r3", wiped=True)
    assert who(log.partition) == ("r1", "r1", "")
    assert (log.last.event, log.last.evidence["elr"]) == ("elr_changed", "")


def test_with_commit_rule_leader_nobody_is_eligible() -> None:
    log = cluster(commit_rule="leader")
    log.shrink("r1")
    assert who(log.partition) == ("r1", "r1", "")


@pytest.mark.parametrize("sane", SERVERS)
@pytest.mark.parametrize("order", list(permutations(SERVERS)))
@pytest.mark.parametrize("fenced", [True, False])
def test_b7_after_a_power_cut_the_one_that_kept_its_data_leads(sane: str, order: list[str], fenced: bool) -> None:
    log = cluster(flush="os")
    if fenced:
        log.fence(*SERVERS)
    known = (*log.partition.isr, *log.partition.elr)
    others_before = sum(node != sane for node in order[: order.index(sane)])
    for node in order:
        log.power_up(node, clean=node == sane)
    if (fenced and sane in known) or (not fenced and others_before >= 1):
        assert log.partition.leader == sane and log.partition.isr == (sane,)
        assert log.partition.unclean_epoch == -1
    else:
        assert who(log.partition) == ("-", "", ""), "others could commit without it: it may miss something"


def test_b7_the_sane_one_leads_even_when_it_registers_last() -> None:
    for sane in SERVERS:
        log = cluster(flush="os")
        for node in (*(n for n in SERVERS if n != sane), sane):
            log.power_up(node, clean=node == sane)
        assert who(log.partition) == (sane, sane, "")
