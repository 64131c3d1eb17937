"""What a library does with a gateway that lies: a real gateway behind a proxy that changes what it says. No case may
return a wrong record, hang, or end the program."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import cbor2
from crc32c import crc32c

from tidelog.batch.format import HEADER, NewRecord, encode_batch, read_header, stamp_prefix
from tidelog.cli.conformance.cases import Chapter
from tidelog.cli.conformance.client import Failed, Json, Refused
from tidelog.cli.conformance.library import Library, Value, expect, numbered, record, refusal
from tidelog.cli.conformance.proxy import Change, Passing, Proxy

HOSTILE = Chapter("hostile")
COUNT = 20
"""Records of a case, each in a batch of its own."""
VALUES: list[Value] = [b"%d" % number for number in range(COUNT)]


def _taken_apart(message: bytes) -> tuple[Json, bytes]:
    """Return header and payload of a message."""
    stream = io.BytesIO(message)
    header = cbor2.load(stream)
    rest = stream.read()
    return header, cbor2.loads(rest) if rest else b""


def _put_together(header: Json, payload: bytes = b"") -> bytes:
    """Return the message with this header and payload."""
    return cbor2.dumps(header) + (cbor2.dumps(payload) if payload else b"")


def _deliveries(change: Callable[[Json, bytes], list[bytes]]) -> Callable[[], Change]:
    """Return a maker of changes that apply to deliveries of records only; ``change`` gets header and payload."""

    def changed(message: bytes) -> list[bytes]:
        header, payload = _taken_apart(message)
        return change(header, payload) if header.get("op") == "delivery" and payload else [message]

    return lambda: changed


@contextmanager
def _behind(library: Library, change: Callable[[], Change], *others: str) -> Any:
    """Connect the library to its first gateway through a proxy, which makes a change for each connection. ``others``
    are further URLs for the connection. Returns a context manager, whose value is the ``Library``."""
    with Proxy(library.urls[:1], lambda: Passing(change=change())) as proxy:
        other = Library(library.client, library.new_name(), (*proxy.urls, *others), library.local)
        yield other
        other.close()


def _written(library: Library) -> str:
    """Return a topic with ``VALUES``, each in a batch of its own."""
    topic = library.topic()
    for number in range(COUNT):
        library.write(topic, record(b"%d" % number))
    return topic


def _read_or_refused(library: Library, topic: str, **more: Any) -> str:
    """Read the topic from its beginning. Returns the code of the error that ended that, or "" if all of ``VALUES``
    came. Raises ``Failed`` if other records came, or a record was left out."""
    consumer = library.consumer(topic, **more)
    found: list[Value] = []
    code = ""
    while len(found) < COUNT and not code:
        try:
            found += consumer.values(1)
        except Refused as error:
            code = error.code
    consumer.close()
    expect("the records that came", found, VALUES[: len(found)])
    return code


@HOSTILE.case("Damaged batches are an error, and their records are not returned.")
def damaged_batches(library: Library) -> None:
    topic = _written(library)

    def damage(header: Json, payload: bytes) -> list[bytes]:
        return [_put_together(header, payload[:-1] + bytes([payload[-1] ^ 1]))]

    with _behind(library, _deliveries(damage)) as other:
        expect("the code of the error", _read_or_refused(other, topic), "CORRUPT_BATCH")


@HOSTILE.case("A batch that unfolds to more than it declares is an error.", needs="zstd")
def a_batch_that_unfolds_to_more_than_it_declares(library: Library) -> None:
    topic = _written(library)
    packed = encode_batch([NewRecord(bytes(1 << 20))], codec="zstd")
    header = read_header(packed)._replace(body_length=100)
    rest = HEADER.pack(*header)[16:] + packed[64:]
    bomb = stamp_prefix(0, 0, crc32c(rest)) + rest

    def explode(head: Json, payload: bytes) -> list[bytes]:
        return [_put_together(head, bomb)]

    with _behind(library, _deliveries(explode)) as other:
        expect("the code of the error", _read_or_refused(other, topic), "CORRUPT_BATCH")


@HOSTILE.case("A missing batch is noticed: no record is left out in silence.")
def a_missing_batch(library: Library) -> None:
    topic = _written(library)

    def drop(header: Json, payload: bytes) -> list[bytes]:
        first = read_header(payload)
        rest = payload[first.batch_length :]
        return [_put_together(header, rest)] if first.base_offset == 0 and rest else [_put_together(header, payload)]

    with _behind(library, _deliveries(drop)) as other:
        if not _read_or_refused(other, topic):
            raise Failed("no error was reported")


@HOSTILE.case("Records that come twice are returned once.")
def deliveries_that_come_twice(library: Library) -> None:
    topic = _written(library)

    def repeat(header: Json, payload: bytes) -> list[bytes]:
        return [_put_together(header, payload)] * 2

    with _behind(library, _deliveries(repeat)) as other:
        _read_or_refused(other, topic)


@HOSTILE.case("Records before the position are passed over.")
def records_before_the_position(library: Library) -> None:
    topic = library.topic()
    library.write(topic, *numbered(0, COUNT))
    for start in (0, 7, COUNT - 1):
        expect(f"the records from {start} on", library.values(topic, start=start), VALUES[start:])


@HOSTILE.case("Unknown keys of answers and unknown notices are ignored.")
def unknown_keys_and_notices(library: Library) -> None:
    def add(message: bytes) -> list[bytes]:
        header, payload = _taken_apart(message)
        strange = {**header, "new_in_a_later_release": {"any": [1, None]}}
        return [_put_together({"op": "new_in_a_later_release"}), _put_together(strange, payload)]

    def without_the_first() -> Change:
        is_first = True

        def change(message: bytes) -> list[bytes]:
            nonlocal is_first
            was_first, is_first = is_first, False
            return add(message)[1:] if was_first else add(message)  # before the welcome nothing may come

        return change

    with _behind(library, without_the_first) as other:
        topic = other.topic()
        other.write(topic, *numbered(0, COUNT))
        expect("the records", other.values(topic), VALUES)


@HOSTILE.case("An error with a code that the library does not know is reported, and is not retriable.")
def an_unknown_error_code(library: Library) -> None:
    def change(message: bytes) -> list[bytes]:
        header, _ = _taken_apart(message)
        if "topic_id" in header and "re" in header:
            return [_put_together({"re": header["re"], "error": {"code": "OF_A_LATER_RELEASE", "message": "new"}})]
        return [message]

    with _behind(library, lambda: change) as other:
        try:
            other.do("create_topic", topic=other.new_name())
        except Refused as error:
            expect("retriable", error.retriable, False)
        else:
            raise Failed("no error was reported")


@HOSTILE.case("A batch whose ack was replaced by a retriable error is repeated, and is in the log once.")
def a_refused_batch_is_repeated_unchanged(library: Library) -> None:
    refused: set[int] = set()

    def refuse_once() -> Change:
        def change(message: bytes) -> list[bytes]:
            header, _ = _taken_apart(message)
            if header.get("op") != "produced" or refused:
                return [message]
            refused.update(ack["id"] for ack in header["acks"])
            error = {"code": "NOT_LEADER", "message": "changed on the way", "unknown_outcome": True}
            return [_put_together({**header, "acks": [{"id": id, "error": error} for id in sorted(refused)]})]

        return change

    topic = library.topic()
    with _behind(library, refuse_once) as other:
        acks = other.write(topic, *numbered(0, COUNT))
        expect("the offsets of the acks", [ack["offset"] for ack in acks], list(range(COUNT)))
    expect("the records", library.values(topic), VALUES)


@HOSTILE.case("Acks that come twice, or for a batch that was never sent, are ignored.")
def strange_acks(library: Library) -> None:
    def change(message: bytes) -> list[bytes]:
        header, _ = _taken_apart(message)
        if header.get("op") != "produced":
            return [message]
        stranger = {"id": 1 << 40, "offset": 7, "leader_epoch": 0, "durability": "all/fsync"}
        return [message, message, _put_together({"op": "produced", "acks": [stranger]})]

    topic = library.topic()
    with _behind(library, lambda: change) as other:
        acks = other.write(topic, *numbered(0, COUNT))
        expect("the offsets of the acks", [ack["offset"] for ack in acks], list(range(COUNT)))
    expect("the records", library.values(topic), VALUES)


@HOSTILE.case("After an answer that is no message the library continues at another gateway.")
def an_answer_that_is_no_message(library: Library) -> None:
    def change(message: bytes) -> list[bytes]:
        header, _ = _taken_apart(message)
        return [message] if "version" in header else [b"\xff\x00 this is no CBOR"]

    topic = _written(library)
    with _behind(library, lambda: change, *library.urls) as other:
        expect("the records", other.values(topic), VALUES)


@HOSTILE.case("A gateway that is full, or is no gateway, is left for another one.")
def a_gateway_that_does_not_welcome(library: Library) -> None:
    topic = _written(library)
    full = {"code": "OVERLOADED", "message": "full"}
    for answer in ({"error": full}, {"role": "replica"}, {"version": 99}):

        def change(message: bytes, answer: Json = answer) -> list[bytes]:
            header, _ = _taken_apart(message)
            if "version" not in header:
                return [message]
            return [_put_together({"re": header["re"], **answer} if "error" in answer else {**header, **answer})]

        with _behind(library, lambda change=change: change, *library.urls) as other:  # type: ignore[misc]
            expect(f"the records, where the first gateway answers {answer}", other.values(topic), VALUES)


@HOSTILE.case("At a gateway that announces no capabilities a conditional append is refused, and all else works.")
def a_gateway_of_an_earlier_release(library: Library) -> None:
    def change(message: bytes) -> list[bytes]:
        header, payload = _taken_apart(message)
        if "version" in header:
            header = {name: value for name, value in header.items() if name not in ("capabilities", "limits")}
        return [_put_together(header, payload)]

    topic = library.topic()
    with _behind(library, lambda: change) as other:
        producer = other.producer(topic)
        expect("the offset of a plain record", producer.send(record(b"0", partition=0))["offset"], 0)
        if "expected_offset" in library.client.features:
            conditional = record(b"conditional", partition=0, expected_offset=1)
            error = refusal("UNSUPPORTED", lambda: producer.send(conditional))
            expect("retriable, unknown_outcome", (error.retriable, error.unknown_outcome), (False, False))
        acks = producer.send_all(*numbered(1, COUNT, partition=0))
        expect("the offsets of the acks", [ack["offset"] for ack in acks], list(range(1, COUNT)))
        producer.close()
        expect("the records", other.values(topic), VALUES)
