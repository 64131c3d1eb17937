"""When to fence a server and when to replace a leader: what the active controller alone knows, and not for long.

Sessions and leader reports are volatile: only the active controller keeps them, and a new one begins with none
but a full session for everybody. What is decided from them goes through the Raft log as a command
(``commands.py``) and has no effect before it is applied (``metadata.py``).

    session   heartbeats keep it; after ``session_timeout_s`` without one its server is fenced; sooner, after
              ``broken_link_grace_s``, when the link breaks over which the last one came: a process that is killed
              closes its links at once, one that lives opens another and heartbeats again
    suspicion reports about one partition's leader in one epoch; forgotten when the partition changes

A leader is replaced when a majority of the *live* ISR members other than the leader report it within
``leader_report_window_s``. Reports make failover fast; sessions make it live: with reports alone, a leader and one
follower of three that die together would leave one reporter of two for ever. Reports by servers that are not in
the ISR, or of another epoch, do not count.

A decision is in flight from its proposal until it is applied, and is not made again meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog.types import NodeId, PartitionState, TopicPartition
from tidelog.wire.messages import ReportLeader, SuspectPart

from tidelog_controller.core.commands import (
    Command,
    FenceServer,
    LostLeader,
    RegisterServer,
    RemoveTopic,
    ReplaceLeaders,
    UnfenceServer,
)
from tidelog_controller.core.metadata import MetadataState


@dataclass(slots=True)
class _Suspicion:
    """Reports about a partition at one epoch: by whom, when, and why."""

    epoch: int
    reports: dict[NodeId, tuple[float, str]] = field(default_factory=dict)


@dataclass(slots=True)
class _Session:
    """A server's session: when it was last heard, when the session ends, and over which link it heartbeats."""

    heard_at: float
    ends_at: float
    source: int | None
    link_broken: bool = False


class Elections:
    """The volatile part of an active controller. Times are seconds of the caller's monotonic clock."""

    def __init__(self, session_timeout_s: float, broken_link_grace_s: float, leader_report_window_s: float) -> None:
        self._session_timeout_s = session_timeout_s
        self._broken_link_grace_s = broken_link_grace_s
        self._window_s = leader_report_window_s
        self._sessions: dict[NodeId, _Session] = {}
        self._suspicions: dict[TopicPartition, _Suspicion] = {}
        self._in_flight: dict[tuple[str, str, int], None] = {}

    def become_active(self, state: MetadataState, now: float) -> None:
        """Begin with nothing but a full session for every server: nobody has had a chance to heartbeat here."""
        self.clear()
        self._sessions = {node: self._fresh(now) for node in state.servers}

    def clear(self) -> None:
        """Forget everything: no longer active."""
        self._sessions.clear()
        self._suspicions.clear()
        self._in_flight.clear()

    # --- sessions ----------------------------------------------------------------------------------------

    def on_heartbeat(
        self, state: MetadataState, node: NodeId, source: int, now: float, wall_ms: int
    ) -> UnfenceServer | None:
        """A heartbeat of the server's present life (the caller checked) over link ``source``; ends its fence, if
        there is one."""
        self._sessions[node] = self._fresh(now, source)
        server = state.servers[node]
        if not server.fenced or not self._begin(("unfence", node, server.broker_epoch)):
            return None
        return UnfenceServer(wall_ms, node, server.broker_epoch)

    def on_link_closed(self, source: int, now: float) -> None:
        """Whose last heartbeat came over that link has little time to send another."""
        for session in self._sessions.values():
            if session.source == source:
                session.ends_at = min(session.ends_at, now + self._broken_link_grace_s)
                session.link_broken = True

    def expired(self, state: MetadataState, now: float, wall_ms: int) -> list[FenceServer]:
        """The sessions that have ended, each once."""
        fences = []
        for node, end in self._session_ends(state):
            if now >= end and self._begin(("fence", node, state.servers[node].broker_epoch)):
                session = self._sessions[node]
                evidence = {"silent_ms": str(round((now - session.heard_at) * 1000))}
                if session.link_broken:
                    evidence["link"] = "broken"
                fences.append(FenceServer(wall_ms, node, state.servers[node].broker_epoch, evidence))
        return fences

    def deadline(self, state: MetadataState) -> float | None:
        """When the next session ends, of those that are not being fenced already."""
        return min(
            (
                end
                for node, end in self._session_ends(state)
                if ("fence", node, state.servers[node].broker_epoch) not in self._in_flight
            ),
            default=None,
        )

    def is_live(self, state: MetadataState, node: NodeId, now: float) -> bool:
        """Unfenced, and its session has not ended."""
        return state.is_live(node) and now < self._sessions[node].ends_at

    def _session_ends(self, state: MetadataState) -> list[tuple[NodeId, float]]:
        servers = state.servers.values()
        return [(server.node, self._sessions[server.node].ends_at) for server in servers if not server.fenced]

    def _fresh(self, now: float, source: int | None = None) -> _Session:
        return _Session(now, now + self._session_timeout_s, source)

    # --- reports -----------------------------------------------------------------------------------------

    def on_report(
        self, state: MetadataState, report: ReportLeader, now: float, wall_ms: int
    ) -> ReplaceLeaders | None:
        """Count a report by a server in its present life (the caller checked); perhaps it is the last one needed.
        Parts that are out of date, or not the reporter's to judge, are passed over."""
        lost: list[LostLeader] = []
        for part in report.parts:
            key = TopicPartition(part.topic_id, part.partition)
            partition = state.partition(*key)
            if partition is None or not self._counts(state, partition, report, part, now):
                continue
            suspicion = self._suspicions.get(key)
            if suspicion is None or suspicion.epoch != part.epoch:
                suspicion = self._suspicions[key] = _Suspicion(part.epoch)
            suspicion.reports[report.node] = (now, report.reason)
            evidence = self._majority(state, partition, suspicion, now)
            if evidence is not None and self._begin(("replace", f"{key.topic_id}/{key.partition}", part.epoch)):
                lost.append(LostLeader(*key, part.leader_epoch, part.epoch, evidence))
        return ReplaceLeaders(wall_ms, report.leader, tuple(lost)) if lost else None

    def _counts(
        self, state: MetadataState, partition: PartitionState, report: ReportLeader, part: SuspectPart, now: float
    ) -> bool:
        return (
            (partition.leader, partition.leader_epoch, partition.epoch)
            == (report.leader, part.leader_epoch, part.epoch)
            and report.node != report.leader
            and report.node in partition.isr
            and self.is_live(state, report.node, now)
        )

    def _majority(
        self, state: MetadataState, partition: PartitionState, suspicion: _Suspicion, now: float
    ) -> dict[str, str] | None:
        """The evidence that a majority of the live ISR members other than the leader agree; None if not."""
        judges = [n for n in partition.isr if n != partition.leader and self.is_live(state, n, now)]
        fresh = [
            node
            for node in judges
            if node in suspicion.reports and now - suspicion.reports[node][0] <= self._window_s
        ]
        if 2 * len(fresh) <= len(judges):
            return None
        told = {f"report_{node}": suspicion.reports[node][1] for node in fresh}
        return {"leader": partition.leader or "", "reports": str(len(fresh)), "live": str(len(judges)), **told}

    # --- in flight ---------------------------------------------------------------------------------------

    def on_applied(self, command: Command, changed: list[TopicPartition], now: float) -> None:
        """``command`` is in the metadata, whatever it came to: its decision is no longer in flight. ``changed``:
        the partitions that it changed."""
        for key in changed:
            self._suspicions.pop(key, None)
        match command:
            case RegisterServer():
                self._sessions[command.node] = self._fresh(now)
            case FenceServer():
                self._in_flight.pop(("fence", command.node, command.broker_epoch), None)
            case UnfenceServer():
                self._in_flight.pop(("unfence", command.node, command.broker_epoch), None)
            case ReplaceLeaders():
                for part in command.parts:
                    self._in_flight.pop(("replace", f"{part.topic_id}/{part.partition}", part.epoch), None)
            case RemoveTopic():
                for key in [key for key in self._suspicions if key.topic_id == command.topic_id]:
                    del self._suspicions[key]
            case _:
                return

    def _begin(self, decision: tuple[str, str, int]) -> bool:
        """Whether this decision is new; it is in flight now."""
        if decision in self._in_flight:
            return False
        self._in_flight[decision] = None
        return True
