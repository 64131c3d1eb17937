"""The leader-epoch cache: which leader epoch every offset of one log belongs to (KIP-101, KIP-279).

Theory. The log is a sequence of epochs. Entry ``(epoch, start)`` means that ``epoch`` begins at offset ``start``. It
ends where the next entry starts, the last one at the log end. Epochs strictly increase, starts never decrease. An
epoch in which nothing was appended is empty: it starts where the next one does, and its entry stays, since it shows
where the epoch ended. Two logs that both know an epoch have the same records of it up to the smaller end. So a
follower truncates to the end of the largest epoch that both know, and never to a high watermark.

Where retention has moved the log start up, the epoch of the record before the start is the oldest that stays, because
other replicas ask for it.

As bytes the cache is a sequence of entries of a fixed length, each with its own CRC, and a last entry that counts
them. A new epoch is one small write over the old last entry. A torn or damaged file still yields its valid beginning,
and a file that was cut between two entries does not pass for a whole one. Entries that were forgotten at the front
stay in the file until it is written anew.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from crc32c import crc32c
from tidelog.errors import TidelogError, refuse
from tidelog.types import Buffer, NodeId

_ENTRY = struct.Struct(">qq")
_CRC = struct.Struct(">I")
_COUNT = -1  # stands for the epoch in the entry that counts the others
ENTRY_BYTES = _ENTRY.size + _CRC.size
"""The size of one entry in the file, in bytes: epoch, start offset and CRC."""


class LeaderEpochCache:
    """The list of the leader epochs of one log, with the offset at which each begins, oldest first. It lives as long
    as the log is open. ``seed`` begins the CRCs of its file, so that the file of another log is not taken for its
    own. Its methods do no I/O and raise only for bugs of this program."""

    def __init__(self, entries: Iterable[tuple[int, int]] = (), seed: int = 0) -> None:
        self._seed = seed
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self._dropped = 0
        """How many entries of the file stand before the entries here; they were forgotten at the front."""
        for epoch, start in entries:
            self.assign(epoch, start)

    @property
    def entries(self) -> list[tuple[int, int]]:
        """Return a copy of the entries (epoch, start offset), oldest first; an empty list for an empty cache."""
        return list(zip(self._epochs, self._starts, strict=True))

    def __len__(self) -> int:
        return len(self._epochs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LeaderEpochCache) and self.entries == other.entries

    __hash__ = None  # type: ignore[assignment]  # it changes

    def assign(self, epoch: int, start: int) -> bool:
        """Add the leader epoch ``epoch``, which begins at offset ``start``, and return True. Return False, and change
        nothing, if it is the latest epoch already. An older epoch, or a start below that of the latest, is a bug of
        the caller (an assertion fails)."""
        if self._epochs and epoch == self._epochs[-1]:
            return False
        assert epoch > self.latest(), f"leader epoch {epoch} after {self.latest()}"
        assert start >= (self._starts[-1] if self._starts else 0), (
            f"epoch {epoch} at {start}, before {self._starts[-1:]}"
        )
        self._epochs.append(epoch)
        self._starts.append(start)
        return True

    def latest(self) -> int:
        """Return the largest leader epoch in the cache; -1 if it is empty."""
        return self._epochs[-1] if self._epochs else -1

    def count_from(self, offset: int) -> int:
        """Return how many leader epochs of the cache begin at ``offset`` or above."""
        return len(self._starts) - bisect_left(self._starts, offset)

    def ends_before(self, log_start: int) -> int:
        """Return the largest offset at which an epoch older than all known ones may have ended: the beginning of the
        oldest known epoch, but at most ``log_start``. If no epoch is known, return ``log_start``."""
        return min(log_start, self._starts[0]) if self._starts else log_start

    def end_of(self, epoch: int, log_end: int) -> tuple[int, int]:
        """Return the largest leader epoch of the cache at or below ``epoch``, and the offset where it ends
        (exclusive); (-1, -1) if there is none. The latest epoch ends at ``log_end``."""
        place = bisect_right(self._epochs, epoch)
        if not place:
            return -1, -1
        return self._epochs[place - 1], self._starts[place] if place < len(self._starts) else log_end

    def epoch_before(self, offset: int) -> int:
        """Return the leader epoch of the record at ``offset - 1``; -1 if no epoch begins below ``offset``."""
        place = bisect_left(self._starts, offset)
        return self._epochs[place - 1] if place else -1

    def truncate_to(self, end: int) -> bool:
        """Remove the epochs that begin at or above ``end``, where the log ends now. Return whether an epoch was
        removed."""
        place = bisect_left(self._starts, end)
        if place == len(self._starts):
            return False
        del self._epochs[place:], self._starts[place:]
        return True

    def advance_to(self, start: int) -> None:
        """Remove the epochs that are older than that of the record before ``start``, where the log begins now. Their
        entries stay in the file until it is written anew."""
        place = bisect_left(self._starts, start) - 1
        if place > 0:
            del self._epochs[:place], self._starts[:place]
            self._dropped += place

    def to_bytes(self) -> bytes:
        """Return the content of the cache's file, written anew. May be called only while no entry has been removed at
        the front."""
        assert not self._dropped
        return self.last_bytes(len(self))

    def last_bytes(self, entries: int = 1) -> bytes:
        """Return the end of the cache's file: the last ``entries`` entries, and the entry that counts all. The caller
        writes these bytes at ``position(entries)``."""
        first = len(self) - entries
        rows = [*zip(self._epochs[first:], self._starts[first:], strict=True), (_COUNT, self._dropped + len(self))]
        return b"".join(_entry(*row, self._seed) for row in rows)

    def position(self, entries: int = 1) -> int:
        """Return the byte position in the cache's file at which the last ``entries`` entries begin."""
        return (self._dropped + len(self) - entries) * ENTRY_BYTES

    @classmethod
    def from_bytes(cls, data: Buffer, seed: int = 0) -> tuple[LeaderEpochCache, bool]:
        """Return a cache of the valid entries at the beginning of ``data``, the content of a file, and whether the
        whole file is valid. Reading stops at the first entry that is torn, damaged or out of order."""
        cache = cls(seed=seed)
        for position in range(0, len(data) - ENTRY_BYTES + 1, ENTRY_BYTES):
            entry = data[position : position + ENTRY_BYTES]
            epoch, start = _ENTRY.unpack_from(entry)
            if _CRC.unpack_from(entry, _ENTRY.size)[0] != crc32c(entry[: _ENTRY.size], seed):
                break
            if epoch <= cache.latest() or start < (cache._starts[-1] if cache._starts else 0):
                break
            cache.assign(epoch, start)
        return cache, bytes(data[cache.position(0) :]) == cache.last_bytes(0)


def refuse_leader_epoch(asked: int, own: int, leader: NodeId) -> TidelogError | None:
    """Return the error for a request that names leader epoch ``asked`` at a replica whose leader epoch is ``own``:
    fenced if ``asked`` is older, unknown if it is newer. Return None if they are equal, or if ``asked`` is -1 (none
    named). The error carries ``own`` and its leader."""
    if asked in (own, -1):
        return None
    code = "FENCED_LEADER_EPOCH" if asked < own else "UNKNOWN_LEADER_EPOCH"
    return refuse(code, f"the leader epoch is {own} here, not {asked}", leader_epoch=own, leader=leader)


def divergence(
    offset: int, last_epoch: int, epochs: LeaderEpochCache, log_start: int, log_end: int
) -> tuple[int, int] | None:
    """Return where a follower's log diverges from this log, or None if it does not. The follower's log ends at
    ``offset``, and ``last_epoch`` is the leader epoch of its last record; with -1 (no epoch) the result is None. The
    result is (epoch, end offset): the largest epoch of this log at or below ``last_epoch``, and its end here
    (KIP-279). If this log knows no epoch that old, ``last_epoch`` ended before all known ones: the result names
    ``last_epoch`` and the largest offset at which it may have ended."""
    if last_epoch < 0:
        return None
    epoch, end = epochs.end_of(last_epoch, log_end)
    if epoch < 0:
        end = epochs.ends_before(log_start)
        return None if offset <= end else (last_epoch, end)
    return None if epoch == last_epoch and offset <= end else (epoch, end)


def _entry(epoch: int, start: int, seed: int) -> bytes:
    """Return one entry of the cache's file, with its CRC, as bytes."""
    entry = _ENTRY.pack(epoch, start)
    return entry + _CRC.pack(crc32c(entry, seed))
