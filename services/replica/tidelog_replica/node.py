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
    StreamCoordinatorService      streams                                     ``coordinators/streams/service.py``
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
    DescribeLogs,
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
from tidelog_replica.coordinators.streams.service import KINDS as STREAM_KINDS
from tidelog_replica.coordinators.streams.service import StreamCoordinatorService
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
from tidelog_replica.maintenance.retention_waits import RetentionWaits
from tidelog_replica.maintenance.scrubber import Scrubber
from tidelog_replica.registration.incarnations import Incarnations
from tidelog_replica.registration.session import BrokerSession, UniformRandom
from tidelog_replica.replication.idle_followers import IdleFollowers
from tidelog_replica.requests import RequestHandler
from tidelog_replica.storage.flush import Flush

__all__ = ["ReplicaNode", "StartFlush", "StartJob"]


class ReplicaNode:
    """A replica server as one state machine, which lives as long as its process. It makes the parts listed above and
    connects them. Each input method returns the effects that the shell must perform, in order."""

    def __init__(
        self,
        node_id: NodeId,
        url: str,
        disk: Disk,
        directory: str,
        settings: ReplicaSettings,
        rng: UniformRandom,
        cluster: str = "",
        *,
        boot: str = "",
        wall_ms: Callable[[], int] = lambda: 0,
        rack: str = "",
    ) -> None:
        """Make the parts of the node; nothing is read or sent before ``start``. ``cluster`` "" stands for the cluster
        that the data directory or the first registration names. ``boot`` names the present run of the operating
        system, "" if it is not known. ``wall_ms`` returns the wall clock in ms since 1970, by which records age.
        Servers of one ``rack`` fail together."""
        self.node_id = node_id
        self.wall_ms = wall_ms
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
        """All partitions whose log is open here, a live view."""
        self._checkpointer = HighWatermarkCheckpointer(context, partitions)
        self.copy_checks = CopyChecks(context, assignment)
        self._copy_reads = CopyReads(context, assignment)
        self.scrubber = Scrubber(context, partitions, self.copy_checks.want)
        self._file_pool_flusher = FilePoolFlusher(context)
        self.disk_space = DiskSpace(context)
        self._reports = ControllerReports(context, session, partitions)
        self.leadership = leadership = Leadership(context, assignment, session)
        self._isolation = Isolation(context, session)
        self._requests = RequestHandler(context, assignment, session, leadership, self._isolation)
        self._isr_proposals = IsrProposals(context, session)
        self.transactions = TransactionCoordinatorService(context, assignment, leadership)
        self._groups = GroupCoordinatorService(context, assignment, leadership, self.transactions)
        self._log_cleaner = LogCleaner(context, partitions, self._groups.coordinator_of)
        self.streams = StreamCoordinatorService(context, assignment, leadership)
        self._markers = TransactionMarkers(context, assignment, leadership, self.transactions)
        self._coordinating: dict[
            str, GroupCoordinatorService | TransactionCoordinatorService | StreamCoordinatorService
        ] = {}  # by the id of their topic
        """The coordinator services by the id of their internal topic, as far as these topics exist."""

    @property
    def assignment(self) -> Assignment:
        """Return the part of the node that opens this server's partitions and has all of them, whether open or
        not."""
        return self._assignment

    @property
    def groups(self) -> Iterator[Group]:
        """Return an iterator over the consumer groups that this server coordinates."""
        return self._groups.groups

    @property
    def retention_waits(self) -> RetentionWaits:
        """Return the part of the node that knows for which consumer groups retention waits."""
        return self._log_cleaner.retention_waits

    @property
    def broker_epoch(self) -> int:
        """Return the broker epoch, the number of this server's incarnation; -1 while the incarnation is not
        registered."""
        return self._session.broker_epoch if self._session.registered else -1

    @property
    def failed(self) -> bool:
        """Return whether the disk failed. The process must end then, and the next incarnation must not trust the page
        cache."""
        return self._effects.stopping

    # --- inputs ------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Effect]:
        """Start the periodic tasks, check the disk's free space, begin an incarnation in the data directory and send
        its registration to the controllers. Raises ``ConfigError`` if the data directory belongs to another node or
        cluster, or is damaged; ``OSError`` if the disk fails."""
        self._log_cleaner.start(now)
        self.scrubber.start(now)
        self.disk_space.start(now, partial(self._session.start, now))
        self._assignment.start()
        return self._finish(now)

    def on_answer(self, token: int, answer: Message | TidelogError, now: float) -> list[Effect]:
        """Pass the answer to the call ``token``, or the error with which the call failed, to the part that made the
        call. An answer to a call that was answered before is ignored. Raises ``ConfigError`` if the answer shows that
        the controllers are those of another cluster."""
        done = self._effects.take_call(token)
        if done is not None:
            done(answer, now)
        return self._finish(now)

    def on_controller_up(self, now: float) -> list[Effect]:
        """Send over the new link to the active controller what needs it: the registration or a heartbeat, the watch
        of the metadata, the reports of silent leaders, and the ISR proposals."""
        self._session.on_controller_up(now)
        self._fetchers.on_controller_up(now)
        self._isr_proposals.on_controller_up(now)
        return self._finish(now)

    def on_controller_down(self, now: float) -> list[Effect]:
        """Record that the link to the active controller was lost, and with it the watch of the metadata. Heartbeats
        are tried again at their times; the session goes on until its timeout expires."""
        self._session.on_controller_down()
        return self._finish(now)

    def on_metadata(self, update: MetadataUpdate, now: float) -> list[Effect]:
        """Apply an update of the cluster metadata: open and delete partitions of this server, change their roles, and
        start or end the coordinators of groups and transactions. Raises ``ProtocolError`` if the update does not fit
        the known metadata."""
        before = self._assignment.image
        self._assignment.on_metadata(update, now)
        self._isolation.on_metadata(before, self._assignment.image, now)
        for part in (self._groups, self.transactions, self.streams):
            part.on_metadata(now)
            if part.topic_id:
                self._coordinating[part.topic_id] = part
        return self._finish(now)

    def on_request(self, source: int, id: int | None, message: Message, now: float) -> list[Effect]:
        """Serve a request, or a one-way message (``id`` None), that came over link ``source``. The answer is among
        the returned effects or among those of a later input. For a ``Notify`` the value of ``source`` does not
        matter."""
        self._serve(source, id, message, now)
        return self._finish(now)

    def _serve(self, source: int, id: int | None, message: Message, now: float) -> None:
        """Pass a message to the part that serves its kind; answer ``UNSUPPORTED`` to an unknown kind."""
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
            case DescribeLogs():
                self._requests.describe_logs(source, id, message, now)
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
            case _ if isinstance(message, STREAM_KINDS):
                self.streams.on_request(source, id, message, now)
            case _:
                self._effects.answer(
                    source, id, refuse("UNSUPPORTED", f"a replica server does not know {message.OP}")
                )

    def _scrub(self, source: int, id: int | None, message: ScrubServer, now: float) -> None:
        """Begin a round of scrubbing if the message asks for it, and answer with the scrubber's status; refuse with
        ``NOT_REPLICA`` if the message names another server."""
        if message.node != self.node_id:
            self._effects.answer(source, id, refuse("NOT_REPLICA", f"this is {self.node_id}, not {message.node}"))
            return
        if message.begin:
            self.scrubber.begin_round(now)
        status = self.scrubber.status()
        running = status.running or self.copy_checks.is_busy
        self._effects.answer(source, id, replace(status, running=running))

    def on_link_closed(self, source: int, now: float) -> list[Effect]:
        """Discard every waiting request that came over the accepted link ``source``, which is closed, since it can no
        longer be answered."""
        for partition in self.partitions.values():
            partition.on_source_closed(source)
        for part in (self._groups, self.transactions, self.streams, self._markers):
            part.on_source_closed(source)
        self._copy_reads.on_source_closed(source)
        return self._finish(now)

    def on_peer_down(self, node: NodeId, now: float) -> list[Effect]:
        """Record that the link to server ``node`` broke or could not be opened. The fetcher of that server suspects
        the leader, reports it to the controller, and fetches again after a pause."""
        self._fetchers.on_down(node, now)
        return self._finish(now)

    def on_flushed(self, key: TopicPartition, flush: Flush, error: OSError | None, now: float) -> list[Effect]:
        """Record the end of a flush that ``StartFlush`` requested. If it succeeded, the log is durable up to the
        flush's end, which may commit records and let a follower report more. If ``error`` is set, the disk failed,
        and the node stops."""
        if (partition := self.partitions.get(key)) is None:
            self._assignment.on_flush_ended(key, flush, error, now)
        else:
            partition.on_flushed(flush, error)
            self._touch(partition.key)
            self._fetchers.on_flushed(partition, now)
        return self._finish(now)

    def on_job(self, key: TopicPartition, job: Job, result: object, now: float) -> list[Effect]:
        """Pass the result of a job that ``StartJob`` requested to the part that started the job, and start the
        partition's next job. ``result`` is an ``OSError`` if that error ended the job."""
        self._effects.jobs.on_job(key, job, result, now)
        if (partition := self.partitions.get(key)) is not None:
            self._touch(partition.key)
            self._fetchers.poll(key, now)
        return self._finish(now)

    def on_tick(self, now: float) -> list[Effect]:
        """Call ``on_tick`` of every part whose timer is due, and return the effects. Afterwards ``deadline`` is None
        or later than ``now``."""
        for owner in self._timers.pop_due(now):
            owner.on_tick(now)
        return self._finish(now)

    def deadline(self) -> float | None:
        """Return the time at which ``on_tick`` must be called next, in seconds of the node's clock; None if no timer
        is set."""
        return self._timers.deadline()

    def leave(self, now: float) -> list[Effect]:
        """Ask the controller to let other servers lead the partitions of this one, because the process is to end.
        This server serves what it leads until the controller has done so."""
        self._assignment.leave(now)
        return self._finish(now)

    @property
    def is_drained(self) -> bool:
        """Return whether no partition that other servers could serve depends on this server any more. Also True if
        this server is not registered."""
        return not self._session.registered or not any(p.hands_over for p in self.partitions.values())

    def close(self) -> bool:
        """Write checkpoints, close every open log, and then record a clean shutdown. No flush or job may be under
        way, and nothing may be served any more. Return whether the shutdown was recorded, so that the next
        incarnation may rely on the disk. Raises ``OSError`` if the disk fails; nothing is recorded then."""
        whole = self._assignment.all_open
        for partition in self.partitions.values():
            partition.close()
        return self._incarnations.end_incarnation(whole)

    def distrust(self) -> None:
        """Record on the disk that the next incarnation must not rely on unflushed data, after a ``Stop``. This was
        done already unless the event ``distrust_failed`` was logged. Raises ``OSError``: the process must not end
        before a retry succeeds."""
        self._incarnations.distrust()

    # --- the end of every input --------------------------------------------------------------------------

    def _touch(self, key: TopicPartition) -> None:
        """Mark a partition, so that it is settled at the end of the present input."""
        self._touched[key] = None

    def _finish(self, now: float) -> list[Effect]:
        """End an input: settle every partition that the input touched, serve the calls of this server to itself until
        none is left, send the reports that wait, and return all effects. If the disk failed, also record on it that
        it must not be trusted."""
        if self.disk_space.on_input_over(now):
            self._assignment.on_disk_space(now)
            self._log_cleaner.on_disk_space(now)
        self._settle(now)
        effects = self._effects
        while effects.to_self or effects.from_self or effects.failed:
            self._touch_failed()
            self._serve_own_calls(now)
            self._settle(now)
        if self._reports.are_waiting:
            self._reports.send(now)
        self._file_pool_flusher.on_input_over()
        if effects.stopping and not self._incarnations.distrusted:
            self._distrust()
        return effects.drain()

    def _touch_failed(self) -> None:
        """Mark the partitions that went offline during this input, so that they are settled although the input does
        not name them, for example after a failed job of the log cleaner."""
        failed, self._effects.failed = self._effects.failed, []
        for key in failed:
            self._touch(key)

    def _serve_own_calls(self, now: float) -> None:
        """Serve the requests that this server sent to itself, and pass the answers to such requests to their
        senders."""
        calls, answers = self._effects.take_own()
        for token, message in calls:
            self._serve(LOOP, token, message, now)
        for done, answer in answers:
            done(answer, now)

    def _settle(self, now: float) -> None:
        """Settle every touched partition one time: start its flush, complete waiting requests, send a due ISR
        proposal, queue its checkpoint, set its timer. A partition whose log is damaged goes to repair; one that was
        deleted meanwhile is skipped."""
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
        """Record on the disk that the next incarnation must not rely on unflushed data. If that fails, log
        ``distrust_failed`` and do not raise."""
        try:
            self.distrust()
        except OSError as error:
            self._effects.event("distrust_failed", reason=str(error))

    # --- the controller ----------------------------------------------------------------------------------

    def _on_registered(self, now: float) -> None:
        self._assignment.act(now)

    def _on_registration_ended(self, reason: str) -> None:
        self._assignment.on_registration_ended(reason)
