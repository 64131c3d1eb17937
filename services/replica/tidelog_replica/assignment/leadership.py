"""Whether a leader here may serve its clients: the lease of its leadership, and how it is kept without controllers.

A leader serves its clients while one of these holds:

    session     the controllers cannot have ended this server's session (``registration/session.py``)
    voters      every replica that the controllers could elect has confirmed the leadership, no longer than the
                session time-out ago. The proof is that of linearizable reads, for a time in the past
                (``replication/leadership_confirmation.py``)

The voters are the maximal ISR and the ELR; all replicas where unclean election is on; with commit rule ``quorum`` a
majority of the replicas, this leader included. A leader that is the only voter needs no other. So the loss of the
controllers stops no leader that reaches its voters. A leader that is cut off from one voter stops, whether the
controllers are dead or elect that voter at this moment. ``docs/decisions/0026-leaders-without-controllers.md`` says
what this promises and what it does not.

A leader without voters confirms itself (``confirm_alone``). Acks, bounded reads and coordinators rely on that. A
linearizable read, or a request for the latest offset, relies on it only where the partition has a single replica.
Elsewhere unclean elections may have been allowed meanwhile, so all other replicas or the controllers have to answer.

No voter is asked while the session lasts. Afterwards voters are asked on demand: when a request comes, and the last
confirmation is older than half of the session time-out. Followers that fetch records confirm by their fetches. Idle
followers are notified, at most once every ``ROUND_S`` for all partitions that ask together: one message for each
server, however many partitions there are, and none for partitions that are not used. A request that finds no
confirmation is refused with ``NOT_LEADER`` and the reason; gateways repeat it.
"""

from __future__ import annotations

from tidelog.errors import TidelogError, refuse
from tidelog.types import NodeId, TopicPartition

from tidelog_replica.assignment.assignment import Assignment
from tidelog_replica.context import NodeContext
from tidelog_replica.partition.leader_replica import LeaderReplica
from tidelog_replica.partition.partition import Partition
from tidelog_replica.registration.session import BrokerSession

ROUND_S = 0.1
"""The shortest pause, in seconds, between two rounds in which voters are asked."""
SILENT_S = 1.0
"""A voter that does not answer for so many seconds is logged."""


class Leadership:
    """The part of a node that decides whether its leaders may serve clients now. It lives as long as the node."""

    def __init__(self, context: NodeContext, assignment: Assignment, session: BrokerSession) -> None:
        self._node = context.node
        self._assignment = assignment
        self._session = session
        self._effects = context.effects
        self._timers = context.timers
        self._touch = context.touch
        self._round_at = 0.0
        """When voters may be asked again (seconds)."""
        self._in_demand: dict[TopicPartition, Partition] = {}
        """Partitions whose voters are asked in the next round."""
        self._refused: dict[TopicPartition, float] = {}
        """Partitions that refused a request because their voters had not confirmed, and since when. The voters
        may not have been asked before that: a voter counts as silent if it does not answer for ``SILENT_S``."""
        self._reported: dict[NodeId, None] = {}
        """Silent voters that were logged."""

    def refused(self, now: float) -> int:
        """Return the number of partitions that refuse their clients because voters are silent; 0 while the session
        lasts. Partitions that no client asked for are not counted."""
        if self._session.live(now):
            return 0
        return sum(bool(self._silent(key, since, now)) for key, since in self._refused.items())

    def _silent(self, key: TopicPartition, since: float, now: float) -> tuple[NodeId, ...]:
        """Return the voters of a partition that have not confirmed its leadership since ``since`` (seconds). An empty
        tuple if less than ``SILENT_S`` has passed since then, or if this server does not lead the partition."""
        partition = self._assignment.partitions.get(key)
        leading = None if partition is None else partition.leading
        return () if leading is None or now < since + SILENT_S else leading.core.unconfirmed(since)

    def lapsed_s(self, now: float) -> float:
        """Return for how many seconds the controllers may have considered this server's session over; 0 while they
        cannot."""
        return self._session.lapsed_s(now)

    def refuse(self, partition: Partition, now: float) -> TidelogError | None:
        """Return the error ``NOT_LEADER`` if this server's leader of the partition may not serve clients now; None if
        it may, or if this server does not lead. While the session has lapsed this also asks the voters to confirm the
        leadership, if their last confirmation is older than half of the session timeout."""
        leading = partition.leading
        if leading is None:
            return None
        if self._session.live(now):
            if self._refused or self._reported:
                self._refused, self._reported = {}, {}
            return None
        if self._assignment.has_moved_on(partition.key, leading.core.leader_epoch):
            return refuse("NOT_LEADER", "the partition has a newer leader epoch", leader="")
        core, timeout_s = leading.core, self._session.timeout_s
        self.confirm_alone(partition, now)
        if core.unconfirmed(now - timeout_s / 2):
            self._ask(partition, now)
        silent = core.unconfirmed(now - timeout_s)
        if not silent:
            self._refused.pop(partition.key, None)
            return None
        self._report(partition.key, leading, now)
        text = (
            f"{self._node} has had no session with the controllers for {self._session.lapsed_s(now):.1f} s, and"
            f" {', '.join(silent)} did not confirm its leadership in the last {timeout_s:g} s"
        )
        return refuse("NOT_LEADER", text, leader="")

    def _report(self, key: TopicPartition, leading: LeaderReplica, now: float) -> None:
        """Record that a partition refused a request because voters had not confirmed its leadership. Log
        ``leadership_unconfirmed`` for each voter that has been silent for ``SILENT_S`` since the first refusal, one
        time for each voter."""
        since = self._refused.get(key)
        if since is None or not leading.core.unconfirmed(since):
            self._refused[key] = now
            return
        for node in self._silent(key, since, now):
            if node not in self._reported:
                self._reported[node] = None
                lapsed_s = round(self._session.lapsed_s(now), 1)
                self._effects.event("leadership_unconfirmed", voter=node, lapsed_s=lapsed_s)

    def confirm_alone(self, partition: Partition, now: float) -> None:
        """Let a leader that needs no other voter confirm its leadership itself, which also lets waiting reads go on.
        Does nothing if the partition's leader needs voters, has a newer leader epoch, or is another server. May be
        called only while this server has no session."""
        assert not self._session.live(now)
        leading = partition.leading
        if leading is None or leading.core.needs_voters:
            return
        if not self._assignment.has_moved_on(partition.key, leading.core.leader_epoch):
            leading.core.confirm_alone(now)

    def _ask(self, partition: Partition, now: float) -> None:
        """Ask the voters of a partition to confirm its leader, at once or, if the last round was less than
        ``ROUND_S`` ago, when that time has passed."""
        self._in_demand[partition.key] = partition
        if now < self._round_at:
            self._timers.set(self, self._round_at)
        else:
            self.on_tick(now)

    def on_tick(self, now: float) -> None:
        """Ask the voters of all waiting partitions to confirm their leaders, by notifies to the idle ones, and begin
        the pause before the next round."""
        in_demand, self._in_demand = self._in_demand, {}
        self._round_at = now + ROUND_S
        for key, partition in in_demand.items():
            leading = partition.leading
            if leading is not None and self._assignment.partitions.get(key) is partition:
                leading.core.ask_voters(now)
                self._touch(partition.key)
