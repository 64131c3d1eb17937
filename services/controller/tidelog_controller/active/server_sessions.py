"""Which replica servers run: each has a session, which its heartbeats keep, and which ends without them.

Sessions are volatile: only the active controller keeps them, and a new one begins with a full session for every
server. After ``session_timeout_s`` without a heartbeat the session ends and its server is fenced; sooner, after
``broken_link_grace_s``, when the link breaks over which the last heartbeat came: a process that is killed closes its
links at once, one that runs on opens another and heartbeats again.

    fenced --registers, or a heartbeat: UnfenceServer--> live --the session ends: FenceServer--> fenced

A fence or its end is in flight from its proposal until it is applied, and is not proposed again meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from tidelog.types import NodeId

from tidelog_controller.metadata.commands import Command, FenceServer, RegisterServer, UnfenceServer
from tidelog_controller.metadata.state import MetadataState

GAPS = 3
"""Number of gaps in a session timeout. A time without a report that is longer than one gap ends a series of reports,
and a time without a heartbeat that is longer than one gap is a silence."""


@dataclass(slots=True)
class _Session:
    """The session of one server: when its last heartbeat came, when the session ends (both in seconds), and the
    number of the link over which that heartbeat came (None before the first)."""

    heard_at: float
    ends_at: float
    source: int | None
    link_broken: bool = False
    back_at: float = -inf
    """When a heartbeat last came after a silence (see ``GAPS``)."""


class ServerSessions:
    """The sessions of all registered replica servers, on the active controller. In memory only, and empty on a
    controller that is not active. Times are seconds of the caller's monotonic clock."""

    def __init__(self, session_timeout_s: float, broken_link_grace_s: float) -> None:
        self._session_timeout_s = session_timeout_s
        self._broken_link_grace_s = broken_link_grace_s
        self._gap_s = session_timeout_s / GAPS
        self._sessions: dict[NodeId, _Session] = {}
        self._in_flight: dict[tuple[str, str, int], None] = {}
        self.heartbeat_at = 0.0
        """When the last heartbeat came, of any server."""

    def become_active(self, state: MetadataState, now: float) -> None:
        """Begin a full session for every registered server: none of them could send this controller a heartbeat
        before."""
        self.clear()
        self._sessions = {node: self._fresh(now) for node in state.servers}

    def clear(self) -> None:
        """Forget all sessions, and which fences are in flight, since this controller is no longer active."""
        self._sessions.clear()
        self._in_flight.clear()

    def on_heartbeat(
        self, state: MetadataState, node: NodeId, source: int, now: float, wall_ms: int
    ) -> UnfenceServer | None:
        """Renew the session of the server ``node``, whose heartbeat came over the link ``source``. If the server is
        fenced, return the command that ends the fence; None if it is not, or if that command is in flight. The caller
        has checked that the heartbeat is of the server's present incarnation."""
        self.heartbeat_at = now
        before = self._sessions[node]
        session = self._sessions[node] = self._fresh(now, source)
        session.back_at = now if now - before.heard_at > self._gap_s else before.back_at
        server = state.servers[node]
        if not server.fenced or not self._begin(("unfence", node, server.broker_epoch)):
            return None
        return UnfenceServer(wall_ms, node, server.broker_epoch)

    def on_link_closed(self, source: int, now: float) -> None:
        """Shorten the sessions of servers whose last heartbeat came over the link ``source``, which closed: they end
        after ``broken_link_grace_s`` seconds at the latest, unless another heartbeat comes before."""
        for session in self._sessions.values():
            if session.source == source:
                session.ends_at = min(session.ends_at, now + self._broken_link_grace_s)
                session.link_broken = True

    def expired(self, state: MetadataState, now: float, wall_ms: int) -> list[FenceServer]:
        """Return a command for each server whose session has ended, which fences it. The evidence in the command is
        the milliseconds of silence, and whether the link broke. Each is returned only once: the fence is in flight
        until it is applied."""
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
        """Return the time in seconds at which the next session ends; None if there is none. Servers that are fenced,
        or whose fence is in flight, do not count."""
        return min(
            (
                end
                for node, end in self._session_ends(state)
                if ("fence", node, state.servers[node].broker_epoch) not in self._in_flight
            ),
            default=None,
        )

    def is_live(self, state: MetadataState, node: NodeId, now: float) -> bool:
        """Return whether the server is not fenced and its session has not ended at ``now``."""
        return state.is_live(node) and now < self._sessions[node].ends_at

    def _session_ends(self, state: MetadataState) -> list[tuple[NodeId, float]]:
        servers = state.servers.values()
        return [(server.node, self._sessions[server.node].ends_at) for server in servers if not server.fenced]

    def _fresh(self, now: float, source: int | None = None) -> _Session:
        return _Session(now, now + self._session_timeout_s, source)

    def is_link_broken(self, node: NodeId) -> bool:
        """Return whether the link over which the server's last heartbeat came has closed."""
        return self._sessions[node].link_broken

    def back_at(self, node: NodeId) -> float:
        """Return the time in seconds at which a heartbeat of the server last came after a silence (see ``GAPS``);
        minus infinity if there was no silence."""
        return self._sessions[node].back_at

    def on_applied(self, command: Command, now: float) -> None:
        """Take an applied command into account: begin a full session for a server that registered; a fence, or the
        end of one, is no longer in flight. Other commands are ignored."""
        match command:
            case RegisterServer():
                self._sessions[command.node] = self._fresh(now)
            case FenceServer():
                self._in_flight.pop(("fence", command.node, command.broker_epoch), None)
            case UnfenceServer():
                self._in_flight.pop(("unfence", command.node, command.broker_epoch), None)
            case _:
                return

    def _begin(self, decision: tuple[str, str, int]) -> bool:
        """Mark the proposal of a fence, or of the end of one, as in flight, and return True; return False if it is in
        flight already."""
        if decision in self._in_flight:
            return False
        self._in_flight[decision] = None
        return True
