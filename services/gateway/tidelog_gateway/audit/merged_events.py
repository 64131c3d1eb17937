"""Merges audit events that clients can cause as often as they like: the first of a key is recorded as it is.

A *key* is a principal, an op, and the group, member, application or address that it is about. The first event of a
key is recorded at once. Those that follow become one event when the interval has ended: the last of them, with their
number. So no client hides a reset of one group behind commits to another.

The keys of an interval are bounded, and shared among principals. If there is no room for another key (``fits``), its
request is refused: nothing is done that would not be recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tidelog_gateway.limits.fair_share import FairShare

INTERVAL_S = 60.0
MOST_KEYS = 4000
"""Most keys of all principals; a principal without competitors gets three eighths."""


class AuditEvent(NamedTuple):
    """An event of the audit, before it becomes a record: its kind, the principal and address that caused it
    (``who``), its time (``time_ms`` of the wall clock), and further ``details``."""

    event: str
    who: Mapping[str, str]
    time_ms: int
    details: Mapping[str, Any]


@dataclass(slots=True)
class _RepeatedEvents:
    """The events of a key that followed its first one in the present interval: their number, and the last of them."""

    count: int = 0
    last: AuditEvent | None = None


class MergedEvents:
    """The keys that had an event in the present interval, each with the events that followed its first one, which are
    merged into one. A key is a tuple that begins with a principal; principals share the number of keys."""

    def __init__(self) -> None:
        self._keys: dict[tuple[str, ...], _RepeatedEvents] = {}
        self._share = FairShare(MOST_KEYS, reserved=True)

    def fits(self, key: tuple[str, ...]) -> bool:
        """Return whether there is room for an event of this key: the key is known, or the share of its principal
        allows one more. Changes nothing."""
        return key in self._keys or self._share.fits((key[0], 0))

    def add(self, key: tuple[str, ...], event: AuditEvent) -> bool:
        """Record an event of a key. Return True if it is the first of the key in this interval, so that the caller
        records it at once; False if it was merged with those that follow the first. It is recorded even if it does
        not fit, since its request was accepted."""
        followed = self._keys.get(key)
        if followed is None:
            self._keys[key] = _RepeatedEvents()
            self._share.hold((key[0], 0))
            return True
        followed.count += 1
        followed.last = event
        return False

    def end_interval(self) -> list[tuple[AuditEvent, int]]:
        """End the interval and begin another. Return, for each key with events after its first one, the last event
        and their number; an empty list if there are none. Keys without such events are forgotten."""
        ended = []
        for key, followed in list(self._keys.items()):
            if followed.last is None:
                del self._keys[key]
                self._share.release((key[0], 0))
            else:
                ended.append((followed.last, followed.count))
                self._keys[key] = _RepeatedEvents()
        return ended
