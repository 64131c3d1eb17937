"""What a consumer that reads backwards decides: which part of a log to look at next, and what of it to hand out.
Sans-I/O.

Theory. Each partition is a *lane* with a position: everything at or above it was handed out or never wanted. Batches
can only be read forwards, whole, from an offset on. So a lane looks at a *window*: from so many offsets below its
position, with room for so many bytes. Where the answer reaches the position, the window's batches are handed out from
the last to the first, and the position moves to where the window began. Where it does not, the window was too wide
for its bytes: a smaller one is tried; one of a single offset always succeeds. How wide the next one is follows from
how many bytes an offset took in the last.

Going back, leader epochs never rise. Where the log was cut since the lane's position was read, and written anew, what
stands below the position is of a later epoch: ``LOG_TRUNCATED``. Where retention removed records above the bound that
was asked for, what is left is handed out, and then ``OFFSET_OUT_OF_RANGE`` says from where on they are missing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidelog.batch.format import BatchHeader, split
from tidelog.client.core.consumer import Fetched, located
from tidelog.errors import TidelogError, refuse
from tidelog.types import Buffer, Position

GROWTH = 4
"""A window is at most so many times as wide as the one above it."""


@dataclass(frozen=True, slots=True)
class Look:
    """Effect: read from ``offset`` on; the outcome comes back by ``on_batches`` or ``on_error``."""

    partition: int
    offset: int
    max_bytes: int
    last_epoch: int = -1
    """Not -1: only to have the leader compare this position with its log."""


class BackwardCursor:
    """The state of one partition."""

    __slots__ = (
        "batches", "bound", "checked", "epoch", "exact", "failed", "max_bytes", "partition", "position", "room",
        "taken", "width",
    )  # fmt: skip

    def __init__(self, partition: int, start: Position, bound: int, exact: bool, room: int) -> None:
        self.partition = partition
        self.position = start.offset
        self.epoch = start.leader_epoch
        """Leader epoch that the record below the position may have at most; -1: any."""
        self.checked = start.leader_epoch < 0
        """The position is not one of a line that is gone."""
        self.taken = start
        self.bound = bound
        self.exact = exact
        """Down to the bound in any case; else where the log begins by then will do."""
        self.batches: list[Fetched] = []
        """Of the last window, the newest last."""
        self.failed: TidelogError | None = None
        self.width = 1
        """Offsets of the next window."""
        self.max_bytes = 1
        self.room = room
        """Bytes that a window may have: as many as are wanted, and as servers give at a time."""

    @property
    def wants(self) -> bool:
        """It is time to look at the next window."""
        return not self.batches and self.failed is None and (self.position > self.bound or not self.checked)

    def look(self) -> Look:
        """What to read next."""
        if not self.checked:
            return Look(self.partition, self.position, 1, self.epoch)
        return Look(self.partition, max(self.bound, self.position - self.width), self.max_bytes)


class BackwardCore:
    """All lanes of one consumer. ``starts``: partition -> below which position to begin; ``bounds``: partition -> the
    lowest offset, ``exact`` where it is an error if the log begins above it. A window has ``window_bytes`` at most,
    or one batch."""

    def __init__(
        self, topic: str, starts: Mapping[int, Position], bounds: Mapping[int, int], exact: bool, window_bytes: int
    ) -> None:
        self._topic = topic
        self._lanes = {p: BackwardCursor(p, starts[p], bounds[p], exact, window_bytes) for p in sorted(starts)}
        self._ready: deque[BackwardCursor] = deque()
        for lane in self._lanes.values():
            if lane.position < lane.bound and not exact:
                self._fail(
                    lane, refuse("OFFSET_OUT_OF_RANGE", f"the log starts at {lane.bound}", log_start=lane.bound)
                )

    @property
    def positions(self) -> dict[int, Position]:
        """Per partition: what is below was not taken by the application."""
        return {p: lane.taken for p, lane in self._lanes.items()}

    def looks(self) -> list[Look]:
        """What to read now. Each is to be answered before this is asked again."""
        return [lane.look() for lane in self._lanes.values() if lane.wants]

    def on_batches(self, look: Look, payload: Buffer) -> None:
        """What stands from there on, committed."""
        lane = self._lanes[look.partition]
        if look.last_epoch >= 0:
            lane.checked = True
            return
        try:
            batches = [(header, data) for header, data in split(payload) if header.base_offset < lane.position]
            if not batches or batches[-1][0].end_offset < lane.position:
                self._too_wide(lane, look, batches)
            else:
                self._take_window(lane, look, batches)
        except TidelogError as error:
            self._fail(lane, error)

    def _too_wide(self, lane: BackwardCursor, look: Look, batches: list[tuple[BatchHeader, memoryview]]) -> None:
        if look.offset + 1 >= lane.position:
            raise refuse("OFFSET_OUT_OF_RANGE", f"no record below {lane.position} is committed")
        if batches:
            lane.room = min(lane.room, sum(header.size for header, _ in batches))
        lane.width //= 2
        lane.max_bytes = lane.room

    def _take_window(self, lane: BackwardCursor, look: Look, batches: list[tuple[BatchHeader, memoryview]]) -> None:
        newest = batches[-1][0].leader_epoch
        if 0 <= lane.epoch < newest:
            text = f"the record below {lane.position} was of leader epoch {lane.epoch}, it is of {newest} now"
            raise refuse("LOG_TRUNCATED", text, leader_epoch=newest)
        low = max(lane.bound, batches[0][0].base_offset)
        size = sum(header.size for header, _ in batches)
        covered = lane.position - low
        for header, data in batches:
            first, end = max(header.base_offset, low), min(header.end_offset, lane.position)
            lane.batches.append(Fetched(lane.partition, header, data, first, end))
        lane.position, lane.epoch = low, batches[0][0].leader_epoch
        lane.width = max(1, min(GROWTH * covered, lane.room * covered // size))
        lane.max_bytes = min(lane.room, GROWTH * size * lane.width // covered)
        self._ready.append(lane)

    def on_error(self, look: Look, error: TidelogError) -> None:
        """It cannot be read. An error that may pass is not for here."""
        lane = self._lanes[look.partition]
        start: Any = error.detail.get("log_start")
        overtaken = error.code == "OFFSET_OUT_OF_RANGE" and isinstance(start, int) and start > look.offset
        if not overtaken or (start >= lane.position and (lane.exact or not lane.checked)):
            self._fail(lane, error)
        elif lane.exact:  # what is left; a later look tells of the rest
            lane.width = min(lane.width, lane.position - start)
        else:
            lane.bound = min(start, lane.position)

    def take(self) -> Fetched | None:
        """The next batch, from the newest to the oldest per partition; None when nothing waits. Raises the error that
        ended a partition when everything above it was taken."""
        if not self._ready:
            if not self.looks():
                for lane in self._lanes.values():
                    if lane.failed is not None:
                        raise lane.failed
            return None
        lane = self._ready.popleft()
        item = lane.batches.pop()
        if lane.batches:
            self._ready.append(lane)
        lane.taken = Position(item.header.leader_epoch if item.first > item.header.base_offset else -1, item.first)
        return item

    def fail(self, fetched: Fetched, error: TidelogError) -> None:
        """The application cannot use the batch that was taken last of its partition, and was told why: nothing more
        of the partition is read."""
        lane = self._lanes[fetched.partition]
        lane.taken = Position(-1, fetched.end)
        lane.batches.clear()
        lane.failed = error
        if lane in self._ready:
            self._ready.remove(lane)

    @property
    def is_finished(self) -> bool:
        """Every partition was read down to its bound."""
        return not any(lane.batches or lane.wants or lane.failed for lane in self._lanes.values())

    def _fail(self, lane: BackwardCursor, error: TidelogError) -> None:
        lane.failed = located(error, self._topic, lane.partition, lane.position)
