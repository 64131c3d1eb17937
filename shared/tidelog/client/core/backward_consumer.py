"""Core of a consumer that reads backwards: which part of a log to read next, and which of its batches to hand out.
Sans-I/O.

Theory. Each partition has a *cursor* with a position: every record at or above the position was handed out, or was
never wanted. A log can only be read forwards, in whole batches, from an offset on. A cursor therefore reads a
*window*: it begins some offsets below the position and holds at most so many bytes. If the answer reaches the
position, the window's batches are handed out from the last to the first, and the position moves to the window's
beginning. If the answer ends before the position, the window was too wide for its bytes, and a smaller one is tried;
a window of one offset always succeeds. The width of the next window follows from the bytes per offset of the last.

Leader epochs never rise on the way back. If the log was truncated since the position was read, and written anew, the
records below the position have a later epoch: the error is ``LOG_TRUNCATED``. If retention removed records above the
requested bound, the remaining ones are handed out first. Then ``OFFSET_OUT_OF_RANGE`` names the first offset left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidelog.batch.format import BatchHeader, split
from tidelog.client.core.consumer import Fetched, with_location
from tidelog.errors import TidelogError, refuse
from tidelog.types import Buffer, Position

GROWTH = 4
"""A window is at most this many times as wide as the one above it."""


@dataclass(frozen=True, slots=True)
class WindowRead:
    """Effect: read at most ``max_bytes`` of a partition from ``offset`` on, or one batch if that is larger. The shell
    passes the answer to ``on_batches``, or the error to ``on_error``."""

    partition: int
    offset: int
    max_bytes: int
    last_epoch: int = -1
    """If not -1, nothing is to be read: the leader only checks that the position (this leader epoch, ``offset``) is
    in the history of its log."""


class BackwardCursor:
    """The position of one partition that is read backwards, with the window that was read last and the size of the
    next one."""

    __slots__ = (
        "batches", "bound", "checked", "epoch", "exact", "failed", "max_bytes", "partition", "position", "room",
        "taken", "width",
    )  # fmt: skip

    def __init__(self, partition: int, start: Position, bound: int, exact: bool, room: int) -> None:
        self.partition = partition
        self.position = start.offset
        self.epoch = start.leader_epoch
        """Highest leader epoch that the record below the position may have; -1 if any is right."""
        self.checked = start.leader_epoch < 0
        """Whether the position is known to be in the log's present history."""
        self.taken = start
        self.bound = bound
        self.exact = exact
        """Whether it is an error if the log begins above the bound. Otherwise reading ends where the log begins."""
        self.batches: list[Fetched] = []
        """Batches of the last window that were not taken yet, the newest last."""
        self.failed: TidelogError | None = None
        self.width = 1
        """Number of offsets in the next window."""
        self.max_bytes = 1
        self.room = room
        """Most bytes of a window: the smaller of what the reader wants and what a server returns at a time."""

    @property
    def wants(self) -> bool:
        """Whether the next window should be read now: all batches were taken, no error has ended the partition, and
        the position is above the bound."""
        return not self.batches and self.failed is None and (self.position > self.bound or not self.checked)

    def next_read(self) -> WindowRead:
        """Return the read of the next window below the position. While the position is not checked, return the read
        by which the leader checks it."""
        if not self.checked:
            return WindowRead(self.partition, self.position, 1, self.epoch)
        return WindowRead(self.partition, max(self.bound, self.position - self.width), self.max_bytes)


class BackwardCore:
    """The core of one consumer that reads backwards: a cursor for each partition. ``starts``: the position below
    which reading begins, by partition. ``bounds``: the lowest offset to read, by partition; with ``exact`` it is an
    error if the log begins above its bound. A window has at most ``window_bytes``, or one batch."""

    def __init__(
        self, topic: str, starts: Mapping[int, Position], bounds: Mapping[int, int], exact: bool, window_bytes: int
    ) -> None:
        self._topic = topic
        self._cursors = {p: BackwardCursor(p, starts[p], bounds[p], exact, window_bytes) for p in sorted(starts)}
        self._ready: deque[BackwardCursor] = deque()
        for cursor in self._cursors.values():
            if cursor.position < cursor.bound and not exact:
                self._fail(
                    cursor, refuse("OFFSET_OUT_OF_RANGE", f"the log starts at {cursor.bound}", log_start=cursor.bound)
                )

    @property
    def positions(self) -> dict[int, Position]:
        """The position down to which the application has taken every record, by partition: the offset of the last
        record taken, or the start before that."""
        return {p: cursor.taken for p, cursor in self._cursors.items()}

    def next_reads(self) -> list[WindowRead]:
        """Return the reads to make now: one for every partition of which all batches were taken and the bound is not
        reached. The outcome of each must be passed on before the next call. Returns an empty list if no partition
        needs a read."""
        return [cursor.next_read() for cursor in self._cursors.values() if cursor.wants]

    def on_batches(self, read: WindowRead, payload: Buffer) -> None:
        """Handle the answer to a read: committed batches from its offset on. If they reach the position they become
        ready to be taken, and the position moves to their beginning; otherwise the next window is smaller. The
        partition ends with ``LOG_TRUNCATED`` if the records are of a later leader epoch than the position allows, and
        with an error if the payload cannot be split into batches. The answer to a read that only checks the position
        marks it as checked."""
        cursor = self._cursors[read.partition]
        if read.last_epoch >= 0:
            cursor.checked = True
            return
        try:
            batches = [(header, data) for header, data in split(payload) if header.base_offset < cursor.position]
            if not batches or batches[-1][0].end_offset < cursor.position:
                self._too_wide(cursor, read, batches)
            else:
                self._take_window(cursor, read, batches)
        except TidelogError as error:
            self._fail(cursor, error)

    def _too_wide(
        self, cursor: BackwardCursor, read: WindowRead, batches: list[tuple[BatchHeader, memoryview]]
    ) -> None:
        """Halve the window of a partition, because the batches that fitted into the answer end below the position.
        Raises ``OFFSET_OUT_OF_RANGE`` if the window has only one offset."""
        if read.offset + 1 >= cursor.position:
            raise refuse("OFFSET_OUT_OF_RANGE", f"no record below {cursor.position} is committed")
        if batches:
            cursor.room = min(cursor.room, sum(header.size for header, _ in batches))
        cursor.width //= 2
        cursor.max_bytes = cursor.room

    def _take_window(
        self, cursor: BackwardCursor, read: WindowRead, batches: list[tuple[BatchHeader, memoryview]]
    ) -> None:
        """Make the batches of a window ready to be taken, move the position to the window's beginning, and compute
        the size of the next window. Raises ``LOG_TRUNCATED`` if the records are of a later leader epoch than the
        position allows."""
        newest = batches[-1][0].leader_epoch
        if 0 <= cursor.epoch < newest:
            text = f"the record below {cursor.position} was of leader epoch {cursor.epoch}, it is of {newest} now"
            raise refuse("LOG_TRUNCATED", text, leader_epoch=newest)
        low = max(cursor.bound, batches[0][0].base_offset)
        size = sum(header.size for header, _ in batches)
        covered = cursor.position - low
        for header, data in batches:
            first, end = max(header.base_offset, low), min(header.end_offset, cursor.position)
            cursor.batches.append(Fetched(cursor.partition, header, data, first, end))
        cursor.position, cursor.epoch = low, batches[0][0].leader_epoch
        cursor.width = max(1, min(GROWTH * covered, cursor.room * covered // size))
        cursor.max_bytes = min(cursor.room, GROWTH * size * cursor.width // covered)
        self._ready.append(cursor)

    def on_error(self, read: WindowRead, error: TidelogError) -> None:
        """Handle an error that a repeated read would not mend: it ends the partition. Exception: the read began below
        the log start. If part of the window is above the log start, that part is read next; if the bound is not
        exact, reading ends at the log start without an error."""
        cursor = self._cursors[read.partition]
        start: Any = error.detail.get("log_start")
        overtaken = error.code == "OFFSET_OUT_OF_RANGE" and isinstance(start, int) and start > read.offset
        if not overtaken or (start >= cursor.position and (cursor.exact or not cursor.checked)):
            self._fail(cursor, error)
        elif cursor.exact:  # read what is left; a later read reports the rest
            cursor.width = min(cursor.width, cursor.position - start)
        else:
            cursor.bound = min(start, cursor.position)

    def take_batch(self) -> Fetched | None:
        """Remove and return the next batch, from the newest to the oldest of each partition; None if no batch is
        ready. When no partition has anything left to read, raises the error that ended one of them."""
        if not self._ready:
            if not self.next_reads():
                for cursor in self._cursors.values():
                    if cursor.failed is not None:
                        raise cursor.failed
            return None
        cursor = self._ready.popleft()
        item = cursor.batches.pop()
        if cursor.batches:
            self._ready.append(cursor)
        cursor.taken = Position(item.header.leader_epoch if item.first > item.header.base_offset else -1, item.first)
        return item

    def fail(self, fetched: Fetched, error: TidelogError) -> None:
        """Stop reading a partition because the application cannot use the batch that was taken last from it.
        ``take_batch`` raises ``error`` when no other partition has anything left."""
        cursor = self._cursors[fetched.partition]
        cursor.taken = Position(-1, fetched.end)
        cursor.batches.clear()
        cursor.failed = error
        if cursor in self._ready:
            self._ready.remove(cursor)

    @property
    def is_finished(self) -> bool:
        """Whether every partition was read down to its bound without an error, and all batches were taken."""
        return not any(cursor.batches or cursor.wants or cursor.failed for cursor in self._cursors.values())

    def _fail(self, cursor: BackwardCursor, error: TidelogError) -> None:
        """End a partition with a copy of this error that names the topic, the partition and its position."""
        cursor.failed = with_location(error, self._topic, cursor.partition, cursor.position)
