"""What is left to do when the majority of the controllers is lost for good: one that is left goes on alone.

Raft cannot do this: a minority must not decide, since it may lack what the majority committed. So an operator does,
who knows that the others are gone and never come back with the disks they had: two groups would lead the cluster
then. To the log of the survivor, which must not run, an entry is added, of a new term, with a configuration of the
survivor alone (``core/members.py``). When it is started it has a majority, and with its first entry commits all that
its log holds, committed before or not. What the others had committed and it had not got is lost: the last moments of
a survivor that kept up; of several the one with the greatest (term, index) has everything that any of them has."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from tidelog.errors import ConfigError

from tidelog_controller.config import ControllerConfig
from tidelog_controller.core.members import Member, Members, encode_members
from tidelog_controller.core.raft_log import Entry, Persist, RaftLog, Stored
from tidelog_controller.storage import RaftStorage


@dataclass(frozen=True, slots=True)
class Survivor:
    """A controller that does not run, and how far its log goes. ``others``: the rest of its group."""

    node: str
    term: int
    index: int
    others: tuple[str, ...]


def examine(config: ControllerConfig) -> Survivor:
    """What that controller could go on with. ``ConfigError`` if it runs, is damaged, or holds no cluster."""
    storage, stored = _open(config)
    storage.close()
    return _survivor(config, stored)


def rescue(config: ControllerConfig) -> Survivor:
    """Let it be a group of its own when it is started next; durable when this returns. As ``examine``."""
    storage, stored = _open(config)
    try:
        survivor = _survivor(config, stored)
        alone = Members((Member(config.node, config.peers[config.node], True, stored.store),))
        term = stored.term + 1
        entry = Entry(survivor.index + 1, term, encode_members(alone), is_members=True)
        storage.perform(Persist(term, None, None, (entry,)))
    except (sqlite3.Error, OSError) as error:
        raise ConfigError(f"{storage.path} cannot be written: {error}") from error
    finally:
        storage.close()
    return survivor


def _open(config: ControllerConfig) -> tuple[RaftStorage, Stored]:
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


def _survivor(config: ControllerConfig, stored: Stored) -> Survivor:
    log = RaftLog(stored.entries, stored.base)
    others = tuple(member.node for member in log.members.all if member.node != config.node)
    if log.members.find(config.node) is None:
        raise ConfigError(f"{config.node} is in no group: its store in {config.data_dir} is new, or was lost")
    return Survivor(config.node, log.last_term, log.last_index, others)
