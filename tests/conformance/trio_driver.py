"""Driver of ``tidelog``, the trio library."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import tidelog
import trio
from asynchronous import Commands


async def main() -> None:
    """Answer the commands on standard input until it ends."""
    async with trio.open_nursery() as nursery:

        async def live(
            manager: AbstractAsyncContextManager[Any],
            end: trio.Event,
            outcome: list[Exception | None],
            task_status: trio.TaskStatus[tuple[Any, Exception | None]],
        ) -> None:
            """The task in which something is open."""
            opened = False
            try:
                async with manager as thing:
                    opened = True
                    task_status.started((thing, None))
                    await end.wait()
                outcome.append(None)
            except Exception as error:
                if not opened:
                    task_status.started((None, error))
                outcome.append(error)

        async def hold(manager: AbstractAsyncContextManager[Any]) -> tuple[Any, Callable[[], Awaitable[None]]]:
            end, ended, outcome = trio.Event(), trio.Event(), []  # type: ignore[var-annotated]

            async def run(task_status: trio.TaskStatus[tuple[Any, Exception | None]]) -> None:
                await live(manager, end, outcome, task_status)
                ended.set()

            thing, failure = await nursery.start(run)
            if failure is not None:
                raise failure

            async def stop() -> None:
                end.set()
                await ended.wait()
                if outcome[0] is not None:
                    raise outcome[0]

            return thing, stop

        commands = Commands(tidelog, hold)
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            print(json.dumps(await commands.answer(json.loads(line))), flush=True)
        nursery.cancel_scope.cancel()


trio.run(main)
