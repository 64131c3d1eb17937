"""Raft for a fixed set of voters, without I/O: messages and ticks in, effects out.

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
  cannot depose a leader that works, and a leader that does not work goes by itself.
- A candidate that raised its term in vain would refuse the leader's older term for ever; its refusal carries its
  term, which ends that leadership, and the next election unites them (etcd does the same).

Messages may be lost, doubled, reordered and delayed without bound; ``progress.py`` says how the leader copes.
A message that no correct voter sends raises ProtocolError and changes nothing; one of a stranger is ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from tidelog.effects import Send
from tidelog.errors import ConfigError, ProtocolError
from tidelog.types import NodeId
from tidelog.wire.messages import AppendEntries, AppendResult, Message, RequestVote, Vote

from tidelog_controller.core.progress import Progress
from tidelog_controller.core.raft_log import (
    Apply,
    Entry,
    Persist,
    RaftLog,
    Stored,
    decode_entries,
    encode_entries,
)
from tidelog_controller.core.raft_settings import RaftSettings

__all__ = ["Apply", "Entry", "Persist", "Raft", "RaftEffect", "RaftSettings", "Role", "RoleChanged", "Stored"]

Role = Literal["follower", "pre_candidate", "candidate", "leader"]


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """This controller's role, term or idea of the leader is another than before. For information: it may stand
    before the ``Persist`` of the new term, except that a leader's comes behind it."""

    role: Role
    term: int
    leader_id: NodeId | None


RaftEffect = Persist | Send | Apply | RoleChanged


class Rng(Protocol):
    """What Raft needs of ``random.Random``."""

    def random(self) -> float:
        """A number in [0, 1)."""


class Raft:
    """One voter. The effects of a call must all be performed before those of a later call."""

    def __init__(
        self, node_id: NodeId, voters: Sequence[NodeId], settings: RaftSettings, stored: Stored, rng: Rng, now: float
    ) -> None:
        """``voters`` are all of them, ``node_id`` too (ConfigError otherwise), in any order; ``stored`` is what
        was last made durable, or ``Stored()`` on the very first start."""
        if node_id not in voters or len(set(voters)) != len(voters):
            raise ConfigError(f"{node_id} must be exactly one of the voters {', '.join(voters)}")
        self.node_id = node_id
        self.peers = tuple(voter for voter in voters if voter != node_id)
        self.majority = len(voters) // 2 + 1
        self.role: Role = "follower"
        self.term = stored.term
        self.voted_for = stored.voted_for
        self.leader_id: NodeId | None = None
        self.log = RaftLog(stored.entries)
        assert self.log.last_term <= self.term, "the stored log is ahead of the stored term"
        self.commit_index = 0
        self.settings = settings
        self._rng = rng
        self._progress: dict[NodeId, Progress] = {}
        self._granted: set[NodeId] = set()
        self._heard_leader_at = now
        self._election_timeout_s = self._draw_timeout()
        self._election_at = now + self._election_timeout_s if self.peers else now
        self._heartbeat_at = now
        self._hard_state_dirty = False
        self._announced = RoleChanged("follower", self.term, None)
        self._effects: list[RaftEffect] = []

    # --- inputs ------------------------------------------------------------------------------------------

    def propose(self, data: bytes, now: float) -> tuple[int | None, list[RaftEffect]]:
        """Append a command. The index at which it will be applied if this term lasts, or None when this server
        does not lead. Committed is only what an ``Apply`` brings, with the term that stood here now."""
        if self.role != "leader":
            return None, []
        entry = self.log.append(self.term, data)
        self._replicate_all()
        self._advance_commit()
        return entry.index, self._take_effects()

    def on_message(self, sender: NodeId, message: Message, now: float) -> list[RaftEffect]:
        """A message of another voter. ProtocolError, with nothing changed, if no correct voter sends it."""
        if sender not in self.peers:
            return []
        match message:
            case RequestVote():
                self._on_request_vote(sender, message, now)
            case Vote():
                self._on_vote(sender, message, now)
            case AppendEntries():
                self._on_append_entries(sender, message, now)
            case AppendResult():
                self._on_append_result(sender, message, now)
            case _:
                raise ProtocolError(f"{message.OP or type(message).__name__} is no message of Raft")
        return self._take_effects()

    def on_tick(self, now: float) -> list[RaftEffect]:
        """Time has passed. Afterwards ``deadline()`` is None or later than ``now``."""
        if self.role == "leader":
            quorum_ends_at = self._quorum_ends_at()
            if quorum_ends_at is not None and now >= quorum_ends_at:
                self._become_follower(self.term, None, now)
            elif now >= self._heartbeat_at:
                self._heartbeat_at = now + self.settings.heartbeat_s
                for peer in self.peers:
                    self._send_append(peer, ())
        elif now >= self._election_at:
            self._become_pre_candidate(now)
        deadline = self.deadline()
        assert deadline is None or deadline > now, (deadline, now)
        return self._take_effects()

    def deadline(self) -> float | None:
        """When ``on_tick`` has something to do; None: never without another input."""
        if self.role != "leader":
            return self._election_at
        quorum_ends_at = self._quorum_ends_at()
        return None if quorum_ends_at is None else min(self._heartbeat_at, quorum_ends_at)

    # --- roles -------------------------------------------------------------------------------------------

    def _become_follower(self, term: int, leader_id: NodeId | None, now: float) -> None:
        assert term >= self.term, (term, self.term)
        if term > self.term:
            self._set_hard_state(term, None)
        self._progress.clear()
        self._change_role("follower", leader_id, now)

    def _become_pre_candidate(self, now: float) -> None:
        self._change_role("pre_candidate", None, now)
        self._campaign(self.term + 1, pre=True, now=now)

    def _become_candidate(self, now: float) -> None:
        self._set_hard_state(self.term + 1, self.node_id)
        self._change_role("candidate", None, now)
        self._campaign(self.term, pre=False, now=now)

    def _become_leader(self, now: float) -> None:
        assert self.role == "candidate" and self.voted_for == self.node_id
        self._change_role("leader", self.node_id, now)
        next_index = self.log.last_index + 1
        self._progress = {peer: Progress(next_index, self.settings.append_window, now) for peer in self.peers}
        self._heartbeat_at = now + self.settings.heartbeat_s
        self.log.append(self.term, b"")
        self._replicate_all()
        self._advance_commit()

    def _change_role(self, role: Role, leader_id: NodeId | None, now: float) -> None:
        self.role = role
        self.leader_id = leader_id
        self._election_timeout_s = self._draw_timeout()
        self._election_at = now + self._election_timeout_s
        change = RoleChanged(role, self.term, leader_id)
        if role == "leader":
            self._flush()
        if change != self._announced:
            self._announced = change
            self._effects.append(change)

    def _draw_timeout(self) -> float:
        low, high = self.settings.election_timeout_min_s, self.settings.election_timeout_max_s
        return low + (high - low) * self._rng.random()

    # --- elections: Raft §5.2, §5.4.1 ---------------------------------------------------------------------

    def _campaign(self, term: int, *, pre: bool, now: float) -> None:
        self._granted.clear()
        for peer in self.peers:
            self._send(peer, RequestVote(term, self.log.last_index, self.log.last_term, pre))
        self._count_vote(self.node_id, now)

    def _count_vote(self, voter: NodeId, now: float) -> None:
        self._granted.add(voter)
        if len(self._granted) < self.majority:
            return
        if self.role == "pre_candidate":
            self._become_candidate(now)
        else:
            self._become_leader(now)

    def _hears_leader(self, now: float) -> bool:
        """There is a leader that this server must not help to depose."""
        recently = now < self._heard_leader_at + self.settings.election_timeout_min_s
        return self.role == "leader" or (self.leader_id is not None and recently)

    def _on_request_vote(self, sender: NodeId, request: RequestVote, now: float) -> None:
        if request.term <= request.last_term or (request.last_index == 0) != (request.last_term == 0):
            raise ProtocolError(f"request_vote of {sender}: impossible terms {request}")
        if request.term > self.term and self._hears_leader(now):
            return
        mine, theirs = (self.log.last_term, self.log.last_index), (request.last_term, request.last_index)
        if request.pre:
            granted = request.term > self.term and theirs >= mine
            self._send(sender, Vote(request.term if granted else self.term, granted, pre=True))
            return
        if request.term > self.term:
            self._become_follower(request.term, None, now)
        free = self.voted_for == sender or (self.voted_for is None and self.leader_id is None)
        granted = request.term == self.term and free and theirs >= mine
        if granted:
            if self.voted_for != sender:
                self._set_hard_state(self.term, sender)
            self._election_at = now + self._election_timeout_s
        self._send(sender, Vote(self.term, granted))

    def _on_vote(self, sender: NodeId, vote: Vote, now: float) -> None:
        if vote.pre and vote.granted:  # carries the term asked for, which nobody has yet
            if self.role == "pre_candidate" and vote.term == self.term + 1:
                self._count_vote(sender, now)
        elif vote.term > self.term:
            self._become_follower(vote.term, None, now)
        elif vote.granted and self.role == "candidate" and vote.term == self.term:
            self._count_vote(sender, now)

    # --- replication: Raft §5.3, §5.4.2 -------------------------------------------------------------------

    def _on_append_entries(self, leader: NodeId, append: AppendEntries, now: float) -> None:
        if append.term < self.term:
            self._send(leader, AppendResult(self.term, ok=False, match=0))
            return
        entries = self._check_append_entries(leader, append)
        if append.term > self.term or self.role != "follower" or self.leader_id is None:
            self._become_follower(append.term, leader, now)
        self._heard_leader_at = now
        self._election_at = now + self._election_timeout_s
        if self.log.term_at(append.prev_index) != append.prev_term:
            hint = self.log.last_at_or_below(append.prev_index, append.prev_term)
            self._send(leader, AppendResult(self.term, False, hint, self.log.term_at(hint) or 0))
            return
        first_new = self.log.first_conflict(entries)
        if first_new is not None:
            self.log.merge(entries, first_new)
        match = append.prev_index + len(entries)
        self._send(leader, AppendResult(self.term, True, match))
        self._commit(min(append.commit, match))

    def _check_append_entries(self, leader: NodeId, append: AppendEntries) -> tuple[Entry, ...]:
        """The entries of a message of this or a later term, if a correct leader can have sent it."""
        if append.term < max(append.prev_term, 1) or (append.prev_index == 0) != (append.prev_term == 0):
            raise ProtocolError(f"append_entries of {leader}: impossible terms {append}")
        if append.term == self.term and self.leader_id not in (None, leader):
            raise ProtocolError(f"append_entries of {leader}: {self.leader_id} leads term {self.term}")
        entries = decode_entries(append.payload, append.prev_index, append.prev_term, append.term)
        if self.log.term_at(append.prev_index) == append.prev_term:
            first_new = self.log.first_conflict(entries)
            if first_new is not None and first_new <= self.commit_index:
                raise ProtocolError(f"append_entries of {leader}: would replace committed entry {first_new}")
        return entries

    def _on_append_result(self, sender: NodeId, result: AppendResult, now: float) -> None:
        if result.term > self.term:
            self._become_follower(result.term, None, now)
            return
        if result.term < self.term or self.role != "leader":
            return
        if result.ok and result.match > self.log.last_index:
            raise ProtocolError(f"append_result of {sender}: acknowledges {result.match}, which was never sent")
        progress = self._progress[sender]
        progress.heard_at = now
        if not result.ok:
            progress.on_rejected(self.log.last_at_or_below(result.match, result.hint_term))
        elif progress.on_ok(result.match):
            self._advance_commit()
        self._replicate(sender)

    def _replicate_all(self) -> None:
        for peer in self.peers:
            self._replicate(peer)

    def _replicate(self, peer: NodeId) -> bool:
        """Send what the follower lacks, as far as the window allows. True if that was anything."""
        progress = self._progress[peer]
        sent = False
        while progress.can_send and progress.next <= self.log.last_index:
            entries = self.log.take_batch(progress.next, self.settings.append_max_bytes)
            self._send_append(peer, entries)
            progress.on_sent(entries[-1].index)
            sent = True
        return sent

    def _send_append(self, peer: NodeId, entries: tuple[Entry, ...]) -> None:
        prev_index = self._progress[peer].next - 1
        prev_term = self.log.term_at(prev_index)
        assert prev_term is not None, prev_index
        payload = encode_entries(entries)
        self._send(peer, AppendEntries(self.term, prev_index, prev_term, self.commit_index, payload))

    def _advance_commit(self) -> None:
        """Leader: commit what a majority holds, if it is of this term, and tell the followers at once."""
        matches = sorted([self.log.last_index, *(p.match for p in self._progress.values())], reverse=True)
        index = matches[self.majority - 1]
        if index <= self.commit_index or self.log.term_at(index) != self.term:
            return
        self._commit(index)
        for peer in self.peers:
            if not self._replicate(peer) and not self._progress[peer].probing:
                self._send_append(peer, ())

    def _commit(self, index: int) -> None:
        if index > self.commit_index:
            self._flush()
            self._effects.append(Apply(self.log.slice(self.commit_index + 1, index)))
            self.commit_index = index

    def _quorum_ends_at(self) -> float | None:
        """Leader: when it must step down unless it hears from more followers; None if it alone is a majority."""
        if self.majority == 1:
            return None
        heard = sorted((progress.heard_at for progress in self._progress.values()), reverse=True)
        return heard[self.majority - 2] + self.settings.election_timeout_min_s

    # --- effects: persist, then tell ----------------------------------------------------------------------

    def _set_hard_state(self, term: int, voted_for: NodeId | None) -> None:
        self.term = term
        self.voted_for = voted_for
        self._hard_state_dirty = True

    def _flush(self) -> None:
        """What was changed so far becomes durable before the next effect."""
        if self._hard_state_dirty or self.log.has_unsaved():
            truncate_from, entries = self.log.take_unsaved()
            self._effects.append(Persist(self.term, self.voted_for, truncate_from, entries))
            self._hard_state_dirty = False

    def _send(self, to: NodeId, message: Message) -> None:
        self._flush()
        self._effects.append(Send(to, message))

    def _take_effects(self) -> list[RaftEffect]:
        self._flush()
        effects, self._effects = self._effects, []
        return effects
