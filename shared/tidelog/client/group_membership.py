"""The task of a group member: it sends the requests and commits of its core as long as the membership lasts. Its
consumer handles what the answers mean for the records."""

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
    """The consumer, as its membership sees it. No method may wait."""

    def on_assigned(self, keys: Keys) -> None: ...
    def on_revoked(self, keys: Keys) -> None: ...
    def on_lost(self, keys: Keys) -> None: ...
    def on_commit_due(self) -> None: ...
    def on_over(self) -> None: ...


@dataclass(slots=True)
class _UnderWay:
    """A commit that has no answer yet."""

    over: LoopEvent
    error: TidelogError | None = None


class Membership:
    """Runs until the member is over, its owner is gone, or the connection is closed."""

    def __init__(self, connection: GatewayConnection, core: MemberCore, owner: Owner, *, keep: bool) -> None:
        self.core = core
        self._connection = connection
        self._loop = connection.loop
        self._owner = weakref.ref(owner)
        self._keep = keep
        self._wake = self._loop.event()
        self._over = self._loop.event()
        self._commits: _UnderWay | None = None

    async def run(self) -> None:
        """Send and receive for the member until it is over."""
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
            if (owner := self._owner()) is not None:
                owner.on_over()

    def tick(self) -> None:
        """Do what is due now. Partitions that may have been lost are given up before anything else."""
        self._perform(self.core.on_tick(self._loop.now()))

    def release(self, keys: Keys) -> None:
        """Release partitions that the owner has finished."""
        self._perform(self.core.on_released(keys, self._loop.now()))

    def go(self) -> LoopEvent:
        """Begin to leave the group. The event is set when the coordinator has answered."""
        self._perform(self.core.leave(self._loop.now(), keep=self._keep))
        return self._over

    async def commit(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Commit these positions, as far as the partitions are owned. Raises ``UNKNOWN_MEMBER``,
        ``FENCED_GENERATION``, ``FENCED_INSTANCE`` (other members own them by now), ``UNREACHABLE`` or ``CLOSED``."""
        while self._commits is not None:
            await self._commits.over.wait()
        mine = self._commits = _UnderWay(self._loop.event())
        self._perform(self.core.commit(positions))
        await mine.over.wait()
        if mine.error is not None:
            raise mine.error

    # --- effects ---------------------------------------------------------------------------------------------

    def _perform(self, effects: list[Effect]) -> None:
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

    async def _commit(self, commit: CommitPositions) -> None:
        answer = await self._call(commit.request)
        error = answer if isinstance(answer, TidelogError) else None
        self._perform(self.core.on_committed(commit.request, error, self._loop.now()))

    async def _call(self, request: Message) -> Message | TidelogError:
        try:
            return await self._connection.call(request)
        except TidelogError as error:
            return error
