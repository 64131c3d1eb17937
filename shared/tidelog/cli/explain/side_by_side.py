"""Questions to many at the same time, within a bound for all together: one without an answer holds up no other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import trio

from tidelog.errors import TidelogError

AT_ONCE = 8
"""Most questions that wait for an answer at the same time."""


async def ask_each(
    names: Iterable[str], ask: Callable[[str], Awaitable[None]], within_s: float
) -> dict[str, TidelogError | None]:
    """Call ``ask`` with each name, ``AT_ONCE`` at the same time, for at most ``within_s`` seconds altogether. Returns
    the names without an answer, each with the error of its question; None: there was no answer in time."""
    failed: dict[str, TidelogError | None] = dict.fromkeys(names)
    limit = trio.CapacityLimiter(AT_ONCE)

    async def ask_one(name: str) -> None:
        async with limit:
            try:
                await ask(name)
            except TidelogError as error:
                failed[name] = error
            else:
                del failed[name]

    with trio.move_on_after(within_s):
        async with trio.open_nursery() as nursery:
            for name in list(failed):
                nursery.start_soon(ask_one, name)
    return failed
