"""What is said where processes of several releases run, or an upgrade is not ended."""

from __future__ import annotations

from dataclasses import replace

from tidelog.cli.explain.findings.diagnosis import examine
from tidelog.cli.explain.findings.snapshot import ClusterSnapshot
from tidelog.wire.messages import FeaturesAnswer, ProcessLevels

from unit.tidelog.cli.explain.findings.snapshots import healthy


def view(level: int, **newest: int) -> ClusterSnapshot:
    """Processes that understand levels up to these, of releases 1.0 (level 1) and 1.1."""
    processes = tuple(ProcessLevels("replica", node, 1, most) for node, most in newest.items())
    versions = {node: f"1.{most - 1}" for node, most in newest.items()}
    return replace(healthy(), features=FeaturesAnswer(level, processes), versions=versions)


def test_a_process_of_an_earlier_release_is_named_and_what_it_does_not_understand_follows_from_that() -> None:
    cause, rest = examine(view(1, r1=2, r2=1, r3=2))
    assert (cause.cause, cause.about, cause.because_of) == ("versions-mixed", ("r2",), "")
    assert "r2 runs 1.0" in cause.what and "r1 1.1" in cause.evidence and "r2" in cause.next_step
    assert (rest.cause, rest.about, rest.because_of) == ("feature-level-behind", ("r2",), "versions-mixed")


def test_an_upgrade_that_was_not_ended_is_another_cause() -> None:
    (found,) = examine(view(1, r1=2, r2=2, r3=2))
    assert (found.cause, found.because_of) == ("feature-level-not-raised", "")
    assert "features raise" in found.next_step


def test_one_release_at_its_level_is_not_mentioned() -> None:
    assert examine(view(2, r1=2, r2=2, r3=2)) == []
