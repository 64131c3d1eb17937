"""What a client can do about feature levels (docs/upgrade.md), and what one of them brought. ``Log`` has it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TypeVar

from tidelog.wire.messages import DescribeFeatures, Done, FeaturesAnswer, ForgetServer, Message, RaiseLevel

A = TypeVar("A", bound=Message)


class Upgrading(ABC):
    """The part of ``Log`` that shows and raises the feature level."""

    @abstractmethod
    async def _ask(self, request: Message, answer: type[A], *, again: bool = True) -> A:
        """A request and its answer."""

    async def features(self) -> FeaturesAnswer:
        """The cluster's feature level, and which levels each process understands. Raises ``UNSUPPORTED`` where the
        active controller or the gateway is of a release without levels: the level is 1."""
        return await self._ask(DescribeFeatures(), FeaturesAnswer)

    async def raise_level(self, level: int, *, left_behind: Iterable[str] = (), dry_run: bool = False) -> None:
        """Raise the cluster to a feature level, for good; ``dry_run``: only ask whether that can be. Processes in
        ``left_behind`` may be down. Raises ``UNSUPPORTED_LEVEL``, which names all who do not understand it."""
        await self._ask(RaiseLevel(level, tuple(left_behind), dry_run), Done)

    async def forget_server(self, server: str) -> None:
        """Have a replica server that is gone for good be none of the cluster any more. Raises ``UNKNOWN_SERVER``,
        ``SERVER_IN_USE`` (it is live, or has copies), ``UNSUPPORTED_LEVEL``."""
        await self._ask(ForgetServer(server), Done)
