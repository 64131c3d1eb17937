"""The replica server's shell: what is not the node's to decide."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import trio
from tidelog.link import PROTOCOL_VERSION
from tidelog.types import TopicPartition
from tidelog.wire.messages import Hello
from tidelog_replica.outbox import StartFlush
from tidelog_replica.shell import Shell
from trio.testing import wait_all_tasks_blocked

WORKERS = 3


class _Flush:
    """Ends when ``WORKERS`` of them run at once."""

    def __init__(self, together: threading.Barrier) -> None:
        self.began = trio.Event()
        self._together = together

    def run(self) -> None:
        trio.from_thread.run_sync(self.began.set)
        self._together.wait(timeout=10)


async def test_no_flushing_worker_is_lost_when_others_take_its_work() -> None:
    flushed: list[int] = []

    def on_flushed(key: TopicPartition, flush: object, error: OSError | None, now: float) -> list[Any]:
        assert error is None
        flushed.append(key.partition)
        return []

    node: Any = SimpleNamespace(
        on_controller_up=lambda now: [],
        on_controller_down=lambda now: [],
        deadline=lambda: None,
        on_flushed=on_flushed,
    )
    transport: Any = None  # nothing is sent
    hello = Hello(PROTOCOL_VERSION, "replica", "r1", "c")
    shell = Shell("r1", node, transport, hello, [], trio.current_time)
    together = threading.Barrier(WORKERS)
    async with trio.open_nursery() as nursery:
        for _ in range(WORKERS):
            nursery.start_soon(shell.run_flushes)
        await wait_all_tasks_blocked()
        shell._flush_work.set()  # all wake up, and find that somebody else has taken what there was
        await wait_all_tasks_blocked()
        with trio.fail_after(10):
            for number in range(WORKERS):
                flush: Any = _Flush(together)
                shell._do([StartFlush(TopicPartition("t", number), flush)])
                await flush.began.wait()
            while len(flushed) < WORKERS:
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert sorted(flushed) == list(range(WORKERS))
