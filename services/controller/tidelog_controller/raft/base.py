"""What every part of Raft needs: the server's state, its effects in order, its roles (``raft.py`` has the theory)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from tidelog.sansio.effects import Event, Send
from tidelog.types import NodeId
from tidelog.wire.messages import Acked, Message

from tidelog_controller.raft.configuration import Configuration
from tidelog_controller.raft.log import Apply, Persist, RaftLog, Restore, Snapshot, Stored
from tidelog_controller.raft.old_copies import AckedEntries
from tidelog_controller.raft.progress import Progress
from tidelog_controller.raft.settings import RaftSettings

Role = Literal["follower", "pre_candidate", "candidate", "leader"]


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """This controller's role, term or idea of the leader is another than before. For information: it may stand
    before the ``Persist`` of the new term, except that a leader's comes behind it."""

    role: Role
    term: int
    leader_id: NodeId | None


@dataclass(frozen=True, slots=True)
class MembersChanged:
    """This configuration is in force from here on, committed or not."""

    members: Configuration


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Write down the state machine as it is now, after entry ``index``, and bring it to ``Raft.on_snapshot``."""

    index: int


@dataclass(frozen=True, slots=True)
class ReadReady:
    """ReadIndex: when read ``token`` was asked for this server led, and all that was committed then is applied
    now."""

    token: int


RaftEffect = Persist | Send | Apply | Restore | RoleChanged | MembersChanged | TakeSnapshot | ReadReady | Event


class Rng(Protocol):
    """What Raft needs of ``random.Random``."""

    def random(self) -> float:
        """A number in [0, 1)."""


class RaftBase:
    """The state of one server."""

    def __init__(self, node_id: NodeId, settings: RaftSettings, stored: Stored, rng: Rng, now: float) -> None:
        self.node_id = node_id
        self.store = stored.store
        self.settings = settings
        self.role: Role = "follower"
        self.term = stored.term
        self.voted_for = stored.voted_for
        self.leader_id: NodeId | None = None
        self.log = RaftLog(stored.entries, stored.base)
        self.snapshot = stored.snapshot
        self.commit_index = stored.snapshot.index if stored.snapshot is not None else 0
        assert self.log.last_term <= self.term, "the stored log is ahead of the stored term"
        assert self.log.base.index <= self.commit_index <= self.log.last_index, "no snapshot stands for what is gone"
        self.rolled_back = stored.rolled_back
        """This store is an old copy that is not refilled yet (``old_copies.py``)."""
        self._rng = rng
        self._refill_id = self._draw_refill_id() if self.rolled_back else 0
        self._acked = AckedEntries()
        self.old_copies: tuple[NodeId, ...] = ()
        """Voters that said in the last election, which was in vain, that their stores are old copies."""
        self.disks_needed: tuple[NodeId, ...] = ()
        """Voters that did not answer then, and without which nobody can be elected."""
        self._progress: dict[NodeId, Progress] = {}
        self._heard_leader_at = now
        self._election_timeout_s = self._draw_timeout()
        alone = self.is_voter and self.members.majority == 1
        self._election_at = now if alone else now + self._election_timeout_s
        self._heartbeat_at = now
        self._round = 0
        self._hard_state_dirty = False
        self._unsaved_snapshot: Snapshot | None = None
        self._asked_snapshot = self.commit_index
        self._bytes_since_snapshot = 0
        self._announced = RoleChanged("follower", self.term, None)
        self._announced_members = self.members
        self._effects: list[RaftEffect] = []

    @property
    def members(self) -> Configuration:
        """The configuration in force."""
        return self.log.members

    @property
    def is_voter(self) -> bool:
        """Whether this server, with this store, may stand and counts."""
        return self.members.has_vote(self.node_id, self.store) and not self.rolled_back

    # --- roles -------------------------------------------------------------------------------------------

    def _become_follower(self, term: int, leader_id: NodeId | None, now: float) -> None:
        assert term >= self.term, (term, self.term)
        if term > self.term:
            self._set_hard_state(term, None)
        self._progress.clear()
        self._change_role("follower", leader_id, now)

    def _follow(self, leader: NodeId, term: int, now: float) -> None:
        """A message of the leader of this or a later term has come. It gets the vote of that term where nobody has
        it: a majority has voted for it, and a store that has forgotten that it did must not vote for another one."""
        if term > self.term or self.role != "follower" or self.leader_id is None:
            self._become_follower(term, leader, now)
        if self.voted_for is None:
            self._set_hard_state(term, leader)
        self._heard_leader_at = now
        self._election_at = now + self._election_timeout_s

    def _change_role(self, role: Role, leader_id: NodeId | None, now: float) -> None:
        self.role = role
        self.leader_id = leader_id
        if leader_id is not None:
            self.old_copies = self.disks_needed = ()
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

    # --- old copies: ``old_copies.py`` ---------------------------------------------------------------------

    def _learn_acked(self, rows: tuple[Acked, ...], now: float) -> None:
        """Another controller says what stores have acknowledged; perhaps this one is told that it is an old copy."""
        self._acked.learn(row for row in rows if row.store != self.store)
        self._acked.keep_only(member.store for member in self.members.all)
        if self.rolled_back or not self.store:
            return
        for row in rows:
            if row.store == self.store and not self.log.has(row.index, row.term):
                self.rolled_back, self._refill_id = True, self._draw_refill_id()
                self._hard_state_dirty = True
                if self.role != "follower":
                    self._become_follower(self.term, None, now)
                self._say("raft_store_rolled_back", index=self.log.last_index, acknowledged=row.index)
                return

    def _acked_for(self, progress: Progress) -> tuple[Acked, ...]:
        """What a heartbeat tells a follower. Its own store may have acknowledged more to this leader than is
        committed, and does not lose that in this term either."""
        rows, term = self._acked.rows(), self.log.term_at(progress.acked)
        if not progress.store or not term:
            return rows
        return (*rows, Acked(progress.store, progress.acked, term))

    def _become_sound(self) -> None:
        """The leader has refilled this store."""
        self.rolled_back, self._refill_id = False, 0
        self._hard_state_dirty = True
        self._say("raft_store_refilled", index=self.log.last_index)

    def _draw_refill_id(self) -> int:
        return 1 + int(self._rng.random() * (1 << 52))

    # --- what is committed ---------------------------------------------------------------------------------

    def _commit(self, index: int) -> None:
        if index <= self.commit_index:
            return
        self._flush()
        entries = self.log.slice(self.commit_index + 1, index)
        self._effects.append(Apply(entries))
        self.commit_index = index
        self._bytes_since_snapshot += sum(len(entry.data) for entry in entries)
        self._ask_for_snapshot()

    def _ask_for_snapshot(self) -> None:
        """Ask the state machine for a snapshot if it is worth while. A snapshot names the configuration, so a server
        that is not founded yet has none."""
        settings, index = self.settings, self.commit_index
        many = index - self._asked_snapshot >= settings.snapshot_threshold
        large = self._bytes_since_snapshot >= settings.snapshot_threshold_bytes
        if (many or large) and self.log.members_at(index).all:
            self._asked_snapshot, self._bytes_since_snapshot = index, 0
            self._effects.append(TakeSnapshot(index))

    # --- effects: persist, then tell ----------------------------------------------------------------------

    def _set_hard_state(self, term: int, voted_for: NodeId | None) -> None:
        self.term = term
        self.voted_for = voted_for
        self._hard_state_dirty = True

    def _flush(self) -> None:
        """What was changed so far becomes durable before the next effect."""
        if self._hard_state_dirty or self._unsaved_snapshot is not None or self.log.has_unsaved():
            truncate_from, entries, base = self.log.take_unsaved()
            persist = Persist(
                *(self.term, self.voted_for, truncate_from, entries, base, self._unsaved_snapshot, self.rolled_back)
            )
            self._effects.append(persist)
            self._hard_state_dirty = False
            self._unsaved_snapshot = None
        if self.members is not self._announced_members:
            self._announced_members = self.members
            self._effects.append(MembersChanged(self.members))

    def _send(self, to: NodeId, message: Message) -> None:
        self._flush()
        self._effects.append(Send(to, message))

    def _say(self, name: str, **fields: object) -> None:
        self._effects.append(Event(name, fields))

    def _take_effects(self) -> list[RaftEffect]:
        self._flush()
        effects, self._effects = self._effects, []
        return effects
