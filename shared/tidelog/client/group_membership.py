"""The task of a group member: it sends the requests and commits that its core asks for, as long as the membership
lasts. It passes assigned, revoked and lost partitions on to the consumer."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tidelog.client.connection import GatewayConnection
from tidelog.client.core.group_member import (
    Assigned,
    CommitDue,
    CommitPositions,
    Committed,
    Effect,
    Lost,
    MemberCore,
    Revoked,
    SendRequest,
)
from tidelog.client.loop import LoopEvent
from tidelog.errors import TidelogError
from tidelog.types import Position, TopicPartition
from tidelog.wire.messages import Message

Keys = tuple[TopicPartition, ...]


class Owner(Protocol):
    """The interface of a group consumer towards its membership, which calls it with every change. No method may
    wait."""

    def on_assigned(self, keys: Keys) -> None:
        """Begin to read these partitions, each at the group's committed position."""

    def on_revoked(self, keys: Keys) -> None:
        """Finish the application's work on these partitions, commit their positions, and call
        ``Membership.release``."""

    def on_lost(self, keys: Keys) -> None:
        """Stop reading these partitions at once: other members may own them, and their positions cannot be
        committed."""

    def on_commit_due(self) -> None:
        """Commit the positions after the records that the application has finished, because the commit interval is
        over."""

    def on_over(self) -> None:
        """Give the application no more records, and wake a task that waits for one: the membership has ended.
        ``MemberCore.error`` has the reason; it is None if the member left."""


@dataclass(slots=True)
class _UnderWay:
    """A commit that was sent and has no answer yet. The event ``over`` is set with the answer; ``error`` is then the
    failure, or None."""

    over: LoopEvent
    error: TidelogError | None = None


class Membership:
    """The task that keeps a consumer in its group: it performs the effects of ``MemberCore``. It ends when the member
    has left or was refused, when the owner was garbage-collected, or when the connection is closed."""

    def __init__(self, connection: GatewayConnection, core: MemberCore, owner: Owner, *, keep: bool) -> None:
        self.core = core
        self._connection = connection
        self._loop = connection.loop
        self._owner = weakref.ref(owner)
        self._keep = keep
        self._wake = self._loop.event()
        self._over = self._loop.event()
        self._heard = self._loop.event()
        self._commits: _UnderWay | None = None

    async def run(self) -> None:
        """Send the join request, heartbeats and commits that the core asks for, until the membership is over. If the
        owner is garbage-collected, or the connection is being closed, the member leaves the group. At the end
        ``owner.on_over`` is called."""
        self._connection.on_close[self] = self.go
        try:
            while not self.core.is_over:
                if self._owner() is None:
                    self.go()
                self.tick()
                self._wake = self._loop.event()
                deadline = self.core.deadline()
                await self._loop.wait(self._wake, math.inf if deadline is None else deadline)
        finally:
            self._connection.on_close.pop(self, None)
            self._perform(self.core.stop())
            self._over.set()
            self._heard.set()
            if (owner := self._owner()) is not None:
                owner.on_over()

    def tick(self) -> None:
        """Perform everything that is due now in the core, such as a heartbeat. If the session has timed out, the
        owner loses all its partitions."""
        self._perform(self.core.on_tick(self._loop.now()))

    def release(self, keys: Keys) -> None:
        """Release partitions that the owner has finished and committed: a heartbeat that no longer names them is sent
        at once, or after the answer that is awaited."""
        self._perform(self.core.on_released(keys, self._loop.now()))

    def go(self) -> LoopEvent:
        """Begin to leave the group, and return the event that is set when the membership has ended. A static member
        (``keep``) keeps its partitions for the session timeout."""
        self._perform(self.core.leave(self._loop.now(), keep=self._keep))
        return self._over

    async def hear(self) -> None:
        """Send a heartbeat at once, and wait until a request that is sent from now on is answered, or the membership
        is over. Then ``core`` has the generation and the share that the coordinator gave meanwhile."""
        asked = self.core.asked
        self._perform(self.core.ask_at_once(self._loop.now()))
        while not self.core.is_over and self.core.answered <= asked:
            await self._heard.wait()

    async def commit(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Commit these positions and wait until they are stored; positions of partitions that are not owned are left
        out. Waits first if another commit is under way. Raises ``UNKNOWN_MEMBER``, ``FENCED_GENERATION``,
        ``FENCED_INSTANCE`` (other members own the partitions by now), ``UNREACHABLE`` or ``CLOSED``."""
        while self._commits is not None:
            await self._commits.over.wait()
        mine = self._commits = _UnderWay(self._loop.event())
        self._perform(self.core.commit(positions))
        await mine.over.wait()
        if mine.error is not None:
            raise mine.error

    # --- effects ---------------------------------------------------------------------------------------------

    def _perform(self, effects: list[Effect]) -> None:
        """Perform effects of the core: start tasks that send requests, end the commit under way, and call the owner.
        Wakes ``run``, which computes its deadline anew."""
        owner = self._owner()
        for effect in effects:
            match effect:
                case SendRequest():
                    self._connection.start(self._ask, effect)
                case CommitPositions():
                    self._connection.start(self._commit, effect)
                case Committed(error):
                    if self._commits is not None:
                        self._commits.error = error
                        self._commits.over.set()
                        self._commits = None
                case Assigned(keys) if owner is not None:
                    owner.on_assigned(keys)
                case Revoked(keys) if owner is not None:
                    owner.on_revoked(keys)
                case Lost(keys) if owner is not None:
                    owner.on_lost(keys)
                case CommitDue() if owner is not None:
                    owner.on_commit_due()
        self._wake.set()

    async def _ask(self, ask: SendRequest) -> None:
        answer = await self._call(ask.request)
        self._perform(self.core.on_answer(ask.number, answer, self._loop.now()))
        self._heard.set()
        self._heard = self._loop.event()

    async def _commit(self, commit: CommitPositions) -> None:
        answer = await self._call(commit.request)
        error = answer if isinstance(answer, TidelogError) else None
        self._perform(self.core.on_committed(commit.request, error, self._loop.now()))

    async def _call(self, request: Message) -> Message | TidelogError:
        """Return the answer to a request, or the error with which it failed."""
        try:
            return await self._connection.call(request)
        except TidelogError as error:
            return error
