"""Ready-made invariants of what programs have written. Each function returns an invariant for ``World.invariant``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable
from itertools import pairwise
from typing import Any

from tidelog.batch.format import Record
from tidelog.testing.world.outcome import Invariant, Outcome

MOST_NAMED = 5
"""Most identities that a sentence names."""


def value_of(record: Record) -> Hashable:
    """Return the value of a record, which identifies it unless a test says otherwise."""
    return record.value


def exactly_once(
    topic: str,
    of: str | Collection[Hashable] | None = None,
    identity: Callable[[Record], Hashable] = value_of,
) -> Invariant:
    """Return the invariant that no two committed records of ``topic`` have the same identity. ``of``: a topic, or a
    collection of identities: none of them is missing in ``topic``, and there is none besides. ``identity`` returns
    what identifies a record; for a topic in ``of`` it is applied to that topic's records, too."""

    def check(outcome: Outcome) -> str | None:
        found = Counter(identity(record) for record in outcome.records(topic))
        twice = [one for one, count in found.items() if count > 1]
        if twice:
            return f"{topic} has {_names(twice)} more than once"
        return _compare(outcome, topic, found, of, identity, extra=True)

    return check


def at_least_once(
    topic: str, of: str | Collection[Hashable], identity: Callable[[Record], Hashable] = value_of
) -> Invariant:
    """Return the invariant that ``topic`` has a committed record for each identity of ``of``, which is a topic or a
    collection of identities. Further records and repeated ones are allowed."""

    def check(outcome: Outcome) -> str | None:
        found = Counter(identity(record) for record in outcome.records(topic))
        return _compare(outcome, topic, found, of, identity, extra=False)

    return check


def in_order(topic: str, by: Callable[[Record], Any]) -> Invariant:
    """Return the invariant that within a key, in the order of the log, ``by(record)`` never goes down. Records
    without a key are compared within their partition."""

    def check(outcome: Outcome) -> str | None:
        for key, values in _by_key(outcome.records(topic), by):
            for before, after in pairwise(values):
                if after < before:
                    return f"{topic} has {after!r} behind {before!r} for {key}"
        return None

    return check


def no_gap(topic: str, by: Callable[[Record], int]) -> Invariant:
    """Return the invariant that within a key, in the order of the log, the numbers ``by(record)`` are consecutive:
    each is its predecessor plus one. The first may be any number."""

    def check(outcome: Outcome) -> str | None:
        for key, values in _by_key(outcome.records(topic), by):
            for before, after in pairwise(values):
                if after != before + 1:
                    return f"{topic} has {after!r} next after {before!r} for {key}"
        return None

    return check


def _compare(
    outcome: Outcome,
    topic: str,
    found: Counter[Hashable],
    of: str | Collection[Hashable] | None,
    identity: Callable[[Record], Hashable],
    *,
    extra: bool,
) -> str | None:
    """Return what is missing in a topic, or with ``extra`` also what it has besides; None if nothing."""
    if of is None:
        return None
    wanted = dict.fromkeys(map(identity, outcome.records(of)) if isinstance(of, str) else of)
    missing = [one for one in wanted if one not in found]
    source = f" of {of}" if isinstance(of, str) else ""
    if missing:
        return f"{topic} lacks {_names(missing)}{source}"
    besides = [one for one in found if one not in wanted]
    if extra and besides:
        return f"{topic} has {_names(besides)}, which {'is' if len(besides) == 1 else 'are'} not expected{source}"
    return None


def _names(identities: Iterable[object]) -> str:
    """Return a few identities as text, and how many more there are."""
    every = [_text(one) for one in identities]
    more = f" and {len(every) - MOST_NAMED} more" if len(every) > MOST_NAMED else ""
    return ", ".join(every[:MOST_NAMED]) + more


def _text(identity: object) -> str:
    if isinstance(identity, bytes):
        return repr(identity)[1:]
    return repr(identity)


def _by_key(records: Iterable[Record], by: Callable[[Record], Any]) -> list[tuple[str, list[Any]]]:
    """Return the values ``by(record)`` of each key, in the order of the log, with the name of the key."""
    found: dict[object, list[Any]] = {}
    for record in records:
        key = record.partition if record.key is None else record.key
        found.setdefault(key, []).append(by(record))
    return [
        (f"key {_text(key)}" if isinstance(key, bytes) else f"partition {key}", values)
        for key, values in found.items()
    ]
