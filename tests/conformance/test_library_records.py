"""What a library sends arrives, byte for byte and in order, and what is refused is told by its code."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from drivers import Library, Refused, b64, record
from tidelog.client.core.partitioner import partition_of

pytestmark = pytest.mark.real

MURMUR2_OF_KAFKA = {  # org.apache.kafka.common.utils.UtilsTest.testMurmur2
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
EVERY_BYTE = bytes(range(256))
ODD = [
    record(b""),
    record(None, b"key"),
    record(b"no key"),
    record(b"empty key", b""),
    record(EVERY_BYTE, EVERY_BYTE),
    record(b"h", headers=[("trace", b"1"), ("other", b""), ("trace", b"2"), ("", EVERY_BYTE), ("жук-🐞", b"u")]),
    record(b"early", timestamp_ms=0),
    record(b"late", timestamp_ms=2**41),
]


def numbered(name: str, count: int, **more: Any) -> list[dict[str, Any]]:
    return [record(f"{name}{number}".encode(), **more) for number in range(count)]


def content(found: dict[str, Any]) -> dict[str, Any]:
    return {name: found.get(name) for name in ("value", "key")} | {"headers": found.get("headers", [])}


def refusal(call: Callable[[], object]) -> Refused:
    with pytest.raises(Refused) as caught:
        call()
    return caught.value


# --- what was sent is what arrives ---------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["none", "zstd", "lz4"])
def test_every_kind_of_record_arrives_byte_for_byte(
    library: Library, needs: Callable[[str], None], compression: str
) -> None:
    if compression != "none":
        needs(compression)
    topic = library.topic()
    sent = ODD + [record(b"again and again " * 200)] * 20
    before = round(time.time() * 1000)
    producer = library.producer(topic, compression=compression)
    acks = producer.send_all(*sent)
    producer.close()
    found = library.read(topic)
    assert [content(one) for one in found] == [content(one) for one in sent]
    assert [one["offset"] for one in found] == [ack["offset"] for ack in acks] == list(range(len(sent)))
    assert {one["leader_epoch"] for one in found} == {ack["leader_epoch"] for ack in acks}
    for one, given in zip(found, sent, strict=True):
        if "timestamp_ms" in given:
            assert one["timestamp_ms"] == given["timestamp_ms"]
        else:
            assert before <= one["timestamp_ms"] <= round(time.time() * 1000)


def test_a_record_of_a_mebibyte_arrives(library: Library) -> None:
    topic = library.topic(max_batch_bytes=4 << 20)
    value = EVERY_BYTE * 4096
    library.write(topic, record(value))
    assert library.values(topic) == [value]


def test_a_key_goes_to_the_partition_where_kafka_would_put_it(library: Library) -> None:
    topic = library.topic(partitions=7)
    keys = {key: (murmur2 & 0x7FFFFFFF) % 7 for key, murmur2 in MURMUR2_OF_KAFKA.items()}
    keys |= {
        key: partition_of(key, 7) for text in ("", "ключ", "鍵", "🔑", "\0", "\uffff") for key in [text.encode()]
    }
    acks = library.write(topic, *(record(b"v", key) for key in keys))
    assert [ack["partition"] for ack in acks] == list(keys.values())
    assert {one["key"]: one["partition"] for one in library.read(topic)} == {b64(k): p for k, p in keys.items()}


def test_an_ack_says_how_durable_the_record_is(library: Library) -> None:
    topic = library.topic(replication_factor=3)
    for acks, durability in (("all", "all/"), ("leader", "leader/")):
        producer = library.producer(topic, acks=acks)
        assert producer.send(record(b"x"))["durability"].startswith(durability)
        producer.close()
    producer = library.producer(topic, acks="none")
    producer.submit(record(b"x"))
    producer.close()
    consumer = library.consumer(topic)
    assert consumer.values(3) == [b"x"] * 3
    consumer.close()


def test_order_is_kept_per_partition_with_many_batches_in_flight(library: Library) -> None:
    topic = library.topic(partitions=3, replication_factor=3)
    producer = library.producer(topic, batch_bytes=400, linger_s=0, max_in_flight=5)
    sent = [record(b"%d" % number, partition=number % 3) for number in range(1500)]
    acks = producer.send_all(*sent)
    producer.close()
    for partition in range(3):
        assert [ack["offset"] for ack in acks if ack["partition"] == partition] == list(range(500))
        assert library.values(topic, partitions=[partition]) == [b"%d" % n for n in range(partition, 1500, 3)]


# --- places --------------------------------------------------------------------------------------------------


def test_a_consumer_starts_and_ends_at_the_given_positions(library: Library) -> None:
    topic = library.topic()
    library.write(topic, *(record(b"%d" % number, timestamp_ms=1000 * number) for number in range(10)))
    everything = [b"%d" % number for number in range(10)]
    assert library.values(topic) == everything
    assert library.values(topic, start=4) == everything[4:]
    assert library.values(topic, start=4, end=7) == everything[4:7]
    assert library.values(topic, start={"timestamp_ms": 5000}) == everything[5:]
    assert library.values(topic, start={"timestamp_ms": 5001}, end={"timestamp_ms": 8000}) == everything[6:8]
    assert library.values(topic, start={"positions": {"0": [-1, 8]}}) == everything[8:]
    assert library.values(topic, start="latest") == []


def test_latest_begins_with_the_next_record(library: Library) -> None:
    topic = library.topic()
    library.write(topic, record(b"before"))
    consumer = library.consumer(topic, start="latest")
    library.write(topic, record(b"after"))
    assert consumer.values(1) == [b"after"]
    consumer.close()


def test_another_consumer_goes_on_from_positions(library: Library) -> None:
    topic = library.topic()
    library.write(topic, *numbered("m", 20))
    first = library.consumer(topic)
    assert first.values(7) == [b"m%d" % n for n in range(7)]
    positions = first.positions()
    first.close()
    assert library.values(topic, start=positions) == [b"m%d" % n for n in range(7, 20)]


def test_only_the_partitions_that_are_asked_for_are_read(library: Library) -> None:
    topic = library.topic(partitions=3)
    library.write(topic, *(record(b"%d" % number, partition=number % 3) for number in range(9)))
    assert {one["partition"] for one in library.read(topic, partitions=[0, 2])} == {0, 2}


def test_offsets_of_places(library: Library) -> None:
    topic = library.topic()
    library.write(topic, *(record(b"%d" % number, timestamp_ms=1000 * number) for number in range(5)))

    def offset(at: Any) -> int:
        return int(library.do("list_offset", topic=topic, partition=0, at=at)["offset"])

    assert (offset("earliest"), offset("latest"), offset({"timestamp_ms": 2500})) == (0, 5, 3)
    (partition,) = library.do("describe", topic=topic)["partitions"]
    assert (partition["log_start"], partition["high_watermark"]) == (0, 5)


# --- errors --------------------------------------------------------------------------------------------------


def test_topics_that_are_there_or_not(library: Library) -> None:
    topic = library.topic(partitions=2)
    assert topic in library.do("topics")["topics"]
    error = refusal(lambda: library.do("create_topic", topic=topic))
    assert (error.code, error.retriable) == ("TOPIC_EXISTS", False)
    library.do("delete_topic", topic=topic)
    assert topic not in library.do("topics")["topics"]
    for call in (
        lambda: library.do("describe", topic=topic),
        lambda: library.do("delete_topic", topic=topic),
        lambda: library.producer(topic),
        lambda: library.read(topic),
    ):
        assert refusal(call).code == "UNKNOWN_TOPIC"


def test_a_topic_that_exists_stays_as_it_is_where_that_is_welcome(library: Library) -> None:
    topic = library.topic(partitions=2)
    library.write(topic, *numbered("m", 3))
    made = library.do("describe", topic=topic)
    found = library.do("create_topic", topic=topic, partitions=5, config={"flush": "os"}, exist_ok=True)
    assert (found["topic_id"], len(found["partitions"])) == (made["topic_id"], 2)
    assert sorted(library.values(topic)) == [b"m0", b"m1", b"m2"]
    library.do("delete_topic", topic=topic)
    again = library.do("create_topic", topic=topic, partitions=5, exist_ok=True)
    assert again["topic_id"] != made["topic_id"] and len(again["partitions"]) == 5, "a new one, if there is none"
    assert refusal(lambda: library.do("create_topic", topic="a/b", exist_ok=True)).code == "INVALID_TOPIC"


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("INVALID_TOPIC", {"topic": "a/b"}),
        ("INVALID_CONFIG", {"topic": "wrong", "config": {"flush": "never"}}),
        ("INVALID_REPLICATION_FACTOR", {"topic": "wrong", "replication_factor": 4}),
    ],
)
def test_a_topic_that_cannot_be(library: Library, code: str, wanted: dict[str, Any]) -> None:
    assert refusal(lambda: library.do("create_topic", **wanted)).code == code


def test_an_offset_that_is_not_there_is_never_skipped_in_silence(library: Library) -> None:
    topic = library.topic()
    library.write(topic, *numbered("m", 3))
    consumer = library.consumer(topic, start=1000)
    error = refusal(consumer.next)
    consumer.close()
    assert (error.code, error.retriable) == ("OFFSET_OUT_OF_RANGE", False)
    assert {name: error.detail[name] for name in ("partition", "offset", "log_start", "high_watermark")} == {
        "partition": 0,
        "offset": 1000,
        "log_start": 0,
        "high_watermark": 3,
    }
    assert library.values(topic) == [b"m0", b"m1", b"m2"]


def test_a_record_that_fits_into_no_batch_is_refused(library: Library) -> None:
    topic = library.topic(max_batch_bytes=10_000)
    producer = library.producer(topic)
    error = refusal(lambda: producer.send(record(bytes(10_001))))
    assert (error.code, error.unknown_outcome) == ("BATCH_TOO_LARGE", False)
    assert producer.send(record(b"small"))["offset"] == 0
    producer.close()


def test_a_partition_that_is_not_there(library: Library) -> None:
    topic = library.topic(partitions=2)
    producer = library.producer(topic)
    assert refusal(lambda: producer.send(record(b"x", partition=2))).code == "INVALID_ARGUMENT"
    producer.close()
    assert refusal(lambda: library.read(topic, partitions=[2])).code == "UNKNOWN_TOPIC"


def test_nobody_to_connect_to(library: Library) -> None:
    nowhere = {"log": "nowhere", "urls": ["ws://127.0.0.1:9"], "connect_timeout_s": 0.2}
    error = refusal(lambda: library.driver.do("connect", **nowhere))
    assert (error.code, error.retriable) == ("UNREACHABLE", True)
