"""What is said about clocks that are off."""

from __future__ import annotations

from dataclasses import replace

from tidelog.cli.explain.findings.diagnosis import examine
from tidelog.cli.explain.findings.finding import NOTE, WARNING

from unit.tidelog.cli.explain.findings.snapshots import healthy


def test_the_clock_of_one_process_that_is_minutes_off_is_named() -> None:
    clocks = {"r1": 0.1, "r2": 431.0, "r3": 0.0, "c1": -0.2}
    (found,) = examine(replace(healthy(), clocks=clocks))
    assert (found.level, found.cause, found.about) == (WARNING, "clock-off", ("r2",))
    assert "clock of r2 is 7.2 minutes ahead" in found.what and "4 processes" in found.evidence


def test_a_clock_of_this_machine_that_is_off_is_another_cause() -> None:
    clocks = dict.fromkeys(("r1", "r2", "r3", "c1"), 431.0)
    (found,) = examine(replace(healthy(), clocks=clocks))
    assert (found.level, found.cause, found.about) == (NOTE, "client-clock-off", ())
    assert "clock of this machine is 7.2 minutes behind" in found.what and "agree" in found.evidence


def test_clocks_that_agree_are_not_mentioned() -> None:
    assert examine(replace(healthy(), clocks={"r1": 0.1, "r2": -1.1, "r3": 1.0})) == []
