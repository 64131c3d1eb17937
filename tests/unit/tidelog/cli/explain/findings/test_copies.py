"""Damage names the partitions that it stops, and what to do where no other copy can lead."""

from __future__ import annotations

from dataclasses import replace

from tidelog.cli.explain.findings.finding import PROBLEM
from tidelog.wire.messages import DifferingCopies, UnreadablePlace

from unit.tidelog.cli.explain.findings.cluster_views import WHOLE, causes, cluster, entry, finding

DAMAGED = {"r2": {"tidelog_replica_damaged_partitions": 1.0}}
ALONE = replace(WHOLE, replicas=("r2",), isr=("r2",), leader="r2")
HISTORY = {("orders", 0): (entry(20, "offline", "data_lost", "", node="r2", reason="damaged log: CRC of 17"),)}


def test_the_only_copy_that_is_damaged_is_the_cause_of_a_partition_without_a_leader() -> None:
    view = cluster(replace(ALONE, leader="", isr=()), metrics=DAMAGED, histories=HISTORY)
    (one,) = causes(view)
    assert (one.cause, one.level, one.about) == ("log-damaged", PROBLEM, ("r2", "orders/0"))
    assert "r2 has 1 damaged logs, yet to be repaired: orders/0" in one.what
    assert "damaged log: CRC of 17" in one.evidence and "unclean_election=true" in one.next_step
    assert finding(view, "partition-without-leader").because_of == "log-damaged"


def test_a_copy_that_others_replace_needs_no_decision() -> None:
    view = cluster(replace(WHOLE, isr=("r1", "r3")), metrics=DAMAGED, histories=HISTORY)
    (one,) = causes(view)
    assert one.cause == "log-damaged" and "unclean_election" not in one.next_step
    assert finding(view, "replica-out-of-sync").because_of == "log-damaged"


def test_a_partition_whose_server_is_down_is_no_damage() -> None:
    view = cluster(replace(ALONE, leader=""), down="r2")
    assert [one.cause for one in causes(view)] == ["replica-server-down"]
    assert finding(view, "partition-without-leader").because_of == "replica-server-down"


def test_damage_whose_partition_is_not_known_is_shown_by_the_metric() -> None:
    one = finding(cluster(metrics=DAMAGED, histories=HISTORY), "log-damaged")
    assert one.about == ("r2",), "r2 is in sync again, so it is another partition"
    assert "tidelog_replica_damaged_partitions of r2 is 1" in one.evidence


def test_copies_that_differ_and_batches_that_cannot_be_decoded_have_evidence_of_their_own() -> None:
    two = ("r1", "r2")
    differ = finding(cluster(differing={DifferingCopies("id", 0, (), two, 7, 9)}), "copies-differ")
    assert "r1, r2 compared the hashes" in differ.evidence
    counted = {node: {"tidelog_replica_unreadable_batches": 1.0} for node in two}
    poison = finding(cluster(unreadable={UnreadablePlace("id", 0, 7, 9, 3)}, metrics=counted), "batch-unreadable")
    assert poison.evidence == "found while scrubbing: 1 on r1, 1 on r2"
    assert not causes(cluster())
