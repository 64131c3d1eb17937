"""Long disk work in threads: one job of a partition at a time, in order; what nobody wants any more ends unheard."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from tidelog.types import TopicPartition
from tidelog_replica.effects import Effects, StartJob
from tidelog_replica.jobs import run_job

ONE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


class Work:
    def __init__(self, result: object = None) -> None:
        self.result = result

    def run(self) -> object:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


class Desk:
    """An outbox, and who has heard of what."""

    def __init__(self) -> None:
        self.outbox = Effects()
        self.jobs = self.outbox.jobs
        self.heard: list[tuple[object, float]] = []

    def start(self, key: TopicPartition, result: object = None) -> Work:
        job = Work(result)
        self.jobs.start(key, job, lambda result, now: self.heard.append((result, now)))
        return job

    def begun(self) -> list[Any]:
        """Jobs that threads were given since the last time."""
        effects = self.outbox.drain()
        assert all(isinstance(effect, StartJob) for effect in effects)
        return [effect.job for effect in effects]  # type: ignore[union-attr]

    def end(self, key: TopicPartition, job: Work, now: float = 1.0) -> None:
        self.jobs.on_job(key, job, run_job(job), now)


def test_a_job_ends_with_its_result_or_with_the_error_of_the_disk() -> None:
    desk = Desk()
    job = desk.start(ONE, 42)
    assert desk.begun() == [job]
    assert desk.jobs.busy(ONE)
    desk.end(ONE, job, 7.0)
    assert desk.heard == [(42, 7.0)]
    assert not desk.jobs.busy(ONE)
    failed = OSError(errno.EIO, "broken")
    assert run_job(Work(failed)) is failed


def test_a_bug_in_a_job_is_no_result() -> None:
    with pytest.raises(ZeroDivisionError):
        run_job(Work(ZeroDivisionError()))


def test_a_partition_has_one_job_at_a_time_in_order() -> None:
    desk = Desk()
    first, second, third = desk.start(ONE, 1), desk.start(ONE, 2), desk.start(ONE, 3)
    beside = desk.start(OTHER, 4)
    assert desk.begun() == [first, beside]
    desk.end(ONE, first)
    assert desk.begun() == [second]
    desk.end(OTHER, beside)
    assert desk.begun() == []
    desk.end(ONE, second)
    assert desk.begun() == [third]
    desk.end(ONE, third)
    assert [result for result, _ in desk.heard] == [1, 4, 2, 3]
    assert not desk.jobs.busy(ONE)


def test_forgotten_jobs_never_run_or_end_unheard() -> None:
    desk = Desk()
    running, waiting = desk.start(ONE, 1), desk.start(ONE, 2)
    assert desk.begun() == [running]
    desk.jobs.forget(ONE)
    desk.jobs.forget(OTHER)
    later = desk.start(ONE, 3)
    assert desk.begun() == [], "one at a time, also after those that are forgotten"
    desk.end(ONE, running)
    assert desk.begun() == [later] and waiting is not later
    desk.end(ONE, later)
    assert [result for result, _ in desk.heard] == [3]


def test_a_job_that_ends_may_start_the_next() -> None:
    desk = Desk()
    first, second = Work(), Work()
    desk.jobs.start(ONE, first, lambda result, now: desk.jobs.start(ONE, second, lambda result, now: None))
    assert desk.begun() == [first]
    desk.end(ONE, first)
    assert desk.begun() == [second]
