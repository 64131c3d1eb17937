"""What a server answers to messages that it cannot decode. Tests ``wire/refused_messages.py``, and the capability
``strict``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cbor2
import pytest
from tidelog.wire import codec
from tidelog.wire.capabilities import STRICT
from tidelog.wire.link_session import CloseLink, Deliver, Effect, Session, Transmit
from tidelog.wire.messages import Hello, InitProducer, Produce, Welcome

WELCOME = Welcome(1, "c", "g1", "gateway", 1 << 24, 3, capabilities=(STRICT, "of a later release"))
ALLOWED = {"client": frozenset({"init_producer", "produce", "credit", "create_topic"})}
PART = {"topic_id": "t", "partition": 0, "acks": 2}


def opened(asked: tuple[str, ...] = (STRICT, "of another release"), welcome: Welcome = WELCOME) -> Session:
    session = Session(0.0, welcome=lambda hello: welcome, allowed=ALLOWED)
    session.on_data(codec.encode(Hello(1, "client", "me", capabilities=asked), id=0)[0])
    assert session.is_open
    return session


def said(effect: Effect) -> dict[str, Any]:
    assert isinstance(effect, Transmit)
    found: dict[str, Any] = cbor2.loads(effect.head + codec.payload_view(effect.payload))
    return found


def produce(*parts: dict[str, Any], payload: bytes = b"aabbcc", **more: object) -> bytes:
    numbered = [{"id": n, **PART, "size": 2, **part} for n, part in enumerate(parts, 1)]
    return cbor2.dumps({"op": "produce", "parts": numbered, **more}) + cbor2.dumps(payload)


def refusals(effect: Effect) -> dict[int, tuple[str, str]]:
    """The refused batches: code, and the key that was not understood."""
    header = said(effect)
    assert header["op"] == "produced"
    return {a["id"]: (a["error"]["code"], a["error"].get("detail", {}).get("key", "")) for a in header["acks"]}


def test_an_unknown_key_is_refused_with_its_name_where_both_ends_have_agreed_to() -> None:
    request = cbor2.dumps({"op": "init_producer", "id": 4, "cuont": 3})
    (refused,) = opened().on_data(request)
    error = said(refused)["error"]
    assert (error["code"], error["detail"]) == ("UNSUPPORTED", {"key": "cuont"})
    assert "init_producer has no key cuont" in error["message"]
    for session in (opened(asked=()), opened(welcome=replace(WELCOME, capabilities=()))):
        assert session.on_data(request) == [Deliver(4, InitProducer())]


def test_the_connection_goes_on_after_a_refusal_and_the_number_is_free() -> None:
    session = opened()
    session.on_data(cbor2.dumps({"op": "init_producer", "id": 4, "cuont": 3}))
    assert session.on_data(codec.encode(InitProducer(3), id=4)[0]) == [Deliver(4, InitProducer(3))]


def test_keys_of_maps_that_are_not_of_the_protocol_are_the_servers_business() -> None:
    (delivered,) = opened().on_data(cbor2.dumps({"op": "create_topic", "id": 1, "name": "t", "config": {"x": "y"}}))
    assert isinstance(delivered, Deliver)


@pytest.mark.parametrize("key", ["expect_offset", "expected-offset"])
def test_a_batch_with_an_unknown_key_is_refused_and_those_beside_it_are_delivered(key: str) -> None:
    refused, delivered = opened().on_data(produce({}, {key: 7}, {"expected_offset": 9}))
    assert refusals(refused) == {2: ("UNSUPPORTED", key)}
    assert isinstance(delivered, Deliver) and isinstance(delivered.message, Produce)
    assert [(part.id, part.expected_offset) for part in delivered.message.parts] == [(1, -1), (3, 9)]
    assert bytes(codec.payload_view(delivered.message.payload)) == b"aacc"
    (all_delivered,) = opened(asked=()).on_data(produce({}, {key: 7}, {}))
    assert isinstance(all_delivered, Deliver)


def test_an_unknown_key_beside_the_parts_refuses_all_batches() -> None:
    (refused,) = opened().on_data(produce({}, {}, {}, condition=1))
    assert refusals(refused) == dict.fromkeys((1, 2, 3), ("UNSUPPORTED", "condition"))


@pytest.mark.parametrize("part", [{"acks": "all"}, {"topic_id": None}, {"partition": -1}])
def test_a_batch_that_cannot_be_read_is_refused_alone_also_without_the_capability(part: dict[str, Any]) -> None:
    refused, delivered = opened(asked=()).on_data(produce({}, part, {}))
    assert refusals(refused) == {2: ("MALFORMED", "")}
    assert isinstance(delivered, Deliver) and isinstance(delivered.message, Produce)
    assert [part.id for part in delivered.message.parts] == [1, 3]


@pytest.mark.parametrize("size", [None, -1, "2", 2**63])
def test_where_a_batch_has_no_size_nobody_knows_where_the_others_are(size: object) -> None:
    (refused,) = opened().on_data(produce({}, {"size": size}, {}))
    assert refusals(refused) == dict.fromkeys((1, 2, 3), ("MALFORMED", ""))


def test_without_a_payload_that_can_be_read_all_batches_are_refused() -> None:
    (refused,) = opened().on_data(produce({}, {}, {})[:-7] + b"\x58\x06aabbcc\x00")
    assert refusals(refused) == dict.fromkeys((1, 2, 3), ("MALFORMED", ""))


@pytest.mark.parametrize(
    "message",
    [
        produce({}, {"id": "two"}, {}),
        cbor2.dumps({"op": "produce", "parts": [5]}),
        cbor2.dumps({"op": "produce", "id": "x", "parts": []}),
        cbor2.dumps({"op": "credit", "sub": 1, "bytes": 1, "btyes": 2}),
        cbor2.dumps({"id": 1, "x": [cbor2.CBORTag(1, 1)], "op": "init_producer"}),
    ],
    ids=["a part without number", "no part", "a number that is none", "one-way", "op behind a fault"],
)
def test_where_there_is_no_number_the_connection_is_closed(message: bytes) -> None:
    (closed,) = opened().on_data(message)
    assert isinstance(closed, CloseLink) and closed.code in (1002, 1007) and closed.reason


def test_a_number_that_another_request_has_closes_the_connection() -> None:
    session = opened()
    session.on_data(codec.encode(InitProducer(), id=4)[0])
    (closed,) = session.on_data(cbor2.dumps({"op": "init_producer", "id": 4, "count": "x"}))
    assert isinstance(closed, CloseLink) and "in use" in closed.reason


def test_what_the_role_may_not_ask_is_forbidden_also_if_it_cannot_be_read() -> None:
    (refused,) = opened().on_data(cbor2.dumps({"op": "heartbeat", "id": 4, "node": 7}))
    assert said(refused)["error"]["code"] == "FORBIDDEN"


def test_a_hello_that_cannot_be_read_gets_its_reason_and_the_connection_is_closed() -> None:
    session = Session(0.0, welcome=lambda hello: WELCOME, allowed=ALLOWED)
    refused, closed = session.on_data(cbor2.dumps({"op": "hello", "id": 3, "version": 1}))
    assert said(refused)["re"] == 3 and said(refused)["error"]["message"] == "hello: missing role, node"
    assert isinstance(closed, CloseLink) and closed.code == 1002


def test_unknown_keys_of_a_hello_are_ignored() -> None:
    """Nothing is agreed on yet."""
    session = Session(0.0, welcome=lambda hello: WELCOME, allowed=ALLOWED)
    hello = cbor2.loads(codec.encode(Hello(1, "client", "me", capabilities=(STRICT,)), id=0)[0])
    session.on_data(cbor2.dumps({**hello, "later": 1}))
    assert session.is_open


@pytest.mark.parametrize(
    ("lowest", "highest", "is_spoken"), [(1, 3, True), (-1, -1, True), (2, 3, False), (0, 0, False)]
)
def test_a_hello_names_a_range_of_versions(lowest: int, highest: int, is_spoken: bool) -> None:
    session = Session(0.0, welcome=lambda hello: WELCOME, allowed=ALLOWED)
    hello = Hello(1, "client", "me", version_min=lowest, version_max=highest)
    answered = said(next(e for e in session.on_data(codec.encode(hello, id=0)[0]) if isinstance(e, Transmit)))
    assert session.is_open is is_spoken
    if is_spoken:
        assert answered["version"] == 1
    else:
        assert answered["error"]["code"] == "UNSUPPORTED"
        assert answered["error"]["detail"] == {"version_min": "1", "version_max": "1"}
