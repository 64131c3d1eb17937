"""What happened lately in one consumer group: for operators, in the answer to ``DescribeGroup``.

Three questions are answered here that the present state of a group cannot answer. Why does it rebalance (members that
joined, left or were expelled, and refused commits)? How fast does it process (``Pace``)? Did somebody move a position
that its members had committed (``MovedPosition``)?

No decision depends on any of it. It is kept in memory only, so a new coordinator knows nothing of what was before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from tidelog.types import TopicPartition
from tidelog.wire.messages import GroupEvent, MovedPosition

from tidelog_replica.coordinators.groups.records import OffsetRecord

MOST_EVENTS = 64
"""Most events that are kept of a group; the oldest goes."""
MOST_MOVED = 100
"""Most positions of a group that are kept as moved from outside; the oldest goes."""
PASSED_MS = 60_000
"""Milliseconds for which a position that was set back is reported after members have passed where it was."""
MERGED_MS = 10_000
"""Milliseconds within which refused commits of one member with one code are one event with their number."""
PACE_MS = 10_000
"""Milliseconds over which the pace of a group in a partition is measured at least, once it has committed for so
long."""
JOINED, LEFT, SILENT, SLOW, REFUSED = "joined", "left", "expelled_silent", "expelled_slow", "commit_refused"
"""Kinds of events. ``expelled_silent``: no heartbeat came for the session timeout. ``expelled_slow``: partitions were
not given up within the rebalance timeout."""


class Pace(NamedTuple):
    """Two earlier positions of a group in a partition: ``newer`` is at most ``PACE_MS`` older than the position when
    that was committed, ``older`` at most twice as old; each is (offset, milliseconds since 1970)."""

    older: tuple[int, int]
    newer: tuple[int, int]


class RecentEvents:
    """What happened lately in one consumer group. Times are milliseconds of the wall clock since 1970."""

    def __init__(self) -> None:
        self._events: deque[GroupEvent] = deque(maxlen=MOST_EVENTS)
        self._moved: dict[TopicPartition, MovedPosition] = {}
        self._paces: dict[TopicPartition, Pace] = {}

    @property
    def events(self) -> tuple[GroupEvent, ...]:
        """Return the events that are kept, the oldest first."""
        return tuple(self._events)

    def moved(self, now_ms: int) -> tuple[MovedPosition, ...]:
        """Return the positions that were moved by a client that is no member, without those that were set back and
        that members have passed more than ``PASSED_MS`` ago."""
        return tuple(one for one in self._moved.values() if one.passed_ms < 0 or now_ms - one.passed_ms <= PASSED_MS)

    def earlier(self, partition: TopicPartition) -> tuple[int, int]:
        """Return an earlier position of the group in the partition, and when it was committed; (-1, -1) if none is
        known."""
        pace = self._paces.get(partition)
        return (-1, -1) if pace is None else pace.older

    def add_joined(self, ms: int, member: str, node: str) -> None:
        """Add that a member has joined. ``node``: the name of its program."""
        self._events.append(GroupEvent(JOINED, ms, member, node))

    def add_gone(self, event: str, ms: int, member: str, node: str, timeout_ms: int, *, advanced: bool) -> None:
        """Add that a member has left or was expelled. ``timeout_ms``: the timeout that it exceeded. ``advanced``:
        whether it had moved a position forward."""
        self._events.append(GroupEvent(event, ms, member, node, timeout_ms=timeout_ms, advanced=advanced))

    def add_refused(self, ms: int, member: str, node: str, code: str) -> None:
        """Add a refused commit of a client that says it is ``member``. Within ``MERGED_MS`` those of one member with
        one code are one event with their number, so that they do not push out all others."""
        for place, event in enumerate(self._events):
            if (event.event, event.member, event.code) == (REFUSED, member, code) and ms - event.time_ms < MERGED_MS:
                self._events[place] = replace(event, times=event.times + 1)
                return
        self._events.append(GroupEvent(REFUSED, ms, member, node, code))

    def on_commit(
        self, before: Mapping[TopicPartition, OffsetRecord], offsets: Mapping[TopicPartition, OffsetRecord]
    ) -> None:
        """Record a commit of ``offsets``, where the positions were ``before``."""
        for partition, new in offsets.items():
            old = before.get(partition)
            here = new.offset, new.ms
            pace = self._paces.get(partition)
            if pace is None or old is None or new.offset < old.offset:
                self._paces[partition] = Pace(here, here)
            elif new.ms - pace.newer[1] >= PACE_MS:
                self._paces[partition] = Pace(pace.newer, here)
            if old is not None:
                self._on_moved(partition, old, new)

    def _on_moved(self, partition: TopicPartition, old: OffsetRecord, new: OffsetRecord) -> None:
        """Keep a position that a member had committed and a client that is no member has changed. Forget it when it
        is put back; note when a member has passed the place from where it was set back. A client that is no member
        and commits what it processes goes on from there, so that this is no new change."""
        moved = self._moved.get(partition)
        if new.member:
            if moved is not None and moved.passed_ms < 0 and moved.after < moved.before <= new.offset:
                self._moved[partition] = replace(moved, passed_ms=new.ms)
            return
        before = old.offset if moved is None or moved.after != old.offset else moved.before
        if new.offset in (before, before if moved is None else moved.before):
            self._moved.pop(partition, None)
        elif old.member or moved is not None:
            if moved is None and len(self._moved) >= MOST_MOVED:
                del self._moved[next(iter(self._moved))]
            ms = new.ms
            if moved is not None and moved.after == old.offset < new.offset and not old.offset < before < new.offset:
                ms = moved.time_ms
            self._moved[partition] = MovedPosition(*partition, before, new.offset, ms)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget what is kept of partitions whose positions are deleted."""
        for partition in partitions:
            self._paces.pop(partition, None)
            self._moved.pop(partition, None)
