"""A partition that this server leads: requests of producers and followers meet the log (readers:
``partition/reads.py``).

``replication/leader.py`` decides what is committed; this class moves the bytes and keeps the requests that wait.
Every input is followed by one ``settle``, which takes the log's new durable offset into account and completes, in
bulk, the requests that the HW has reached. Any ``OSError`` is the caller's: the partition goes offline, and no batch
is acknowledged.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import ceil, inf

from tidelog.batch.format import BatchHeader, check_batch, encode_control, read_header, stamp_prefix, with_sent_crc
from tidelog.errors import CorruptBatch, TidelogError, refuse
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
from tidelog_replica.partition.purgatory import Purgatory
from tidelog_replica.partition.reads import PendingReads
from tidelog_replica.partition.transaction_gate import TransactionGate
from tidelog_replica.replication.leader import LeaderState
from tidelog_replica.replication.leader_epochs import divergence
from tidelog_replica.replication.producer_state import KEPT_BATCHES, AppendedBatch, ProducerState, SequenceRefusal
from tidelog_replica.replication.progress import IdleFollower
from tidelog_replica.storage.log import Log
from tidelog_replica.storage.tombstones import UNKNOWN, Compacted


@dataclass(frozen=True, slots=True)
class _Pending:
    """A batch in the log whose ack waits."""

    awaited_end: int
    deadline: float
    source: int
    ack: ProduceAck


class LeaderReplica:
    """The leader's role on one partition, for one leader epoch."""

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
        """Batches taken in the present input, stamped."""
        self._next_offset = log.end
        """Where the log ends with these."""
        self._taken = 0
        """How many of them are producers'."""
        self._uncommitted: deque[tuple[int, float, int]] = deque()
        """Writes that are not committed yet: where each ends, when it was, of how many batches of producers."""
        self._log_start = log.start
        self._for_all: Purgatory[_Pending] = Purgatory()
        self._for_leader: Purgatory[_Pending] = Purgatory()
        self.reading = PendingReads(context, core, log)
        self.transaction_gate = TransactionGate(producers, context.effects, self.produce)
        self.is_draining = False
        """This server is about to end."""
        self._relieved = False

    @property
    def high_watermark(self) -> int:
        """Everything below it is committed."""
        return self.core.high_watermark

    @property
    def log_end(self) -> int:
        """The log end offset, including batches of the current input that are not yet written."""
        return self._next_offset

    # --- another is to lead ------------------------------------------------------------------------------

    @property
    def is_handing_over(self) -> bool:
        """Another is to lead: no batch is taken any more, so that it can reach the end of this log."""
        return (self.is_draining and len(self.core.isr) > 1) or self.core.state.successor is not None

    @property
    def is_relieved(self) -> bool:
        """Whether the successor has everything and no batch waits for its ack: it may lead."""
        core, successor = self.core, self.core.state.successor
        if successor is None or successor not in core.isr:
            return False
        return self._is_settled and core.followers[successor].durable >= self._log.end

    @property
    def _is_settled(self) -> bool:
        """Whether everything is committed that can be."""
        return not self._unwritten and (self.high_watermark >= self._log.end or not self.core.has_quorum)

    def take_relief(self) -> bool:
        """Return True one time in a leader epoch: when another replica can lead."""
        if self._relieved or not (self.is_relieved or (self.is_draining and self._is_settled)):
            return False
        self._relieved = True
        return True

    # --- producers ---------------------------------------------------------------------------------------

    def produce(self, source: int, part: ProducePart, batch: Buffer, now: float) -> None:
        """Take a batch, which the end of the input writes, or refuse it. Acked when what it asked for is reached.
        Raises ``OSError``."""
        try:
            header = self._check(part, batch)
            if header.is_transactional or part.transaction:
                if self.transaction_gate.holds(source, part, batch, header):
                    return
            else:
                self.transaction_gate.check_plain(header.producer_id)
            sent = with_sent_crc(header, batch)
            written = self._look_up(sent)
            if isinstance(written, SequenceRefusal):
                self._refuse(source, part, written)
                return
            if written is not None:
                epoch = self._log.epoch_at(written.base_offset + 1)
                self._acknowledge(source, part, written.base_offset, header.record_count, epoch, True, now)
                return
            self.admit(part.acks, part.expected_offset)
            self._check_window(sent, part.acks)
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
        """Append what the input brought, in one write. Raises ``OSError``: the outcome of batches that wait is
        unknown."""
        if self._unwritten:
            batches, self._unwritten = self._unwritten, []
            self._log.append(batches)
            self._effects.counts.produced_batches += self._taken
            self._uncommitted.append((self._log.end, now, self._taken))
            self._taken = 0
            self.core.on_append(self._log.end, now)

    def begin_epoch(self) -> None:
        """Commit rule ``quorum``: what is before the first batch of this leader epoch is committed only with it."""
        self.append(batch := encode_control("leader"), read_header(batch))

    def append(self, batch: Buffer, header: BatchHeader) -> int:
        """Take a batch, which the end of the input writes; where it ends."""
        stamp = stamp_prefix(self._next_offset, self.core.leader_epoch, header.crc32c)
        self._unwritten.append(b"".join((stamp, memoryview(batch)[len(stamp) :])))
        self._next_offset += header.record_count
        return self._next_offset

    def _check(self, part: ProducePart, batch: Buffer) -> BatchHeader:
        """What is wrong with the request itself, whatever the log holds. Raises ``TidelogError``."""
        refusal = self.core.refuse_epoch(part.leader_epoch)
        if refusal is not None:
            raise refusal
        if len(batch) > self._config.max_batch_bytes:
            raise refuse("BATCH_TOO_LARGE", f"{len(batch)} bytes; max_batch_bytes is {self._config.max_batch_bytes}")
        if part.acks not in (Acks.NONE, Acks.LEADER, Acks.ALL):
            raise refuse("MALFORMED", f"acks is 0, 1 or 2, not {part.acks}")
        header = check_batch(batch)
        if header.is_control or (header.is_sparse and part.expected_offset < 0):
            raise CorruptBatch("producers write no control batches, and sparse ones only where they belong")
        if len(self._for_all.waiting) + len(self._for_leader.waiting) >= self._settings.partition_max_waiting:
            raise refuse("OVERLOADED", f"{self._settings.partition_max_waiting} batches wait for their acks")
        return header

    def _look_up(self, header: BatchHeader) -> AppendedBatch | SequenceRefusal | None:
        """Whether the batch is new (None), a copy of one in the log, or refused. Where the CRC or kind to compare is
        not remembered, since the state comes from an earlier release, it is read from the log, unless retention has
        removed the batch. Raises ``OSError``."""
        found = self._producers.check(header)
        if isinstance(found, SequenceRefusal) and found.unverified_at >= self._log.start:
            self._producers.learn(self._log.sent_header_at(found.unverified_at))
            return self._producers.check(header)
        return found

    def _check_window(self, header: BatchHeader, acks: int) -> None:
        """Raise ``OVERLOADED`` where the producer has as many batches in flight as are remembered. One more would
        make the leader forget a batch that may be sent again. The leader could not recognise that copy then."""
        if acks == Acks.NONE:
            return
        acked = self.high_watermark if acks == Acks.ALL else self._log.durable
        if self._producers.would_push_out(header, acked):
            text = f"producer {header.producer_id} has {KEPT_BATCHES} batches in flight, and no more are remembered"
            raise refuse("OVERLOADED", text, window=KEPT_BATCHES)

    def _refuse(self, source: int, part: ProducePart, refused: SequenceRefusal) -> None:
        """A batch out of its producer's sequence. A gap is certain only when nothing of the epochs before is left in
        doubt: until then another replica may hold what is missing here, and lead next. Where records may be lost, it
        speaks of this log only (``lossy``): the batch may have been in another, where readers saw it, or may come
        back with one."""
        gap = refused.code == "OUT_OF_ORDER_SEQUENCE"
        unknown = gap and not (self.core.knows_end if self._is_lossy else self.core.settles_older_epochs)
        detail = {"lossy": 1} if gap and not unknown and self._is_lossy else {}
        error = refuse(refused.code, refused.message, unknown_outcome=unknown, **detail)
        self._effects.ack(source, ProduceAck(part.id, error=error.to_info()))

    @property
    def _is_lossy(self) -> bool:
        """A leader of this partition may lack, or have lacked, what another had in its log."""
        may_lose = self._config.commit_rule == "leader" or self._config.unclean_election
        return may_lose or self.core.state.unclean_epoch >= 0

    def admit(self, acks: int = Acks.ALL, expected_offset: int = -1) -> None:
        """Whether a new batch may be appended now. Raises ``TidelogError``."""
        core, end, isr = self.core, self._next_offset, len(self.core.isr)
        if core.state.read_only:
            raise refuse("TOPIC_READ_ONLY", "the partition is read-only: it takes no batches")
        self.admit_own()
        if acks == Acks.ALL and not core.has_quorum:
            raise refuse("NOT_ENOUGH_REPLICAS", f"{isr} in sync, at least {core.min_insync} must be", in_sync=isr)
        if expected_offset not in (-1, end):
            raise refuse("UNEXPECTED_OFFSET", f"the log ends at {end}, not {expected_offset}", end_offset=end)

    def admit_own(self) -> None:
        """Check whether a batch of this server itself may be appended now, which waits for the ISR. Raises
        ``TidelogError``."""
        core = self.core
        if self._effects.full:
            raise refuse("DISK_FULL", f"the leader's disk is full: {self._effects.full}")
        if core.stalled:
            raise refuse("OFFLINE", "the leader's disk does not answer; another replica is to lead")
        if self.is_handing_over:
            successor = core.state.successor or "another replica"
            raise refuse("OFFLINE", f"leadership is being handed over to {successor}", handing_over=1)

    def _acknowledge(
        self, source: int, part: ProducePart, base: int, count: int, epoch: int, duplicate: bool, now: float
    ) -> None:
        """Ack a batch that is in the log, as soon as it is as safe as the producer wants."""
        level = ("received", "leader", "all")[part.acks]
        ack = ProduceAck(part.id, base, epoch, f"{level}/{self._config.flush}", duplicate)
        self._answer_produce(source, part, base + count, ack, now)

    def _answer_produce(self, source: int, part: ProducePart, end: int, ack: ProduceAck, now: float) -> None:
        """Send ``ack`` when the log up to ``end`` is as safe as the producer wants."""
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
        """Serve a follower. With ``max_bytes`` 0 it gets no data, and is notified at once where there is some."""
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
        """Record how far a follower has come that waits for no answer. It is notified of what comes next, at once
        where there is more already. False: nothing was recorded, and the follower has to fetch to learn why."""
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
        """Record how far a follower has come. Return why that is refused, or the epoch and end offset up to which its
        log can agree with this one (KIP-595): the position of a log that diverges says nothing about this one."""
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
        confirmed_at = self.core.confirmed_at
        return -1 if confirmed_at == -inf else ceil((now - confirmed_at) * 1000)

    def _notify(self, waiting: IdleFollower, now: float) -> None:
        """Wake an idle follower, with what has come since it began to idle where that is little: that saves it a
        round trip."""
        log, limit = self._log, self._settings.notify_max_bytes
        batches = log.read(waiting.offset, limit) if log.start <= waiting.offset < log.end else []
        size = sum(map(len, batches))
        if size > limit:
            batches, size = [], 0
        stamp = self.core.stamp(waiting.node, now)
        part = NotifyPart(*self._key, self.core.leader_epoch, self.core.high_watermark, size, stamp)
        self._effects.notify(waiting.node, waiting.source, part, batches)

    def epoch_end(self, node: NodeId, broker_epoch: int, part: EpochPart) -> EpochEnd:
        """Where an epoch ends in this log (KIP-101). An epoch older than all that a trimmed log knows ended before
        its start; in a log that was never trimmed it does not exist."""
        refusal = self.core.refuse_follower(node, broker_epoch, part.leader_epoch)
        if refusal is not None:
            return EpochEnd(*self._key, error=refusal.to_info())
        epoch, end = self._log.epochs.end_of(part.epoch, self._log.end)
        if epoch < 0 and self._log.start > 0:
            epoch, end = part.epoch, self._log.epochs.ends_before(self._log.start)
        return EpochEnd(*self._key, epoch, end, self._log.start)

    def snapshot(self, node: NodeId, broker_epoch: int, leader_epoch: int) -> LogSnapshotAnswer | TidelogError:
        """Return what a copy must know that begins where this log does."""
        refusal = self.core.refuse_follower(node, broker_epoch, leader_epoch)
        if refusal is not None:
            return refusal
        return LogSnapshotAnswer(*self._log.copy_start())

    def on_state(self, state: PartitionState, now: float) -> None:
        """The ISR changed. Where it is too small now, produces that wait for it are refused at once (their batches
        may still be committed later)."""
        self.core.on_state(state, now)
        self._relieved = False
        if not self.core.has_quorum:
            self._fail(self._for_all.take_all(), "NOT_ENOUGH_REPLICAS", "the in-sync replicas became too few")

    def configure(self, config: TopicConfig, now: float) -> None:
        """The topic's settings changed."""
        self._config = config
        self.core.configure(**leader_settings(config), now=now)

    # --- the end of every input --------------------------------------------------------------------------

    def settle(self, now: float) -> None:
        """Complete the requests that the log's durable offset and the HW have reached, and notify followers."""
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
        """Fail requests whose deadline has passed, and judge the followers' lag."""
        for waiters in (self._for_all, self._for_leader):
            self._fail(waiters.expire(now), "REQUEST_TIMED_OUT", "no ack in time; the batch may still be committed")
        self.reading.on_tick(now)
        self.core.on_tick(now)

    def deadline(self) -> float:
        """When ``on_tick`` has something to do, or earlier; ``inf`` where nothing is due."""
        return min(self._for_all.deadline, self._for_leader.deadline, self.reading.deadline(), self.core.deadline())

    def on_source_closed(self, source: int) -> None:
        """Forget the requests that came over a link, which is closed."""
        self.core.on_source_closed(source)
        self._idle_followers.update(self._key, self.core)
        for waiters in (self._for_all, self._for_leader):
            waiters.drop(source)
        self.reading.on_source_closed(source)

    def resign(self, code: str, message: str) -> None:
        """The role ends: uncommitted batches have an unknown fate, readers go elsewhere."""
        self._idle_followers.forget(self._key, self.core.followers if code == "OFFLINE" else ())
        for waiters in (self._for_all, self._for_leader):
            self._fail(waiters.take_all(), code, message)
        self.transaction_gate.resign(code, message)
        self.reading.resign(code, message)

    def _fail(self, waiters: list[_Pending], code: str, message: str) -> None:
        if waiters:
            info = refuse(code, message, unknown_outcome=True).to_info()
            for pending in waiters:
                self._effects.ack(pending.source, ProduceAck(pending.ack.id, error=info))
