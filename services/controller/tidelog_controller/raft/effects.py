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
    """Make durable, before any later effect of the list: term, vote and whether the store is rolled back; the
    snapshot, if there is one; then, if ``truncate_from`` is not None, the removal of all entries from that index on;
    if ``base`` is not None, of all up to its index; then ``entries``, which follow what is left."""

    term: int
    voted_for: NodeId | None
    truncate_from: int | None
    entries: tuple[Entry, ...]
    base: Base | None = None
    snapshot: Snapshot | None = None
    rolled_back: bool = False


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply these entries, which are committed. A ``Raft`` object gives each entry once, in order of index, from the
    one after the stored snapshot; that rebuilds the state machine after a restart."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Restore:
    """Replace the state machine by this snapshot of another controller; the next ``Apply`` follows it."""

    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Write down the state machine as it is now, after entry ``index``, and bring it to ``Raft.on_snapshot``."""

    index: int


@dataclass(frozen=True, slots=True)
class ReadReady:
    """ReadIndex: this server led when read ``token`` began, and all that was committed then is applied now."""

    token: int


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """The role, the term or the known leader of this controller has changed. This is for information: it may stand
    before the ``Persist`` of the new term, except that the one of a new leader stands behind it."""

    role: Role
    term: int
    leader_id: NodeId | None


@dataclass(frozen=True, slots=True)
class MembersChanged:
    """This configuration is in force from here on, committed or not."""

    members: Configuration


RaftEffect = Persist | Send | Apply | Restore | RoleChanged | MembersChanged | TakeSnapshot | ReadReady | Event


def apply_persist(stored: PersistentState, persist: Persist) -> PersistentState:
    """Return what the disk holds after ``persist``: the meaning of the effect, for storage in memory."""
    entries, base = stored.entries, persist.base or stored.base
    if persist.truncate_from is not None:
        entries = entries[: max(persist.truncate_from - stored.base.index - 1, 0)]
    kept = [entry for entry in (*entries, *persist.entries) if entry.index > base.index]
    check_entries(kept, base)
    log = replace(stored, entries=kept, base=base, snapshot=persist.snapshot or stored.snapshot)
    return replace(log, term=persist.term, voted_for=persist.voted_for, rolled_back=persist.rolled_back)
