"""A snapshot on its way to a follower (Raft §7): what the leader sends, and what the follower has of it.

A follower that needs entries which the leader's log does not have any more (``snapshots.py``) gets the leader's
newest snapshot from ``Raft._replicate``: pieces in order, one unanswered at a time. The answer says how far the
follower has got (``Raft._on_result``). Heartbeats meanwhile are ``InstallSnapshot`` without a piece
(``Raft._send_heartbeats``). A transfer goes on with its snapshot though the leader takes a newer one. A follower
keeps one incoming snapshot, and forgets it when another begins. So memory is bounded by the log's tail and two
snapshots, and one more for each follower that is being sent an older one.

Only what is ahead of the commit index is installed (``Raft._on_install_snapshot``). If the follower has the
snapshot's last entry its log agrees with the snapshot, and committing up to there says the same. Otherwise nothing of
its log can be kept: the snapshot replaces log and state (``Raft._install``)."""

from __future__ import annotations

import zlib

from tidelog.errors import ProtocolError
from tidelog.types import NodeId
from tidelog.wire.codec import payload_view
from tidelog.wire.messages import Acked, InstallSnapshot

from tidelog_controller.raft.log import Snapshot
from tidelog_controller.raft.membership import Configuration

MAX_SNAPSHOT_BYTES = 1 << 30
"""Size of the largest snapshot that is received."""


class SnapshotSender:
    """The leader's side of the transfer of one snapshot to one follower. It sends one piece at a time, and a lost
    piece again, at most once per heartbeat. It lives until the follower has installed the snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._crc = zlib.crc32(snapshot.data)
        self._offset = 0
        """The number of bytes that the follower is known to have."""
        self._may_send = True

    def next_piece(self, term: int, round: int, max_bytes: int) -> InstallSnapshot | None:
        """Return a message with the next piece, of at most ``max_bytes``; None if a piece is unanswered or the
        follower has the whole snapshot."""
        piece = self.snapshot.data[self._offset : self._offset + max_bytes] if self._may_send else b""
        self._may_send = False
        return self._message(term, round, piece, ()) if piece else None

    def heartbeat(self, term: int, round: int, acked: tuple[Acked, ...]) -> InstallSnapshot:
        """Return a heartbeat for the follower: a message of the snapshot without a piece. Afterwards ``next_piece``
        may send a piece again that was lost."""
        self._may_send = True
        return self._message(term, round, b"", acked)

    def on_result(self, offset: int) -> None:
        """Record that the follower has the first ``offset`` bytes, and let ``next_piece`` continue there. A follower
        that restarted begins at 0 again. Does nothing if this was known."""
        if offset != self._offset:
            self._offset = min(offset, len(self.snapshot.data))
            self._may_send = True

    def _message(self, term: int, round: int, piece: bytes, acked: tuple[Acked, ...]) -> InstallSnapshot:
        snapshot, size = self.snapshot, len(self.snapshot.data)
        about = (snapshot.index, snapshot.term, size, self._crc, snapshot.members.all, self._offset)
        return InstallSnapshot(term, *about, payload=piece, round=round, acked=acked)


class SnapshotReceiver:
    """The follower's side of the transfer of a snapshot: in memory, the pieces of the one snapshot that is not
    complete yet. Lives as long as the ``Raft`` object."""

    def __init__(self) -> None:
        self._name: tuple[int, int, int, int] | None = None
        """Index, term, size and CRC of the snapshot; None if none is being received."""
        self._data = bytearray()

    def add(self, message: InstallSnapshot) -> int:
        """Append the piece in the message if it is the next one, and return the number of bytes received of this
        snapshot. A piece that is out of order is ignored. A piece of another snapshot discards the pieces of the
        first one."""
        name = (message.index, message.last_term, message.size, message.crc)
        if name != self._name:
            self._name, self._data = name, bytearray()
        if message.offset == len(self._data):
            self._data += payload_view(message.payload)
        return len(self._data)

    def finish(self, message: InstallSnapshot) -> Snapshot | None:
        """Return the complete snapshot; None if the size or CRC of the received bytes is not that in the message. The
        pieces are forgotten in both cases."""
        data = bytes(self._data)
        self.clear()
        if len(data) > message.size or zlib.crc32(data) != message.crc:
            return None
        return Snapshot(message.index, message.last_term, Configuration(message.members), data)

    def clear(self) -> None:
        """Forget the pieces that were received. Does nothing if there are none."""
        self._name, self._data = None, bytearray()


def check_install_snapshot(leader: NodeId, message: InstallSnapshot) -> None:
    """Raise ``ProtocolError`` if no correct leader can have sent this message: its terms, its index or its size are
    impossible."""
    fits = 1 <= message.last_term <= message.term and message.index >= 1
    if not fits or not 1 <= message.size <= MAX_SNAPSHOT_BYTES:
        raise ProtocolError(f"install_snapshot of {leader}: impossible terms or size")
