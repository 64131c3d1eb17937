"""A replica server as one synchronous state machine: no network, no clock, no threads; only the disk is real.

Inputs are methods that take ``now`` (seconds); each returns the effects it brings about, in order. The parts:

    BrokerSession                 registration, broker epoch, heartbeats      ``registration/session.py``
    Assignment                    metadata to partitions and their roles      ``assignment/assignment.py``
    Partition                     one log, its producers and its role         ``partition/partition.py``
    Fetchers                      the fetch loops to the leaders' servers     ``fetcher/fetchers.py``
    LogRepairer                   repair of damaged logs                      ``maintenance/log_repairer.py``
    RequestHandler                requests of followers and clients           ``requests.py``
    Leadership                    whether leaders here may serve clients      ``assignment/leadership.py``
    Isolation                     batches taken without controllers           ``assignment/isolation.py``
    Effects                       effects and unanswered calls                ``effects.py``
    ControllerReports             reports on partitions to the controller     ``assignment/controller_reports.py``
    IsrProposals                  ISR proposals of leaders to the controller  ``assignment/isr_proposals.py``
    GroupCoordinatorService       consumer groups                             ``coordinators/groups/service.py``
    TransactionCoordinatorService transactions                                ``coordinators/transactions/service.py``
    TransactionMarkers            transactions at the leaders of partitions   ``coordinators/transactions/markers.py``
    HighWatermarkCheckpointer     checkpoints of high watermarks on the disk  ``maintenance/checkpointer.py``
    Jobs                          long disk work in threads                   ``jobs.py``
    LogCleaner                    retention, compaction                       ``maintenance/log_cleaner.py``
    Scrubber                      segments are read and checked again         ``maintenance/scrubber.py``
    CopyChecks                    copies are compared with the other replicas' ``copies/checks.py``
    CopyReads                     copies are read for a client's comparison   ``copies/reads.py``
    FilePoolFlusher               files that are never flushed are            ``maintenance/file_pool.py``
    DiskSpace                     the reserve, and a full disk                ``maintenance/disk_space.py``

Every input that may have moved a partition touches it. At the end of the input each touched partition is settled one
time: its flush begins, requests that the log has reached are completed in bulk, a due ISR proposal is sent, its timer
is set. Every part that waits for a time sets a timer for itself, and ``on_tick`` calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import inf

from tidelog.errors import TidelogError, refuse
from tidelog.runtime.disk import Disk
from tidelog.sansio.timers import TimerOwner, Timers
from tidelog.types import NodeId, TopicPartition
from tidelog.wire.messages import (
    Digest,
    EpochOffset,
    Fetch,
    ListOffset,
    LogSnapshot,
    Message,
    MetadataUpdate,
    Notify,
    Produce,
    Progress,
    Read,
    ReadCopy,
    ReadTail,
    ScrubServer,
    WriteMarker,
)

from tidelog_replica.assignment.assignment import Assignment
from tidelog_replica.assignment.controller_reports import ControllerReports
from tidelog_replica.assignment.isolation import Isolation
from tidelog_replica.assignment.isr_proposals import IsrProposals
from tidelog_replica.assignment.leadership import Leadership
from tidelog_replica.config import ReplicaSettings
from tidelog_replica.context import NodeContext
from tidelog_replica.coordinators.groups.group import Group
from tidelog_replica.coordinators.groups.service import KINDS as GROUP_KINDS
from tidelog_replica.coordinators.groups.service import GroupCoordinatorService
from tidelog_replica.coordinators.transactions.markers import TransactionMarkers
from tidelog_replica.coordinators.transactions.service import KINDS as TRANSACTION_KINDS
from tidelog_replica.coordinators.transactions.service import TransactionCoordinatorService
from tidelog_replica.copies.checks import CopyChecks
from tidelog_replica.copies.reads import CopyReads
from tidelog_replica.effects import LOOP, Effect, Effects, StartFlush, StartJob
from tidelog_replica.fetcher.fetchers import Fetchers
from tidelog_replica.jobs import Job
from tidelog_replica.maintenance.checkpointer import HighWatermarkCheckpointer
from tidelog_replica.maintenance.disk_space import DiskSpace
from tidelog_replica.maintenance.file_pool import FilePoolFlusher
from tidelog_replica.maintenance.log_cleaner import LogCleaner
from tidelog_replica.maintenance.scrubber import Scrubber
from tidelog_replica.registration.incarnations import Incarnations
from tidelog_replica.registration.session import BrokerSession, Random
from tidelog_replica.replication.idle_followers import IdleFollowers
from tidelog_replica.requests import RequestHandler
from tidelog_replica.storage.log import Flush

__all__ = ["ReplicaNode", "StartFlush", "StartJob"]


class ReplicaNode:
    """A replica server as one state machine. ``cluster`` "": the one that the data directory or the first
    registration names. ``boot``: the run of the operating system, "" where it is not known. ``wall_ms``: the wall
    clock, by which records age, ms since 1970. ``rack``: servers of one rack fail together."""

    def __init__(
        self,
        node_id: NodeId,
        url: str,
        disk: Disk,
        directory: str,
        settings: ReplicaSettings,
        rng: Random,
        cluster: str = "",
        *,
        boot: str = "",
        wall_ms: Callable[[], int] = lambda: 0,
        rack: str = "",
    ) -> None:
        self.node_id = node_id
        self._effects = Effects(node_id)
        self._timers: Timers[TimerOwner] = Timers()
        self.idle_followers = IdleFollowers()
        self._touched: dict[TopicPartition, None] = {}
        context = NodeContext(
            node_id, settings, disk, directory, self._effects, self._timers, self.idle_followers, wall_ms, self._touch
        )
        self._incarnations = Incarnations(disk, directory, node_id, cluster, boot)
        self._session = session = BrokerSession(
            context, url, self._incarnations, rng, self._on_registered, self._on_registration_ended, rack
        )
        self._fetchers = Fetchers(context, session)
        self._assignment = assignment = Assignment(context, session, self._fetchers)
        self.partitions = partitions = assignment.partitions
        """All partitions that are open here."""
        self._checkpointer = HighWatermarkCheckpointer(context, partitions)
        self.copy_checks = CopyChecks(context, assignment)
        self._copy_reads = CopyReads(context, assignment)
        self.scrubber = Scrubber(context, partitions, self.copy_checks.want)
        self._log_cleaner = LogCleaner(context, partitions)
        self._file_pool_flusher = FilePoolFlusher(context)
        self.disk_space = DiskSpace(context)
        self._reports = ControllerReports(context, session, partitions)
        self.leadership = leadership = Leadership(context, assignment, session)
        self._isolation = Isolation(context, session)
        self._requests = RequestHandler(context, assignment, session, leadership, self._isolation)
        self._isr_proposals = IsrProposals(context, session)
        self.transactions = TransactionCoordinatorService(context, assignment, leadership)
        self._groups = GroupCoordinatorService(context, assignment, leadership, self.transactions)
        self._markers = TransactionMarkers(context, assignment, leadership, self.transactions)
        self._coordinating: dict[
            str, GroupCoordinatorService | TransactionCoordinatorService
        ] = {}  # by the id of their topic

    @property
    def assignment(self) -> Assignment:
        """The partitions of which this server has a copy, whether open or not."""
        return self._assignment

    @property
    def groups(self) -> Iterator[Group]:
        """The consumer groups that are coordinated here."""
        return self._groups.groups

    @property
    def broker_epoch(self) -> int:
        """The broker epoch: number of this incarnation; -1 before it is registered."""
        return self._session.broker_epoch if self._session.registered else -1

    @property
    def failed(self) -> bool:
        """Whether the disk failed. The process is to end, and its next incarnation must not trust what is there."""
        return self._effects.stopping

    # --- inputs ------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Effect]:
        """Begin: register at the controller. Raises ``ConfigError`` when the data directory is another's,
        ``OSError``."""
        self._log_cleaner.start(now)
        self.scrubber.start(now)
        self.disk_space.start(now, partial(self._session.start, now))
        self._assignment.start()
        return self._finish(now)

    def on_answer(self, token: int, answer: Message | TidelogError, now: float) -> list[Effect]:
        """A ``Call`` is answered, or has failed. Raises ``ConfigError`` when the cluster is another."""
        done = self._effects.take_call(token)
        if done is not None:
            done(answer, now)
        return self._finish(now)

    def on_controller_up(self, now: float) -> list[Effect]:
        """There is a link to the active controller."""
        self._session.on_controller_up(now)
        self._fetchers.on_controller_up(now)
        self._isr_proposals.on_controller_up(now)
        return self._finish(now)

    def on_controller_down(self, now: float) -> list[Effect]:
        """The link to the active controller was lost."""
        self._session.on_controller_down()
        return self._finish(now)

    def on_metadata(self, update: MetadataUpdate, now: float) -> list[Effect]:
        """An update of the metadata has come, from a watch. Raises ``ProtocolError``."""
        before = self._assignment.image
        self._assignment.on_metadata(update, now)
        self._isolation.on_metadata(before, self._assignment.image, now)
        for part in (self._groups, self.transactions):
            part.on_metadata(now)
            if part.topic_id:
                self._coordinating[part.topic_id] = part
        return self._finish(now)

    def on_request(self, source: int, id: int | None, message: Message, now: float) -> list[Effect]:
        """A request or one-way message over link ``source``, whose number does not matter where it is ``Notify``."""
        self._serve(source, id, message, now)
        return self._finish(now)

    def _serve(self, source: int, id: int | None, message: Message, now: float) -> None:
        match message:
            case Produce():
                self._requests.produce(source, message, now)
            case Fetch():
                self._requests.fetch(source, id, message, now)
            case Progress():
                self._requests.progress(source, message, now)
            case Read() | ListOffset():
                self._requests.read(source, id, message, now)
            case EpochOffset():
                self._requests.epoch_offset(source, id, message)
            case LogSnapshot():
                self._requests.log_snapshot(source, id, message)
            case ReadTail():
                self._requests.read_tail(source, id, message)
            case Digest():
                self._requests.digest(source, id, message)
            case ReadCopy():
                self._copy_reads.read(source, id, message, now)
            case ScrubServer():
                self._scrub(source, id, message, now)
            case Notify():
                self._fetchers.on_notify(message, self.partitions, now)
            case WriteMarker() if message.topic_id != self._groups.topic_id:
                self._markers.on_marker(source, id, message, now)
            case _ if isinstance(message, (*GROUP_KINDS, WriteMarker)):
                self._groups.on_request(source, id, message, now)
            case _ if isinstance(message, TRANSACTION_KINDS):
                self.transactions.on_request(source, id, message, now)
            case _:
                self._effects.answer(
                    source, id, refuse("UNSUPPORTED", f"a replica server does not know {message.OP}")
                )

    def _scrub(self, source: int, id: int | None, message: ScrubServer, now: float) -> None:
        if message.node != self.node_id:
            self._effects.answer(source, id, refuse("NOT_REPLICA", f"this is {self.node_id}, not {message.node}"))
            return
        if message.begin:
            self.scrubber.begin_round(now)
        status = self.scrubber.status()
        running = status.running or self.copy_checks.is_busy
        self._effects.answer(source, id, replace(status, running=running))

    def on_link_closed(self, source: int, now: float) -> list[Effect]:
        """An accepted link is gone."""
        for partition in self.partitions.values():
            partition.on_source_closed(source)
        for part in (self._groups, self.transactions, self._markers):
            part.on_source_closed(source)
        self._copy_reads.on_source_closed(source)
        return self._finish(now)

    def on_peer_down(self, node: NodeId, now: float) -> list[Effect]:
        """The own link to another replica server broke or could not be opened."""
        self._fetchers.on_down(node, now)
        return self._finish(now)

    def on_flushed(self, key: TopicPartition, flush: Flush, error: OSError | None, now: float) -> list[Effect]:
        """A ``StartFlush`` is done, or failed."""
        if (partition := self.partitions.get(key)) is None:
            self._assignment.on_flush_ended(key, flush, error, now)
        else:
            partition.on_flushed(flush, error)
            self._touch(partition.key)
            self._fetchers.on_flushed(partition, now)
        return self._finish(now)

    def on_job(self, key: TopicPartition, job: Job, result: object, now: float) -> list[Effect]:
        """A ``StartJob`` is done; ``result`` is an ``OSError`` where that ended it."""
        self._effects.jobs.on_job(key, job, result, now)
        if (partition := self.partitions.get(key)) is not None:
            self._touch(partition.key)
            self._fetchers.poll(key, now)
        return self._finish(now)

    def on_tick(self, now: float) -> list[Effect]:
        """Call every part whose timer is due. After it, ``deadline`` is None or later than ``now``."""
        for owner in self._timers.pop_due(now):
            owner.on_tick(now)
        return self._finish(now)

    def deadline(self) -> float | None:
        """When ``on_tick`` is wanted."""
        return self._timers.deadline()

    def leave(self, now: float) -> list[Effect]:
        """Be about to end: ask the controller to let others lead, and go on without this server. It serves what it
        leads until they do."""
        self._assignment.leave(now)
        return self._finish(now)

    @property
    def is_drained(self) -> bool:
        """Whether no partition that others could serve still depends on this server."""
        return not self._session.registered or not any(p.hands_over for p in self.partitions.values())

    def close(self) -> bool:
        """End in order: nothing is served any more, and no flush or job is under way. Everything is written and
        flushed. Return whether the next incarnation may rely on that. Raises ``OSError``: then it may not."""
        whole = self._assignment.all_open
        for partition in self.partitions.values():
            partition.close()
        return self._incarnations.end(whole)

    def distrust(self) -> None:
        """After a ``Stop``: the next incarnation must not take the disk's content for whole. Already done, unless
        there was an event ``distrust_failed``. Raises ``OSError``: then the process must not end yet."""
        self._incarnations.distrust()

    # --- the end of every input --------------------------------------------------------------------------

    def _touch(self, key: TopicPartition) -> None:
        self._touched[key] = None

    def _finish(self, now: float) -> list[Effect]:
        """Settle every partition that the input touched, then hand out what it brought about."""
        if self.disk_space.on_input_over(now):
            self._assignment.on_disk_space(now)
            self._log_cleaner.on_disk_space(now)
        self._settle(now)
        effects = self._effects
        while effects.to_self or effects.from_self or effects.failed:
            self._touch_failed()
            self._talk_to_self(now)
            self._settle(now)
        if self._reports.are_waiting:
            self._reports.send(now)
        self._file_pool_flusher.on_input_over()
        if effects.stopping and not self._incarnations.distrusted:
            self._distrust()
        return effects.drain()

    def _touch_failed(self) -> None:
        """Touch partitions that went offline for a cause that no input names, such as a failed job of the cleaner."""
        failed, self._effects.failed = self._effects.failed, []
        for key in failed:
            self._touch(key)

    def _talk_to_self(self, now: float) -> None:
        """Serve the requests of this server to itself, and take its own answers."""
        calls, answers = self._effects.take_own()
        for token, message in calls:
            self._serve(LOOP, token, message, now)
        for done, answer in answers:
            done(answer, now)

    def _settle(self, now: float) -> None:
        touched, self._touched = self._touched, {}
        if not touched:
            return
        is_live, marked = self._session.live(now), self._markers.marked
        for key in touched:
            if (partition := self.partitions.get(key)) is None:
                continue  # deleted
            if not is_live:
                self.leadership.confirm_alone(partition, now)
            partition.settle(now)
            if (coordinator := self._coordinating.get(key.topic_id)) is not None:
                coordinator.on_settled(partition, now)
            if marked and key in marked:
                self._markers.on_settled(partition)
            if partition.damage is not None:
                self._assignment.on_damaged(partition, partition.damage, now)
                continue
            self._log_cleaner.on_settled(partition)
            leading, following = partition.leading, partition.following
            if leading is not None:
                if leading.transaction_gate.unsent:
                    self._markers.enrol(partition, leading, now)
                self._isr_proposals.on_settled(partition, leading, now)
            elif partition.offline is not None:
                self._fetchers.unassign(key)
            elif following is not None and following.reading.is_waited_for:
                self._fetchers.confirm(partition, now)
            if (may_report := partition.may_report) or partition.unreported_losses:
                self._reports.gather(partition, now)
            if key not in self._checkpointer.queued and partition.checkpoint_due:
                self._checkpointer.add(partition, now)
            if (due := partition.deadline(may_report)) < inf:
                self._timers.set(partition, due)

    def _distrust(self) -> None:
        try:
            self.distrust()
        except OSError as error:
            self._effects.event("distrust_failed", reason=str(error))

    # --- the controller ----------------------------------------------------------------------------------

    def _on_registered(self, now: float) -> None:
        self._assignment.act(now)

    def _on_registration_ended(self, reason: str) -> None:
        self._assignment.on_registration_ended(reason)
