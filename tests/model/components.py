"""Values of servers and messages as numbers, and the real code between them: the lower half of ``search.py``.

The value of a server is its pickle. Its structure is its key, so two ways to the same value meet. An input unpickles
the server, runs the real code, and pickles it again; each distinct (value, input) runs once.
"""

from __future__ import annotations

import io
import pickle
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from tidelog.types import NodeId
from tidelog.wire.messages import AlterIsr
from tidelog_controller.metadata.state import MetadataState

from model.ghost import Ghost
from model.messages import Asked, Sent, Told
from model.server import KEY, Server
from model.world import World

Move = tuple[int, tuple[int, ...]]
"""The result of a component transition: the next value, and the messages."""


class Facts(NamedTuple):
    """What the invariants need of a server's value."""

    name: NodeId
    up: bool
    hurt: bool
    broker_epoch: int
    leads: int
    """The leader epoch in which it leads; -1 if it does not."""
    high_watermark: int
    row: tuple[int, ...]
    batches: tuple[bytes, ...]
    durable: int
    maximal_isr: tuple[NodeId, ...]
    offline: str | None
    end_known: bool


class Silent(Ghost):
    """A ghost that checks nothing: here the invariants are checked from outside."""

    def on_append(self, server: Server, offset: int, batch: bytes, epoch: int, before: int) -> None:
        """Ignore an append."""

    def on_settled(self, server: Server) -> None:
        """Ignore a settled server."""

    def on_ack(self, server: Server, batch: bytes, offset: int) -> None:
        """Ignore an acknowledged batch."""

    def on_state(self, *arguments: Any) -> None:
        """Ignore a new state of the partition."""


class Unasked:
    """A replacement for ``LeadershipConfirmation``: no reads happen here, and its round numbers would make every
    state a new one."""

    def __init__(self, *arguments: float) -> None:
        self.asked_at = 0.0
        self.last_stamp = -1
        """So every fetch counts, also one in flight when its sender left the ISR: no server loses data while its
        process runs on (in the walks they do)."""

    def stamp(self, node: NodeId, now: float) -> int:
        """Return a stamp that never changes."""
        return 0

    def on_fetch(self, node: NodeId, stamp: int) -> None:
        """Ignore the stamp of a fetch."""

    def since(self, others: Any, enough: int) -> float:
        """Return a time at which leadership is always confirmed."""
        return 0.0

    def has_confirmed(self, node: NodeId) -> bool:
        """Return whether a node has confirmed the leader: always here."""
        return True


def freeze(value: Any, seen: dict[int, Any]) -> Any:
    """Return a value as nested tuples; an object that occurs again is replaced by a short reference."""
    kind = type(value)
    if kind in (int, str, bytes, bool, float, type(None)):
        return value
    if kind in (tuple, list, deque):
        return tuple(freeze(item, seen) for item in value)
    if id(value) in seen:
        return "again"
    seen[id(value)] = value
    if kind is dict:
        return tuple((freeze(key, seen), freeze(item, seen)) for key, item in value.items())
    if kind.__name__ in SHARED or callable(value):
        return kind.__name__
    names = getattr(value, "__dict__", None)
    if names is None:
        names = {name: getattr(value, name) for name in kind.__slots__}
    return (kind.__name__, *(freeze(item, seen) for item in names.values()))


SHARED = ("Effects", "NodeContext", "Silent", "ReplicaSettings", "TopicConfig", "Unasked")
"""Classes without a state of their own between inputs: one object serves every value of a server."""


class Components:
    """Interned servers and messages, and their transitions."""

    def __init__(self) -> None:
        self.frozen: list[bytes] = []
        self.facts: list[Facts] = []
        self.messages: list[Sent] = []
        self.asker: list[NodeId] = []
        """By message, the server whose request or answer it is; "" for other messages and held ones."""
        self.holdings: list[int] = []
        """By server value, a number; equal numbers are equal for the invariants between servers."""
        self._holdings: dict[Any, int] = {}
        self.calls = 0
        self._servers: dict[Any, int] = {}
        self._messages: dict[Any, int] = {}
        self._shared: dict[str, Any] = {}
        self._moves: dict[tuple[int, Any], Move | None] = {}

    def message(self, sent: Sent) -> int:
        """Return the number of a message."""
        if isinstance(sent.body, AlterIsr):
            sent = replace(sent, body=replace(sent.body, evidence={}, cause=""))
        key = freeze(sent, {})
        number = self._messages.setdefault(key, len(self.messages))
        if number == len(self.messages):
            self.messages.append(sent)
            body = sent.body
            asker = body.node if isinstance(body, Asked) else body.asked.node if isinstance(body, Told) else ""
            self.asker.append("" if sent.held else asker)
        return number

    def server(self, server: Server) -> int:
        """Return the number of a server's value."""
        key = freeze(server, {})
        number = self._servers.setdefault(key, len(self.frozen))
        if number == len(self.frozen):
            self.frozen.append(self._freeze(server))
            facts = _facts(server)
            self.facts.append(facts)
            held = facts._replace(up=True, broker_epoch=0, high_watermark=0, end_known=False)
            self.holdings.append(self._holdings.setdefault(held, len(self._holdings)))
        return number

    def move(self, number: int, input: Any, act: Callable[[Server], bool]) -> Move | None:
        """Return the value and the messages that an input leads to; None if it changes nothing."""
        key = (number, input)
        if key not in self._moves:
            self.calls += 1
            server = self._thaw(self.frozen[number])
            done = act(server)
            sent = tuple(self.message(message) for message in server.sent)
            server.sent.clear()
            after = self.server(server)
            self._moves[key] = None if not done or (after == number and not sent) else (after, sent)
        return self._moves[key]

    def _freeze(self, server: Server) -> bytes:
        file = io.BytesIO()
        pickler = pickle.Pickler(file, 5)
        shared = self._shared

        def persistent_id(value: Any) -> str | None:
            name = type(value).__name__
            if name not in SHARED:
                return None
            label = f"{name} {server.name}" if name in ("Effects", "NodeContext") else name
            shared.setdefault(label, value)
            return label

        pickler.persistent_id = persistent_id  # type: ignore[method-assign]
        pickler.dump(server)
        return file.getvalue()

    def _thaw(self, data: bytes) -> Server:
        unpickler = pickle.Unpickler(io.BytesIO(data))
        unpickler.persistent_load = self._shared.__getitem__  # type: ignore[method-assign, assignment]
        server: Server = unpickler.load()
        return server


def _facts(server: Server) -> Facts:
    partition = server.partition
    core = None if partition is None or partition.leading is None else partition.leading.core
    return Facts(
        server.name,
        server.up,
        server.hurt,
        server.broker_epoch,
        -1 if core is None else core.leader_epoch,
        0 if partition is None else partition.high_watermark,
        tuple(server.disk.row),
        tuple(server.disk.batches),
        server.durable,
        () if core is None else core.maximal_isr,
        None if partition is None else partition.offline,
        core is not None and core.knows_end,
    )


def take(server: Server, sent: Sent) -> bool:
    """Deliver a message to a server."""
    desk = _Desk(server)
    World._hand_over(desk, sent)  # type: ignore[arg-type]
    return True


class _Desk:
    """Stands for the world of a walk, with the one server that a message goes to."""

    def __init__(self, server: Server) -> None:
        self.servers = {server.name: server}

    def _collect(self, server: Server) -> None:
        """Do nothing: ``Components`` takes the messages of the server."""


def learn(server: Server, state: MetadataState) -> bool:
    """Give a server the newest metadata; returns False if it does not take them."""
    if server.broker_epoch < 0 or state.index < server.index or state.index <= server.view:
        return False
    topic = state.topics[KEY.topic_id]
    server.on_metadata(state.index, state.servers, topic.config, topic.partitions[0])
    return True
