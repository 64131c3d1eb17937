"""The reads and requests for offsets of one partition, in whichever role this server has.

The role's core (``CommittedView``) decides what is committed, and as of which time nothing committed can be missing.
This class moves the bytes and keeps the requests that wait. A request passes three stages, each of which may end at
once:

    proof    a ``bounded`` or ``linearizable`` read waits until it is proved that everything that was committed
             ``max_staleness_ms`` ago, or when the read came, lies below the HW. A request for the latest offset is
             linearizable (rule 9 of ``docs/invariants.md``). The role begins a proof at once; a proof that was begun
             after the read began to wait is good for every bound. Without a proof in time: ``STALE_REPLICA``
    records  a read at the HW waits until the HW moves, or its time is over; a read with isolation ``committed`` waits
             at the last stable offset (``replication/transaction_index.py``)
    answer   a ``bounded`` read that waited for records may have to go back to the proof; its wait for records ends
             early enough for that

A follower's HW may be below the position of a read that another replica has served before. Such a read waits for the
HW as for records, and is then refused with ``OFFSET_NOT_AVAILABLE``. Only below its HW can a follower know that a
position diverges: the log up to there is the same on all replicas, and the rest may still be cut. Where committed
records may have been lost, the HW itself means nothing until the follower's log is known to agree with its leader's;
until then reads are refused with ``OFFSET_NOT_AVAILABLE``.

An ``OSError`` is raised to the caller, which takes the partition offline.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Protocol

from tidelog.errors import TidelogError, refuse
from tidelog.types import NodeId, TopicPartition
from tidelog.wire.messages import ListOffset, LogBounds, OffsetAnswer, Read, ReadAnswer, StableOffset

from tidelog_replica.context import NodeContext
from tidelog_replica.partition.purgatory import Purgatory
from tidelog_replica.replication.leader_epochs import divergence
from tidelog_replica.replication.leader_state import LeaderState
from tidelog_replica.replication.transaction_index import LastStableOffsetAge
from tidelog_replica.storage.log import Log

CONSISTENCIES = ("eventual", "bounded", "linearizable")
ISOLATIONS = ("committed", "uncommitted")


class CommittedView(Protocol):
    """The knowledge of a role about the committed part of its log, as reads need it. ``LeaderState`` and
    ``FollowerState`` have this interface."""

    @property
    def leader_epoch(self) -> int:
        """Return the leader epoch of the role."""

    @property
    def high_watermark(self) -> int:
        """Return the HW: every record below this offset is committed."""

    @property
    def knows_end(self) -> bool:
        """Return whether readers may see the HW. A leader's value is False until its HW reaches the start of its
        leader epoch, since an earlier leader may have shown a higher HW. A follower's value is always True: its HW
        may lag."""

    @property
    def agrees(self) -> bool:
        """Return whether the local log is known to match the leader's up to the HW. A leader's value is always
        True."""

    @property
    def confirmed_at(self) -> float:
        """Return the latest time, in seconds of the local clock, for which this is proved: every record that was
        committed until then, by any leader, lies below the HW. ``-inf`` if none is proved."""

    @property
    def fresh_at(self) -> float:
        """Return the time, in seconds of the local clock, that bounded reads go by. It is ``confirmed_at``, or later
        where a leader that reaches no controller may confirm its leadership alone (decision 26)."""

    def ask_confirmation(self, now: float) -> None:
        """Begin to confirm leadership anew, since a request waits until ``confirmed_at`` or ``fresh_at`` reaches
        ``now``."""

    def refuse_epoch(self, leader_epoch: int) -> TidelogError | None:
        """Return the error for a request that names another leader epoch than the role's. Return None if it names
        that epoch, or -1 for none."""


@dataclass(frozen=True, slots=True)
class _Reader:
    """A read, or a request for an offset, on its way through the stages: wait for the proof, wait for records,
    answer. Its wait for records ends at ``records_until``, and that for the proof at ``until`` (seconds)."""

    source: int
    id: int | None
    ask: Read | ListOffset
    came: float
    records_until: float
    until: float
    awaited_end: int = 0
    """The HW at which it is checked again for records; the last stable offset moves only with the HW."""
    asked: float = inf
    """When it began to wait for the proof; inf: it has not."""
    deadline: float = 0.0
    """When the stage that it waits in is over."""


class PendingReads:
    """The reads and requests for offsets that wait on one partition. It lives as long as the role. ``leader`` is the
    leader's name if this server follows, and None if it leads."""

    def __init__(self, context: NodeContext, core: CommittedView, log: Log, leader: NodeId | None = None) -> None:
        self._core = core
        self._log = log
        self._settings = context.settings
        self._effects = context.effects
        self._leader = leader
        self._unproved: Purgatory[_Reader] = Purgatory()
        self._for_records: Purgatory[_Reader] = Purgatory()
        self.last_stable_offset_age = LastStableOffsetAge()
        """How long the last stable offset has stood at one transaction."""
        self._proof = (core.confirmed_at, core.fresh_at, core.knows_end)
        """``confirmed_at``, ``fresh_at`` and ``knows_end`` when the reads that wait for the proof were last
        checked."""

    @property
    def is_waited_for(self) -> bool:
        """Return whether any request waits here, for the proof or for records."""
        return bool(self._unproved.waiting or self._for_records.waiting)

    @property
    def waits_for_records(self) -> bool:
        """Return whether any read waits here for records, that is for the HW to move."""
        return bool(self._for_records.waiting)

    def _visible(self, ask: Read | ListOffset) -> int:
        """Return the offset up to which (exclusive) the request may see records: the last stable offset for isolation
        ``committed``, the HW for ``uncommitted``."""
        end = self._core.high_watermark
        return end if ask.isolation == "uncommitted" else self._log.producers.transactions.last_stable_offset(end)

    # --- requests ----------------------------------------------------------------------------------------

    def read(self, source: int, id: int | None, read: Read, now: float) -> None:
        """Answer a read with committed batches. First it may have to wait for the proof that its consistency level
        asks for, then, at the HW, for records. A read that is malformed, or whose position is not in this log, is
        answered with the refusal. If too many requests wait here, the read does not wait: it is answered or refused
        at once."""
        refusal = self._refuse_read(read, now)
        if refusal is not None:
            self._effects.answer(source, id, refusal)
            return
        wait_s = max(0.0, min(read.max_wait_ms / 1000, self._settings.read_wait_max_s))
        proof_s = 0.0 if read.consistency == "eventual" else self._settings.read_proof_max_s
        # a leader has to prove that it leads, even for a read that does not wait; a follower names the leader instead
        until = now + (max(wait_s, proof_s) if self._leader is None else wait_s)
        records_until = now + wait_s - (min(proof_s, wait_s / 2) if read.consistency == "bounded" else 0.0)
        if self._full:
            records_until = until = now
        self._step(_Reader(source, id, read, now, records_until, until), now)

    def list_offset(self, source: int, id: int | None, asked: ListOffset, now: float) -> None:
        """Answer a request for an offset: the log start, the offset for a timestamp, or the end of the visible
        records (HW or last stable offset, by its isolation). That end is given only when it is proved that no other
        replica led when the request came, for which the request may wait. A request that is malformed or names
        another leader epoch is answered with the refusal."""
        refusal = self._core.refuse_epoch(asked.leader_epoch)
        if refusal is None and asked.at not in ("earliest", "latest", "timestamp"):
            refusal = refuse("MALFORMED", f"at is earliest, latest or timestamp, not {asked.at!r}")
        if refusal is None and asked.at == "timestamp" and asked.timestamp_ms < 0:
            refusal = refuse("MALFORMED", "at is timestamp, and timestamp_ms is missing")
        refusal = refusal or _refuse_isolation(asked)
        if refusal is not None:
            self._effects.answer(source, id, refusal)
            return
        found = self._offset_of(asked)
        if found is not None or not self._core.knows_end:
            self._effects.answer(source, id, found or self._end_not_known(now))
            return
        until = now if self._full else now + self._settings.read_proof_max_s
        self._step(_Reader(source, id, asked, now, now, until), now)

    def bounds(self, key: TopicPartition, now: float) -> LogBounds | None:
        """Return the offsets of the log of partition ``key`` as this role knows them, without a proof that they are
        the newest. Return None while it is not known how far earlier leaders have committed."""
        if not self._core.knows_end:
            return None
        log, stable = self._log, self._last_stable_offset(now)
        return LogBounds(*key, log.start, self._core.high_watermark, stable, log.segments.count_and_bytes()[1])

    @property
    def _full(self) -> bool:
        """Return whether as many requests wait on this partition as are allowed."""
        waiting = len(self._unproved.waiting) + len(self._for_records.waiting)
        return waiting >= self._settings.partition_max_waiting

    # --- the stages --------------------------------------------------------------------------------------

    def _step(self, reader: _Reader, now: float) -> None:
        """Move a request on to the stage that it can reach now: let it wait for the proof, let it wait for records,
        or answer it. Refuse it (``STALE_REPLICA`` or ``OFFSET_NOT_AVAILABLE``) if the proof did not come in time."""
        if not self._is_proved(reader, now):
            if now >= reader.until:
                self._effects.answer(reader.source, reader.id, self._stale(now))
                return
            if reader.asked == inf:
                self._core.ask_confirmation(now)
            self._unproved.add(replace(reader, asked=min(reader.asked, now), deadline=reader.until))
        elif (
            now < reader.records_until
            and isinstance(reader.ask, Read)
            and self._visible(reader.ask) <= reader.ask.offset
        ):
            end = max(reader.ask.offset, self._core.high_watermark) + 1
            self._for_records.add(replace(reader, awaited_end=end, asked=inf, deadline=reader.records_until))
        elif isinstance(reader.ask, ListOffset):
            self._effects.answer(
                reader.source, reader.id, self._offset_of(reader.ask) or self._latest(reader.ask, now)
            )
        else:
            self._answer(reader.source, reader.id, reader.ask, now)

    def _is_proved(self, reader: _Reader, now: float) -> bool:
        """Return whether it is proved that every record which the request must see lies below the HW. For a read with
        consistency ``eventual`` always True; for ``bounded`` the records that are older than its
        ``max_staleness_ms``; otherwise all that were committed when the request came."""
        ask, wanted = reader.ask, reader.came
        if isinstance(ask, Read):
            if ask.consistency == "eventual":
                return True
            if ask.consistency == "bounded":
                wanted = min(now - ask.max_staleness_ms / 1000, reader.asked)
                return self._core.knows_end and self._core.fresh_at >= wanted
        return self._core.knows_end and self._core.confirmed_at >= wanted

    def _refuse_read(self, read: Read, now: float) -> TidelogError | None:
        """Return the error for a read that is malformed, or whose position is not in this log or diverges from it.
        Return None if the read can be served, or, at a follower, if its position is above the HW, which may still
        rise."""
        core, log, hw = self._core, self._log, self._core.high_watermark
        if read.consistency not in CONSISTENCIES:
            return refuse("MALFORMED", f"consistency is one of {', '.join(CONSISTENCIES)}, not {read.consistency!r}")
        if (read.consistency == "bounded") != (read.max_staleness_ms >= 0):
            return refuse("MALFORMED", "max_staleness_ms belongs to bounded reads, and to each of them")
        refusal = _refuse_isolation(read) or core.refuse_epoch(read.leader_epoch)
        if refusal is not None:
            return refusal
        if read.last_epoch > core.leader_epoch:
            return self._refuse("UNKNOWN_LEADER_EPOCH", f"the position names leader epoch {read.last_epoch}")
        if not core.agrees:
            return self._not_agreed()
        if read.offset < log.start:
            return self._refuse("OFFSET_OUT_OF_RANGE", f"{read.offset} is below the log start {log.start}")
        if read.offset > hw and self._leader is not None:
            return None  # this server may be behind: it waits
        if read.offset > hw and not core.knows_end:
            return self._end_not_known(now)
        diverging = divergence(read.offset, read.last_epoch, log.epochs, log.start, log.end)
        if diverging is not None:
            epoch, end = diverging
            text = f"epoch {read.last_epoch} does not reach {read.offset}: the logs part at {end} in epoch {epoch}"
            end = end if self._leader is None else min(end, hw)
            return self._refuse("LOG_TRUNCATED", text, leader_epoch=epoch, end_offset=end)
        if read.offset > hw:
            if read.offset <= log.end:
                return self._refuse("OFFSET_NOT_AVAILABLE", f"committed up to {hw} only")
            return self._refuse("OFFSET_OUT_OF_RANGE", f"{read.offset} is past the high watermark {hw}")
        return None

    def _answer(self, source: int, id: int | None, read: Read, now: float) -> None:
        """Send the answer to a read: the batches from its offset up to the end of what it may see, perhaps none. For
        isolation ``committed`` aborted batches are replaced by empty ones. Send the refusal if the position has
        become invalid, or if the HW has not reached it."""
        hw, known, payload = self._core.high_watermark, self._core.knows_end, []
        needed = 0
        refusal = self._refuse_read(read, now)  # a follower knows only now
        if refusal is None and read.offset >= hw:
            if read.offset > hw:
                refusal = self._refuse("OFFSET_NOT_AVAILABLE", f"committed up to {hw} only")
            elif not known:
                refusal = self._end_not_known(now)
        if refusal is not None:
            self._effects.answer(source, id, refusal)
            return
        end = self._visible(read)
        if read.offset < end:
            max_bytes = max(1, min(read.max_bytes, self._settings.fetch_max_bytes))
            payload = self._log.read(read.offset, max_bytes, end)
            if read.hard_limit and (size := sum(map(len, payload))) > read.max_bytes:
                payload, needed = [], size
            transactions = self._log.producers.transactions
            if not transactions.is_idle and read.isolation == "committed":
                payload = transactions.without_aborted(payload, read.offset)
        self._effects.counts.reads += 1
        self._effects.counts.read_bytes += sum(map(len, payload))
        shown = hw if known else -1  # the leader before may have shown more
        log = self._log
        answer = ReadAnswer(self._core.leader_epoch, shown, log.start, payload or b"", *log.compacted, needed)
        self._effects.answer(source, id, answer)

    def _offset_of(self, asked: ListOffset) -> OffsetAnswer | None:
        """Return the answer to a request for the earliest offset, or for the offset of a timestamp. Return None for
        ``latest``, and if no visible batch has such a timestamp: the answer is then the end of the visible records
        (``_latest``)."""
        log = self._log
        if asked.at == "earliest":
            return OffsetAnswer(log.start, log.epoch_at(log.start), bytes=log.segments.count_and_bytes()[1])
        if asked.at == "latest":
            return None
        found = log.offset_for_timestamp(asked.timestamp_ms, self._visible(asked))
        return None if found is None else OffsetAnswer(found[0], log.epoch_at(found[0]), found[1])

    def _latest(self, asked: ListOffset, now: float) -> OffsetAnswer:
        """Return the answer to a request for the end of the visible records: that offset and its leader epoch. For
        isolation ``uncommitted`` it also names the last stable offset if that is below the HW."""
        end = self._visible(asked)
        stable = self._last_stable_offset(now) if asked.isolation == "uncommitted" else None
        return OffsetAnswer(end, self._log.epoch_at(end), stable=stable)

    def _last_stable_offset(self, now: float) -> StableOffset | None:
        """Return the last stable offset, the transaction that holds it there, and for how long it has stood there
        (ms). Return None if it equals the HW."""
        transactions, end = self._log.producers.transactions, self._core.high_watermark
        stable = transactions.last_stable_offset(end)
        if stable >= end:
            return None
        return StableOffset(stable, *transactions.at(stable), round(self.last_stable_offset_age.age_s(now) * 1000))

    # --- refusals ----------------------------------------------------------------------------------------

    def _end_not_known(self, now: float) -> TidelogError:
        """Return the refusal ``OFFSET_NOT_AVAILABLE``, for a server that does not know yet how far earlier leaders
        have committed. A leader's refusal says for how long it has led, and which replicas it waits for."""
        core = self._core
        text = f"committed up to {core.high_watermark} at least; how much further is not known yet"
        if not isinstance(core, LeaderState):
            return self._refuse("OFFSET_NOT_AVAILABLE", text)
        waited_s, needed, awaited = max(0.0, now - core.began_at), core.epoch_start, core.awaited
        if core.has_quorum:
            waits = f"the leader waits for {', '.join(awaited)} to show that they hold everything up to {needed}"
        else:
            waits = f"{len(core.isr)} replicas are in sync, and {core.min_insync} are needed"
        return self._refuse(
            "OFFSET_NOT_AVAILABLE",
            f"{text}, after {waited_s:.1f} s: {waits}",
            waited_ms=round(waited_s * 1000),
            awaited=" ".join(awaited),
            awaited_offset=needed,
        )

    def _not_agreed(self) -> TidelogError:
        """Return the refusal ``OFFSET_NOT_AVAILABLE``, for a follower whose log is not known to be a prefix of the
        leader's."""
        text = f"the log here is not known yet to be the beginning of that of {self._leader}, the leader"
        return refuse("OFFSET_NOT_AVAILABLE", text, leader=self._leader or "")

    def _refuse(self, code: str, message: str, **detail: int | str) -> TidelogError:
        """Return an error with ``code`` and ``message`` that also carries the log start, the HW and the leader epoch,
        so that the reader can correct its position."""
        core = self._core
        error = refuse(
            code,
            message,
            log_start=self._log.start,
            high_watermark=core.high_watermark,
            leader_epoch=core.leader_epoch,
        )
        error.detail |= detail
        return error

    def _stale(self, now: float) -> TidelogError:
        """Return the refusal for a request whose proof did not come in time: ``OFFSET_NOT_AVAILABLE`` if the end of
        the committed records is not known, otherwise ``STALE_REPLICA``."""
        if not self._core.knows_end:
            return self._end_not_known(now)
        if self._leader is None:
            return refuse("STALE_REPLICA", "it cannot be shown that nobody else leads by now")
        return self._leader_may_have_more(self._leader)

    @staticmethod
    def _leader_may_have_more(leader: NodeId) -> TidelogError:
        """Return ``STALE_REPLICA``, which names the leader: a follower that could not get a confirmation may lack
        committed records."""
        return refuse("STALE_REPLICA", f"the leader, {leader}, may have committed more", leader=leader)

    # --- the end of every input --------------------------------------------------------------------------

    def settle(self, now: float) -> None:
        """Finish an input: answer the reads whose records are committed now, and check again those that wait for the
        proof, if the proof has moved. A request that has to wait once more is queued in its next stage. Also update
        the age of the last stable offset."""
        transactions = self._log.producers.transactions
        if not transactions.is_idle or self.last_stable_offset_age.since is not None:
            self.last_stable_offset_age.update(transactions, self._core.high_watermark, now)
        if self._for_records.waiting:
            for reader in self._for_records.complete(self._core.high_watermark):
                self._step(reader, now)
        if self._unproved.waiting:
            proof = self._core.confirmed_at, self._core.fresh_at, self._core.knows_end
            if proof != self._proof:
                self._proof = proof
                for reader in self._unproved.take_all():
                    self._step(reader, now)

    def on_tick(self, now: float) -> None:
        """Move on the requests whose time in their stage is over by ``now`` (seconds): a wait for records ends with
        the answer, which may be empty, and a wait for the proof with a refusal."""
        for reader in [*self._unproved.expire(now), *self._for_records.expire(now)]:
            self._step(reader, now)

    def refuse_unproved(self) -> None:
        """Refuse the requests that wait for the proof with ``STALE_REPLICA``, since the leader did not confirm its
        leadership to this follower. Their clients can go to another replica."""
        for reader in self._unproved.take_all():
            self._effects.answer(reader.source, reader.id, self._leader_may_have_more(self._leader or ""))

    def deadline(self) -> float:
        """Return a time, in seconds, at or before which ``on_tick`` has something to do; ``inf`` if no request
        waits."""
        return min(self._unproved.deadline, self._for_records.deadline)

    def on_source_closed(self, source: int) -> None:
        """Forget the requests that came over link ``source``, which is closed. They get no answer."""
        self._unproved.drop(source)
        self._for_records.drop(source)

    def resign(self, code: str, message: str) -> None:
        """Refuse all waiting requests with ``code`` and ``message``, since the role ends."""
        for reader in [*self._unproved.take_all(), *self._for_records.take_all()]:
            self._effects.answer(reader.source, reader.id, refuse(code, message))


def _refuse_isolation(ask: Read | ListOffset) -> TidelogError | None:
    """Return the error ``MALFORMED`` if the request names an unknown isolation level; otherwise None."""
    if ask.isolation in ISOLATIONS:
        return None
    return refuse("MALFORMED", f"isolation is one of {', '.join(ISOLATIONS)}, not {ask.isolation!r}")
