"""The Raft log in memory, what of it is not yet durable, and its form on the wire and in storage.

Theory (Ongaro & Ousterhout, "In Search of an Understandable Consensus Algorithm", §5.3, §7). Indexes begin at 1;
index 0 with term 0 stands for the empty log. Two logs that hold an entry of the same index and term are equal up to
there (log matching), so one (index, term) pair names a whole prefix.

    1 … base                 base+1 … last
    compacted away           entries          a snapshot stands for 1 … snapshot.index, base <= snapshot.index

The *base* is the last index that is gone, with its term and the configuration in force there. Some entries stay
behind the snapshot for followers that are a little late. Invariants kept here:

- entries are contiguous from base + 1 and their terms never decrease;
- nothing at or below the commit index is ever replaced; only what is applied is compacted;
- ``take_unsaved`` gives every change to the durable log exactly once, in order;
- ``members`` is the configuration of the last entry that is one, else the base's (Raft §6).

Everything that touches the list of entries is in this class.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import cbor2
from tidelog.errors import ProtocolError
from tidelog.types import NodeId
from tidelog.wire.messages import Payload

from tidelog_controller.raft.membership import NOBODY, Configuration, decode_members


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry. ``data`` is the command; b"" is no command: the no-op with which a leader begins its term."""

    index: int
    term: int
    data: bytes
    is_members: bool = False
    """``data`` is a configuration (``raft/membership.py``) and no command."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state machine after entry ``index`` as bytes, with that entry's term and the configuration there."""

    index: int
    term: int
    members: Configuration
    data: bytes


@dataclass(frozen=True, slots=True)
class Base:
    """Entries up to ``index`` are gone; the last of them had ``term``, and ``members`` was in force there."""

    index: int = 0
    term: int = 0
    members: Configuration = NOBODY


EMPTY = Base()


@dataclass(slots=True)
class PersistentState:
    """The content of a controller's disk when it starts; the defaults are those of a new one."""

    term: int = 0
    voted_for: NodeId | None = None
    entries: list[Entry] = field(default_factory=list)
    base: Base = EMPTY
    snapshot: Snapshot | None = None
    store: str = ""
    """The random name of this storage, drawn when it was made."""
    lost: bool = False
    """The storage was made because an earlier one was damaged or missing: it never takes part in founding a
    cluster."""
    rolled_back: bool = False
    """The disk is an old copy, and the leader has not refilled it yet (``old_copies.py``): the store has no vote."""


class RaftLog:
    """The entries of one controller. ``apply_persist`` of the unsaved changes to the stored log gives this one."""

    def __init__(self, entries: Iterable[Entry], base: Base = EMPTY) -> None:
        self._entries: list[Entry] = list(entries)
        check_entries(self._entries, base)
        self.base = base
        self._configurations: list[tuple[int, Configuration]] = [(base.index, base.members)]
        self._record_configurations(self._entries)
        self._truncated_from: int | None = None
        self._unsaved_base: Base | None = None
        self._first_unsaved = self.last_index + 1

    @property
    def last_index(self) -> int:
        """The index of the last entry; the base's when there is none."""
        return self.base.index + len(self._entries)

    @property
    def entry_count(self) -> int:
        """How many entries the log holds."""
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        """The bytes of the commands in the entries."""
        return sum(len(entry.data) for entry in self._entries)

    @property
    def last_term(self) -> int:
        """The term of the last entry; the base's when there is none."""
        return self._entries[-1].term if self._entries else self.base.term

    @property
    def members(self) -> Configuration:
        """The configuration in force: the newest in the log, committed or not (Raft §6)."""
        return self._configurations[-1][1]

    @property
    def members_index(self) -> int:
        """Index of the entry that ``members`` came with, or that of the base."""
        return self._configurations[-1][0]

    def members_at(self, index: int) -> Configuration:
        """The configuration that was in force at ``index``, not before the base."""
        return next(members for since, members in reversed(self._configurations) if since <= index)

    def term_at(self, index: int) -> int | None:
        """Term of the entry at ``index``; None beyond the end and before the base."""
        if index == self.base.index:
            return self.base.term
        return self._entries[index - self.base.index - 1].term if self.base.index < index <= self.last_index else None

    def has(self, index: int, term: int) -> bool:
        """Whether the entry (``index``, ``term``), which some leader has had at that place of its log, is
        here. What is compacted away counts as here: it is committed."""
        return index <= self.base.index or self.term_at(index) == term

    def slice(self, first: int, last: int) -> tuple[Entry, ...]:
        """Entries ``first`` to ``last``, both included, as far as they are not compacted away."""
        return tuple(self._entries[max(first - self.base.index - 1, 0) : max(last - self.base.index, 0)])

    def take_batch(self, first: int, max_bytes: int) -> tuple[Entry, ...]:
        """Entries from ``first`` on, together at most ``max_bytes`` of data, but at least one if there is any."""
        size = 0
        end = first
        while end <= self.last_index:
            size += len(self._entries[end - self.base.index - 1].data)
            if size > max_bytes and end > first:
                break
            end += 1
        return self.slice(first, end - 1)

    def append(self, term: int, data: bytes, *, is_members: bool = False) -> Entry:
        """Append one entry (a leader only ever does this: leader append-only, §5.3)."""
        assert term >= self.last_term, (term, self.last_term)
        entry = Entry(self.last_index + 1, term, data, is_members)
        self._entries.append(entry)
        self._record_configurations([entry])
        return entry

    def first_conflict(self, entries: Sequence[Entry]) -> int | None:
        """Return the first index at which ``entries`` differ from this log or go beyond it; None if it has them all.

        Judged by the entry's own term. Entries of this log beyond the last of ``entries`` are no conflict: an older,
        shorter message must not erase what a newer one brought (§5.3, fifth paragraph from the end). What is
        compacted away is committed, so no entry can differ there."""
        for entry in entries:
            if entry.index > self.base.index and self.term_at(entry.index) != entry.term:
                return entry.index
        return None

    def merge(self, entries: Sequence[Entry], first_new: int) -> None:
        """Replace everything from ``first_new`` on (see ``first_conflict``) by the part of ``entries`` there."""
        if first_new <= self.last_index:
            del self._entries[first_new - self.base.index - 1 :]
            while self._configurations[-1][0] >= first_new:
                self._configurations.pop()
            if first_new < self._first_unsaved:
                self._truncated_from = first_new
                self._first_unsaved = first_new
        new = [entry for entry in entries if entry.index >= first_new]
        self._entries.extend(new)
        self._record_configurations(new)

    def last_at_or_below(self, index: int, term: int) -> int:
        """Largest index <= ``index`` whose term is <= ``term``: where two logs can still agree, given that one
        has an entry of ``term`` there and the other's differs (dissertation §3.5 back-off, as etcd does it). Below
        the base if the entries that could show it are gone."""
        index = min(index, self.last_index)
        while index > self.base.index and self._entries[index - self.base.index - 1].term > term:
            index -= 1
        return index - 1 if index == self.base.index and self.base.term > term else index

    # --- founding and compaction: Raft §7 ------------------------------------------------------------------

    def found(self, members: Configuration) -> None:
        """Begin the log with this configuration."""
        assert self.base == EMPTY, "a cluster is founded once"
        self._rebase(Base(0, 0, members))

    def compact(self, index: int) -> None:
        """Drop the entries up to ``index``, which are applied and for which a snapshot stands."""
        term = self.term_at(index)
        assert term is not None and index < self._first_unsaved, index
        members = self.members_at(index)
        del self._entries[: index - self.base.index]
        self._rebase(Base(index, term, members))

    def restart(self, snapshot: Snapshot) -> None:
        """Become the log of another controller, from its snapshot on; nothing of this one is left."""
        if self._first_unsaved > self.base.index + 1:
            self._truncated_from = self.base.index + 1
        self._entries.clear()
        self._configurations = [(0, snapshot.members)]
        self._rebase(Base(snapshot.index, snapshot.term, snapshot.members))
        self._first_unsaved = snapshot.index + 1

    def _rebase(self, base: Base) -> None:
        self.base = self._unsaved_base = base
        later = [(since, members) for since, members in self._configurations if since > base.index]
        self._configurations = [(base.index, base.members), *later]

    # --- what is not durable -------------------------------------------------------------------------------

    def has_unsaved(self) -> bool:
        """Whether ``take_unsaved`` has something to give."""
        changed = self._truncated_from is not None or self._unsaved_base is not None
        return changed or self._first_unsaved <= self.last_index

    def take_unsaved(self) -> tuple[int | None, tuple[Entry, ...], Base | None]:
        """Return (truncate_from, entries, base) of a ``Persist``; they count as saved afterwards."""
        unsaved = self._truncated_from, self.slice(self._first_unsaved, self.last_index), self._unsaved_base
        self._truncated_from = self._unsaved_base = None
        self._first_unsaved = self.last_index + 1
        return unsaved

    def _record_configurations(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if entry.is_members:
                self._configurations.append((entry.index, decode_members(entry.data)))


def check_entries(entries: Sequence[Entry], base: Base) -> None:
    """AssertionError unless the entries are contiguous from the base and their terms never decrease: the storage has
    checked both before."""
    term = base.term
    for position, entry in enumerate(entries, base.index + 1):
        assert entry.index == position, f"entry {entry.index} stands at {position}"
        assert entry.term >= max(term, 1), f"term goes back to {entry.term} at {entry.index}"
        term = entry.term


def encode_entries(entries: Sequence[Entry]) -> bytes:
    """Return the payload of an ``AppendEntries``: CBOR [[term, data], …], with [data] for a configuration; b"" for no
    entries."""
    rows = [[entry.term, [entry.data] if entry.is_members else entry.data] for entry in entries]
    return cbor2.dumps(rows) if rows else b""


def decode_entries(payload: Payload, prev_index: int, prev_term: int, term: int) -> tuple[Entry, ...]:
    """Return the entries of an ``AppendEntries`` of ``term`` that follow (prev_index, prev_term). ProtocolError if
    ``encode_entries`` does not make these bytes, or if the terms go back or beyond the message's own."""
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
        index = prev_index + len(entries) + 1
        match pair:
            case [int(entry_term), bytes(data)] if type(entry_term) is int and lowest <= entry_term <= term:
                entries.append(Entry(index, entry_term, data))
            case [int(entry_term), [bytes(data)]] if type(entry_term) is int and lowest <= entry_term <= term:
                entries.append(Entry(index, entry_term, data, is_members=True))
                _check_members(data)
            case _:
                raise ProtocolError(f"append_entries: entry {len(entries)} of the payload is malformed")
        lowest = entry_term
    if encode_entries(entries) != raw:
        raise ProtocolError("append_entries: the payload has bytes behind its array, or another encoding")
    return tuple(entries)


def _check_members(data: bytes) -> None:
    try:
        decode_members(data)
    except ValueError as error:
        raise ProtocolError(f"append_entries: {error}") from error
