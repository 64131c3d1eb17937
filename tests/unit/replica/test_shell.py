"""The replica server's shell: what is not the node's to decide."""

from __future__ import annotations

import errno
import math
import threading
from types import SimpleNamespace
from typing import Any

import trio
from tidelog.net.failure_detector import Patience
from tidelog.net.link import PROTOCOL_VERSION
from tidelog.sansio.recent_sums import WINDOW_S
from tidelog.types import TopicPartition
from tidelog.wire.messages import Hello
from tidelog_replica.effects import StartFlush, StartJob, Stop
from tidelog_replica.shell import ReplicaShell
from trio.testing import MockClock, wait_all_tasks_blocked

WORKERS = 3


class _Flush:
    """Ends when ``WORKERS`` of them run at once."""

    def __init__(self, together: threading.Barrier) -> None:
        self.began = trio.Event()
        self._together = together

    def run(self) -> None:
        trio.from_thread.run_sync(self.began.set)
        self._together.wait(timeout=10)


def make_shell(**inputs: Any) -> ReplicaShell:
    """A shell whose node has only these inputs."""
    node: Any = SimpleNamespace(
        on_controller_up=lambda now: [], on_controller_down=lambda now: [], deadline=lambda: None, **inputs
    )
    transport: Any = None  # nothing is sent
    hello = Hello(PROTOCOL_VERSION, "replica", "r1", "c")
    return ReplicaShell("r1", node, transport, hello, [], trio.current_time, Patience(2.0, 2.0))


async def test_no_flushing_worker_is_lost_when_others_take_its_work() -> None:
    flushed: list[int] = []

    def on_flushed(key: TopicPartition, flush: object, error: OSError | None, now: float) -> list[Any]:
        assert error is None
        flushed.append(key.partition)
        return []

    shell = make_shell(on_flushed=on_flushed)
    together = threading.Barrier(WORKERS)
    async with trio.open_nursery() as nursery:
        for _ in range(WORKERS):
            nursery.start_soon(shell.run_flushes)
        await wait_all_tasks_blocked()
        shell._flush_work.set()  # all wake up, and find that somebody else has taken what there was
        await wait_all_tasks_blocked()
        with trio.fail_after(30):
            for number in range(WORKERS):
                flush: Any = _Flush(together)
                shell._do([StartFlush(TopicPartition("t", number), flush)])
                await flush.began.wait()
            while len(flushed) < WORKERS:
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert sorted(flushed) == list(range(WORKERS))


async def test_a_flush_under_way_counts_when_it_takes_longer_than_those_of_late(autojump_clock: MockClock) -> None:
    shell = make_shell(on_flushed=lambda *_: [])
    go, began = threading.Event(), trio.Event()

    def run() -> None:
        trio.from_thread.run_sync(began.set)
        assert go.wait(timeout=60)

    assert shell.recent_flush_s() == 0.0, "there was none"
    async with trio.open_nursery() as nursery:
        autojump_clock.autojump_threshold = math.inf
        nursery.start_soon(shell.run_flushes)
        flush: Any = SimpleNamespace(run=run)
        shell._do([StartFlush(TopicPartition("t", 0), flush)])
        await began.wait()
        autojump_clock.jump(3.0)
        assert shell.recent_flush_s() == 3.0
        go.set()
        while not shell.counts.flushes.count:
            await trio.lowlevel.checkpoint()
        assert shell.recent_flush_s() == 3.0
        autojump_clock.jump(2 * WINDOW_S)
        assert shell.recent_flush_s() == 0.0
        nursery.cancel_scope.cancel()


async def test_time_in_which_the_timer_waits_although_it_is_due_is_late(autojump_clock: MockClock) -> None:
    shell = make_shell(on_tick=lambda now: [])
    shell.node.deadline = lambda: trio.current_time() + 0.5  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        autojump_clock.autojump_threshold = math.inf
        nursery.start_soon(shell.run_timer)
        for _ in range(4):
            await wait_all_tasks_blocked()
            autojump_clock.jump(2.0)  # 1.5 s after it was due
        await wait_all_tasks_blocked()
        assert shell.late_ratio() == 4 * 1.5 / WINDOW_S
        for _ in range(200):
            autojump_clock.jump(0.5)
            await wait_all_tasks_blocked()
        assert shell.late_ratio() == 0.0
        nursery.cancel_scope.cancel()


class _Job:
    """Ends when it is told to."""

    def __init__(self, go: threading.Event, error: OSError | None = None) -> None:
        self._go = go
        self._error = error

    def run(self) -> object:
        assert self._go.wait(timeout=10)
        if self._error is not None:
            raise self._error
        return "done"


async def test_jobs_run_in_threads_that_no_flush_waits_for() -> None:
    ended: list[tuple[int, object]] = []
    flushed = trio.Event()

    def on_job(key: TopicPartition, job: object, result: object, now: float) -> list[Any]:
        ended.append((key.partition, result))
        return []

    def on_flushed(key: TopicPartition, flush: object, error: OSError | None, now: float) -> list[Any]:
        flushed.set()
        return []

    shell = make_shell(on_job=on_job, on_flushed=on_flushed)
    go, error = threading.Event(), OSError(errno.EIO, "broken")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shell.run_jobs)
        nursery.start_soon(shell.run_flushes)
        with trio.fail_after(30):
            for number in range(5):  # more than there are threads for
                shell._do([StartJob(TopicPartition("t", number), _Job(go, error if number == 1 else None))])
            flush: Any = SimpleNamespace(run=lambda: None)
            shell._do([StartFlush(TopicPartition("t", 0), flush)])
            await flushed.wait()
            assert ended == []
            go.set()
            while len(ended) < 5:
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert dict(ended) == {0: "done", 1: error, 2: "done", 3: "done", 4: "done"}


class _Node:
    """A node that has been asked to end."""

    def __init__(self, *, flush_error: OSError | None = None, close_error: OSError | None = None) -> None:
        self.calls: list[str] = []
        self._close_error = close_error
        self.flush: Any = SimpleNamespace(run=self._run)
        self._flush_error = flush_error

    def _run(self) -> None:
        self.calls.append("flush")
        if self._flush_error is not None:
            raise self._flush_error

    def on_flushed(self, key: TopicPartition, flush: object, error: OSError | None, now: float) -> list[Any]:
        self.calls.append(f"flushed {error or ''}".strip())
        return [Stop("flush failed")] if error else []

    def close(self) -> bool:
        self.calls.append("close")
        if self._close_error is not None:
            raise self._close_error
        return True


def closed(node: _Node) -> list[str]:
    """What a shell with one flush waiting does when it is closed."""
    shell = make_shell(on_flushed=node.on_flushed, close=node.close)
    shell._do([StartFlush(TopicPartition("t", 0), node.flush)])
    shell.close()
    return node.calls


async def test_an_orderly_stop_flushes_waiting_records_before_the_node_is_closed() -> None:
    assert closed(_Node()) == ["flush", "flushed", "close"]


async def test_D6_a_flush_that_fails_in_the_end_leaves_the_node_unclosed() -> None:
    assert closed(_Node(flush_error=OSError("gone"))) == ["flush", "flushed gone"]


async def test_a_node_that_cannot_be_closed_does_not_keep_the_process() -> None:
    assert closed(_Node(close_error=OSError("full"))) == ["flush", "flushed", "close"]


async def test_a_flush_that_was_taken_and_not_begun_is_not_lost_when_the_server_ends() -> None:
    node = _Node()
    shell = make_shell(on_flushed=node.on_flushed, close=node.close)
    shell._do([StartFlush(TopicPartition("t", 0), node.flush)])
    with trio.CancelScope() as scope:
        scope.cancel()
        await shell.run_flushes()
    assert node.calls == []
    shell.close()
    assert node.calls == ["flush", "flushed", "close"]


async def test_the_process_stays_until_the_next_life_cannot_trust_the_disk(autojump_clock: trio.abc.Clock) -> None:
    failures = [OSError("read-only"), OSError("read-only")]

    def distrust() -> None:
        if failures:
            raise failures.pop()

    await make_shell(distrust=distrust).wait_distrusted()
    assert not failures
