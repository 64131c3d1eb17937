"""Driver of ``tidelog.aio``, the asyncio library."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import tidelog.aio
from asynchronous import Commands


async def hold(manager: AbstractAsyncContextManager[Any]) -> tuple[Any, Callable[[], Awaitable[None]]]:
    """Enter a context manager in a task of its own; returns its value and the function that ends it."""
    opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    end = asyncio.Event()

    async def live() -> None:
        async with manager as thing:
            opened.set_result(thing)
            await end.wait()

    task = asyncio.create_task(live())
    await asyncio.wait([opened, task], return_when=asyncio.FIRST_COMPLETED)
    if not opened.done():
        await task  # raises

    async def stop() -> None:
        end.set()
        await task

    return opened.result(), stop


async def main() -> None:
    """Answer the commands on standard input until it ends."""
    commands = Commands(tidelog.aio, hold)
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await commands.answer(json.loads(line))), flush=True)


asyncio.run(main())
assert "trio" not in sys.modules
