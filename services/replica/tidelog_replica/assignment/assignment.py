"""Opens, closes and deletes the logs of this server's partitions, and assigns their roles, as the metadata changes.

Updates are kept in an image from the first watch on. They are acted on only while this server is registered, and
only from the index of its registration on: older metadata was decided about a former incarnation of this server. A
partition's state is acted on if its epoch is newer than that of the last state.

Data is deleted only in two cases. A delta *names* the partition's topic id as deleted, which is final, in every
incarnation. Or the state of the partition names other servers, and not this one, as replicas and learners; this also
deletes copies that an earlier incarnation has left. A whole image without the topic, however new, only ends the role
(``partition_unassigned``): a node never deletes data because its metadata looks empty. The logs of topics that were
deleted while this server was away stay on its disk until an operator removes them. A partition that returns while its
old copy is being deleted begins with an empty log.

A partition that is *paused* is closed when all of its log is durable, whatever its flush policy, as when this server
stops in order. When it is resumed its log is opened and recovered as after a restart.

Changed partitions are acted on a few at a time. Where ten thousand change at once (a server has failed, or
registers), heartbeats, fetches and answers are served in between. A partition that changes again while it is queued
keeps its place, and its last state is acted on.
"""

from __future__ import annotations

from itertools import islice

from tidelog.errors import TidelogError, refuse
from tidelog.types import (
    ClusterImage,
    NodeId,
    PartitionState,
    ServerState,
    TopicConfig,
    TopicPartition,
    TopicState,
    changed_partitions,
)
from tidelog.wire.messages import MetadataUpdate
from tidelog.wire.metadata_image import apply_update

from tidelog_replica.context import NodeContext
from tidelog_replica.fetcher.fetchers import Fetchers
from tidelog_replica.maintenance.doubtful_tails import DoubtfulTails
from tidelog_replica.maintenance.log_opener import LogOpener, Opened
from tidelog_replica.maintenance.log_repairer import LogRepairer
from tidelog_replica.partition.lag import follower_lags
from tidelog_replica.partition.partition import Partition
from tidelog_replica.registration.session import BrokerSession
from tidelog_replica.storage.flush import Flush
from tidelog_replica.storage.index import IndexCache
from tidelog_replica.storage.recovery.doubtful_tail import DoubtfulLog
from tidelog_replica.storage.segment import CorruptLog
from tidelog_replica.storage.tail_cache import LogTailCache

PAUSE_S = 0.001
"""The pause, in seconds, between two groups of changed partitions, in which other work is done."""


class PendingChanges:
    """A queue of the partitions whose changed state this server has not acted on yet."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._waiting: dict[TopicPartition, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, before: TopicState | None, after: TopicState) -> None:
        """Queue the partitions of a topic that are new or whose state has changed: all of them if ``before`` is None.
        A partition that is queued already keeps its place."""
        for number in changed_partitions(before, after):
            self._waiting[TopicPartition(after.topic_id, number)] = None

    def take_share(self) -> list[TopicPartition]:
        """Remove and return the next partitions of the queue, at most ``at_once``. An empty list if the queue is
        empty."""
        share = list(islice(self._waiting, self._at_once))
        for key in share:
            del self._waiting[key]
        return share

    def clear(self) -> None:
        """Empty the queue without acting on its partitions."""
        self._waiting.clear()


class Assignment:
    """The part of a node that opens, closes and deletes the logs of this server's partitions and gives the partitions
    their roles, as the metadata changes. It lives as long as the node."""

    def __init__(self, context: NodeContext, session: BrokerSession, fetchers: Fetchers) -> None:
        self.partitions: dict[TopicPartition, Partition] = {}
        """All open partitions."""
        self.servers: dict[NodeId, ServerState] = {}
        """The servers of the metadata that were last acted on. Every leader's core looks into this dict, which is
        changed in place."""
        self._context = context
        self._node = context.node
        tails = LogTailCache(context.settings.tail_cache_bytes)
        indexes = IndexCache(context.settings.index_cache_bytes)
        self.log_opener = LogOpener(context, tails, indexes, self._on_open, self._on_broken, session, self._level)
        self.log_repairer = LogRepairer(context, session, self._reopen)
        self.doubtful_tails = DoubtfulTails(context, session, self._reopen, self._repair, self._level)
        self._session = session
        session.seen = lambda: (self._image.index, self._term)
        session.highest_id = lambda: max((p.producers.highest_id for p in self.partitions.values()), default=0)
        session.lags = lambda now: follower_lags(self.partitions.values(), now)
        self._fetchers = fetchers
        self._settings = context.settings
        self._effects = context.effects
        self._timers = context.timers
        self._touch = context.touch
        self._image = ClusterImage()
        self._term = 0
        """Raft term of the image."""
        self._acted_on: dict[str, TopicState] = {}
        """Topics in the version that the partitions here have, except for those that wait in ``_changes``."""
        self._changes = PendingChanges(context.settings.changes_at_once)
        self._ending: dict[TopicPartition, Partition] = {}
        """Closed partitions (deleted, damaged or paused) whose log a flush in a thread still uses."""
        self._returning: dict[TopicPartition, tuple[TopicConfig, PartitionState]] = {}
        """Partitions of ``_ending`` in which this server has a part again. They are opened again after they are
        closed."""
        self._retiring: dict[TopicPartition, None] = {}
        """Partitions of ``_ending`` whose copies stay on the disk, since the partition is paused."""
        self._disk, self._directory = context.disk, context.directory
        self._found: dict[TopicPartition, None] = {}
        """Copies in the data directory that are not in use."""
        self.counts = context.effects.counts
        self.catching_up: dict[TopicPartition, float] = {}
        """Replicas on this server that are not in the ISR, with the time (seconds) at which that became known."""

    def start(self) -> None:
        """List the copies of partitions that earlier incarnations have left in the data directory, so that they can
        be deleted when the metadata gives them to other servers. Raises ``OSError``."""
        for name in self._disk.listdir(self._directory):
            topic_id, dash, number = name.rpartition("-")
            if dash and number.isdecimal():
                self._found[TopicPartition(topic_id, int(number))] = None

    def refusal(self, key: TopicPartition) -> TidelogError:
        """Return the error for a request to a partition that is not open here. It says whether the log is being
        repaired, is in doubt, is being opened, or the partition is paused; otherwise it is ``NOT_LEADER``."""
        if key in self.log_repairer:
            return self.log_repairer.refusal(key)
        if key in self.doubtful_tails:
            return self.doubtful_tails.refusal(key)
        topic = self._acted_on.get(key.topic_id)
        if topic is not None and key.partition < len(topic.partitions) and topic.partitions[key.partition].rests:
            return refuse("TOPIC_PAUSED", f"{topic.name}/{key.partition} is paused: nothing is written or read")
        if key in self.log_opener:
            return self.log_opener.refusal(key)
        if key in self._retiring:
            return refuse("OFFLINE", f"the partition is being opened on {self._node}", opening=1)
        return refuse("NOT_LEADER", f"{self._node} does not lead it, as far as it knows", leader="")

    def has_moved_on(self, key: TopicPartition, leader_epoch: int) -> bool:
        """Return whether the newest metadata show the partition as deleted or with a leader epoch above
        ``leader_epoch``. That may be known before the change takes effect here, when many partitions change at
        once."""
        topic = self._acted_on.get(key.topic_id)
        return topic is None or topic.partitions[key.partition].leader_epoch > leader_epoch

    def has_copy(self, key: TopicPartition) -> bool:
        """Return whether the newest metadata name this server as a replica or learner of the partition, whether its
        log is open or not."""
        states = [t.partitions[key.partition] for t in self._image.topics if t.topic_id == key.topic_id]
        return any(self._node in (*state.replicas, *state.learners) for state in states)

    def topic_name(self, topic_id: str) -> str:
        """Return the name of a topic, or its id if the topic is not known here."""
        topic = self._acted_on.get(topic_id)
        return topic_id if topic is None else topic.name

    def _level(self) -> int:
        """Return the cluster's feature level, as the newest metadata give it."""
        return self._image.level

    @property
    def image(self) -> ClusterImage:
        """Return the newest metadata that are known here."""
        return self._image

    @property
    def unopened(self) -> int:
        """Return the number of logs that wait to be opened or are being opened."""
        return len(self.log_opener) - self.log_opener.held_back

    @property
    def offline(self) -> int:
        """Return the number of logs that are damaged, doubtful or cannot be opened."""
        return len(self.log_repairer) + len(self.doubtful_tails) + self.log_opener.held_back

    @property
    def all_open(self) -> bool:
        """Return whether the metadata are known and acted on, and every log of this server is open, damaged or
        doubtful. False while this server is not registered."""
        known = self._session.registered and self._image.index >= self._session.index
        return known and not (len(self.log_opener) or len(self._changes))

    # --- metadata ----------------------------------------------------------------------------------------

    def on_metadata(self, update: MetadataUpdate, now: float) -> None:
        """Apply an update of the metadata: delete the logs of topics that a delta names as deleted, then act on the
        changed partitions. Does nothing for an update that is not newer than the known metadata. Raises
        ``ProtocolError``."""
        old = self._image
        if update.index <= old.index or not (update.whole or old.index):
            return
        self._image, self._term = apply_update(old, update), update.term
        self._fetchers.level = self._image.level
        if not update.whole:
            there = {topic.topic_id for topic in self._image.topics}
            for topic in old.topics:
                if topic.topic_id not in there:
                    self._delete_topic(topic)
        self.act(now)

    def act(self, now: float) -> None:
        """Act on the difference between the newest metadata and those acted on before: update servers and topic
        settings, end the roles of partitions whose topic is gone, queue the changed partitions and act on the first
        of them. Does nothing while this server is not registered or its metadata are older than the registration."""
        if not self._session.registered or self._image.index < self._session.index:
            return
        servers = {server.node: server for server in self._image.servers}
        if servers != self.servers:
            self.servers.clear()
            self.servers.update(servers)
            self._reconsider(now)
        topics = {topic.topic_id: topic for topic in self._image.topics}
        for topic_id in [known for known in self._acted_on if known not in topics]:
            topic = self._acted_on.pop(topic_id)
            for number in range(len(topic.partitions)):
                self._unassign(TopicPartition(topic_id, number))
        for topic_id, topic in topics.items():
            known = self._acted_on.get(topic_id)
            if known is topic:
                continue
            self._acted_on[topic_id] = topic
            if known is None or known.config != topic.config:
                self._configure(topic, now)
            self._changes.add(known, topic)
        self.on_tick(now)

    def on_tick(self, now: float) -> None:
        """Act on the next changed partitions, at most ``changes_at_once``: queue their logs to be opened, close or
        delete them, or give the partitions their new role. Then start jobs that open logs. If more partitions are
        queued, set the timer for the next call."""
        share = self._changes.take_share()
        if self._changes:
            self._timers.set(self, now + PAUSE_S)
        for key in share:
            if (topic := self._acted_on.get(key.topic_id)) is not None:
                self._assign(topic, key, topic.partitions[key.partition], now)
        self.log_opener.start_jobs()

    def _configure(self, topic: TopicState, now: float) -> None:
        """Apply the changed settings of a topic to its open partitions."""
        for number in range(len(topic.partitions)):
            partition = self.partitions.get(TopicPartition(topic.topic_id, number))
            if partition is not None and partition.config != topic.config:
                partition.configure(topic.config, now)
                self._touch(partition.key)

    def _reconsider(self, now: float) -> None:
        """Let each leader whose ISR is incomplete check whether a follower may join now, since the servers of the
        metadata have changed: one may be back or have begun another incarnation."""
        for partition in self.partitions.values():
            leading = partition.leading
            if leading is not None and len(leading.core.isr) < len(leading.core.replicas):
                leading.core.on_tick(now)
                self._touch(partition.key)

    def leave(self, now: float) -> None:
        """Prepare to stop the server: stop following all partitions, and make every open partition ask the controller
        that other replicas lead and do not wait for this one. Leaders take no more batches where another replica is
        in sync."""
        self._fetchers.leave()
        for partition in self.partitions.values():
            partition.is_draining, partition.report_at = True, now
            if partition.leading is not None:
                partition.leading.admission.is_draining = True
                partition.report_at = now + self._settings.isr_retry_s
            self._touch(partition.key)

    def on_disk_space(self, now: float) -> None:
        """Act on a disk that has become full (stop following all leaders) or has enough space again (follow them
        again). In both cases every partition's report to the controller becomes due."""
        if self._effects.full:
            self._fetchers.clear()
        for partition in self.partitions.values():
            partition.report_at = now
            self._fetchers.assign(partition, now)
            self._touch(partition.key)

    def on_registration_ended(self, reason: str) -> None:
        """End every role, since this incarnation is over, and refuse the waiting requests with ``reason``. Open logs
        stay open, queued ones are not opened; the next incarnation assigns roles again."""
        self._acted_on.clear()
        self._changes.clear()
        self._fetchers.clear()
        self.log_opener.unwant_all()
        self.log_repairer.unassign_all()
        self.doubtful_tails.unassign_all()
        for partition in self.partitions.values():
            partition.retire(reason)

    # --- partitions --------------------------------------------------------------------------------------

    def _assign(self, topic: TopicState, key: TopicPartition, state: PartitionState, now: float) -> None:
        """Bring one partition in line with its newest state. If the state does not name this server, delete the copy
        here; a copy of a partition that is being sealed is kept and reported, since it may be the newest. If the
        partition is paused, close its log. Otherwise give the open partition its role, pass the state on to a running
        repair, or queue the log to be opened."""
        if self._node not in state.replicas + state.learners:
            places = (
                self.partitions,
                self.log_opener,
                self.log_repairer,
                self.doubtful_tails,
                self._found,
                self._retiring,
            )
            held = any(key in place for place in places)
            if not (held and state.sealing):
                self._returning.pop(key, None)
                if held:
                    self._remove(key)
                return  # while it is sealed after a rescue this copy may be the newest: it is reported
        if state.rests:
            self._pause(topic, key, state, now)
            return
        self._found.pop(key, None)
        partition = self.partitions.get(key)
        if partition is not None:
            self._apply_state(partition, state, now)
        elif key in self._ending and key not in self.log_repairer:
            self._returning[key] = (topic.config, state)
        elif key in self.log_repairer:
            self.log_repairer.on_state(key, topic.config, state, now)
        elif key in self.doubtful_tails:
            self.doubtful_tails.on_state(key, topic.config, state, now)
        else:
            self.log_opener.want(key, topic.config, state)

    def _pause(self, topic: TopicState, key: TopicPartition, state: PartitionState, now: float) -> None:
        """Pause a partition: end its role and close its log as soon as all of it is durable. A log that is being
        opened or repaired is closed afterwards. Does nothing if the partition has no log here."""
        partition = self.partitions.pop(key, None)
        self._returning.pop(key, None)
        self.catching_up.pop(key, None)
        if partition is not None:
            self._fetchers.unassign(key)
            self._effects.jobs.forget(key)
            partition.retire(f"{topic.name}/{key.partition} is paused", "TOPIC_PAUSED")
            self._ending[key], self._retiring[key] = partition, None
            self._close_durable(partition, now)
        elif key in self.log_repairer:
            self.log_repairer.on_state(key, topic.config, state, now)
        elif key in self.doubtful_tails:
            self.doubtful_tails.on_state(key, topic.config, state, now)
        elif key in self.log_opener:
            self.log_opener.want(key, topic.config, state)

    def _close_durable(self, partition: Partition, now: float) -> None:
        """Close the log of a paused partition if all of it is durable, and log ``partition_paused``; otherwise start
        the flush that is needed first. If the partition is no longer paused, its log is then opened again. Does
        nothing while a flush runs or the process ends."""
        key = partition.key
        if partition.flushing or self._effects.stopping:
            return
        flush = partition.log.begin_flush(whole=True)
        if flush is not None:
            partition.flushing = True
            self._effects.start_flush(key, flush)
            return
        del self._ending[key], self._retiring[key]
        self._found[key] = None
        self._close(partition, now)
        self._effects.event(
            "partition_paused", topic_id=key.topic_id, partition=key.partition, log_end=partition.log.end
        )
        back = self._returning.pop(key, None)
        if back is not None:
            self._found.pop(key)
            self._reopen(key, *back)

    def _apply_state(self, partition: Partition, state: PartitionState, now: float) -> None:
        """Give an open partition the controller's newest state, which may change its role, and fetch from its leader
        if it follows. Also record the time at which this server left the partition's ISR, or how long it took to join
        the ISR again."""
        partition.on_state(state, self._session.broker_epoch, now)
        self._fetchers.assign(partition, now)
        self._touch(partition.key)
        key = partition.key
        if self._node in state.isr:
            if key in self.catching_up:
                self.counts.catch_ups.observe(now - self.catching_up.pop(key))
        elif self._node in state.replicas + state.target:
            self.catching_up.setdefault(key, now)

    def _on_open(
        self, key: TopicPartition, opened: Opened, config: TopicConfig, state: PartitionState | None, now: float
    ) -> None:
        """Create the ``Partition`` of a log that a job has opened, and act on its newest state, which may give it a
        role or pause it. With ``state`` None it stays without a role."""
        log, producers = opened.log, opened.producers
        topic = self._acted_on.get(key.topic_id)
        config = config if topic is None else topic.config  # it may have changed meanwhile
        log.configure(config)
        if log.forgets:
            self._effects.event(
                "producers_forgotten", topic_id=key.topic_id, partition=key.partition, start=log.start
            )
        partition = Partition(self._context, key, config, log, self.servers, producers)
        self.partitions[key] = partition
        if state is not None and state.rests:
            self._pause(self._acted_on[key.topic_id], key, state, now)
        elif state is not None:
            self._apply_state(partition, state, now)

    def _on_broken(
        self,
        key: TopicPartition,
        error: CorruptLog | DoubtfulLog,
        config: TopicConfig,
        state: PartitionState | None,
        now: float,
    ) -> None:
        """Act on a log that a job could not open: ask the other replicas about its doubtful tail (``DoubtfulLog``),
        or begin the repair of its damage."""
        if isinstance(error, DoubtfulLog):
            self.doubtful_tails.settle_tail(key, config, state, error, now)
            return
        if isinstance(error.doubt, DoubtfulLog):
            self.doubtful_tails.settle_tail(key, config, state, error.doubt, now, damage=error)
            return
        self._repair(key, error, config, state, now)

    def _repair(
        self, key: TopicPartition, error: CorruptLog, config: TopicConfig, state: PartitionState | None, now: float
    ) -> None:
        """Log ``partition_offline``, and begin to repair a damaged log that is closed."""
        reason = f"damaged log: {error}"
        self._effects.event("partition_offline", topic_id=key.topic_id, partition=key.partition, reason=reason)
        self.log_repairer.repair_log(key, config, state, error, now)

    def _reopen(self, key: TopicPartition, config: TopicConfig, state: PartitionState) -> None:
        """Queue a closed log to be opened, and start the job if one may start now."""
        self.log_opener.want(key, config, state)
        self.log_opener.start_jobs()

    def on_damaged(self, partition: Partition, error: CorruptLog, now: float) -> None:
        """Take an open partition with a damaged log out of service: stop following it, close its log as soon as no
        flush runs, and begin the repair."""
        key = partition.key
        del self.partitions[key]
        self._fetchers.unassign(key)
        self._effects.jobs.forget(key)
        self.log_repairer.repair_log(key, partition.config, partition.state, error, now, closed=False)
        if partition.flushing:
            self._ending[key] = partition
        else:
            self._close(partition, now)

    def _close(self, partition: Partition, now: float) -> None:
        """Write a partition's HW to the disk and close its log. A repair that waited for this begins. If the disk
        fails the process ends."""
        try:
            partition.log.write_high_watermark(partition.high_watermark)
            partition.log.remember_high_watermark(partition.high_watermark)
            partition.log.close()
        except OSError as error:
            self._effects.stop(f"{self._context.log_directory(partition.key)}: {error}")
        else:
            self.log_repairer.on_closed(partition.key, now)

    def _unassign(self, key: TopicPartition) -> None:
        """End this server's part in a partition: end its role, stop following it, and do not open or repair its log
        any more. The data stays on the disk. Logs ``partition_unassigned`` if the partition was open with a known
        state."""
        partition = self.partitions.get(key)
        self.catching_up.pop(key, None)
        self.log_opener.unwant(key)
        self.log_repairer.unassign(key)
        self.doubtful_tails.unassign(key)
        self._fetchers.unassign(key)
        if partition is not None and partition.state is not None:
            partition.retire(f"{self._node} is no replica of it")
            self._effects.event("partition_unassigned", topic_id=key.topic_id, partition=key.partition)

    def _delete_topic(self, topic: TopicState) -> None:
        """Delete this server's logs of a topic that the committed metadata name as deleted. A log that a flush still
        uses is deleted when the flush ends."""
        self._acted_on.pop(topic.topic_id, None)
        for number in range(len(topic.partitions)):
            self._returning.pop(TopicPartition(topic.topic_id, number), None)
            self._remove(TopicPartition(topic.topic_id, number))

    def _remove(self, key: TopicPartition) -> None:
        """Delete this server's copy of a partition, open or not. If a flush of its log is running, the copy is
        deleted when the flush ends."""
        self.catching_up.pop(key, None)
        self._found.pop(key, None)
        self._retiring.pop(key, None)
        partition = self.partitions.get(key)
        if partition is None:  # not here; or on its way, damaged, left over from an earlier incarnation
            self.log_repairer.forget(key)
            self.doubtful_tails.forget(key)
            if key not in self._ending:
                self.log_opener.delete(key, None)
            return
        self._unassign(key)
        del self.partitions[key]
        if partition.flushing:
            self._ending[key] = partition
        else:
            self.log_opener.delete(key, partition.log)

    def on_flush_ended(self, key: TopicPartition, flush: Flush, error: OSError | None, now: float) -> None:
        """Finish the work on a partition that was taken out of service while a thread flushed its log. A damaged log
        is now closed for its repair, a paused one is closed when durable, and any other is deleted, and created anew
        if this server has a part in the partition again. Does nothing for any other partition."""
        partition = self._ending.pop(key, None)
        if partition is None:
            return
        partition.on_flushed(flush, error)
        if key in self.log_repairer:
            self._close(partition, now)
        elif key in self._retiring:
            self._ending[key] = partition
            self._close_durable(partition, now)
        else:
            self.log_opener.delete(key, partition.log)
            back = self._returning.pop(key, None)
            if back is not None:
                self._reopen(key, *back)
