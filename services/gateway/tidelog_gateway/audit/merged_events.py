"""Events that clients can cause as often as they like, for the audit: the first of a key at once, the others merged.

A *key* is a principal, an op, and the group, member, application or address that it is about. The first event of a
key is told at once. Those that follow become one when the interval has ended: the last of them, with their number.
So nobody hides a reset of one group behind commits to another.

The keys of an interval are bounded, and shared among principals. Where there is no room for another key (``fits``)
the request behind it is refused: nothing is done that would not be told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tidelog_gateway.limits.fair_share import FairShare

INTERVAL_S = 60.0
MOST_KEYS = 4000
"""Of all principals; one that is alone gets three eighths."""


class AuditEvent(NamedTuple):
    """``who`` caused it, and what is ``told`` of it besides."""

    event: str
    who: Mapping[str, str]
    time_ms: int
    details: Mapping[str, Any]


@dataclass(slots=True)
class _RepeatedEvents:
    """What followed the first event of a key."""

    count: int = 0
    last: AuditEvent | None = None


class MergedEvents:
    """Keys begin with the principal."""

    def __init__(self) -> None:
        self._keys: dict[tuple[str, ...], _RepeatedEvents] = {}
        self._share = FairShare(MOST_KEYS, reserved=True)

    def fits(self, key: tuple[str, ...]) -> bool:
        """Whether there is room for one more event of this key."""
        return key in self._keys or self._share.fits((key[0], 0))

    def add(self, key: tuple[str, ...], event: AuditEvent) -> bool:
        """Whether it is the first of its key, to be told now. It is taken whether or not it ``fits``: requests that
        were let in at the same time are all told."""
        followed = self._keys.get(key)
        if followed is None:
            self._keys[key] = _RepeatedEvents()
            self._share.hold((key[0], 0))
            return True
        followed.count += 1
        followed.last = event
        return False

    def end_interval(self) -> list[tuple[AuditEvent, int]]:
        """The last event of each key that was not told, and how many it stands for. Other keys are forgotten."""
        ended = []
        for key, followed in list(self._keys.items()):
            if followed.last is None:
                del self._keys[key]
                self._share.release((key[0], 0))
            else:
                ended.append((followed.last, followed.count))
                self._keys[key] = _RepeatedEvents()
        return ended
