"""The Raft log in memory, what of it is not yet durable, and its form on the wire and in storage.

Theory (Ongaro & Ousterhout, "In Search of an Understandable Consensus Algorithm", §5.3). Indexes begin at 1;
index 0 with term 0 stands for the empty log. Two logs that hold an entry of the same index and term are equal up
to there (log matching), so one (index, term) pair names a whole prefix. Invariants kept here:

- entries are contiguous and their terms never decrease;
- nothing at or below the commit index is ever replaced;
- ``take_unsaved`` gives every change to the durable log exactly once, in order.

Everything that touches the list of entries is in this class, so that a compacted prefix needs no other module.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import cbor2
from tidelog.errors import ProtocolError
from tidelog.types import NodeId
from tidelog.wire.messages import Payload


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry. ``data`` is the command; b"" is no command: the no-op with which a leader begins its term."""

    index: int
    term: int
    data: bytes


@dataclass(slots=True)
class Stored:
    """What a controller finds on its disk when it starts; the defaults are those of a new one."""

    term: int = 0
    voted_for: NodeId | None = None
    entries: list[Entry] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Persist:
    """Make durable, before any later effect of the list: term and vote; then, if ``truncate_from`` is not None,
    the removal of all entries from that index on; then ``entries``, which follow what is left."""

    term: int
    voted_for: NodeId | None
    truncate_from: int | None
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Apply:
    """These entries are committed. Each entry comes once in the life of a ``Raft`` object, in order of index,
    from index 1; the state machine is rebuilt by that after a restart."""

    entries: tuple[Entry, ...]


class RaftLog:
    """The entries of one controller. ``apply_persist`` of the unsaved changes to the stored log gives this one."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries: list[Entry] = list(entries)
        check_entries(self._entries)
        self._truncated_from: int | None = None
        self._first_unsaved = self.last_index + 1

    @property
    def last_index(self) -> int:
        """Index of the last entry; 0 when empty."""
        return len(self._entries)

    @property
    def last_term(self) -> int:
        """Term of the last entry; 0 when empty."""
        return self._entries[-1].term if self._entries else 0

    def term_at(self, index: int) -> int | None:
        """Term of the entry at ``index``; 0 for index 0; None beyond the end."""
        if index == 0:
            return 0
        return self._entries[index - 1].term if index <= self.last_index else None

    def slice(self, first: int, last: int) -> tuple[Entry, ...]:
        """Entries ``first`` to ``last``, both included."""
        return tuple(self._entries[first - 1 : last])

    def take_batch(self, first: int, max_bytes: int) -> tuple[Entry, ...]:
        """Entries from ``first`` on, together at most ``max_bytes`` of data, but at least one if there is any."""
        size = 0
        end = first
        while end <= self.last_index:
            size += len(self._entries[end - 1].data)
            if size > max_bytes and end > first:
                break
            end += 1
        return self.slice(first, end - 1)

    def append(self, term: int, data: bytes) -> Entry:
        """Append one entry (a leader only ever does this: leader append-only, §5.3)."""
        assert term >= self.last_term, (term, self.last_term)
        entry = Entry(self.last_index + 1, term, data)
        self._entries.append(entry)
        return entry

    def first_conflict(self, entries: Sequence[Entry]) -> int | None:
        """First index at which ``entries`` say something that this log does not; None when it holds them all.

        Judged by the entry's own term. Entries of this log beyond the last of ``entries`` are no conflict: an
        older, shorter message must not erase what a newer one brought (§5.3, fifth paragraph from the end)."""
        for entry in entries:
            if self.term_at(entry.index) != entry.term:
                return entry.index
        return None

    def merge(self, entries: Sequence[Entry], first_new: int) -> None:
        """Replace everything from ``first_new`` on (see ``first_conflict``) by the part of ``entries`` there."""
        if first_new <= self.last_index:
            del self._entries[first_new - 1 :]
            if first_new < self._first_unsaved:
                self._truncated_from = first_new
                self._first_unsaved = first_new
        self._entries.extend(entry for entry in entries if entry.index >= first_new)

    def last_at_or_below(self, index: int, term: int) -> int:
        """Largest index <= ``index`` whose term is <= ``term``: where two logs can still agree, given that one
        has an entry of ``term`` there and the other's differs (dissertation §3.5 back-off, as etcd does it)."""
        index = min(index, self.last_index)
        while index > 0 and self._entries[index - 1].term > term:
            index -= 1
        return index

    def has_unsaved(self) -> bool:
        """Whether ``take_unsaved`` has something to give."""
        return self._truncated_from is not None or self._first_unsaved <= self.last_index

    def take_unsaved(self) -> tuple[int | None, tuple[Entry, ...]]:
        """(truncate_from, entries) of a ``Persist``; they count as saved afterwards."""
        unsaved = self._truncated_from, self.slice(self._first_unsaved, self.last_index)
        self._truncated_from = None
        self._first_unsaved = self.last_index + 1
        return unsaved


def check_entries(entries: Sequence[Entry]) -> None:
    """Contiguous from 1 and terms that never decrease, or AssertionError: storage checks before."""
    term = 0
    for position, entry in enumerate(entries):
        assert entry.index == position + 1, f"entry {entry.index} stands at {position + 1}"
        assert entry.term >= max(term, 1), f"term goes back to {entry.term} at {entry.index}"
        term = entry.term


def apply_persist(stored: Stored, persist: Persist) -> Stored:
    """What the disk holds after ``persist``: the meaning of the effect, for storage in memory."""
    entries = stored.entries
    if persist.truncate_from is not None:
        entries = entries[: persist.truncate_from - 1]
    return Stored(persist.term, persist.voted_for, [*entries, *persist.entries])


def encode_entries(entries: Sequence[Entry]) -> bytes:
    """Payload of an ``AppendEntries``: CBOR [[term, data], …]; b"" for none."""
    return cbor2.dumps([[entry.term, entry.data] for entry in entries]) if entries else b""


def decode_entries(payload: Payload, prev_index: int, prev_term: int, term: int) -> tuple[Entry, ...]:
    """Entries of an ``AppendEntries`` of ``term`` that follow (prev_index, prev_term). ProtocolError if the bytes
    are not what ``encode_entries`` makes, or if the terms go back or beyond the message's own."""
    raw = b"".join(payload) if isinstance(payload, list) else bytes(payload)
    if not raw:
        return ()
    try:
        pairs: Any = cbor2.loads(raw)
    except (cbor2.CBORDecodeError, ValueError, TypeError, RecursionError) as error:
        raise ProtocolError(f"append_entries: the payload is no CBOR: {error}") from error
    if not isinstance(pairs, list):
        raise ProtocolError("append_entries: the payload is no array")
    entries: list[Entry] = []
    lowest = max(prev_term, 1)
    for pair in pairs:
        match pair:
            case [int(entry_term), bytes(data)] if type(entry_term) is int and lowest <= entry_term <= term:
                entries.append(Entry(prev_index + len(entries) + 1, entry_term, data))
                lowest = entry_term
            case _:
                raise ProtocolError(f"append_entries: entry {len(entries)} of the payload is malformed")
    if encode_entries(entries) != raw:
        raise ProtocolError("append_entries: the payload has bytes behind its array, or another encoding")
    return tuple(entries)
