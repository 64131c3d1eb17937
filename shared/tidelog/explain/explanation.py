"""The answer to a question about a cluster, and the words that all answers use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer to a question. ``sentences`` are for people, the cause first or in the order of events. They may
    contain names that clients have chosen (topics, groups, programs), but neither keys nor values of records."""

    question: str
    """The kind of question: ``record``, ``group``, ``duplicate``, ``gap``, ``refusal`` or ``slow``."""
    subject: str
    """What the question is about, such as ``orders/0@1234``."""
    sentences: tuple[str, ...]
    facts: dict[str, Any] = field(default_factory=dict)
    """The evidence by name, as values that JSON has. Keys of records stand here only, as data."""
    unknown: tuple[str, ...] = ()
    """What the cluster does not know, or did not say, a sentence each."""
    next_steps: tuple[str, ...] = ()
    """What to do, a sentence each."""

    def as_document(self) -> dict[str, Any]:
        """Return the answer as a document of values that JSON has."""
        return {
            "question": self.question,
            "subject": self.subject,
            "sentences": list(self.sentences),
            "unknown": list(self.unknown),
            "next_steps": list(self.next_steps),
            "facts": self.facts,
        }


def moment(ms: int) -> str:
    """Return a time in milliseconds since 1970 as local date and time of day, with milliseconds. A producer may set
    any timestamp; a time after the year 9999, such as one in microseconds, is returned as its number."""
    try:
        return datetime.fromtimestamp(ms / 1000).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms since 1970, which is after the year 9999"


def iso(ms: int) -> str | None:
    """Return a time in milliseconds since 1970 as ISO 8601 text in UTC; None for a time that is not known (-1), or
    after the year 9999."""
    at = as_datetime(ms)
    return None if at is None else at.isoformat(timespec="milliseconds")


def as_datetime(ms: int) -> datetime | None:
    """Return a time in milliseconds since 1970 as a moment in UTC; None for a time that is not known (-1), or after
    the year 9999."""
    try:
        return None if ms < 0 else datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def span(ms: float) -> str:
    """Return a duration in milliseconds as text with a unit that fits."""
    if ms < 1000:
        return f"{ms:.0f} ms"
    if ms < 120_000:
        return f"{ms / 1000:.1f} s"
    return f"{ms / 60_000:.0f} min" if ms < 7_200_000 else f"{ms / 3_600_000:.1f} h"


def listed(names: Iterable[str]) -> str:
    """Return names as a list in a sentence: ``r1``, ``r1 and r2``, ``r1, r2 and r3``."""
    found = list(names)
    return " and ".join([", ".join(found[:-1]), found[-1]]) if len(found) > 1 else "".join(found)


def shortened(names: Sequence[str], most: int = 10) -> str:
    """Return at most ``most`` names as a list in a sentence, and the number of the others."""
    if len(names) <= most:
        return listed(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"
