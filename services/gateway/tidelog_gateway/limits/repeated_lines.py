"""Lines of the log that strangers can cause as often as they like: one for each of them and interval, with a count.

The first line of a stranger is written at once. What follows within ``INTERVAL_S`` is counted, and told with the
first line after it, or when the interval has ended. All strangers beyond ``MOST`` are told of as one.
"""

from __future__ import annotations

from dataclasses import dataclass

INTERVAL_S = 60.0
MOST = 1000
"""Strangers that are told apart within an interval."""
OTHERS = "others"


@dataclass(slots=True)
class _Since:
    at: float
    suppressed: int = 0


class RepeatedLines:
    """``now`` is a monotonic clock."""

    def __init__(self) -> None:
        self._known: dict[str, _Since] = {}

    def on_line(self, who: str, now: float) -> int | None:
        """``who`` causes a line. How many before it were not written; None: this one is not either."""
        if who not in self._known and len(self._known) >= MOST:
            who = OTHERS
        since = self._known.get(who)
        if since is not None and now < since.at + INTERVAL_S:
            since.suppressed += 1
            return None
        self._known[who] = _Since(now)
        return 0 if since is None else since.suppressed

    def expired(self, now: float) -> list[tuple[str, int]]:
        """Whose intervals have ended in which lines were not written, and how many."""
        expired = {who: since for who, since in self._known.items() if now >= since.at + INTERVAL_S}
        for who in expired:
            del self._known[who]
        return [(who, since.suppressed) for who, since in expired.items() if since.suppressed]
