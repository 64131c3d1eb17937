"""The client's ``Loop`` on asyncio; ``tidelog.client.loop`` says what each method promises."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext, suppress
from math import inf

from tidelog.aio.link import connect_link
from tidelog.client.loop import GatewayLink, Handler, LoopEvent, Work
from tidelog.errors import TidelogError
from tidelog.net.tls import TlsFiles
from tidelog.wire.messages import Hello


class AsyncioLoop:
    """The client's ``Loop`` on asyncio, which opens its links with the package ``websockets``."""

    def __init__(self, tls: TlsFiles) -> None:
        self._tls = tls

    def now(self) -> float:
        """Return the time of the running asyncio loop, in seconds."""
        return asyncio.get_running_loop().time()

    def event(self) -> LoopEvent:
        """Return a new ``asyncio.Event`` that is not set."""
        return asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        """Wait for this many seconds, while other tasks run."""
        await asyncio.sleep(seconds)

    async def checkpoint(self) -> None:
        """Let other tasks run, then go on."""
        await asyncio.sleep(0)

    async def wait(self, event: LoopEvent, deadline: float = inf) -> None:
        """Wait until the event is set or ``deadline`` (loop time) has passed, whichever is first."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(None if deadline == inf else deadline):
                await event.wait()

    async def gather(self, calls: Iterable[Work]) -> None:
        """Run all calls concurrently, and return when all have returned. The first ``TidelogError`` cancels the
        others and is raised, not in an exception group."""
        errors: list[TidelogError] = []

        async def one(call: Work) -> None:
            try:
                await call()
            except TidelogError as error:
                errors.append(error)
                raise

        try:
            async with asyncio.TaskGroup() as group:
                for call in calls:
                    group.create_task(one(call))
        except* TidelogError:
            raise errors[0] from None

    @asynccontextmanager
    async def tasks(self) -> AsyncIterator[Callable[[Work], None]]:
        """Run tasks beside the block: each call ``start(work)`` of the yielded function starts one. All tasks are
        cancelled at the end of the block. An exception of the block is raised as it is, not in an exception group."""
        running: list[asyncio.Task[None]] = []
        failure: Exception | None = None
        async with asyncio.TaskGroup() as group:

            def start(work: Work) -> None:
                running.append(group.create_task(_run(work)))

            try:
                yield start
            except Exception as error:
                failure = error  # raised below, bare: the group would wrap it
            for task in running:
                task.cancel()
        if failure is not None:
            raise failure

    def shielded(self) -> AbstractContextManager[object]:
        """Return a context manager that does nothing: asyncio raises a cancellation once, and does not interrupt
        later waits."""
        return nullcontext()

    def open_link(self, url: str, hello: Hello, handler: Handler) -> AbstractAsyncContextManager[GatewayLink]:
        """Return a context manager that opens a link to a gateway and closes it at the end of the block. ``handler``
        is called with the messages that arrive."""
        return connect_link(url, self._tls, hello, handler)


async def _run(work: Work) -> None:
    await work()
