"""Checks of transactions and of what readers of committed records saw of them, after Jepsen's workloads for
transactions (Elle's names in brackets). The checks are independent of how transactions were run: the simulation and
the tests over whole clusters build a ``Story``, and ``check_history`` makes one of a history.

================  ==================================================================================
aborted_read      seen, although it was reported as aborted or its commit was never requested (G1a)
torn              at the end, seen in some of the places that it wrote to and not in the others
lost_commit       reported as committed, and not seen at the end
twice             seen twice in one place, or two tries of one batch seen
lost_update       two transactions that are seen moved a group on from the same position, or none that is seen did:
                  consumed input and produced output do not match
went_back         a reader was shown a place that it had passed, or the last stable offset went back
================  ==================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog.verify.anomalies import Anomaly
from tidelog.verify.history import ABORTED, COMMITTED, OK
from tidelog.verify.ledger import Facts, show

KINDS = ("aborted_read", "torn", "lost_commit", "twice", "lost_update", "went_back")

UNKNOWN = ""
"""Outcome of a transaction of which the client does not know whether it was committed."""


@dataclass(eq=False, slots=True)
class Try:
    """One transaction of a run, with what its client knows of it. ``label`` is the record that the transaction wrote
    to each of its partitions."""

    label: str
    app: str = ""
    places: frozenset[str] = frozenset()
    """Partitions that the transaction wrote to, if its commit was requested."""
    asked: bool = False
    """Whether the client requested the commit."""
    fate: str = UNKNOWN
    """The outcome that was reported to the client: ``COMMITTED``, ``ABORTED`` or ``UNKNOWN``."""
    batch: int = -1
    """Number of the staged batch that this transaction is an attempt of; -1: none."""
    position: int = -1
    """Position of the application's group when the transaction began, which it moves on by one; -1: it moves no
    group."""


@dataclass(slots=True)
class Story:
    """The transactions of a whole run, and the records of them that each reader saw, in order: the input of
    ``check``."""

    tries: list[Try] = field(default_factory=list)
    seen: dict[str, list[tuple[str, int, str]]] = field(default_factory=dict)
    """Name of a reader -> (partition, offset, label of the transaction) in the order of reading."""
    stable: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    """Name of a reader -> (partition, last stable offset in an answer). Each answer's request was made after the
    answer before had come."""
    moved: dict[str, int] = field(default_factory=dict)
    """Application -> its group's position at the end."""
    complete: bool = True
    """Whether the readers have read everything to the end."""


def check(story: Story) -> list[Anomaly]:
    """Check the transactions of a story for the anomalies of the module's table, and return those that are found; an
    empty list if the story is sound."""
    found: list[Anomaly] = []
    _check_order(story, found)
    for reader in sorted(story.seen):
        shown: dict[str, list[str]] = {}
        for place, _, label in story.seen[reader]:
            shown.setdefault(label, []).append(place)
        for one in story.tries:
            _check_try(one, shown.get(one.label, []), story.complete, found)
        _check_batches(story.tries, shown, found)
        _check_moves(story, shown, found)
    return found


def check_history(facts: Facts, strange: dict[tuple[str, bytes], str]) -> None:
    """Check the transactions of a history, and add every anomaly to ``facts``. Values are unique in a history, so
    each record counts as a place of its own. ``strange`` has the records that readers were shown and that are not in
    the final log: none of them may belong to a transaction that was aborted or whose commit was never requested."""
    labels: dict[bytes, str] = {}
    places: dict[str, set[str]] = {}
    for op in facts.sends:
        if op.transaction:
            labels.update(dict.fromkeys(op.values, op.transaction))
            if op.result == OK:
                places.setdefault(op.transaction, set()).update(map(show, op.values))
    tries = [
        Try(one.label, one.app, frozenset(places.get(one.label, ())), one.asked, fate, position=one.position)
        for one in facts.history.transactions
        for fate in (one.fate if one.fate in (COMMITTED, ABORTED) else UNKNOWN,)
    ]
    end = [
        (show(value), offset, labels[value])
        for rows in facts.history.final.values()
        for offset, value in rows
        if value in labels
    ]
    whole = not facts.history.undrained
    facts.found += check(Story(tries, {"the log at the end": end}, moved=facts.history.moved, complete=whole))
    early = [(show(value), place, labels[value]) for place, (_, value) in enumerate(strange) if value in labels]
    dropped = [one for one in tries if one.label in facts.dropped]
    facts.found += check(Story(dropped, {"a consumer": early}, complete=False))


def _check_try(one: Try, places: list[str], complete: bool, found: list[Anomaly]) -> None:
    """Add the anomalies of one transaction, which one reader saw in ``places``: ``twice`` and ``aborted_read``; and
    ``torn`` and ``lost_commit`` if that reader has read everything (``complete``)."""
    if len(places) > len(set(places)):
        found.append(Anomaly("twice", f"{one.label} is seen in {sorted(places)}"))
    if places and (not one.asked or one.fate == ABORTED):
        why = "was reported as aborted" if one.fate == ABORTED else "nobody has committed"
        found.append(Anomaly("aborted_read", f"{one.label} is seen in {sorted(places)}, which {why}"))
    elif complete and places and set(places) != one.places:
        found.append(Anomaly("torn", f"{one.label} is seen in {sorted(places)} of {sorted(one.places)}"))
    elif complete and not places and one.fate == COMMITTED and one.places:
        found.append(Anomaly("lost_commit", f"{one.label} was reported as committed, and is not seen"))


def _check_batches(tries: list[Try], shown: dict[str, list[str]], found: list[Anomaly]) -> None:
    """Add a ``twice`` for each staged batch of which one reader saw two attempts."""
    batches: dict[tuple[str, int], list[str]] = {}
    for one in tries:
        if one.batch >= 0 and one.label in shown:
            batches.setdefault((one.app, one.batch), []).append(one.label)
    for (app, batch), labels in batches.items():
        if len(labels) > 1:
            found.append(Anomaly("twice", f"batch {batch} of {app} is seen as {labels}"))


def _check_moves(story: Story, shown: dict[str, list[str]], found: list[Anomaly]) -> None:
    """Add a ``lost_update`` if two transactions that a reader saw moved a group on from the same position, or if the
    group's position at the end does not match the transactions that were seen."""
    left: dict[tuple[str, int], list[str]] = {}
    for one in story.tries:
        if one.position >= 0 and one.label in shown:
            left.setdefault((one.app, one.position), []).append(one.label)
    for (app, position), labels in left.items():
        if len(labels) > 1:
            found.append(Anomaly("lost_update", f"{app} was moved on from {position} by {labels}"))
    for app, end in story.moved.items():
        seen = {position for name, position in left if name == app}
        if story.complete and seen != set(range(end)):
            text = f"{app} stands at {end}, and what is seen has left {sorted(seen)}"
            found.append(Anomaly("lost_update", text))


def _check_order(story: Story, found: list[Anomaly]) -> None:
    """Add a ``went_back`` if a reader was shown an offset of a partition that it had passed, or if a last stable
    offset in its answers went back."""
    for reader, rows in story.seen.items():
        last: dict[str, int] = {}
        for place, offset, label in rows:
            if offset <= last.get(place, -1):
                text = f"{reader} was shown {label} at {offset} of {place} after {last[place]}"
                found.append(Anomaly("went_back", text))
            last[place] = max(offset, last.get(place, -1))
    for reader, ends in story.stable.items():
        known: dict[str, int] = {}
        for place, end in ends:
            if end < known.get(place, 0):
                text = f"{reader} got the last stable offset {end} of {place} after {known[place]}"
                found.append(Anomaly("went_back", text))
            known[place] = max(end, known.get(place, 0))
