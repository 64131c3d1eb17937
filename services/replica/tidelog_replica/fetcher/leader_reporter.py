"""Decides whether a leader server is suspected of having failed, and reports that to the controller.

A server that does not answer at all is suspected as a whole: it is reported at once, and again every
``leader_report_interval_s`` until it answers. If it answers but does not serve a partition that it should lead, the
leader of that partition alone is reported. Only partitions in whose ISR this server is are reported, since the
controller counts no other reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidelog.sansio.effects import CONTROLLER
from tidelog.types import NodeId, TopicPartition
from tidelog.wire.codec import in_shares
from tidelog.wire.messages import ReportLeader, SuspectPart

from tidelog_replica.context import NodeContext
from tidelog_replica.partition.partition import Partition


class LeaderReporter:
    """Sends the controller reports about one leader server: when the server does not answer, or does not serve one of
    the partitions that are followed there. Each fetcher has one for its leader. ``followed`` is a live view of these
    partitions."""

    def __init__(
        self,
        context: NodeContext,
        leader: NodeId,
        broker_epoch: int,
        followed: Mapping[TopicPartition, Partition],
        now: float,
    ) -> None:
        self._leader = leader
        self._node = context.node
        self._broker_epoch = broker_epoch
        self._settings = context.settings
        self._effects = context.effects
        self._followed = followed
        self._reason = ""
        """Why the whole server is suspected; "" while it answers."""
        self._report_at = now
        """When the next report may be sent (seconds)."""

    def clear(self) -> None:
        """End the suspicion of the whole server, so that no report is repeated: the server has answered, or the
        controller has chosen it as a leader since."""
        self._reason = ""

    def suspect(self, reason: str, now: float) -> None:
        """Suspect the whole server because it does not answer, and report it to the controller for all partitions
        that are followed there. The report is repeated until ``clear``."""
        self._reason = reason
        self.report(self._followed, reason, now)

    def report(self, keys: Iterable[TopicPartition], reason: str, now: float) -> None:
        """Report the leader to the controller for those of the given partitions in whose ISR this server is, and log
        ``leader_suspected``. Does nothing if there are none, or if the last report was sent less than
        ``leader_report_interval_s`` ago."""
        if now < self._report_at:
            return
        suspects = []
        for key in keys:
            state = self._followed[key].state
            if state is not None and state.leader == self._leader and self._node in state.isr:
                suspects.append(SuspectPart(*key, state.epoch, state.leader_epoch))
        if not suspects:
            return
        self._report_at = now + self._settings.leader_report_interval_s
        for parts in in_shares(suspects):
            message = ReportLeader(self._node, self._broker_epoch, self._leader, reason, parts)
            self._effects.call(CONTROLLER, message, self._settings.controller_timeout_s, lambda answer, now: None)
        self._effects.event("leader_suspected", leader=self._leader, reason=reason, partitions=len(suspects))

    def report_again(self, now: float) -> None:
        """Allow the next report at once, without waiting for ``leader_report_interval_s``, since the controller may
        not have received the last one."""
        self._report_at = now

    def on_tick(self, now: float) -> None:
        """Repeat the report of a server that is still suspected, if it is due at ``now`` (seconds)."""
        if self._reason and self._report_at <= now:
            self.report(self._followed, self._reason, now)
            self._report_at = max(self._report_at, now + self._settings.leader_report_interval_s)

    def deadline(self) -> float | None:
        """Return the time, in seconds, at which ``on_tick`` has something to do. None while the server is not
        suspected."""
        return self._report_at if self._reason else None
