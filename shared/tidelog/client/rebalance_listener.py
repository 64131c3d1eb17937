"""Callbacks of an application for the partitions that a member of a group gets and loses."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

Hook = Callable[[list[tuple[str, int]]], Awaitable[None] | None]
"""A callback with a list of (topic, partition)."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """Called with the partitions that come and go; plain or async functions."""

    on_assigned: Hook | None = None
    """These partitions are read from now on."""
    on_revoked: Hook | None = None
    """These partitions are given up: the last chance to finish work on them and to ``commit``."""
    on_lost: Hook | None = None
    """These partitions are gone already; other members may process them by now."""


NO_HOOKS = Hooks()


async def call_hook(hook: Hook | None, partitions: list[tuple[str, int]]) -> None:
    """Call the callback, if there is one and the list is not empty."""
    if hook is not None and partitions:
        result = hook(partitions)
        if inspect.isawaitable(result):
            await result
