"""The vectors for authors of clients: writes ``docs/vectors/*.json``. ``docs/vectors.md`` describes the files.

Compressed batches are the files of ``tests/unit/tidelog/batch/golden``, whose bytes do not depend on the release of a
compressor. All other bytes are made here, by the code that the services and the Python client use."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import cbor2
from crc32c import crc32c
from tidelog.acl import digest_of, id_of
from tidelog.batch.format import (
    HEADER,
    NO_CHAIN,
    NewRecord,
    chain_after,
    decode_batch,
    encode_batch,
    read_header,
    stamp_prefix,
)
from tidelog.client.core.partitioner import murmur2, partition_of
from tidelog.errors import CODES, refuse
from tidelog.wire import codec, messages

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "unit" / "tidelog" / "batch" / "golden"
COMPRESSED = ("full-zstd", "full-zstd-unsized", "full-lz4")
"""The compressed batches; the frame of the second one does not declare the size of its content."""
KEYS = (
    b"",
    b"a",
    b"ab",
    b"abc",
    b"abcd",
    b"foobar",
    b"21",
    b"order-17",
    "Grüße".encode(),
    b"\x80",
    b"\xff\xfe",
    b"\xff\xfe\xfd",
    b"\xff\xfe\xfd\xfc",
    b"abcd\xff\x80\x81",
    bytes(range(256)),
)
"""Keys of all lengths modulo 4, some with bytes that a signed byte would spoil."""
TOKENS = (
    "tide_00112233445566ff_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    "tide_0123456789abcdef_Zm9yIHZlY3RvcnMgb25seSwgbm90IGEgc2VjcmX_778",
)
"""Tokens that no cluster has."""
TOPIC = "5f0c9d1e2b3a4c5d6e7f8091a2b3c4d5"
RECORDS = (
    NewRecord(b'{"total": 17}', b"ada", 1_760_000_000_000, (("trace", b"\x01\x02"), ("trace", b"again"))),
    NewRecord(None, b"bob", 1_760_000_000_007),
    NewRecord(b"", None, 1_759_999_999_999),
)


def batches() -> str:
    """Return ``batches.json``: batches with what they hold, and batches that every reader must refuse."""
    good = {name: (GOLDEN / f"batch-v1-{name}.bin").read_bytes() for name in COMPRESSED}
    good |= {"sparse": sparse(), "control": (GOLDEN / "batch-v1-control.bin").read_bytes()}
    good["producer"] = encode_batch(RECORDS)
    good["idempotent-producer"] = encode_batch(RECORDS, producer_id=4711, producer_epoch=2, base_sequence=40)
    good["appended"] = appended(good["idempotent-producer"], 2000, 3)
    good["transaction"] = encode_batch(RECORDS, producer_id=4711, producer_epoch=3, transactional=True)
    return as_json(
        {
            "good": [{"name": name, "hex": batch.hex(), **content(batch)} for name, batch in good.items()],
            "bad": [{"name": name, "hex": batch.hex()} for name, batch in bad(good["producer"])],
        }
    )


def appended(batch: bytes, offset: int, epoch: int) -> bytes:
    """Return a producer's batch as the leader of ``epoch`` appends it at ``offset``."""
    return stamp_prefix(offset, epoch, read_header(batch).crc32c) + batch[16:]


def content(batch: bytes) -> dict[str, Any]:
    """Return the fields of a batch's header, and its records."""
    records = [
        {
            "offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
            "key": record.key if record.key is None else bytes(record.key).hex(),
            "value": record.value if record.value is None else bytes(record.value).hex(),
            "headers": [[name, bytes(value).hex()] for name, value in record.headers],
        }
        for record in decode_batch(batch)
    ]
    return {"header": read_header(batch)._asdict(), "records": records}


def bad(batch: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield batches with one fault each, with a name for the fault. The CRC fits unless it is the fault."""
    body = batch[64:]
    for name, wrong in {
        "magic": {"magic": 0},
        "version": {"version": 2},
        "header-length": {"header_length": 72},
        "batch-length": {"batch_length": len(batch) + 1},
        "unknown-codec": {"attributes": 3},
        "unknown-attribute": {"attributes": 64},
        "sparse-without-its-header": {"attributes": 32},
        "no-records": {"record_count": 0},
        "fewer-records-than-the-body": {"record_count": 2},
        "more-records-than-the-body": {"record_count": 4},
        "negative-base-offset": {"base_offset": -1},
        "first-timestamp-behind-the-last": {"first_timestamp": 1_760_000_000_008},
        "body-length": {"body_length": len(body) - 1},
        "body-longer-than-64-mib": {"body_length": (64 << 20) + 1},
        "not-zstd": {"attributes": 1},
        "not-lz4": {"attributes": 2},
    }.items():
        yield name, sealed(batch, body, **wrong)
    for name, content in {
        "value-is-text": {"v": ["text", None, b""]},
        "no-values": {"k": [None, None, None]},
        "column-too-short": {"v": [b"", b"", b""], "k": [b""]},
        "timestamp-is-a-float": {"v": [b"", b"", b""], "t": [0, 0.5, 0]},
        "header-without-value": {"v": [b"", b"", b""], "h": [[], [], [["name"]]]},
    }.items():
        yield name, sealed(batch, cbor2.dumps(content))
    yield "body-of-indefinite-length", sealed(batch, b"\xa1\x61v\x9f\x40\x40\x40\xff")
    yield "byte-behind-the-body", sealed(batch, body + b"\0")
    yield "wrong-crc", batch[:-1] + bytes([batch[-1] ^ 1])
    yield "cut-short", batch[:-1]
    yield "shorter-than-a-header", batch[:63]


def sealed(batch: bytes, body: bytes, **changes: int) -> bytes:
    """Return the batch with another body and other header fields, and a CRC that fits."""
    sizes = {"batch_length": 64 + len(body), "body_length": len(body)}
    header = read_header(batch)._replace(**(sizes | changes))
    rest = HEADER.pack(*header)[16:] + body
    return stamp_prefix(header.base_offset, header.leader_epoch, crc32c(rest)) + rest


def partitioner() -> str:
    """Return ``partitioner.json``: keys with their hash, and their partitions in topics of different sizes."""
    return as_json(
        [
            {
                "key": key.hex(),
                "murmur2": murmur2(key),
                "partition_of": {str(count): partition_of(key, count) for count in (1, 3, 12, 1000)},
            }
            for key in KEYS
        ]
    )


def hash_chain() -> str:
    """Return ``hash-chain.json``: the batches of a log, with the hash chain after each."""
    chain, log = NO_CHAIN, []
    offset = 0
    for batch in (encode_batch(RECORDS), encode_batch(RECORDS[:1], producer_id=4711), sparse()):
        there = appended(batch, offset, 1)
        chain = chain_after(chain, there)
        log.append({"hex": there.hex(), "chain": chain.hex()})
        offset += read_header(batch).record_count
    return as_json({"empty": NO_CHAIN.hex(), "log": log})


def sparse() -> bytes:
    """Return the sparse batch of the golden files."""
    return (GOLDEN / "batch-v1-sparse-none.bin").read_bytes()


def tokens() -> str:
    """Return ``tokens.json``: tokens with the ids in them, and their digests."""
    return as_json([{"token": text, "token_id": id_of(text), "digest": digest_of(text)} for text in TOKENS])


def wire() -> str:
    """Return ``messages.json``: messages with their bytes, and the error answer of every code."""
    batch = encode_batch(RECORDS, producer_id=4711, base_sequence=40)
    part = messages.ProducePart(41, TOPIC, 0, 2, 5000, size=len(batch))
    ack = messages.ProduceAck(41, 2000, 3, "all/fsync")
    refused = messages.ProduceAck(42, error=refuse("NOT_ENOUGH_REPLICAS", "1 of 2 in sync").to_info())
    conditional = messages.ProducePart(43, TOPIC, 0, 2, 5000, len(batch), expected_offset=2000)
    moved = messages.ProduceAck(
        43, error=refuse("UNEXPECTED_OFFSET", "the log ends at 2003", end_offset=2003).to_info()
    )
    owned = messages.TopicShare(TOPIC, (0, 2))
    position = messages.GroupPosition(TOPIC, 2, 310, 3)
    bounds = {"log_start": 0, "high_watermark": 2003, "leader_epoch": 3, "end_offset": 1998}
    truncated = refuse("LOG_TRUNCATED", "the logs part at 1998 in epoch 3", **bounds)
    sent: list[tuple[str, messages.Message, dict[str, int]]] = [
        (
            "hello_with_token",
            messages.Hello(1, "client", "my-program", token=TOKENS[0], capabilities=("strict",)),
            {"id": 0},
        ),
        ("init_producer", messages.InitProducer(), {"id": 7}),
        ("producer_id", messages.ProducerId(4711, 1, "00" * 36, 5), {"re": 7}),
        ("use_producer", messages.UseProducer(4711, 0, "00" * 36), {"id": 8}),
        ("producer_ticket", messages.ProducerTicket("01" * 36), {"re": 8}),
        ("conditional_produce", messages.Produce((conditional,), batch), {}),
        ("conditional_refused", messages.Produced((moved,)), {}),
        ("join_group", messages.JoinGroup("billing", "b3f0", ("orders",)), {"id": 9}),
        ("join_group_answer", messages.JoinGroupAnswer(4, 3000, (replace(owned, topic="orders"),)), {"re": 9}),
        ("group_heartbeat", messages.GroupHeartbeat("billing", "b3f0", 4, (owned,)), {"id": 10}),
        ("group_heartbeat_answer", messages.GroupHeartbeatAnswer(6, (owned,)), {"re": 10}),
        ("commit_offsets", messages.CommitOffsets("billing", (position,), "b3f0", 6), {"id": 11}),
        ("fetch_offsets", messages.FetchOffsets("billing", (owned,)), {"id": 12}),
        ("fetch_offsets_answer", messages.FetchOffsetsAnswer((position,)), {"re": 12}),
        ("begin_transaction", messages.BeginTransaction("etl", "0d8c"), {"id": 13}),
        ("transaction_begun", messages.TransactionBegun(4712, 3, "02" * 36, 5), {"re": 13}),
        ("end_transaction", messages.EndTransaction("etl", 4712, 3, True), {"id": 14}),
        ("transaction_ended", messages.TransactionEnded(True), {"re": 14}),
        ("delivery_that_ends", messages.Delivery(7, error=truncated.to_info()), {}),
        ("hello", messages.Hello(1, "client", "my-program"), {"id": 1}),
        ("welcome", messages.Welcome(1, "local-1a2b3c4d", "g1", "gateway", 16 << 20, 1024), {"re": 1}),
        ("create_topic", messages.CreateTopic("orders", 3, 3, {"retention_ms": "7d"}), {"id": 2}),
        ("topic_created", messages.TopicCreated(TOPIC), {"re": 2}),
        ("metadata", messages.Metadata(("orders",)), {"id": 3}),
        ("list_offset", messages.ListOffset(TOPIC, 0, "latest"), {"id": 4}),
        ("offset_answer", messages.OffsetAnswer(2000, 3), {"re": 4}),
        ("produce", messages.Produce((part,), batch), {}),
        ("produced", messages.Produced((ack, refused)), {}),
        ("subscribe", messages.Subscribe(7, TOPIC, 0, 2001, 65536, 3), {"id": 5}),
        ("done", messages.Done(), {"re": 5}),
        ("delivery", messages.Delivery(7, 2003, payload=appended(batch, 2000, 3)), {}),
        ("credit", messages.Credit(7, 65536), {}),
        ("read", messages.Read(TOPIC, 0, 2000, 3), {"id": 6}),
        ("read_answer", messages.ReadAnswer(3, 2003, payload=appended(batch, 2000, 3)), {"re": 6}),
        *whole(),
    ]
    return as_json(
        {
            "messages": [message(name, encoded(body, **ids)) for name, body, ids in sent],
            "errors": [
                message(code, codec.encode_error(9, refuse(code, meaning.text))) for code, meaning in CODES.items()
            ],
        }
    )


def whole() -> list[tuple[str, messages.Message, dict[str, int]]]:
    """Return messages with fields that most messages of their kind do not need: their names, bodies and ids."""
    limits = {"message_bytes": 16 << 20, "requests": 1024, "produce_batches": 8192, "produce_bytes": 32 << 20}
    capabilities = ("strict", "conditional_append")
    of_gateway = (1, "local-1a2b3c4d", "g1", "gateway", 16 << 20, 1024)
    welcome = messages.Welcome(*of_gateway, capabilities=capabilities, limits=limits)
    offered = messages.Hello(1, "client", "my-program", version_min=1, version_max=1, capabilities=("strict",))
    copy = messages.ProduceAck(41, 2000, 3, "all/fsync", duplicate=True)
    slowed = messages.ProduceAck(44, 2003, 3, "all/fsync", throttle_ms=250)
    servers = ("r1", "r2", "r3")
    led = messages.PartitionInfo(0, servers, ("r1", "r3"), "r1", 3, 7, log_start=0, high_watermark=2003)
    leaderless = messages.PartitionInfo(1, servers, ("r2",), "", 4, 9, read_only=True)
    topic = messages.TopicInfo(TOPIC, "orders", {"max_batch_bytes": "1048576"}, (led, leaderless))
    server = messages.ServerInfo("r1", "ws://10.0.0.1:9192", 5, False)
    gateways = (messages.GatewayInfo("g1", "ws://10.0.0.4:9292"), messages.GatewayInfo("g2", "ws://10.0.0.5:9292"))
    known = messages.MetadataAnswer("local-1a2b3c4d", 170, (topic,), (server,), gateways)
    return [
        ("hello_with_versions", offered, {"id": 1}),
        ("welcome_with_limits", welcome, {"re": 1}),
        ("metadata_answer", known, {"re": 3}),
        ("produced_copy_and_throttled", messages.Produced((copy, slowed)), {}),
    ]


def encoded(body: messages.Message, **ids: int) -> bytes:
    """Return the bytes of a message."""
    head, payload = codec.encode(body, **ids)
    return head + codec.payload_view(payload)


def message(name: str, data: bytes) -> dict[str, Any]:
    """Return a message as an entry of ``messages.json``: its header as JSON, its payload, and all of its bytes."""
    items = BytesIO(data)
    header = cbor2.load(items)
    payload = cbor2.load(items) if items.tell() < len(data) else b""
    return {"name": name, "header": plain(header), "payload": payload.hex(), "hex": data.hex()}


def plain(value: Any) -> Any:
    """Return a CBOR item as JSON: byte strings as hexadecimal digits."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list):
        return [plain(item) for item in value]
    return {name: plain(item) for name, item in value.items()} if isinstance(value, dict) else value


def as_json(document: Any) -> str:
    """Return a document as text, with one entry of a list on a line."""
    if isinstance(document, list):
        return "[\n" + ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in document) + "\n]\n"
    parts = [
        f"{json.dumps(name)}: " + (as_json(part).rstrip() if isinstance(part, list) else json.dumps(part))
        for name, part in document.items()
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


FILES = {
    "batches.json": batches,
    "partitioner.json": partitioner,
    "hash-chain.json": hash_chain,
    "tokens.json": tokens,
    "messages.json": wire,
}
