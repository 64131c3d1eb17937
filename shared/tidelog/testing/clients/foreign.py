"""A *foreign* client in the simulation: wrong or hostile, it sends wrong values in every field that it writes.

It reaches the leaders through a gateway's own router, which checks its requests like those of all clients. It uses
producer ids of others, wrong tickets, producer epochs, sequences, record counts, attributes, applications and bodies,
sends the same bytes again, and has more in flight than it may. Nothing is promised to it. The invariants and the
history are about the other clients, which must not notice it.

Records under its own ids may well be in a log, so the history has them, as sends with an unknown outcome.
"""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c
from tidelog_gateway.cluster_view import ClusterView
from tidelog_gateway.produce.router import Router
from tidelog_gateway.settings import RouterSettings

from tidelog.batch.format import HEADER, HEADER_BYTES, NewRecord, encode_batch, read_header
from tidelog.feature_levels import NEWEST
from tidelog.sansio.effects import Post, Send
from tidelog.testing.clients.client import Client
from tidelog.testing.hardware.network import Frame, SimLink
from tidelog.tickets import sign
from tidelog.types import Acks, TicketKey, TopicPartition
from tidelog.verify.history import UNKNOWN
from tidelog.verify.history import SendCall as Sent
from tidelog.wire.messages import Produce, ProduceAck, Produced, ProducePart, ProducerTicket, UseProducer

if TYPE_CHECKING:
    from tidelog.testing.cluster import Cluster

NAME = "f1"
PRINCIPAL = "foreign"
KEYS = (TicketKey(1, "5c" * 32),)
PACE_S = 0.06
"""The mean time in seconds between two wrong requests."""
TIMEOUT_MS = 1500
TICK_S = 0.05
RECENT = 40
"""The number of recent batches that it may send again."""
_ATTRIBUTES_AT, _COUNT_AT = 24, 28
"""Where these fields are in a batch."""


class Lie(NamedTuple):
    """A batch that was sent once, kept to be sent again."""

    key: TopicPartition
    data: bytes
    place: tuple[int, int, int]
    """Producer id, epoch and sequence."""


class Foreign(Client):
    """A client that sends wrong values in every field that it writes."""

    def __init__(self, cluster: Cluster, name: str, rng: random.Random) -> None:
        self._cluster_map = ClusterView()
        self.router = Router(self._cluster_map, RouterSettings(client_max_bytes=1 << 16))
        super().__init__(cluster, name, rng)
        self._source = 1
        self._numbers, self._values = count(1), count(1)
        self._own_id = 0
        self._given: set[int] = set()
        """All producer ids of its own."""
        self._sequences: dict[tuple[TopicPartition, int, int], int] = {}
        self._recent: list[Lie] = []
        self._up: dict[str, SimLink] = {}
        self.loop.after(rng.uniform(0.0, 0.5), self._act)
        self.loop.after(TICK_S, self._tick)

    @property
    def idle(self) -> bool:
        """Whether none of its batches is waiting or in flight."""
        return not self.router.in_flight and not self.router.held_bytes

    # --- lies --------------------------------------------------------------------------------------------

    def _act(self) -> None:
        """Send one randomly chosen wrong request, and schedule the next."""
        if self.stopped:
            return
        if self.rng.random() < 0.06:
            self._reconnect()
        keys = self.cluster.partitions
        if keys:
            lies = (
                *((self._write, 7), (self._write_again, 3), (self._write_much, 1), (self._leap, 2), (self._raise, 1)),
                *((self._steal_an_id, 5), (self._misstate, 4), (self._flag, 3), (self._present_nonsense, 1)),
            )
            chosen = self.rng.choices([lie for lie, _ in lies], [weight for _, weight in lies])[0]
            chosen(keys[self.rng.randrange(len(keys))])
            self.cluster.count("lies told")
            self._flush()
        self.loop.after(self.rng.expovariate(1 / PACE_S), self._act)

    def _reconnect(self) -> None:
        """Continue on a new connection, to which no ticket was presented yet and which may take another id."""
        self.router.on_link_closed(self._source)
        self.router.tickets.on_link_closed(self._source)
        self._source += 1
        self._own_id = 0

    def _id(self, epoch: int = 0) -> int:
        """Return its own producer id, after presenting a valid ticket for it at that epoch."""
        if not self._own_id:
            self._own_id = self.cluster.new_producer_id()
            self._given.add(self._own_id)
        self._present(self._own_id, epoch, sign(KEYS, self._own_id, 1, epoch, PRINCIPAL))
        return self._own_id

    def _present(self, producer_id: int, epoch: int, ticket: str) -> None:
        answer = self.router.tickets.use(self._source, PRINCIPAL, UseProducer(producer_id, epoch, ticket))
        self.cluster.count("lies presented" if isinstance(answer, ProducerTicket) else "lies in tickets")

    def _batch(
        self, key: TopicPartition, id: int, epoch: int, sequence: int, *, transactional: bool = False
    ) -> bytes:
        """Return a sound batch of new values and add it to the history. Its level is ``received``, since it may be
        refused: the history does not demand that it succeeds in a healthy cluster."""
        now, number = self.loop.now, next(self._values)
        values = tuple(b"lie %d.%d" % (number, place) for place in range(self.rng.choice((1, 1, 3))))
        name = self.cluster.partition_name(key)
        self.cluster.history.operations.append(
            Sent(f"{self.name}.{number}", name, 0, values, now, now, UNKNOWN, -1, "received", False, -1, -1)
        )
        records = [NewRecord(value, None, round(now * 1000)) for value in values]
        return encode_batch(
            records, producer_id=id, producer_epoch=epoch, base_sequence=sequence, transactional=transactional
        )

    def _write(self, key: TopicPartition, epoch: int = 0, leap: int = 0) -> None:
        """Send a batch as an honest client does; ``leap`` moves its sequence."""
        id = self._id(epoch)
        place = key, id, epoch
        sequence = (self._sequences.get(place, 0) + leap) % (1 << 32)
        data = self._batch(key, id, epoch, sequence)
        if not leap:
            self._sequences[place] = sequence + read_header(data).record_count
        self._send(key, data)

    def _write_again(self, key: TopicPartition) -> None:
        """Send bytes that were sent before, or other values under the same sequence."""
        if not self._recent:
            return
        lie = self._recent[int(len(self._recent) * self.rng.random() ** 2)]  # rather an older one
        id, epoch, _ = lie.place
        if id in self._given:
            self._present(id, epoch, sign(KEYS, id, 1, epoch, PRINCIPAL))
        if self.rng.random() < 0.5:
            self._send(lie.key, self._batch(lie.key, *lie.place))
        else:
            self._send(lie.key, lie.data)

    def _write_much(self, key: TopicPartition) -> None:
        """Send more batches at once than the window allows."""
        for _ in range(9):
            self._write(key)

    def _leap(self, key: TopicPartition) -> None:
        """Send a sequence with a gap, an old one, or one half the number space away."""
        self._write(key, leap=self.rng.choice((1, -1, -7, 1 << 31, -(1 << 31))))

    def _raise(self, key: TopicPartition) -> None:
        """Send under another epoch of its own id, as if the cluster had given it, and then under the first again."""
        self._write(key, epoch=self.rng.choice((1, 2)))
        self._write(key)

    def _steal_an_id(self, key: TopicPartition) -> None:
        """Send under the producer id of another client, with no ticket, a forged one or its own."""
        others = [*range(1, self.cluster.last_producer_id + 1), 1 << 40, (1 << 53) - 1]
        id, epoch = self.rng.choice(others), self.rng.choice((0, 0, 1, 7, (1 << 16) - 1))
        if id == self._own_id:
            return
        forged = ("", "00" * 36, sign(KEYS, self._id(), 1, epoch, PRINCIPAL), sign(KEYS, id, 1, epoch, "another"))
        self._present(id, epoch, self.rng.choice(forged))
        sequence = self.rng.choice((0, 0, 1, 3))
        self._send(key, self._batch(key, id, epoch, sequence, transactional=self.rng.random() < 0.3))

    def _misstate(self, key: TopicPartition) -> None:
        """Send a batch with a wrong record count or a random body, under a correct CRC."""
        id = self._id()
        data = bytearray(self._batch(key, id, 0, self._sequences.get((key, id, 0), 0)))
        if self.rng.random() < 0.5:
            data[_COUNT_AT : _COUNT_AT + 4] = self.rng.choice((2, 4, 9, 1 << 20, 0)).to_bytes(4, "big")
        else:
            data[HEADER_BYTES:] = self.rng.randbytes(len(data) - HEADER_BYTES)
        self._send(key, closed(data))

    def _flag(self, key: TopicPartition) -> None:
        """Send a batch with wrong attributes: of a transaction, a control batch, a sparse one, another codec."""
        id = self._id()
        data = bytearray(self._batch(key, id, 0, self._sequences.get((key, id, 0), 0)))
        attributes = self.rng.choice((1, 2, 7, 8, 16, 24, 32, 1 << 9))
        data[_ATTRIBUTES_AT : _ATTRIBUTES_AT + 2] = attributes.to_bytes(2, "big")
        self._send(key, closed(data), transaction=self.rng.choice(("", "one", "two", "nobody's")))

    def _present_nonsense(self, key: TopicPartition) -> None:
        """Present a ticket that no gateway signed."""
        id = self.rng.choice((0, self._own_id, self.cluster.last_producer_id))
        ticket = self.rng.choice(("x", "0" * 72, sign(KEYS, id, 1 << 20, 0, "somebody else")))
        self._present(id, 0, ticket)

    def _send(self, key: TopicPartition, data: bytes, transaction: str = "") -> None:
        rng, fields = self.rng, HEADER.unpack_from(data)
        self._recent = [*self._recent, Lie(key, data, (fields[12], fields[8], fields[13]))][-RECENT:]
        part = ProducePart(
            next(self._numbers),
            *key,
            rng.choice((Acks.ALL, Acks.ALL, Acks.LEADER, Acks.NONE)),
            TIMEOUT_MS,
            len(data),
            rng.choice((-1, -1, 0, 1 << 30)),
            rng.choice((-1,) * 9 + (0,)),
            transaction,
        )
        self.router.on_produce(self._source, Produce((part,), data), self.loop.now)

    # --- its gateway -------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self.router.on_tick(self.loop.now)
        for server in self._cluster_map.image.servers:
            self._connect(server.node)
        self._flush()
        self.loop.after(TICK_S, self._tick)

    def _connect(self, node: str) -> None:
        if node not in self._up:
            self._up[node] = self.link_to(node)
            self.router.on_peer_up(node)

    def _flush(self) -> None:
        while self.router.pending():
            for effect in self.router.flush(self.loop.now):
                if isinstance(effect, Send):
                    self._forward(effect)
                elif isinstance(effect, Post):
                    self._hear(effect)

    def _forward(self, effect: Send) -> None:
        """Send what its router sends to a server."""
        assert isinstance(effect.message, Produce) and isinstance(effect.message.payload, list)
        message = replace(effect.message, payload=b"".join(effect.message.payload))
        self._up[effect.to].send(self, Frame("post", None, message))

    def _hear(self, effect: Post) -> None:
        """Count the acks that its router returns."""
        assert isinstance(effect.message, Produced)
        for ack in effect.message.acks:
            self.cluster.count("lies acked" if ack.error is None else f"lie {ack.error.code}")

    def on_frame(self, link: SimLink, frame: Frame) -> None:
        before = self.image
        super().on_frame(link, frame)
        if self.image is not before:
            image = replace(self.image, level=NEWEST, ticket_keys=KEYS)
            self.router.on_metadata(self._cluster_map.update(image), self.loop.now)
            self._flush()
        elif isinstance(frame.body, Produced):
            self.router.on_produced(link.server_name, frame.body, self.loop.now)
            self._flush()

    def on_ack(self, link: SimLink, ack: ProduceAck) -> None:
        """Do nothing: its router handles acks."""

    def on_lost(self, link: SimLink) -> None:
        if self._up.pop(link.server_name, None) is not None:
            self.router.on_peer_down(link.server_name, self.loop.now)
            self._flush()


def closed(data: bytearray) -> bytes:
    """Return the batch with a CRC that fits its present bytes."""
    data[12:16] = crc32c(bytes(data[16:])).to_bytes(4, "big")
    return bytes(data)
