"""What a library sends arrives, byte for byte and in order; what is refused is reported by its code."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from tidelog.cli.conformance.cases import Chapter
from tidelog.cli.conformance.client import Json
from tidelog.cli.conformance.library import Library, b64, expect, numbered, record, refusal
from tidelog.client.core.partitioner import partition_of

RECORDS = Chapter("records")
KEYS = (b"21", b"foobar", b"a-little-bit-long-string", b"a-little-bit-longer-string", b"abc", b"", b"\0", b"\xff\xfe")
TEXTS = ("ключ", "鍵", "🔑", "\uffff")
EVERY_BYTE = bytes(range(256))
ODD = (
    record(b""),
    record(None, b"key"),
    record(b"no key"),
    record(b"empty key", b""),
    record(EVERY_BYTE, EVERY_BYTE),
    record(b"h", headers=[("trace", b"1"), ("other", b""), ("trace", b"2"), ("", EVERY_BYTE), ("жук-🐞", b"u")]),
    record(b"early", timestamp_ms=0),
    record(b"late", timestamp_ms=2**41),
)


def _content(found: Json) -> Json:
    return {name: found.get(name) for name in ("value", "key")} | {"headers": found.get("headers", [])}


def _every_kind(library: Library, compression: str) -> None:
    topic = library.topic()
    sent = [*ODD, *[record(b"again and again " * 200)] * 20]
    before = time.time_ns() // 1_000_000
    producer = library.producer(topic, compression=compression)
    acks = producer.send_all(*sent)
    producer.close()
    found = library.read(topic)
    expect("key, value and headers", [_content(one) for one in found], [_content(one) for one in sent])
    expect("the offsets of the records", [one["offset"] for one in found], list(range(len(sent))))
    expect("the offsets of the acks", [ack["offset"] for ack in acks], list(range(len(sent))))
    epochs = {ack["leader_epoch"] for ack in acks}
    expect("the leader epochs", {one["leader_epoch"] for one in found}, epochs)
    for one, given in zip(found, sent, strict=True):
        if "timestamp_ms" in given:
            expect("the timestamp that was given", one["timestamp_ms"], given["timestamp_ms"])
        else:
            is_now = before <= one["timestamp_ms"] <= time.time_ns() // 1_000_000
            expect("without a timestamp a record has that of its sending", is_now, True)


for _codec in ("none", "zstd", "lz4"):
    _run = partial(_every_kind, compression=_codec)
    _run.__name__ = f"every_kind_of_record_arrives_{_codec}"  # type: ignore[attr-defined]
    RECORDS.case(
        f"Records of every kind arrive byte for byte with compression {_codec}.",
        needs="" if _codec == "none" else _codec,
    )(_run)


@RECORDS.case("A record of one mebibyte arrives.")
def a_record_of_a_mebibyte_arrives(library: Library) -> None:
    topic = library.topic(max_batch_bytes=4 << 20)
    value = EVERY_BYTE * 4096
    library.write(topic, record(value))
    expect("the record is there as it was sent", library.values(topic) == [value], True)


@RECORDS.case("A key goes to the partition to which Kafka's clients send it.")
def a_key_goes_to_its_partition(library: Library) -> None:
    topic = library.topic(partitions=7)
    keys = {key: partition_of(key, 7) for key in (*KEYS, *(text.encode() for text in TEXTS))}
    acks = library.write(topic, *(record(b"v", key) for key in keys))
    expect("the partitions of the acks", [ack["partition"] for ack in acks], list(keys.values()))
    found = {one["key"]: one["partition"] for one in library.read(topic)}
    expect("the partitions of the records", found, {b64(key): partition for key, partition in keys.items()})


@RECORDS.case("An ack says how durable the record is, and acks 'none' waits for nothing.")
def an_ack_says_how_durable_the_record_is(library: Library) -> None:
    topic = library.topic(replication_factor=3)
    for acks in ("all", "leader"):
        producer = library.producer(topic, acks=acks)
        durability = producer.send(record(b"x"))["durability"]
        expect(f"the durability with acks {acks!r}", durability.partition("/")[0], acks)
        producer.close()
    producer = library.producer(topic, acks="none")
    producer.submit(record(b"x"))
    producer.close()
    consumer = library.consumer(topic)
    expect("the records", consumer.values(3), [b"x"] * 3)
    consumer.close()


@RECORDS.case("The order within each partition is kept with many batches in flight.")
def order_is_kept_in_each_partition(library: Library) -> None:
    topic = library.topic(partitions=3, replication_factor=3)
    producer = library.producer(topic, batch_bytes=400, linger_s=0, max_in_flight=5)
    acks = producer.send_all(*(record(b"%d" % number, partition=number % 3) for number in range(1500)))
    producer.close()
    for partition in range(3):
        offsets = [ack["offset"] for ack in acks if ack["partition"] == partition]
        expect(f"the offsets of partition {partition}", offsets, list(range(500)))
        values = [b"%d" % number for number in range(partition, 1500, 3)]
        expect(f"the records of partition {partition}", library.values(topic, partitions=[partition]), values)


# --- places ----------------------------------------------------------------------------------------------


@RECORDS.case("A consumer starts and ends where it is told: at an offset, a time or a position.")
def a_consumer_starts_and_ends_where_it_is_told(library: Library) -> None:
    topic = library.topic()
    library.write(topic, *(record(b"%d" % number, timestamp_ms=1000 * number) for number in range(10)))
    everything = [b"%d" % number for number in range(10)]
    places: tuple[tuple[Json, list[bytes]], ...] = (
        ({}, everything),
        ({"start": 4}, everything[4:]),
        ({"start": 4, "end": 7}, everything[4:7]),
        ({"start": {"timestamp_ms": 5000}}, everything[5:]),
        ({"start": {"timestamp_ms": 5001}, "end": {"timestamp_ms": 8000}}, everything[6:8]),
        ({"start": {"positions": {"0": [-1, 8]}}}, everything[8:]),
        ({"start": "latest"}, []),
    )
    for place, wanted in places:
        expect(f"the records of {place}", library.values(topic, **place), wanted)


@RECORDS.case("'latest' begins with the next record.")
def latest_begins_with_the_next_record(library: Library) -> None:
    topic = library.topic()
    library.write(topic, record(b"before"))
    consumer = library.consumer(topic, start="latest")
    library.write(topic, record(b"after"))
    expect("the first record", consumer.values(1), [b"after"])
    consumer.close()


@RECORDS.case("Another consumer continues at the positions of the first one.")
def another_consumer_continues_at_positions(library: Library) -> None:
    topic = library.topic()
    library.write(topic, *numbered(0, 20))
    first = library.consumer(topic)
    expect("the first records", first.values(7), [b"%d" % n for n in range(7)])
    positions = first.positions()
    first.close()
    expect("the rest", library.values(topic, start=positions), [b"%d" % n for n in range(7, 20)])


@RECORDS.case("Only the chosen partitions are read.")
def only_the_chosen_partitions_are_read(library: Library) -> None:
    topic = library.topic(partitions=3)
    library.write(topic, *(record(b"%d" % number, partition=number % 3) for number in range(9)))
    found = {one["partition"] for one in library.read(topic, partitions=[0, 2])}
    expect("the partitions of the records", found, {0, 2})


@RECORDS.case("The offsets of the earliest and latest record and of a time are found.")
def offsets_of_places_are_found(library: Library) -> None:
    topic = library.topic()
    library.write(topic, *(record(b"%d" % number, timestamp_ms=1000 * number) for number in range(5)))

    def offset(at: Any) -> int:
        return int(library.do("list_offset", topic=topic, partition=0, at=at)["offset"])

    found = (offset("earliest"), offset("latest"), offset({"timestamp_ms": 2500}))
    expect("earliest, latest, and that of 2500 ms", found, (0, 5, 3))
    (partition,) = library.do("describe", topic=topic)["partitions"]
    expect("the bounds of the log", (partition["log_start"], partition["high_watermark"]), (0, 5))


# --- errors ----------------------------------------------------------------------------------------------


@RECORDS.case("A topic that exists or does not exist is reported by its code.")
def topics_that_exist_or_not(library: Library) -> None:
    topic = library.topic(partitions=2)
    expect("the topic is listed", topic in library.do("topics")["topics"], True)
    expect("retriable", refusal("TOPIC_EXISTS", lambda: library.do("create_topic", topic=topic)).retriable, False)
    library.do("delete_topic", topic=topic)
    expect("the deleted topic is listed", topic in library.do("topics")["topics"], False)
    refusal("UNKNOWN_TOPIC", lambda: library.do("describe", topic=topic))
    refusal("UNKNOWN_TOPIC", lambda: library.do("delete_topic", topic=topic))
    refusal("UNKNOWN_TOPIC", lambda: library.producer(topic))
    refusal("UNKNOWN_TOPIC", lambda: library.read(topic))


@RECORDS.case("With exist_ok a topic that exists stays as it is.")
def an_existing_topic_stays_as_it_is(library: Library) -> None:
    topic = library.topic(partitions=2)
    library.write(topic, *numbered(0, 3))
    made = library.do("describe", topic=topic)
    found = library.do("create_topic", topic=topic, partitions=5, config={"flush": "os"}, exist_ok=True)
    kept = (found["topic_id"], len(found["partitions"]))
    expect("its id and partitions", kept, (made["topic_id"], 2))
    expect("its records", sorted(library.values(topic), key=repr), [b"0", b"1", b"2"])
    library.do("delete_topic", topic=topic)
    again = library.do("create_topic", topic=topic, partitions=5, exist_ok=True)
    expect("the partitions of a new one", len(again["partitions"]), 5)
    expect("a new topic has the id of the old one", again["topic_id"] == made["topic_id"], False)
    refusal("INVALID_TOPIC", lambda: library.do("create_topic", topic="a/b", exist_ok=True))


@RECORDS.case("A topic that cannot be created is refused with the code of the reason.")
def topics_that_cannot_be_created(library: Library) -> None:
    name = library.new_name()
    refusal("INVALID_TOPIC", lambda: library.do("create_topic", topic="a/b"))
    refusal("INVALID_CONFIG", lambda: library.do("create_topic", topic=name, config={"flush": "never"}))
    refusal("INVALID_REPLICATION_FACTOR", lambda: library.do("create_topic", topic=name, replication_factor=4))


@RECORDS.case("An offset that does not exist is an error with the bounds of the log.")
def an_offset_out_of_range_is_an_error(library: Library) -> None:
    topic = library.topic()
    library.write(topic, *numbered(0, 3))
    consumer = library.consumer(topic, start=1000)
    error = refusal("OFFSET_OUT_OF_RANGE", consumer.next)
    consumer.close()
    expect("retriable", error.retriable, False)
    wanted = {"partition": 0, "offset": 1000, "log_start": 0, "high_watermark": 3}
    expect("detail", {name: error.detail.get(name) for name in wanted}, wanted)


@RECORDS.case("A record that fits into no batch is refused, and the producer goes on.")
def a_record_that_is_too_large_is_refused(library: Library) -> None:
    topic = library.topic(max_batch_bytes=10_000)
    producer = library.producer(topic)
    error = refusal("BATCH_TOO_LARGE", lambda: producer.send(record(bytes(10_001))))
    expect("unknown_outcome", error.unknown_outcome, False)
    expect("the offset of the next record", producer.send(record(b"small"))["offset"], 0)
    producer.close()


@RECORDS.case("A partition that does not exist is refused.")
def a_partition_that_does_not_exist(library: Library) -> None:
    topic = library.topic(partitions=2)
    producer = library.producer(topic)
    refusal("INVALID_ARGUMENT", lambda: producer.send(record(b"x", partition=2)))
    producer.close()
    refusal("UNKNOWN_TOPIC", lambda: library.read(topic, partitions=[2]))


@RECORDS.case("Of two writers with the same expected offset one wins.", needs="expected_offset")
def one_of_two_writers_wins(library: Library) -> None:
    topic = library.topic(replication_factor=3)
    first, second = library.producer(topic), library.producer(topic)
    expect("the offset", first.send(record(b"a", partition=0, expected_offset=0))["offset"], 0)
    lost = refusal("UNEXPECTED_OFFSET", lambda: second.send(record(b"b", partition=0, expected_offset=0)))
    expect("retriable, unknown_outcome", (lost.retriable, lost.unknown_outcome), (False, False))
    expect("the end of the log in detail", lost.detail.get("end_offset"), 1)
    expect("the offset", second.send(record(b"b", partition=0, expected_offset=1))["offset"], 1)
    expect("the offset without a condition", second.send(record(b"c"))["offset"], 2)
    first.close()
    second.close()
    expect("the records", library.values(topic), [b"a", b"b", b"c"])


@RECORDS.case("Where nothing listens, connecting fails with UNREACHABLE.")
def nothing_to_connect_to(library: Library) -> None:
    nowhere = {"log": library.new_name(), "urls": ["ws://127.0.0.1:9"], "connect_timeout_s": 0.2}
    expect("retriable", refusal("UNREACHABLE", lambda: library.client.do("connect", **nowhere)).retriable, True)
