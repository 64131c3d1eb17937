"""Removes the topic and the groups that a recording has created in the cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial

import trio

from tidelog.client.log import Log
from tidelog.errors import TidelogError
from tidelog.verify.workload import PAUSE_S

PATIENCE_S = 60.0
"""Seconds for which a deletion is tried again: a member that did not leave stays in its group until its session
ends."""
_GONE = ("UNKNOWN_GROUP", "UNKNOWN_TOPIC")


@dataclass(frozen=True, slots=True)
class Leftovers:
    """The names of the topic ("" if it existed before) and of the groups that a recording has created in the cluster.
    ``str`` of it lists all of them."""

    topic: str
    groups: tuple[str, ...]

    def __str__(self) -> str:
        names = ([f"topic {self.topic}"] if self.topic else []) + [f"group {group}" for group in self.groups]
        return ", ".join(names)


async def missing_groups(log: Log, groups: Iterable[str]) -> tuple[str, ...]:
    """Look up these groups in the cluster, and return the names of those that do not exist. Raises the client's
    errors."""
    found: list[str] = []
    for group in groups:
        try:
            await log.groups.describe(group)
        except TidelogError as error:
            if error.code != "UNKNOWN_GROUP":
                raise
            found.append(group)
    return tuple(found)


async def remove(log: Log, leftovers: Leftovers, patience_s: float = PATIENCE_S) -> list[str]:
    """Delete the groups, then the topic, in the cluster. An object that does not exist counts as deleted. A deletion
    that fails for a passing reason is tried again for ``patience_s`` seconds. Return a text for each object that
    could not be deleted; an empty list if all were."""
    stays: list[str] = []
    give_up = trio.current_time() + patience_s

    async def gone(what: str, delete: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await delete()
                return
            except TidelogError as error:
                if error.code in _GONE:
                    return
                passes = error.retriable or error.unknown_outcome or error.code == "GROUP_NOT_EMPTY"
                if not passes or trio.current_time() > give_up:
                    stays.append(f"{what} stays: {error}")
                    return
            await trio.sleep(PAUSE_S)

    for group in leftovers.groups:
        await gone(f"group {group}", partial(log.groups.delete, group))
    if leftovers.topic:
        await gone(f"topic {leftovers.topic}", partial(log.topics.delete, leftovers.topic))
    return stays
