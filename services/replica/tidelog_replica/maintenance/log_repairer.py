"""Repairs damaged logs: first the loss is reported, then the log is repaired from the leader's
(``storage/recovery/damage.py``).

Damage is found when a log is opened or read, or by the scrubber. The log is closed then, the partition serves no
request and follows no leader, and the repair goes through the phases of ``RepairPhase``:

    handing over    report to the controller that this copy is lost, and repeat that until the metadata show it, in a
                    newer epoch than any that was known; also if this server is no member, since it may be about to
                    become one. Only then may anything of the log change: until then other servers may rely on it
    quarantining    a job quarantines the damaged segment
    filling         if that left a hole, fetch what the leader has committed there and write it, batch by batch
    closing         the hole is filled: a job makes the repair file the segment
    starting over   a job quarantines all segments: the copy begins empty

Then the log is opened again. Its follower counts as holding records from its first fetch on. In every phase but the
first the repair waits while there is no leader: this copy is perhaps all there is, and is not changed.

While there is a hole the log is closed, so it is never served, never led with and never acknowledged. The copy starts
over with an empty log if the leader's log does not fit (it begins in the hole; the records behind the hole were never
committed; or it would bring back deleted keys), or if the same segment is damaged again. If this server itself leads
when a leader's log turns out not to fit, it keeps what precedes the hole: that is all there is. If the leader's log
begins behind the hole, in a segment of the copy with the same history, the copy begins there too: the damaged part is
deleted anyway. The leader then reports the producers' state that the hole hides.

An unclean election may choose this server because no other is left. Then what precedes the damage is served, in a
leader epoch of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial

from tidelog.errors import TidelogError, refuse
from tidelog.sansio.effects import CONTROLLER
from tidelog.sansio.timers import KeyTimer
from tidelog.types import PartitionState, TopicConfig, TopicPartition
from tidelog.wire.codec import payload_view
from tidelog.wire.messages import HandOver, LogSnapshot, LogSnapshotAnswer, Message, Read, ReadAnswer, SuspectPart

from tidelog_replica.context import NodeContext
from tidelog_replica.jobs import Job
from tidelog_replica.registration.session import BrokerSession
from tidelog_replica.storage.checkpoints import LogStartCheckpoint
from tidelog_replica.storage.recovery.damage import (
    BeginBehind,
    CloseHole,
    DivergentRepair,
    FillHole,
    Hole,
    Quarantine,
    StartOver,
    base_of,
)
from tidelog_replica.storage.segment import CorruptLog
from tidelog_replica.storage.tombstones import Compacted

REASON = "corrupt_log"
STALLED_S = 10.0
"""Time in seconds after which the leader is taken not to hold records of the hole, if it has not committed them since
they were first requested."""


class RepairPhase(Enum):
    """The next step of a repair: report the loss to the controller (HANDING_OVER), remove the damaged segment from
    the log (QUARANTINING), fill the hole from the leader's log (FILLING), make the filling a segment (CLOSING), or
    quarantine all segments (STARTING_OVER)."""

    HANDING_OVER = "handing over"
    QUARANTINING = "quarantining"
    FILLING = "filling"
    CLOSING = "closing"
    STARTING_OVER = "starting over"


@dataclass(slots=True)
class _Repair:
    """The repair of one damaged log: the reason, its phase, and how far the hole is filled (the offsets that the
    quarantined segment held). ``state`` is the newest state of the partition; None while this server is no replica.
    It lives until the log is opened again."""

    config: TopicConfig
    state: PartitionState | None
    reason: str
    base: int | None
    """First offset of the damaged segment; None: the whole log is damaged."""
    phase: RepairPhase = RepairPhase.HANDING_OVER
    lost_epoch: int = -1
    """Epoch of the partition's state at which the controller recorded the loss. In newer states no other server
    relies on what this copy held. -1 before."""
    hole: Hole | None = None
    offset: int = 0
    """Offset up to which the hole is filled, exclusive."""
    size: int = 0
    """Bytes of the batches that were written to fill the hole."""
    busy: bool = False
    """Whether a job or call is under way, or the log is not closed yet."""
    pause_until: float = 0.0
    stalled_since: float | None = None
    misfit: str = ""
    """Why the leader's log cannot fill the hole, so that the copy starts over with an empty log; "" if nothing is
    known against it."""


class LogRepairer:
    """The part of a node that repairs damaged logs. It has a damaged segment quarantined, and fills the hole that the
    segment leaves with the leader's records; or the copy starts over with an empty log. The logs stay closed
    meanwhile. ``reopen(key, config, state)`` is called for each log that can be opened again. It lives as long as the
    node; nothing of it is stored, since the next opening finds the damage or the hole again."""

    def __init__(
        self,
        context: NodeContext,
        session: BrokerSession,
        reopen: Callable[[TopicPartition, TopicConfig, PartitionState], None],
    ) -> None:
        self._node = context.node
        self._disk = context.disk
        self._path = context.log_directory
        self._session = session
        self._settings = context.settings
        self._effects = context.effects
        self._timers = context.timers
        self._reopen = reopen
        self._repairs: dict[TopicPartition, _Repair] = {}
        self._before: dict[TopicPartition, list[int]] = {}
        """First offsets of the segments that were damaged since this process began. If one is damaged a second time,
        the whole copy starts over."""

    def __contains__(self, key: TopicPartition) -> bool:
        return key in self._repairs

    def __len__(self) -> int:
        return len(self._repairs)

    def refusal(self, key: TopicPartition) -> TidelogError:
        """Return the error ``OFFLINE`` that answers every request to the partition under repair. It names the damage,
        and says what the repair is doing or waiting for. Raises ``KeyError`` if the partition is not under repair."""
        repair = self._repairs[key]
        if repair.hole is not None:
            doing = f"offsets {repair.offset} to {repair.hole.end} are being fetched again"
        elif repair.state is not None and repair.state.leader is None:
            doing = "and nobody else leads from whom it could be had"
        else:
            doing = "it will be fetched again"
        return refuse("OFFLINE", f"the partition's log on {self._node} is damaged ({repair.reason}), {doing}")

    # --- inputs ------------------------------------------------------------------------------------------

    def repair_log(
        self,
        key: TopicPartition,
        config: TopicConfig,
        state: PartitionState | None,
        error: CorruptLog,
        now: float,
        *,
        closed: bool = True,
    ) -> None:
        """Begin to repair a damaged log: log ``log_damaged``, and report to the controller that the copy is lost, if
        the partition's ``state`` is known. The log must be closed already; with ``closed`` False the first step waits
        for ``on_closed``. Only the damaged segment is replaced, unless ``error`` names none or the segment was
        damaged before in this process: then the whole copy starts over."""
        base = base_of(error)
        before = self._before.setdefault(key, [])
        if base in before:
            base = None
        elif base is not None:
            before.append(base)
        reason = error.strerror or str(error)
        self._repairs[key] = _Repair(config, state, reason, base, busy=not closed)
        self._event("log_damaged", key, segment=-1 if base is None else base, reason=reason)
        self._step(key, now)

    def on_closed(self, key: TopicPartition, now: float) -> None:
        """Do the repair's first step, since the damaged log is closed and no thread works on it any more. Does
        nothing if the partition is not under repair."""
        if key in self._repairs:
            self._repairs[key].busy = False
            self._step(key, now)

    def on_state(self, key: TopicPartition, config: TopicConfig, state: PartitionState, now: float) -> None:
        """Store the partition's new settings and state from the metadata, end a pause, and do the next step of the
        repair. Raises ``KeyError`` if the partition is not under repair."""
        repair = self._repairs[key]
        repair.config, repair.state, repair.pause_until = config, state, 0.0
        self._step(key, now)

    def unassign(self, key: TopicPartition) -> None:
        """Suspend the partition's repair, since this server is no replica of the partition any more. ``on_state``
        resumes the repair. Does nothing if the partition is not under repair."""
        if key in self._repairs:
            self._repairs[key].state = None

    def unassign_all(self) -> None:
        """Suspend all repairs, since this incarnation of the server is over. ``on_state`` resumes each."""
        for repair in self._repairs.values():
            repair.state = None

    def forget(self, key: TopicPartition) -> None:
        """Discard the partition's repair and the record of its earlier damage, since this copy is deleted. Does
        nothing if there was no damage."""
        self._repairs.pop(key, None)
        self._before.pop(key, None)

    def on_tick(self, key: TopicPartition, now: float) -> None:
        """Do the next step of the partition's repair after a pause. Does nothing if the partition is not under repair
        any more."""
        if key in self._repairs:
            self._step(key, now)

    # --- step by step ------------------------------------------------------------------------------------

    def _step(self, key: TopicPartition, now: float) -> None:
        """Do the next step of the repair as its phase demands: a report to the controller, a request to the leader,
        or a job on the log. Does nothing while a step is under way, during a pause, or while this server is no
        replica. After the report it also waits until a leader is known and the metadata show that the loss is
        recorded. If this server itself leads by then, the log is cut before the damaged segment and nothing is
        fetched."""
        repair = self._repairs[key]
        state = repair.state
        if repair.busy or state is None:
            return
        if now < repair.pause_until:
            self._timers.set(KeyTimer(self, key), repair.pause_until)
            return
        if repair.phase is RepairPhase.HANDING_OVER:
            self._hand_over(key, repair, state, now)
            return
        if state.leader is None or state.epoch <= repair.lost_epoch:
            return
        disk, path = self._disk, self._path(key)
        if repair.base is not None and state.leader == self._node:  # what precedes the damage is all there is
            self._work(key, repair, Quarantine(disk, path, repair.base, cut=True), self._on_quarantined)
        elif repair.phase is RepairPhase.STARTING_OVER:
            if repair.misfit:
                self._event("copy_restarted", key, reason=repair.misfit)
            repair.base = repair.hole = None
            self._work(key, repair, StartOver(disk, path), self._on_quarantined)
        elif repair.phase is RepairPhase.QUARANTINING:
            assert repair.base is not None
            self._work(key, repair, Quarantine(disk, path, repair.base), self._on_quarantined)
        elif repair.phase is RepairPhase.FILLING:
            assert repair.hole is not None
            self._read(key, repair, repair.hole, state, now)
        else:
            assert repair.hole is not None
            self._work(key, repair, CloseHole(disk, path, repair.hole), self._on_repaired)

    def _pause(self, key: TopicPartition, repair: _Repair, pause_s: float, now: float) -> None:
        """Put the next step off for ``pause_s`` seconds, and set the timer."""
        repair.pause_until = now + pause_s
        self._timers.set(KeyTimer(self, key), repair.pause_until)

    def _hand_over(self, key: TopicPartition, repair: _Repair, state: PartitionState, now: float) -> None:
        """Send the controller a ``HandOver``, which reports that this server's copy is lost. ``_on_handed_over`` gets
        the answer."""
        repair.busy = True
        part = SuspectPart(*key, state.epoch, state.leader_epoch)
        message = HandOver(self._node, self._session.broker_epoch, REASON, (part,), lost=True)
        done = partial(self._on_handed_over, key, repair, state)
        self._effects.call(CONTROLLER, message, self._settings.controller_timeout_s, done)

    def _on_handed_over(
        self,
        key: TopicPartition,
        repair: _Repair,
        state: PartitionState,
        answer: Message | TidelogError,
        now: float,
    ) -> None:
        """Act on the controller's answer to the report of the loss: enter the next phase and do its first step. After
        an error the report is repeated after a pause; the controller refuses a report whose ``state`` is not the
        newest one of the partition."""
        if self._repairs.get(key) is not repair:
            return
        repair.busy = False
        if isinstance(answer, TidelogError):
            self._pause(key, repair, self._settings.isr_retry_s, now)
        else:
            repair.lost_epoch = state.epoch
            repair.phase = RepairPhase.STARTING_OVER if repair.base is None else RepairPhase.QUARANTINING
            self._step(key, now)

    # --- jobs --------------------------------------------------------------------------------------------

    def _work(
        self,
        key: TopicPartition,
        repair: _Repair,
        job: Job,
        done: Callable[[TopicPartition, _Repair, object, float], None],
    ) -> None:
        """Start a job of the repair in a thread. ``done`` is called with its result if it succeeds; until then the
        repair does no other step."""
        repair.busy = True
        self._effects.jobs.start(key, job, partial(self._on_worked, key, repair, done))

    def _on_worked(
        self,
        key: TopicPartition,
        repair: _Repair,
        done: Callable[[TopicPartition, _Repair, object, float], None],
        result: object,
        now: float,
    ) -> None:
        """Pass the result of a job of the repair to ``done``. If the job failed stop the server; the job is not tried
        again, since a sync that succeeds after one that failed proves nothing. Does nothing if the repair was
        discarded meanwhile."""
        if self._repairs.get(key) is not repair:
            return
        if isinstance(result, OSError):
            self._effects.stop(f"{self._path(key)}: {result}")
        else:
            repair.busy = False
            done(key, repair, result, now)

    def _on_quarantined(self, key: TopicPartition, repair: _Repair, result: object, now: float) -> None:
        """Go on after a job that has quarantined segments: begin to fill the hole that they left from the leader's
        log, or, if they left none, end the repair and open the log. Log ``segment_quarantined``."""
        base = -1 if repair.base is None else repair.base
        if not isinstance(result, Hole):
            self._event("segment_quarantined", key, segment=base, end=-1)
            self._end_repair(key, repair, now)
            return
        self._event("segment_quarantined", key, segment=base, end=result.end)
        repair.hole, repair.offset, repair.size = result, result.base, 0
        repair.phase = RepairPhase.FILLING
        self._step(key, now)

    def _on_repaired(self, key: TopicPartition, repair: _Repair, result: object, now: float) -> None:
        """End the repair and open the log, since a job has put the filled segment in the place of the hole. Log
        ``segment_repaired``."""
        assert repair.hole is not None
        self._event("segment_repaired", key, segment=repair.hole.base, end=repair.hole.end)
        self._end_repair(key, repair, now)

    def _end_repair(self, key: TopicPartition, repair: _Repair, now: float) -> None:
        """End the repair, and have the log opened if this server is still a replica of the partition."""
        del self._repairs[key]
        if repair.state is not None:
            self._reopen(key, repair.config, repair.state)

    # --- the leader --------------------------------------------------------------------------------------

    def _read(self, key: TopicPartition, repair: _Repair, hole: Hole, state: PartitionState, now: float) -> None:
        """Request the committed records at the next offset of the hole from the leader. ``_on_read`` gets the answer.
        While the local disk is full, pause instead."""
        assert state.leader is not None
        if self._effects.full:
            self._pause(key, repair, self._settings.isr_retry_s, now)
            return
        repair.busy = True
        first = repair.offset == hole.base
        message = Read(
            *key,
            repair.offset,
            last_epoch=hole.last_epoch if first else -1,
            leader_epoch=state.leader_epoch,
            max_bytes=min(1 << 20, self._settings.fetch_max_bytes),
            isolation="uncommitted",
        )
        done = partial(self._on_read, key, repair, hole)
        self._effects.call(state.leader, message, self._settings.replica_max_leader_timeout_s, done)

    def _on_read(
        self, key: TopicPartition, repair: _Repair, hole: Hole, answer: Message | TidelogError, now: float
    ) -> None:
        """Act on the leader's answer: start a job that writes its records to the hole. If the leader's log begins
        behind the hole, request its ``LogSnapshot``. Start over with an empty log if the leader's log does not fit,
        or if the leader has committed nothing there for ``STALLED_S``. After other errors, and after an empty answer
        before that, ask again after a pause."""
        if self._repairs.get(key) is not repair:
            return
        repair.busy = False
        if isinstance(answer, ReadAnswer) and len(payload_view(answer.payload)):
            repair.stalled_since = None
            batches = bytes(payload_view(answer.payload))
            source = Compacted(answer.compacted_to, answer.tombstones_to)
            job = FillHole(self._disk, self._path(key), hole, repair.offset, repair.size, batches, source)
            self._work(key, repair, job, self._on_filled)
            return
        if isinstance(answer, TidelogError) and answer.code == "OFFSET_OUT_OF_RANGE":
            start = answer.detail.get("log_start")
            if isinstance(start, int) and start >= hole.end and repair.state is not None:
                self._ask_start(key, repair, hole, repair.state)
                return
        if isinstance(answer, TidelogError) and answer.code in ("OFFSET_OUT_OF_RANGE", "LOG_TRUNCATED"):
            self._start_over(key, repair, answer.message, now)
            return
        if not isinstance(answer, TidelogError) or answer.code == "OFFSET_NOT_AVAILABLE":
            # a leader that lacks this very member may not be able to commit more
            since = repair.stalled_since = now if repair.stalled_since is None else repair.stalled_since
            if now - since >= STALLED_S:
                self._start_over(key, repair, f"the leader has committed nothing at {repair.offset}", now)
                return
        self._pause(key, repair, self._settings.fetch_backoff_max_s, now)

    def _ask_start(self, key: TopicPartition, repair: _Repair, hole: Hole, state: PartitionState) -> None:
        """Send the leader a ``LogSnapshot``, which requests its log start and the producers' state there: the
        leader's log begins behind the hole, and the copy is to begin at that start too. ``_on_start`` gets the
        answer."""
        assert state.leader is not None
        repair.busy = True
        message = LogSnapshot(self._node, self._session.broker_epoch, *key, state.leader_epoch)
        done = partial(self._on_start, key, repair, hole)
        self._effects.call(state.leader, message, self._settings.replica_max_leader_timeout_s, done)

    def _on_start(
        self, key: TopicPartition, repair: _Repair, hole: Hole, answer: Message | TidelogError, now: float
    ) -> None:
        """Act on the leader's answer with its log start: start a job that makes the local log begin there too. After
        an error, or if the start is not behind the hole, ask again after a pause."""
        if self._repairs.get(key) is not repair:
            return
        repair.busy = False
        if isinstance(answer, LogSnapshotAnswer) and answer.log_start >= hole.end:
            start = LogStartCheckpoint(answer.log_start, answer.last_epoch, answer.chain)
            producers = bytes(payload_view(answer.payload))
            job = BeginBehind(self._disk, self._path(key), start, producers)
            self._work(key, repair, job, self._on_left_behind)
        else:
            self._pause(key, repair, self._settings.fetch_backoff_max_s, now)

    def _on_left_behind(self, key: TopicPartition, repair: _Repair, result: object, now: float) -> None:
        """End the repair and open the log, which a job has made to begin behind the hole. Log ``hole_retired``. If
        the job found that the log's history is not the leader's, start over with an empty log."""
        if isinstance(result, DivergentRepair):
            self._start_over(key, repair, str(result), now)
            return
        assert repair.hole is not None and isinstance(result, int)
        self._event("hole_retired", key, segment=repair.hole.base, start=result)
        self._end_repair(key, repair, now)

    def _on_filled(self, key: TopicPartition, repair: _Repair, result: object, now: float) -> None:
        """Record how far a job has filled the hole, and request the next records; when the hole is full, enter the
        phase that closes it. Start over with an empty log if the job found that the leader's records do not fit the
        batches behind the hole."""
        if isinstance(result, DivergentRepair):
            self._start_over(key, repair, str(result), now)
            return
        assert isinstance(result, tuple) and repair.hole is not None
        repair.offset, repair.size = result
        if repair.offset >= repair.hole.end:
            repair.phase = RepairPhase.CLOSING
        self._step(key, now)

    def _start_over(self, key: TopicPartition, repair: _Repair, reason: str, now: float) -> None:
        """Have the copy start over with an empty log, since the leader's log cannot fill the hole, for the given
        ``reason``."""
        repair.misfit, repair.phase = reason, RepairPhase.STARTING_OVER
        self._step(key, now)

    def _event(self, name: str, key: TopicPartition, **fields: int | str) -> None:
        self._effects.event(name, topic_id=key.topic_id, partition=key.partition, **fields)
