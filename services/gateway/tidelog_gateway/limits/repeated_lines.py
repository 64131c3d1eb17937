"""Bounds log lines that strangers can cause as often as they like: one line per stranger and interval, with a count.

The first line of a stranger is written at once. Further lines within ``INTERVAL_S`` are counted. The count is written
with the first line after the interval, or when the interval has ended. All strangers beyond ``MOST`` count as one.
"""

from __future__ import annotations

from dataclasses import dataclass

INTERVAL_S = 60.0
MOST = 1000
"""Most addresses and principals with a count of their own within an interval."""
OTHERS = "others"


@dataclass(slots=True)
class _Since:
    at: float
    suppressed: int = 0


class RepeatedLines:
    """A bound on repeated log lines: one line for each address or principal in ``INTERVAL_S`` seconds, with a count
    of those that were left out. ``now`` is in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._known: dict[str, _Since] = {}

    def on_line(self, who: str, now: float) -> int | None:
        """Decide whether a log line that the address or principal ``who`` has caused is written. If it is, begin an
        interval and return the number of lines that were left out in the one before; 0 if none was. If a line of
        ``who`` was written within ``INTERVAL_S``, count this line as left out and return None."""
        if who not in self._known and len(self._known) >= MOST:
            who = OTHERS
        since = self._known.get(who)
        if since is not None and now < since.at + INTERVAL_S:
            since.suppressed += 1
            return None
        self._known[who] = _Since(now)
        return 0 if since is None else since.suppressed

    def expired(self, now: float) -> list[tuple[str, int]]:
        """Forget the intervals that have ended. Return a pair for each of them in which lines were left out: the
        address or principal (``OTHERS`` for all beyond ``MOST``), and the number of those lines. An empty list if
        there are none."""
        expired = {who: since for who, since in self._known.items() if now >= since.at + INTERVAL_S}
        for who in expired:
            del self._known[who]
        return [(who, since.suppressed) for who, since in expired.items() if since.suppressed]
