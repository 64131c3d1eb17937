"""Elections (Raft §5.2, §5.4.1; dissertation §3.10, §4.2.3, §9.6): pre-vote, vote, and who is too late for either.

A vote is given to whoever asks and is up to date, member or not (Raft §6: the voter may not know the newest
configuration yet); the candidate counts those that its own configuration has, each with its store. So a store that
was lost and made anew may say what it likes.

A server without any configuration gives no vote. Otherwise the controller that founds the cluster could be elected
before the others know that they are voters; and when it then ended for good, no other one could stand for election.
So each leader's majority has a configuration on its disks, and any majority that survives the leader has at least one
server that can stand, and that founds the others (``raft/bootstrap.py``)."""

from __future__ import annotations

from math import inf

from tidelog.errors import ProtocolError
from tidelog.types import NodeId
from tidelog.wire.messages import RequestVote, TimeoutNow, Vote

from tidelog_controller.raft.membership import RaftMembers


class RaftElections(RaftMembers):
    """Raft with elections: pre-vote, vote and becoming the leader."""

    _granted: dict[NodeId, str]
    _refused: dict[NodeId, bool]
    """Who has refused its vote, and whether because its store is an old copy."""

    def _become_pre_candidate(self, now: float) -> None:
        if self._granted:
            self._note_disks_needed()
        self._change_role("pre_candidate", None, now)
        self._campaign(self.term + 1, now, pre=True)

    def _become_candidate(self, now: float, *, transfer: bool = False) -> None:
        self._set_hard_state(self.term + 1, self.node_id)
        self._change_role("candidate", None, now)
        self._campaign(self.term, now, transfer=transfer)

    def _become_leader(self, now: float) -> None:
        assert self.role == "candidate" and self.voted_for == self.node_id
        self._change_role("leader", self.node_id, now)
        others = [member for member in self.members.all if member.node != self.node_id]
        self._progress = {member.node: self._new_progress(member.store, now) for member in others}
        self._reads.clear()
        self._transfer = None
        self._round = 0
        self._incoming = None
        self._heartbeat_at = now + self.settings.heartbeat_s
        self.log.append(self.term, b"")
        self._replicate_all()
        self._advance_commit()

    def _campaign(self, term: int, now: float, *, pre: bool = False, transfer: bool = False) -> None:
        self._granted, self._refused = {}, {}
        for voter in self.members.voters:
            if voter.node != self.node_id:
                last = self.log.last_index, self.log.last_term
                self._send(voter.node, RequestVote(term, *last, pre, transfer, self.store, self._acked.rows()))
        self._count_vote(self.node_id, self.store, now)

    def _note_disks_needed(self) -> None:
        """An election ended in vain: perhaps since so many stores are old copies that others are needed."""
        old = tuple(node for node, is_old in self._refused.items() if is_old)
        voters = [voter.node for voter in self.members.voters]
        silent = tuple(node for node in voters if node not in self._granted and node not in self._refused)
        in_want = bool(old) and len(voters) - len(old) - len(silent) < self.members.majority
        now = (tuple(sorted(old)), tuple(sorted(silent))) if in_want else ((), ())
        if in_want and now != (self.old_copies, self.disks_needed):
            self._say("raft_disk_needed", rolled_back=now[0], needed=now[1])
        self.old_copies, self.disks_needed = now

    def _count_vote(self, voter: NodeId, store: str, now: float) -> None:
        self._granted[voter] = store
        if not self.members.wins(self._granted):
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
        self._learn_acked(request.acked, now)
        if request.term > self.term and not request.transfer and self._hears_leader(now):
            return
        fit = self._is_fit(request)
        if request.pre:
            granted = request.term > self.term and fit
            term = request.term if granted else self.term
            self._answer_vote(sender, term, granted, pre=True)
            return
        if request.term > self.term:
            self._become_follower(request.term, None, now)
        granted = request.term == self.term and self.voted_for in (None, sender) and fit
        if granted:
            if self.voted_for != sender:
                self._set_hard_state(self.term, sender)
            self._election_at = now + self._election_timeout_s
        self._answer_vote(sender, self.term, granted, pre=False)

    def _answer_vote(self, candidate: NodeId, term: int, granted: bool, *, pre: bool) -> None:
        self._send(candidate, Vote(term, granted, pre, self.store, self.rolled_back, self._acked.rows()))

    def _is_fit(self, request: RequestVote) -> bool:
        """Whether this store may vote and knows a configuration, and the candidate's log is not behind this one, nor
        behind what the candidate's own store has acknowledged."""
        if not self.members.all:
            return False
        mine, theirs = (self.log.last_term, self.log.last_index), (request.last_term, request.last_index)
        behind = self._acked.is_behind(request.store, request.last_index, request.last_term)
        return not self.rolled_back and not behind and theirs >= mine

    def _on_vote(self, sender: NodeId, vote: Vote, now: float) -> None:
        self._learn_acked(vote.acked, now)
        if vote.pre and vote.granted:  # carries the term asked for, which nobody has yet
            if self.role == "pre_candidate" and vote.term == self.term + 1:
                self._count_vote(sender, vote.store, now)
        elif vote.term > self.term:
            self._become_follower(vote.term, None, now)
        elif vote.granted and self.role == "candidate" and vote.term == self.term:
            self._count_vote(sender, vote.store, now)
        elif not vote.granted and self.members.has_vote(sender, vote.store):
            self._refused[sender] = vote.rolled_back

    def _lose_leader(self, now: float) -> None:
        """The leader's process has most likely ended: help to depose it, and stand soon; not at once, since the
        others have noticed too. If it lives, they hear it and vote for nobody, and its next message ends this."""
        self._heard_leader_at = -inf
        self._election_at = min(self._election_at, self._soon(now))

    def _soon(self, now: float) -> float:
        """When to stand where all notice at once that nobody leads: not all at once."""
        return now + self._rng.random() * self.settings.election_timeout_min_s / 2

    def _on_timeout_now(self, sender: NodeId, message: TimeoutNow, now: float) -> None:
        if message.term == self.term and sender == self.leader_id and self.is_voter:
            self._become_candidate(now, transfer=True)
