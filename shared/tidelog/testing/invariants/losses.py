"""Which losses are allowed, and what they mean for the other checks: unclean elections, and the commit rule
``leader``.

No loss is excused in general. A *loss* begins when a leader that may lack committed records leads: what it lacks is
lost from there on, record by record (``Committed.lost``, ``OperationHistory.losses``), and so is what a leader that
does not know its successor commits afterwards.
"""

from __future__ import annotations

from tidelog_replica.storage.log import Log

from tidelog.testing.invariants.clients import ClientInvariants
from tidelog.testing.invariants.ghost import Chain
from tidelog.testing.invariants.views import View
from tidelog.types import TopicPartition
from tidelog.verify.history import Loss


class Losses(ClientInvariants):
    """Decides which losses of records are allowed."""

    _leaders: dict[tuple[TopicPartition, int], tuple[str, int]]
    """The server and the number of its run that led a leader epoch."""
    _lost_at_opening: dict[TopicPartition, set[str]]
    """The servers whose copy cut its end when it was opened, without asking another copy, by partition."""

    def _leads_anew_alone(self, key: TopicPartition, view: View, before: View) -> bool:
        """Return whether a new leader may have a lower HW: where records may be lost it counts as committed only what
        it has flushed itself."""
        lossy = key in self.unclean or self.commit_rules.get(key.topic_id) == "leader"
        anew = view.leads and view.leader_epoch > before.leader_epoch
        return lossy and anew and view.high_watermark >= min(before.high_watermark, view.log.durable)

    def _newest_leader(self, key: TopicPartition, below: int = 1 << 62) -> int:
        """Return the newest leader epoch below a bound in which a replica has led; -1 if none."""
        return max((epoch for led, epoch in self._leaders if led == key and epoch < below), default=-1)

    def _may_lose(self, key: TopicPartition, epoch: int) -> bool:
        """Return whether the leader of an epoch may lack records committed before it: under the commit rule
        ``leader``, or as the first leader after an unclean election."""
        if self.commit_rules.get(key.topic_id) == "leader":
            return True
        if key not in self.unclean:
            return False
        before = self._newest_leader(key, epoch)
        return any(before < unclean <= epoch for unclean in self.unclean[key])

    def _losing_successor(self, key: TopicPartition, epoch: int) -> int:
        """Return the first later leader epoch whose leader may lack what is committed in this epoch from now on; -1
        if none."""
        later = sorted(other for led, other in self._leaders if led == key and other > epoch)
        return next((other for other in later if self._may_lose(key, other)), -1)

    def _is_losing(self, key: TopicPartition, epoch: int) -> bool:
        """Return whether members need not hold everything committed: under the commit rule ``leader``, or between an
        unclean election and the moment at which its leader leads."""
        pending = self.unclean.get(key)
        return self.commit_rules.get(key.topic_id) == "leader" or (
            pending is not None and self._newest_leader(key) < pending[-1] <= epoch
        )

    def _check_reported(self, who: str, key: TopicPartition, log: Log, chain: Chain, end: int) -> None:
        """Check that a log that was ``chain`` and has lost everything from ``end`` on has stored a loss report for
        every committed record there that may be gone (R13). For a copy that starts over, ``end`` is its former or its
        new log start, the greater one: retention had deleted everything below. Not checked where the leader lost the
        records when it opened its log: no election tells the followers then that they cut committed records."""
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
        """Allow that records committed before a leader epoch, from ``start`` on, are gone."""
        self.cluster.count("losses allowed")
        loss = Loss(self.cluster.partition_name(key), before_epoch, start)
        self._of(key).losses.append(loss)
        self.cluster.history.losses.append(loss)
