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
    """An effect for the storage: make durable, before any later effect of the list, term, vote and whether the store
    is rolled back; the snapshot, if there is one; then the removal of all entries from ``truncate_from`` on, if it is
    not None; the removal of all up to the base's index, if ``base`` is not None; then ``entries``, which follow those
    that are left."""

    term: int
    voted_for: NodeId | None
    truncate_from: int | None
    entries: tuple[Entry, ...]
    base: Base | None = None
    snapshot: Snapshot | None = None
    rolled_back: bool = False


@dataclass(frozen=True, slots=True)
class Apply:
    """An effect for the state machine: apply these committed entries in order. A ``Raft`` object gives each entry
    once, in order of index, from the one after the stored snapshot; so the state machine is rebuilt after a
    restart."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Restore:
    """An effect for the state machine: replace its state by this snapshot, which another controller sent. The next
    ``Apply`` follows it."""

    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """An effect for the state machine: encode its present state, after entry ``index``, and give the bytes to
    ``Raft.on_snapshot``."""

    index: int


@dataclass(frozen=True, slots=True)
class ReadReady:
    """An effect for the state machine (ReadIndex): answer the read ``token`` from the present state. This server led
    when the read began, and everything that was committed then is applied."""

    token: int


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """An effect that reports a change of this controller's role, its term or the leader that it knows. Reads and
    proposals that wait are over. It may stand before the ``Persist`` of the new term; that of a new leader stands
    behind it."""

    role: Role
    term: int
    leader_id: NodeId | None


@dataclass(frozen=True, slots=True)
class MembersChanged:
    """An effect that reports that this configuration is in force from now on, committed or not."""

    members: Configuration


RaftEffect = Persist | Send | Apply | Restore | RoleChanged | MembersChanged | TakeSnapshot | ReadReady | Event


def apply_persist(stored: PersistentState, persist: Persist) -> PersistentState:
    """Return what a disk that held ``stored`` holds after ``persist``: the meaning of the effect, for a store in
    memory."""
    entries, base = stored.entries, persist.base or stored.base
    if persist.truncate_from is not None:
        entries = entries[: max(persist.truncate_from - stored.base.index - 1, 0)]
    kept = [entry for entry in (*entries, *persist.entries) if entry.index > base.index]
    check_entries(kept, base)
    log = replace(stored, entries=kept, base=base, snapshot=persist.snapshot or stored.snapshot)
    return replace(log, term=persist.term, voted_for=persist.voted_for, rolled_back=persist.rolled_back)
