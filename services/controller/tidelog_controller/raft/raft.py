"""Raft without I/O: messages and ticks in, effects out.

Theory. "Raft" is Ongaro & Ousterhout, "In Search of an Understandable Consensus Algorithm (Extended Version)";
"dissertation" is Ongaro, "Consensus: Bridging Theory and Practice"; etcd-io/raft is the model for the rest.

    follower --election timeout--> pre_candidate --majority would vote--> candidate --majority voted--> leader
        ^------- a leader of this term, any message of a later term, or (leader) no majority heard -------'

Safety (Raft figure 3): at most one leader per term; a leader never changes its own entries; one (index, term) names
one prefix; a leader has every committed entry; no two servers apply different entries at an index.

Durability. ``term``, ``voted_for`` and the log are durable before any message that depends on them: the ``Persist``
stands before the ``Send`` in the list of effects. So a server never votes twice in a term, not even after a crash
between any two effects, and an ``ok`` is never taken back. The leader counts itself only behind its ``Persist``.

Elections (Raft §5.2, §5.4.1):

- Pre-vote (dissertation §9.6): before a server raises its term it asks whether it could win. Check-quorum (§6.2): a
  leader that has not heard from a majority within the minimum election timeout steps down. Stickiness (§4.2.3): a
  server that heard from a leader within that time ignores (pre-)votes of later terms. Together: a server that was
  cut off cannot depose a leader that works, and a leader that does not work steps down by itself. Only a broken link
  to the leader makes a server forget that it has heard from it, and stand soon: a killed process is replaced at once.
- A candidate that raised its term in vain would refuse the leader's older term for ever; its refusal carries its
  term, which ends that leadership, and the next election unites them (etcd does the same).
- A vote is given to any candidate that is up to date, member or not (Raft §6: the voter may not know the newest
  configuration yet). The candidate counts the voters of its own configuration, each with its store. So the vote of a
  store that was made anew in place of a lost one does no harm.
- A server without any configuration gives no vote. Otherwise the controller that founds the cluster could be elected
  before the others know that they are voters; and if it then ended for good, no other one could stand for election.
  So each leader's majority has a configuration on its disks, and any majority that survives the leader has at least
  one server that can stand, and that founds the others (``raft/bootstrap.py``).

Replication (Raft §5.3, §5.4.2):

- Only entries of the leader's own term are committed by counting (figure 8); earlier ones with them. A no-op at the
  beginning of each term commits them without waiting for a command (§8).
- A follower answers for its store. The leader counts an answer only for the store that the configuration names
  (``raft/membership.py``); a follower that answers from another one gets the log all the same, from the start.
- Messages may be lost, doubled, reordered and delayed without bound; ``progress.py`` says how the leader copes.

A server without a configuration, or that is no voter of its own, does not stand: it takes what a leader sends. A
message that no correct server sends raises ProtocolError and changes nothing; an answer of a stranger is ignored.

``Raft`` owns what has a state of its own: ``RaftLog``, ``OwnSnapshots``, a ``ReplicationProgress`` for each follower,
``ReadIndex``, ``LeadershipTransfer``, ``SnapshotReceiver``, ``AckedEntries``. Each has its theory in its module, as
have the changes of the group in ``membership.py``."""

from __future__ import annotations

from math import inf
from typing import Protocol

from tidelog.errors import ProtocolError, TidelogError
from tidelog.sansio.effects import Event, Send
from tidelog.types import NodeId
from tidelog.wire.messages import (
    Acked,
    AppendEntries,
    AppendResult,
    InstallSnapshot,
    Message,
    RequestVote,
    SnapshotResult,
    TimeoutNow,
    Vote,
)

from tidelog_controller.raft.effects import (
    Apply,
    MembersChanged,
    Persist,
    RaftEffect,
    ReadReady,
    Restore,
    Role,
    RoleChanged,
)
from tidelog_controller.raft.leadership_transfer import LeadershipTransfer
from tidelog_controller.raft.log import Entry, PersistentState, RaftLog, Snapshot, decode_entries, encode_entries
from tidelog_controller.raft.membership import (
    Configuration,
    Standing,
    encode_members,
    refuse_change,
    refuse_removal,
    with_controller,
)
from tidelog_controller.raft.old_copies import AckedEntries, find_disks_needed
from tidelog_controller.raft.progress import Refill, ReplicationProgress
from tidelog_controller.raft.read_index import ReadIndex
from tidelog_controller.raft.settings import RaftSettings
from tidelog_controller.raft.snapshot_transfer import SnapshotReceiver, check_install_snapshot
from tidelog_controller.raft.snapshots import OwnSnapshots

SILENT_TIMEOUTS = 4
"""A leader shows a follower as silent that has not answered for so many times ``election_timeout_max_s``. Elections
and changes of the group do not use this."""


class Rng(Protocol):
    """The source of random numbers for election times and refill ids: ``random.Random``, or one with a seed in
    tests."""

    def random(self) -> float:
        """Return a random number from 0 up to, but not including, 1."""


class Raft:
    """One server of the Raft group as a state machine: a method for each input, which returns the effects that the
    caller must perform in order, before those of a later input. It lives as long as the process and does no I/O."""

    def __init__(
        self, node_id: NodeId, settings: RaftSettings, stored: PersistentState, rng: Rng, now: float
    ) -> None:
        """Restore the server as a follower from ``stored``, the content of its disk. A new server has no
        configuration until ``found`` gives it one or a leader sends one. The only voter of a group stands at the
        first tick."""
        self.node_id = node_id
        self.store = stored.store
        self.settings = settings
        self._rng = rng
        # On the disk
        self.term = stored.term
        self.voted_for = stored.voted_for
        self.log = RaftLog(stored.entries, stored.base)
        self.snapshots = OwnSnapshots(stored.snapshot, settings)
        self.rolled_back = stored.rolled_back
        """Whether this store is an old copy of a disk that the leader has not refilled yet (``old_copies.py``). Such
        a store has no vote."""
        self._hard_state_dirty = False
        # In memory
        self.role: Role = "follower"
        self.leader_id: NodeId | None = None
        self.commit_index = self.snapshots.index
        assert self.log.last_term <= self.term, "the stored log is ahead of the stored term"
        assert self.log.base.index <= self.commit_index <= self.log.last_index, "no snapshot stands for what is gone"
        self._refill_id = self._draw_refill_id() if self.rolled_back else 0
        self._acked = AckedEntries()
        self._receiver = SnapshotReceiver()
        # Elections
        self.old_copies: tuple[NodeId, ...] = ()
        """Voters that refused their vote in the last failed election because their stores are old copies."""
        self.disks_needed: tuple[NodeId, ...] = ()
        """Voters that did not answer in the last failed election, and without which no election can succeed."""
        self._granted: dict[NodeId, str] = {}
        """The servers that granted a vote in this election, with the store of each."""
        self._refused: dict[NodeId, bool] = {}
        """The voters that refused a vote in this election, and whether because their store is an old copy."""
        self._heard_leader_at = now
        self._election_timeout_s = self._draw_timeout()
        alone = self.is_voter and self.members.majority == 1
        self._election_at = now if alone else now + self._election_timeout_s
        # On a leader
        self._progress: dict[NodeId, ReplicationProgress] = {}
        self._round = 0
        """The number of the latest heartbeat of this term."""
        self._heartbeat_at = now
        self._reads = ReadIndex()
        self._transfer = LeadershipTransfer()
        # Effects
        self._announced = RoleChanged("follower", self.term, None)
        self._announced_members = self.members
        self._effects: list[RaftEffect] = []

    @property
    def members(self) -> Configuration:
        """Return the configuration in force: the newest in the log, committed or not."""
        return self.log.members

    @property
    def is_voter(self) -> bool:
        """Return whether this server, with this store, has a vote, so that it may stand for election and counts for
        majorities. The store of a server that is rolled back has none."""
        return self.members.has_vote(self.node_id, self.store) and not self.rolled_back

    @property
    def reads_waiting(self) -> int:
        """Return the number of reads that wait for a proof that this server leads."""
        return self._reads.waiting

    # --- inputs: messages and time -----------------------------------------------------------------------

    def on_message(self, sender: NodeId, message: Message, now: float) -> list[RaftEffect]:
        """Handle a message of the controller ``sender`` and return the effects. Votes and results of strangers are
        ignored. Raises ``ProtocolError``, with nothing changed, for a message that no correct controller sends."""
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

    def _on_answer(self, sender: NodeId, answer: Vote | AppendResult | SnapshotResult, now: float) -> None:
        """Handle a vote or a follower's result: follow a later term; as its leader use the result and go on."""
        if isinstance(answer, Vote):
            self._on_vote(sender, answer, now)
            return
        if answer.term > self.term:
            self._become_follower(answer.term, None, now)
        elif answer.term == self.term and self.role == "leader" and sender in self._progress:
            self._on_result(sender, answer, now)
        if self.role == "leader":
            self._after_progress(now)

    def on_peer_lost(self, peer: NodeId, now: float) -> list[RaftEffect]:
        """Handle a broken link to the controller ``peer`` and return the effects. If ``peer`` is the leader, this
        follower forgets having heard from it and stands for election soon. Otherwise nothing changes."""
        if self.role == "follower" and peer == self.leader_id:
            self._lose_leader(now)
        return self._take_effects()

    def on_tick(self, now: float) -> list[RaftEffect]:
        """Do what is due at ``now`` and return the effects. A voter that hears no leader stands for election; a
        server without a vote forgets a silent leader. A leader sends heartbeats, gives up a transfer, or steps down
        if it has heard no majority. Afterwards ``deadline()`` is None or later than ``now``."""
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
        """Give up a transfer whose time is up. Step down without a majority, otherwise send due heartbeats."""
        if self._transfer.ends_at is not None and now >= self._transfer.ends_at:
            self._event("transfer_failed", target=self._transfer.target)
            self._transfer.clear()
        quorum_ends_at = self._quorum_ends_at()
        if quorum_ends_at is not None and now >= quorum_ends_at:
            self._become_follower(self.term, None, now)
        elif self._progress and now >= self._heartbeat_at:
            self._heartbeat_at = now + self.settings.heartbeat_s
            self._send_heartbeats()

    def deadline(self) -> float | None:
        """Return the time in seconds at which ``on_tick`` has something to do; None if nothing is planned."""
        if self.role != "leader":
            return self._election_at if self.is_voter or self.leader_id is not None else None
        heartbeat_at = self._heartbeat_at if self._progress else None
        times = (self._quorum_ends_at(), heartbeat_at, self._transfer.ends_at)
        return min((time for time in times if time is not None), default=None)

    # --- inputs: requests --------------------------------------------------------------------------------

    def found(self, members: Configuration, now: float) -> list[RaftEffect]:
        """Begin the log of a new cluster with the configuration ``members``, and return the effects. This server
        stands for election soon. Every server of the cluster must be given exactly the same configuration. Fails an
        assertion if the log has begun already."""
        self.log.found(members)
        self._election_at = now if members.majority == 1 else self._draw_early_election(now)
        self._effects += self.snapshots.ask_if_due(self.commit_index, self.log)
        return self._take_effects()

    def propose(self, data: bytes, now: float) -> tuple[int | None, list[RaftEffect]]:
        """Append the command ``data`` and send it to the followers. Return its index and the effects; None and no
        effects if this server does not lead or is handing leadership over. The command is committed only when an
        ``Apply`` effect brings an entry of that index and the present term."""
        if self.role != "leader" or self._transfer.target is not None:
            return None, []
        entry = self._append(data)
        return entry.index, self._take_effects()

    def read(self, now: float) -> tuple[int | None, list[RaftEffect]]:
        """Begin a linearizable read. Return its token and the effects: a ``ReadReady`` with the token follows when
        the state may be read, or a ``RoleChanged`` that ends the read. Return None and no effects if this server does
        not lead, or has committed no entry of its term yet."""
        if self.role != "leader" or not self._has_committed_in_term:
            return None, []
        token = self._reads.new_token()
        if self._others_needed() == 0:
            return token, [ReadReady(token)]
        is_idle = self._confirmed_round() >= self._round
        self._reads.wait_for(self._round + 1, token)
        if is_idle:
            self._send_heartbeats()
        return token, self._take_effects()

    def add_member(self, node: NodeId, url: str, now: float) -> tuple[int | TidelogError, list[RaftEffect]]:
        """Append a configuration with the controller ``node`` at ``url`` as a learner; a voter whose store was lost
        becomes a learner again. Return the index of the entry that holds this configuration, an earlier entry if
        nothing changes, and the effects. Return an error in place of the index if the last change is not committed
        yet or if the change would risk the majority."""
        member = self.members.find(node)
        is_voter = member is not None and member.voter
        store_lost = is_voter and node in self._progress and self._answering(node) is None
        wanted = with_controller(self.members, node, url, store_lost=store_lost)
        return self._change(wanted, now) if wanted != self.members else (self.log.members_index, [])

    def remove_member(self, node: NodeId, now: float) -> tuple[int | TidelogError, list[RaftEffect]]:
        """Append a configuration without the controller ``node``. Return its index, or an error if the controller is
        unknown, the last change is not committed yet, or the majority would be at risk; and the effects."""
        refusal = refuse_removal(self.members, node)
        return (refusal, []) if refusal is not None else self._change(self.members.without(node), now)

    def transfer(self, now: float, target: NodeId | None = None) -> tuple[bool, list[RaftEffect]]:
        """Begin to hand leadership to ``target``, or with None to the live voter whose log reaches furthest. Return
        whether the transfer began, and the effects. It does not begin if this server does not lead or no such other
        voter is live. Commands are refused until the transfer ends or its time is up."""
        target = target or self._best_follower(now)
        if self.role != "leader" or target is None or target == self.node_id or not self.is_live(target, now):
            return False, []
        self._begin_transfer(target, now)
        return True, self._take_effects()

    def leave(self, now: float) -> list[RaftEffect]:
        """Hand leadership over because the process is about to end, and return the effects. It happens now if this
        server leads and another voter is live, otherwise as soon as this is the case."""
        self._transfer.leaving = True
        return self.transfer(now)[1]

    def on_snapshot(self, index: int, data: bytes, now: float) -> list[RaftEffect]:
        """Store ``data``, the encoded state machine after entry ``index`` for which a ``TakeSnapshot`` effect asked,
        as the newest snapshot, and compact the log behind it. Return the effects; none, with nothing changed, if the
        newest snapshot is as recent already."""
        assert index <= self.commit_index, index
        if self.snapshots.accept(index, data, self.log):
            self.log.compact(self.snapshots.last_to_compact(self.log))
        return self._take_effects()

    # --- roles -------------------------------------------------------------------------------------------

    def _become_follower(self, term: int, leader_id: NodeId | None, now: float) -> None:
        """Become a follower in ``term``, the present or a later one, of ``leader_id`` (None: no leader is known).
        Drops reads, a transfer and the progress of all followers. In a later term this server has not voted yet."""
        assert term >= self.term, (term, self.term)
        if term > self.term:
            self._set_hard_state(term, None)
        self._progress.clear()
        self._change_role("follower", leader_id, now)
        if leader_id is not None:
            self._granted, self._refused = {}, {}
        self._reads.clear()
        self._transfer.clear()

    def _become_pre_candidate(self, now: float) -> None:
        if self._granted:
            self._find_disks_needed()
        self._change_role("pre_candidate", None, now)
        self._campaign(self.term + 1, now, pre=True)

    def _become_candidate(self, now: float, *, transfer: bool = False) -> None:
        self._set_hard_state(self.term + 1, self.node_id)
        self._change_role("candidate", None, now)
        self._campaign(self.term, now, transfer=transfer)

    def _become_leader(self, now: float) -> None:
        """Become the leader of the present term, with new progress for each follower, and append the no-op."""
        assert self.role == "candidate" and self.voted_for == self.node_id
        self._change_role("leader", self.node_id, now)
        self._add_progress(now)
        self._reads.clear()
        self._transfer.clear()
        self._round = 0
        self._receiver.clear()
        self._heartbeat_at = now + self.settings.heartbeat_s
        self._append(b"")

    def _change_role(self, role: Role, leader_id: NodeId | None, now: float) -> None:
        """Set role and leader, draw a new election time, and append a ``RoleChanged`` effect if there is a change."""
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

    # --- elections ---------------------------------------------------------------------------------------

    def _campaign(self, term: int, now: float, *, pre: bool = False, transfer: bool = False) -> None:
        """Ask all other voters for a vote in ``term``, or with ``pre`` for a pre-vote, and count the own vote."""
        self._granted, self._refused = {}, {}
        for voter in self.members.voters:
            if voter.node != self.node_id:
                last = self.log.last_index, self.log.last_term
                self._send(voter.node, RequestVote(term, *last, pre, transfer, self.store, self._acked.rows()))
        self._count_vote(self.node_id, self.store, now)

    def _count_vote(self, voter: NodeId, store: str, now: float) -> None:
        """Count a granted vote, and become a candidate after a won pre-vote, or leader after a won election."""
        self._granted[voter] = store
        if not self.members.wins(self._granted):
            return
        if self.role == "pre_candidate":
            self._become_candidate(now)
        else:
            self._become_leader(now)

    def _on_request_vote(self, sender: NodeId, request: RequestVote, now: float) -> None:
        """Answer a request for a vote or pre-vote. The request is ignored if this server hears a leader, unless that
        leader asked for the election (``transfer``). A granted vote is durable before the answer, and puts off the
        election of this server. Raises ``ProtocolError`` for impossible terms."""
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

    def _hears_leader(self, now: float) -> bool:
        """Return whether this server leads, or has heard from its leader within the minimum election timeout. It then
        ignores requests for votes of later terms."""
        recently = now < self._heard_leader_at + self.settings.election_timeout_min_s
        return self.role == "leader" or (self.leader_id is not None and recently)

    def _is_fit(self, request: RequestVote) -> bool:
        """Return whether this server may vote for the candidate if its vote is free: its own store is no old copy and
        knows a configuration, and the candidate's log is behind neither this log nor what its store has
        acknowledged."""
        if not self.members.all:
            return False
        mine, theirs = (self.log.last_term, self.log.last_index), (request.last_term, request.last_index)
        behind = self._acked.is_behind(request.store, request.last_index, request.last_term)
        return not self.rolled_back and not behind and theirs >= mine

    def _on_vote(self, sender: NodeId, vote: Vote, now: float) -> None:
        """Count a vote for the present election; otherwise follow its later term, or record the refusal."""
        self._learn_acked(vote.acked, now)
        if vote.pre and vote.granted:  # its term is that of the request, which no server has yet
            if self.role == "pre_candidate" and vote.term == self.term + 1:
                self._count_vote(sender, vote.store, now)
        elif vote.term > self.term:
            self._become_follower(vote.term, None, now)
        elif vote.granted and self.role == "candidate" and vote.term == self.term:
            self._count_vote(sender, vote.store, now)
        elif not vote.granted and self.members.has_vote(sender, vote.store):
            self._refused[sender] = vote.rolled_back

    def _on_timeout_now(self, sender: NodeId, message: TimeoutNow, now: float) -> None:
        if message.term == self.term and sender == self.leader_id and self.is_voter:
            self._become_candidate(now, transfer=True)

    def _lose_leader(self, now: float) -> None:
        """Forget having heard from the leader, and stand for election after a short random time, since the leader's
        process has most likely ended. The time is random because the other servers notice it, too. If the leader
        still runs, the others refuse their votes, and its next message ends the attempt."""
        self._heard_leader_at = -inf
        self._election_at = min(self._election_at, self._draw_early_election(now))

    def _draw_early_election(self, now: float) -> float:
        """Return a random time within half the minimum election timeout from ``now``. It spreads the elections of
        servers that notice at the same time that there is no leader."""
        return now + self._rng.random() * self.settings.election_timeout_min_s / 2

    def _find_disks_needed(self) -> None:
        """Set ``old_copies`` and ``disks_needed`` after a failed election. Logs the event ``raft_disk_needed`` when
        nobody can be elected without the disks of silent servers, once for the same servers."""
        old, needed = find_disks_needed(self.members, self._granted, self._refused)
        if old and (old, needed) != (self.old_copies, self.disks_needed):
            self._event("raft_disk_needed", rolled_back=old, needed=needed)
        self.old_copies, self.disks_needed = old, needed

    # --- replication: the leader -------------------------------------------------------------------------

    def _append(self, data: bytes) -> Entry:
        """Append an entry of this term and send it to the followers. Commits it if this server is a majority."""
        entry = self.log.append(self.term, data)
        self._replicate_all()
        self._advance_commit()
        return entry

    def _add_progress(self, now: float) -> None:
        for member in self.members.all:
            if member.node != self.node_id and member.node not in self._progress:
                self._progress[member.node] = self._new_progress(member.store, now)

    def _new_progress(self, store: str, now: float) -> ReplicationProgress:
        return ReplicationProgress(self.log.last_index + 1, self.settings.append_window, now, store)

    def _replicate_all(self) -> None:
        for peer in list(self._progress):
            self._replicate(peer)

    def _replicate(self, peer: NodeId) -> bool:
        """Send the follower ``peer`` the entries that it lacks, as far as its window allows, or the next piece of a
        snapshot if those entries are compacted away. Return whether entries were sent or a snapshot is on its way."""
        progress = self._progress[peer]
        if progress.sending is None and progress.next <= self.log.base.index:
            newest = self.snapshots.newest
            assert newest is not None and newest.index >= self.log.base.index
            progress.send_snapshot(newest)
        if progress.sending is not None:
            piece = progress.sending.next_piece(self.term, self._round, self.settings.snapshot_chunk_bytes)
            if piece is not None:
                self._send(peer, piece)
            return True
        sent = False
        while progress.can_send and progress.next <= self.log.last_index:
            entries = self.log.take_batch(progress.next, self.settings.append_max_bytes)
            self._send_append(peer, entries)
            progress.on_sent(entries[-1].index)
            sent = True
        return sent

    def _send_append(self, peer: NodeId, entries: tuple[Entry, ...], *, heartbeat: bool = False) -> None:
        """Send a follower these entries, which may be none, behind entry ``next - 1`` of its progress, with the
        commit index. A heartbeat also lists what stores have acknowledged."""
        progress = self._progress[peer]
        prev_index = progress.next - 1
        prev_term = self.log.term_at(prev_index)
        assert prev_term is not None, prev_index
        payload = encode_entries(entries)
        acked = self._acked_for(progress) if heartbeat else ()
        refill = (progress.refill.id, progress.refill.to) if progress.refill and self._may_refill(progress) else ()
        append = AppendEntries(
            *(self.term, prev_index, prev_term, self.commit_index, payload, self._round, acked, *refill)
        )
        self._send(peer, append)

    def _send_heartbeats(self) -> None:
        """Begin a new round: send each follower a heartbeat with the entries that stores have acknowledged."""
        self._round += 1
        self._record_acked()
        for peer, progress in self._progress.items():
            if progress.sending is None and progress.next <= self.log.base.index:
                self._replicate(peer)
            if progress.sending is None:
                self._send_append(peer, (), heartbeat=True)
            else:
                self._send(peer, progress.sending.heartbeat(self.term, self._round, self._acked_for(progress)))

    def _on_result(self, sender: NodeId, result: AppendResult | SnapshotResult, now: float) -> None:
        """Handle the answer of a follower to entries, a heartbeat or a piece of a snapshot: advance or step back its
        progress, commit, end its refill, and send what it lacks. Answers of an earlier incarnation of its store only
        prove that it is live. Raises ``ProtocolError`` if it acknowledges entries that were never sent."""
        if isinstance(result, AppendResult) and result.ok and result.match > self.log.last_index:
            raise ProtocolError(f"append_result of {sender}: acknowledges {result.match}, which was never sent")
        progress = self._on_heard(sender, result, now)
        if result.round < progress.first_round:
            return
        if isinstance(result, SnapshotResult):
            if progress.sending is not None and progress.sending.snapshot.index == result.index:
                progress.sending.on_result(result.offset)
        elif not result.ok:
            progress.on_rejected(self.log.last_at_or_below(result.match, result.hint_term))
        else:
            advanced = progress.on_ok(result.match)
            if self._ends_refill(sender, progress, result) or advanced:
                self._advance_commit()
        self._replicate(sender)

    def _on_heard(self, sender: NodeId, result: AppendResult | SnapshotResult, now: float) -> ReplicationProgress:
        """Record when and from which store a follower has answered, and return its progress. The progress begins anew
        if the answer comes from another store; if that is not the store with the vote, ``controller_store_lost`` is
        logged. A new refill id in the answer begins the refill of an old copy."""
        progress = self._progress[sender]
        if result.store != progress.store:
            member = self.members.find(sender)
            if member is not None and member.voter and result.store != member.store:
                self._event("controller_store_lost", controller=sender, store=result.store, voted_with=member.store)
            progress = self._progress[sender] = self._new_progress(result.store, now)
        progress.heard_at = now
        progress.heard_round = max(progress.heard_round, result.round)
        is_known = progress.refill is not None and progress.refill.id == result.refill_id
        if result.refill_id and not is_known and result.round >= progress.first_round:
            self._begin_refill(sender, progress, result.refill_id)
        return progress

    def _after_progress(self, now: float) -> None:
        """Continue, after the answer of a follower, what waits for such answers: confirm reads, promote a learner,
        step down if this leader's removal is committed, or else go on with a transfer of leadership."""
        confirmed = self._confirmed_round()
        self._effects += self._reads.confirm(confirmed)
        if self._reads.waiting and confirmed >= self._round:
            self._send_heartbeats()
        self._promote_one(now)
        if self.log.members_index <= self.commit_index and self.members.find(self.node_id) is None:
            self._step_down_removed(now)
        elif self._transfer.target is not None:
            self._notify_target(self._transfer.target)
        elif self._transfer.leaving and (target := self._best_follower(now)) is not None:
            self._begin_transfer(target, now)

    # --- replication: a follower -------------------------------------------------------------------------

    def _follow(self, leader: NodeId, term: int, now: float) -> None:
        """Follow ``leader``, which has sent a message of ``term`` (this or a later term), and put off the next
        election. If this server has not voted in the term, its vote goes to the leader: a majority has voted for the
        leader, and a store that has forgotten its own vote must not vote for another server."""
        if term > self.term or self.role != "follower" or self.leader_id is None:
            self._become_follower(term, leader, now)
        if self.voted_for is None:
            self._set_hard_state(term, leader)
        self._heard_leader_at = now
        self._election_at = now + self._election_timeout_s

    def _on_append_entries(self, leader: NodeId, append: AppendEntries, now: float) -> None:
        """Follow the sender. If the logs agree before its entries, take them, commit what it has committed, and
        answer how far the logs agree. Otherwise refuse, with a hint where they may agree. Refuse an older term."""
        if append.term < self.term:
            self._answer_append(leader, False, 0, append.round)
            return
        entries = self._check_append_entries(leader, append)
        self._follow(leader, append.term, now)
        self._learn_acked(append.acked, now)
        if not self._agrees_at(append.prev_index, append.prev_term):
            hint = self.log.last_at_or_below(append.prev_index, append.prev_term)
            self._answer_append(leader, False, hint, append.round, self.log.term_at(hint) or 0)
            return
        first_new = self.log.first_conflict(entries)
        if first_new is not None:
            self.log.merge(entries, first_new)
        match = append.prev_index + len(entries)
        if self.rolled_back and append.refill_id == self._refill_id and match >= append.refill_to:
            self._on_refilled()
        self._answer_append(leader, True, match, append.round)
        self._commit(min(append.commit, match))

    def _answer_append(self, leader: NodeId, ok: bool, match: int, round: int, hint_term: int = 0) -> None:
        self._send(leader, AppendResult(self.term, ok, match, hint_term, round, self.store, self._refill_id))

    def _agrees_at(self, index: int, term: int) -> bool:
        """Return whether this log agrees with a log of a leader that has the entry (``index``, ``term``). It does if
        the entry is compacted away here: it is committed then, so every leader has it."""
        return index < self.log.base.index or self.log.term_at(index) == term

    def _check_append_entries(self, leader: NodeId, append: AppendEntries) -> tuple[Entry, ...]:
        """Return the entries in an ``AppendEntries`` message of this or a later term. Raises ``ProtocolError`` if no
        correct leader can have sent it: its terms are impossible, another server leads its term, its entries are
        malformed, or it replaces committed entries."""
        if append.term < max(append.prev_term, 1) or (append.prev_index == 0) != (append.prev_term == 0):
            raise ProtocolError(f"append_entries of {leader}: impossible terms {append}")
        self._check_leader(leader, append)
        entries = decode_entries(append.payload, append.prev_index, append.prev_term, append.term)
        if self._agrees_at(append.prev_index, append.prev_term):
            first_new = self.log.first_conflict(entries)
            if first_new is not None and first_new <= self.commit_index:
                raise ProtocolError(f"append_entries of {leader}: would replace committed entry {first_new}")
        return entries

    def _check_leader(self, leader: NodeId, message: AppendEntries | InstallSnapshot) -> None:
        """Raise ``ProtocolError`` if another server than the sender leads the term of the message."""
        if message.term == self.term and self.leader_id not in (None, leader):
            raise ProtocolError(f"{message.OP} of {leader}: {self.leader_id} leads term {self.term}")

    def _on_install_snapshot(self, leader: NodeId, message: InstallSnapshot, now: float) -> None:
        """Follow the sender, add its piece to the incoming snapshot, and answer how far it is. A complete snapshot is
        installed if it is ahead of the commit index; a damaged one is logged and begins again."""
        if message.term < self.term:
            self._answer_piece(leader, message, 0)
            return
        check_install_snapshot(leader, message)
        self._check_leader(leader, message)
        self._follow(leader, message.term, now)
        self._learn_acked(message.acked, now)
        if message.index <= self.commit_index:
            self._receiver.clear()
            self._answer_append(leader, True, self.commit_index, message.round)
            return
        held = self._receiver.add(message)
        if held < message.size:
            self._answer_piece(leader, message, held)
            return
        snapshot = self._receiver.finish(message)
        if snapshot is None:
            self._event("snapshot_damaged", index=message.index, leader=leader)
            self._answer_piece(leader, message, 0)
            return
        self._install(snapshot)
        self._answer_append(leader, True, message.index, message.round)

    def _answer_piece(self, leader: NodeId, message: InstallSnapshot, offset: int) -> None:
        result = SnapshotResult(self.term, message.index, offset, message.round, self.store, self._refill_id)
        self._send(leader, result)

    def _install(self, snapshot: Snapshot) -> None:
        """Commit up to the end of the snapshot if the log has that entry; else replace log and state by it."""
        if self.log.term_at(snapshot.index) == snapshot.term:
            self._commit(snapshot.index)
            return
        self.log.restart(snapshot)
        self.snapshots.replace(snapshot)
        self._flush()
        self.commit_index = snapshot.index
        self._effects.append(Restore(snapshot))
        self._event("snapshot_installed", index=snapshot.index, bytes=len(snapshot.data), leader=self.leader_id)

    # --- commit ------------------------------------------------------------------------------------------

    @property
    def _has_committed_in_term(self) -> bool:
        """Return whether the last committed entry is of the present term. Only then does a leader know everything
        that is committed, so that it may answer reads and change the group (Raft §8)."""
        return self.log.term_at(self.commit_index) == self.term

    def _advance_commit(self) -> None:
        """Commit what a majority has. Once the configuration in force is committed, stop replicating to servers that
        are not in it."""
        self._commit_by_counting()
        if self.log.members_index <= self.commit_index:
            for node in [node for node in self._progress if self.members.find(node) is None]:
                del self._progress[node]  # it has just been sent the commit index with the others

    def _commit_by_counting(self) -> None:
        """Commit up to the highest entry that a majority of the voters has, and send the new commit index to all
        followers at once. Does nothing if that entry is committed already, or not of the present term (figure 8)."""
        matches = []
        for voter in self.members.voters:
            progress = self._follower_of(voter.node)
            own = self.log.last_index if voter.node == self.node_id else 0
            matches.append(progress.match if progress is not None else own)
        index = sorted(matches, reverse=True)[self.members.majority - 1]
        if index <= self.commit_index or self.log.term_at(index) != self.term:
            return
        self._commit(index)
        for peer in list(self._progress):
            if not self._replicate(peer) and not self._progress[peer].probing:
                self._send_append(peer, ())

    def _commit(self, index: int) -> None:
        """Commit up to ``index``: append an ``Apply`` effect behind the ``Persist`` of the entries, and a
        ``TakeSnapshot`` effect if a snapshot is due now."""
        if index <= self.commit_index:
            return
        self._flush()
        entries = self.log.slice(self.commit_index + 1, index)
        self._effects.append(Apply(entries))
        self.commit_index = index
        self.snapshots.count(entries)
        self._effects += self.snapshots.ask_if_due(index, self.log)

    # --- majorities: what a leader knows of the voters ---------------------------------------------------

    def is_live(self, node: NodeId, now: float) -> bool:
        """Return whether this leader counts the voter ``node`` as live: the voter was heard within the minimum
        election timeout, it answers with the store that has the vote, and that store is not being refilled. The
        leader itself is live if it is a voter."""
        if node == self.node_id:
            return self.is_voter
        progress = self._follower_of(node)
        return progress is not None and now < progress.heard_at + self.settings.election_timeout_min_s

    def is_silent(self, node: NodeId, now: float) -> bool:
        """Return whether the member ``node`` has not answered this leader for ``SILENT_TIMEOUTS`` election timeouts.
        ``DescribeQuorum`` shows it to operators. False for the leader itself, and on a server that does not lead."""
        progress = self._progress.get(node)
        return (
            progress is not None and now >= progress.heard_at + SILENT_TIMEOUTS * self.settings.election_timeout_max_s
        )

    def _live_voters(self, now: float) -> list[NodeId]:
        return [voter.node for voter in self.members.voters if self.is_live(voter.node, now)]

    def _answering(self, node: NodeId) -> ReplicationProgress | None:
        """Return the progress of a member that answers with the store that the configuration names; else None."""
        progress, member = self._progress.get(node), self.members.find(node)
        return progress if progress is not None and member is not None and progress.store == member.store else None

    def _follower_of(self, node: NodeId) -> ReplicationProgress | None:
        """Return the progress of the voter ``node`` if it counts for majorities: it answers with the store that has
        the vote, and that store is not being refilled. Return None otherwise."""
        progress = self._answering(node)
        return progress if progress is not None and progress.refill is None else None

    def _others_needed(self) -> int:
        """Return how many other voters make a majority together with this server."""
        return self.members.majority - (1 if self.is_voter else 0)

    def _reached_by_majority(self, values: list[float]) -> float:
        """Return the highest number that a majority of the voters has reached. ``values`` has one number for each
        other voter that counts; this server has always reached it. Return -1 if too few others count."""
        need = self._others_needed()
        return sorted(values, reverse=True)[need - 1] if len(values) >= need else -1.0

    def _confirmed_round(self) -> int:
        """Return the number of the last heartbeat that a majority has answered; -1 if too few others count."""
        if self._others_needed() == 0:
            return self._round
        others = [self._follower_of(voter.node) for voter in self.members.voters if voter.node != self.node_id]
        return int(self._reached_by_majority([p.heard_round for p in others if p is not None]))

    def _quorum_ends_at(self) -> float | None:
        """Return the time in seconds at which this leader must step down unless more followers answer; None if it
        alone is a majority. A follower that is being refilled counts as heard if the leader may refill it: it will
        count soon, and no other leader could refill it sooner."""
        if self._others_needed() == 0:
            return None
        others = [self._answering(voter.node) for voter in self.members.voters if voter.node != self.node_id]
        heard = [p.heard_at for p in others if p is not None and (p.refill is None or self._may_refill(p))]
        return self._reached_by_majority(heard) + self.settings.election_timeout_min_s

    # --- members: ``membership.py`` and ``leadership_transfer.py`` -------------------------------------------

    def standings(self) -> dict[NodeId, Standing]:
        """Return the state of the controllers of the group by name. A leader knows all of them. Any other server
        knows only itself and the voters whose stores proved to be old copies in the last election."""
        if self.role != "leader":
            return {node: Standing(rolled_back=True) for node in self.old_copies} | {
                self.node_id: Standing(rolled_back=self.rolled_back)
            }
        followers = {node: p.standing(self.members.find(node)) for node, p in self._progress.items()}
        return {self.node_id: Standing(self.log.last_index)} | followers

    @property
    def _may_change_members(self) -> bool:
        """Return whether the configuration in force and an entry of the present term are committed."""
        return self.log.members_index <= self.commit_index and self._has_committed_in_term

    def _change(self, members: Configuration, now: float) -> tuple[int | TidelogError, list[RaftEffect]]:
        """Append a configuration. Return its index, or the refusal of ``refuse_change``; and the effects."""
        assert self.role == "leader"
        refusal = refuse_change(self.members, members, self._live_voters(now), pending=not self._may_change_members)
        if refusal is not None:
            return refusal, []
        index = self._append_members(members, now)
        return index, self._take_effects()

    def _append_members(self, members: Configuration, now: float) -> int:
        """Append a configuration, begin to replicate to new members, and return the index of the entry."""
        entry = self.log.append(self.term, encode_members(members), is_members=True)
        self._add_progress(now)
        self._replicate_all()
        self._advance_commit()
        return entry.index

    def _promote_one(self, now: float) -> None:
        """Append a configuration in which one learner that keeps up is a voter. Does nothing if there is none, if the
        last change is not committed, or if the live voters would be no majority then."""
        for member in self.members.all:
            progress = self._progress.get(member.node)
            if member.voter or progress is None or not progress.store or progress.match == 0 or progress.refill:
                continue
            if progress.has_caught_up(self.log.last_index, now, self.settings.election_timeout_min_s):
                members = self.members.with_voter(member.node, progress.store)
                if members.keeps_quorum([*self._live_voters(now), member.node]) and self._may_change_members:
                    self._event("controller_promoted", controller=member.node, store=progress.store)
                    self._append_members(members, now)
                    return

    def _step_down_removed(self, now: float) -> None:
        """Hand leadership to the best follower, if one is live, and become a follower, since the configuration
        without this leader is committed."""
        target = self._best_follower(now)
        if target is not None:
            self._send(target, TimeoutNow(self.term))
        self._event("controller_left", term=self.term)
        self._become_follower(self.term, None, now)

    def _begin_transfer(self, target: NodeId, now: float) -> None:
        self._transfer.start(target, now + self.settings.election_timeout_min_s)
        self._notify_target(target)

    def _notify_target(self, target: NodeId) -> None:
        """Send the transfer's target ``TimeoutNow`` once its log is complete, unless it was sent before."""
        progress = self._follower_of(target)
        if progress is None:
            return
        message = self._transfer.notify(progress.match, self.log.last_index, self.term)
        if message is not None:
            self._send(target, message)

    def _best_follower(self, now: float) -> NodeId | None:
        """Return the other live voter whose log reaches furthest; None if no other voter is live."""
        live = [node for node in self._live_voters(now) if node != self.node_id]
        return max(live, key=lambda node: self._progress[node].match, default=None)

    # --- old copies: ``old_copies.py`` ---------------------------------------------------------------------

    def _learn_acked(self, rows: tuple[Acked, ...], now: float) -> None:
        """Record the entries that stores have acknowledged, as another controller lists them. If this store lacks an
        entry that it has acknowledged, it is an old copy: this server becomes a follower without a vote, which is
        made durable and logged."""
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
                self._event("raft_store_rolled_back", index=self.log.last_index, acknowledged=row.index)
                return

    def _record_acked(self) -> None:
        """Record for each store of the group the last committed entry that it has acknowledged. An entry that is
        compacted away, so that its term is unknown, is left out."""
        self._acked.keep_only(member.store for member in self.members.all)
        held = [(progress.store, progress.match) for progress in self._progress.values()]
        for store, match in ((self.store, self.commit_index), *held):
            index = min(match, self.commit_index)
            term = self.log.term_at(index)
            if term is not None:
                self._acked.record(store, index, term)

    def _acked_for(self, progress: ReplicationProgress) -> tuple[Acked, ...]:
        """Return the rows of acknowledged entries for a heartbeat to one follower. The row of the follower's own
        store may name an entry that is not committed yet: in this term the store does not lose it either."""
        return self._acked.rows_for(progress.store, progress.acked, self.log.term_at(progress.acked))

    def _begin_refill(self, peer: NodeId, progress: ReplicationProgress, id: int) -> None:
        """Begin the refill ``id`` of a follower whose store is an old copy, log it, and begin a new round of
        heartbeats. The follower counts for nothing until its log agrees with this one up to the present end."""
        to = self.log.last_index
        progress.begin_refill(Refill(id, to), self._round + 1)
        self._event("controller_rolled_back", controller=peer, acknowledged=progress.acked, refill_to=to)
        self._send_heartbeats()

    def _may_refill(self, progress: ReplicationProgress) -> bool:
        """Return whether the target of a refill may be sent to the follower: a majority without it has confirmed,
        since the refill began, that this server leads. Then all that was committed at that moment is in this log."""
        return progress.refill is not None and self._confirmed_round() >= progress.first_round

    def _ends_refill(self, peer: NodeId, progress: ReplicationProgress, result: AppendResult) -> bool:
        """Return whether this answer ends the follower's refill: its log agrees up to the target, and its store is no
        old copy any more. If so, let the follower count again, log it, and begin a new round."""
        if progress.refill is None or result.refill_id or result.match < progress.refill.to:
            return False
        progress.end_refill(self._round + 1)
        self._event("controller_refilled", controller=peer, index=result.match)
        self._send_heartbeats()
        return True

    def _on_refilled(self) -> None:
        """Record that the leader has refilled this store, so that it has a vote again, and log it."""
        self.rolled_back, self._refill_id = False, 0
        self._hard_state_dirty = True
        self._event("raft_store_refilled", index=self.log.last_index)

    def _draw_refill_id(self) -> int:
        return 1 + int(self._rng.random() * (1 << 52))

    # --- effects: persist, then send ---------------------------------------------------------------------

    def _set_hard_state(self, term: int, voted_for: NodeId | None) -> None:
        self.term = term
        self.voted_for = voted_for
        self._hard_state_dirty = True

    def _flush(self) -> None:
        """Append a ``Persist`` effect with all changes of term, vote, log and snapshot that are not durable yet, if
        any. Effects that follow may rely on them. Then announce the configuration in force if it has changed."""
        if self._hard_state_dirty or self.snapshots.has_unsaved() or self.log.has_unsaved():
            unsaved = *self.log.take_unsaved(), self.snapshots.take_unsaved()
            self._effects.append(Persist(self.term, self.voted_for, *unsaved, self.rolled_back))
            self._hard_state_dirty = False
        if self.members is not self._announced_members:
            self._announced_members = self.members
            self._effects.append(MembersChanged(self.members))

    def _send(self, to: NodeId, message: Message) -> None:
        self._flush()
        self._effects.append(Send(to, message))

    def _event(self, name: str, **fields: object) -> None:
        self._effects.append(Event(name, fields))

    def _take_effects(self) -> list[RaftEffect]:
        """Return the effects of this input, with a ``Persist`` of all that is not durable yet."""
        self._flush()
        effects, self._effects = self._effects, []
        return effects
