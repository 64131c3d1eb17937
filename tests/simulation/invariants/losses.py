"""What may be lost, and what that means for the rest: unclean elections, and the commit rule ``leader``.

Nothing is excused in general. A *loss* begins when a leader that may lack committed records leads: what it lacks is
lost from there on, record by record (``Committed.lost``, ``OperationHistory.losses``), and so is what a leader that
has not heard of its successor commits afterwards.
"""

from __future__ import annotations

from tidelog.types import TopicPartition
from tidelog.verify.history import Loss
from tidelog_replica.storage.log import Log

from simulation.invariants.clients import ClientInvariants
from simulation.invariants.ghost import Chain
from simulation.invariants.views import View


class Losses(ClientInvariants):
    """Decides which losses of records are allowed."""

    _leaders: dict[tuple[TopicPartition, int], tuple[str, int]]
    """Who leads a leader epoch, and in which life."""
    _lost_at_opening: dict[TopicPartition, set[str]]
    """Servers whose copy cut its end when it was opened, and no other copy was asked what was there."""

    def _leads_anew_alone(self, key: TopicPartition, view: View, before: View) -> bool:
        """Where records may be lost, a new leader counts as committed only what it has flushed itself."""
        lossy = key in self.unclean or self.commit_rules.get(key.topic_id) == "leader"
        anew = view.leads and view.leader_epoch > before.leader_epoch
        return lossy and anew and view.high_watermark >= min(before.high_watermark, view.log.durable)

    def _newest_leader(self, key: TopicPartition, below: int = 1 << 62) -> int:
        """The newest leader epoch, of those below, in which somebody has led; -1: none."""
        return max((epoch for led, epoch in self._leaders if led == key and epoch < below), default=-1)

    def _may_lose(self, key: TopicPartition, epoch: int) -> bool:
        """Whether the leader of that epoch may lack what was committed before it: under the commit rule ``leader``,
        and the first that leads after an unclean election."""
        if self.commit_rules.get(key.topic_id) == "leader":
            return True
        if key not in self.unclean:
            return False
        before = self._newest_leader(key, epoch)
        return any(before < unclean <= epoch for unclean in self.unclean[key])

    def _losing_successor(self, key: TopicPartition, epoch: int) -> int:
        """The first leader epoch after that one whose leader may lack what is committed in that one from now on, also
        where others have led since; -1: none."""
        later = sorted(other for led, other in self._leaders if led == key and other > epoch)
        return next((other for other in later if self._may_lose(key, other)), -1)

    def _is_losing(self, key: TopicPartition, epoch: int) -> bool:
        """Members promise nothing under the commit rule ``leader``; and after an unclean election nobody knows what
        is lost before its leader leads."""
        pending = self.unclean.get(key)
        return self.commit_rules.get(key.topic_id) == "leader" or (
            pending is not None and self._newest_leader(key) < pending[-1] <= epoch
        )

    def _check_reported(self, who: str, key: TopicPartition, log: Log, chain: Chain, end: int) -> None:
        """Of the log that was ``chain`` nothing from ``end`` on is left: every record there that was committed and
        may be gone is in a report that is on the disk until the controllers have it (R13). For a copy that starts
        over ``end`` is its former log start, or the new one where that is greater: retention, its own or its
        leader's, had deleted everything below. Not where the leader lost it when it opened its log: no election tells
        the followers that they cut what was committed."""
        if key in self._lost_at_opening:
            return
        committed = self._of(key)
        for header in reversed(chain.headers):
            if header.end_offset <= end:
                return
            digest = chain.at[header.end_offset]
            if digest not in committed.lost or committed.at.get(header.end_offset) == digest:
                continue
            self.cluster.count("committed batches cut")
            offsets, reported = range(header.base_offset, header.end_offset), log.pending_losses.ranges
            missing = [offset for offset in offsets if not any(one.start <= offset < one.end for one in reported)]
            self._demand(
                not missing, f"R13 {who}: cut offset {missing[:1]}, which was committed, and reports {reported}"
            )

    def _allow_loss(self, key: TopicPartition, before_epoch: int, start: int) -> None:
        """What was committed before that leader epoch, from ``start`` on, may be gone."""
        self.cluster.count("losses allowed")
        loss = Loss(self.cluster.partition_name(key), before_epoch, start)
        self._of(key).losses.append(loss)
        self.cluster.history.losses.append(loss)
