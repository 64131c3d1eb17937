"""A finding that follows from another names it, and is shown below it."""

from __future__ import annotations

from tidelog.cli.explain.findings.consequences import FOLLOWS, with_causes
from tidelog.cli.explain.findings.finding import NOTE, PROBLEM, WARNING, Finding, in_order

DOWN = Finding(PROBLEM, "replica server r3 is down", "Start it.", "replica-server-down", ("r3",))
BEHIND = Finding(WARNING, "orders/0: not in sync: r3", "Wait.", "replica-out-of-sync", ("r3", "orders/0"))
HEADLESS = Finding(PROBLEM, "orders/1: no leader", "Wait.", "partition-without-leader", ("r3", "orders/1"))
MAJORITY = Finding(PROBLEM, "no active controller", "Start them.", "controllers-without-majority")


def causes(*found: Finding) -> dict[str, str]:
    """By what each finding says, its cause."""
    return {one.what: one.because_of for one in with_causes(found)}


def test_what_follows_from_a_cause_about_the_same_thing_names_it() -> None:
    assert causes(BEHIND, DOWN) == {BEHIND.what: "replica-server-down", DOWN.what: ""}
    assert causes(BEHIND) == {BEHIND.what: ""}, "the cause is not there"


def test_a_cause_about_another_server_explains_nothing() -> None:
    other = Finding(PROBLEM, "replica server r2 is down", "Start it.", "replica-server-down", ("r2",))
    assert causes(BEHIND, other)[BEHIND.what] == ""


def test_a_cause_about_another_partition_on_the_same_servers_explains_nothing() -> None:
    elsewhere = Finding(PROBLEM, "orders/7: no leader", "Wait.", "partition-without-leader", ("r3", "orders/7"))
    assert causes(BEHIND, elsewhere)[BEHIND.what] == ""


def test_a_cause_about_the_whole_cluster_explains_every_part_of_it() -> None:
    assert causes(HEADLESS, MAJORITY)[HEADLESS.what] == "controllers-without-majority"


def test_the_likeliest_of_several_causes_is_named() -> None:
    assert causes(HEADLESS, MAJORITY, DOWN)[HEADLESS.what] == "replica-server-down"


def test_consequences_are_shown_below_their_cause_and_everything_is_shown_once() -> None:
    note = Finding(NOTE, "3 controllers", "None.", "controllers-few")
    shown = in_order(with_causes([note, BEHIND, MAJORITY, DOWN, HEADLESS]))
    assert [one.what for one in shown] == [one.what for one in (MAJORITY, DOWN, HEADLESS, BEHIND, note)]


def test_a_consequence_is_shown_below_the_cause_that_is_about_the_same_thing() -> None:
    other = Finding(PROBLEM, "replica server r2 is down", "Start it.", "replica-server-down", ("r2",))
    assert [one.what for one in in_order(with_causes([other, DOWN, BEHIND]))] == [other.what, DOWN.what, BEHIND.what]


def test_no_finding_can_follow_from_itself() -> None:
    def above(code: str, seen: frozenset[str] = frozenset()) -> bool:
        return code in seen or any(above(other, seen | {code}) for other in FOLLOWS.get(code, ()))

    assert not [code for code in FOLLOWS if above(code)]
