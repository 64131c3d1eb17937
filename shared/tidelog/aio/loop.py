"""The client's loop on asyncio; see ``tidelog.client.loop``."""

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
    """``Loop`` on asyncio, its links over the package ``websockets``."""

    def __init__(self, tls: TlsFiles) -> None:
        self._tls = tls

    def now(self) -> float:
        """Return the running loop's time."""
        return asyncio.get_running_loop().time()

    def event(self) -> LoopEvent:
        """Return a new event."""
        return asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        """Sleep for this many seconds."""
        await asyncio.sleep(seconds)

    async def checkpoint(self) -> None:
        """Let other tasks run."""
        await asyncio.sleep(0)

    async def wait(self, event: LoopEvent, deadline: float = inf) -> None:
        """Wait until the event is set or the deadline has passed."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(None if deadline == inf else deadline):
                await event.wait()

    async def gather(self, calls: Iterable[Work]) -> None:
        """Run all calls concurrently; the first error ends the others."""
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
        """Run tasks beside the block."""
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
        """Return an empty scope: asyncio raises a cancellation once, and does not interrupt later waits."""
        return nullcontext()

    def open_link(self, url: str, hello: Hello, handler: Handler) -> AbstractAsyncContextManager[GatewayLink]:
        """Open a link to a gateway."""
        return connect_link(url, self._tls, hello, handler)


async def _run(work: Work) -> None:
    await work()
