"""Partitions whose state in the metadata is news here, a few at a time: where ten thousand change at once (a server
has failed, or begins a life), heartbeats, fetches and answers go on between. What changes again while it waits keeps
its place, and is acted on once, as it is then."""

from __future__ import annotations

from itertools import islice

from tidelog.types import TopicPartition, TopicState, changed_partitions

from tidelog_replica.timers import Timers

TIMER = ("changes", "")
PAUSE_S = 0.001
"""Between two shares: time for whatever else is ready."""


class Changes:
    """``at_once``: most partitions of a share. The owner asks for the next one when ``TIMER`` is due."""

    def __init__(self, at_once: int, timers: Timers) -> None:
        self._at_once = at_once
        self._timers = timers
        self._waiting: dict[TopicPartition, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, before: TopicState | None, after: TopicState) -> None:
        """The partitions of a topic that are new or not as before."""
        for number in changed_partitions(before, after):
            self._waiting[TopicPartition(after.topic_id, number)] = None

    def take(self, now: float) -> list[TopicPartition]:
        """The next share."""
        share = list(islice(self._waiting, self._at_once))
        for key in share:
            del self._waiting[key]
        self._timers.set(TIMER, now + PAUSE_S if self._waiting else None)
        return share

    def clear(self) -> None:
        """None of them matters any more."""
        self._waiting.clear()
