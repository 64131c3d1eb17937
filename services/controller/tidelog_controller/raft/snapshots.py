"""This server's snapshots, and the compaction of its log behind them (Raft §7).

Every server takes its own snapshots, of what is committed. One is due when ``snapshot_threshold`` entries, or entries
of ``snapshot_threshold_bytes`` bytes, were committed since the last one was asked for. ``Raft._commit`` then asks for
the bytes of the state machine, which may go on applying while they are made, and ``Raft.on_snapshot`` gets them:

    due --TakeSnapshot--> being made --Raft.on_snapshot--> newest snapshot, log compacted: one ``Persist``

At its head the log keeps some entries that the snapshot covers, at most half of what makes one due, so that a
follower that is a little late still gets entries. One that needs older entries gets the newest snapshot
(``snapshot_transfer.py``). So the log always begins at or before the end of the newest snapshot, and nothing is
missing between them. A snapshot of the leader that replaces the state of this server (``Raft._install``) is its
newest one from then on; if its own is made only afterwards, that one is older and dropped."""

from __future__ import annotations

from collections.abc import Iterable

from tidelog_controller.raft.effects import TakeSnapshot
from tidelog_controller.raft.log import Entry, RaftLog, Snapshot
from tidelog_controller.raft.settings import RaftSettings


class OwnSnapshots:
    """The newest snapshot of one server, and what was committed since it last asked for one. Lives as long as the
    ``Raft`` object."""

    def __init__(self, newest: Snapshot | None, settings: RaftSettings) -> None:
        self.newest = newest
        """The newest snapshot, which covers all entries that are compacted away; None if there is none."""
        self.asked_index = self.index
        """The index for which a snapshot was last asked; that of ``newest`` after a start and after a leader's
        snapshot."""
        self._bytes_since_asked = 0
        self._unsaved: Snapshot | None = None
        self._settings = settings

    @property
    def index(self) -> int:
        """Return the index of the last entry that the newest snapshot covers; 0 if there is no snapshot."""
        return self.newest.index if self.newest is not None else 0

    def count(self, committed: Iterable[Entry]) -> None:
        """Add the size of entries that have just been committed to what makes a snapshot due."""
        self._bytes_since_asked += sum(len(entry.data) for entry in committed)

    def ask_if_due(self, index: int, log: RaftLog) -> list[TakeSnapshot]:
        """Return a ``TakeSnapshot`` effect for ``index``, the last committed entry, if enough entries or bytes were
        committed since the last one; otherwise an empty list. None is due before the server is founded, since a
        snapshot names the configuration."""
        many = index - self.asked_index >= self._settings.snapshot_threshold
        large = self._bytes_since_asked >= self._settings.snapshot_threshold_bytes
        if not (many or large) or not log.members_at(index).all:
            return []
        self.asked_index, self._bytes_since_asked = index, 0
        return [TakeSnapshot(index)]

    def accept(self, index: int, data: bytes, log: RaftLog) -> bool:
        """Make ``data``, the encoded state machine after the committed entry ``index``, the newest snapshot. Return
        whether it is newer than the one before; if not, nothing changes. Fails an assertion if the log does not have
        the entry."""
        if index <= self.index:
            return False
        term = log.term_at(index)
        assert term is not None, index
        self.newest = self._unsaved = Snapshot(index, term, log.members_at(index), data)
        return True

    def last_to_compact(self, log: RaftLog) -> int:
        """Return the index of the last entry that the log may drop, given the newest snapshot. Of the entries that it
        covers some stay for followers that are a little late: at most half of ``snapshot_threshold`` entries and half
        of ``snapshot_threshold_bytes`` bytes."""
        size, first = 0, max(log.base.index + 1, self.index - self._settings.snapshot_threshold // 2 + 1)
        for entry in reversed(log.slice(first, self.index)):
            size += len(entry.data)
            if size > self._settings.snapshot_threshold_bytes // 2:
                return entry.index
        return first - 1

    def replace(self, snapshot: Snapshot) -> None:
        """Make ``snapshot``, which the leader sent and which replaces log and state, the newest one. What
        makes the next one due is counted from its end."""
        self.newest = self._unsaved = snapshot
        self.asked_index, self._bytes_since_asked = snapshot.index, 0

    def has_unsaved(self) -> bool:
        """Return whether the newest snapshot is not durable yet."""
        return self._unsaved is not None

    def take_unsaved(self) -> Snapshot | None:
        """Return the newest snapshot for a ``Persist`` effect if it is not durable yet, otherwise None. It counts as
        durable afterwards."""
        unsaved, self._unsaved = self._unsaved, None
        return unsaved
