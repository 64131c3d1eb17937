"""Where a produced batch is checked and refused, before its leader appends it.

A batch passes these checks in this order (``LeaderReplica.produce``), and the first that fails gives the error:

    check_request     leader epoch, size, acks, format, CRC, number of batches that wait for their acks
    (``transaction_gate.py``: a batch of a transaction may have to wait for its coordinator)
    check_sequence    the producer's epoch and sequence; a copy of a batch of the log is acked and not appended again
    check_append      read-only partition, disk, handover, number of replicas in sync, expected offset
    check_window      the producer's batches in flight

Nothing here is appended or sent: ``LeaderReplica`` sends the error in the batch's ack. A marker of a transaction
passes ``check_own_append`` only, and a coordinator asks ``check_append`` before it takes a request. What a gateway
refuses before a batch gets to a leader is in ``services/gateway/tidelog_gateway/produce/router.py``.
"""

from __future__ import annotations

from tidelog.batch.format import BatchHeader, check_batch
from tidelog.errors import CorruptBatch, TidelogError, refuse
from tidelog.types import Acks, Buffer, TopicConfig
from tidelog.wire.messages import ProducePart

from tidelog_replica.context import NodeContext
from tidelog_replica.replication.leader_state import LeaderState
from tidelog_replica.replication.producer_state import KEPT_BATCHES, AppendedBatch, ProducerState, SequenceRefusal
from tidelog_replica.storage.log import Log


class ProduceAdmission:
    """The checks of produced batches at one partition's leader. A leader has one for its leader epoch. No check
    appends or sends anything: a batch that fails is refused by a ``TidelogError``."""

    def __init__(
        self, context: NodeContext, config: TopicConfig, core: LeaderState, log: Log, producers: ProducerState
    ) -> None:
        self._config = config
        self._core = core
        self._log = log
        self._producers = producers
        self._settings = context.settings
        self._effects = context.effects
        self.is_draining = False
        """Whether this server is about to stop. The node sets it when it begins to hand over its leaderships."""

    @property
    def is_handing_over(self) -> bool:
        """Return whether this leader takes no more batches, so that another replica can reach the end of its log and
        lead: the controller has named a successor, or this server is about to stop and the ISR has other members."""
        return (self.is_draining and len(self._core.isr) > 1) or self._core.state.successor is not None

    def configure(self, config: TopicConfig) -> None:
        """Apply changed settings of the topic, for example ``max_batch_bytes``."""
        self._config = config

    def check_request(self, part: ProducePart, batch: Buffer, waiting: int) -> BatchHeader:
        """Make the checks of a produce request that need no log, and return the header of its batch. Raises
        ``TidelogError`` for a request of another leader epoch or with unknown acks, and for a batch that is too
        large, damaged, or of a kind that producers must not write. Raises ``OVERLOADED`` if ``waiting``, the number
        of the partition's batches that wait for their acks, is at its limit."""
        refusal = self._core.refuse_epoch(part.leader_epoch)
        if refusal is not None:
            raise refusal
        if len(batch) > self._config.max_batch_bytes:
            raise refuse("BATCH_TOO_LARGE", f"{len(batch)} bytes; max_batch_bytes is {self._config.max_batch_bytes}")
        if part.acks not in (Acks.NONE, Acks.LEADER, Acks.ALL):
            raise refuse("MALFORMED", f"acks is 0, 1 or 2, not {part.acks}")
        header = check_batch(batch)
        if header.is_control or (header.is_sparse and part.expected_offset < 0):
            raise CorruptBatch("producers write no control batches, and sparse ones only where they belong")
        if waiting >= self._settings.partition_max_waiting:
            raise refuse("OVERLOADED", f"{self._settings.partition_max_waiting} batches wait for their acks")
        return header

    def check_sequence(self, header: BatchHeader) -> AppendedBatch | None:
        """Check a produced batch against its producer's epoch and sequence. Return the batch of the log that it is a
        copy of, or None if it is new, also if it names no producer. Raises ``TidelogError`` for a gap in the
        sequence, an older producer epoch, or a batch that can no longer be compared. A CRC or kind that the producer
        state does not know, since an earlier release wrote that state, is first read from the log, which may raise
        ``OSError``."""
        found = self._producers.check(header)
        if isinstance(found, SequenceRefusal) and found.unverified_at >= self._log.start:
            self._producers.learn(self._log.sent_header_at(found.unverified_at))
            found = self._producers.check(header)
        if isinstance(found, SequenceRefusal):
            raise self._sequence_error(found)
        return found

    def _sequence_error(self, refused: SequenceRefusal) -> TidelogError:
        """Return the error for a batch that is out of its producer's sequence. For a gap the outcome is unknown while
        it is not known what earlier leader epochs have committed: another replica may hold the missing batches, and
        lead next. If records of this partition may be lost, the error of a gap is marked ``lossy``: it speaks of this
        log only, and the batch may have been in another log that readers saw. The detail of a conflict has the
        ``offset`` of the other batch, if that is known."""
        gap = refused.code == "OUT_OF_ORDER_SEQUENCE"
        unknown = gap and not (self._core.knows_end if self._is_lossy else self._core.settles_older_epochs)
        detail = {"lossy": 1} if gap and not unknown and self._is_lossy else {}
        if refused.conflict_at >= 0:
            detail["offset"] = refused.conflict_at
        return refuse(refused.code, refused.message, unknown_outcome=unknown, **detail)

    @property
    def _is_lossy(self) -> bool:
        """Return whether a leader of this partition may lack records that an earlier leader had: commit rule
        ``leader``, unclean elections are allowed, or one has happened."""
        may_lose = self._config.commit_rule == "leader" or self._config.unclean_election
        return may_lose or self._core.state.unclean_epoch >= 0

    def check_append(self, log_end: int, acks: int = Acks.ALL, expected_offset: int = -1) -> None:
        """Check that a new batch of a client may be appended at ``log_end``. Raises ``TidelogError`` if the partition
        is read-only, the disk is full or stalled, leadership is being handed over, too few replicas are in sync for
        acks ``all``, or ``expected_offset`` is neither ``log_end`` nor -1 (any)."""
        core, isr = self._core, len(self._core.isr)
        if core.state.read_only:
            raise refuse("TOPIC_READ_ONLY", "the partition is read-only: it takes no batches")
        self.check_own_append()
        if acks == Acks.ALL and not core.has_quorum:
            raise refuse("NOT_ENOUGH_REPLICAS", f"{isr} in sync, at least {core.min_insync} must be", in_sync=isr)
        if expected_offset not in (-1, log_end):
            raise refuse("UNEXPECTED_OFFSET", f"the log ends at {log_end}, not {expected_offset}", end_offset=log_end)

    def check_own_append(self) -> None:
        """Check that a batch that this server writes itself, such as a marker, may be appended now. Raises
        ``TidelogError`` if the disk is full or stalled, or leadership is being handed over. Too few replicas in sync
        do not matter: the batch waits for them."""
        core = self._core
        if self._effects.full:
            raise refuse("DISK_FULL", f"the leader's disk is full: {self._effects.full}")
        if core.stalled:
            raise refuse("OFFLINE", "the leader's disk does not answer; another replica is to lead")
        if self.is_handing_over:
            successor = core.state.successor or "another replica"
            raise refuse("OFFLINE", f"leadership is being handed over to {successor}", handing_over=1)

    def check_window(self, header: BatchHeader, acks: int) -> None:
        """Raise ``OVERLOADED`` if the producer has as many batches in flight as the producer state remembers. With
        one more the leader would forget a batch that the producer may send again, and could not recognise the copy.
        Does nothing for acks ``none``."""
        if acks == Acks.NONE:
            return
        acked = self._core.high_watermark if acks == Acks.ALL else self._log.durable
        if self._producers.would_push_out(header, acked):
            text = f"producer {header.producer_id} has {KEPT_BATCHES} batches in flight, and no more are remembered"
            raise refuse("OVERLOADED", text, window=KEPT_BATCHES)
