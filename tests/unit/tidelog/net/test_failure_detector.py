"""When a silent peer counts as dead, by what was measured before."""

from __future__ import annotations

from itertools import pairwise
from math import inf

import pytest
from tidelog.net.failure_detector import LEARNING_S, REMEMBERED_S, FailureDetector, Patience

BOUNDS = Patience(0.6, 1.5)
PING_EVERY_S = 0.2


class Observer:
    """Drives a detector as a link's timer does. ``answers`` says after how long each ping is answered."""

    def __init__(self, bounds: Patience = BOUNDS, now: float = 100.0) -> None:
        self.now = self.heard_at = now
        self.answered_at: float | None = None
        self.detector = FailureDetector(bounds, self.now)
        self.calls = self.pings = 0
        self.pinged_at: list[float] = []
        self._answers_at = inf

    def run(self, seconds: float, answer_s: float = 0.001, late_s: float = 0.0) -> None:
        """So long every ping is answered after ``answer_s``, and every call is late by ``late_s``."""
        until = self.now + seconds
        while self.now < until:
            self._wait(late_s)
            if self._answers_at <= self.now:
                self.heard_at = self.answered_at = self._answers_at
                self._answers_at = inf
            verdict = self._judge(late_s)
            assert verdict != "dead", self.now
            if verdict == "ping":
                self._answers_at = self.now + answer_s

    def _wait(self, late_s: float) -> None:
        self.now = self.detector.due_at(self.now, self.heard_at) + late_s

    def _judge(self, late_s: float) -> str:
        verdict = self.detector.judge(self.now, late_s, self.heard_at, self.answered_at)
        self.calls += 1
        if verdict == "ping":
            self.pings += 1
            self.pinged_at.append(self.now)
            self.answered_at = None
        return verdict

    def silence_s(self, late_s: float = 0.0) -> float:
        """Nothing comes any more: how long it is silent until it counts as dead."""
        for _ in range(1000):
            self._wait(late_s)
            if self._judge(late_s) == "dead":
                return self.now - self.heard_at
        raise AssertionError("it never counts as dead")


def warm(answer_s: float, bounds: Patience = BOUNDS) -> Observer:
    observer = Observer(bounds)
    observer.run(LEARNING_S + 1, answer_s)
    return observer


def test_a_peer_that_has_always_answered_at_once_gets_the_least_patience() -> None:
    assert warm(0.001).silence_s() == pytest.approx(0.6)


def test_a_peer_that_was_slower_gets_more() -> None:
    assert warm(0.2).silence_s() == pytest.approx(PING_EVERY_S + 4 * 0.2)


def test_nobody_gets_more_than_the_most() -> None:
    assert warm(1.0).silence_s() == pytest.approx(1.5)


def test_a_new_connection_has_the_most_patience() -> None:
    observer = Observer()
    observer.run(LEARNING_S / 2)
    assert observer.silence_s() == pytest.approx(1.5)


def test_one_slow_answer_is_remembered_and_then_forgotten() -> None:
    observer = warm(0.001)
    observer.run(0.1, 0.2)
    observer.run(REMEMBERED_S / 2)
    assert observer.detector.patience_s(observer.now) == pytest.approx(PING_EVERY_S + 4 * 0.2)
    observer.run(REMEMBERED_S)
    assert observer.silence_s() == pytest.approx(0.6)


def test_the_slowest_of_several_decides_and_then_the_next() -> None:
    observer = warm(0.001)
    for answer_s in (0.25, 0.1, 0.15):
        observer.run(0.1, answer_s)
        observer.run(REMEMBERED_S / 4)
    assert observer.detector.slowest_s == pytest.approx(0.25)
    observer.run(REMEMBERED_S / 2 - 20)
    observer.detector.patience_s(observer.now)
    assert observer.detector.slowest_s == pytest.approx(0.15)


def test_an_observer_that_is_late_counts_none_of_it() -> None:
    """Its process was stopped, or waited for a core: the answer may be in its socket."""
    observer = warm(0.001)
    observer.run(2.0, late_s=3.0)
    assert observer.detector.slowest_s == pytest.approx(0.001)
    observer.heard_at = observer.now
    assert observer.silence_s(late_s=0.1) > 0.7


def test_a_peer_that_sends_by_itself_is_not_pinged() -> None:
    observer = Observer()
    for _ in range(1000):
        observer.now += 0.01
        observer.heard_at = observer.now
        assert observer.detector.judge(observer.now, 0.0, observer.heard_at, observer.answered_at) == ""
    assert observer.silence_s() == pytest.approx(0.6)
    assert observer.pings == 1


def test_a_peer_that_answers_at_once_costs_one_call_for_each_ping() -> None:
    """The timer of a link wakes its process."""
    observer = warm(0.001)
    assert observer.calls == observer.pings > 10


@pytest.mark.parametrize("phase", [0.001, 0.05, 0.1, 0.13, 0.199])
@pytest.mark.parametrize("answer_s", [0.001, 0.015])
def test_all_links_of_a_process_ping_at_the_same_times(phase: float, answer_s: float) -> None:
    """So their timers wake the process together. No peer is pinged later than a third of the least patience after it
    was heard."""
    observer = Observer(now=100.0 + phase)
    observer.run(5 * PING_EVERY_S, answer_s)
    times = [(at - 100.0) / PING_EVERY_S for at in observer.pinged_at]
    assert times[2:] == pytest.approx([round(at) for at in times[2:]])
    silences = [at - before - answer_s for before, at in pairwise([100.0 + phase - answer_s, *observer.pinged_at])]
    assert max(silences) <= PING_EVERY_S + 1e-6 and min(silences) >= 0.4 * PING_EVERY_S - 1e-6


def test_the_links_of_clients_do_not_ping_at_the_same_time() -> None:
    """A gateway may have ten thousand of them."""
    times = set()
    for phase in range(5):
        observer = Observer(Patience(15.0, 15.0), 100.0 + phase)
        observer.run(20.0)
        times |= {round(at - 100.0) % 5 for at in observer.pinged_at}
        assert len(observer.pinged_at) == 4
    assert times == {0, 1, 2, 3, 4}


def test_the_patience_is_fixed_where_its_bounds_are_equal() -> None:
    assert warm(0.3, Patience(1.5, 1.5)).silence_s() == pytest.approx(1.5)
