"""A client of the protocol by somebody who has never seen the code: written from docs/protocol.md,
docs/batch-format.md and tidelog.cddl alone, with a WebSocket library and a CBOR library.

What it needed and did not find there was a fault of those pages, and was mended there.
"""

from __future__ import annotations

import io
import itertools
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cbor2
from websockets.sync.client import ClientConnection, connect

Header = dict[str, Any]
Record = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes]]]
"""Offset, key, value, headers."""

BATCH_HEADER = struct.Struct(">qIIHBBIHHIqqQII")
MAGIC, VERSION, HEADER_BYTES = 0x544C, 1, 64
CONTROL, SPARSE, CODEC_BITS = 1 << 4, 1 << 5, 0b111


class Refused(Exception):
    """An error answer; the code says what to do."""


@contextmanager
def stranger_at(url: str) -> Iterator[Stranger]:
    """Somebody who connects to a gateway."""
    protocols: Any = ["tidelog.v1"]
    with connect(url, subprotocols=protocols, compression=None, max_size=16 << 20) as socket:
        yield Stranger(socket)


class Stranger:
    """One connection to a gateway, after hello."""

    def __init__(self, socket: ClientConnection) -> None:
        self._ids = itertools.count(1)
        self._socket = socket
        self._came: list[tuple[Header, bytes]] = []
        self.welcome = self.ask("hello", version=1, role="client", node="stranger")[0]

    def ask(self, op: str, **fields: Any) -> tuple[Header, bytes]:
        """A request and its answer. What comes meanwhile is kept."""
        id = next(self._ids)
        self.tell(op, id=id, **fields)
        header, payload = self.wait(lambda header: header.get("re") == id)
        if "error" in header:
            raise Refused(header["error"]["code"])
        return header, payload

    def tell(self, op: str, payload: bytes = b"", **fields: Any) -> None:
        """A message: the header, then the payload as one byte string, if there is any."""
        self._socket.send(cbor2.dumps({"op": op, **fields}) + (cbor2.dumps(payload) if payload else b""))

    def wait(self, wanted: Any) -> tuple[Header, bytes]:
        """The first message whose header is wanted."""
        while True:
            for number, (header, _) in enumerate(self._came):
                if wanted(header):
                    return self._came.pop(number)
            data = self._socket.recv()
            assert isinstance(data, bytes)
            stream = io.BytesIO(data)
            header = cbor2.load(stream)
            self._came.append((header, cbor2.load(stream) if stream.tell() < len(data) else b""))

    # --- topics ----------------------------------------------------------------------------------------------

    def create(self, name: str, partitions: int) -> str:
        """A new topic; its id."""
        return str(self.ask("create_topic", name=name, partitions=partitions)[0]["topic_id"])

    def topic_id(self, name: str) -> str | None:
        """None where there is no such topic."""
        topics = self.ask("metadata", topics=[name])[0]["topics"]
        return next((topic["topic_id"] for topic in topics if topic["name"] == name), None)

    # --- records ---------------------------------------------------------------------------------------------

    def produce(self, topic_id: str, partition: int, batch: bytes, acks: int = 2) -> Header:
        """One batch; its ack."""
        id = next(self._ids)
        part = {"id": id, "topic_id": topic_id, "partition": partition, "acks": acks, "timeout_ms": 30_000}
        self.tell("produce", batch, parts=[{**part, "size": len(batch)}])
        produced, _ = self.wait(
            lambda header: header.get("op") == "produced" and any(ack["id"] == id for ack in header["acks"])
        )
        for ack in produced["acks"]:
            if ack["id"] != id:
                self._came.append(({**produced, "acks": [ack]}, b""))
        ack = next(ack for ack in produced["acks"] if ack["id"] == id)
        if "error" in ack:
            raise Refused(ack["error"]["code"])
        return dict(ack)

    def consume(self, topic_id: str, partition: int, count: int) -> list[Record]:
        """So many records from the beginning, by subscription."""
        offset = self.ask("list_offset", topic_id=topic_id, partition=partition, at="earliest")[0]["offset"]
        sub = next(self._ids)
        self.ask("subscribe", sub=sub, topic_id=topic_id, partition=partition, offset=offset, credit=1000)
        records: list[Record] = []
        while len(records) < count:
            header, payload = self.wait(lambda header: header.get("op") == "delivery" and header["sub"] == sub)
            if "error" in header:
                raise Refused(header["error"]["code"])
            records += [record for record in records_of(payload) if record[0] >= offset]
            self.tell("credit", sub=sub, bytes=len(payload))
        self.ask("unsubscribe", sub=sub)
        return records


def batch_of(records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]]) -> bytes:
    """Key, value and headers of each, uncompressed, all with the time of now, from no idempotent producer."""
    columns: Header = {"v": [value for _, value, _ in records]}
    if any(key is not None for key, _, _ in records):
        columns["k"] = [key for key, _, _ in records]
    if any(headers for _, _, headers in records):
        columns["h"] = [[list(pair) for pair in headers] for _, _, headers in records]
    body = cbor2.dumps(columns)
    now = int(time.time() * 1000)
    after_crc = BATCH_HEADER.pack(
        *(0, 0, 0, MAGIC, VERSION, HEADER_BYTES, HEADER_BYTES + len(body)),
        *(0, 0, len(records), now, now, 0, 0, len(body)),
    )[16:]
    return struct.pack(">qII", 0, 0, crc32c(after_crc + body)) + after_crc + body


def records_of(payload: bytes) -> Iterator[Record]:
    """The records of batches one after the other."""
    while payload:
        fields = BATCH_HEADER.unpack_from(payload)
        base, crc, header_length, length, attributes = fields[0], fields[2], fields[5], fields[6], fields[7]
        batch, payload = payload[:length], payload[length:]
        assert crc32c(batch[16:]) == crc, "damaged on its way"
        assert attributes & CODEC_BITS == 0, "compressed"
        if attributes & CONTROL:
            continue
        body = cbor2.loads(batch[header_length:])
        values = body["v"]
        keys, headers = body.get("k", [None] * len(values)), body.get("h", [[]] * len(values))
        deltas = body["o"] if attributes & SPARSE else range(len(values))
        for delta, key, value, pairs in zip(deltas, keys, values, headers, strict=True):
            yield base + delta, key, value, [(name, content) for name, content in pairs]


def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


TABLE = _table()


def crc32c(data: bytes) -> int:
    """Castagnoli's polynomial, reflected; begins and ends with all bits inverted."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF
