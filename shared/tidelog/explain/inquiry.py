"""Requests to a cluster in parallel, within a bound for all together. Some may fail: what fails is part of an answer,
and a request without an answer holds up no other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import trio

from tidelog.errors import TidelogError, refuse

if TYPE_CHECKING:
    from tidelog.client.log import Log
    from tidelog.wire.messages import PartitionInfo, TopicInfo

ASK_S = 5.0
"""Longest time in seconds that the requests of one round may take."""
AT_ONCE = 16
"""Most requests that wait for an answer at the same time."""
T = TypeVar("T")


@dataclass(slots=True)
class Asked(Generic[T]):
    """A request and what has become of it: ``value`` if it was answered, ``error`` if it failed, neither if no answer
    came within ``ASK_S``."""

    what: str
    """What was asked for, as the subject of "… is not known"."""
    value: T | None = None
    error: TidelogError | None = None

    @property
    def failed(self) -> str:
        """Return a sentence about a request that was not answered; "" if it was."""
        if self.value is not None:
            return ""
        return f"{self.what} is not known: {self.error or f'no answer within {ASK_S:.0f} s'}"


class Inquiry:
    """Requests that are sent in rounds, ``AT_ONCE`` at the same time. After a round all are answered, have failed, or
    have been given up after ``ASK_S``. Errors of a lost connection (``UNREACHABLE``, ``CLOSED``) are kept like all
    others."""

    def __init__(self) -> None:
        self._limit = trio.CapacityLimiter(AT_ONCE)
        self._calls: list[tuple[Asked[object], Callable[[], Awaitable[object]]]] = []
        self.asked: list[Asked[object]] = []
        """Every request of the inquiry, in their order."""

    def ask(self, what: str, call: Callable[[], Awaitable[T]]) -> Asked[T]:
        """Add a request to the inquiry and return it; it is sent when ``run`` is called. The result must not be
        None."""
        asked: Asked[T] = Asked(what)
        self._calls.append((asked, call))  # type: ignore[arg-type]
        self.asked.append(asked)  # type: ignore[arg-type]
        return asked

    async def run(self, within_s: float = ASK_S) -> None:
        """Send the requests that were added since the last call, and wait for them, but no longer than
        ``within_s``."""
        calls, self._calls = self._calls, []
        with trio.move_on_after(within_s):
            async with trio.open_nursery() as nursery:
                for asked, call in calls:
                    nursery.start_soon(self._ask, asked, call)

    async def _ask(self, asked: Asked[object], call: Callable[[], Awaitable[object]]) -> None:
        try:
            async with self._limit:
                asked.value = await call()
        except TidelogError as error:
            asked.error = error

    def failures(self) -> tuple[str, ...]:
        """Return a sentence for each request that was not answered, without repetitions."""
        return tuple(dict.fromkeys(asked.failed for asked in self.asked if asked.failed))


async def describe_partition(log: Log, topic: str, partition: int) -> tuple[TopicInfo, PartitionInfo]:
    """Return the metadata of a topic and of one of its partitions. Raises ``UNKNOWN_TOPIC``, also if the topic has no
    such partition."""
    found = await log.topics.describe(topic)
    if not 0 <= partition < len(found.partitions):
        raise refuse("UNKNOWN_TOPIC", f"{topic} has partitions 0 to {len(found.partitions) - 1}, not {partition}")
    return found, found.partitions[partition]
