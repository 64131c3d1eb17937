"""Settles doubtful tails of logs: no other server relies on such a copy until the doubt is settled
(``storage/recovery/doubtful_tail.py``).

The log is closed. The partition serves no request and follows no leader. Each step is one of ``DoubtPhase``, which
the metadata and the answers received determine:

    reporting   a member of ISR or ELR reports the doubt. From then on the controller treats the copy as away: it is
                neither elected nor counted, and other members that are back lead
    searching   there is no leader: every other replica is asked for the batches that are missing here, members
                first. They answer from a whole log, or from one that is doubtful elsewhere. The search ends when all
                missing batches were found, or when the batch at some offset is whole on no member. Then this server
                reports to the controller where the log ends, and which records are possibly lost. When the
                controller has agreed, the found batches are written to the tail file, and the log is opened, cut
    probing     another server leads: it is asked whether it serves in its leader epoch
    giving up   it does, and so it holds everything committed: this server reports that the copy gives up its tail
    cutting     the controller has agreed, in an older epoch than the metadata's: the log is opened, cut
    losing      an unclean election has made this copy the leader: its tail is reported as lost, and the log is cut
    repairing   the tail is damaged for sure, and cannot be made whole here (see below)
    waiting     nothing is to be done before the metadata change

A member that does not answer may hold the missing batches, and may come back: the partition waits for it; if the end
of the log is only torn, at most ``TORN_WAIT_S``. It waits for other replicas at most ``OTHERS_WAIT_S``.
Nothing of the log changes before the controller has agreed (decision 10). What this module knows is not stored: the
next process finds the same tail and begins again.

A tail that is damaged for sure, below the recovery point, is settled in the same way as long as there is no leader:
it can be made whole, and is never cut. If another server leads, or the missing batches are whole nowhere, the log is
repaired (``maintenance/log_repairer.py``).

A cluster below feature level 4 does not know doubtful tails. There a copy that is the only member is cut, and the
records are reported as lost (losing); every other copy is handed over as lost (handing over), and then cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from tidelog.batch.format import check_batch, split
from tidelog.errors import CorruptBatch, TidelogError, refuse
from tidelog.feature_levels import DOUBTFUL_TAILS
from tidelog.sansio.effects import CONTROLLER
from tidelog.sansio.timers import KeyTimer
from tidelog.types import NodeId, PartitionState, TopicConfig, TopicPartition
from tidelog.wire.codec import payload_view
from tidelog.wire.messages import (
    HandOver,
    Message,
    ReadTail,
    ReportDoubt,
    ReportLoss,
    SuspectPart,
    TailRead,
)

from tidelog_replica.context import NodeContext
from tidelog_replica.registration.session import BrokerSession
from tidelog_replica.storage.recovery.doubtful_tail import DoubtfulLog, ReadPlace, StoredBatch, WriteTail
from tidelog_replica.storage.segment import CorruptLog

OTHERS_WAIT_S = 5.0
"""Longest wait in seconds for the answer of a replica that is in neither ISR nor ELR."""
TORN_WAIT_S = 30.0
"""Longest wait in seconds for the answer of a member of ISR or ELR, if the end of the log is only torn."""


class DoubtPhase(Enum):
    """The next step to settle a doubtful tail: wait for newer metadata (WAITING), report the doubt to the controller
    (REPORTING), ask the other replicas for the missing batches (SEARCHING), ask the leader whether it leads
    (PROBING), report that this copy gives up its tail (GIVING_UP) or its whole log (HANDING_OVER), open the log with
    the tail cut (CUTTING), report the tail as lost (LOSING), or give a damaged log to the repairer (REPAIRING)."""

    WAITING = "waiting"
    REPORTING = "reporting"
    SEARCHING = "searching"
    PROBING = "probing"
    GIVING_UP = "giving up"
    HANDING_OVER = "handing over"
    CUTTING = "cutting"
    LOSING = "losing"
    REPAIRING = "repairing"


@dataclass(slots=True)
class _Doubt:
    """One log whose tail is doubtful or damaged, and the batches that were found to replace the tail. ``state`` is
    the newest state of its partition; None while this server is no replica. It lives until the log is opened or given
    to the repairer."""

    config: TopicConfig
    state: PartitionState | None
    log: DoubtfulLog
    needed: int
    """The lowest offset of the tail for which no whole batch was found yet."""
    since: float
    damage: CorruptLog | None = None
    """The damage of a tail that was surely durable: the tail is made whole or repaired, and never cut; None if the
    tail is doubtful."""
    batches: list[bytes | StoredBatch] = field(default_factory=list)
    """Batches that were found, consecutive from the start of the doubt up to ``needed``."""
    edge: tuple[str, int] = ("", 0)
    """Path and position where the batch at ``needed`` begins if the log holds it."""
    last_epoch: int = -1
    """Leader epoch of the record before ``needed``; -1: there is none."""
    lacking: set[NodeId] = field(default_factory=set)
    """Replicas that do not hold the batch at ``needed``."""
    silent: set[NodeId] = field(default_factory=set)
    """Replicas that did not answer since the last pause."""
    led_by: int = -1
    """The newest leader epoch whose leader has confirmed that it leads; -1: none has."""
    has_agreed: bool = False
    """Whether the controller has agreed that this copy gives up its tail."""
    agreed_epoch: int = -1
    """Epoch of the partition's state to which the controller agreed."""
    busy: bool = False
    pause_until: float = 0.0


class DoubtfulTails:
    """The part of a node that settles doubtful tails: ends of logs with a bad batch and whole batches behind it. It
    asks the other replicas for the missing batches, and the controller for leave to cut the log. The logs stay closed
    meanwhile. ``reopen(key, config, state)`` is called for a log that may be opened and cut, ``repair(key, damage,
    config, state, now)`` for a damaged log that cannot be made whole here. ``level()`` returns the cluster's feature
    level. It lives as long as the node."""

    def __init__(
        self,
        context: NodeContext,
        session: BrokerSession,
        reopen: Callable[[TopicPartition, TopicConfig, PartitionState], None],
        repair: Callable[[TopicPartition, CorruptLog, TopicConfig, PartitionState | None, float], None],
        level: Callable[[], int],
    ) -> None:
        self._node = context.node
        self._disk = context.disk
        self._path = context.log_directory
        self._session = session
        self._settings = context.settings
        self._effects = context.effects
        self._timers = context.timers
        self._reopen = reopen
        self._repair = repair
        self._level = level
        self._doubts: dict[TopicPartition, _Doubt] = {}

    def __contains__(self, key: TopicPartition) -> bool:
        return key in self._doubts

    def __len__(self) -> int:
        return len(self._doubts)

    def refusal(self, key: TopicPartition) -> TidelogError:
        """Return the error ``OFFLINE`` that answers every request to the partition. It names the first doubtful
        offset, and the replicas whose answer is missing. Raises ``KeyError`` if the partition has no doubtful
        tail."""
        doubt = self._doubts[key]
        waiting = ", ".join(sorted(doubt.silent))
        doing = f"it waits for {waiting}" if waiting else "other replicas are asked for what is missing"
        text = f"the log on {self._node} is doubtful from offset {doubt.log.start} on: {doing}"
        return refuse("OFFLINE", f"the partition is offline on {self._node}: {text}")

    # --- inputs ------------------------------------------------------------------------------------------

    def settle_tail(
        self,
        key: TopicPartition,
        config: TopicConfig,
        state: PartitionState | None,
        log: DoubtfulLog,
        now: float,
        *,
        damage: CorruptLog | None = None,
    ) -> None:
        """Begin to settle the tail of a log that could not be opened, and do the first step if the partition's state
        is known. The tail is doubtful; or, if ``damage`` is given, it was surely durable and is damaged, so that it
        must not be cut. Logs ``log_doubtful``."""
        self._doubts[key] = _Doubt(config, state, log, log.start, now, damage, edge=(log.path, log.position))
        self._doubts[key].last_epoch = log.last_epoch
        facts = {"start": log.start, "end": log.end, "torn": int(log.torn), "damaged": int(damage is not None)}
        self._event("log_doubtful", key, **facts, reason=log.strerror or str(log))
        self._step(key, now)

    def on_state(self, key: TopicPartition, config: TopicConfig, state: PartitionState, now: float) -> None:
        """Store the partition's new settings and state from the metadata, end a pause, and do the next step. Raises
        ``KeyError`` if the partition has no doubtful tail."""
        doubt = self._doubts[key]
        doubt.config, doubt.state, doubt.pause_until = config, state, 0.0
        self._step(key, now)

    def unassign(self, key: TopicPartition) -> None:
        """Suspend the work on the partition's tail, since this server is no replica of the partition any more.
        ``on_state`` resumes it. Does nothing if the partition has no doubtful tail."""
        if key in self._doubts:
            self._doubts[key].state = None

    def unassign_all(self) -> None:
        """Suspend the work on all tails, since this incarnation of the server is over. Also forget that the
        controller has agreed to cuts, since it agreed with this incarnation. ``on_state`` resumes each."""
        for doubt in self._doubts.values():
            doubt.state, doubt.has_agreed = None, False

    def forget(self, key: TopicPartition) -> None:
        """Discard what is known of the partition's doubtful tail, since this copy is deleted. Does nothing if the
        partition has none."""
        self._doubts.pop(key, None)

    def on_tick(self, key: TopicPartition, now: float) -> None:
        """Do the partition's next step after a pause. Does nothing if the partition has no doubtful tail any more."""
        if key in self._doubts:
            self._step(key, now)

    def serve(self, key: TopicPartition, asked: ReadTail, answer: Callable[[Message | TidelogError], None]) -> None:
        """Answer another replica's request for one batch from the closed log here. If a whole batch of the requested
        leader epoch begins at the requested offset, in the doubtful tail, a job reads it and ``answer`` is called
        with the batch. Otherwise ``answer`` is called at once: with a ``TailRead`` that says that there is none, or,
        for an offset below the tail, with the error ``OFFLINE``. Raises ``KeyError`` if the partition has no doubtful
        tail."""
        doubt = self._doubts[key]
        place = next((place for place in doubt.log.places if place.start == asked.offset and place.anchored), None)
        if asked.offset < doubt.log.start:
            answer(refuse("OFFLINE", f"the log on {self._node} is doubtful and closed"))
        elif place is None or place.leader_epoch != (
            doubt.log.epochs.epoch_at(place.start) if asked.epoch < 0 else asked.epoch
        ):
            answer(TailRead(found=False))
        else:
            done = partial(self._on_place_read, answer)
            self._effects.jobs.start(key, ReadPlace(self._disk, place), done)

    def _on_place_read(self, answer: Callable[[Message | TidelogError], None], result: object, now: float) -> None:
        """Send another replica the batch that a job has read; a ``TailRead`` without a batch if it was not whole, or
        the error ``OFFLINE`` if the disk failed."""
        if isinstance(result, OSError):
            answer(refuse("OFFLINE", f"the batch cannot be read on {self._node}: {result}"))
        elif isinstance(result, bytes):
            answer(TailRead(found=True, payload=result))
        else:
            answer(TailRead(found=False))

    # --- step by step ------------------------------------------------------------------------------------

    def _step(self, key: TopicPartition, now: float) -> None:
        """Do the next step for the partition: a report to the controller, a request to another replica, a job on the
        log, or nothing. Does nothing while a step is under way, during a pause, or while this server is no
        replica."""
        doubt = self._doubts[key]
        state = doubt.state
        if doubt.busy or state is None:
            return
        if now < doubt.pause_until:
            self._timers.set(KeyTimer(self, key), doubt.pause_until)
            return
        members = {*state.isr, *state.elr}
        phase = self._phase(doubt, state, members)
        if phase is DoubtPhase.REPAIRING:
            assert doubt.damage is not None
            self._give_to_repairer(key, doubt, doubt.damage, now)
        elif phase is DoubtPhase.LOSING:
            self._report_loss(key, doubt, state)
        elif phase is DoubtPhase.HANDING_OVER:
            self._hand_over(key, doubt, state)
        elif phase is DoubtPhase.CUTTING:
            doubt.batches.clear()
            self._write_tail(key, doubt)
        elif phase is DoubtPhase.GIVING_UP:
            self._report(key, doubt, state, "given_up", doubt.log.start, doubt.log.start)
        elif phase is DoubtPhase.PROBING:
            assert state.leader is not None
            self._ask(key, doubt, state, state.leader, now)
        elif phase is DoubtPhase.REPORTING:
            self._report(key, doubt, state, "doubtful", doubt.log.start, doubt.log.end)
        elif phase is DoubtPhase.SEARCHING:
            self._search(key, doubt, state, members, now)

    def _phase(self, doubt: _Doubt, state: PartitionState, members: set[NodeId]) -> DoubtPhase:
        """Return the next step, which depends on the partition's state, the cluster's feature level, and the answers
        received. ``members`` are the servers in ISR and ELR."""
        is_member = self._node in members
        knows_doubts = self._level() >= DOUBTFUL_TAILS
        is_follower = state.leader not in (None, self._node)
        is_last_resort = state.leader == self._node and state.unclean_epoch == state.leader_epoch
        if doubt.damage is not None and (is_follower or not is_member or not knows_doubts or is_last_resort):
            return DoubtPhase.REPAIRING
        if is_last_resort:  # an unclean election has decided: there is nothing better
            return DoubtPhase.LOSING
        may_cut = doubt.has_agreed and state.epoch > doubt.agreed_epoch
        if not knows_doubts:  # the doubt is settled without asking others
            if members == {self._node}:
                return DoubtPhase.LOSING
            if not doubt.has_agreed:
                return DoubtPhase.HANDING_OVER
            return DoubtPhase.CUTTING if may_cut and state.leader is not None else DoubtPhase.WAITING
        if is_follower:
            if may_cut:
                return DoubtPhase.CUTTING
            return DoubtPhase.GIVING_UP if doubt.led_by == state.leader_epoch else DoubtPhase.PROBING
        if not is_member:
            return DoubtPhase.WAITING
        return DoubtPhase.SEARCHING if self._node in state.doubtful else DoubtPhase.REPORTING

    def _hand_over(self, key: TopicPartition, doubt: _Doubt, state: PartitionState) -> None:
        """Send the controller a ``HandOver``, which reports that this server's copy is lost. For clusters whose
        feature level does not know doubtful tails. ``_on_agreed`` gets the answer."""
        part = SuspectPart(*key, state.epoch, state.leader_epoch)
        message = HandOver(self._node, self._session.broker_epoch, "doubtful_tail", (part,), lost=True)
        self._call(key, doubt, message, partial(self._on_agreed, key, doubt, state))

    def _search(
        self, key: TopicPartition, doubt: _Doubt, state: PartitionState, members: set[NodeId], now: float
    ) -> None:
        """Collect the whole batches of the local log, then ask the next replica for the first batch that is missing,
        members of ISR and ELR first. When nothing is missing, or no replica has the batch, report to the controller
        that the tail is settled and which records are possibly lost; a damaged log of which batches are missing is
        given to the repairer instead. Pauses while a replica that may hold more has not answered."""
        self._add_own_batches(doubt)
        if doubt.needed >= doubt.log.end and not doubt.log.torn:
            self._report(key, doubt, state, "settled", doubt.needed, doubt.needed)
            return
        others = [node for node in (*state.replicas, *state.learners) if node != self._node]
        others.sort(key=lambda node: node not in members)
        asked = [node for node in others if node not in doubt.lacking | doubt.silent]
        if asked:
            self._ask(key, doubt, state, asked[0], now)
            return
        torn, waited_s = doubt.log.torn, now - doubt.since
        for_members = not torn or waited_s < TORN_WAIT_S
        for_others = waited_s < OTHERS_WAIT_S
        if any(for_members if node in members else for_others for node in doubt.silent):
            self._pause(key, doubt, now)
        elif doubt.damage is not None:
            self._give_to_repairer(key, doubt, doubt.damage, now)
        else:
            self._report(key, doubt, state, "settled", doubt.needed, doubt.needed if torn else doubt.log.end)

    def _give_to_repairer(self, key: TopicPartition, doubt: _Doubt, damage: CorruptLog, now: float) -> None:
        """Forget the doubt and give the damaged log to the repairer, which fetches from a leader what other replicas
        hold."""
        del self._doubts[key]
        self._repair(key, damage, doubt.config, doubt.state, now)

    def _add_own_batches(self, doubt: _Doubt) -> None:
        """Add the batches of the local log that continue what was found; nothing if there is none. A batch counts
        only if it is certain that a batch begins at its place in the file, not inside a record's value, and if its
        leader epoch is certain."""
        places: dict[int, StoredBatch] = {}
        for place in doubt.log.places:
            if place.anchored or (place.path, place.position) == doubt.edge:
                places.setdefault(place.start, place)
        while (found := places.get(doubt.needed)) is not None:
            if self._epoch_of(doubt) < 0 and found.leader_epoch != doubt.last_epoch:
                return  # the CRC does not cover the epoch, and the epoch file is damaged: another replica has it
            self._add_batch(doubt, found, found.end, found.leader_epoch)
            doubt.edge = (found.path, found.position + found.stored)
            behind = next((p for p in doubt.log.places if (p.path, p.position) == doubt.edge), None)
            if behind is not None:
                places.setdefault(behind.start, behind)

    def _add_batch(self, doubt: _Doubt, batch: bytes | StoredBatch, end: int, leader_epoch: int) -> None:
        """Add a batch that was found. The search goes on at offset ``end`` (exclusive end of the batch), and all
        replicas may be asked again. ``leader_epoch`` is that of the batch."""
        doubt.batches.append(batch)
        doubt.last_epoch = leader_epoch
        doubt.needed = end
        doubt.lacking.clear()
        doubt.silent.clear()

    def _pause(self, key: TopicPartition, doubt: _Doubt, now: float) -> None:
        """Put the next step off for ``isr_retry_s`` seconds, and set the timer. Replicas that did not answer are
        asked again afterwards."""
        doubt.silent.clear()
        doubt.pause_until = now + self._settings.isr_retry_s
        self._timers.set(KeyTimer(self, key), doubt.pause_until)

    # --- other replicas ----------------------------------------------------------------------------------

    def _ask(self, key: TopicPartition, doubt: _Doubt, state: PartitionState, node: NodeId, now: float) -> None:
        """Send another replica a ``ReadTail``, which requests the batch at the first missing offset. If the replica
        is the partition's leader, its answer also says that it leads. ``_on_read`` gets the answer."""
        doubt.busy = True
        asked = (state.leader_epoch, doubt.needed, self._epoch_of(doubt), doubt.last_epoch)
        message = ReadTail(self._node, self._session.broker_epoch, *key, *asked)
        done = partial(self._on_read, key, doubt, state, node)
        self._effects.call(node, message, self._settings.replica_max_leader_timeout_s, done)

    def _epoch_of(self, doubt: _Doubt) -> int:
        """Return the leader epoch of the batch at the first missing offset, from the log's own leader-epoch cache; -1
        if the cache does not know it."""
        return doubt.log.epochs.epoch_at(doubt.needed)

    def _on_read(
        self,
        key: TopicPartition,
        doubt: _Doubt,
        state: PartitionState,
        node: NodeId,
        answer: Message | TidelogError,
        now: float,
    ) -> None:
        """Act on the answer of a replica, and do the next step: add its batches, or record that it has none, that it
        did not answer, or that it leads in the partition's leader epoch. If the partition's leader did not answer, or
        does not lead yet, pause first. Ignored if the doubt was settled or discarded meanwhile."""
        if self._doubts.get(key) is not doubt:
            return
        doubt.busy = False
        if not isinstance(answer, TailRead):
            doubt.silent.add(node)
            if state.leader == node:
                self._pause(key, doubt, now)
        elif answer.leads:
            doubt.led_by = state.leader_epoch
        elif state.leader == node:
            self._pause(key, doubt, now)
        elif not self._add_read_batches(doubt, bytes(payload_view(answer.payload))):
            doubt.lacking.add(node)
        self._step(key, now)

    def _add_read_batches(self, doubt: _Doubt, payload: bytes) -> bool:
        """Add the batches in another replica's answer, as far as they continue what was found. Return False if none
        was added. A corrupt batch is logged as ``fetched_data_refused``; it and those behind it are not added."""
        before = doubt.needed
        try:
            for _, batch in split(payload):
                header = check_batch(batch)
                if header.base_offset != doubt.needed or not doubt.log.epochs.fits(header):
                    break
                self._add_batch(doubt, bytes(batch), header.end_offset, header.leader_epoch)
                path, position = doubt.edge
                doubt.edge = (path, position + doubt.log.stored(header.batch_length))
        except CorruptBatch as error:
            self._effects.event("fetched_data_refused", reason=error.message)
        return doubt.needed > before

    # --- the controller ----------------------------------------------------------------------------------

    def _call(
        self,
        key: TopicPartition,
        doubt: _Doubt,
        message: Message,
        done: Callable[[Message | TidelogError, float], None],
    ) -> None:
        """Send a report to the controller. ``done`` is called with its answer; until then no other step is done for
        the partition."""
        doubt.busy = True
        self._effects.call(CONTROLLER, message, self._settings.controller_timeout_s, done)

    def _report(
        self, key: TopicPartition, doubt: _Doubt, state: PartitionState, step: str, start: int, end: int
    ) -> None:
        """Send the controller a ``ReportDoubt`` with the state ``step`` of the tail: "doubtful" with its offsets from
        ``start`` to ``end`` (exclusive), "given_up", or "settled" with the records from ``start`` to ``end`` possibly
        lost. The method for that state gets the answer."""
        broker_epoch, epochs = self._session.broker_epoch, (state.leader_epoch, state.epoch)
        message = ReportDoubt(self._node, broker_epoch, *key, *epochs, step, start, end)
        if step == "settled":
            done = partial(self._on_settled, key, doubt, start, end)
        elif step == "given_up":
            done = partial(self._on_agreed, key, doubt, state)
        else:
            done = partial(self._on_reported, key, doubt)
        self._call(key, doubt, message, done)

    def _on_reported(self, key: TopicPartition, doubt: _Doubt, answer: Message | TidelogError, now: float) -> None:
        """Pause after the controller's answer to the report "doubtful". Whether the controller has recorded the doubt
        is seen in newer metadata; otherwise the report is repeated."""
        if self._doubts.get(key) is doubt:
            doubt.busy = False
            self._pause(key, doubt, now)

    def _on_agreed(
        self, key: TopicPartition, doubt: _Doubt, state: PartitionState, answer: Message | TidelogError, now: float
    ) -> None:
        """Record that the controller has agreed that this copy gives up its tail, at the epoch of ``state``, and do
        the next step. After an error pause first; the report is then repeated."""
        if self._doubts.get(key) is not doubt:
            return
        doubt.busy = False
        if isinstance(answer, TidelogError):
            self._pause(key, doubt, now)
        else:
            doubt.has_agreed, doubt.agreed_epoch = True, state.epoch
            self._step(key, now)

    def _on_settled(
        self, key: TopicPartition, doubt: _Doubt, start: int, end: int, answer: Message | TidelogError, now: float
    ) -> None:
        """Act on the controller's answer to the report of what is lost: log ``records_possibly_lost`` if anything is,
        and have the found batches written and the log opened. After an error pause; the report is then repeated."""
        if self._doubts.get(key) is not doubt:
            return
        doubt.busy = False
        if isinstance(answer, TidelogError):
            self._pause(key, doubt, now)
            return
        if start < end:
            self._event("records_possibly_lost", key, start=start, end=end)
        self._write_tail(key, doubt)

    def _report_loss(self, key: TopicPartition, doubt: _Doubt, state: PartitionState) -> None:
        """Discard the batches that were found and send the controller a ``ReportLoss`` with all offsets of the tail,
        which is then cut. The records lie above the HW on the disk, so they are reported as possibly lost.
        ``_on_settled`` gets the answer."""
        start, end, broker_epoch = doubt.log.start, doubt.log.end, self._session.broker_epoch
        message = ReportLoss(self._node, broker_epoch, *key, state.leader_epoch, start, end, possible=True)
        doubt.batches.clear()
        self._call(key, doubt, message, partial(self._on_settled, key, doubt, start, end))

    # --- the log -----------------------------------------------------------------------------------------

    def _write_tail(self, key: TopicPartition, doubt: _Doubt) -> None:
        """Start a job that writes the found batches to the tail file, with which the opening of the log replaces the
        tail. ``_on_written`` gets the result."""
        doubt.busy = True
        job = WriteTail(self._disk, self._path(key), doubt.log.start, tuple(doubt.batches))
        self._effects.jobs.start(key, job, partial(self._on_written, key, doubt))

    def _on_written(self, key: TopicPartition, doubt: _Doubt, result: object, now: float) -> None:
        """Forget the doubt, log ``doubt_settled``, and have the log opened if this server is still a replica of the
        partition. If the job could not write the tail file, stop the server."""
        if self._doubts.get(key) is not doubt:
            return
        if isinstance(result, OSError):
            self._effects.stop(f"{self._path(key)}: {result}")
            return
        del self._doubts[key]
        self._event("doubt_settled", key, start=doubt.log.start)
        if doubt.state is not None:
            self._reopen(key, doubt.config, doubt.state)

    def _event(self, name: str, key: TopicPartition, **fields: int | str) -> None:
        self._effects.event(name, topic_id=key.topic_id, partition=key.partition, **fields)
