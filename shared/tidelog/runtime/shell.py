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
from typing import Generic, Protocol, TypeVar

import trio

from tidelog.errors import TidelogError, refuse
from tidelog.runtime import logs
from tidelog.sansio.counters import count
from tidelog.sansio.effects import Answer, Event, Post
from tidelog.types import NodeId
from tidelog.wire.messages import Hello, Message, Welcome


class AcceptedLink(Protocol):
    """A link that a service has accepted, as far as effects need it."""

    @property
    def source(self) -> int:
        """Return the number of this link, unique in this process."""

    def post(self, message: Message) -> None:
        """Send a one-way message without waiting."""

    def answer(self, id: int, message: Message | TidelogError) -> None:
        """Send the answer, or the error, to the request with number ``id`` without waiting."""


AnyLink = TypeVar("AnyLink", bound=AcceptedLink)


class AcceptedLinks(Generic[AnyLink]):
    """The open links that a service has accepted. ``by_source`` has each link under its number, by which cores name
    it in their effects."""

    def __init__(self) -> None:
        self.by_source: dict[int, AnyLink] = {}

    def __iter__(self) -> Iterator[AnyLink]:
        return iter(self.by_source.values())

    def __len__(self) -> int:
        return len(self.by_source)

    def add(self, link: AnyLink) -> None:
        """Add a link that was accepted, so that effects can be sent over it."""
        self.by_source[link.source] = link

    def remove(self, link: AnyLink) -> bool:
        """Remove a link that has closed. Return whether it was in the table."""
        return self.by_source.pop(link.source, None) is not None

    def perform(self, effect: Answer | Post) -> None:
        """Perform an effect of a core: send an answer or a one-way message over the accepted link that the effect
        names. If that link has closed, nothing is sent."""
        link = self.by_source.get(effect.source)
        if link is None:
            return
        if isinstance(effect, Post):
            link.post(effect.message)
        else:
            assert isinstance(effect.message, Message | TidelogError)
            link.answer(effect.id, effect.message)


class EventLog:
    """The log of one service, which also counts its lines. ``counts`` has their number by event, for the metrics."""

    def __init__(self, **context: object) -> None:
        """``context``: fields that are added to every line, such as ``node="r1"``."""
        self.counts: dict[str, int] = {}
        self._context = context

    def perform(self, event: Event) -> None:
        """Perform an effect of a core: write the log line of an event, and count it."""
        count(self.counts, event.name)
        logs.perform(event, **self._context)

    def event(self, name: str, /, **fields: object) -> None:
        """Write the log line of an event that the shell itself has noticed, with these fields, and count it."""
        self.perform(Event(name, fields))


class Wakeup:
    """The sleep of one task of a shell, which ends at a deadline, or earlier when an input wakes the task. Deadlines
    are in seconds of trio's clock."""

    def __init__(self) -> None:
        self.deadline = math.inf
        """Until when the task sleeps, or slept last (trio's clock); infinite without a deadline."""
        self._woken = trio.Event()

    def wake(self) -> None:
        """Wake the task. If it does not sleep, its next sleep ends at once."""
        self._woken.set()

    def wake_before(self, deadline: float | None) -> None:
        """Wake the task if ``deadline`` (seconds) is earlier than the one until which it sleeps. Does nothing for
        None, which means no deadline."""
        if deadline is not None and deadline < self.deadline:
            self._woken.set()

    def clear(self) -> None:
        """Forget that ``wake`` was called, so that the next sleep does not end at once."""
        self._woken = trio.Event()

    async def sleep(self, deadline: float | None) -> None:
        """Sleep until ``deadline`` (trio's clock) or until ``wake`` is called, whichever is first; None: until
        ``wake`` is called. Returns at once if ``wake`` was called since the last sleep."""
        self.deadline = math.inf if deadline is None else deadline
        with trio.move_on_at(self.deadline):
            await self._woken.wait()
        self.clear()


def refuse_other_sender(peer: Hello | Welcome, sender: NodeId) -> TidelogError | None:
    """Return ``FORBIDDEN`` if ``peer`` is a replica server and its message names another server, ``sender``, as its
    sender. None otherwise."""
    if peer.role == "replica" and sender != peer.node:
        return refuse("FORBIDDEN", f"{peer.node} speaks for itself only")
    return None
