"""Simulated clients: producers that retry as the gateway must, and consumers that remember all they saw.

They follow the metadata over a watch of their own and talk to the leaders directly. A client process never dies;
its links do.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidelog.errors import TidelogError, TimedOut, Unreachable, from_info
from tidelog.records import NewRecord, decode_batch, encode_batch, split
from tidelog.types import Acks, ClusterImage, PartitionState, TopicPartition
from tidelog.wire.image import apply_update
from tidelog.wire.messages import (
    ListOffset,
    Message,
    MetadataUpdate,
    OffsetAnswer,
    Produce,
    ProduceAck,
    Produced,
    ProducePart,
    ReadAnswer,
    Watch,
)
from tidelog.wire.messages import Read as ReadRequest

from simulation.history import FAILED, OK, UNKNOWN, Latest, Read, Send
from simulation.sim_network import Frame, SimLink

if TYPE_CHECKING:
    from simulation.cluster import Cluster

LEVELS = {Acks.ALL: "all", Acks.LEADER: "leader", Acks.NONE: "received"}


class Client:
    """Metadata, links, calls. Subclasses do the work in ``act``, called now and then."""

    def __init__(self, cluster: Cluster, name: str, rng: random.Random) -> None:
        self.cluster = cluster
        self.loop = cluster.loop
        self.network = cluster.network
        self.name = name
        self.rng = rng
        self.image = ClusterImage()
        self.stopped = False
        self._links: dict[str, SimLink] = {}
        self._watch: SimLink | None = None
        self._watched = 0
        self._calls: dict[int, tuple[SimLink, Callable[[Any], None]]] = {}
        self._call_id = 0
        cluster.network.attach(self)
        self._follow_metadata()

    # --- metadata ----------------------------------------------------------------------------------------

    def _follow_metadata(self) -> None:
        names = self.cluster.controllers
        self._watch = self.network.connect(self, names[self.rng.randrange(len(names))])
        self._watched = self.image.index
        self._watch.send(self, Frame("request", 0, Watch()))
        link = self._watch
        self.loop.after(1.5, lambda: self._check_watch(link))

    def _check_watch(self, link: SimLink) -> None:
        """A watch that brings nothing may hang on a controller that is cut off: take another now and then."""
        if link is self._watch and not self.stopped:
            if self.image.index == self._watched:
                link.close(self)
                self._follow_metadata()
            else:
                self._watched = self.image.index
                self.loop.after(1.5, lambda: self._check_watch(link))

    def partition(self, key: TopicPartition) -> PartitionState | None:
        """What the metadata says of a partition."""
        for topic in self.image.topics:
            if topic.topic_id == key.topic_id:
                return topic.partitions[key.partition]
        return None

    # --- links -------------------------------------------------------------------------------------------

    def link_to(self, node: str) -> SimLink:
        """The link to a replica server, opened when there is none."""
        link = self._links.get(node)
        if link is None:
            link = self._links[node] = self.network.connect(self, node)
        return link

    def call(self, node: str, message: Message, timeout_s: float, done: Callable[[Any], None]) -> None:
        """Ask; ``done`` gets the answer or the error, once."""
        link = self.link_to(node)
        self._call_id += 1
        number = self._call_id
        self._calls[number] = (link, done)
        link.send(self, Frame("request", number, message))
        self.loop.after(timeout_s, lambda: self._finish(number, TimedOut("no answer in time")))

    def _finish(self, number: int, answer: Any) -> None:
        call = self._calls.pop(number, None)
        if call is not None:
            call[1](answer)

    def on_accept(self, link: SimLink) -> None:
        raise AssertionError("nobody connects to a client")

    def on_datagram(self, sender: str, message: Message) -> None:
        raise AssertionError("a client takes no datagrams")

    def on_frame(self, link: SimLink, frame: Frame) -> None:
        if isinstance(frame.body, MetadataUpdate):
            if link is self._watch and (frame.body.whole or frame.body.index > self.image.index):
                image = apply_update(self.image, frame.body)
                if image.index >= self.image.index:
                    self.image = image
        elif isinstance(frame.body, Produced):
            for ack in frame.body.acks:
                self.on_ack(link, ack)
        elif frame.kind == "answer":
            assert frame.id is not None
            self._finish(frame.id, frame.body)

    def on_close(self, link: SimLink) -> None:
        if link is self._watch:
            self.loop.after(self.rng.uniform(0.01, 0.1), self._follow_metadata)
        elif self._links.get(link.server_name) is link:
            del self._links[link.server_name]
            for number, (used, _) in list(self._calls.items()):
                if used is link:
                    self._finish(number, Unreachable("the link broke"))
            self.on_lost(link)

    def on_ack(self, link: SimLink, ack: ProduceAck) -> None:
        """The fate of a batch."""

    def on_lost(self, link: SimLink) -> None:
        """A link to a replica server is gone."""


@dataclass(slots=True)
class Batch:
    """A send of a producer, until its outcome is known."""

    id: int
    number: int
    values: tuple[bytes, ...]
    data: bytes
    start: float
    deadline: float
    expected_offset: int
    link: SimLink | None = None
    """Where it is in flight."""
    result: str = ""
    """``ok``, ``failed`` or ``unknown`` once it is over."""
    offset: int = -1
    errors: list[str] = field(default_factory=list)
    """Codes of the refusals on the way."""
    doubt: bool = False
    """A try ended without a word: it may have been appended."""

    @property
    def failure(self) -> str:
        """What its end without an ack means."""
        return UNKNOWN if self.doubt or self.link is not None else FAILED


@dataclass(slots=True)
class Lane:
    """One partition of a producer: its batches in order, and its identity there."""

    key: TopicPartition
    label: str
    producer_id: int
    sequence: int = 0
    number: int = 0
    batches: list[Batch] = field(default_factory=list)
    pause_until: float = 0.0


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """What kind of producer."""

    idempotent: bool = True
    acks: Acks = Acks.ALL
    window: int = 3
    """Batches in flight per partition; one where it is not idempotent (order could not be kept)."""
    patience: float = 5.0
    """Deadline of a send, s."""
    pace: float = 0.05
    """Mean time between two sends, s; 0: only those that somebody asks for."""
    conditional: float = 0.0
    """Share of appends that carry ``expected_offset``."""
    value_bytes: int = 20


class Producer(Client):
    """Sends batches to all partitions, in order per partition, again and again until a deadline.

    An idempotent lane whose send ends unknown or refused goes on with a new producer id: its old sequence
    cannot be continued. Such a lane counts as a process of its own in the history.
    """

    def __init__(self, cluster: Cluster, name: str, rng: random.Random, options: ProducerOptions) -> None:
        super().__init__(cluster, name, rng)
        self.options = options
        self._lanes: dict[TopicPartition, Lane] = {}
        self._batches: dict[int, tuple[Lane, Batch]] = {}
        self._batch_id = 0
        self._values = 0
        if options.pace:
            self.loop.after(rng.uniform(0.0, 0.2), self._act)

    def _act(self) -> None:
        if not self.stopped:
            keys = self.cluster.partitions
            if keys:
                self.produce(keys[self.rng.randrange(len(keys))])
            self.loop.after(self.rng.expovariate(1 / self.options.pace), self._act)

    @property
    def idle(self) -> bool:
        """No send is in progress."""
        return not self._batches

    def _lane(self, key: TopicPartition) -> Lane:
        lane = self._lanes.get(key)
        if lane is None:
            producer_id = self.cluster.new_producer_id() if self.options.idempotent else 0
            self._values += 1
            lane = Lane(key, f"{self.name}.{self._values}", producer_id)
            self._lanes[key] = lane
        return lane

    def produce(self, key: TopicPartition, *given: bytes) -> Batch | None:
        """Queue one batch, of these values or of some of its own; None when the lane is full."""
        lane = self._lane(key)
        if len(lane.batches) >= (self.options.window if self.options.idempotent else 1):
            return None
        name = self.cluster.partition_name(key)
        values = list(given)
        for _ in range(0 if given else self.rng.choice((1, 1, 2, 3))):
            self._values += 1
            values.append(f"{self.name}:{name}:{self._values}".encode().ljust(self.options.value_bytes, b"."))
        records = [NewRecord(value, None, round(self.loop.now * 1000)) for value in values]
        data = encode_batch(records, producer_id=lane.producer_id, producer_epoch=0, base_sequence=lane.sequence)
        expected = -1
        if self.options.conditional and self.rng.random() < self.options.conditional:
            expected = self.cluster.invariants.committed_end(key)
        self._batch_id += 1
        now = self.loop.now
        batch = Batch(self._batch_id, lane.number, tuple(values), data, now, now + self.options.patience, expected)
        lane.number += 1
        lane.sequence += len(values)
        lane.batches.append(batch)
        self._batches[batch.id] = (lane, batch)
        self.loop.at(batch.deadline, lambda: self._expire(batch.id))
        self._pump(lane)
        return batch

    def _pump(self, lane: Lane) -> None:
        """Send what is not in flight, in order. After a failed try: only when nothing is in flight any more, so
        that batches never overtake each other."""
        now = self.loop.now
        if now < lane.pause_until or self._lanes.get(lane.key) is not lane:
            return
        waiting = [batch for batch in lane.batches if batch.link is None]
        if not waiting:
            return
        in_flight = [batch for batch in lane.batches if batch.link is not None]
        if in_flight and in_flight[-1].number > waiting[0].number:
            return
        state = self.cluster_view(lane.key)
        if state is None or state.leader is None:
            self._pause(lane)
            return
        link = self.link_to(state.leader)
        if any(batch.link is not link for batch in in_flight):
            return
        for batch in waiting:
            batch.link = link
            part = ProducePart(
                batch.id,
                lane.key.topic_id,
                lane.key.partition,
                int(self.options.acks),
                max(1, round((batch.deadline - now) * 1000)),
                len(batch.data),
                state.leader_epoch,
                batch.expected_offset,
            )
            link.send(self, Frame("post", None, Produce((part,), batch.data)))

    def cluster_view(self, key: TopicPartition) -> PartitionState | None:
        """The metadata on which this producer acts."""
        return self.partition(key)

    def _pause(self, lane: Lane) -> None:
        wait = self.rng.uniform(0.02, 0.2)
        lane.pause_until = self.loop.now + wait
        self.loop.after(wait + 1e-6, lambda: self._pump(lane))

    def on_ack(self, link: SimLink, ack: ProduceAck) -> None:
        found = self._batches.get(ack.id)
        if found is None or found[1].link is not link:
            return
        lane, batch = found
        if ack.error is None:
            self._end(lane, batch, OK, ack.offset)
            self._pump(lane)
            return
        error = from_info(ack.error)
        batch.link = None
        batch.errors.append(error.code)
        batch.doubt |= error.unknown_outcome or error.code == "DUPLICATE_SEQUENCE"
        self.cluster.count(f"produce {error.code}")
        if error.retriable and (self.options.idempotent or not batch.doubt):
            self._pause(lane)
        else:
            self._abandon(lane)

    def on_lost(self, link: SimLink) -> None:
        for lane in list(self._lanes.values()):
            hit = [batch for batch in lane.batches if batch.link is link]
            for batch in hit:
                batch.link = None
                batch.doubt = True
            if hit:
                if self.options.idempotent:
                    self._pause(lane)
                else:
                    self._abandon(lane)

    def _expire(self, number: int) -> None:
        found = self._batches.get(number)
        if found is not None:
            self._abandon(found[0])

    def _abandon(self, lane: Lane) -> None:
        """A batch ends without an ack; those behind it cannot be appended without it, but they may have been."""
        for batch in list(lane.batches):
            self._end(lane, batch, batch.failure, -1)
        if self._lanes.get(lane.key) is lane:
            del self._lanes[lane.key]

    def _end(self, lane: Lane, batch: Batch, result: str, offset: int) -> None:
        lane.batches.remove(batch)
        del self._batches[batch.id]
        batch.result, batch.offset = result, offset
        self.cluster.count(f"send {result}")
        if result == OK:
            self.cluster.invariants.on_ack(lane.key, offset, batch.values, self.options.acks)
        self.cluster.history.operations.append(
            Send(
                lane.label,
                self.cluster.partition_name(lane.key),
                batch.number,
                batch.values,
                batch.start,
                self.loop.now,
                result,
                offset,
                LEVELS[self.options.acks],
                self.options.idempotent,
                batch.expected_offset,
            )
        )


class Consumer(Client):
    """Reads every partition from the start, remembers all, and asks now and then where the log ends."""

    def __init__(self, cluster: Cluster, name: str, rng: random.Random, pace: float = 0.1) -> None:
        super().__init__(cluster, name, rng)
        self.pace = pace
        self.positions: dict[TopicPartition, tuple[int, int]] = {}
        """Next offset and the leader epoch of the record before it."""
        self._highest: dict[TopicPartition, tuple[int, int]] = {}
        """Newest leader epoch that answered, and its HW."""
        self._latest: dict[TopicPartition, int] = {}
        self._busy: dict[TopicPartition, None] = {}
        self.loop.after(rng.uniform(0.0, 0.2), self._act)

    def _act(self) -> None:
        if self.stopped:
            return
        for key in self.cluster.partitions:
            if key not in self._busy:
                self.read(key)
        self.loop.after(self.rng.expovariate(1 / self.pace), self._act)

    def read(self, key: TopicPartition) -> None:
        """One read, or one question for the end, of a partition."""
        state = self.partition(key)
        if state is None or state.leader is None:
            return
        offset, epoch = self.positions.get(key, (0, -1))
        start = self.loop.now
        self._busy[key] = None
        if self.rng.random() < 0.1:
            ask = ListOffset(key.topic_id, key.partition, "latest", leader_epoch=state.leader_epoch)
            self.call(state.leader, ask, 2.0, lambda answer: self._on_latest(key, start, answer))
            return
        wait = self.rng.choice((0, 200))
        request = ReadRequest(
            key.topic_id, key.partition, offset, epoch, state.leader_epoch, self.rng.choice((1, 4096)), wait
        )
        self.call(state.leader, request, 2.0, lambda answer: self._on_read(key, start, answer))

    def _on_latest(self, key: TopicPartition, start: float, answer: Any) -> None:
        del self._busy[key]
        if isinstance(answer, OffsetAnswer):
            name = self.cluster.partition_name(key)
            self.cluster.count("latest")
            self.cluster.invariants.on_latest(self, key, self._latest.get(key, 0), answer.offset)
            self._latest[key] = answer.offset
            self.cluster.history.operations.append(Latest(self.name, name, answer.offset, start, self.loop.now))
        else:
            self._on_error(key, answer)

    def _on_error(self, key: TopicPartition, error: Any) -> None:
        assert isinstance(error, TidelogError), error
        self.cluster.count(f"read {error.code}")
        if error.code in ("OFFSET_OUT_OF_RANGE", "LOG_TRUNCATED"):
            self.cluster.invariants.on_lost_position(self, key, self.positions.get(key, (0, -1)), error)

    def _on_read(self, key: TopicPartition, start: float, answer: Any) -> None:
        del self._busy[key]
        if not isinstance(answer, ReadAnswer):
            self._on_error(key, answer)
            return
        before = self._highest.get(key, (-1, 0))
        if answer.leader_epoch < before[0]:
            return  # an answer of a leader that was replaced: a client drops it
        self.cluster.invariants.on_consumer_hw(self, key, before, answer)
        self._highest[key] = (answer.leader_epoch, answer.high_watermark)
        position, epoch = self.positions.get(key, (0, -1))
        wanted, rows = position, []
        for header, batch in split(answer.payload):
            self.cluster.invariants.on_visible(self, key, header, batch)
            epoch = header.leader_epoch
            for record in decode_batch(batch):
                if record.offset >= wanted:
                    assert record.value is not None
                    rows.append((record.offset, record.value))
        if rows:
            self.positions[key] = (rows[-1][0] + 1, epoch)
            self.cluster.count("rows read", len(rows))
            name = self.cluster.partition_name(key)
            self.cluster.history.operations.append(Read(self.name, name, position, tuple(rows), start, self.loop.now))
