"""Long disk work beside the node: opening, deleting, compacting, scrubbing, repairing a log, in threads.

A job works over the ``Disk`` alone. It runs while the node goes on and shares no object with the node that either
side changes. Its fields hold everything that it needs, and the node takes its result as an input.

A partition has at most one job under way, besides its flush; its other jobs wait, in order. If the topic is deleted
or the log closed meanwhile, the job under way runs to its end, since a thread cannot be stopped, and its result is
dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from tidelog.types import TopicPartition

SCRUB, READ_COPY, RESERVE_DISK, SYNC_FILES = (TopicPartition("", -number) for number in range(1, 5))
"""Keys of the jobs that belong to the server and to no partition. Scrubbing and reading a copy only read, so they
need not wait for jobs that work on the log."""

OnJob = Callable[[object, float], None]
"""Called with a job's result, or the ``OSError`` that ended the job, and the time ``now`` in seconds."""


class Job(Protocol):
    """One piece of disk work that a thread does. It uses nothing but its own fields and files of the disk, and gives
    its result back when it ends."""

    def run(self) -> object:
        """Do the work, in any thread, and return its result. An ``OSError`` that it raises is caught by ``run_job``
        and becomes the result."""


def run_job(job: Job) -> object:
    """Run the job in the calling thread, and return its result or the ``OSError`` that ended it. The shell calls it
    to perform ``StartJob``. Other exceptions are not caught."""
    try:
        return job.run()
    except OSError as error:
        return error


class Jobs:
    """The queues of a node's jobs, one for each partition. ``begin(key, job)`` is called to have a thread run a job;
    the end of the job must be passed to ``on_job``."""

    def __init__(self, begin: Callable[[TopicPartition, Job], None]) -> None:
        self._begin = begin
        self._waiting: dict[TopicPartition, deque[tuple[Job, OnJob | None]]] = {}
        """Waiting jobs by partition, in order, each with the function that takes its result. The first job of a queue
        is under way; a queue is never empty."""

    def start(self, key: TopicPartition, job: Job, done: OnJob) -> None:
        """Queue ``job`` for partition ``key``: a thread runs it as soon as the earlier jobs of the partition have
        ended. ``done`` is then called one time with the result, unless ``forget`` is called for the partition
        before."""
        queue = self._waiting.setdefault(key, deque())
        queue.append((job, done))
        if len(queue) == 1:
            self._begin(key, job)

    def busy(self, key: TopicPartition) -> bool:
        """Return whether a job of the partition is under way or waits."""
        return key in self._waiting

    def forget(self, key: TopicPartition) -> None:
        """Discard the jobs of partition ``key``: those that wait never run, and the result of the job under way is
        dropped. A job that is started later still runs after the one under way. Does nothing if the partition has no
        job."""
        queue = self._waiting.get(key)
        if queue is not None:
            job, _ = queue[0]
            queue.clear()
            queue.append((job, None))

    def on_job(self, key: TopicPartition, job: Job, result: object, now: float) -> None:
        """Take the result of a job that has ended: remove the job, begin the partition's next one, and call the
        function that was given for the result, unless the job was discarded."""
        queue = self._waiting[key]
        ended, done = queue.popleft()
        assert ended is job, f"{key}: one job at a time"
        if queue:
            self._begin(key, queue[0][0])
        else:
            del self._waiting[key]
        if done is not None:
            done(result, now)
