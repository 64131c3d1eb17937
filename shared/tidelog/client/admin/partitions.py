"""What a client can do about where partitions are, who leads them, and whether they serve. ``Log`` has all of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TypeVar

from tidelog.client.loop import Loop
from tidelog.errors import TimedOut, refuse
from tidelog.wire.messages import (
    CancelReassignment,
    Done,
    DrainServer,
    GrowTopic,
    Message,
    PartitionInfo,
    PartitionWeight,
    PauseTopic,
    PlannedMove,
    PlanRebalance,
    Reassign,
    Rebalance,
    RebalancePlan,
    SetReadOnly,
    TopicInfo,
    TransferLeader,
)

TRANSFER_TIMEOUT_S = 30.0
"""Longest wait for the end of a transfer; the controllers give it up before."""
_POLL_S, _POLL_MAX_S = 0.01, 0.2
"""Pauses while a transfer goes on; doubling."""

A = TypeVar("A", bound=Message)


class Moving(ABC):
    """The part of ``Log`` that moves, pauses and describes partitions."""

    _loop: Loop

    @abstractmethod
    async def _ask(self, request: Message, answer: type[A], *, again: bool = True) -> A:
        """A request and its answer."""

    @abstractmethod
    async def describe(self, topic: str, *, offsets: bool = False) -> TopicInfo:
        """Describe one topic."""

    async def grow_topic(self, name: str, partitions: int) -> None:
        """Give a topic more partitions, so many in all. Raises ``UNKNOWN_TOPIC``, ``INVALID_CONFIG`` (topics do not
        shrink), ``INVALID_REPLICATION_FACTOR``."""
        await self._ask(GrowTopic(name, partitions), Done, again=False)

    async def set_read_only(self, topic: str, partitions: Iterable[int] = (), *, read_only: bool = True) -> None:
        """Have these partitions (none: all) take no records, or take them again; reads go on. From when a leader has
        heard of it on, which is at once where it is in touch with the controllers, produces are refused with
        ``TOPIC_READ_ONLY``. Raises ``UNKNOWN_TOPIC``, ``FORBIDDEN`` for the cluster's own topics."""
        await self._ask(SetReadOnly(topic, tuple(partitions), read_only), Done)

    async def pause(self, topic: str, partitions: Iterable[int] = ()) -> None:
        """Have the servers close these partitions (none: all), which keep what they hold: produces and reads are
        refused with ``TOPIC_PAUSED``, the outcome of a produce under way may be unknown. Raises as
        ``set_read_only``."""
        await self._ask(PauseTopic(topic, tuple(partitions)), Done)

    async def resume(self, topic: str, partitions: Iterable[int] = ()) -> None:
        """End a pause: leaders are elected anew. Raises as ``set_read_only``."""
        await self._ask(PauseTopic(topic, tuple(partitions), pause=False), Done)

    async def transfer(self, topic: str, partition: int, server: str = "") -> PartitionInfo:
        """Have a server that is in sync lead a partition; none: the preferred replica. Returns when it does. Raises
        ``UNKNOWN_TOPIC``, ``UNKNOWN_SERVER``, ``NOT_REPLICA``, ``NOT_IN_SYNC``, ``OFFLINE``; ``TimedOut`` where it
        did not get to the end of the log in time, and all is as before."""
        asked = await self._partition(topic, partition)
        wanted = server or asked.replicas[0]
        await self._ask(TransferLeader(topic, partition, server), Done, again=False)
        pause, deadline = _POLL_S, self._loop.now() + TRANSFER_TIMEOUT_S
        while True:
            found = await self._partition(topic, partition)
            if found.leader == wanted:
                return found
            given_up = found.epoch >= asked.epoch + 2 and found.successor != wanted
            if given_up or self._loop.now() > deadline:
                leader = found.leader or "nobody"
                raise TimedOut(f"{wanted} did not get to the end of the log of {topic}/{partition}: {leader} leads")
            await self._loop.sleep(pause)
            pause = min(2 * pause, _POLL_MAX_S)

    async def reassign(self, topic: str, partition: int, replicas: Iterable[str]) -> None:
        """Begin to have these servers as the replicas of a partition, the preferred leader first; ``describe`` shows
        the ``target`` until it is done. Raises ``UNKNOWN_TOPIC``, ``UNKNOWN_SERVER``, ``INVALID_REPLICAS``."""
        await self._ask(Reassign(topic, partition, tuple(replicas)), Done)

    async def cancel_reassignment(self, topic: str, partition: int) -> None:
        """Go back to the replicas that there were; one that waits for its turn is dropped. Raises ``UNKNOWN_TOPIC``,
        ``NO_REASSIGNMENT``."""
        await self._ask(CancelReassignment(topic, partition), Done, again=False)

    async def plan_rebalance(
        self, *, empty_drained: bool = False, weights: Iterable[PartitionWeight] = (), unit: str = ""
    ) -> tuple[PlannedMove, ...]:
        """Reassignments that would spread the replicas over racks and servers; none is begun. ``empty_drained``: also
        away from servers that are being drained. ``weights``: what a replica of each partition weighs, in ``unit``
        (``B`` or ``B/s``); a partition that is not named weighs 0. Without ``unit`` each replica weighs 1. Raises
        ``UNSUPPORTED`` if the controllers are of a release that counts replicas only."""
        plan = await self._ask(PlanRebalance(empty_drained, tuple(weights), unit), RebalancePlan)
        if plan.unit != unit:
            raise refuse("UNSUPPORTED", "the controllers are of a release that weighs no partitions: upgrade them")
        return plan.moves

    async def rebalance(
        self, *, empty_drained: bool = False, weights: Iterable[PartitionWeight] = (), unit: str = ""
    ) -> None:
        """Do what ``plan_rebalance`` says, a few reassignments per server at a time; returns when all of it waits for
        its turn, which it does until it is done or cancelled, whatever becomes of this client."""
        await self._ask(Rebalance(empty_drained, weights=tuple(weights), unit=unit), Done)

    async def cancel_rebalance(self) -> None:
        """Drop all that waits for its turn; what has begun goes on."""
        await self._ask(Rebalance(cancel=True), Done)

    async def waiting_moves(self) -> tuple[PlannedMove, ...]:
        """Reassignments of rebalances that wait for their turn, in that order."""
        return (await self._ask(PlanRebalance(), RebalancePlan)).waiting

    async def drain(self, server: str, drain: bool = True) -> None:
        """Have a server lead nothing where another can, and get no new replicas; without ``drain``: have it take part
        again. Raises ``UNKNOWN_SERVER``."""
        await self._ask(DrainServer(server, drain), Done)

    async def _partition(self, topic: str, partition: int) -> PartitionInfo:
        found = await self.describe(topic)
        if not 0 <= partition < len(found.partitions):
            count = len(found.partitions)
            raise refuse("UNKNOWN_TOPIC", f"{topic} has partitions 0 to {count - 1}, not {partition}")
        return found.partitions[partition]
