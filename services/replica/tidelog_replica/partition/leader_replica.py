"""A partition that this server leads: it appends the batches of producers, sends acks, and serves the followers.

``produce_admission.py`` checks a batch before it is appended, ``replication/leader_state.py`` decides what is
committed, and ``pending_reads.py`` serves the clients that read. This class moves the bytes and keeps the batches
that wait for their ack. Every input is followed by one ``settle``, which takes the log's new durable offset into
account and completes together the requests that the HW has reached. An ``OSError`` is raised to the caller, which
takes the partition offline; then no batch is acknowledged.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import ceil, inf

from tidelog.batch.format import BatchHeader, encode_control, read_header, stamp_prefix, with_sent_crc
from tidelog.errors import TidelogError, refuse
from tidelog.types import Acks, Buffer, NodeId, PartitionState, TopicConfig, TopicPartition
from tidelog.wire.messages import (
    EpochEnd,
    EpochPart,
    FetchedPart,
    FetchPart,
    LogSnapshotAnswer,
    NotifyPart,
    ProduceAck,
    ProducePart,
)

from tidelog_replica.config import leader_settings
from tidelog_replica.context import NodeContext
from tidelog_replica.partition.pending_reads import PendingReads
from tidelog_replica.partition.produce_admission import ProduceAdmission
from tidelog_replica.partition.purgatory import Purgatory
from tidelog_replica.partition.transaction_gate import TransactionGate
from tidelog_replica.replication.leader_epochs import divergence
from tidelog_replica.replication.leader_state import LeaderState
from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.replication.progress import IdleFollower
from tidelog_replica.storage.log import Log
from tidelog_replica.storage.tombstones import UNKNOWN, Compacted


@dataclass(frozen=True, slots=True)
class _Pending:
    """A batch in the log whose ack waits until every record below ``awaited_end`` is committed (acks ``all``) or
    durable here (``leader``). If that has not happened by ``deadline`` (seconds), an error with unknown outcome is
    sent instead."""

    awaited_end: int
    deadline: float
    source: int
    ack: ProduceAck


class LeaderReplica:
    """The leader's role on one partition, for one leader epoch. It appends the batches of producers, serves followers
    and readers, and acks each batch when it is as safe as its ``acks`` ask for."""

    def __init__(
        self,
        context: NodeContext,
        key: TopicPartition,
        config: TopicConfig,
        core: LeaderState,
        log: Log,
        producers: ProducerState,
    ) -> None:
        self.core = core
        self._key = key
        self._config = config
        self._log = log
        self._producers = producers
        self._settings = context.settings
        self._effects = context.effects
        self._idle_followers = context.idle_followers
        self._unwritten: list[bytes] = []
        """Batches that were taken in the present input, with offset and leader epoch filled in; ``write`` appends
        them."""
        self._next_offset = log.end
        """The log end that results when the unwritten batches are appended."""
        self._taken = 0
        """How many of the unwritten batches are producers'."""
        self._uncommitted: deque[tuple[int, float, int]] = deque()
        """Writes that are not committed yet: the log end after each, its time in seconds, and its number of
        producers' batches."""
        self._log_start = log.start
        self._for_all: Purgatory[_Pending] = Purgatory()
        """Batches with acks ``all``, which wait for the HW."""
        self._for_leader: Purgatory[_Pending] = Purgatory()
        """Batches with acks ``leader``, which wait for the local flush."""
        self.admission = ProduceAdmission(context, config, core, log, producers)
        self.reading = PendingReads(context, core, log)
        self.transaction_gate = TransactionGate(producers, context.effects, self.produce)
        self._relieved = False
        """Whether ``take_relief`` has returned True in this state of the partition."""

    @property
    def high_watermark(self) -> int:
        """Return the HW: every record below this offset is committed."""
        return self.core.high_watermark

    @property
    def log_end(self) -> int:
        """Return the log end offset, including the batches of the present input that are not written yet."""
        return self._next_offset

    # --- another is to lead ------------------------------------------------------------------------------

    @property
    def is_relieved(self) -> bool:
        """Return whether the successor that the controller has named can take over now: it is in sync and has all of
        this log durably, and no record waits to be committed. False if no successor is named."""
        core, successor = self.core, self.core.state.successor
        if successor is None or successor not in core.isr:
            return False
        return self._is_settled and core.followers[successor].durable >= self._log.end

    @property
    def _is_settled(self) -> bool:
        """Return whether no batch waits that could still be committed: the HW has reached the log end, or too few
        replicas are in sync."""
        return not self._unwritten and (self.high_watermark >= self._log.end or not self.core.has_quorum)

    def take_relief(self) -> bool:
        """Return True once another replica can take over without losing a batch that waits for its ack: a named
        successor has everything, or this server is about to stop and no batch waits. The node then reports to the
        controller at once. Return False before, and in later calls until the state of the partition changes."""
        if self._relieved or not (self.is_relieved or (self.admission.is_draining and self._is_settled)):
            return False
        self._relieved = True
        return True

    # --- producers ---------------------------------------------------------------------------------------

    def produce(self, source: int, part: ProducePart, batch: Buffer, now: float) -> None:
        """Check a producer's batch, and take it into the present input's write or send its refusal. A copy of a batch
        of the log is not appended again and is acked like the first. A batch of a transaction that the coordinator
        must verify first is held back. The ack is sent when the batch is as safe as its ``acks`` ask for. Raises
        ``OSError``."""
        try:
            waiting = len(self._for_all.waiting) + len(self._for_leader.waiting)
            header = self.admission.check_request(part, batch, waiting)
            if header.is_transactional or part.transaction:
                if self.transaction_gate.holds(source, part, batch, header):
                    return
            else:
                self.transaction_gate.check_plain(header.producer_id)
            sent = with_sent_crc(header, batch)
            written = self.admission.check_sequence(sent)
            if written is not None:
                epoch = self._log.epoch_at(written.base_offset + 1)
                self._acknowledge(source, part, written.base_offset, header.record_count, epoch, True, now)
                return
            self.admission.check_append(self._next_offset, part.acks, part.expected_offset)
            self.admission.check_window(sent, part.acks)
        except TidelogError as error:
            self._effects.ack(source, ProduceAck(part.id, error=error.to_info()))
            return
        base, epoch = self._next_offset, self.core.leader_epoch
        self.append(batch, header)
        self._producers.record(sent, base)
        self._taken += 1
        counts = self._effects.counts
        counts.produced_records += header.record_count
        counts.produced_bytes += len(batch)
        self._acknowledge(source, part, base, header.record_count, epoch, False, now)

    def write(self, now: float) -> None:
        """Append the batches that were taken in the present input to the log, in one write. Does nothing if there are
        none. Raises ``OSError``; it is unknown then whether these batches are in the log."""
        if self._unwritten:
            batches, self._unwritten = self._unwritten, []
            self._log.append(batches)
            self._effects.counts.produced_batches += self._taken
            self._uncommitted.append((self._log.end, now, self._taken))
            self._taken = 0
            self.core.on_append(self._log.end, now)

    def begin_epoch(self) -> None:
        """Take the control batch that begins this leader epoch into the present input's write. With commit rule
        ``quorum`` the records before it are committed only together with it."""
        self.append(batch := encode_control("leader"), read_header(batch))

    def append(self, batch: Buffer, header: BatchHeader) -> int:
        """Fill offset and leader epoch into a batch, and take it into the present input's write. Makes no checks.
        Return the offset after its last record."""
        stamp = stamp_prefix(self._next_offset, self.core.leader_epoch, header.crc32c)
        self._unwritten.append(b"".join((stamp, memoryview(batch)[len(stamp) :])))
        self._next_offset += header.record_count
        return self._next_offset

    def _acknowledge(
        self, source: int, part: ProducePart, base: int, count: int, epoch: int, duplicate: bool, now: float
    ) -> None:
        """Ack a batch that is in the log, or will be written in this input, at offset ``base``. The ack is sent now
        or when the batch is as safe as its ``acks`` ask for. ``duplicate`` marks a copy of a batch that the log had
        already."""
        level = ("received", "leader", "all")[part.acks]
        ack = ProduceAck(part.id, base, epoch, f"{level}/{self._config.flush}", duplicate)
        self._answer_produce(source, part, base + count, ack, now)

    def _answer_produce(self, source: int, part: ProducePart, end: int, ack: ProduceAck, now: float) -> None:
        """Send ``ack`` when every record below ``end`` is committed (acks ``all``) or durable here (``leader``), or
        at once (``none``). If that takes longer than the request's timeout, an error with unknown outcome is sent
        instead."""
        if part.acks == Acks.NONE:
            self._effects.ack(source, ack)
            return
        timeout_s = part.timeout_ms / 1000 if part.timeout_ms > 0 else self._settings.ack_timeout_s
        pending = _Pending(end, now + min(timeout_s, self._settings.ack_timeout_max_s), source, ack)
        (self._for_all if part.acks == Acks.ALL else self._for_leader).add(pending)

    # --- followers ---------------------------------------------------------------------------------------

    def fetch(
        self, node: NodeId, broker_epoch: int, source: int, part: FetchPart, max_bytes: int, now: float
    ) -> tuple[FetchedPart, list[Buffer]]:
        """Record a follower's position, and return its part of a fetch answer with its batches: at most
        ``max_bytes``, but at least one batch. If the follower has everything, it counts as idle and is notified of
        the next records. With ``max_bytes`` 0 it gets no batches and is notified at once if there are some. A
        refusal, or the offset where the logs diverge, is given in the part."""
        core, log = self.core, self._log
        fault = self._record_position(node, broker_epoch, part, now)
        if isinstance(fault, TidelogError):
            return self._fetched(node, now, error=fault), []
        if fault is not None:
            return self._fetched(node, now, diverging=fault), []
        if part.offset >= log.end:
            core.wait(node, source, part.readers)
            self._idle_followers.update(self._key, core)
            return self._fetched(node, now), []
        if max_bytes <= 0:
            self._notify(IdleFollower(node, source, log.end), now)
            return self._fetched(node, now), []
        batches = log.read(part.offset, max_bytes)
        compacted = log.compacted_behind(part.offset)
        return self._fetched(node, now, size=sum(map(len, batches)), compacted=compacted), batches

    def progress(self, node: NodeId, broker_epoch: int, source: int, part: FetchPart, now: float) -> bool:
        """Record how far a follower's log reaches, from a report that gets no answer. The follower then counts as
        idle, and is notified when this log grows, or at once if it is longer already. Return False, and record
        nothing, if the position is refused or the logs diverge: the follower has to fetch to learn that."""
        if self._record_position(node, broker_epoch, part, now) is not None:
            return False
        if part.offset >= self._log.end:
            self.core.wait(node, source, part.readers)
        else:
            self._notify(IdleFollower(node, source, self._log.end), now)
        return True

    def _record_position(
        self, node: NodeId, broker_epoch: int, part: FetchPart, now: float
    ) -> TidelogError | tuple[int, int] | None:
        """Record how far a follower's log reaches, which may move the HW and let the follower join the ISR, and
        return None. If the position is refused, return the error. If the logs diverge, return the epoch and end
        offset up to which they can agree (KIP-595), and record nothing: such a position says nothing about this
        log."""
        core, log = self.core, self._log
        refusal = core.refuse_follower(node, broker_epoch, part.leader_epoch)
        if refusal is None and (part.offset < log.start or (part.last_epoch < 0 and part.offset > log.end)):
            refusal = refuse(
                "OFFSET_OUT_OF_RANGE",
                f"the log holds {log.start} to {log.end}, not {part.offset}",
                log_start=log.start,
            )
        if refusal is not None:
            return refusal
        diverging = divergence(part.offset, part.last_epoch, log.epochs, log.start, log.end)
        if diverging is None:
            core.on_fetch(node, broker_epoch, min(part.durable, part.offset), now, part.stamp)
        return diverging

    def _fetched(
        self,
        node: NodeId,
        now: float,
        *,
        size: int = 0,
        diverging: tuple[int, int] = (-1, -1),
        error: TidelogError | None = None,
        compacted: Compacted = UNKNOWN,
    ) -> FetchedPart:
        """Return a partition's part of a fetch answer: HW, log start, confirmation of leadership, and ``size``, the
        bytes of its batches. Instead of batches it can carry an error, or the epoch and end offset where the logs
        diverge."""
        core = self.core
        info = None if error is None else error.to_info()
        return FetchedPart(
            *self._key,
            core.leader_epoch,
            core.high_watermark,
            self._log.start,
            size,
            *diverging,
            confirmed_ms=-1 if error else self._confirmed_ms(now),
            stamp=0 if error else core.stamp(node, now),
            error=info,
            compacted_to=compacted.compacted_to,
            tombstones_to=compacted.tombstones_to,
        )

    def _confirmed_ms(self, now: float) -> int:
        """Return how long ago this leadership was last confirmed, in ms, rounded up; -1 if it never was."""
        confirmed_at = self.core.confirmed_at
        return -1 if confirmed_at == -inf else ceil((now - confirmed_at) * 1000)

    def _notify(self, waiting: IdleFollower, now: float) -> None:
        """Send an idle follower a ``Notify`` with the HW. The message carries the first batches that were appended
        since the follower became idle, at most ``notify_max_bytes``, which saves it a round trip. It carries none if
        the first is larger, is no longer in the log, or if the notices to this link get too large together; then the
        follower fetches. Raises ``OSError``."""
        log, limit = self._log, self._settings.notify_max_bytes
        batches = log.read(waiting.offset, limit) if log.start <= waiting.offset < log.end else []
        size = sum(map(len, batches))
        if size > limit:
            batches, size = [], 0
        stamp = self.core.stamp(waiting.node, now)
        part = NotifyPart(*self._key, self.core.leader_epoch, self.core.high_watermark, size, stamp)
        self._effects.notify(waiting.node, waiting.source, part, batches)

    def epoch_end(self, node: NodeId, broker_epoch: int, part: EpochPart) -> EpochEnd:
        """Answer a follower's question in the epoch dialogue: return the largest leader epoch of this log that is not
        above the one asked for, and the offset at which it ends (KIP-101). If all known epochs are newer, a trimmed
        log answers that the epoch ended at the log start or before; a log that was never trimmed answers -1 (no such
        epoch). If the follower is refused, the answer carries the error."""
        refusal = self.core.refuse_follower(node, broker_epoch, part.leader_epoch)
        if refusal is not None:
            return EpochEnd(*self._key, error=refusal.to_info())
        epoch, end = self._log.epochs.end_of(part.epoch, self._log.end)
        if epoch < 0 and self._log.start > 0:
            epoch, end = part.epoch, self._log.epochs.ends_before(self._log.start)
        return EpochEnd(*self._key, epoch, end, self._log.start)

    def snapshot(self, node: NodeId, broker_epoch: int, leader_epoch: int) -> LogSnapshotAnswer | TidelogError:
        """Return the data with which a follower's copy starts over at this log's start: offset, leader epoch, hash
        chain and producer state. Return the refusal if the sender is no follower, or has another leader epoch or an
        older incarnation."""
        refusal = self.core.refuse_follower(node, broker_epoch, leader_epoch)
        if refusal is not None:
            return refusal
        return LogSnapshotAnswer(*self._log.copy_start())

    def on_state(self, state: PartitionState, now: float) -> None:
        """Take over a new ISR and replica set from the controller, in the same leader epoch. If too few replicas are
        in sync now, the batches with acks ``all`` that wait are refused at once. Their outcome is unknown, since they
        may still be committed later."""
        self.core.on_state(state, now)
        self._relieved = False
        if not self.core.has_quorum:
            self._fail(self._for_all.take_all(), "NOT_ENOUGH_REPLICAS", "the in-sync replicas became too few")

    def configure(self, config: TopicConfig, now: float) -> None:
        """Apply changed settings of the topic, for example ``min_insync_replicas``, which may move the HW or make an
        ISR proposal due."""
        self._config = config
        self.admission.configure(config)
        self.core.configure(**leader_settings(config), now=now)

    # --- the end of every input --------------------------------------------------------------------------

    def settle(self, now: float) -> None:
        """Finish an input: advance the HW as far as the log's durable offset allows, send the acks and answer the
        reads that this completes, and notify idle followers of new records."""
        durable = self._log.durable
        self.core.on_durable(durable)
        hw = self.core.high_watermark
        while self._uncommitted and self._uncommitted[0][0] <= hw:
            _, written, batches = self._uncommitted.popleft()
            self._effects.counts.commits.observe(now - written, batches)
        if self._for_all.waiting:
            for pending in self._for_all.complete(hw):
                self._effects.ack(pending.source, pending.ack)
        if self._for_leader.waiting:
            for pending in self._for_leader.complete(durable):
                self._effects.ack(pending.source, pending.ack)
        self.reading.settle(now)
        for waiting in self.core.take_notices():
            self._notify(waiting, now)
        if self._log_start != self._log.start:
            self._log_start = self._log.start
            self.core.on_unannounced()
        self._idle_followers.update(self._key, self.core)

    def on_tick(self, now: float) -> None:
        """Refuse the batches and reads whose deadline has passed by ``now`` (seconds), and propose that overdue
        followers leave the ISR."""
        for waiters in (self._for_all, self._for_leader):
            self._fail(waiters.expire(now), "REQUEST_TIMED_OUT", "no ack in time; the batch may still be committed")
        self.reading.on_tick(now)
        self.core.on_tick(now)

    def deadline(self) -> float:
        """Return a time, in seconds, at or before which ``on_tick`` has something to do; ``inf`` if nothing is
        due."""
        return min(self._for_all.deadline, self._for_leader.deadline, self.reading.deadline(), self.core.deadline())

    def on_source_closed(self, source: int) -> None:
        """Forget the idle followers, the batches that wait for their acks, and the reads that came over link
        ``source``, which is closed. They get no message; the batches stay in the log."""
        self.core.on_source_closed(source)
        self._idle_followers.update(self._key, self.core)
        for waiters in (self._for_all, self._for_leader):
            waiters.drop(source)
        self.reading.on_source_closed(source)

    def resign(self, code: str, message: str) -> None:
        """End the role. Batches that wait for their ack are refused with ``code`` and an unknown outcome, since they
        are in the log. Batches held back for a coordinator, and waiting reads, are refused with ``code``."""
        self._idle_followers.forget(self._key, self.core.followers if code == "OFFLINE" else ())
        for waiters in (self._for_all, self._for_leader):
            self._fail(waiters.take_all(), code, message)
        self.transaction_gate.resign(code, message)
        self.reading.resign(code, message)

    def _fail(self, waiters: list[_Pending], code: str, message: str) -> None:
        """Refuse batches that wait for their ack, with ``code`` and an unknown outcome, since they are in the log."""
        if waiters:
            info = refuse(code, message, unknown_outcome=True).to_info()
            for pending in waiters:
                self._effects.ack(pending.source, ProduceAck(pending.ack.id, error=info))
