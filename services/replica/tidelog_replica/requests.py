"""Requests of other servers to this one: followers of what it leads, and clients through a gateway.

Followers are served as long as this incarnation is registered. Clients of a leader are served only while no other
server can lead, too: a leader that is cut off must not serve beside its successor for ever
(``assignment/leadership.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, TypeVarTuple

from tidelog.batch.format import read_header
from tidelog.errors import TidelogError, refuse
from tidelog.sansio.counters import count
from tidelog.types import Buffer, NodeId, TopicPartition
from tidelog.wire.codec import payload_view
from tidelog.wire.messages import (
    DescribeLogs,
    DescribeLogsAnswer,
    Digest,
    DigestAnswer,
    DigestEntry,
    EpochEnd,
    EpochOffset,
    EpochOffsetAnswer,
    EpochPart,
    EpochStart,
    Fetch,
    FetchAnswer,
    FetchedPart,
    FetchPart,
    ListOffset,
    LogSnapshot,
    LogSnapshotAnswer,
    NewsPart,
    NotifyPart,
    Produce,
    ProduceAck,
    ProducePart,
    Progress,
    Read,
    ReadTail,
    TailRead,
)

from tidelog_replica.assignment.assignment import Assignment
from tidelog_replica.assignment.isolation import Isolation
from tidelog_replica.assignment.leadership import Leadership
from tidelog_replica.context import NodeContext
from tidelog_replica.fetcher.throttle import CATCH_UP_FETCH_BYTES
from tidelog_replica.partition.partition import Partition
from tidelog_replica.registration.session import BrokerSession

SHARE_MIN_BYTES = 64 << 10
"""Least bytes that a fetch answer grants a partition, until the answer is full."""

UNAWARE_MAX = 10_000
"""Most partitions that a fetch answer names as those of which the follower has not shown that it knows HW and log
start. If there are more, the answer names none, and the follower fetches all its partitions."""

DIGEST_MAX_OFFSETS = 64
"""Most offsets in one ``Digest``: each may cost a read of a few KiB."""
DIGEST_MAX_EPOCHS = 64
"""Most leader epochs in a digest, the last ones."""

MAX_DESCRIBED = 1000
"""Most partitions in one ``DescribeLogs``."""

TAIL_BYTES = 1 << 20
"""About how many bytes of batches a ``ReadTail`` is answered with."""

R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class RequestHandler:
    """The part of a node that answers the requests of followers to the leaders here, and the requests of clients,
    which gateways forward. It has no state of its own and lives as long as the node."""

    def __init__(
        self,
        context: NodeContext,
        assignment: Assignment,
        session: BrokerSession,
        leadership: Leadership,
        isolation: Isolation,
    ) -> None:
        self._node = context.node
        self._assignment = assignment
        self._session = session
        self._leadership = leadership
        self._isolation = isolation
        self._settings = context.settings
        self._effects = context.effects
        self._idle_followers = context.idle_followers
        self._touch = context.touch

    def _find(self, topic_id: str, number: int) -> Partition | TidelogError:
        """Return the open partition, and have it settled at the end of the present input. Return the error to answer
        with if the partition is not open, or if this server is not registered."""
        key = TopicPartition(topic_id, number)
        partition = self._assignment.partitions.get(key)
        if not self._session.registered or partition is None:
            return self._assignment.refusal(key)
        self._touch(key)
        return partition

    # --- followers ---------------------------------------------------------------------------------------

    def fetch(self, source: int, id: int | None, fetch: Fetch, now: float) -> None:
        """Answer a follower's fetch with one ``FetchAnswer`` for all partitions in it, of at most ``max_bytes`` and a
        batch. Each partition may take an equal share of the bytes that those before it left. If the answer cannot
        hold a partition's records, the follower is sent a ``Notify`` for it, so that it asks again. If the follower
        is in sync in some partitions, the others get only ``CATCH_UP_FETCH_BYTES`` together, so that those in sync do
        not wait for a large answer. An incarnation of the follower that is over gets ``FENCED_BROKER_EPOCH``."""
        if self._is_fenced(source, id, fetch.node, fetch.broker_epoch):
            return
        budget = min(fetch.max_bytes, self._settings.fetch_max_bytes)
        parts: list[FetchedPart] = []
        payload: list[Buffer] = []
        in_sync = [self._is_in_sync(fetch.node, part) for part in fetch.parts]
        catch_up_bytes = min(budget, CATCH_UP_FETCH_BYTES) if any(in_sync) else budget
        for number, part in enumerate(fetch.parts):
            left = budget if in_sync[number] else min(budget, catch_up_bytes)
            share = min(left, max(left // (len(fetch.parts) - number), SHARE_MIN_BYTES))
            fetched, batches = self._fetch_part(source, fetch, part, share, now)
            parts.append(fetched)
            payload += batches
            budget -= fetched.size
            catch_up_bytes -= 0 if in_sync[number] else fetched.size
            count(self._effects.counts.fetched_bytes, fetch.node, fetched.size)
        count(self._effects.counts.fetches, fetch.node)
        self._effects.answer(source, id, FetchAnswer(tuple(parts), self._unaware(fetch), payload or b""))

    def progress(self, source: int, message: Progress, now: float) -> None:
        """Record the log ends and durable offsets that a follower reports in a one-way message. If a partition is not
        led here or has more for the follower, send the follower a ``Notify`` for it. Does nothing if a later
        incarnation of the follower is known."""
        node, broker_epoch = message.node, message.broker_epoch
        if self._is_fenced(source, None, node, broker_epoch):
            return
        count(self._effects.counts.fetches, node)
        for part in message.parts:
            partition = self._find(part.topic_id, part.partition)
            if isinstance(partition, TidelogError) or not partition.progress(node, broker_epoch, source, part, now):
                self._effects.notify(node, source, NotifyPart(part.topic_id, part.partition, part.leader_epoch))

    def _unaware(self, fetch: Fetch) -> tuple[NewsPart, ...] | None:
        """Return the partitions led here of which the follower has not shown that it knows HW and log start. Return
        None, which makes the follower fetch all its partitions, if it did not ask for the list, if this server is not
        registered, or if the list is longer than ``UNAWARE_MAX``."""
        unaware = self._idle_followers.of(fetch.node) if fetch.news else ()
        if not fetch.news or not self._session.registered or len(unaware) > UNAWARE_MAX:
            return None
        return tuple(NewsPart(*key) for key in unaware)

    def _is_in_sync(self, node: NodeId, part: FetchPart) -> bool:
        """Return whether this server leads the partition and the follower ``node`` is in its ISR."""
        partition = self._assignment.partitions.get(TopicPartition(part.topic_id, part.partition))
        leading = None if partition is None else partition.leading
        return leading is not None and node in leading.core.isr

    def _fetch_part(
        self, source: int, fetch: Fetch, part: FetchPart, share: int, now: float
    ) -> tuple[FetchedPart, list[Buffer]]:
        """Return the part of a fetch answer about one partition, and its batches, of at most ``share`` bytes (but at
        least one batch if there is one). An error, such as that this server does not lead the partition, is returned
        inside the part, without batches."""
        partition = self._find(part.topic_id, part.partition)
        result: tuple[FetchedPart, list[Buffer]] | TidelogError
        if isinstance(partition, TidelogError):
            result = partition
        else:
            result = partition.fetch(fetch.node, fetch.broker_epoch, source, part, share, now)
        if isinstance(result, TidelogError):
            info = result.to_info()
            return FetchedPart(part.topic_id, part.partition, part.leader_epoch, 0, 0, error=info), []
        return result

    def epoch_offset(self, source: int, id: int | None, asked: EpochOffset) -> None:
        """Answer a follower's question where leader epochs end: for each partition and epoch in it, the offset at
        which the epoch ends in the log that is led here. A part that cannot be answered carries its error. An
        incarnation of the follower that is over gets ``FENCED_BROKER_EPOCH``."""
        if not self._is_fenced(source, id, asked.node, asked.broker_epoch):
            parts = tuple(self._epoch_end(asked, part) for part in asked.parts)
            self._effects.answer(source, id, EpochOffsetAnswer(parts))

    def _epoch_end(self, asked: EpochOffset, part: EpochPart) -> EpochEnd:
        """Return the part of the answer about one partition: the offset at which the leader epoch ends, or the
        error."""
        partition = self._find(part.topic_id, part.partition)
        result: EpochEnd | TidelogError
        if isinstance(partition, TidelogError):
            result = partition
        else:
            result = partition.epoch_end(asked.node, asked.broker_epoch, part)
        if isinstance(result, TidelogError):
            return EpochEnd(part.topic_id, part.partition, error=result.to_info())
        return result

    def log_snapshot(self, source: int, id: int | None, asked: LogSnapshot) -> None:
        """Answer a follower whose log ends below the log start here with what it needs to start its copy over: log
        start, leader epochs and producer state of the log that is led here. Answer with an error if this server does
        not lead the partition, and with ``FENCED_BROKER_EPOCH`` to an incarnation that is over."""
        node, broker_epoch = asked.node, asked.broker_epoch
        if not self._is_fenced(source, id, node, broker_epoch):
            partition = self._find(asked.topic_id, asked.partition)
            answer: LogSnapshotAnswer | TidelogError
            if isinstance(partition, TidelogError):
                answer = partition
            else:
                answer = partition.snapshot(node, broker_epoch, asked.leader_epoch)
            self._effects.answer(source, id, answer)

    def read_tail(self, source: int, id: int | None, asked: ReadTail) -> None:
        """Answer a replica whose log has a doubtful tail with about ``TAIL_BYTES`` of batches of the copy here from
        an offset on, whatever the role of this copy. A copy that has a doubtful tail itself answers with one of its
        whole batches. Answer with an error if the partition is not open, and with ``FENCED_BROKER_EPOCH`` to an
        incarnation that is over."""
        if self._is_fenced(source, id, asked.node, asked.broker_epoch):
            return
        key = TopicPartition(asked.topic_id, asked.partition)
        partition = self._assignment.partitions.get(key)
        if key in self._assignment.doubtful_tails:
            self._assignment.doubtful_tails.serve(key, asked, lambda answer: self._effects.answer(source, id, answer))
            return
        if not self._session.registered or partition is None:
            self._effects.answer(source, id, self._assignment.refusal(key))
            return
        found: list[TailRead] = []
        partition.guard(lambda: found.append(_tail_from(partition, asked)))
        self._touch(partition.key)
        self._effects.answer(source, id, found[0] if found else partition.refusal())

    def _is_fenced(self, source: int, id: int | None, node: NodeId, broker_epoch: int) -> bool:
        """Return whether a message comes from an incarnation of server ``node`` that is over, and answer it with
        ``FENCED_BROKER_EPOCH`` in that case. A broker epoch later than the known one is accepted, since the metadata
        will name it soon."""
        known = self._assignment.servers.get(node)
        if known is None or broker_epoch >= known.broker_epoch:
            return False
        error = refuse("FENCED_BROKER_EPOCH", f"{node} lives in broker epoch {known.broker_epoch}")
        self._effects.answer(source, id, error)
        return True

    # --- clients -----------------------------------------------------------------------------------------

    def produce(self, source: int, produce: Produce, now: float) -> None:
        """Append the batches of a ``Produce`` to the logs of their partitions, which this server must lead. Each
        batch gets a ``ProduceAck`` with its own id: an error at once if it is refused, otherwise the acknowledgement
        when the batch has reached its ``acks``. While this server's session may be over, a batch is taken only if the
        partition's voters confirm the leadership."""
        live = self._session.live(now)
        data, position = payload_view(produce.payload), 0
        for part in produce.parts:
            batch = data[position : position + part.size]
            position += part.size
            partition = self._find(part.topic_id, part.partition)
            result = None if live else self._refuse_batch(part, now)
            if isinstance(partition, TidelogError):
                result = partition
            elif result is None:
                result = partition.produce(source, part, batch, now)
            if result is not None:
                info = result.to_info()
                self._effects.ack(source, ProduceAck(part.id, error=info))

    def read(self, source: int, id: int | None, message: Read | ListOffset, now: float) -> None:
        """Answer a ``Read`` with committed batches, or a ``ListOffset`` with an offset, at once or when they are
        available; or answer with an error. A read that any replica may answer and that is not linearizable needs no
        confirmed leadership: this copy answers with what it knows to be committed. A bounded read whose bound cannot
        be proved is refused."""
        anybody = isinstance(message, Read) and message.any_replica and message.consistency != "linearizable"
        refused = None if anybody else self._refuse_leader(message.topic_id, message.partition, now)

        if refused is None:
            partition = self._find(message.topic_id, message.partition)
            refused = (
                partition
                if isinstance(partition, TidelogError)
                else partition.read(source, id, message, now, as_leader=not anybody)
            )
        if refused is not None:
            self._effects.answer(source, id, refused)

    def describe_logs(self, source: int, id: int | None, asked: DescribeLogs, now: float) -> None:
        """Answer with the offsets of those of the named partitions that a leader here may show now. The others are
        left out. Refuse a request for more than ``MAX_DESCRIBED`` partitions (``MALFORMED``)."""
        keys = [TopicPartition(share.topic_id, number) for share in asked.shares for number in share.partitions]
        if len(keys) > MAX_DESCRIBED:
            self._effects.answer(source, id, refuse("MALFORMED", f"at most {MAX_DESCRIBED} partitions at a time"))
            return
        found = []
        for key in keys:
            partition = self._assignment.partitions.get(key)
            if partition is None or self._leadership.refuse(partition, now) is not None:
                continue
            if (bounds := partition.leader_bounds(now)) is not None:
                found.append(bounds)
        self._effects.answer(source, id, DescribeLogsAnswer(tuple(found)))

    def digest(self, source: int, id: int | None, asked: Digest) -> None:
        """Answer with the bounds of the local log and its hash chain at the requested offsets, whatever the role of
        this copy. Refuse a request that is meant for another server (``NOT_REPLICA``), one with more than
        ``DIGEST_MAX_OFFSETS`` or negative offsets (``MALFORMED``), and one for a partition that is not open."""
        key = TopicPartition(asked.topic_id, asked.partition)
        partition = self._assignment.partitions.get(key)
        if asked.node != self._node:
            answer: DigestAnswer | TidelogError = refuse("NOT_REPLICA", f"this is {self._node}, not {asked.node}")
        elif len(asked.offsets) > DIGEST_MAX_OFFSETS or min(asked.offsets, default=0) < 0:
            answer = refuse("MALFORMED", f"at most {DIGEST_MAX_OFFSETS} offsets at a time, none negative")
        elif partition is None:
            answer = self._assignment.refusal(key)
        else:
            found: list[DigestAnswer] = []
            partition.guard(lambda: found.append(_digest(partition, asked.offsets)))
            self._touch(partition.key)
            answer = found[0] if found else partition.refusal()
        self._effects.answer(source, id, answer)

    def _refuse_batch(self, part: ProducePart, now: float) -> TidelogError | None:
        """Return the error with which a leader here must refuse a batch while this server's session may be over; None
        if it may take the batch. A batch that may be taken is recorded as taken without the controllers."""
        refused = self._refuse_leader(part.topic_id, part.partition, now)
        partition = self._assignment.partitions.get(TopicPartition(part.topic_id, part.partition))
        if refused is None and partition is not None and partition.leading is not None:
            self._isolation.on_batch(partition)
        return refused

    def _refuse_leader(self, topic_id: str, number: int, now: float) -> TidelogError | None:
        """Return the error with which a leader here must refuse a client, since another server may lead the partition
        by now. Return None if the leader may serve the client, or if the partition is not open here."""
        partition = self._assignment.partitions.get(TopicPartition(topic_id, number))
        return None if partition is None else self._leadership.refuse(partition, now)


def _tail_from(partition: Partition, asked: ReadTail) -> TailRead:
    """Return the answer to a ``ReadTail``: about ``TAIL_BYTES`` of batches from ``asked.offset`` on. ``found`` is
    False, and there are none, unless a batch begins at that offset, in the leader epoch ``asked.epoch`` (-1: any) and
    behind a record of epoch ``asked.last_epoch``. ``leads`` says whether this server leads the partition in
    ``asked.leader_epoch``."""
    log, leading = partition.log, partition.leading
    leads = leading is not None and leading.core.leader_epoch == asked.leader_epoch
    fits = asked.epoch in (-1, log.epoch_at(asked.offset + 1)) and asked.last_epoch == log.epoch_at(asked.offset)
    if not (log.start <= asked.offset < log.end and fits):
        return TailRead(found=False, leads=leads)
    batches = log.read(asked.offset, TAIL_BYTES, log.end)
    found = bool(batches) and read_header(batches[0]).base_offset == asked.offset
    return TailRead(found=found, leads=leads, payload=list(batches) if found else b"")


def _digest(partition: Partition, offsets: Sequence[int]) -> DigestAnswer:
    """Return the answer to a ``Digest``: the local log's bounds, its last leader epochs, and at each of the offsets
    the hash chain up to the last batch boundary."""
    log = partition.log
    entries = tuple(DigestEntry(offset, *log.chain_at(offset)) for offset in offsets)
    return DigestAnswer(
        log.start,
        log.end,
        partition.high_watermark,
        log.epochs.latest(),
        log.comparable_from,
        entries,
        log.durable,
        tuple(EpochStart(*entry) for entry in log.epochs.entries[-DIGEST_MAX_EPOCHS:]),
        partition.agreed_epoch,
    )
