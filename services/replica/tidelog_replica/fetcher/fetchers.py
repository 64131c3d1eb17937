"""The fetchers of this server, one for each leader server, and the leader at which each partition is followed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidelog.feature_levels import PROGRESS
from tidelog.types import NodeId, TopicPartition
from tidelog.wire.codec import payload_view
from tidelog.wire.messages import Notify

from tidelog_replica.context import NodeContext
from tidelog_replica.fetcher.fetcher import Fetcher
from tidelog_replica.fetcher.throttle import Throttle
from tidelog_replica.partition.follower_replica import FetchOutcome
from tidelog_replica.partition.partition import Partition
from tidelog_replica.registration.session import BrokerSession


class Fetchers:
    """The fetchers of a node, one for each server that leads partitions which this server follows. Each partition is
    followed at one fetcher. The object lives as long as the node."""

    def __init__(self, context: NodeContext, session: BrokerSession) -> None:
        self._context = context
        self._node = context.node
        self._session = session
        self._settings = context.settings
        self._effects = context.effects
        self._touch = context.touch
        self._bucket: Throttle | None = None
        """The throttle of the partitions that catch up; None before the first fetcher."""
        self._fetchers: dict[NodeId, Fetcher] = {}
        self._follows: dict[TopicPartition, NodeId] = {}
        """The leader's server at which each partition is followed."""
        self._left = False
        """Whether ``leave`` was called."""
        self.level = 1
        """The cluster's feature level."""

    def leave(self) -> None:
        """Stop following all partitions, for good: close all fetchers and ignore later assignments. Called when the
        server is about to stop."""
        self.clear()
        self._left = True

    def assign(self, partition: Partition, now: float) -> None:
        """Follow a partition at the leader that its role names, and at no other server. If the partition has no
        follower's role, stop following it. Does nothing while the disk is full, or after ``leave``."""
        following, key = partition.following, partition.key
        if self._left or self._effects.full:
            return
        if following is None:
            self.unassign(key)
            return
        leader = following.core.leader
        if self._follows.get(key) != leader:
            self.unassign(key)
        self._follows[key] = leader
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            fetcher = self._fetchers[leader] = Fetcher(
                self._context, leader, self._session.broker_epoch, self._throttle(now), now
            )
        fetcher.add(partition, following.core.leader_epoch)
        fetcher.poll(now)

    def _throttle(self, now: float) -> Throttle:
        """Return the throttle of the partitions that catch up, which all fetchers share. It is created on the first
        call."""
        if self._bucket is None:
            self._bucket = Throttle(self._settings.catchup_max_bytes_per_s, now)
        return self._bucket

    def unassign(self, key: TopicPartition) -> None:
        """Stop following a partition. Does nothing if it is not followed."""
        leader = self._follows.pop(key, None)
        if leader is not None:
            self._fetchers[leader].remove(key)

    def confirm(self, partition: Partition, now: float) -> None:
        """Request a confirmation of leadership from the partition's leader, if reads of the partition wait for one.
        Does nothing if the partition is not followed."""
        leader = self._follows.get(partition.key)
        if leader is not None:
            self._fetchers[leader].confirm(partition, now)

    def poll(self, key: TopicPartition, now: float) -> None:
        """Make a partition active, so that it is fetched from its leader as soon as the fetcher's loop allows. Does
        nothing if it is not followed."""
        self._poll([(key, False)], now)

    def on_flushed(self, partition: Partition, now: float) -> None:
        """Report to the partition's leader how far the log is durable here, by a fetch or, where that is enough, by a
        report of progress without an answer. Does nothing if the partition is not followed."""
        self._poll(
            [(partition.key, partition.following is not None and partition.following.may_report_progress)], now
        )

    def _poll(self, named: Sequence[tuple[TopicPartition, bool]], now: float) -> None:
        """Make the named partitions active, and have each of their fetchers send one message for all of them. The
        boolean of a partition says that it has only progress to report. Partitions that are not followed are
        skipped."""
        leaders: dict[NodeId, None] = {}
        for key, only_reports in named:
            leader = self._follows.get(key)
            if leader is not None:
                self._fetchers[leader].activate(key, only_reports and self.level >= PROGRESS)
                leaders[leader] = None
        for leader in leaders:
            self._fetchers[leader].poll(now)

    def on_notify(self, notify: Notify, partitions: Mapping[TopicPartition, Partition], now: float) -> None:
        """Apply a leader's ``Notify``: append its batches to the logs of its partitions, then fetch from the leader
        or report progress, for all of them in one message. Partitions that are not followed here are skipped."""
        data, position = payload_view(notify.payload), 0
        named = []
        for part in notify.parts:
            key = TopicPartition(part.topic_id, part.partition)
            partition, batches = partitions.get(key), data[position : position + part.size]
            position += part.size
            if partition is not None and partition.following is not None:
                outcome = partition.on_notified(part, batches)
                if outcome in (FetchOutcome.FETCH_AGAIN, FetchOutcome.REPORT_PROGRESS):
                    named.append((key, outcome is FetchOutcome.REPORT_PROGRESS))
                self._touch(partition.key)
        self._poll(named, now)

    def on_down(self, leader: NodeId, now: float) -> None:
        """Act on a link to a leader's server that broke or could not be opened: that server is suspected and reported
        to the controller, and its partitions are fetched again after a pause. Does nothing if no partition is
        followed there."""
        fetcher = self._fetchers.get(leader)
        if fetcher is not None:
            fetcher.on_down(now)

    def on_controller_up(self, now: float) -> None:
        """Report the suspected leader servers again, on a new link to the active controller, which may have received
        none of the earlier reports."""
        for fetcher in self._fetchers.values():
            fetcher.report_again(now)

    def clear(self) -> None:
        """Close all fetchers, so that no partition is followed, because this incarnation is over or the disk is full.
        ``assign`` begins to follow partitions again."""
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._fetchers.clear()
        self._follows.clear()
