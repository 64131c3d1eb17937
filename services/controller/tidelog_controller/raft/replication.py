"""Replication (Raft §5.3, §5.4.2): entries from the leader to the followers, and what a majority has is committed.

A follower answers for its store. The leader counts an answer only for the store that the configuration names
(``raft/configuration.py``); a follower that answers from another one gets the log all the same, from the beginning.
"""

from __future__ import annotations

from tidelog.errors import ProtocolError
from tidelog.types import NodeId
from tidelog.wire.messages import AppendEntries, AppendResult, SnapshotResult

from tidelog_controller.raft.log import Entry, decode_entries, encode_entries
from tidelog_controller.raft.progress import Progress, Refill
from tidelog_controller.raft.snapshot_transfer import RaftSnapshots


class RaftReplication(RaftSnapshots):
    """Raft with replication: AppendEntries on both sides, and the commit index."""

    # --- the follower's side -------------------------------------------------------------------------------

    def _on_append_entries(self, leader: NodeId, append: AppendEntries, now: float) -> None:
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
            self._become_sound()
        self._answer_append(leader, True, match, append.round)
        self._commit(min(append.commit, match))

    def _agrees_at(self, index: int, term: int) -> bool:
        """Whether this log agrees with a leader that has (index, term): what is compacted away is committed, and
        every leader has it."""
        return index < self.log.base.index or self.log.term_at(index) == term

    def _check_append_entries(self, leader: NodeId, append: AppendEntries) -> tuple[Entry, ...]:
        """The entries of a message of this or a later term, if a correct leader can have sent it."""
        if append.term < max(append.prev_term, 1) or (append.prev_index == 0) != (append.prev_term == 0):
            raise ProtocolError(f"append_entries of {leader}: impossible terms {append}")
        if append.term == self.term and self.leader_id not in (None, leader):
            raise ProtocolError(f"append_entries of {leader}: {self.leader_id} leads term {self.term}")
        entries = decode_entries(append.payload, append.prev_index, append.prev_term, append.term)
        if self._agrees_at(append.prev_index, append.prev_term):
            first_new = self.log.first_conflict(entries)
            if first_new is not None and first_new <= self.commit_index:
                raise ProtocolError(f"append_entries of {leader}: would replace committed entry {first_new}")
        return entries

    # --- the leader's side ---------------------------------------------------------------------------------

    def _on_append_result(self, sender: NodeId, result: AppendResult, now: float) -> None:
        if result.term > self.term:
            self._become_follower(result.term, None, now)
            return
        if result.term < self.term or self.role != "leader" or sender not in self._progress:
            return
        if result.ok and result.match > self.log.last_index:
            raise ProtocolError(f"append_result of {sender}: acknowledges {result.match}, which was never sent")
        progress = self._heard(sender, result, now)
        if result.round < progress.first_round:
            return
        if not result.ok:
            progress.on_rejected(self.log.last_at_or_below(result.match, result.hint_term))
        else:
            news = progress.on_ok(result.match)
            if self._ends_refill(sender, progress, result) or news:
                self._advance_commit()
        if self.role == "leader":
            self._replicate(sender)

    def _on_snapshot_result(self, sender: NodeId, result: SnapshotResult, now: float) -> None:
        if result.term > self.term:
            self._become_follower(result.term, None, now)
            return
        if result.term < self.term or self.role != "leader" or sender not in self._progress:
            return
        progress = self._heard(sender, result, now)
        if result.round < progress.first_round:
            return
        if progress.sending is not None and progress.sending.snapshot.index == result.index:
            progress.sending.on_result(result.offset)
        self._replicate(sender)

    def _heard(self, sender: NodeId, result: AppendResult | SnapshotResult, now: float) -> Progress:
        """That follower lives, and with which store."""
        progress = self._progress[sender]
        if result.store != progress.store:
            member = self.members.find(sender)
            if member is not None and member.voter and result.store != member.store:
                self._say("controller_store_lost", controller=sender, store=result.store, voted_with=member.store)
            progress = self._progress[sender] = self._new_progress(result.store, now)
        progress.heard_at = now
        progress.heard_round = max(progress.heard_round, result.round)
        is_known = progress.refill is not None and progress.refill.id == result.refill_id
        if result.refill_id and not is_known and result.round >= progress.first_round:
            self._begin_refill(sender, progress, result.refill_id)
        return progress

    def _begin_refill(self, peer: NodeId, progress: Progress, id: int) -> None:
        """The follower's store is an old copy (``old_copies.py``)."""
        progress.begin_refill(Refill(id, self.log.last_index), self._round + 1)
        self._say(
            "controller_rolled_back", controller=peer, acknowledged=progress.acked, refill_to=self.log.last_index
        )
        self._beat()

    def _may_refill(self, progress: Progress) -> bool:
        """Whether a majority, without that store, has confirmed since it came back that this leader still led: then
        all that was committed when it came back is in this log."""
        return progress.refill is not None and self._confirmed_round() >= progress.first_round

    def _ends_refill(self, peer: NodeId, progress: Progress, result: AppendResult) -> bool:
        """Whether that answer says that the store is refilled: its log agrees up to the target, and it knows."""
        if progress.refill is None or result.refill_id or result.match < progress.refill.to:
            return False
        progress.end_refill(self._round + 1)
        self._say("controller_refilled", controller=peer, index=result.match)
        self._beat()
        return True

    def _new_progress(self, store: str, now: float) -> Progress:
        return Progress(self.log.last_index + 1, self.settings.append_window, now, store)

    def _replicate_all(self) -> None:
        for peer in list(self._progress):
            self._replicate(peer)

    def _replicate(self, peer: NodeId) -> bool:
        """Send what the follower lacks, as far as the window allows. True if that was anything."""
        progress = self._progress[peer]
        if progress.sending is None and progress.next <= self.log.base.index:
            assert self.snapshot is not None and self.snapshot.index >= self.log.base.index
            progress.send_snapshot(self.snapshot)
        if progress.sending is not None:
            self._send_piece(peer, progress)
            return True
        sent = False
        while progress.can_send and progress.next <= self.log.last_index:
            entries = self.log.take_batch(progress.next, self.settings.append_max_bytes)
            self._send_append(peer, entries)
            progress.on_sent(entries[-1].index)
            sent = True
        return sent

    def _send_append(self, peer: NodeId, entries: tuple[Entry, ...], *, heartbeat: bool = False) -> None:
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

    def _beat(self) -> None:
        """A heartbeat to everybody: a new round."""
        self._round += 1
        self._note_acked()
        for peer, progress in self._progress.items():
            if progress.sending is None and progress.next > self.log.base.index:
                self._send_append(peer, (), heartbeat=True)
                continue
            if progress.sending is None:
                self._replicate(peer)
            self._send_piece(peer, progress, heartbeat=True)

    def _note_acked(self) -> None:
        """What of the committed entries each store has acknowledged, as far as the log still says their terms."""
        self._acked.keep_only(member.store for member in self.members.all)
        held = [(progress.store, progress.match) for progress in self._progress.values()]
        for store, match in ((self.store, self.commit_index), *held):
            index = min(match, self.commit_index)
            term = self.log.term_at(index)
            if term is not None:
                self._acked.note(store, index, term)

    def _answering(self, node: NodeId) -> Progress | None:
        """What is known of a voter, if it answers with the store that has the vote."""
        progress, member = self._progress.get(node), self.members.find(node)
        return progress if progress is not None and member is not None and progress.store == member.store else None

    def _follower_of(self, node: NodeId) -> Progress | None:
        """The follower, if it counts: its store is no old copy."""
        progress = self._answering(node)
        return progress if progress is not None and progress.refill is None else None

    def _advance_commit(self) -> None:
        """Leader: commit what a majority holds, if it is of this term, and tell the followers at once."""
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

    def _others_needed(self) -> int:
        """How many other voters make a majority with this server."""
        return self.members.majority - (1 if self.is_voter else 0)

    def _nth_voter(self, values: list[float]) -> float:
        """Of one value for each other voter that answers: the least that a majority has at least. -1 for nobody."""
        need = self._others_needed()
        return sorted(values, reverse=True)[need - 1] if len(values) >= need else -1.0

    def _other_voters(self) -> list[Progress]:
        found = [self._follower_of(voter.node) for voter in self.members.voters if voter.node != self.node_id]
        return [progress for progress in found if progress is not None]

    def _confirmed_round(self) -> int:
        """The last heartbeat that a majority has answered."""
        if self._others_needed() == 0:
            return self._round
        return int(self._nth_voter([p.heard_round for p in self._other_voters()]))

    def _quorum_ends_at(self) -> float | None:
        """Leader: when it must step down unless it hears from more followers; None if it alone is a majority. A store
        that it may refill is heard, too: it will count soon, and no other leader could refill it sooner."""
        if self._others_needed() == 0:
            return None
        answering = [self._answering(voter.node) for voter in self.members.voters if voter.node != self.node_id]
        heard = [p.heard_at for p in answering if p is not None and (p.refill is None or self._may_refill(p))]
        return self._nth_voter(heard) + self.settings.election_timeout_min_s
