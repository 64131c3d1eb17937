"""Timers of a replica server's parts: ``sansio/timers.py``."""

from __future__ import annotations

from tidelog.sansio.timers import Timers


def test_an_earlier_owner_cannot_reset_a_due_owner_to_a_past_time() -> None:
    timers: Timers[str] = Timers()
    timers.set("first", 1.0)
    timers.set("second", 2.0)
    asked = []
    for key in timers.pop_due(3.0):
        asked.append(key)
        if key == "first":
            timers.set("second", 2.0)  # which it still thinks to be due
        else:
            timers.set("second", 4.0)
    assert asked == ["first", "second"] and timers.deadline() == 4.0


def test_an_owner_that_is_due_at_once_again_waits_for_the_next_call() -> None:
    timers: Timers[str] = Timers()
    timers.set("hasty", 1.0)
    asked = []
    for key in timers.pop_due(1.0):
        asked.append(key)
        timers.set("hasty", 1.0)
    assert asked == ["hasty"] and timers.deadline() == 1.0
