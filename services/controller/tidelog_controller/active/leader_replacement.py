"""When a leader is replaced that others report as dead, and which replica leads a sealed partition: decisions of the
active controller.

Leader reports and seals are volatile: only the active controller keeps them, and a new one begins with none. What is
decided from them goes through the Raft log as a command (``metadata/commands.py``) and has no effect before it is
applied (``metadata/application.py``).

    session   which servers run (``active/server_sessions.py``)
    suspicion reports about one partition's leader in one epoch; forgotten when the partition changes
    seals     how far the logs of a partition with commit rule ``quorum`` reach, as replicas report that take nothing
              of earlier epochs any more; forgotten when it is led again. Replicas send them again now and then, so
              that another active controller gets them too

A leader is replaced when a majority of the *live* ISR members other than the leader report it within
``leader_report_window_s``. Reports make failover fast; sessions make it live: with reports alone, a leader and one
follower of three that die together would leave one reporter of two for ever. Reports by servers that are not in the
ISR, or of another epoch, do not count.

Elections by reports are *damped*: after ``FREE_REPLACEMENTS`` of them within ``DAMPING_S`` the reports about a
partition must go on for a whole session time-out before its leader is replaced again. The time starts anew when the
leader sends a heartbeat after a silence. So a server or a network that freezes for a moment again and again does not
cost an election each time. A leader that stays silent is replaced as soon as its session ends, as it would be without
reports. Nothing is held back where the link of the leader's heartbeats is broken, too: its process is dead.

A sealed partition is led again when a majority of its replicas, live and in the ISR, has sealed the old epochs: by
the one with the greatest (last epoch, log end); among equals by one that is not being drained and has the best rank.
A server that has handed the partition over, or was reported, does not count while the others are a majority without
it.

A decision is in flight from its proposal until it is applied, and is not made again meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidelog.errors import TidelogError, refuse
from tidelog.feature_levels import RECOVERY
from tidelog.types import NodeId, PartitionState, TopicConfig, TopicPartition
from tidelog.wire.messages import IsrMember, ReportLeader, Seal, SealPart, SuspectPart

from tidelog_controller.active.server_sessions import GAPS, ServerSessions
from tidelog_controller.metadata.commands import (
    Command,
    ElectSealed,
    LeaveParts,
    LostLeader,
    RegisterServer,
    RemoveTopic,
    ReplaceLeaders,
    SealedPart,
)
from tidelog_controller.metadata.rules.leader_election import ALL_ALIKE, Ranks, is_recovering
from tidelog_controller.metadata.rules.recovery import choose
from tidelog_controller.metadata.state import MetadataState

FREE_REPLACEMENTS = 2
"""Number of elections by reports that a partition may have within ``DAMPING_S`` before further ones are delayed."""
DAMPING_S = 20.0
"""Seconds for which an election by reports counts towards ``FREE_REPLACEMENTS``."""


def refuse_report(state: MetadataState, report: ReportLeader) -> TidelogError | None:
    """Return the error ``NOT_REPLICA`` for a report of a dead leader if its sender has no copy of any partition that
    it names, at whatever epoch. Return None if the sender has a copy of at least one, or if none of the partitions
    exists."""
    found = (state.partition(part.topic_id, part.partition) for part in report.parts)
    known = [partition for partition in found if partition is not None]
    if not known or any(report.node in partition.replicas for partition in known):
        return None
    return refuse("NOT_REPLICA", f"{report.node} reports {report.leader}, and has no copy of what that leads")


@dataclass(slots=True)
class _Suspicion:
    """The reports about the leader of one partition at one partition epoch: for each server that reported, when it
    did so last and the reason that it gave. Discarded when the partition changes."""

    epoch: int
    reports: dict[NodeId, tuple[float, str]] = field(default_factory=dict)
    last_at: float = 0.0
    """When the last report came, in seconds."""
    agreed_at: float | None = None
    """Since when a majority has reported the leader, in seconds, without a gap in the reports; None if no majority
    has."""


@dataclass(slots=True)
class _Sealing:
    """The seals of one partition in the leader epoch in which it is sealed, each with the broker epoch of its sender.
    ``avoided`` is the server that handed the partition over or was reported; it does not lead next while the other
    servers are enough."""

    leader_epoch: int
    seals: dict[NodeId, tuple[int, SealPart]] = field(default_factory=dict)
    avoided: NodeId | None = None


class LeaderReplacement:
    """The reports of dead leaders and the seals of partitions, from which the active controller decides when a new
    leader is elected; it also owns the sessions of the servers. In memory only, and empty on a controller that is not
    active. Times are seconds of the caller's monotonic clock."""

    def __init__(self, session_timeout_s: float, broken_link_grace_s: float, leader_report_window_s: float) -> None:
        self.sessions = ServerSessions(session_timeout_s, broken_link_grace_s)
        self._session_timeout_s = session_timeout_s
        self._gap_s = session_timeout_s / GAPS
        self._window_s = leader_report_window_s
        self._suspicions: dict[TopicPartition, _Suspicion] = {}
        self._sealings: dict[TopicPartition, _Sealing] = {}
        self._in_flight: dict[tuple[str, str, int], None] = {}
        self._replaced: dict[TopicPartition, list[float]] = {}
        """By partition: the times at which its leader was replaced because of reports, in about the last
        ``DAMPING_S`` seconds."""
        self._reported_at = 0.0
        """When the last report came, about any leader."""
        self._registered_at = 0.0
        """When the last server registered, or this controller became active."""

    def become_active(self, state: MetadataState, now: float) -> None:
        """Begin without reports and seals, and with a full session for every registered server."""
        self.clear()
        self.sessions.become_active(state, now)
        self._registered_at = now

    def clear(self) -> None:
        """Forget all sessions, reports, seals and decisions in flight, since this controller is no longer active."""
        self.sessions.clear()
        self._suspicions.clear()
        self._sealings.clear()
        self._in_flight.clear()
        self._replaced.clear()

    # --- reports -----------------------------------------------------------------------------------------

    def on_report(
        self, state: MetadataState, report: ReportLeader, now: float, wall_ms: int
    ) -> ReplaceLeaders | None:
        """Record a server's report that the leader of some partitions is dead. Return the command that replaces the
        leader of those partitions of which a majority of the live ISR now agrees; None if there are none. Ignored are
        partitions at another epoch, partitions in whose ISR the sender is not, and those whose election is delayed.
        The caller has checked that the report is of the sender's present incarnation."""
        self._reported_at = now
        lost: list[LostLeader] = []
        for part in report.parts:
            key = TopicPartition(part.topic_id, part.partition)
            partition = state.partition(*key)
            if partition is None or not self._counts(state, partition, report, part, now):
                continue
            suspicion = self._suspicions.get(key)
            if suspicion is None or suspicion.epoch != part.epoch:
                suspicion = self._suspicions[key] = _Suspicion(part.epoch)
            if now - suspicion.last_at > self._gap_s:
                suspicion.agreed_at = None
            suspicion.last_at = now
            suspicion.reports[report.node] = (now, report.reason)
            evidence = self._majority(state, partition, suspicion, now)
            if evidence is None or self._is_held_back(key, report.leader, suspicion, now):
                continue
            if suspicion.agreed_at is not None and now > suspicion.agreed_at:
                evidence["held_back_ms"] = str(round((now - suspicion.agreed_at) * 1000))
            if self._begin(("replace", f"{key.topic_id}/{key.partition}", part.epoch)):
                lost.append(LostLeader(*key, part.leader_epoch, part.epoch, evidence))
        return ReplaceLeaders(wall_ms, report.leader, tuple(lost)) if lost else None

    def _counts(
        self, state: MetadataState, partition: PartitionState, report: ReportLeader, part: SuspectPart, now: float
    ) -> bool:
        """Return whether a report counts for a partition: it names the present leader and epochs, and its sender is
        another live member of the ISR."""
        return (
            (partition.leader, partition.leader_epoch, partition.epoch)
            == (report.leader, part.leader_epoch, part.epoch)
            and report.node != report.leader
            and report.node in partition.isr
            and self.sessions.is_live(state, report.node, now)
        )

    def _majority(
        self, state: MetadataState, partition: PartitionState, suspicion: _Suspicion, now: float
    ) -> dict[str, str] | None:
        """Return evidence, as text by name, that more than half of the live ISR members other than the leader have
        reported the leader lately; None if they have not."""
        judges = [n for n in partition.isr if n != partition.leader and self.sessions.is_live(state, n, now)]
        fresh = [
            node
            for node in judges
            if node in suspicion.reports and now - suspicion.reports[node][0] <= self._window_s
        ]
        if 2 * len(fresh) <= len(judges):
            return None
        details = {f"report_{node}": suspicion.reports[node][1] for node in fresh}
        return {"leader": partition.leader or "", "reports": str(len(fresh)), "live": str(len(judges)), **details}

    def _is_held_back(self, key: TopicPartition, leader: NodeId, suspicion: _Suspicion, now: float) -> bool:
        """Return whether the replacement of a leader, on which a majority agrees, is delayed because the partition
        had too many elections lately. Records since when the majority agrees, if that is new."""
        if suspicion.agreed_at is None:
            suspicion.agreed_at = now
        recent = self._replaced[key] = [at for at in self._replaced.get(key, ()) if now - at < DAMPING_S]
        if len(recent) < FREE_REPLACEMENTS or self.sessions.is_link_broken(leader):
            return False
        return now - max(suspicion.agreed_at, self.sessions.back_at(leader)) < self._session_timeout_s

    def held_back(self, state: MetadataState, key: TopicPartition) -> dict[str, str]:
        """Return evidence, as text by name, that the election of a new leader for this partition is being delayed
        after too many elections; an empty dict if it is not. ``tidelog why`` shows it."""
        suspicion, partition = self._suspicions.get(key), state.partition(*key)
        if (
            partition is None
            or suspicion is None
            or suspicion.agreed_at is None
            or suspicion.epoch != partition.epoch
        ):
            return {}
        elections = len(self._replaced[key])
        seen_at = max(self.sessions.heartbeat_at, self._reported_at)
        if elections < FREE_REPLACEMENTS or seen_at - suspicion.last_at > self._gap_s:
            return {}
        return {
            "leader": partition.leader or "",
            "elections": str(elections),
            **{f"report_{node}": reason for node, (_, reason) in suspicion.reports.items()},
        }

    # --- seals -------------------------------------------------------------------------------------------

    def on_seal(
        self, state: MetadataState, seal: Seal, now: float, wall_ms: int, ranks: Ranks = ALL_ALIKE
    ) -> ElectSealed | None:
        """Store how far the logs of a replica server reach in partitions that it has sealed. Return the command that
        elects a leader for those that enough replicas have sealed now; None if there are none. ``ranks`` decide
        between logs with the same last epoch and end. Partitions that are not sealed in this leader epoch are
        ignored. The caller has checked that the seal is of the sender's present incarnation."""
        sealed: list[SealedPart] = []
        for part in seal.parts:
            key = TopicPartition(part.topic_id, part.partition)
            partition = state.partition(*key)
            if partition is None or not partition.sealing or partition.leader_epoch != part.leader_epoch:
                continue
            sealing = self._sealing(key, part.leader_epoch)
            sealing.seals[seal.node] = (seal.broker_epoch, part)
            chosen = self._sealed(state, key, partition, sealing, now, ranks)
            if chosen is not None and self._begin(("seal", f"{key.topic_id}/{key.partition}", part.leader_epoch)):
                sealed.append(chosen)
        return ElectSealed(wall_ms, tuple(sealed)) if sealed else None

    def _sealing(self, key: TopicPartition, leader_epoch: int) -> _Sealing:
        """Return the stored seals of a partition in this leader epoch, made empty if there are none. Seals of another
        leader epoch are discarded."""
        sealing = self._sealings.get(key)
        if sealing is None or sealing.leader_epoch != leader_epoch:
            sealing = self._sealings[key] = _Sealing(leader_epoch)
        return sealing

    def _sealed(
        self,
        state: MetadataState,
        key: TopicPartition,
        partition: PartitionState,
        sealing: _Sealing,
        now: float,
        ranks: Ranks,
    ) -> SealedPart | None:
        """Return the election of a sealed partition: the leader, the servers whose seals were counted, and the
        evidence. Return None while no majority has sealed it, or, after a rescue, while no rule allows a choice."""
        config = state.topics[key.topic_id].config
        if is_recovering(partition, config):
            return self._recovered(state, key, partition, config, sealing, now)
        majority = len(partition.replicas) // 2 + 1
        members = [n for n in partition.isr if n not in partition.doubtful and self.sessions.is_live(state, n, now)]
        others = [n for n in members if n != sealing.avoided]
        if len(others) >= majority:
            members = others
        seals = {
            node: sealing.seals[node][1]
            for node in members
            if node in sealing.seals and state.is_incarnation(node, sealing.seals[node][0])
        }
        if len(seals) < majority:
            return None
        drains = {node: state.servers[node].draining for node in seals}

        def reach(node: NodeId) -> tuple[int, int, bool, int]:
            return seals[node].last_epoch, seals[node].end, not drains[node], -ranks.get(node, 0)

        leader = max(seals, key=reach)
        details = {f"seal_{node}": f"epoch {part.last_epoch}, end {part.end}" for node, part in seals.items()}
        details |= {f"rank_{node}": str(ranks[node]) for node in seals if node in ranks}
        evidence = {"seals": str(len(seals)), "replicas": str(len(partition.replicas)), **details}
        sealed_by = tuple(IsrMember(node, sealing.seals[node][0]) for node in seals)
        above = _above(state, partition, seals)
        return SealedPart(*key, partition.leader_epoch, leader, sealed_by, evidence, above)

    def seals(self, state: MetadataState, key: TopicPartition) -> dict[NodeId, SealPart]:
        """Return the stored seals of a sealed partition by server, as far as the server is live and still in the
        incarnation that sent the seal; an empty dict if the partition is not sealed."""
        sealing, partition = self._sealings.get(key), state.partition(*key)
        if sealing is None or partition is None or sealing.leader_epoch != partition.leader_epoch:
            return {}
        return {
            node: part
            for node, (life, part) in sealing.seals.items()
            if state.is_incarnation(node, life) and state.is_live(node)
        }

    def _recovered(
        self,
        state: MetadataState,
        key: TopicPartition,
        partition: PartitionState,
        config: TopicConfig,
        sealing: _Sealing,
        now: float,
    ) -> SealedPart | None:
        """Return the election of a partition that is sealed after a rescue, by the rules of
        ``metadata/rules/recovery.py``; None while none of them allows a choice. Once all servers have been live for a
        session timeout, no other server can have a copy."""
        seals = self.seals(state, key)
        drains = {node: state.servers[node].draining for node in seals}
        settled = now >= self._registered_at + self._session_timeout_s
        complete = settled and all(self.sessions.is_live(state, node, now) for node in state.servers)
        choice = choose(partition, config, seals, drains, complete=complete)
        if choice is None:
            return None
        lost = [node for node in partition.replicas if node not in partition.isr + partition.elr]
        sealed_by = tuple(IsrMember(node, sealing.seals[node][0]) for node in seals if node not in lost)
        details = {f"seal_{node}": f"epoch {part.last_epoch}, end {part.end}" for node, part in seals.items()}
        counts = {"seals": str(len(seals)), "replicas": str(len(partition.replicas))}
        evidence = {"rule": choice.rule, **counts, **details}
        above = _above(state, partition, seals)
        return SealedPart(*key, partition.leader_epoch, choice.leader, sealed_by, evidence, above)

    # --- in flight ---------------------------------------------------------------------------------------

    def on_applied(self, state: MetadataState, command: Command, changed: list[TopicPartition], now: float) -> None:
        """Take into account that ``command`` was applied, which made ``state`` and changed the partitions in
        ``changed``. Its decision is no longer in flight, even if it came to nothing. Reports about the changed
        partitions are forgotten, and so are seals of those that are led again. An election by reports is counted for
        damping. A server that was reported or has handed over is not to lead next what is sealed because of it."""
        self.sessions.on_applied(command, now)
        for key in changed:
            self._suspicions.pop(key, None)
            partition = state.partition(*key)
            if partition is None or not partition.sealing:
                self._sealings.pop(key, None)
        match command:
            case RegisterServer():
                self._registered_at = now
            case ReplaceLeaders():
                for part in command.parts:
                    self._in_flight.pop(("replace", f"{part.topic_id}/{part.partition}", part.epoch), None)
                for key in changed:
                    self._replaced.setdefault(key, []).append(now)
                self._avoid(state, changed, command.leader)
            case ElectSealed():
                for sealed in command.parts:
                    name = f"{sealed.topic_id}/{sealed.partition}"
                    self._in_flight.pop(("seal", name, sealed.leader_epoch), None)
            case LeaveParts():
                self._avoid(state, changed, command.node)
            case RemoveTopic():
                for known in (self._suspicions, self._sealings, self._replaced):
                    for key in [key for key in known if key.topic_id == command.topic_id]:
                        del known[key]
            case _:
                return

    def _avoid(self, state: MetadataState, changed: list[TopicPartition], node: NodeId) -> None:
        """Record that the server ``node`` is not to lead next those of the changed partitions that are sealed now,
        because it was reported or has handed them over."""
        for key in changed:
            partition = state.partition(*key)
            if partition is not None and partition.sealing:
                self._sealing(key, partition.leader_epoch).avoided = node

    def _begin(self, decision: tuple[str, str, int]) -> bool:
        """Mark a decision as in flight, and return True; return False if it is in flight already."""
        if decision in self._in_flight:
            return False
        self._in_flight[decision] = None
        return True


def _above(state: MetadataState, partition: PartitionState, seals: Mapping[NodeId, SealPart]) -> int:
    """Return the highest leader epoch in the reports, so that the next leader epoch is chosen above it. Return -1 if
    it is lower than the partition's own, and below feature level ``RECOVERY``."""
    highest = max(part.highest_epoch for part in seals.values())
    return highest if state.level >= RECOVERY and highest >= partition.leader_epoch else -1
