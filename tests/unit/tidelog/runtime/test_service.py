"""A service that is cancelled serves on until it has left, or in vain could have."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from tidelog.runtime.service import Leave, Serving, serve_in_order


class Service:
    """Leaves in ``leave_s``, and says what it does."""

    def __init__(self, leave_s: float) -> None:
        self.did: list[tuple[str, float]] = []
        self.failure = trio.Event()
        self._leave_s = leave_s

    def say(self, what: str) -> None:
        self.did.append((what, trio.current_time()))

    async def leave(self) -> None:
        self.say("leaving")
        with trio.move_on_after(self._leave_s) as leaving:
            await trio.sleep_forever()
        assert leaving.cancelled_caught
        self.say("left")

    async def run(self, serving: Serving, task_status: trio.TaskStatus[tuple[Leave, str]]) -> None:
        try:
            with serving.shielded():
                task_status.started((self.leave, "ws://here"))
                await self.failure.wait()
                raise OSError("a disk")
        finally:
            self.say("ended")


def serving(service: Service, patience_s: float) -> Callable[[trio.TaskStatus[str]], Awaitable[None]]:
    async def serve(task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        await serve_in_order(service.run, patience_s, task_status)

    return serve


async def test_a_serving_service_ends_when_it_has_drained(autojump_clock: object) -> None:
    service = Service(leave_s=2.0)
    async with trio.open_nursery() as nursery:
        assert await nursery.start(serving(service, 5.0)) == "ws://here"
        nursery.cancel_scope.cancel()
    assert service.did == [("leaving", 0.0), ("left", 2.0), ("ended", 2.0)]


async def test_nobody_waits_longer_than_patience_lasts(autojump_clock: object) -> None:
    service = Service(leave_s=20.0)
    async with trio.open_nursery() as nursery:
        await nursery.start(serving(service, 5.0))
        nursery.cancel_scope.cancel()
    assert service.did == [("leaving", 0.0), ("ended", 5.0)]


async def test_a_failed_service_ends_without_draining(autojump_clock: object) -> None:
    service = Service(leave_s=2.0)
    with pytest.RaisesGroup(pytest.RaisesGroup(OSError)):
        async with trio.open_nursery() as nursery:
            await nursery.start(serving(service, 5.0))
            service.failure.set()
    assert service.did == [("ended", 0.0)]
