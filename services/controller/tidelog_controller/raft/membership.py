"""Changes of the configuration and transfer of leadership (dissertation §3.10, §4).

One change at a time: a new configuration is appended only when the last one is committed, and when an entry of the
leader's own term is (without that, two leaders could each change another majority's half: Ongaro on raft-dev, 2015).
A controller that is added is a learner, without a vote, and becomes a voter by itself when it keeps up (§4.2.1). A
change is refused when of the voters after it fewer than a majority have been heard lately. A leader that is taken out
leads until the change is committed without counting itself, then hands over and follows (§4.2.2). Who is taken out is
told, as long as the change is not committed, and afterwards asks nobody for votes, since it is no voter of its own
configuration.

*Transfer*: the leader takes no more commands, brings the best follower up to date and tells it to stand at once
(``TimeoutNow``); voters do not mind that they have just heard from the leader. It gives up after an election timeout.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidelog.errors import TidelogError, refuse
from tidelog.types import NodeId
from tidelog.wire.messages import AppendResult, TimeoutNow

from tidelog_controller.raft.base import RaftEffect
from tidelog_controller.raft.configuration import Configuration, encode_members
from tidelog_controller.raft.read_index import RaftReads


@dataclass(frozen=True, slots=True)
class Standing:
    """How a controller stands in the group, as ``ControllerInfo`` has it."""

    match: int = -1
    lost: bool = False
    rolled_back: bool = False
    refill_to: int = 0


@dataclass(slots=True)
class _Transfer:
    target: NodeId
    ends_at: float
    told: bool = False


class RaftMembers(RaftReads):
    """Raft with changes of its configuration and transfer of leadership."""

    _transfer: _Transfer | None = None
    _leaving = False

    # --- changes -----------------------------------------------------------------------------------------

    def add_member(self, node: NodeId, url: str, now: float) -> tuple[int | TidelogError, list[RaftEffect]]:
        """Take a controller in, as a learner; one whose store was lost begins again. The index of the configuration
        that says so, or the refusal."""
        member = self.members.find(node)
        if member is None or (not member.voter and member.url != url):
            return self._change(self.members.with_learner(node, url), now)
        if member.voter and node in self._progress and self._answering(node) is None:
            return self._change(self.members.with_learner(node, url), now)
        moved = tuple(replace(m, url=url) if m.node == node else m for m in self.members.all)
        return (self.log.members_index, []) if member.url == url else self._change(Configuration(moved), now)

    def remove_member(self, node: NodeId, now: float) -> tuple[int | TidelogError, list[RaftEffect]]:
        """Take a controller out. As ``add_member``."""
        if self.members.find(node) is None:
            return refuse("UNKNOWN_CONTROLLER", f"no controller {node} is in the group"), []
        return self._change(self.members.without(node), now)

    def _change(self, members: Configuration, now: float) -> tuple[int | TidelogError, list[RaftEffect]]:
        assert self.role == "leader"
        if self.log.members_index > self.commit_index or self.log.term_at(self.commit_index) != self.term:
            return refuse("CHANGE_IN_PROGRESS", "the last change of the controllers is not committed yet"), []
        if members.voters != self.members.voters and not members.keeps_quorum(lambda node: self.is_live(node, now)):
            live = [voter.node for voter in members.voters if self.is_live(voter.node, now)]
            text = f"of {len(members.voters)} voters {', '.join(live) or 'nobody'} would be live, no majority"
            return refuse("QUORUM_AT_RISK", text), []
        entry = self.log.append(self.term, encode_members(members), is_members=True)
        for member in members.all:
            if member.node != self.node_id and member.node not in self._progress:
                self._progress[member.node] = self._new_progress(member.store, now)
        self._replicate_all()
        self._advance_commit()
        return entry.index, self._take_effects()

    def standings(self) -> dict[NodeId, Standing]:
        """What is known here of the controllers: of all of them only at the leader."""
        if self.role != "leader":
            return {node: Standing(rolled_back=True) for node in self.old_copies} | {
                self.node_id: Standing(rolled_back=self.rolled_back)
            }
        found = {self.node_id: Standing(self.log.last_index)}
        for node, progress in self._progress.items():
            member, refill = self.members.find(node), progress.refill
            lost = member is not None and member.voter and progress.store != member.store
            found[node] = Standing(progress.match, lost, refill is not None, refill.to if refill is not None else 0)
        return found

    def is_live(self, node: NodeId, now: float) -> bool:
        """Leader: whether that voter was heard lately, with the store that has the vote."""
        if node == self.node_id:
            return self.is_voter
        progress = self._follower_of(node)
        return progress is not None and now < progress.heard_at + self.settings.election_timeout_min_s

    def _advance_commit(self) -> None:
        super()._advance_commit()
        if self.role != "leader" or self.log.members_index > self.commit_index:
            return
        for node in [node for node in self._progress if self.members.find(node) is None]:
            del self._progress[node]  # it was told with the others just now

    def _on_append_result(self, sender: NodeId, result: AppendResult, now: float) -> None:
        super()._on_append_result(sender, result, now)
        self._after_progress(now)

    def _after_progress(self, now: float) -> None:
        """The leader knows more of its followers: what waited for that."""
        if self.role != "leader":
            return
        self._confirm_reads()
        self._promote_one(now)
        if self.log.members_index <= self.commit_index and self.members.find(self.node_id) is None:
            self._leave(now)
        elif self._transfer is not None:
            self._tell_target()
        elif self._leaving and (target := self._best_follower(now)) is not None:
            self._begin_transfer(target, now)

    def _promote_one(self, now: float) -> None:
        """A learner that keeps up becomes a voter."""
        for member in self.members.all:
            progress = self._progress.get(member.node)
            if member.voter or progress is None or not progress.store or progress.match == 0 or progress.refill:
                continue
            if progress.has_caught_up(self.log.last_index, now, self.settings.election_timeout_min_s):
                members = self.members.with_voter(member.node, progress.store)
                lively = members.keeps_quorum(lambda node, who=member.node: node == who or self.is_live(node, now))  # type: ignore[misc]
                committed = self.log.members_index <= self.commit_index
                if lively and committed and self.log.term_at(self.commit_index) == self.term:
                    self._say("controller_promoted", controller=member.node, store=progress.store)
                    self.log.append(self.term, encode_members(members), is_members=True)
                    self._replicate_all()
                    self._advance_commit()
                    return

    def _leave(self, now: float) -> None:
        """The configuration without this leader is committed."""
        target = self._best_follower(now)
        if target is not None:
            self._send(target, TimeoutNow(self.term))
        self._say("controller_left", term=self.term)
        self._become_follower(self.term, None, now)

    # --- transfer ----------------------------------------------------------------------------------------

    def transfer(self, now: float, target: NodeId | None = None) -> tuple[bool, list[RaftEffect]]:
        """Hand leadership to ``target``, or to whoever is best. Whether it began: not without another live voter."""
        target = target or self._best_follower(now)
        if self.role != "leader" or target is None or target == self.node_id or not self.is_live(target, now):
            return False, []
        self._begin_transfer(target, now)
        return True, self._take_effects()

    def leave(self, now: float) -> list[RaftEffect]:
        """Hand leadership over, and as long as this goes on whenever it falls to this one: at once, or as soon as a
        live voter is known, which a leader of a moment ago does not yet."""
        self._leaving = True
        return self.transfer(now)[1]

    def _begin_transfer(self, target: NodeId, now: float) -> None:
        self._transfer = _Transfer(target, now + self.settings.election_timeout_min_s)
        self._tell_target()

    def _tell_target(self) -> None:
        transfer = self._transfer
        assert transfer is not None
        progress = self._follower_of(transfer.target)
        if progress is not None and progress.match == self.log.last_index and not transfer.told:
            transfer.told = True
            self._send(transfer.target, TimeoutNow(self.term))

    def _best_follower(self, now: float) -> NodeId | None:
        """The live voter whose log reaches furthest; the first among equals."""
        live = [v.node for v in self.members.voters if v.node != self.node_id and self.is_live(v.node, now)]
        return max(live, key=lambda node: self._progress[node].match, default=None)
