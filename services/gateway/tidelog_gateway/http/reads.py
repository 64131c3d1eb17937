"""Reading records over HTTP: one answer with the records from an offset on, at once or when there are some.

Only committed records are read, and none of an aborted transaction, as a consumer over a WebSocket does by default.
Offsets without a record (compacted ones, markers of transactions) are passed over, and ``next_offset`` is behind
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import trio
from tidelog.batch.format import Record, split
from tidelog.errors import CorruptBatch, TidelogError, refuse
from tidelog.types import Position
from tidelog.wire.messages import ListOffset, OffsetAnswer, Read, ReadAnswer

from tidelog_gateway.consume.polls import POLL_MAX_S
from tidelog_gateway.http.decoded_batches import DECODED_AT_ONCE, DecodedBatches, LongWork
from tidelog_gateway.http.http_link import HttpLink
from tidelog_gateway.http.parameters import partition_number, seconds, topic_name, whole_number
from tidelog_gateway.http.record_formats import FORMATS, RAW, Window, negotiate, written
from tidelog_gateway.http.request_head import RequestHead
from tidelog_gateway.http.responses import Response
from tidelog_gateway.shell import GatewayShell

DEFAULT_RECORDS, MOST_RECORDS = 500, 10_000
READ_BYTES = 1 << 20
DECODED_BYTES = 4 << 20
"""An answer has about so many bytes of decompressed batches, and one record in any case."""
NO_TOPIC = "no-such-topic"
EDGES = ("earliest", "latest")


class Place:
    """The partition that a request names, and the position at which it begins."""

    def __init__(self, shell: GatewayShell, names: Mapping[str, str]) -> None:
        """Raises ``HttpError`` if no topic can have the name, or the partition is no number."""
        self.topic = topic_name(names)
        self.partition = partition_number(names)
        found = shell.cluster.topic_named(self.topic)
        self.topic_id = NO_TOPIC if found is None else found.topic_id

    async def position(self, link: HttpLink, given: Mapping[str, str], default: str) -> Position:
        """Return the position that the parameters ``from`` and ``epoch`` name: an offset, ``earliest`` or ``latest``.
        Raises ``HttpError`` or the refusal of the look-up."""
        text = given.get("from", default)
        if text not in EDGES:
            offset = whole_number({"from": text}, "from", 0)
            return Position(whole_number(given, "epoch", -1), offset)
        answer = await link.call(ListOffset(self.topic_id, self.partition, text), OffsetAnswer)
        return Position(-1, answer.offset)

    def named(self, error: TidelogError) -> TidelogError:
        """Return the error with the topic's name in place of its id, so that an unknown topic and one that the client
        may not know of look alike."""
        if error.code != "UNKNOWN_TOPIC":
            return error
        return refuse("UNKNOWN_TOPIC", f"there is no {self.topic}/{self.partition}")


class Reads:
    """The part of the port that answers reads. There is one for each gateway."""

    def __init__(self, shell: GatewayShell, decoded: DecodedBatches, long_work: LongWork) -> None:
        self._shell = shell
        self._decoded = decoded
        self._long_work = long_work

    async def read(self, link: HttpLink, head: RequestHead, names: Mapping[str, str]) -> Response:
        """Return the records from a position on: at most ``max``, after a wait of at most ``wait`` seconds if there
        are none yet."""
        media_type = negotiate(head.header("accept"), FORMATS)
        most = 1 if media_type == RAW else whole_number(head.query, "max", DEFAULT_RECORDS, MOST_RECORDS, 1)
        until = trio.current_time() + seconds(head.query, "wait", 0.0, POLL_MAX_S)
        place = Place(self._shell, names)
        try:
            position = await place.position(link, head.query, "earliest")
            while True:
                left_s = until - trio.current_time()
                window = await self._window(link, place, position, most, max(0.0, left_s))
                moved = window.next_offset > position.offset
                if window.records or (not moved and trio.current_time() >= until):
                    return await self._written(window, media_type, link.principal)
                position = Position(window.next_epoch, window.next_offset)
        except TidelogError as error:
            raise place.named(error) from None

    async def _written(self, window: Window, media_type: str, principal: str) -> Response:
        """Return the answer with a window's records; a long one is made in a thread."""
        if len(window.records) <= DEFAULT_RECORDS and sum(map(_size, window.records)) <= DECODED_AT_ONCE:
            return written(window, media_type)
        return await self._long_work.run(principal, partial(written, window, media_type))

    async def _window(self, link: HttpLink, place: Place, start: Position, most: int, wait_s: float) -> Window:
        """Return up to ``most`` records of one read, and the position behind them. Raises the refusal of the read,
        and ``CorruptBatch`` if the first batch cannot be decoded."""
        read = Read(
            place.topic_id,
            place.partition,
            start.offset,
            last_epoch=start.leader_epoch,
            max_bytes=READ_BYTES,
            max_wait_ms=round(1000 * wait_s),
        )
        answer = await link.call(read, ReadAnswer)
        assert not isinstance(answer.payload, list)
        records: list[Record] = []
        position, left_bytes = start, DECODED_BYTES
        for header, batch in split(answer.payload):
            if header.end_offset <= start.offset:
                continue
            if records and header.body_length > left_bytes:
                break
            try:
                found = await self._decoded.records(header, batch, link.principal)
            except CorruptBatch as error:
                if records:
                    break
                raise unreadable(header.base_offset, header.end_offset, error) from None
            fresh = [record for record in found if record.offset >= start.offset]
            taken = _first(fresh, most - len(records), left_bytes)
            records += fresh[:taken]
            left_bytes -= header.body_length
            if taken < len(fresh) or (len(records) == most and records[-1].offset + 1 < header.end_offset):
                position = Position(header.leader_epoch, records[-1].offset + 1)
                break
            position = Position(header.leader_epoch, header.end_offset)
            if len(records) == most:
                break
        return Window(records, position.offset, position.leader_epoch, answer.high_watermark)


def _first(records: Sequence[Record], most: int, most_bytes: int) -> int:
    """Return how many of the records an answer takes: at most ``most``, and one more than fit in ``most_bytes``."""
    for number, record in enumerate(records[:most]):
        most_bytes -= _size(record)
        if most_bytes < 0:
            return number + 1
    return min(most, len(records))


def _size(record: Record) -> int:
    """Return the bytes of a record's key, value and headers."""
    headers = sum(len(name) + len(value) for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


def unreadable(first: int, end: int, error: CorruptBatch) -> TidelogError:
    """Return the error for a batch of the log that cannot be decoded; ``end`` is the offset behind it."""
    text = f"the batch at offsets {first} to {end - 1} cannot be read: {error.message}. Go on at offset {end}"
    return refuse("CORRUPT_BATCH", text, offset=first, last_offset=end - 1)
