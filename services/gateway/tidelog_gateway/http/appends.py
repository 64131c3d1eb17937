"""Appending records over HTTP: a request becomes one batch for each partition that its records go to.

The records of a batch are appended together or not at all. Nothing is sent before the whole body was read and is
correct.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import trio
from tidelog.batch.format import NewRecord, decode_batch, encode_batch, read_header
from tidelog.client.core.partitioner import partition_of
from tidelog.errors import TidelogError, from_info, refuse
from tidelog.tickets import sign
from tidelog.types import Buffer, TopicState
from tidelog.wire.messages import Message, ProduceAck, ProducePart, Read, ReadAnswer, UseProducer

from tidelog_gateway.consume.server_reads import READ_TIMEOUT_S
from tidelog_gateway.http.decoded_batches import LongWork
from tidelog_gateway.http.http_link import HttpLink
from tidelog_gateway.http.idempotency import is_same, key_of, partition_of_key, producer_id_of
from tidelog_gateway.http.parameters import choice, partition_number, seconds, topic_name, whole_number
from tidelog_gateway.http.record_bodies import JSON, NDJSON, records_of_document, records_of_lines, single_record
from tidelog_gateway.http.request_head import RequestHead
from tidelog_gateway.http.responses import HttpError, Response, ok, refusal
from tidelog_gateway.shell import GatewayShell

ACKS = {"all": 2, "leader": 1, "none": 0}
MAX_TIMEOUT_S = 120.0
PARSED_AT_ONCE = 64 << 10
"""Bytes of a body with JSON that are parsed without a thread."""
ENCODED_AT_ONCE = 2000
"""Records of a batch that is made without a thread."""
COPY_WAIT_S = 30.0
"""Longest wait until the batch of an earlier try is committed."""
FIRST_PAUSE_S = 0.01
"""First pause between two looks whether it is; the pause doubles."""
TRIES = 3
"""How often a batch is sent whose place in the log was taken by another one in the meantime."""
NO_TOPIC = "no-such-topic"
_PARSERS = {JSON: records_of_document, NDJSON: records_of_lines}
_GONE = "the batch of an earlier try with this Idempotency-Key is gone"


@dataclass(frozen=True, slots=True)
class Ask:
    """What the parameters and headers of a request ask for."""

    topic: str
    partition: int
    """Partition that the path names; -1: none."""
    acks: str
    expected_offset: int
    timeout_ms: int
    idempotency_key: str


@dataclass(slots=True)
class Appended:
    """The records of a request that go to one partition, and what came of them."""

    partition: int
    records: list[NewRecord]
    ack: ProduceAck = field(default_factory=lambda: ProduceAck(0))
    error: TidelogError | None = None

    def document(self) -> dict[str, Any]:
        """Return the outcome for the client."""
        place: dict[str, Any] = {"partition": self.partition, "count": len(self.records)}
        if self.error is not None:
            outcome = {"code": self.error.code, "detail": self.error.message}
            return {**place, **outcome, "unknown_outcome": self.error.unknown_outcome}
        return {
            **place,
            "offset": self.ack.offset,
            "leader_epoch": self.ack.leader_epoch,
            "durability": self.ack.durability,
            "duplicate": self.ack.duplicate,
        }


class Appends:
    """The part of the port that appends records. There is one for each gateway."""

    def __init__(self, shell: GatewayShell, long_work: LongWork) -> None:
        self._shell = shell
        self._long_work = long_work
        self._turns = itertools.count()
        """Gives requests whose records have no key one partition after the other."""

    async def append(self, link: HttpLink, head: RequestHead, names: Mapping[str, str], body: bytes) -> Response:
        """Append the records of a request and return the acks. If some partitions took theirs and others did not, the
        problem document lists the outcome of each."""
        ask = _ask_of(head, names)
        records = await self._records(head, body, link.principal)
        topic = self._shell.cluster.topic_named(ask.topic)
        partitions = 1 if topic is None else len(topic.partitions)
        appended = _by_partition(records, ask, partitions, next(self._turns) % partitions)
        if ask.expected_offset >= 0 and len(appended) > 1:
            raise HttpError(400, "expected_offset is for records of one partition")
        waiting = list(appended)
        for _ in range(TRIES):
            waiting = await self._send(link, ask, topic, waiting)
        outcome = [one.document() for one in appended]
        failed = next((one.error for one in appended if one.error is not None), None)
        if failed is not None:
            return refusal(failed, acks=outcome)
        return ok({"topic": ask.topic, "acks": outcome}, 202 if ask.acks == "none" else 200)

    async def _records(self, head: RequestHead, body: bytes, principal: str) -> list[NewRecord]:
        """Return the records of a body, which its media type or ``format=raw`` describes. A long body is parsed in a
        thread."""
        now_ms = self._shell.wall_ms()
        parse = _PARSERS.get(head.media_type)
        if parse is None or choice(head.query, "format", ("auto", "raw")) == "raw":
            key = head.query.get("key")
            return single_record(body, None if key is None else key.encode(), now_ms)
        if "key" in head.query:
            raise HttpError(400, "the parameter key is for a body that is one record")
        if len(body) <= PARSED_AT_ONCE:
            return parse(body, now_ms)
        return await self._long_work.run(principal, partial(parse, body, now_ms))

    async def _send(
        self, link: HttpLink, ask: Ask, topic: TopicState | None, waiting: Sequence[Appended]
    ) -> list[Appended]:
        """Send a batch for each partition and note the outcome. Return those that have to be sent again, since the
        batch of an earlier try has been lost."""
        if not waiting:
            return []
        producer_id = self._producer_id(link, ask)
        batches: list[Buffer] = []
        parts: list[ProducePart] = []
        for one in waiting:
            batch = await self._encoded(one.records, producer_id, link.principal)
            batches.append(batch)
            topic_id = NO_TOPIC if topic is None else topic.topic_id
            where = topic_id, one.partition, ACKS[ask.acks], ask.timeout_ms, len(batch)
            parts.append(ProducePart(0, *where, expected_offset=ask.expected_offset))
        try:
            acks = await link.produce(parts, batches)
        finally:
            if producer_id:
                self._shell.router.tickets.release(link.source, producer_id)
        again: list[Appended] = []
        for one, part, ack in zip(waiting, parts, acks, strict=True):
            one.ack, one.error = ack, None if ack.error is None else _named(from_info(ack.error), ask)
            if not producer_id or one.error is None or one.error.code != "SEQUENCE_CONFLICT":
                continue
            if await self._was_lost(one, part, producer_id, one.error):
                again.append(one)
        return again

    async def _encoded(self, records: Sequence[NewRecord], producer_id: int, principal: str) -> bytes:
        """Return the records as a batch; one of very many records is made in a thread. Raises ``HttpError`` if no
        batch can hold them."""
        encode = partial(encode_batch, records, producer_id=producer_id)
        try:
            if len(records) <= ENCODED_AT_ONCE:
                return encode()
            return await self._long_work.run(principal, encode)
        except ValueError as error:
            raise HttpError(413, str(error), code="BATCH_TOO_LARGE") from None

    def _producer_id(self, link: HttpLink, ask: Ask) -> int:
        """Return the producer id of the request's ``Idempotency-Key``, which the link may now write under; 0 if it
        has no key. Raises the refusal of the ticket."""
        if not ask.idempotency_key:
            return 0
        id = producer_id_of(link.principal, ask.idempotency_key)
        ticket = sign(self._shell.cluster.image.ticket_keys, id, 1, 0, link.principal)
        answer = self._shell.router.tickets.use(link.source, link.principal, UseProducer(id, 0, ticket))
        if isinstance(answer, TidelogError):
            raise answer
        return id

    async def _was_lost(self, one: Appended, part: ProducePart, producer_id: int, conflict: TidelogError) -> bool:
        """Compare records with those that the log has under their ``Idempotency-Key``. If they are the same, they are
        acked as a copy; otherwise the conflict stays. Return True if the log does not have that batch any more, so
        that the records have to be sent again."""
        offset = conflict.detail.get("offset")
        if not isinstance(offset, int):
            one.error = _key_was_used()
            return False
        found = await self._read_committed(Read(part.topic_id, part.partition, offset, max_bytes=1))
        if isinstance(found, TidelogError) and _is_behind_end(found, offset):
            one.error = refuse("UNVERIFIED_SEQUENCE", _GONE)
            return True
        if isinstance(found, TidelogError) and found.retriable:
            one.error = found
            return False
        if isinstance(found, TidelogError):
            text = f"the batch of an earlier try with this Idempotency-Key cannot be read: {found.message}"
            one.error = refuse("UNVERIFIED_SEQUENCE", text)
            return False
        assert not isinstance(found.payload, list)
        header = read_header(found.payload)
        if header.base_offset != offset or header.producer_id != producer_id:
            one.error = refuse("UNVERIFIED_SEQUENCE", _GONE)
            return True
        batch = memoryview(found.payload)[: header.batch_length]
        if header.is_sparse:
            text = "records of an earlier try with this Idempotency-Key were removed by compaction"
            one.error = refuse("UNVERIFIED_SEQUENCE", text)
        elif is_same(one.records, decode_batch(batch)):
            flush = self._flush_of(part.topic_id)
            one.error = None
            one.ack = ProduceAck(0, offset, header.leader_epoch, f"all/{flush}", duplicate=True)
        else:
            one.error = _key_was_used()
        return False

    async def _read_committed(self, read: Read) -> ReadAnswer | TidelogError:
        """Read from the log for the gateway itself, which shows nothing of it. If nothing there is committed yet,
        read again until something is. Returns ``REQUEST_TIMED_OUT`` after ``COPY_WAIT_S``."""
        read = replace(read, isolation="uncommitted")
        pause_s, until = FIRST_PAUSE_S, trio.current_time() + COPY_WAIT_S
        while True:
            answer = await self._read(read)
            if isinstance(answer, TidelogError) or len(answer.payload):
                return answer
            if trio.current_time() > until:
                text = "an earlier try with this Idempotency-Key is in the log, and is not committed yet"
                return refuse("REQUEST_TIMED_OUT", text, unknown_outcome=True)
            await trio.sleep(pause_s)
            pause_s *= 2

    async def _read(self, read: Read) -> ReadAnswer | TidelogError:
        """Send a read to the leader and return its answer or error."""
        answered = trio.Event()
        answers: list[Message | TidelogError] = []

        def done(answer: Message | TidelogError) -> None:
            answers.append(answer)
            answered.set()

        self._shell.ask_leader(read, READ_TIMEOUT_S, done)
        await answered.wait()
        answer = answers[0]
        assert isinstance(answer, ReadAnswer | TidelogError)
        return answer

    def _flush_of(self, topic_id: str) -> str:
        topic = self._shell.cluster.topic(topic_id)
        return "" if topic is None else topic.config.flush


def _ask_of(head: RequestHead, names: Mapping[str, str]) -> Ask:
    """Return what a request asks for. Raises ``HttpError`` for a wrong or contradictory parameter."""
    key = head.headers.get("idempotency-key")
    timeout_s = seconds(head.query, "timeout", -1.0, MAX_TIMEOUT_S)
    ask = Ask(
        topic_name(names),
        partition_number(names) if "partition" in names else -1,
        choice(head.query, "acks", tuple(ACKS)),
        whole_number(head.query, "expected_offset", -1),
        -1 if timeout_s < 0 else round(1000 * timeout_s),
        "" if key is None else key_of(key),
    )
    if ask.idempotency_key and ask.acks != "all":
        raise HttpError(400, "an Idempotency-Key is for acks=all")
    return ask


def _by_partition(records: Sequence[NewRecord], ask: Ask, partitions: int, turn: int) -> list[Appended]:
    """Return the records by the partition that they go to: the one that the path names, otherwise that of the key.
    Records without a key go to one partition together: that of the ``Idempotency-Key``, or else ``turn``."""
    found: dict[int, Appended] = {}
    for record in records:
        if ask.partition >= 0:
            number = ask.partition
        elif record.key is not None:
            number = partition_of(record.key, partitions)
        elif ask.idempotency_key:
            number = partition_of_key(ask.idempotency_key, partitions)
        else:
            number = turn
        found.setdefault(number, Appended(number, [])).records.append(record)
    return list(found.values())


def _is_behind_end(error: TidelogError, offset: int) -> bool:
    """Return whether a read was refused because the log ends before its offset: a new leader does not have that
    batch. False if the log begins behind the offset."""
    return error.code == "OFFSET_OUT_OF_RANGE" and offset >= int(error.detail.get("log_start", offset + 1))


def _named(error: TidelogError, ask: Ask) -> TidelogError:
    """Return the error with the topic's name in place of its id, so that an unknown topic and one that the client may
    not know of look alike."""
    if error.code != "UNKNOWN_TOPIC":
        return error
    place = ask.topic if ask.partition < 0 else f"{ask.topic}/{ask.partition}"
    return refuse("UNKNOWN_TOPIC", f"there is no {place}")


def _key_was_used() -> TidelogError:
    text = "this Idempotency-Key was used for other records, which are in the log; these were not written"
    return refuse("SEQUENCE_CONFLICT", text)
