"""The effects of Raft: what the caller must do, in the order of the list.

A ``Persist`` stands before every ``Send`` that depends on it. So a caller that performs the effects in order never
sends what its disk could still forget. ``apply_persist`` is the meaning of a ``Persist`` for a disk in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tidelog.sansio.effects import Event, Send
from tidelog.types import NodeId

from tidelog_controller.raft.log import Base, Entry, PersistentState, Snapshot, check_entries
from tidelog_controller.raft.membership import Configuration

Role = Literal["follower", "pre_candidate", "candidate", "leader"]


@dataclass(frozen=True, slots=True)
class Persist:
    """An effect for the storage: make these changes durable before any later effect of the list is performed. Term,
    vote and ``rolled_back`` (whether the store is an old copy) are replaced, and so is the snapshot unless it is
    None. Stored entries from index ``truncate_from`` on are removed unless it is None, and those up to the base's
    index unless ``base`` is None. Then ``entries`` are appended to those that are left."""

    term: int
    voted_for: NodeId | None
    truncate_from: int | None
    entries: tuple[Entry, ...]
    base: Base | None = None
    snapshot: Snapshot | None = None
    rolled_back: bool = False


@dataclass(frozen=True, slots=True)
class Apply:
    """An effect for the state machine: apply these committed entries in order. A ``Raft`` object emits each entry
    once, in order of index, beginning after the stored snapshot, so that the state is rebuilt after a restart."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Restore:
    """An effect for the state machine: replace its state by this snapshot, which the leader sent. The next ``Apply``
    begins with the entry after it."""

    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """An effect for the state machine: encode its present state, which is that after entry ``index``, and pass the
    bytes to ``Raft.on_snapshot`` (``snapshots.py``)."""

    index: int


@dataclass(frozen=True, slots=True)
class ReadReady:
    """An effect for the state machine (ReadIndex): answer the read with this token from the present state. This
    server led when the read began, and everything that was committed then is applied."""

    token: int


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """An effect that reports that this controller's role, its term or the leader that it knows has changed. Reads and
    proposals that wait have failed. The effect may stand before the ``Persist`` of the new term; only that of a new
    leader always stands behind it."""

    role: Role
    term: int
    leader_id: NodeId | None


@dataclass(frozen=True, slots=True)
class MembersChanged:
    """An effect that reports that ``members`` is the configuration in force from now on, committed or not."""

    members: Configuration


RaftEffect = Persist | Send | Apply | Restore | RoleChanged | MembersChanged | TakeSnapshot | ReadReady | Event


def apply_persist(stored: PersistentState, persist: Persist) -> PersistentState:
    """Return what a disk that held ``stored`` holds after the effect ``persist``. This defines the effect; tests use
    it as a disk in memory. Fails an assertion if the entries that result do not follow each other."""
    entries, base = stored.entries, persist.base or stored.base
    if persist.truncate_from is not None:
        entries = entries[: max(persist.truncate_from - stored.base.index - 1, 0)]
    kept = [entry for entry in (*entries, *persist.entries) if entry.index > base.index]
    check_entries(kept, base)
    log = replace(stored, entries=kept, base=base, snapshot=persist.snapshot or stored.snapshot)
    return replace(log, term=persist.term, voted_for=persist.voted_for, rolled_back=persist.rolled_back)
