"""Administration of partitions: ``Log.partitions``.

Its methods look up where partitions are, which server leads them and whether they serve; move and pause them; find
offsets; and compare replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from tidelog.client.connection import GatewayConnection
from tidelog.client.lookups import Where, ask_each, check_partitions, describe_topic, find_positions, list_offsets
from tidelog.errors import TidelogError, TimedOut, refuse
from tidelog.types import Position
from tidelog.wire import messages
from tidelog.wire.messages import (
    CopyRead,
    Digest,
    DigestAnswer,
    Done,
    OffsetAnswer,
    PartitionInfo,
    ReadCopy,
    TopicInfo,
)

if TYPE_CHECKING:
    from tidelog.client.admin.replica_comparison import Comparison
    from tidelog.wire.messages import HistoryAnswer, HistoryEntry, PartitionWeight, PlannedMove

TRANSFER_TIMEOUT_S = 30.0
"""Longest wait in seconds for the end of a transfer; the controllers give it up earlier."""
_POLL_S, _POLL_MAX_S = 0.01, 0.2
"""First and longest pause in seconds between two checks during a transfer; it doubles."""
DIGEST_PATIENCE_S = 3.0
"""Seconds for which a server that cannot report its digest is asked again."""


def ignore(records: int) -> None:
    """Do nothing with the progress of a comparison: the default of ``on_records``."""


class PartitionAdmin:
    """The methods that move, pause and compare partitions and find offsets in them; each ``Log`` has them as
    ``log.partitions``."""

    def __init__(self, connection: GatewayConnection) -> None:
        self._connection = connection

    async def transfer(self, topic: str, partition: int, server: str = "") -> PartitionInfo:
        """Make an in-sync server the leader of a partition, wait until it leads, and return the partition's metadata.
        Without ``server`` the preferred replica becomes the leader. Raises ``UNKNOWN_TOPIC``, ``UNKNOWN_SERVER``,
        ``NOT_REPLICA``, ``NOT_IN_SYNC``, ``OFFLINE``; ``TimedOut`` if the server did not get to the end of the log in
        time, so that the former leader stays."""
        asked = await self._partition(topic, partition)
        wanted = server or asked.replicas[0]
        await self._connection.ask(messages.TransferLeader(topic, partition, server), Done, again=False)
        pause, deadline = _POLL_S, self._connection.loop.now() + TRANSFER_TIMEOUT_S
        while True:
            found = await self._partition(topic, partition)
            if found.leader == wanted:
                return found
            given_up = found.epoch >= asked.epoch + 2 and found.successor != wanted
            if given_up or self._connection.loop.now() > deadline:
                leader = found.leader or "nobody"
                raise TimedOut(f"{wanted} did not get to the end of the log of {topic}/{partition}: {leader} leads")
            await self._connection.loop.sleep(pause)
            pause = min(2 * pause, _POLL_MAX_S)

    async def reassign(self, topic: str, partition: int, replicas: Iterable[str]) -> None:
        """Begin to move a partition to these replicas, the preferred leader first, and return without waiting for the
        move. The metadata (``TopicAdmin.describe``) name them as ``target`` until the move is done. Raises
        ``UNKNOWN_TOPIC``, ``UNKNOWN_SERVER``, ``INVALID_REPLICAS``."""
        await self._connection.ask(messages.Reassign(topic, partition, tuple(replicas)), Done)

    async def cancel_reassignment(self, topic: str, partition: int) -> None:
        """Cancel the reassignment of a partition: it returns to the replicas that it had before. A queued
        reassignment is dropped. Raises ``UNKNOWN_TOPIC``, ``NO_REASSIGNMENT``."""
        await self._connection.ask(messages.CancelReassignment(topic, partition), Done, again=False)

    async def plan_rebalance(
        self, *, empty_drained: bool = False, weights: Iterable[PartitionWeight] = (), unit: str = ""
    ) -> tuple[PlannedMove, ...]:
        """Return reassignments that would spread the replicas evenly over racks and servers, without beginning any.
        ``empty_drained``: also move replicas away from servers that are being drained. ``weights``: weight of a
        replica of each partition, in ``unit`` (``B`` or ``B/s``); a partition that is not named weighs 0. Without
        ``unit`` each replica weighs 1. Raises ``UNSUPPORTED`` if the controllers are of a release that counts
        replicas only."""
        plan = await self._connection.ask(
            messages.PlanRebalance(empty_drained, tuple(weights), unit), messages.RebalancePlan
        )
        if plan.unit != unit:
            raise refuse("UNSUPPORTED", "the controllers are of a release that weighs no partitions: upgrade them")
        return plan.moves

    async def rebalance(
        self, *, empty_drained: bool = False, weights: Iterable[PartitionWeight] = (), unit: str = ""
    ) -> None:
        """Queue the reassignments that ``plan_rebalance`` returns for these arguments, and return when all are
        queued; a few per server are carried out at a time. They stay queued until they are done or cancelled, even if
        this client ends."""
        await self._connection.ask(messages.Rebalance(empty_drained, weights=tuple(weights), unit=unit), Done)

    async def cancel_rebalance(self) -> None:
        """Drop all queued reassignments; reassignments that have begun go on."""
        await self._connection.ask(messages.Rebalance(cancel=True), Done)

    async def waiting_moves(self) -> tuple[PlannedMove, ...]:
        """Return the reassignments that rebalances have queued and that have not begun, in their order."""
        return (await self._connection.ask(messages.PlanRebalance(), messages.RebalancePlan)).waiting

    async def set_learners(self, topic: str, partition: int, learners: Iterable[str]) -> None:
        """Replace the set of servers that copy a partition's log without being replicas of it; an empty list removes
        all. Raises ``UNKNOWN_TOPIC``, ``INVALID_CONFIG`` (a learner must be a live server and no replica)."""
        await self._connection.call(messages.AlterLearners(topic, partition, tuple(learners)))

    async def set_read_only(self, topic: str, partitions: Iterable[int] = (), *, read_only: bool = True) -> None:
        """Make these partitions (none named: all of the topic) refuse records, or accept records again; reads go on.
        Produces are refused with ``TOPIC_READ_ONLY`` once the leader has received the change, which is at once if it
        is in touch with the controllers. Raises ``UNKNOWN_TOPIC``, ``FORBIDDEN`` for the cluster's own topics."""
        await self._connection.ask(messages.SetReadOnly(topic, tuple(partitions), read_only), Done)

    async def pause(self, topic: str, partitions: Iterable[int] = ()) -> None:
        """Close these partitions (none named: all of the topic) on their servers, which keep the data. Produces and
        reads are refused with ``TOPIC_PAUSED``; the outcome of a produce under way may be unknown. Raises
        ``UNKNOWN_TOPIC``, ``FORBIDDEN`` for the cluster's own topics."""
        await self._connection.ask(messages.PauseTopic(topic, tuple(partitions)), Done)

    async def resume(self, topic: str, partitions: Iterable[int] = ()) -> None:
        """End the pause of these partitions (none named: all of the topic), so that leaders are elected again. Raises
        ``UNKNOWN_TOPIC``, ``FORBIDDEN`` for the cluster's own topics."""
        await self._connection.ask(messages.PauseTopic(topic, tuple(partitions), pause=False), Done)

    async def history(self, topic: str, partition: int) -> tuple[HistoryEntry, ...]:
        """Return the changes of a partition's leader, ISR and replicas that the controllers remember, oldest first,
        each with its cause. Raises ``UNKNOWN_TOPIC``."""
        found = await describe_topic(self._connection, topic)
        check_partitions(found, [partition])
        return (await self.histories(found, [partition]))[partition]

    async def histories(self, topic: TopicInfo, partitions: Iterable[int]) -> dict[int, tuple[HistoryEntry, ...]]:
        """Request the ``history`` of each of these partitions of a topic, concurrently, and return the changes by
        partition."""

        async def ask(partition: int) -> HistoryAnswer:
            return await self._connection.ask(messages.History(topic.topic_id, partition), messages.HistoryAnswer)

        return {
            partition: answer.entries
            for partition, answer in (await ask_each(self._connection.loop, ask, partitions)).items()
        }

    async def list_offset(self, topic: str, partition: int, at: str | datetime = "latest") -> OffsetAnswer:
        """Return the offset of a place in one partition, as its leader reports it. The place is ``earliest``,
        ``latest``, or a time: the first record at or after it, or ``latest`` if there is none. Raises
        ``UNKNOWN_TOPIC``, and ``ConfigError`` for another place."""
        found = await describe_topic(self._connection, topic)
        check_partitions(found, [partition])
        return (await self.list_offsets(found, at, [partition]))[partition]

    async def list_offsets(
        self, topic: TopicInfo, at: str | datetime, partitions: Iterable[int], isolation: str = "committed"
    ) -> dict[int, OffsetAnswer]:
        """Request from the leaders the offset of a place in each of these partitions, and return the answers by
        partition. The place is ``earliest``, ``latest``, or a time: the first record at or after it. ``latest`` is
        the high watermark with isolation ``uncommitted``, otherwise the last stable offset. Raises ``ConfigError``
        for another place."""
        return await list_offsets(self._connection, topic, at, partitions, isolation)

    async def find_positions(
        self, topic: str, where: Where, partitions: Iterable[int] | None = None
    ) -> dict[int, Position]:
        """Return the position of a place in each of these partitions of a topic (by default in all), by partition. A
        place is ``earliest``, ``latest``, a time, an offset, or a mapping from partition to offset or ``Position``.
        Raises ``UNKNOWN_TOPIC``, and ``ConfigError`` for another place."""
        found = await describe_topic(self._connection, topic)
        wanted = sorted(set(range(len(found.partitions)) if partitions is None else partitions))
        check_partitions(found, wanted)
        return await find_positions(self._connection, found, where, wanted)

    async def digest(self, topic_id: str, partition: int, node: str, offsets: Iterable[int] = ()) -> DigestAnswer:
        """Return the bounds of the log that replica server ``node`` has of a partition, and its hash chain at each of
        up to 64 offsets. Only that server can answer, so if it is away the request is repeated for
        ``DIGEST_PATIENCE_S``. Raises ``OFFLINE``, ``NOT_LEADER`` (the server has no such partition),
        ``UNREACHABLE``."""
        request = Digest(node, topic_id, partition, tuple(offsets))
        return await self._connection.ask(request, DigestAnswer, patience_s=DIGEST_PATIENCE_S)

    async def read_copy(self, topic_id: str, partition: int, node: str, offset: int) -> CopyRead:
        """Have a replica server read about 1 MiB of its copy of a partition from its disk, and return the
        fingerprints of the batches from ``offset`` on. The bytes read count for the quota of bytes out; while that
        quota is used up, the call waits. Raises ``OFFLINE`` (for example because the copy is damaged), ``NOT_LEADER``
        (the server has no copy of the partition), ``FORBIDDEN`` (without the right to read the topic),
        ``OFFSET_OUT_OF_RANGE``, ``UNREACHABLE``, and ``UNSUPPORTED_LEVEL`` below feature level 4."""
        request = ReadCopy(node, topic_id, partition, offset)
        while True:
            try:
                answer = await self._connection.call(request, patience_s=DIGEST_PATIENCE_S)
            except TidelogError as error:
                if error.code != "QUOTA_EXCEEDED":
                    raise
                await self._connection.loop.sleep(error.pause_s)
            else:
                assert isinstance(answer, CopyRead)
                return answer

    async def compare_replicas(self, topic: TopicInfo, partition: int, live: Collection[str]) -> Comparison:
        """Compare the hash chains of a partition's replicas and learners below the smallest of their high watermarks,
        and return a ``Comparison``. Only copies on the servers ``live`` are compared. The servers answer from memory;
        ``compare_copies`` reads the disks. Raises ``TidelogError`` if a server stops answering during the
        comparison."""
        from tidelog.client.admin.replica_comparison import compare

        info = topic.partitions[partition]
        nodes = [node for node in (*info.replicas, *info.learners) if node in live]
        return await compare(
            self._connection.loop, nodes, lambda node, offsets: self.digest(topic.topic_id, partition, node, offsets)
        )

    async def compare_copies(
        self,
        topic: TopicInfo,
        partition: int,
        live: Collection[str],
        max_bytes_per_s: float = 0,
        on_records: Callable[[int], None] = ignore,
    ) -> Comparison:
        """Compare the batches that a partition's replicas and learners have on their disks, below the smallest of
        their high watermarks, and return a ``Comparison``. Only copies on the servers ``live`` are compared; a copy
        that cannot be read is named in the result. ``max_bytes_per_s``: how fast each copy is read; 0: no limit.
        ``on_records`` is called with the number of further records compared."""
        from tidelog.client.admin.copy_comparison import compare_copies

        info = topic.partitions[partition]
        nodes = [node for node in (*info.replicas, *info.learners) if node in live]
        return await compare_copies(
            self._connection.loop,
            nodes,
            lambda node, offsets: self.digest(topic.topic_id, partition, node, offsets),
            lambda node, offset: self.read_copy(topic.topic_id, partition, node, offset),
            max_bytes_per_s,
            on_records,
        )

    async def _partition(self, topic: str, partition: int) -> PartitionInfo:
        """Return the metadata of one partition. Raises ``UNKNOWN_TOPIC``, also if the topic has no such partition."""
        found = await describe_topic(self._connection, topic)
        if not 0 <= partition < len(found.partitions):
            count = len(found.partitions)
            raise refuse("UNKNOWN_TOPIC", f"{topic} has partitions 0 to {count - 1}, not {partition}")
        return found.partitions[partition]
