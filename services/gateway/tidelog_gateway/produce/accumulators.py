"""Merges batches for one leader, and acks for one client, into few messages."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tidelog.sansio.counters import count
from tidelog.sansio.effects import Post, Send
from tidelog.types import Buffer, NodeId
from tidelog.wire.messages import Produce, ProduceAck, Produced, ProducePart

from tidelog_gateway.refusals import NamesError, keep_error

MAX_PARTS = 128
"""Most parts or acks in one message: keeps headers well inside the codec's limits."""


@dataclass(slots=True)
class _OpenProduce:
    """A ``Produce`` message to one leader, to which batches are added until it is closed."""

    parts: list[ProducePart] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    size: int = 0


class ProduceAccumulator:
    """The batches of one flush of the router, gathered into ``Produce`` messages by leader. A message is closed when
    the next batch would exceed ``max_bytes`` bytes or ``MAX_PARTS`` batches."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._open: dict[NodeId, _OpenProduce] = {}
        self._closed: list[Send] = []

    def add(self, node: NodeId, part: ProducePart, batch: Buffer) -> None:
        """Add a batch to the open message for its leader, after closing that message if it is full. The batches of a
        leader keep their order."""
        message = self._open.get(node)
        if message is not None and (message.size + part.size > self._max_bytes or len(message.parts) == MAX_PARTS):
            self._closed.append(_close(node, message))
            message = None
        if message is None:
            message = self._open[node] = _OpenProduce()
        message.parts.append(part)
        message.buffers.append(batch)
        message.size += part.size

    def close(self) -> list[Send]:
        """Return all ``Produce`` messages as effects, each with its leader as receiver; an empty list if no batch was
        added. Nothing is added afterwards."""
        return self._closed + [_close(node, message) for node, message in self._open.items()]


class AckAccumulator:
    """The acks that the next flush of the router sends to clients, gathered by client, and counters of their errors
    since the start. ``name_error`` gives each error an id."""

    def __init__(self, name_error: NamesError = keep_error) -> None:
        self._name_error = name_error
        self._acks: dict[int, list[ProduceAck]] = {}
        self.errors: dict[str, int] = {}
        """Number of acks with an error, by its code."""

    def __bool__(self) -> bool:
        return bool(self._acks)

    def add(self, source: int, ack: ProduceAck, part: ProducePart) -> None:
        """Add the ack of batch ``part`` of the client ``source`` to those that ``drain`` returns. If it has an error,
        count its code and give it an id."""
        if ack.error is not None:
            count(self.errors, ack.error.code)
            ack = replace(ack, error=self._name_error(source, Produce.OP, part, ack.error))
        self._acks.setdefault(source, []).append(ack)

    def forget(self, source: int) -> None:
        """Drop the acks for a client that has disconnected. Does nothing if there are none."""
        self._acks.pop(source, None)

    def drain(self) -> list[Post]:
        """Remove all acks and return them as messages to their clients, with up to ``MAX_PARTS`` acks each; an empty
        list if there are none."""
        acks, self._acks = self._acks, {}
        return [
            Post(source, Produced(tuple(ready[first : first + MAX_PARTS])))
            for source, ready in acks.items()
            for first in range(0, len(ready), MAX_PARTS)
        ]


def _close(node: NodeId, message: _OpenProduce) -> Send:
    return Send(node, Produce(tuple(message.parts), list(message.buffers)))
