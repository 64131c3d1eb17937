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
    """One entry of the Raft log. ``data`` is an encoded command, or empty for the no-op with which a leader begins
    its term."""

    index: int
    term: int
    data: bytes
    is_members: bool = False
    """Whether ``data`` is a configuration (``raft/membership.py``) instead of a command."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The encoded state machine after entry ``index``, with that entry's term and the configuration that was in force
    there."""

    index: int
    term: int
    members: Configuration
    data: bytes


@dataclass(frozen=True, slots=True)
class Base:
    """The place where the log begins: all entries up to ``index`` are compacted away. The last of them had ``term``,
    and the configuration ``members`` was in force there."""

    index: int = 0
    term: int = 0
    members: Configuration = NOBODY


EMPTY = Base()
"""The base of a log that has never been compacted or founded."""


@dataclass(slots=True)
class PersistentState:
    """The content of a controller's disk when it starts: term, vote, log, snapshot and the name of its store. The
    defaults are those of a new store."""

    term: int = 0
    voted_for: NodeId | None = None
    entries: list[Entry] = field(default_factory=list)
    base: Base = EMPTY
    snapshot: Snapshot | None = None
    store: str = ""
    """The random name of this store, drawn when it was made."""
    lost: bool = False
    """Whether the store was made because an earlier one was damaged or missing: then it never takes part in founding
    a cluster."""
    rolled_back: bool = False
    """Whether the disk is an old copy that the leader has not refilled yet (``old_copies.py``): then the store has no
    vote."""


class RaftLog:
    """The Raft log of one controller in memory, as long as the process runs. It also records which of its changes are
    not durable yet: applied to the stored log (``apply_persist``), these changes give this log."""

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
        """Return the index of the last entry; the index of the base if there are no entries."""
        return self.base.index + len(self._entries)

    @property
    def entry_count(self) -> int:
        """Return the number of entries that are not compacted away."""
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        """Return the total size in bytes of the data of the entries that are not compacted away."""
        return sum(len(entry.data) for entry in self._entries)

    @property
    def last_term(self) -> int:
        """Return the term of the last entry; the term of the base if there are no entries."""
        return self._entries[-1].term if self._entries else self.base.term

    @property
    def members(self) -> Configuration:
        """Return the configuration in force: the newest in the log, committed or not (Raft §6)."""
        return self._configurations[-1][1]

    @property
    def members_index(self) -> int:
        """Return the index of the entry that holds the configuration in force; the index of the base if that entry is
        compacted away."""
        return self._configurations[-1][0]

    def members_at(self, index: int) -> Configuration:
        """Return the configuration that was in force at ``index``, which must not be below the base."""
        return next(members for since, members in reversed(self._configurations) if since <= index)

    def term_at(self, index: int) -> int | None:
        """Return the term of the entry at ``index``, which may be the base; None below the base and beyond the end of
        the log."""
        if index == self.base.index:
            return self.base.term
        return self._entries[index - self.base.index - 1].term if self.base.index < index <= self.last_index else None

    def has(self, index: int, term: int) -> bool:
        """Return whether this log contains the entry (``index``, ``term``), which some leader has had in its log. An
        entry that is compacted away counts as present, since it is committed."""
        return index <= self.base.index or self.term_at(index) == term

    def slice(self, first: int, last: int) -> tuple[Entry, ...]:
        """Return the entries from ``first`` to ``last``, both included. Indexes that are compacted away or beyond the
        end are left out."""
        return tuple(self._entries[max(first - self.base.index - 1, 0) : max(last - self.base.index, 0)])

    def take_batch(self, first: int, max_bytes: int) -> tuple[Entry, ...]:
        """Return the entries from index ``first`` on whose data have at most ``max_bytes`` together, but at least one
        entry; an empty tuple if the log ends before ``first``. The log is unchanged."""
        size = 0
        end = first
        while end <= self.last_index:
            size += len(self._entries[end - self.base.index - 1].data)
            if size > max_bytes and end > first:
                break
            end += 1
        return self.slice(first, end - 1)

    def append(self, term: int, data: bytes, *, is_members: bool = False) -> Entry:
        """Append an entry of ``term`` at the end and return it; it is not durable yet. Only a leader appends, and it
        never changes its own entries (leader append-only, §5.3). Fails an assertion if ``term`` is below the last
        entry's."""
        assert term >= self.last_term, (term, self.last_term)
        entry = Entry(self.last_index + 1, term, data, is_members)
        self._entries.append(entry)
        self._record_configurations([entry])
        return entry

    def first_conflict(self, entries: Sequence[Entry]) -> int | None:
        """Return the first index at which ``entries`` differ from this log or go beyond its end; None if this log has
        them all.

        Entries are compared by term. Entries of this log beyond the last of ``entries`` are no conflict: an older,
        shorter message must not erase what a newer one brought (§5.3, fifth paragraph from the end). What is
        compacted away is committed, so no entry can differ there."""
        for entry in entries:
            if entry.index > self.base.index and self.term_at(entry.index) != entry.term:
                return entry.index
        return None

    def merge(self, entries: Sequence[Entry], first_new: int) -> None:
        """Replace all entries of this log from index ``first_new`` on by those of ``entries`` from there on.
        ``first_new`` is what ``first_conflict`` returned for ``entries``. The configuration in force follows the
        entries."""
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
        """Return the largest index up to ``index`` whose entry has a term up to ``term``: the last place where this
        log can still agree with another that has an entry of ``term`` at ``index`` (dissertation §3.5, the back-off
        as etcd does it). The result is below the base if the entries that could show it are compacted away."""
        index = min(index, self.last_index)
        while index > self.base.index and self._entries[index - self.base.index - 1].term > term:
            index -= 1
        return index - 1 if index == self.base.index and self.base.term > term else index

    # --- founding and compaction: Raft §7 ------------------------------------------------------------------

    def found(self, members: Configuration) -> None:
        """Begin an empty log with ``members`` as its configuration, at index 0. Fails an assertion if the log has
        begun before."""
        assert self.base == EMPTY, "a cluster is founded once"
        self._rebase(Base(0, 0, members))

    def compact(self, index: int) -> None:
        """Drop the entries up to ``index``, which becomes the base. They must be applied, durable, and covered by a
        snapshot. Fails an assertion if ``index`` is not in the log or not durable."""
        term = self.term_at(index)
        assert term is not None and index < self._first_unsaved, index
        members = self.members_at(index)
        del self._entries[: index - self.base.index]
        self._rebase(Base(index, term, members))

    def restart(self, snapshot: Snapshot) -> None:
        """Drop all entries and continue behind ``snapshot``, which another controller sent: its last entry is the
        base, and its configuration is in force."""
        if self._first_unsaved > self.base.index + 1:
            self._truncated_from = self.base.index + 1
        self._entries.clear()
        self._configurations = [(0, snapshot.members)]
        self._rebase(Base(snapshot.index, snapshot.term, snapshot.members))
        self._first_unsaved = snapshot.index + 1

    def _rebase(self, base: Base) -> None:
        """Set the base, as a change that is not durable yet, and forget the configurations of entries that are
        compacted away."""
        self.base = self._unsaved_base = base
        later = [(since, members) for since, members in self._configurations if since > base.index]
        self._configurations = [(base.index, base.members), *later]

    # --- what is not durable -------------------------------------------------------------------------------

    def has_unsaved(self) -> bool:
        """Return whether the log has changes that are not durable yet."""
        changed = self._truncated_from is not None or self._unsaved_base is not None
        return changed or self._first_unsaved <= self.last_index

    def take_unsaved(self) -> tuple[int | None, tuple[Entry, ...], Base | None]:
        """Return the changes that are not durable yet, for a ``Persist`` effect: the index from which stored entries
        are removed, or None; the entries to append; and the new base, or None. The changes count as durable
        afterwards."""
        unsaved = self._truncated_from, self.slice(self._first_unsaved, self.last_index), self._unsaved_base
        self._truncated_from = self._unsaved_base = None
        self._first_unsaved = self.last_index + 1
        return unsaved

    def _record_configurations(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if entry.is_members:
                self._configurations.append((entry.index, decode_members(entry.data)))


def check_entries(entries: Sequence[Entry], base: Base) -> None:
    """Raise ``AssertionError`` if the indexes of the entries do not follow each other from the base on, or if their
    terms decrease. The storage has checked both before."""
    term = base.term
    for position, entry in enumerate(entries, base.index + 1):
        assert entry.index == position, f"entry {entry.index} stands at {position}"
        assert entry.term >= max(term, 1), f"term goes back to {entry.term} at {entry.index}"
        term = entry.term


def encode_entries(entries: Sequence[Entry]) -> bytes:
    """Return the payload of an ``AppendEntries`` message with these entries: CBOR [[term, data], …], where the data
    of a configuration are written as [data]. Return empty bytes if there are no entries."""
    rows = [[entry.term, [entry.data] if entry.is_members else entry.data] for entry in entries]
    return cbor2.dumps(rows) if rows else b""


def decode_entries(payload: Payload, prev_index: int, prev_term: int, term: int) -> tuple[Entry, ...]:
    """Return the entries in the payload of an ``AppendEntries`` message of ``term``; an empty tuple for an empty
    payload. The first entry follows (``prev_index``, ``prev_term``). Raises ``ProtocolError`` if ``encode_entries``
    does not make these bytes, or if a term is below that of the entry before or above ``term``."""
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
