"""Failure detector: whether the other side of a connection is alive, from how fast it has answered pings.

An accrual failure detector (Hayashibara et al., "The phi accrual failure detector", SRDS 2004): the patience follows
what was measured on this very connection. A peer that was silent for a third of the least patience is pinged, and
each answer is a sample. The patience is that third and ``FACTOR`` times the slowest answer of the last
``REMEMBERED_S``, between ``least_s`` and ``most_s``. So a peer that has always answered at once is given up soon, and
one on a machine whose cores are all busy gets as long as it was seen to need. The slowest answer stands where the
paper has a normal distribution: pauses of a process are rare and long, and hardly move a mean.

A connection that is younger than ``LEARNING_S`` has too few samples: its patience is ``most_s``.

An observer that is late itself does not blame the peer: the time by which it was later than planned does not count as
silence. If it is late when the patience ends, it checks once more, ``LOOK_S`` later: the answer may be waiting in its
own socket.

Pings are sent at multiples of the time between two pings, up to that time early. So all links between servers ping
together: a process is woken once for all of them, and a call of ``judge`` that finds an answer also sends the next
ping. The patience ends when it would have ended after a ping that is not early. Links that ping once in
``APART_FROM_S`` or more rarely, as those of clients do, each count from their own beginning: there may be ten
thousand of them, and pings to all at once would hold up the process.

Times are seconds of the caller's monotonic clock.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Literal, NamedTuple

Verdict = Literal["", "ping", "dead"]

FACTOR = 4.0
"""Part of the patience, in multiples of the time that the peer's slowest answer took."""
REMEMBERED_S = 300.0
"""Seconds for which an answer counts."""
LATE_S = 0.02
"""Seconds: an observer that is later than this checks once more before it gives the peer up."""
LOOK_S = 0.05
"""Seconds until that second check."""
TICK_S = 1e-4
"""Seconds: if less than this is left of the patience, the patience has ended."""
LEAST_SILENCE = 0.4
"""Least silence before a ping, as a part of the time between two pings. Less than a half, so that a link which pings
between two multiples finds the way back to them."""
APART_FROM_S = 1.0
"""Seconds between two pings from which on the links of a process ping at different times."""
ROUNDING = 1e-6
"""Part of the time between two pings by which a time may be earlier than a multiple and still count as that."""
LEARNING_S = 5.0
"""Seconds for which a new connection has too few samples, so that its patience is the longest."""


class Patience(NamedTuple):
    """The bounds of a failure detector's patience, in seconds: a peer is given up after at least ``least_s`` and at
    most ``most_s`` of silence. If they are equal, the patience is fixed."""

    least_s: float
    most_s: float


class FailureDetector:
    """A failure detector for one connection: it decides when to ping the peer and when a silent peer counts as dead,
    from how fast the peer has answered pings. It does no I/O: its owner sends the pings and closes the link. All
    times are seconds of the owner's clock."""

    def __init__(self, bounds: Patience, now: float) -> None:
        self._least_s = min(bounds)
        self._most_s = bounds.most_s
        self.ping_every_s = self._least_s / 3
        """Seconds of silence after which the peer is pinged."""
        self._counted_from = 0.0 if self.ping_every_s < APART_FROM_S else now
        """The time of which all pings are a multiple of ``ping_every_s`` away."""
        self._learnt_at = now + LEARNING_S
        self._pinged_at: float | None = None
        """When the ping without an answer was sent, moved on by the observer's own lateness."""
        self._quiet_at = now
        """When the peer had been silent for ``ping_every_s``, or was pinged later; moved on likewise."""
        self._look_at: float | None = None
        """When to check once more, after the patience has ended."""
        self._slowest: deque[tuple[float, float]] = deque()
        """Answers as (when it came, seconds that it took), the slowest first. An answer that is older and faster than
        another is left out, since it would never decide."""

    def judge(self, now: float, late_s: float, heard_at: float, answered_at: float | None) -> Verdict:
        """Return what to do now: "ping" the peer, if it was silent for ``ping_every_s``; close the link ("dead"), if
        it has not answered within the patience; or nothing (""). An answer is remembered as a sample. ``late_s``: by
        how many seconds this call is later than planned, which does not count as silence. ``heard_at``: when bytes
        were last received. ``answered_at``: when bytes were first received after the last ping, which counts as its
        answer; None if none were."""
        if self._pinged_at is not None and answered_at is not None:
            self._observe(answered_at, max(0.0, answered_at - self._pinged_at - late_s))
            self._pinged_at = None
        if self._pinged_at is not None:
            self._pinged_at += late_s
            self._quiet_at += late_s
            if self._left_s(now) > TICK_S:
                return ""
            if late_s > LATE_S and self._look_at is None:
                self._look_at = now + LOOK_S
                return ""
            return "dead"
        if now < self._ping_at(heard_at):
            return ""
        self._pinged_at, self._quiet_at, self._look_at = now, max(now, heard_at + self.ping_every_s), None
        return "ping"

    def patience_s(self, now: float) -> float:
        """Return the seconds for which the peer may be silent before it counts as dead: more, within the bounds, the
        slower its slowest answer of the last ``REMEMBERED_S`` was, and the upper bound for a new connection. Older
        answers are forgotten."""
        while self._slowest and self._slowest[0][0] < now - REMEMBERED_S:
            self._slowest.popleft()
        if now < self._learnt_at:
            return self._most_s
        return max(self._least_s, min(self._most_s, self.ping_every_s + FACTOR * self.slowest_s))

    @property
    def slowest_s(self) -> float:
        """Return the seconds that the slowest remembered answer to a ping took; 0 if there is none."""
        return self._slowest[0][1] if self._slowest else 0.0

    def due_at(self, now: float, heard_at: float) -> float:
        """Return when to call ``judge`` next, in seconds of the caller's clock."""
        if self._look_at is not None and self._look_at > now:
            return self._look_at
        if self._pinged_at is not None:
            return min(now + self._left_s(now), self._next_multiple(now))
        ping_at = self._ping_at(heard_at)
        return ping_at if ping_at > now else self._next_multiple(now)

    def _ping_at(self, heard_at: float) -> float:
        """Return when to ping a peer that was last heard at ``heard_at``: at the last multiple of ``ping_every_s``
        before it has been silent for that long, or half of that time later if the silence would be too short."""
        at = self._next_multiple(heard_at)
        return at if at - heard_at >= LEAST_SILENCE * self.ping_every_s else at + self.ping_every_s / 2

    def _next_multiple(self, now: float) -> float:
        """Return the first time after ``now`` that is a multiple of ``ping_every_s`` away from ``_counted_from``."""
        passed = math.floor((now - self._counted_from) / self.ping_every_s + ROUNDING)
        return self._counted_from + (passed + 1) * self.ping_every_s

    def _left_s(self, now: float) -> float:
        """Return the seconds of patience that are left at ``now`` for the ping without an answer; negative if none
        are."""
        return self._quiet_at + self.patience_s(now) - self.ping_every_s - now

    def _observe(self, at: float, took_s: float) -> None:
        """Record that an answer to a ping came at time ``at`` and took ``took_s`` seconds."""
        while self._slowest and self._slowest[-1][1] <= took_s:
            self._slowest.pop()
        self._slowest.append((at, took_s))
