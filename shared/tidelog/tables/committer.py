"""Carries out ``commit_protocol`` on a real table: loads, replaces, waits between two requests."""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from tidelog.tables.commit_protocol import (
    Answer,
    CommitGivenUp,
    LoadState,
    Marker,
    Outcome,
    TableState,
    Verdict,
    commit_steps,
)
from tidelog.tables.file_writer import WrittenFile

STAGED_S = 12 * 3600
"""A batch whose files are older than this is not committed: an expiry may delete files that nobody has committed when
they are twice as old."""
MIN_EXPIRY_S = 2 * STAGED_S
"""The shortest time after which an expiry deletes files."""
MAX_ERRORS = 8
"""After so many errors of the table's storage or catalog a commit gives up."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.05, 5.0


@dataclass(frozen=True, slots=True)
class Append:
    """A batch of an application: the files of one attempt, and the marker that goes with them."""

    app: str
    marker: Marker
    files: tuple[WrittenFile, ...]
    layout: str = ""
    """Version of the columns and partition fields by which the files were written (Iceberg)."""
    key: str = ""
    """Column by which rows replace others; "": they are appended."""
    order: str = ""
    """Column that tells which of two rows of a key is the later one."""


class Commits(Protocol):
    """What a table must be able to do for a commit."""

    def load(self, app: str) -> TableState:
        """Return the table's state with the marker of an application. Raises ``OSError`` if it cannot be read
        now."""

    def replace(self, state: TableState, change: Append) -> Answer:
        """Append files and set the marker, if the application's marker is still that of ``state``. Raises ``OSError``
        if the outcome is unknown, and ``SchemaConflict`` or ``BatchTooLarge`` if the table cannot have the rows."""

    def files(self) -> list[str]:
        """Return the paths of the table's files."""

    def discard(self, names: list[str]) -> None:
        """Delete data files that were never committed."""


class StagedTooLong(Exception):
    """The files of the batch are so old that they may have been deleted."""


def commit(table: Commits, change: Append, staged_ns: int) -> Verdict:
    """Commit a batch exactly once, and return how it came into the table. ``staged_ns`` is when its first file was
    written. Raises ``ForeignApplication``, ``StagedTooLong``, ``SchemaConflict`` or ``BatchTooLarge``; or
    ``CommitGivenUp``, also if the table cannot be read. The batch may be in the table then; to commit it again is
    right in any case."""
    outcome = _carried_out(table, change, staged_ns)
    if change.key:  # its rows were merged, and its files are never in the table
        with suppress(OSError):
            table.discard([file.name for file in change.files])
    elif outcome.verdict is Verdict.ANOTHER and not outcome.sent:
        with suppress(OSError):  # an expiry deletes what is left
            known = {path.rpartition("/")[2] for path in table.files()}
            table.discard([file.name for file in change.files if file.name.rpartition("/")[2] not in known])
    return outcome.verdict


def _carried_out(table: Commits, change: Append, staged_ns: int) -> Outcome:
    """Carry out the steps of a commit, and wait after each request that came to nothing."""
    steps = commit_steps(change.marker)
    request, wait_s = next(steps), FIRST_WAIT_S
    errors: list[OSError] = []
    while True:
        answer: TableState | Answer | None = None
        try:
            if isinstance(request, LoadState):
                answer = table.load(change.app)
            elif change.files and time.time_ns() - staged_ns > STAGED_S * 1e9:
                raise StagedTooLong
            else:
                answer = table.replace(request.state, change)
        except OSError as error:
            errors.append(error)
            if len(errors) == MAX_ERRORS:
                raise CommitGivenUp(str(error)) from error
            answer = None if isinstance(request, LoadState) else Answer.UNKNOWN
        if answer is None or answer is Answer.CONFLICT or answer is Answer.UNKNOWN:
            threading.Event().wait(wait_s * random.uniform(0.5, 1))
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
        if answer is not None:
            try:
                request = steps.send(answer)
            except StopIteration as ended:
                outcome: Outcome = ended.value
                return outcome
