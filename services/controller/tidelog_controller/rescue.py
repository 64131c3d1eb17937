"""The rescue of a cluster that has lost the majority of its controllers for good: one controller that is left goes on
alone.

Raft cannot do this: a minority must not decide, since it may lack what the majority committed. So an operator does,
who knows that the others are gone and never come back with the disks they had: two groups would lead the cluster
then. All entries of the survivor's log, committed or not, are applied; the survivor must not run meanwhile. From then
on its store holds a snapshot of the outcome, with a configuration of the survivor alone (``raft/membership.py``), in
a new term and at an index that no process has seen. In the snapshot every number that must not be given twice is far
beyond what it was, and no partition is led before its replicas have reported what they know
(``metadata/rules/recovery.py``). A snapshot has room for all that, and needs no entry that an earlier release could
not read.

What the others had committed and the survivor had not received is lost: the last moments of a survivor that kept up.
Of several survivors the one with the greatest (term, index) has everything that any of them has."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from tidelog.errors import ConfigError
from tidelog.types import NodeId

from tidelog_controller.config import ControllerConfig
from tidelog_controller.metadata.rules.recovery import index_beyond, recovered
from tidelog_controller.metadata.state import MetadataState
from tidelog_controller.metadata.state_machine import Replicated, decode_state, encode_state, step
from tidelog_controller.raft.effects import Persist
from tidelog_controller.raft.log import Base, PersistentState, RaftLog, Snapshot
from tidelog_controller.raft.membership import Configuration, Member
from tidelog_controller.storage import RaftStorage


@dataclass(frozen=True, slots=True)
class Survivor:
    """A controller that does not run and that could go on alone: its name, the term and index of the last entry in
    its log, and the names of the other members of its group."""

    node: str
    term: int
    index: int
    others: tuple[str, ...]


def examine(config: ControllerConfig) -> Survivor:
    """Return how far the log of the controller with this configuration reaches, and the names of the other members of
    its group. Its store is not changed. Raises ``ConfigError`` if the controller runs, its store is damaged, or it
    belongs to no group."""
    storage, stored = _open(config)
    storage.close()
    return _survivor(config, stored)


def rescue(config: ControllerConfig, wall_ms: int, *, beyond: int = 0) -> Survivor:
    """Change the store of a controller that does not run, so that it is a group of its own when it is started next.
    The change is durable on return. Return the survivor as it was before, like ``examine``. ``wall_ms`` is the time
    in milliseconds since 1970; the index of the new snapshot is above ``beyond``. Raises ``ConfigError`` in the cases
    of ``examine``, and if the store cannot be read or written."""
    storage, stored = _open(config)
    try:
        survivor = _survivor(config, stored)
        url = config.peers[config.node]
        storage.perform(plan_rescue(stored, config.cluster, config.node, url, wall_ms, beyond=beyond))
    except ValueError as error:
        raise ConfigError(f"{storage.path} cannot be read: {error}") from error
    except (sqlite3.Error, OSError) as error:
        raise ConfigError(f"{storage.path} cannot be written: {error}") from error
    finally:
        storage.close()
    return survivor


def replay(stored: PersistentState, cluster: str) -> Replicated:
    """Return the replicated state after the snapshot and every entry of a store, committed or not. Raises
    ``ValueError`` for a snapshot or command that this release does not know."""
    state = Replicated(MetadataState(cluster))
    if stored.snapshot is not None:
        state = decode_state(stored.snapshot.data)
    for entry in stored.entries:
        if entry.index > state.metadata.index:
            state = step(state, entry).state
    return state


def plan_rescue(
    stored: PersistentState, cluster: str, node: NodeId, url: str, wall_ms: int, *, beyond: int = 0
) -> Persist:
    """Return the change that makes the store ``stored`` that of a group of its own: a snapshot of its whole state, in
    the next term, at an index above ``beyond`` and above all that any process has seen, with ``node`` as the only
    voter. Nothing is written. Raises ``ValueError`` for a store that this release cannot read."""
    before = replay(stored, cluster)
    index = index_beyond(max(before.metadata.index, beyond), wall_ms)
    after = Replicated(recovered(before.metadata, index, wall_ms), before.sessions)
    alone = Configuration((Member(node, url, True, stored.store),))
    term = stored.term + 1
    snapshot = Snapshot(index, term, alone, encode_state(after))
    return Persist(term, None, stored.base.index + 1, (), Base(index, term, alone), snapshot)


def _open(config: ControllerConfig) -> tuple[RaftStorage, PersistentState]:
    """Open the store of a controller and return it with its content. Raises ``ConfigError`` if there is none, or if
    ``peers`` does not name this controller."""
    if config.node not in config.peers:
        raise ConfigError("peers: must name this controller and the others; one that is alone needs no rescue")
    if not (Path(config.data_dir) / "raft.db").exists():
        raise ConfigError(f"{config.data_dir} holds no store of a controller (raft.db)")
    storage = RaftStorage(config.data_dir, config.cluster, config.node, "")
    try:
        return storage, storage.load()
    except BaseException:
        storage.close()
        raise


def _survivor(config: ControllerConfig, stored: PersistentState) -> Survivor:
    """Return the last entry and the other members of a store's group. Raises ``ConfigError`` if its group lacks this
    controller."""
    log = RaftLog(stored.entries, stored.base)
    others = tuple(member.node for member in log.members.all if member.node != config.node)
    if log.members.find(config.node) is None:
        raise ConfigError(f"{config.node} is in no group: its store in {config.data_dir} is new, or was lost")
    return Survivor(config.node, log.last_term, log.last_index, others)
