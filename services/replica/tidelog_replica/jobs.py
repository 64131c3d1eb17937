"""Long disk work beside the node: opening, deleting, compacting, scrubbing, repairing a log, in threads.

A job works over the ``Disk`` alone. It runs while the node goes on and shares no object with it that either side
changes: what a job needs it is given, what it found out is its result, which the node takes in as an input.

A partition has at most one job under way, besides its flush; others wait their turn, in order. Where its owner has
lost interest meanwhile (the topic is deleted, the log closed) the job still ends, since a thread cannot be stopped,
and nobody hears of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from tidelog.types import TopicPartition

OnJob = Callable[[object, float], None]
"""Takes a job's result, or the ``OSError`` that ended it, and ``now``."""


class Job(Protocol):
    """One piece of work. Everything it touches but its own fields is the disk's."""

    def run(self) -> object:
        """Do it, in any thread. An ``OSError`` becomes the result."""


def run_job(job: Job) -> object:
    """What ``job`` comes to: its result, or the ``OSError`` that ended it. For whoever performs ``StartJob``."""
    try:
        return job.run()
    except OSError as error:
        return error


class Jobs:
    """Who waits for which job. ``begin(key, job)`` has one run; its end comes back to ``on_job``."""

    def __init__(self, begin: Callable[[TopicPartition, Job], None]) -> None:
        self._begin = begin
        self._waiting: dict[TopicPartition, deque[tuple[Job, OnJob | None]]] = {}
        """The first of each queue is under way; a queue is never empty."""

    def start(self, key: TopicPartition, job: Job, done: OnJob) -> None:
        """Have ``job`` run after those of the same partition that were started before. ``done`` is called once,
        unless the partition's jobs are forgotten."""
        queue = self._waiting.setdefault(key, deque())
        queue.append((job, done))
        if len(queue) == 1:
            self._begin(key, job)

    def busy(self, key: TopicPartition) -> bool:
        """Whether a job of the partition is under way."""
        return key in self._waiting

    def forget(self, key: TopicPartition) -> None:
        """Nobody wants to hear of the partition's jobs any more: those that wait never run, the one under way ends
        unheard. A job that is started after this still runs after that one."""
        queue = self._waiting.get(key)
        if queue is not None:
            job, _ = queue[0]
            queue.clear()
            queue.append((job, None))

    def on_job(self, key: TopicPartition, job: Job, result: object, now: float) -> None:
        """A job has ended."""
        queue = self._waiting[key]
        ended, done = queue.popleft()
        assert ended is job, f"{key}: one job at a time"
        if queue:
            self._begin(key, queue[0][0])
        else:
            del self._waiting[key]
        if done is not None:
            done(result, now)
