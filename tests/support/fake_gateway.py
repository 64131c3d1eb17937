"""A cluster in memory that speaks the real protocol over real links: what a client sees of gateways."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import trio
from tidelog.batch.format import Record, check_batch, decode_batch, read_header, stamp_prefix, with_sent_crc
from tidelog.errors import TidelogError, refuse
from tidelog.net.link import PROTOCOL_VERSION, Link, serve_links
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.types import MAX_TASKS
from tidelog.wire import codec
from tidelog.wire.capabilities import OF_GATEWAYS
from tidelog.wire.messages import (
    CreateTopic,
    Credit,
    DeleteTopic,
    Delivery,
    Done,
    Hello,
    InitProducer,
    InitTaskProducer,
    ListOffset,
    Message,
    Metadata,
    MetadataAnswer,
    OffsetAnswer,
    PartitionInfo,
    Produce,
    ProduceAck,
    Produced,
    ProducePart,
    ProducerId,
    ProducerTicket,
    Read,
    ReadAnswer,
    ReleaseProducer,
    Subscribe,
    TaskProducer,
    TopicCreated,
    TopicInfo,
    Unsubscribe,
    UseProducer,
    Welcome,
)
from tidelog_replica.coordinators.transactions.records import ProducerRecord
from tidelog_replica.coordinators.transactions.task_producers import record_of_batch

from support.fake_group_coordinator import FakeGroup

OPS = frozenset(codec.OPS)


class Partition:
    """A log in memory with the leader's sequence rule."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.end = 0
        self.start = 0
        self.sequences: dict[tuple[int, int], dict[int, int]] = {}
        """For each producer id and epoch, the base offset by base sequence."""

    def append(self, data: bytes, epoch: int, expected_offset: int = -1) -> tuple[int, bool]:
        """Append a batch and return its base offset and whether it is a copy. Raises ``OUT_OF_ORDER_SEQUENCE``,
        ``SEQUENCE_CONFLICT`` or ``UNEXPECTED_OFFSET`` as the leader does."""
        header = check_batch(data)
        producer = header.producer_id, header.producer_epoch
        known = self.sequences.setdefault(producer, {0: -1} if not header.producer_id else {})
        if header.producer_id:
            if header.base_sequence in known:
                base = known[header.base_sequence]
                (there,) = [batch for batch in self.batches if read_header(batch).base_offset == base]
                if with_sent_crc(read_header(there), there).crc32c != header.crc32c:
                    raise refuse("SEQUENCE_CONFLICT", f"{header.base_sequence} is another batch")
                return base, True
            expected = 0 if not known else max(known) + self.counts(producer, max(known))
            if header.base_sequence != expected:
                raise refuse("OUT_OF_ORDER_SEQUENCE", f"{header.base_sequence} is not {expected}")
        if expected_offset not in (-1, self.end):
            message = f"the log ends at {self.end}, not {expected_offset}"
            raise refuse("UNEXPECTED_OFFSET", message, end_offset=self.end)
        if header.producer_id:
            known[header.base_sequence] = self.end
        base = self.end
        self.batches.append(stamp_prefix(base, epoch, header.crc32c) + data[16:])
        self.end += header.record_count
        return base, False

    def counts(self, producer: tuple[int, int], sequence: int) -> int:
        """Return the record count of the batch with a sequence; it must exist."""
        for batch in self.batches:
            header = read_header(batch)
            if (header.producer_id, header.producer_epoch, header.base_sequence) == (*producer, sequence):
                return header.record_count
        raise AssertionError

    def records(self) -> list[Record]:
        """Return all records."""
        return [record for batch in self.batches for record in decode_batch(batch)]


class Sub:
    """A subscription of a client."""

    def __init__(self, link: Link, request: Subscribe) -> None:
        self.link, self.sub, self.credit = link, request.sub, request.credit
        self.key = (request.topic_id, request.partition)
        self.offset = request.offset


class FakeCluster:
    """Topics and logs behind gateways. ``refusals``: errors for the next batches, None lets one pass; ``lose_acks``:
    how many batches are written and never answered; ``links``: the open ones, for tests that cut them."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicInfo] = {}
        self.logs: dict[tuple[str, int], Partition] = {}
        self.links: list[Link] = []
        self.subs: dict[tuple[int, int], Sub] = {}
        self.refusals: list[TidelogError | None] = []
        self.lose_acks = 0
        self.produced = trio.Event()
        self.epoch = 4
        self.producer_ids = 100
        self.key = 1
        """The number of the newest ticket key. Tickets of this key and the one before are valid; 0: none is
        needed."""
        self.held: dict[int, dict[int, int]] = {}
        """By link, the epoch of each producer id for which it has presented a ticket."""
        self.task_producers: dict[str, ProducerRecord] = {}
        self.wall_ms = 5000
        """The clock in ms; each request of a task for its producer moves it by a second."""
        self.capabilities: tuple[str, ...] = OF_GATEWAYS
        self.limits: dict[str, int] = {}
        """What the gateways announce; an older one announces neither."""
        self.seen: list[Message] = []
        self.heard = trio.Event()
        """Set by the next message of a client."""
        self.group = FakeGroup({})
        """The only consumer group, whatever name a client uses."""

    def add_topic(self, name: str, partitions: int = 1, **config: str) -> TopicInfo:
        """Create a topic and its empty logs, and return it."""
        infos = tuple(PartitionInfo(p, ("r1",), ("r1",), "r1", self.epoch, 1) for p in range(partitions))
        topic = self.topics[name] = TopicInfo(f"id-{name}-{len(self.logs)}", name, config, infos)
        self.group.names[topic.topic_id] = name
        for p in range(partitions):
            self.logs[topic.topic_id, p] = Partition()
        return topic

    def log(self, name: str, partition: int = 0) -> Partition:
        """Return the log of a partition by topic name."""
        return self.logs[self.topics[name].topic_id, partition]

    def cut(self) -> None:
        """Close the links of all clients."""
        for link in self.links:
            link.close(1001, "the test says so")

    def on_message(self, link: Link, id: int | None, message: Message) -> None:
        """Record a message and handle it as a gateway does."""
        self.seen.append(message)
        self.heard.set()
        self.heard = trio.Event()
        match message:
            case Produce():
                self.produce(link, message)
            case Subscribe(sub):
                self.subs[link.source, sub] = Sub(link, message)
                self.give(self.subs[link.source, sub], 0)
                assert id is not None
                link.answer(id, Done())
                self.push(self.subs[link.source, sub])
            case Credit(sub, size):
                if (link.source, sub) in self.subs:
                    self.give(self.subs[link.source, sub], size)
                    self.push(self.subs[link.source, sub])
            case _:
                assert id is not None
                try:
                    link.answer(id, self.answer(link, message))
                except TidelogError as error:
                    link.answer(id, error)

    def answer(self, link: Link, message: Message) -> Message:
        """Return the answer to a request. Raises its error."""
        match message:
            case Metadata(names, everything):
                ids = message.topic_ids if self.capabilities else ()  # an older one does not know them
                found = tuple(t for t in self.topics.values() if everything or t.name in names or t.topic_id in ids)
                if message.offsets:
                    found = tuple(map(self.with_offsets, found))
                return MetadataAnswer("fake", 1, found, ())
            case CreateTopic(name, partitions):
                if name in self.topics:
                    raise refuse("TOPIC_EXISTS", f"{name} exists")
                return TopicCreated(self.add_topic(name, partitions).topic_id)
            case DeleteTopic(name):
                if name not in self.topics:
                    raise refuse("UNKNOWN_TOPIC", name)
                del self.topics[name]
                return Done()
            case InitProducer(count):
                first = self.take_ids(count)
                return ProducerId(first, count, f"{self.key} {first} {count} 0")
            case UseProducer(producer_id, epoch, ticket):
                key, first, count, of_epoch = map(int, ticket.split())
                if key < self.key - 1 or not first <= producer_id < first + count or of_epoch != epoch:
                    raise refuse("INVALID_TICKET", ticket)
                self.held.setdefault(link.source, {})[producer_id] = epoch
                return ProducerTicket(f"{self.key} {producer_id} 1 {epoch}")
            case ReleaseProducer(producer_id):
                del self.held[link.source][producer_id]
                return Done()
            case InitTaskProducer(app):
                self.wall_ms += 1000
                asked = replace(message, first_id=self.take_ids(MAX_TASKS))
                record = record_of_batch(self.task_producers.get(app), asked, self.wall_ms)
                assert record is not None
                self.task_producers[app] = record
                own = record.first_id + message.task
                return TaskProducer(own, record.epoch, record.timestamp_ms, f"{self.key} {own} 1 {record.epoch}")
            case Unsubscribe(sub):
                self.subs.pop((link.source, sub), None)
                return Done()
            case Read():
                return self.read(message)
            case ListOffset(topic_id, partition, at, timestamp_ms):
                log = self.logs[topic_id, partition]
                if at == "timestamp":
                    later = [h for h in map(read_header, log.batches) if h.max_timestamp >= timestamp_ms]
                    if later:  # by the batch, as leaders do
                        return OffsetAnswer(later[0].base_offset, later[0].leader_epoch, later[0].first_timestamp)
                if at == "earliest":
                    return OffsetAnswer(log.start)
                return OffsetAnswer(log.end, read_header(log.batches[-1]).leader_epoch if log.batches else -1)
        return self.group.answer(message)

    def with_offsets(self, topic: TopicInfo) -> TopicInfo:
        """Return the metadata of a topic with log start and high watermark of each partition."""
        logs = [self.logs[topic.topic_id, info.partition] for info in topic.partitions]
        infos = [
            replace(info, log_start=log.start, high_watermark=log.end)
            for info, log in zip(topic.partitions, logs, strict=True)
        ]
        return replace(topic, partitions=tuple(infos))

    def take_ids(self, count: int) -> int:
        """Reserve so many producer ids and return the first."""
        self.producer_ids += count
        return self.producer_ids - count + 1

    def read(self, message: Read) -> ReadAnswer:
        """Return the batches from an offset on, at most ``max_bytes`` but at least one if there is any. Raises
        ``OFFSET_OUT_OF_RANGE``."""
        log = self.logs[message.topic_id, message.partition]
        if not log.start <= message.offset <= log.end:
            raise refuse("OFFSET_OUT_OF_RANGE", "not there", log_start=log.start, high_watermark=log.end)
        payload = b""
        for batch in log.batches:
            if read_header(batch).end_offset > message.offset:
                if payload and len(payload) + len(batch) > message.max_bytes:
                    break
                payload += batch
        return ReadAnswer(self.epoch, log.end, log.start, payload)

    def produce(self, link: Link, message: Produce) -> None:
        """Append the batches of a message and send their acks, unless they are to be lost."""
        assert not isinstance(message.payload, list)
        payload, at = memoryview(message.payload), 0
        for part in message.parts:
            ack = self.append(link, part, bytes(payload[at : at + part.size]))
            at += part.size
            if self.lose_acks:
                self.lose_acks -= 1
            else:
                link.post(Produced((ack,)))
        self.produced.set()

    def append(self, link: Link, part: ProducePart, data: bytes) -> ProduceAck:
        """Append one batch and return its ack, or the ack of its refusal."""
        header = read_header(data)
        try:
            held = self.held.get(link.source, {})
            if self.key and header.producer_id and held.get(header.producer_id) != header.producer_epoch:
                raise refuse("INVALID_TICKET", "not presented")
            refusal = self.refusals.pop(0) if self.refusals else None
            if refusal is not None:
                raise refusal
            offset, copy = self.logs[part.topic_id, part.partition].append(data, self.epoch, part.expected_offset)
        except TidelogError as error:
            return ProduceAck(part.id, error=error.to_info())
        for sub in self.subs.values():
            if sub.key == (part.topic_id, part.partition):
                self.push(sub)
        return ProduceAck(part.id, offset, self.epoch, "all/os", copy)

    def give(self, sub: Sub, size: int) -> None:
        """Add to the credit of a subscriber, and keep no more than is announced."""
        sub.credit = min(sub.credit + size, self.limits.get("credit_bytes", sys.maxsize))

    def push(self, sub: Sub) -> None:
        """Send a subscriber the next batches while it has credit, or an error if its offset is below the log
        start."""
        log = self.logs[sub.key]
        if sub.offset < log.start:
            error = refuse("OFFSET_OUT_OF_RANGE", "gone", log_start=log.start)
            sub.link.post(Delivery(sub.sub, error=error.to_info()))
            return
        for batch in log.batches:
            header = read_header(batch)
            if header.end_offset > sub.offset and sub.credit > 0:
                sub.credit -= header.size
                sub.offset = header.end_offset
                sub.link.post(Delivery(sub.sub, log.end, payload=batch))

    @asynccontextmanager
    async def gateways(self, count: int = 1) -> AsyncIterator[list[str]]:
        """Run so many gateways on loopback and yield their URLs."""
        transport = WebSocketTransport()
        async with trio.open_nursery() as nursery:
            urls = []
            for _ in range(count):
                urls.append(await nursery.start(self._serve, transport))
            yield urls
            nursery.cancel_scope.cancel()

    async def _serve(self, transport: WebSocketTransport, *, task_status: trio.TaskStatus[str]) -> None:
        def welcome(hello: Hello) -> Welcome:
            most = 16 << 20, 1000
            how = {"capabilities": self.capabilities, "limits": self.limits}
            return Welcome(PROTOCOL_VERSION, "fake", "g1", "gateway", *most, **how)

        def on_close(link: Link) -> None:
            self.links.remove(link)
            for key in [key for key in self.subs if key[0] == link.source]:
                del self.subs[key]

        await serve_links(
            transport,
            "127.0.0.1",
            0,
            welcome,
            self.on_message,
            allowed={"client": OPS},
            on_open=self.links.append,
            on_close=on_close,
            origins=("*",),
            task_status=task_status,
        )
