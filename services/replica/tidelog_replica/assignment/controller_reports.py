"""Reports of this server to the controller about its partitions, each repeated until it has had its effect.

    Seal        the end of a sealed log; repeated every heartbeat while the partition is being sealed
    HandOver    other replicas must go on without this server, because it stops, its disk is full, or it leads and its
                disk stalls; repeated until they do. A leader that stops takes no more batches, and first waits, for
                a short time, until its records are committed. With ``ready`` the message says that the successor of a
                transfer has everything; repeated until the successor leads
    ReportLoss  records were cut that were committed, or may have been; repeated until the controllers have recorded
                the loss, or refuse it for good

The reports that are due at the end of one input are sent in as few messages as their length allows. The answers to
``Seal`` and ``HandOver`` are ignored: the metadata shows their effect. A loss is kept, on the disk too, until the
controllers have it. Losses are reported one at a time: after unclean elections in all partitions there may be one for
each partition of the server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import partial

from tidelog.errors import TidelogError
from tidelog.sansio.effects import CONTROLLER
from tidelog.types import TopicPartition
from tidelog.wire.codec import in_shares
from tidelog.wire.messages import HandOver, Message, ReportLoss, Seal, SealPart, SuspectPart

from tidelog_replica.context import NodeContext
from tidelog_replica.partition.partition import Partition
from tidelog_replica.registration.session import BrokerSession
from tidelog_replica.storage.recovery.pending_losses import LostRange

TRANSFER = "transfer"
"""The reason in a handover that is ``ready``: the successor has all of the log."""
FINAL = ("UNKNOWN_TOPIC", "NOT_REPLICA", "MALFORMED")
"""Codes of refusals of a loss report that stay the same however often it is repeated. Every other refusal may be
temporary, for example if the controllers' metadata has gone back, or a release does not match."""

Loss = tuple[TopicPartition, LostRange]


class ControllerReports:
    """The part of a node that reports sealed logs, handovers and losses of records to the controller. At the end of
    an input the node calls ``gather`` for every partition that the input touched, then ``send``. ``partitions`` is a
    live view of all open partitions."""

    def __init__(
        self, context: NodeContext, session: BrokerSession, partitions: Mapping[TopicPartition, Partition]
    ) -> None:
        self._node = context.node
        self._session = session
        self._settings = context.settings
        self._effects = context.effects
        self._timers = context.timers
        self._partitions = partitions
        self._seals: list[SealPart] = []
        self._hand_overs: dict[str, list[SuspectPart]] = {}
        """Handovers to be sent, by reason."""
        self._losses: deque[Loss] = deque()
        """Losses that the controllers have not recorded yet, in order."""
        self._reporting = False
        self._report_at = 0.0
        self.are_waiting = False
        """Whether ``send`` may have something to send."""

    def gather(self, partition: Partition, now: float) -> None:
        """Collect the reports of a partition that are due now: its seal or handover, and its new losses. ``send``
        sends them."""
        self.are_waiting = True
        if partition.may_report:
            self._gather(partition, now)
        if partition.unreported_losses:
            self._losses += [(partition.key, lost) for lost in partition.take_losses()]

    def _gather(self, partition: Partition, now: float) -> None:
        """Collect the seal or handover of a partition if it is due, and set the time at which it is repeated."""
        key, state, log, leading = partition.key, partition.state, partition.log, partition.leading
        relieved = leading is not None and leading.take_relief()
        if state is not None and (relieved or now >= partition.report_at):
            if partition.is_sealed:
                last, highest, after = log.epoch_at(log.end), partition.highest_epoch, partition.possible_successors
                self._seals.append(SealPart(*key, state.leader_epoch, log.end, last, highest, after))
                partition.report_at = now + self._settings.heartbeat_s
            elif partition.hands_over:
                cause = "disk_full" if self._effects.full else "disk_stalled"
                reason = "shutdown" if partition.is_draining else cause
                part = SuspectPart(*key, state.epoch, state.leader_epoch)
                self._hand_overs.setdefault(reason, []).append(part)
                partition.report_at = now + self._settings.isr_retry_s
            elif leading is not None and leading.is_relieved:
                part = SuspectPart(*key, state.epoch, state.leader_epoch)
                self._hand_overs.setdefault(TRANSFER, []).append(part)
                partition.report_at = now + self._settings.isr_retry_s

    def send(self, now: float) -> None:
        """Send the collected reports to the controller, in as few messages as their length allows, and the first
        waiting loss unless another is unanswered. Called at the end of an input."""
        broker_epoch = self._session.broker_epoch
        if self._seals:
            seals, self._seals = self._seals, []
            for share in in_shares(seals):
                self._call(Seal(self._node, broker_epoch, share))
        if self._hand_overs:
            hand_overs, self._hand_overs = self._hand_overs, {}
            for reason, parts in hand_overs.items():
                for some in in_shares(parts):
                    self._call(HandOver(self._node, broker_epoch, reason, some, ready=reason == TRANSFER))
        if self._losses and not self._reporting and self._session.registered:
            if now >= self._report_at:
                self._report(self._losses[0], broker_epoch)
            else:
                self._timers.set(self, self._report_at)
        self.are_waiting = bool(self._losses)

    def on_tick(self, now: float) -> None:
        """Do nothing. The timer only causes an input, at whose end ``send`` is called."""

    def _call(self, message: Message) -> None:
        """Send the controller a message, and ignore its answer."""
        timeout_s = self._settings.controller_timeout_s
        self._effects.call(CONTROLLER, message, timeout_s, lambda answer, now: None)

    def _report(self, loss: Loss, broker_epoch: int) -> None:
        """Send the controller a ``ReportLoss`` for one loss. No other loss is sent until the answer."""
        key, lost = loss
        self._reporting = True
        message = ReportLoss(self._node, broker_epoch, *key, lost.leader_epoch, lost.start, lost.end, lost.possible)
        done = partial(self._on_reported, loss)
        self._effects.call(CONTROLLER, message, self._settings.controller_timeout_s, done)

    def _on_reported(self, loss: Loss, answer: Message | TidelogError, now: float) -> None:
        """Act on the controllers' answer to the report of a loss: remove the loss, in memory and on the disk, if they
        have recorded it or refuse it for good. After any other error the report is sent again in
        ``controller_retry_s``."""
        self._reporting = False
        if isinstance(answer, TidelogError) and answer.code not in FINAL:
            self._report_at = now + self._settings.controller_retry_s
            return
        if self._losses and self._losses[0] is loss:
            self._losses.popleft()
        key, lost = loss
        partition = self._partitions.get(key)
        if partition is not None:
            partition.on_loss_reported(lost)
