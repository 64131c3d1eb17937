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
"""A fetch answer gives a partition this much at least, until the answer is full."""

UNAWARE_MAX = 10_000
"""A follower that would have to ask for more partitions than this asks for all."""

DIGEST_MAX_OFFSETS = 64
"""Asked for at a time: each may cost a read of a few KiB."""
DIGEST_MAX_EPOCHS = 64
"""Most leader epochs in a digest, the last ones."""

TAIL_BYTES = 1 << 20
"""A replica with a doubtful tail gets about as much at a time."""

R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class RequestHandler:
    """Answers every request that another server or a client makes of this one."""

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
        """Return the partition, which is settled at the end of this input; or the error for requests to it."""
        key = TopicPartition(topic_id, number)
        partition = self._assignment.partitions.get(key)
        if not self._session.registered or partition is None:
            return self._assignment.refusal(key)
        self._touch(key)
        return partition

    # --- followers ---------------------------------------------------------------------------------------

    def fetch(self, source: int, id: int | None, fetch: Fetch, now: float) -> None:
        """One answer for all parts, of at most ``max_bytes`` and a batch: each part may take an equal share of what
        the parts before it left. A part that the answer cannot hold is notified, so that its follower asks again.
        Where some parts are in sync the others get ``CATCH_UP_FETCH_BYTES`` only: those in sync must not wait for a
        large answer."""
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
        """Record how far a follower has come. It waits for no answer."""
        node, broker_epoch = message.node, message.broker_epoch
        if self._is_fenced(source, None, node, broker_epoch):
            return
        count(self._effects.counts.fetches, node)
        for part in message.parts:
            partition = self._find(part.topic_id, part.partition)
            if isinstance(partition, TidelogError) or not partition.progress(node, broker_epoch, source, part, now):
                self._effects.notify(node, source, NotifyPart(part.topic_id, part.partition, part.leader_epoch))

    def _unaware(self, fetch: Fetch) -> tuple[NewsPart, ...] | None:
        unaware = self._idle_followers.of(fetch.node) if fetch.news else ()
        if not fetch.news or not self._session.registered or len(unaware) > UNAWARE_MAX:
            return None
        return tuple(NewsPart(*key) for key in unaware)

    def _is_in_sync(self, node: NodeId, part: FetchPart) -> bool:
        partition = self._assignment.partitions.get(TopicPartition(part.topic_id, part.partition))
        leading = None if partition is None else partition.leading
        return leading is not None and node in leading.core.isr

    def _fetch_part(
        self, source: int, fetch: Fetch, part: FetchPart, share: int, now: float
    ) -> tuple[FetchedPart, list[Buffer]]:
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
        """Answer with the offsets at which the follower's leader epochs end in the logs that are led here."""
        if not self._is_fenced(source, id, asked.node, asked.broker_epoch):
            parts = tuple(self._epoch_end(asked, part) for part in asked.parts)
            self._effects.answer(source, id, EpochOffsetAnswer(parts))

    def _epoch_end(self, asked: EpochOffset, part: EpochPart) -> EpochEnd:
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
        """Answer with what a follower needs to start its copy over, since retention has overtaken it."""
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
        """Answer a replica whose log has a doubtful tail with a batch of the copy here, in whatever role that is."""
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
        """Refuse a message of an earlier incarnation of a replica server. A later one than is known here is served:
        the metadata will name it."""
        known = self._assignment.servers.get(node)
        if known is None or broker_epoch >= known.broker_epoch:
            return False
        error = refuse("FENCED_BROKER_EPOCH", f"{node} lives in broker epoch {known.broker_epoch}")
        self._effects.answer(source, id, error)
        return True

    # --- clients -----------------------------------------------------------------------------------------

    def produce(self, source: int, produce: Produce, now: float) -> None:
        """Append batches. Each is acknowledged by its own id, now or later."""
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
        """Answer with committed batches or with an offset, now or later. A follower answers where the read allows it.
        It needs no confirmation: the records that it knows to be committed are, and it refuses a bounded read whose
        bound it cannot prove."""
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

    def digest(self, source: int, id: int | None, asked: Digest) -> None:
        """Answer with the hash chain of the log here, in whatever role."""
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
        """Return why a leader here may not take a batch without a session; None if it may. Then remember that it
        did."""
        refused = self._refuse_leader(part.topic_id, part.partition, now)
        partition = self._assignment.partitions.get(TopicPartition(part.topic_id, part.partition))
        if refused is None and partition is not None and partition.leading is not None:
            self._isolation.on_batch(partition)
        return refused

    def _refuse_leader(self, topic_id: str, number: int, now: float) -> TidelogError | None:
        """Return why a leader here may not serve its clients; None if it may, or if there is none here."""
        partition = self._assignment.partitions.get(TopicPartition(topic_id, number))
        return None if partition is None else self._leadership.refuse(partition, now)


def _tail_from(partition: Partition, asked: ReadTail) -> TailRead:
    """The batch that begins at that offset, and more behind it, if the log holds it in that leader epoch."""
    log, leading = partition.log, partition.leading
    leads = leading is not None and leading.core.leader_epoch == asked.leader_epoch
    fits = asked.epoch in (-1, log.epoch_at(asked.offset + 1)) and asked.last_epoch == log.epoch_at(asked.offset)
    if not (log.start <= asked.offset < log.end and fits):
        return TailRead(found=False, leads=leads)
    batches = log.read(asked.offset, TAIL_BYTES, log.end)
    found = bool(batches) and read_header(batches[0]).base_offset == asked.offset
    return TailRead(found=found, leads=leads, payload=list(batches) if found else b"")


def _digest(partition: Partition, offsets: Sequence[int]) -> DigestAnswer:
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
