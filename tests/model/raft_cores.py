"""Raft cores and their messages as numbers, and the real code between them: the lower half of ``raft_search.py``.

Clocks are left out. Between two inputs of a server any time may have passed. So no server has heard its leader
lately, and every timer may end. What a leader requires of its followers' liveness (for a change or a transfer) is
always granted. Both are true of some real run. They only leave out votes that are refused because a leader was heard,
and such a refusal has the effect of a lost message. Numbers of heartbeats serve reads, and distinguish the runs of a
store whose disk may be an old copy: they are left out where there are no such disks.
"""

from __future__ import annotations

import io
import pickle
from collections import deque
from collections.abc import Callable
from dataclasses import is_dataclass, replace
from math import inf
from typing import Any, NamedTuple

from tidelog.sansio.effects import Send
from tidelog.types import NodeId
from tidelog.wire.messages import AppendResult, Message, Vote
from tidelog_controller.raft.effects import Apply, Persist, RaftEffect, TakeSnapshot, apply_persist
from tidelog_controller.raft.log import PersistentState
from tidelog_controller.raft.raft import Raft
from tidelog_controller.raft.settings import RaftSettings

SETTINGS = RaftSettings(
    heartbeat_s=1.0, election_timeout_min_s=10.0, election_timeout_max_s=20.0, append_max_bytes=1, append_window=1
)
"""Settings with one command per message, so that any part of a log may arrive."""
TERMS = 9
"""A number of terms beyond that of any scope."""
BEAT_S, GIVE_UP_S, QUIET_S = 2.0, 6.0, 30.0
"""When a heartbeat is due, when a transfer has failed, and when a leader has heard nobody for too long."""


class Middle:
    """A random generator that always returns 0.5: it only matters that a timer may end, not when."""

    def random(self) -> float:
        """Always the same."""
        return 0.5


class Server:
    """A controller: its core and its disk."""

    def __init__(self, name: NodeId, disk: PersistentState, *, rounds: bool = False) -> None:
        """``rounds``: the numbers of heartbeats matter."""
        self.name = name
        self.disk = disk
        self.rounds = rounds
        self.raft = self._begin()

    def _begin(self) -> Raft:
        return Raft(self.name, SETTINGS, replace(self.disk, entries=list(self.disk.entries)), Middle(), 0.0)

    def crash(self) -> list[RaftEffect]:
        """End the process and begin another with the content of the disk."""
        self.raft = self._begin()
        return []

    def forget_times(self) -> None:
        """Reset all times of the core, so that the value does not depend on them."""
        raft = self.raft
        raft._heard_leader_at, raft._election_at, raft._heartbeat_at = -inf, 25.0, 1.0
        raft._granted = dict(sorted(raft._granted.items()))
        raft._refused.clear()  # these three serve operators only
        raft.old_copies = raft.disks_needed = ()
        if not self.rounds:
            raft._round = 0
        for progress in raft._progress.values():
            progress.heard_at = 0.0
            if not self.rounds:
                progress.heard_round = 0
            if progress._round is not None:
                progress._round = (progress._round[0], 0.0)
        if raft._transfer.target is not None:
            raft._transfer.ends_at = 5.0


class Facts(NamedTuple):
    """What the invariants need of a server's value."""

    term: int
    leads: bool
    log: tuple[tuple[int, bytes], ...]
    """Term and data of each entry."""


class Move(NamedTuple):
    """The result of an input: the server's next value, the messages (a set of numbers, as bits), and the applied
    entries: index, term, data."""

    after: int
    sent: int
    applied: tuple[tuple[int, int, bytes], ...]


class Flight(NamedTuple):
    """A message in flight. ``to`` is the place of the receiver."""

    sender: NodeId
    to: int
    message: Message


Act = Callable[[Server], list[RaftEffect]]


class Cores:
    """Interned servers and messages, and their transitions."""

    def __init__(self, names: tuple[NodeId, ...], *, rounds: bool = False) -> None:
        """``rounds`` as in ``Server``."""
        self.names = names
        self._rounds = rounds
        self.facts: list[Facts] = []
        self.flights: list[Flight] = []
        self.to = [0] * len(names)
        """The messages to each place, as bits."""
        self.calls = 0
        self._facts: dict[Facts, Facts] = {}
        self._frozen: list[bytes] = []
        self._servers: dict[Any, int] = {}
        self._messages: dict[Flight, int] = {}
        self._moves: dict[tuple[int, Any], tuple[Move, ...]] = {}
        self._acked: dict[tuple[int, NodeId], int] = {}
        self._stale: list[list[int]] = [[0] * (TERMS + 1) for _ in names]

    def server(self, server: Server) -> int:
        """Return the number of a server's value."""
        server.forget_times()
        key = _key(server)
        number = self._servers.setdefault(key, len(self.facts))
        if number == len(self.facts):
            raft = server.raft
            rows = tuple((entry.term, entry.data) for entry in raft.log.slice(1, raft.log.last_index))
            facts = Facts(raft.term, raft.role == "leader", rows)
            self.facts.append(self._facts.setdefault(facts, facts))
            self._frozen.append(_freeze(server))
        return number

    def message(self, sender: NodeId, send: Send) -> int:
        """Return the number of a message; -1 if it has no receiver."""
        if send.to not in self.names:
            return -1
        message = send.message
        if hasattr(message, "round") and not self._rounds:
            message = replace(message, round=0)  # type: ignore[type-var]
        flight = Flight(sender, self.names.index(send.to), message)
        number = self._messages.setdefault(flight, len(self.flights))
        if number == len(self.flights):
            self.flights.append(flight)
            self.to[flight.to] |= 1 << number
            if isinstance(message, Vote | AppendResult):
                stale = self._stale[flight.to]
                for later in range(message.term + 1, len(stale)):
                    stale[later] |= 1 << number
        return number

    def acked(self, number: int, peer: NodeId) -> int:
        """Return the index that a leader has seen acknowledged in its term by a follower."""
        key = (number, peer)
        if key not in self._acked:
            self._acked[key] = _thaw(self._frozen[number]).raft._progress[peer].acked
        return self._acked[key]

    def stale(self, place: int, number: int) -> int:
        """Return the answers of terms that the server there has left for good: they count as never sent."""
        return self._stale[place][self.facts[number].term]

    def move(self, number: int, input: Any, act: Act) -> tuple[Move, ...]:
        """Return the results of an input: first that without a crash, then those of a process that ends in the middle
        and starts again. (It only ends right before something becomes durable: everything sent before that is sent,
        and a lost message covers the rest.)"""
        key = (number, input)
        if key not in self._moves:
            self.calls += 1
            server: Server = _thaw(self._frozen[number])
            self._moves[key] = self._perform(server, act(server))
        return self._moves[key]

    def _perform(self, server: Server, effects: list[RaftEffect]) -> tuple[Move, ...]:
        sent, applied, crashed = 0, [], []
        for effect in effects:
            match effect:
                case Persist():
                    if sent or applied:
                        crashed.append((server.disk, sent, tuple(applied)))
                    server.disk = apply_persist(server.disk, effect)
                case Send():
                    told = self.message(server.name, effect)
                    sent |= 1 << told if told >= 0 else 0
                case Apply(entries):
                    applied += [(entry.index, entry.term, entry.data) for entry in entries]
                case TakeSnapshot():
                    raise AssertionError("a log that short needs no snapshot")
        moves = [Move(self.server(server), sent, tuple(applied))]
        for disk, told, done in crashed:
            moves.append(Move(self.server(Server(server.name, disk, rounds=self._rounds)), told, done))
        return tuple(moves)


def _key(value: Any) -> Any:
    """Return a value by its structure, so that two ways to the same value meet."""
    kind = type(value)
    if kind in PLAIN or kind is RaftSettings:
        return value
    if kind is bytearray:
        return bytes(value)
    if kind in (list, tuple, deque):
        return tuple(map(_key, value))
    if kind is dict:
        return tuple((key, _key(item)) for key, item in value.items())
    if is_dataclass(kind) and kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return value
    names = value.__dict__ if hasattr(value, "__dict__") else kind.__slots__
    return (kind.__name__, *(_key(getattr(value, name)) for name in names))


PLAIN = (int, str, bytes, bool, float, type(None))


def _freeze(server: Server) -> bytes:
    file = io.BytesIO()
    pickler = pickle.Pickler(file, 5)
    pickler.persistent_id = lambda value: "settings" if value is SETTINGS else None  # type: ignore[method-assign]
    pickler.dump(server)
    return file.getvalue()


def _thaw(data: bytes) -> Any:
    unpickler = pickle.Unpickler(io.BytesIO(data))
    unpickler.persistent_load = lambda name: SETTINGS  # type: ignore[method-assign, assignment]
    return unpickler.load()
