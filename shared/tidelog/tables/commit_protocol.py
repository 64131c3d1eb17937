"""How a numbered batch of an application is committed to a table exactly once. Pure.

An application (``app``) writes batches with rising numbers. Any number of drivers may try to commit a batch: one that
is run again after a crash, and a *zombie*, which is still at work although another has taken over. Each attempt wrote
files of its own, which no reader knows. The table keeps a ``Marker`` for each application: the last batch that was
committed, and by which attempt. An attempt repeats two steps:

1. Load the table's state and judge the marker. The batch is there already, or it may be appended, or the marker
   belongs to another query.
2. Replace the state by one with the attempt's files and its marker, in one step that fails if the marker has been
   replaced since the state was loaded (compare-and-set).

==================  ===================================================================================
answer to step 2    what follows
==================  ===================================================================================
committed           done
conflict            somebody was faster: load and judge again
unknown             the answer was lost: load and judge again; the marker tells whether this attempt won
==================  ===================================================================================

The step must compare something that never returns to an earlier value, even if the table is rolled back. Otherwise
a zombie that loaded the state before the commit could append the batch again after the rollback.

Files of an attempt may be deleted only if it has never asked for step 2. After that the files can be in the table
even if the marker names another attempt: the table may have gone on to a later batch since.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from tidelog.errors import ConfigError

MAX_ATTEMPTS = 20
"""How often an attempt asks for a commit before it gives up, each time after a conflict or a lost answer."""

Offsets = Mapping[str, Mapping[int, int]]
"""By topic and partition, the offset before which the table has every record that was read."""


@dataclass(frozen=True, slots=True)
class Archive:
    """What a marker keeps besides, if the rows of every batch of the application are records as the source has them,
    none left out: the table can then stand in for the beginning of the log (``spark.read.history``). In the marker
    that an attempt would set, it is about the attempt's batch alone."""

    rows: int
    """Number of rows in all batches."""
    starts: Offsets = field(default_factory=dict)
    """By topic and partition, the offset of the first record."""
    epochs: Offsets = field(default_factory=dict)
    """By topic and partition, the leader epoch of the last record."""
    topics: Mapping[str, int] = field(default_factory=dict)
    """Hash of the topic's id (``owner_of``), by topic, where that is known."""


@dataclass(frozen=True, slots=True)
class Marker:
    """What a table keeps of an application: the last committed batch."""

    batch: int
    attempt: int
    """Number of the attempt that committed the batch (``attempt_of``)."""
    owner: int
    """Hash of the id of the query that writes the batches (``owner_of``)."""
    query: str = ""
    """The id itself, for people; "" if the format keeps only the hash."""
    offsets: Offsets = field(default_factory=dict)
    archive: Archive | None = None
    """None if a batch has other rows than the records of the source, or it is not known."""


class Verdict(Enum):
    """The judgement of a marker, from the view of an attempt at a batch."""

    APPEND = "append"
    """The batch is not in the table."""
    MINE = "mine"
    """This attempt has committed the batch."""
    ANOTHER = "another"
    """The batch was committed by another attempt, or a later batch was committed."""


class Answer(Enum):
    """What became of a request to replace the state."""

    COMMITTED = "committed"
    CONFLICT = "conflict"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class LoadState:
    """Request: load the table, and send back its ``TableState``."""


@dataclass(frozen=True, slots=True)
class TableState:
    """A table's state as it was loaded: the marker of one application, and whatever the format compares it by."""

    marker: Marker | None
    handle: Any = None


@dataclass(frozen=True, slots=True)
class ReplaceState:
    """Request: append the attempt's files and set its marker, if the application's marker is still that of ``state``.
    Send back an ``Answer``."""

    state: TableState


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of an attempt. ``sent`` says whether it has asked for a commit; its files may be deleted only if it has
    not, and the verdict is ``ANOTHER``."""

    verdict: Verdict
    sent: bool


class ForeignApplication(Exception):
    """The application's batches were written by another query. ``query`` is its id, or "" if that is not known."""

    def __init__(self, query: str) -> None:
        super().__init__(query)
        self.query = query


class CommitGivenUp(Exception):
    """The batch was not committed in ``MAX_ATTEMPTS`` requests, or the table cannot be reached."""


def owner_of(query: str) -> int:
    """Return a hash of a query's id, of 62 bits."""
    return int.from_bytes(hashlib.sha256(query.encode()).digest()[:8]) >> 2


def attempt_of(files: Iterable[str]) -> int:
    """Return the number of the attempt that wrote files, of 62 bits. A driver that is asked to commit the same files
    again gets the same number, and so recognises its own commit."""
    return owner_of("\n".join(sorted(files)))


def judge(marker: Marker | None, mine: Marker) -> Verdict:
    """Return whether the batch of an attempt may be appended. ``marker`` is what the table has, ``mine`` what the
    attempt would set. Raises ``ForeignApplication`` if another query has written the application's batches."""
    if marker is None:
        return Verdict.APPEND
    if marker.owner != mine.owner:
        raise ForeignApplication(marker.query)
    if marker.attempt == mine.attempt and marker.batch == mine.batch:
        return Verdict.MINE
    return Verdict.ANOTHER if marker.batch >= mine.batch else Verdict.APPEND


def commit_steps(mine: Marker) -> Generator[LoadState | ReplaceState, Any, Outcome]:
    """Return the steps of one attempt: a generator that yields requests, takes the answer to each, and returns the
    outcome. Raises ``ForeignApplication``, and ``CommitGivenUp`` after ``MAX_ATTEMPTS`` requests."""
    for attempt in range(MAX_ATTEMPTS):
        state: TableState = yield LoadState()
        verdict = judge(state.marker, mine)
        if verdict is not Verdict.APPEND:
            return Outcome(verdict, sent=attempt > 0)
        answer: Answer = yield ReplaceState(state)
        if answer is Answer.COMMITTED:
            return Outcome(Verdict.MINE, sent=True)
    raise CommitGivenUp(f"{MAX_ATTEMPTS} times others were faster")


def merged_offsets(old: Offsets, new: Offsets) -> dict[str, dict[int, int]]:
    """Return the offsets after a batch: those of ``new`` where they are further, otherwise those of ``old``."""
    merged = {topic: dict(partitions) for topic, partitions in old.items()}
    for topic, partitions in new.items():
        mine = merged.setdefault(topic, {})
        for partition, offset in partitions.items():
            mine[partition] = max(offset, mine.get(partition, 0))
    return merged


def merged_archive(old: Marker | None, new: Archive | None) -> Archive | None:
    """Return what the marker keeps of an archive after a batch. Once a batch was none of an archive, or was one of
    another topic of the same name, the application has no archive any more."""
    if old is None or new is None:
        return new
    before = old.archive
    if before is None or any(new.topics.get(name, id) != id for name, id in before.topics.items()):
        return None
    starts = {
        topic: {**new.starts.get(topic, {}), **before.starts.get(topic, {})}
        for topic in {*before.starts, *new.starts}
    }
    epochs = merged_offsets(before.epochs, new.epochs)
    return Archive(before.rows + new.rows, starts, epochs, {**new.topics, **before.topics})


def after_batch(old: Marker | None, mine: Marker) -> Marker:
    """Return the marker to keep after an attempt's batch: its own, with offsets and archive of all batches."""
    return replace(
        mine,
        offsets=merged_offsets(old.offsets if old else {}, mine.offsets),
        archive=merged_archive(old, mine.archive),
    )


def marker_to_json(marker: Marker) -> dict[str, Any]:
    """Return a marker as a JSON object, for formats that keep it as text."""
    found = {
        "version": 1,
        "batch": marker.batch,
        "attempt": marker.attempt,
        "query": marker.query,
        "offsets": _as_json(marker.offsets),
    }
    if (archive := marker.archive) is not None:
        starts, epochs = _as_json(archive.starts), _as_json(archive.epochs)
        found["archive"] = {
            "rows": archive.rows,
            "starts": starts,
            "epochs": epochs,
            "topics": dict(sorted(archive.topics.items())),
        }
    return found


def marker_from_json(found: Mapping[str, Any]) -> Marker:
    """Return the marker that ``marker_to_json`` made an object of. Raises ``ConfigError`` for a later version."""
    if found["version"] != 1:
        raise ConfigError(f"the marker has version {found['version']}, which this release does not know")
    query, archive = str(found["query"]), None
    if (kept := found.get("archive")) is not None:
        topics = {str(topic): int(id) for topic, id in kept["topics"].items()}
        archive = Archive(int(kept["rows"]), _from_json(kept["starts"]), _from_json(kept["epochs"]), topics)
    offsets = _from_json(found["offsets"])
    return Marker(int(found["batch"]), int(found["attempt"]), owner_of(query), query, offsets, archive)


def _as_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    return {
        topic: {str(partition): offset for partition, offset in sorted(partitions.items())}
        for topic, partitions in sorted(offsets.items())
    }


def _from_json(found: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[int, int]]:
    return {
        topic: {int(partition): int(offset) for partition, offset in partitions.items()}
        for topic, partitions in found.items()
    }
