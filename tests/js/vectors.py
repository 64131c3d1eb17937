"""Results of the Python code as JSON, which the JavaScript client must reproduce. ``python vectors.py FILE`` writes
them. Byte strings are written as ``{"$bytes": hex}``."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cbor2
import zstandard
from core_traces import address_traces, backward_traces, consumer_traces, producer_traces
from tidelog.acl import decide
from tidelog.batch import body as batch_body
from tidelog.batch.body import CODECS
from tidelog.batch.format import (
    HEADER,
    NewRecord,
    decode_batch,
    encode_batch,
    read_header,
    stamp_prefix,
)
from tidelog.client.core.partitioner import murmur2, partition_of
from tidelog.errors import CorruptBatch, refuse
from tidelog.quantities import BYTES_PER_S, COUNT, SECONDS, parse, parse_whole
from tidelog.timeline.records import encode
from tidelog.timeline.replay import past_after
from tidelog.types import Acl, Quota
from tidelog.wire import codec, messages

GOLDEN = Path(__file__).resolve().parents[1] / "unit" / "tidelog" / "batch" / "golden"
KAFKA_MURMUR2 = {  # org.apache.kafka.common.utils.UtilsTest.testMurmur2
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}
NUMBERS = (0, 1, 23, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**53 - 1, -1, -24, -25, -256, -257, -(2**53) + 1)
PLAIN: list[Any] = [
    *NUMBERS,
    *("", "a", "ASCII text", "Grüße", "\ufeffmark", "𝄞", "x" * 300, "ü" * 300),
    *(b"", b"\x00\xff", b"y" * 70_000, True, False, None, [], [1, [2, [3]]], list(range(500))),
    {},
    {"b": 1, "a": {"c": [None, b"z"]}, "": "", "__proto__": 1, "constructor": 2},
]
STRANGE = {
    "a float": "f93c00",
    "a double": "fb3ff0000000000000",
    "undefined": "f7",
    "a simple value": "e0",
    "a tag": "c000",
    "a self-describing tag": "d9d9f700",
    "an indefinite array": "9f01ff",
    "an indefinite map": "bfff",
    "an indefinite text": "7f6161ff",
    "an indefinite byte string": "5f4161ff",
    "a break": "ff",
    "a reserved length": "1c",
    "a key twice": "a2616101616102",
    "a key that is a number": "a10102",
    "a key that is a byte string": "a1416102",
    "bad UTF-8": "61ff",
    "bad UTF-8 in a long text": "7820" + "ff" * 32,
    "a surrogate": "63eda080",
    "a byte too many": "0000",
    "nothing": "",
    "a number cut short": "1a0000",
    "a text cut short": "636161",
    "an array cut short": "820a",
    "an array longer than memory": "9bffffffffffffffff",
    "a byte string longer than memory": "5bffffffffffffffff",
    "deep nesting": "81" * 9 + "00",
}


def plain(value: Any) -> Any:
    """Return the value in a form that JSON can hold."""
    if isinstance(value, bytes | memoryview):
        return {"$bytes": bytes(value).hex()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {"$map": [[key, plain(item)] for key, item in value.items()]}
    return value


def cbor() -> dict[str, Any]:
    """Return items with their encoding, and encodings that must be refused."""
    return {
        "plain": [{"hex": cbor2.dumps(item).hex(), "value": plain(item)} for item in PLAIN],
        "large": [cbor2.dumps(number).hex() for number in (2**53, 2**63 - 1, 2**64 - 1, -(2**53))],
        "strange": STRANGE,
    }


def batches() -> dict[str, Any]:
    """Return batches: the golden files, more that are made here, and damaged ones, each of which the Python reader
    refuses, too."""
    files = {path.stem: path.read_bytes() for path in sorted(GOLDEN.glob("batch-*.bin"))}
    text = [NewRecord(b"the same again " * (i % 50), b"%d" % i, 1000 + i, (("n", b"%d" % i),)) for i in range(400)]
    for name in CODECS:
        files[f"text-{name}"] = stamped(encode_batch(text, codec=name), 2**52)
        files[f"zeros-{name}"] = stamped(encode_batch([NewRecord(bytes(300_000))], codec=name), 0)
        files[f"noise-{name}"] = stamped(encode_batch([NewRecord(noise(100_000))], codec=name), 7)
    files["zstd-stream"] = unsized(encode_batch(text, codec="zstd"))
    return {
        "good": [{"name": name, "hex": data.hex(), "records": records_of(data)} for name, data in files.items()],
        "bad": [{"name": name, "hex": data.hex()} for name, data in damaged().items()],
        "written": [
            {
                "producerId": 77,
                "baseSequence": 40,
                "records": [plain(list(record)) for record in records],
                "hex": encode_batch(records, producer_id=77, base_sequence=40).hex(),
            }
            for records in (text, [NewRecord(None)], [NewRecord(b"x", None, 5), NewRecord(b"", b"", 3)])
        ],
    }


def unsized(batch: bytes, flushes: int = 2) -> bytes:
    """Return a zstd batch whose frame does not declare its size, with this many blocks before the last one."""
    body = bytes(batch_body.decompress("zstd", memoryview(batch)[64:], read_header(batch).body_length))
    stream = zstandard.ZstdCompressor().compressobj()
    step = -(-len(body) // flushes)
    pieces = [body[at : at + step] for at in range(0, len(body), step)]
    frame = b"".join(stream.compress(piece) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) for piece in pieces)
    return with_body(batch, frame + stream.flush(), attributes=1)


def noise(size: int) -> bytes:
    """Return random bytes, which do not compress."""
    state, out = 1, bytearray()
    for _ in range(size):
        state = state * 6364136223846793005 + 1442695040888963407 & 2**64 - 1
        out.append(state >> 56)
    return bytes(out)


def stamped(batch: bytes, offset: int) -> bytes:
    return stamp_prefix(offset, 9, read_header(batch).crc32c) + batch[16:]


def records_of(data: bytes) -> list[Any]:
    return [plain([r.offset, r.leader_epoch, r.timestamp_ms, r.key, r.value, r.headers]) for r in decode_batch(data)]


def damaged() -> dict[str, bytes]:
    """Return batches with one fault each."""
    small = [NewRecord(b"a", b"k", 1000), NewRecord(None, None, 999), NewRecord(b"", None, 1005)]
    batch = encode_batch(small)
    bodies = {
        "text as value": cbor2.dumps({"v": [b"", b"", "text"]}),
        "no values": cbor2.dumps({"k": [b"", b"", b""]}),
        "short column": cbor2.dumps({"v": [b"", b"", b""], "k": [b""]}),
        "float time": cbor2.dumps({"v": [b"", b"", b""], "t": [0, 1.0, 2]}),
        "negative time": cbor2.dumps({"v": [b"", b"", b""], "t": [0, -1001, 5]}),
        "time of bool": cbor2.dumps({"v": [b"", b"", b""], "t": [0, True, 2]}),
        "header of two texts": cbor2.dumps({"v": [b"", b"", b""], "h": [[], [], [["a", "b"]]]}),
        "header of three": cbor2.dumps({"v": [b"", b"", b""], "h": [[], [], [["a", b"b", b"c"]]]}),
        "array": cbor2.dumps([b"", b"", b""]),
        "indefinite": b"\xa1\x61v\x9f\x40\x40\x40\xff",
        "byte behind": b"\xa1\x61v\x83\x40\x40\x40\x00",
        "key twice": b"\xa2\x61v\x83\x40\x40\x40\x61v\x83\x40\x40\x40",
    }
    fields: dict[str, dict[str, int]] = {
        "magic": {"magic": 0},
        "version": {"version": 2},
        "header length": {"header_length": 72},
        "unknown codec": {"attributes": 3},
        "unknown attribute": {"attributes": 64},
        "count 0": {"record_count": 0},
        "count 2": {"record_count": 2},
        "count 4": {"record_count": 4},
        "far too many": {"record_count": (1 << 18) + 1},
        "offset": {"base_offset": -1},
        "first time": {"first_timestamp": 999},
        "negative first time": {"first_timestamp": -1},
        "max time": {"max_timestamp": 1004},
        "body length": {"body_length": 1},
        "huge body": {"body_length": 2**32 - 1},
        "not zstd": {"attributes": 1},
        "not lz4": {"attributes": 2},
        "sparse bit": {"attributes": 32},
    }
    made = {f"body: {name}": with_body(batch, body, max_timestamp=1000) for name, body in bodies.items()}
    made |= {f"header: {name}": with_body(batch, batch[64:], **wrong) for name, wrong in fields.items()}
    for number, name in ((1, "zstd"), (2, "lz4")):
        packed = encode_batch(small, codec=name)  # type: ignore[arg-type]
        made[f"{name}: cut"] = with_body(packed, packed[64:-3], attributes=number)
        made[f"{name}: twice"] = with_body(packed, packed[64:] + packed[64:], attributes=number)
        made[f"{name}: length"] = with_body(packed, packed[64:], attributes=number, body_length=1000)
    many = encode_batch([NewRecord(bytes(6000))], codec="zstd")
    made["zstd: no size, 513 blocks and more"] = unsized(many, 600)
    for at in range(12, len(batch), 7):
        flipped = bytearray(batch)
        flipped[at] ^= 1 << (at % 8)
        made[f"flip at {at}"] = bytes(flipped)
    made |= {f"cut at {at}": batch[:at] for at in (0, 1, 63, 64, len(batch) - 1)}
    for name, data in made.items():
        try:
            decode_batch(data)
        except CorruptBatch:
            continue
        raise AssertionError(f"Python takes it: {name}")
    return made


def with_body(batch: bytes, body: bytes, **fields: int) -> bytes:
    """Return the batch with another body and other header fields, and a CRC that fits."""
    from crc32c import crc32c

    changes = {"body_length": len(body)} if "attributes" not in fields else {}
    header = read_header(batch)._replace(batch_length=64 + len(body), **{**changes, **fields})
    rest = HEADER.pack(*header)[16:] + body
    return stamp_prefix(header.base_offset, header.leader_epoch, crc32c(rest)) + rest


def camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(word.capitalize() for word in tail)


def as_object(part: Any) -> Any:
    """Return a message as the JavaScript client represents it."""
    if dataclasses.is_dataclass(part):
        return {camel(f.name): as_object(getattr(part, f.name)) for f in dataclasses.fields(part)}
    if isinstance(part, list | tuple):
        return [as_object(item) for item in part]
    return plain(part) if isinstance(part, bytes) else part


def answers() -> list[dict[str, Any]]:
    """Return answers and notices as the Python codec writes them: with all fields, and without those that may be left
    out."""
    m = messages
    full = m.PartitionInfo(
        1, ("r1", "r2"), ("r1",), "r1", 3, 9, 5, 70, ("r2",), ("r4",), "r2", ("r1", "r3"), True, True
    )
    bare = m.PartitionInfo(0, ("r1",), ("r1",), "", 0, 1)
    topic = m.TopicInfo("5f", "orders", {"flush": "os", "max_batch_bytes": "1000"}, (bare, full))
    server = m.ServerInfo("r1", "ws://a:1", 7, True, "east", True)
    error = refuse("OFFSET_OUT_OF_RANGE", "gone", log_start=12, why="retention").to_info()
    move = m.PlannedMove("orders", 1, ("r1",), ("r2",), "balance")
    lost = m.ControllerInfo("c2", "", "unknown", False, 4, True)
    controllers = (m.ControllerInfo("c1", "ws://b:1", "leader"), lost)
    entry = m.HistoryEntry(1_700_000_000_000, 2, 1, "elected", "report", "r1", ("r1",), {"reported_by": "r2"})
    share = m.TopicShare("5f", (0, 2), "orders")
    position = m.GroupPosition("5f", 2, 310, 3, "note", 1_700_000_000_000)
    member = m.GroupMember("b3", 4, "i1", "host", ("orders",), (share,), (share,), (share,), 45_000, True)
    acls = (Acl("app", "read", "topic:orders"), Acl("*", "*", "group:g*", True))
    tokens = (m.TokenInfo("00ff", "app", 1_700_000_000_000, 1_800_000_000_000), m.TokenInfo("01", "app"))
    access = m.AccessAnswer(tokens, acls, (Quota("app", 1, 2, 3, 4), Quota("idle")), ("*",), True, True, "ops", True)
    samples: dict[str, list[Any]] = {
        "accessAnswer": [access, m.AccessAnswer()],
        "joinGroupAnswer": [m.JoinGroupAnswer(4, 3000, (share,)), m.JoinGroupAnswer(4, 3000)],
        "groupHeartbeatAnswer": [m.GroupHeartbeatAnswer(4, (share, m.TopicShare("5e", ())))],
        "fetchOffsetsAnswer": [m.FetchOffsetsAnswer((position, m.GroupPosition("5f", 0, 0)))],
        "listGroupsAnswer": [m.ListGroupsAnswer((m.GroupInfo("g", "stable", 2, "r1"), m.GroupInfo("h", "empty")))],
        "describeGroupAnswer": [
            m.DescribeGroupAnswer("g", "stable", 4, "sticky", "r1", (member, m.GroupMember("b4", 1)), (position,)),
        ],
        "welcome": [
            m.Welcome(1, "fake", "g1", "gateway", 16 << 20, 4096),
            m.Welcome(1, "fake", "g1", "gateway", 16 << 20, 9, capabilities=("strict",), limits={"requests": 9}),
        ],
        "topicCreated": [m.TopicCreated("5f")],
        "metadataAnswer": [m.MetadataAnswer("fake", 3, (topic,), (server, m.ServerInfo("r2", "", 8, False)))],
        "historyAnswer": [m.HistoryAnswer((entry, m.HistoryEntry(0, 1, 0, "created", "asked"))), m.HistoryAnswer(())],
        "quorumAnswer": [m.QuorumAnswer("c1", 4, 900, controllers), m.QuorumAnswer("", 0, 0, (), ("g1", "g2"))],
        "rebalancePlan": [m.RebalancePlan((move,), (move, move)), m.RebalancePlan()],
        "producerId": [m.ProducerId(2**40)],
        "offsetAnswer": [m.OffsetAnswer(5), m.OffsetAnswer(5, 3, 1000)],
        "readAnswer": [m.ReadAnswer(3), m.ReadAnswer(3, 7, 2, b"batches")],
        "playAnswer": [
            m.PlayAnswer((m.PlayedNode("r1", "killed"),), (m.PlayedMessage(5, "r2", "r1", "fetch", True, "x 1"),)),
            m.PlayAnswer(messages=(m.PlayedMessage(0, "r2", "r1"),)),
        ],
        "digestAnswer": [
            m.DigestAnswer(1, 9, 8, 3, 2, (m.DigestEntry(5, 4, b"chain"),), 7, (m.EpochStart(1, 0),)),
            m.DigestAnswer(0, 0, 0),
        ],
        "listTransactionsAnswer": [
            m.ListTransactionsAnswer(
                (
                    m.TransactionInfo("etl", "prepared", 2**40, 3, "5f", 2, 1000, 2000, (share,), (share,)),
                    m.TransactionInfo("billing", "open", 7, 0),
                ),
                (3, 4),
                True,
            ),
            m.ListTransactionsAnswer(),
        ],
        "transactionEnded": [m.TransactionEnded(True, (share,)), m.TransactionEnded()],
        "produced": [m.Produced((m.ProduceAck(7, 5, 3, "all/fsync", True), m.ProduceAck(8, error=error)))],
        "delivery": [m.Delivery(4, 70, payload=b"batches"), m.Delivery(4, error=error)],
    }
    return [
        {"shape": shape, "hex": encoded(message), "value": as_object(message)}
        for shape, several in samples.items()
        for message in several
    ]


def encoded(message: messages.Message) -> str:
    head, payload = codec.encode(message, re=None if message.OP else 5)
    return (head + codec.payload_view(payload)).hex()


def partitions() -> dict[str, Any]:
    """Return hashes and partitions of keys; Kafka's own examples are among them."""
    assert all(murmur2(key.encode()) == signed % 2**32 for key, signed in KAFKA_MURMUR2.items())
    keys = [*(key.encode() for key in KAFKA_MURMUR2), *(noise(size) for size in range(40))]
    return {"keys": [{"hex": key.hex(), "hash": murmur2(key), "of12": partition_of(key, 12)} for key in keys]}


def pasts() -> list[dict[str, Any]]:
    """Return the records of a timeline, every kind among them, each with the state of the cluster after it."""
    life = list(timeline_life())
    return [
        {"hex": encode(record).hex(), "complete": past.complete, "image": json.loads(json.dumps(past.image()))}
        for n, record in enumerate(life, 1)
        for past in (past_after(life[:n]),)
    ]


def timeline_life() -> Iterator[dict[str, Any]]:
    """Yield the records of a timeline as the active controller writes them, in the fields that matter here."""
    topic = {"topic": "orders", "topic_id": "5f"}
    state = {"replicas": ["r1", "r2"], "isr": ["r1", "r2"], "leader": "r1", "leader_epoch": 0, "epoch": 0}
    server = {"node": "r1", "url": "ws://r1", "broker_epoch": 3, "fenced": False, "rack": "", "draining": False}
    told: list[dict[str, Any]] = [
        {"controller": "c1", "kind": "controller_joined", "after": {"node": "c1", "url": "ws://c1", "voter": True}},
        {"controller": "c1", "kind": "controller_active", "after": None, "evidence": {"term": "1"}},
        {"server": "r1", "kind": "server_joined", "after": server},
        topic | {"kind": "topic_created", "after": {"retention_ms": "1000"}},
        topic | {"partition": 0, "kind": "created", "after": state},
        topic | {"partition": 1, "kind": "created", "after": state | {"leader": "r2", "learners": ["r3"]}},
        {"server": "r1", "kind": "server_fenced", "after": server | {"fenced": True}},
        topic | {"partition": 0, "kind": "leader_elected", "after": state | {"leader": "r2", "isr": ["r2"]}},
        {"type": "refused", "op": "create_topic", "topic": "other"},
        {"controller": "c1", "kind": "controller_left", "after": None},
    ]
    event = 0
    for about in told:
        event += about.get("type", "event") == "event"
        yield {"format": 1, "type": "event", "event": event, "time_ms": 1000 + 10 * event, "evidence": {}} | about
    yield {"format": 1, "type": "gap", "event": 14, "from": 10, "time_ms": 2000}
    frame = {"format": 1, "type": "keyframe", "event": 14, "time_ms": 2100, "parts": 2}
    whole = {"servers": [server], "controllers": [], "active": "c2", "term": 4, "cluster": "c"}
    half = topic | {"config": {"retention_ms": "7"}, "first": 0, "partitions": [state]}
    yield frame | whole | {"part": 1, "topics": [half]}
    yield frame | {"part": 2, "topics": [half | {"first": 1, "partitions": [state]}]}
    gone = topic | {"kind": "topic_deleted", "after": None}
    yield {"format": 1, "type": "event", "event": 15, "time_ms": 2200, "evidence": {}} | gone


def decisions() -> dict[str, Any]:
    """Return rules, and whether they allow each of many questions, with and without principals that inherit a
    right."""
    rules = [
        Acl("ada", "read", "topic:orders"),
        Acl("ada", "*", "topic:a*"),
        Acl("*", "describe", "topic:*"),
        Acl("ada", "delete", "topic:abc", True),
        Acl("bob", "*", "topic:*"),
        Acl("bob", "*", "topic:b*", True),
        Acl("bob", "read", "topic:__audit"),
        Acl("bob", "group", "group:g*"),
        Acl("ops", "cluster", "cluster"),
        Acl("sam", "security", "cluster"),
    ]
    resources = ("topic:orders", "topic:abc", "topic:bcd", "topic:__audit", "topic:__groups", "group:g1", "cluster")
    operations = ("read", "delete", "describe", "group", "cluster", "security")
    asked = [
        (principal, operation, resource, heirs)
        for principal in ("ada", "bob", "ops", "sam", "eve")
        for operation in operations
        for resource in resources
        for heirs in ([], ["ops"], ["*"])
    ]
    return {"rules": as_object(rules), "asked": [[*one, decide(rules, *one)] for one in asked]}


def quantities() -> list[list[Any]]:
    """Return texts, what they count, and the number that they mean, null if they are refused."""
    texts = ("0", "7", " 10 k", "10MiB/s", "1.5h", "90d", "2w", "1_000", "500KB/S", "x", "", "1.5", "-1", "7 apples")
    units = {"SECONDS": SECONDS, "BYTES_PER_S": BYTES_PER_S, "COUNT": COUNT}
    found = []
    for name, unit in units.items():
        for text in texts:
            try:
                number = parse(text, unit) if name == "SECONDS" else parse_whole(text, unit)
            except ValueError:
                number = None
            found.append([text, name, None if number is None or number < 0 else float(number)])
    return found


def everything() -> dict[str, Any]:
    return {
        "cbor": cbor(),
        "batches": batches(),
        "answers": answers(),
        "partitions": partitions(),
        "producers": producer_traces(),
        "consumers": consumer_traces(),
        "backwards": backward_traces(),
        "addresses": address_traces(),
        "pasts": pasts(),
        "decisions": decisions(),
        "quantities": quantities(),
    }


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(everything()))
