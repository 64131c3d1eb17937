"""What an application may be told of the partitions that a member of a group gets and loses."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

Hook = Callable[[list[tuple[str, int]]], Awaitable[None] | None]
"""Is told of partitions: (topic, partition)."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """Called with the partitions that come and go; plain or async."""

    on_assigned: Hook | None = None
    """These are read from now on."""
    on_revoked: Hook | None = None
    """These are given up: the last chance to bring something to an end and to ``commit``."""
    on_lost: Hook | None = None
    """These are gone already; others may process them by now."""


NO_HOOKS = Hooks()


async def tell(hook: Hook | None, partitions: list[tuple[str, int]]) -> None:
    """Call it, if there is one and something to tell."""
    if hook is not None and partitions:
        result = hook(partitions)
        if inspect.isawaitable(result):
            await result
