"""Snapshots and compaction (Raft §7): what goes out to a follower that is far behind, and what comes in.

Every server writes its own snapshots: after ``snapshot_threshold`` entries the state machine is asked for its bytes
(``TakeSnapshot``), and may go on applying while they are made. Behind a snapshot half as many entries stay in the
log. A follower that needs older ones gets the leader's snapshot: pieces in order, one unanswered at a time; the
answer says how far the follower has got. Heartbeats meanwhile are ``InstallSnapshot`` without a piece. A follower
keeps one incoming snapshot, and forgets it when another begins, so that memory is bounded by the log's tail and two
snapshots, and one more for each follower that is being sent an older one.

Installed is only what is ahead of the commit index. If the follower has the snapshot's last entry its log agrees with
the snapshot, and committing up to there says the same; else nothing of its log can be kept."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

from tidelog.errors import ProtocolError
from tidelog.types import NodeId
from tidelog.wire.codec import payload_view
from tidelog.wire.messages import AppendResult, InstallSnapshot, SnapshotResult

from tidelog_controller.raft.base import RaftBase, RaftEffect
from tidelog_controller.raft.configuration import Configuration
from tidelog_controller.raft.log import Restore, Snapshot
from tidelog_controller.raft.progress import Progress

MAX_SNAPSHOT_BYTES = 1 << 30


@dataclass(slots=True)
class _Incoming:
    """A snapshot that is not whole yet. ``name``: index, term, size and CRC."""

    name: tuple[int, int, int, int]
    data: bytearray = field(default_factory=bytearray)


class RaftSnapshots(RaftBase):
    """Raft with snapshots: taking, sending and receiving them."""

    _incoming: _Incoming | None = None

    # --- one's own ---------------------------------------------------------------------------------------

    def on_snapshot(self, index: int, data: bytes, now: float) -> list[RaftEffect]:
        """The state machine after entry ``index`` as bytes, as ``TakeSnapshot`` asked. Entries that nobody should
        need any more go. Nothing happens if a later snapshot was installed meanwhile."""
        if self.snapshot is not None and index <= self.snapshot.index:
            return []
        term = self.log.term_at(index)
        assert term is not None and index <= self.commit_index, index
        self._keep(Snapshot(index, term, self.log.members_at(index), data))
        self.log.compact(self._last_to_go(index))
        return self._take_effects()

    def _keep(self, snapshot: Snapshot) -> None:
        self.snapshot = self._unsaved_snapshot = snapshot

    def _last_to_go(self, index: int) -> int:
        """The last entry that is not worth keeping behind a snapshot of ``index``."""
        size, first = 0, max(self.log.base.index + 1, index - self.settings.snapshot_threshold // 2 + 1)
        for entry in reversed(self.log.slice(first, index)):
            size += len(entry.data)
            if size > self.settings.snapshot_threshold_bytes // 2:
                return entry.index
        return first - 1

    # --- to a follower -----------------------------------------------------------------------------------

    def _send_piece(self, peer: NodeId, progress: Progress, *, heartbeat: bool = False) -> None:
        """The next piece of the snapshot, if it is its turn; ``heartbeat``: a message in any case."""
        sending = progress.sending
        assert sending is not None
        piece = b"" if heartbeat else sending.take_piece(self.settings.snapshot_chunk_bytes)
        if heartbeat:
            sending.on_heartbeat()
        if piece or heartbeat:
            snapshot = sending.snapshot
            size, crc = len(snapshot.data), sending.crc
            message = InstallSnapshot(
                *(self.term, snapshot.index, snapshot.term, size, crc, snapshot.members.all, sending.offset),
                payload=piece,
                round=self._round,
                acked=self._acked_for(progress) if heartbeat else (),
            )
            self._send(peer, message)

    # --- from a leader -----------------------------------------------------------------------------------

    def _on_install_snapshot(self, leader: NodeId, message: InstallSnapshot, now: float) -> None:
        if message.term < self.term:
            self._answer_piece(leader, message, 0)
            return
        self._check_install_snapshot(leader, message)
        self._follow(leader, message.term, now)
        self._learn_acked(message.acked, now)
        if message.index <= self.commit_index:
            self._incoming = None
            self._answer_append(leader, True, self.commit_index, message.round)
            return
        name = (message.index, message.last_term, message.size, message.crc)
        if self._incoming is None or self._incoming.name != name:
            self._incoming = _Incoming(name)
        data = self._incoming.data
        if message.offset == len(data):
            data += payload_view(message.payload)
        if len(data) < message.size:
            self._answer_piece(leader, message, len(data))
            return
        self._incoming = None
        if len(data) > message.size or zlib.crc32(data) != message.crc:
            self._say("snapshot_damaged", index=message.index, leader=leader)
            self._answer_piece(leader, message, 0)
            return
        self._install(Snapshot(message.index, message.last_term, Configuration(message.members), bytes(data)))
        self._answer_append(leader, True, message.index, message.round)

    def _answer_piece(self, leader: NodeId, message: InstallSnapshot, offset: int) -> None:
        result = SnapshotResult(self.term, message.index, offset, message.round, self.store, self._refill_id)
        self._send(leader, result)

    def _answer_append(self, leader: NodeId, ok: bool, match: int, round: int, hint_term: int = 0) -> None:
        self._send(leader, AppendResult(self.term, ok, match, hint_term, round, self.store, self._refill_id))

    def _install(self, snapshot: Snapshot) -> None:
        if self.log.term_at(snapshot.index) == snapshot.term:
            self._commit(snapshot.index)
            return
        self.log.restart(snapshot)
        self._keep(snapshot)
        self._flush()
        self.commit_index = self._asked_snapshot = snapshot.index
        self._bytes_since_snapshot = 0
        self._effects.append(Restore(snapshot))
        self._say("snapshot_installed", index=snapshot.index, bytes=len(snapshot.data), leader=self.leader_id)

    def _check_install_snapshot(self, leader: NodeId, message: InstallSnapshot) -> None:
        """ProtocolError if no correct leader of this or a later term can have sent it."""
        fits = 1 <= message.last_term <= message.term and message.index >= 1
        if not fits or not 1 <= message.size <= MAX_SNAPSHOT_BYTES:
            raise ProtocolError(f"install_snapshot of {leader}: impossible terms or size")
        if message.term == self.term and self.leader_id not in (None, leader):
            raise ProtocolError(f"install_snapshot of {leader}: {self.leader_id} leads term {self.term}")
