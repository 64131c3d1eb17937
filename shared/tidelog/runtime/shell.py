"""What the shells of the three services have in common. A shell drives a core: it brings inputs to the core and
performs the effects that the core returns (``sansio/effects.py``).

Each shell owns one object of each class here, and uses these for:

    AcceptedLinks   ``Answer`` and ``Post``: the open connections that the service has accepted
    EventLog        ``Event``: the lines of the log, and how often each was written
    Wakeup          time: sleep until the core's deadline, or until an input wakes the task earlier

The rest differs by design. ``Send`` and ``Call`` need to know which servers there are, and each service knows others.
When inputs are handled, and in which task, is each shell's own discipline, which its module explains.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import trio

from tidelog.errors import TidelogError, refuse
from tidelog.net.link import Link
from tidelog.runtime import logs
from tidelog.sansio.counters import count
from tidelog.sansio.effects import Answer, Event, Post
from tidelog.types import NodeId
from tidelog.wire.messages import Hello, Message, Welcome


class AcceptedLinks:
    """The open connections that a service has accepted. ``by_source`` has them by the number that cores know."""

    def __init__(self) -> None:
        self.by_source: dict[int, Link] = {}

    def __iter__(self) -> Iterator[Link]:
        return iter(self.by_source.values())

    def __len__(self) -> int:
        return len(self.by_source)

    def add(self, link: Link) -> None:
        """Keep a link that was opened."""
        self.by_source[link.source] = link

    def remove(self, link: Link) -> bool:
        """Forget a link that has ended. Returns whether it was there."""
        return self.by_source.pop(link.source, None) is not None

    def perform(self, effect: Answer | Post) -> None:
        """Send what a core sends back over an accepted link. If the link has ended nothing is sent."""
        link = self.by_source.get(effect.source)
        if link is None:
            return
        if isinstance(effect, Post):
            link.post(effect.message)
        else:
            assert isinstance(effect.message, Message | TidelogError)
            link.answer(effect.id, effect.message)


class EventLog:
    """The log of one service. ``counts`` has the number of lines by event, for the metrics."""

    def __init__(self, **context: object) -> None:
        """``context``: fields that every line has, such as ``node="r1"``."""
        self.counts: dict[str, int] = {}
        self._context = context

    def perform(self, event: Event) -> None:
        """Write the line of an event that a core returned."""
        count(self.counts, event.name)
        logs.perform(event, **self._context)

    def event(self, name: str, /, **fields: object) -> None:
        """Write the line of an event that the shell has seen itself."""
        self.perform(Event(name, fields))


class Wakeup:
    """Lets one task sleep until a deadline, while inputs can wake it earlier."""

    def __init__(self) -> None:
        self.deadline = math.inf
        """When the task wakes up by itself, or did last."""
        self._woken = trio.Event()

    def wake(self) -> None:
        """Let the task run on. If it does not sleep its next sleep ends at once."""
        self._woken.set()

    def wake_before(self, deadline: float | None) -> None:
        """Let the task run on if there is now a deadline before the one until which it sleeps."""
        if deadline is not None and deadline < self.deadline:
            self._woken.set()

    def clear(self) -> None:
        """Forget that ``wake`` was called."""
        self._woken = trio.Event()

    async def sleep(self, deadline: float | None) -> None:
        """Sleep until the deadline, or until ``wake`` is called. None: there is no deadline."""
        self.deadline = math.inf if deadline is None else deadline
        with trio.move_on_at(self.deadline):
            await self._woken.wait()
        self.clear()


def refuse_other_sender(peer: Hello | Welcome, sender: NodeId) -> TidelogError | None:
    """Return the refusal of a replica server's message that names another server as its sender."""
    if peer.role == "replica" and sender != peer.node:
        return refuse("FORBIDDEN", f"{peer.node} speaks for itself only")
    return None
