"""Raft without I/O: messages and ticks in, effects out.

Theory. "Raft" is Ongaro & Ousterhout, "In Search of an Understandable Consensus Algorithm (Extended Version)";
"dissertation" is Ongaro, "Consensus: Bridging Theory and Practice"; etcd-io/raft is the model for the rest.

    follower --election timeout--> pre_candidate --majority would vote--> candidate --majority voted--> leader
        ^------- a leader of this term, any message of a later term, or (leader) no majority heard -------'

- Safety (Raft figure 3): at most one leader per term; a leader never changes its own entries; one (index, term)
  names one prefix; a leader has every committed entry; no two servers apply different entries at an index.
- ``term``, ``voted_for`` and the log are durable before any message that depends on them: the ``Persist`` stands
  before the ``Send`` in the list of effects. So a server never votes twice in a term, not even after a crash
  between any two effects, and an ``ok`` is never taken back. The leader counts itself only behind its ``Persist``.
- Only entries of the leader's own term are committed by counting (Raft §5.4.2, figure 8); earlier ones with them.
  A no-op at the begin of each term commits them without waiting for a command (§8).
- Pre-vote (dissertation §9.6): before a server raises its term it asks whether it could win. Check-quorum (§6.2): a
  leader that has not heard from a majority within the minimum election timeout steps down. Stickiness (§4.2.3): who
  heard from a leader within that time ignores (pre-)votes of later terms. Together: a server that was cut off
  cannot depose a leader that works, and a leader that does not work goes by itself. Only a broken link to the leader
  makes a server forget that it has heard from it, and stand soon: a killed process is replaced at once.
- A candidate that raised its term in vain would refuse the leader's older term for ever; its refusal carries its
  term, which ends that leadership, and the next election unites them (etcd does the same).

The parts, each on top of the one before: ``raft/base.py`` state and effects, ``raft/snapshot_transfer.py``
compaction, ``raft/replication.py`` entries, ``raft/read_index.py`` ReadIndex, ``raft/membership.py`` configurations
and transfer, ``raft/elections.py`` votes; here the inputs.

Messages may be lost, doubled, reordered and delayed without bound; ``progress.py`` says how the leader copes. A
server without a configuration, or that is no voter of its own, stands for nothing: it takes what a leader sends. A
message that no correct server sends raises ProtocolError and changes nothing; an answer of a stranger is ignored."""

from __future__ import annotations

from tidelog.errors import ProtocolError
from tidelog.types import NodeId
from tidelog.wire.messages import (
    AppendEntries,
    AppendResult,
    InstallSnapshot,
    Message,
    RequestVote,
    SnapshotResult,
    TimeoutNow,
    Vote,
)

from tidelog_controller.raft.base import (
    MembersChanged,
    RaftEffect,
    ReadReady,
    Rng,
    Role,
    RoleChanged,
    TakeSnapshot,
)
from tidelog_controller.raft.configuration import Configuration
from tidelog_controller.raft.elections import RaftElections
from tidelog_controller.raft.log import Apply, Entry, Persist, Restore, Snapshot, Stored
from tidelog_controller.raft.settings import RaftSettings

__all__ = [
    "Apply",
    "Entry",
    "MembersChanged",
    "Persist",
    "Raft",
    "RaftEffect",
    "RaftSettings",
    "ReadReady",
    "Restore",
    "Role",
    "RoleChanged",
    "Snapshot",
    "Stored",
    "TakeSnapshot",
]


class Raft(RaftElections):
    """One server. The effects of a call must all be performed before those of a later call."""

    def __init__(self, node_id: NodeId, settings: RaftSettings, stored: Stored, rng: Rng, now: float) -> None:
        """``stored`` is what was last made durable. A new server has no configuration: ``found`` gives it one, or a
        leader does."""
        super().__init__(node_id, settings, stored, rng, now)
        self._granted, self._refused = {}, {}
        self._reads = []

    def _become_follower(self, term: int, leader_id: NodeId | None, now: float) -> None:
        super()._become_follower(term, leader_id, now)
        if leader_id is not None:
            self._granted, self._refused = {}, {}
        self._reads.clear()
        self._transfer = None

    # --- inputs ------------------------------------------------------------------------------------------

    def found(self, members: Configuration, now: float) -> list[RaftEffect]:
        """Begin a new cluster with these voters. Every one of them must be told exactly the same. They stand soon:
        there is no leader yet that a longer wait would spare."""
        self.log.found(members)
        self._election_at = now if members.majority == 1 else self._soon(now)
        self._ask_for_snapshot()
        return self._take_effects()

    def propose(self, data: bytes, now: float) -> tuple[int | None, list[RaftEffect]]:
        """Append a command. The index at which it will be applied if this term lasts, or None when this server
        does not lead, or is handing over. Committed is only what an ``Apply`` brings, with the term that stood here
        now."""
        if self.role != "leader" or self._transfer is not None:
            return None, []
        entry = self.log.append(self.term, data)
        self._replicate_all()
        self._advance_commit()
        return entry.index, self._take_effects()

    def on_message(self, sender: NodeId, message: Message, now: float) -> list[RaftEffect]:
        """A message of another controller. ProtocolError, with nothing changed, if no correct one sends it."""
        if sender == self.node_id:
            return []
        match message:
            case RequestVote():
                self._on_request_vote(sender, message, now)
            case AppendEntries():
                self._on_append_entries(sender, message, now)
            case InstallSnapshot():
                self._on_install_snapshot(sender, message, now)
            case TimeoutNow():
                self._on_timeout_now(sender, message, now)
            case Vote() | AppendResult() | SnapshotResult():
                if self.members.find(sender) is not None or sender in self._progress:
                    self._on_answer(sender, message, now)
            case _:
                raise ProtocolError(f"{message.OP or type(message).__name__} is no message of Raft")
        return self._take_effects()

    def _on_answer(self, sender: NodeId, message: Vote | AppendResult | SnapshotResult, now: float) -> None:
        match message:
            case Vote():
                self._on_vote(sender, message, now)
            case AppendResult():
                self._on_append_result(sender, message, now)
            case SnapshotResult():
                self._on_snapshot_result(sender, message, now)
                self._after_progress(now)

    def on_peer_lost(self, peer: NodeId, now: float) -> list[RaftEffect]:
        """The link to a peer broke: its process may have ended."""
        if self.role == "follower" and peer == self.leader_id:
            self._lose_leader(now)
        return self._take_effects()

    def on_tick(self, now: float) -> list[RaftEffect]:
        """Time has passed. Afterwards ``deadline()`` is None or later than ``now``."""
        if self.role == "leader":
            self._tick_leader(now)
        elif now >= self._election_at:
            if self.is_voter:
                self._become_pre_candidate(now)
            elif self.leader_id is not None:
                self._become_follower(self.term, None, now)
        deadline = self.deadline()
        assert deadline is None or deadline > now, (deadline, now)
        return self._take_effects()

    def _tick_leader(self, now: float) -> None:
        if self._transfer is not None and now >= self._transfer.ends_at:
            self._say("transfer_failed", target=self._transfer.target)
            self._transfer = None
        quorum_ends_at = self._quorum_ends_at()
        if quorum_ends_at is not None and now >= quorum_ends_at:
            self._become_follower(self.term, None, now)
        elif self._progress and now >= self._heartbeat_at:
            self._heartbeat_at = now + self.settings.heartbeat_s
            self._beat()

    def deadline(self) -> float | None:
        """When ``on_tick`` has something to do; None: never without another input."""
        if self.role != "leader":
            return self._election_at if self.is_voter or self.leader_id is not None else None
        times = [self._quorum_ends_at(), self._heartbeat_at if self._progress else None]
        times.append(self._transfer.ends_at if self._transfer is not None else None)
        return min((time for time in times if time is not None), default=None)
