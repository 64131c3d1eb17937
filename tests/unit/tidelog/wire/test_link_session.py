"""The session without a network: two of them, and the bytes carried by hand."""

from __future__ import annotations

import cbor2
import pytest
from tidelog.errors import BrokerError, TidelogError, TimedOut, Unreachable, refuse
from tidelog.wire import codec
from tidelog.wire.link_session import (
    HELLO_TIMEOUT_S,
    MAX_MESSAGE_BYTES,
    Answered,
    CloseLink,
    Deliver,
    Denied,
    Effect,
    Session,
    SessionOpened,
    Transmit,
)
from tidelog.wire.messages import (
    Credit,
    Done,
    Heartbeat,
    Hello,
    InitProducer,
    Message,
    MetadataAnswer,
    Notify,
    ProducerId,
    ReadAnswer,
    TopicInfo,
    Watch,
    Welcome,
)

HELLO = Hello(1, "client", "me")
WELCOME = Welcome(1, "c", "g1", "gateway", 1 << 24, 3)
ALLOWED = {"client": frozenset({"init_producer", "credit"}), "replica": frozenset({"heartbeat"})}


def accepting(answer: Welcome | TidelogError = WELCOME, now: float = 0.0) -> Session:
    return Session(now, welcome=lambda hello: answer, allowed=ALLOWED)


def carry(effects: list[Effect], to: Session) -> list[Effect]:
    """Give what was transmitted to the other side; what it does."""
    done: list[Effect] = []
    for effect in effects:
        if isinstance(effect, Transmit):
            done += to.on_data(effect.head + codec.payload_view(effect.payload))
    return done


def opened() -> tuple[Session, Session]:
    client, server = Session(0.0), accepting()
    carry(carry(client.greet(HELLO), server), client)
    return client, server


def kinds(effects: list[Effect]) -> list[type]:
    return [type(effect) for effect in effects]


def error_sent(effects: list[Effect]) -> str:
    transmit = effects[-1]
    assert isinstance(transmit, Transmit)
    return str(cbor2.loads(transmit.head)["error"]["code"])


def raw(session: Session, **header: object) -> list[Effect]:
    return session.on_data(cbor2.dumps(header))


def test_both_ends_open_and_know_each_other() -> None:
    client, server = Session(0.0), accepting()
    at_server = carry(client.greet(HELLO), server)
    assert kinds(at_server) == [Transmit, SessionOpened] and server.peer == HELLO
    assert carry(at_server, client) == [SessionOpened(WELCOME)] and client.peer == WELCOME
    assert client.deadline() is None and server.deadline() is None


def test_a_request_its_answer_and_its_token() -> None:
    client, server = opened()
    _, effects = client.ask(InitProducer(), "token", 5.0, 1.0)
    assert client.deadline() == 6.0
    assert carry(effects, server) == [Deliver(1, InitProducer())]
    assert carry(server.answer(1, ProducerId(7)), client) == [Answered("token", ProducerId(7))]
    assert client.on_tick(6.0) == [] and client.deadline() is None


def test_answers_in_any_order_and_errors() -> None:
    client, server = opened()
    for token in ("a", "b"):
        carry(client.ask(InitProducer(), token, 5.0, 1.0)[1], server)
    assert carry(server.answer(2, ProducerId(2)), client) == [Answered("b", ProducerId(2))]
    (answered,) = carry(server.answer(1, refuse("NO_QUORUM", "no", leader="c2")), client)
    assert isinstance(answered, Answered) and isinstance(answered.result, BrokerError) and answered.token == "a"
    assert answered.result.retriable and answered.result.detail == {"leader": "c2"}


@pytest.mark.parametrize(
    "answer",
    [
        ReadAnswer(1, payload=bytes(MAX_MESSAGE_BYTES)),
        MetadataAnswer("c", 1, tuple(TopicInfo("", f"{number:0249d}", {}, ()) for number in range(60_000)), ()),
        codec.EncodedAnswer(1, bytes(MAX_MESSAGE_BYTES)),
    ],
    ids=["payload", "header", "encoded ahead"],
)
def test_an_answer_longer_than_a_message_is_refused_and_the_link_stays(answer: Message) -> None:
    client, server = opened()
    carry(client.ask(InitProducer(), "token", 5.0, 1.0)[1], server)
    (answered,) = carry(server.answer(1, answer), client)
    assert isinstance(answered, Answered) and isinstance(answered.result, BrokerError)
    assert answered.result.code == "ANSWER_TOO_LARGE" and not answered.result.retriable
    carry(client.ask(InitProducer(), "next", 5.0, 1.0)[1], server)
    assert carry(server.answer(2, ProducerId(7)), client) == [Answered("next", ProducerId(7))]


def test_one_way_messages_need_no_answer() -> None:
    client, server = opened()
    assert carry(client.send_one_way(Credit(1, 2)), server) == [Deliver(None, Credit(1, 2))]
    assert carry(server.send_one_way(Credit(3, 4)), client) == [Deliver(None, Credit(3, 4))]


def test_the_earliest_deadline_wins_and_late_answers_are_ignored() -> None:
    client, server = opened()
    for token, timeout in (("slow", 9.0), ("fast", 1.0), ("mid", 4.0)):
        carry(client.ask(InitProducer(), token, timeout, 0.0)[1], server)
    assert client.deadline() == 1.0 and client.on_tick(0.5) == []
    (late,) = client.on_tick(1.0)
    assert isinstance(late, Answered) and late.token == "fast"
    assert isinstance(late.result, TimedOut) and late.result.unknown_outcome
    assert client.deadline() == 4.0
    assert carry(server.answer(2, ProducerId(1)), client) == []
    assert [e.token for e in client.on_tick(20.0) if isinstance(e, Answered)] == ["slow", "mid"]
    assert client.deadline() is None


def test_after_a_tick_the_deadline_lies_ahead() -> None:
    client, server = opened()
    carry(client.ask(InitProducer(), "a", 1.0, 0.0)[1], server)
    carry(client.ask(InitProducer(), "b", 3.0, 0.0)[1], server)
    carry(server.answer(1, ProducerId(1)), client)
    assert client.deadline() == 1.0  # a lower bound: nothing is due then any more
    assert client.on_tick(1.0) == [] and client.deadline() == 3.0


def test_a_forgotten_request_is_answered_to_nobody() -> None:
    client, server = opened()
    id, effects = client.ask(InitProducer(), "a", 1.0, 0.0)
    carry(effects, server)
    client.forget(id)
    assert carry(server.answer(1, ProducerId(1)), client) == [] and client.on_tick(9.0) == []


def test_pending_requests_end_with_the_connection() -> None:
    client, server = opened()
    carry(client.ask(InitProducer(), "a", 1.0, 0.0)[1], server)
    (ended,) = client.on_closed(Unreachable("gone"))
    assert isinstance(ended, Answered) and isinstance(ended.result, Unreachable) and ended.result.unknown_outcome
    assert client.on_closed(Unreachable("again")) == [] and client.deadline() is None
    (refused,) = client.ask(InitProducer(), "b", 1.0, 0.0)[1]
    assert isinstance(refused, Answered) and isinstance(refused.result, Unreachable)
    assert not refused.result.unknown_outcome
    assert client.send_one_way(Credit(1, 1)) == [] and client.on_data(b"junk") == []


def test_the_server_forgets_what_it_owes_a_closed_connection() -> None:
    client, server = opened()
    carry(client.ask(InitProducer(), "a", 1.0, 0.0)[1], server)
    server.on_closed(Unreachable("gone"))
    assert server.answer(1, ProducerId(1)) == []


def test_an_answer_is_given_once() -> None:
    client, server = opened()
    carry(client.ask(InitProducer(), "a", 1.0, 0.0)[1], server)
    server.answer(1, ProducerId(1))
    with pytest.raises(AssertionError):
        server.answer(1, ProducerId(1))


def test_in_flight_is_limited_at_both_ends() -> None:
    client, server = opened()
    for _ in range(3):
        carry(client.ask(InitProducer(), "a", 1.0, 0.0)[1], server)
    (refused,) = client.ask(InitProducer(), "b", 1.0, 0.0)[1]
    assert isinstance(refused, Answered) and isinstance(refused.result, BrokerError)
    assert refused.result.code == "OVERLOADED"
    assert error_sent(raw(server, op="init_producer", id=99)) == "OVERLOADED"
    server.answer(1, ProducerId(1))
    assert raw(server, op="init_producer", id=99) == [Deliver(99, InitProducer())]


def test_a_request_number_in_use_closes() -> None:
    client, server = opened()
    carry(client.ask(InitProducer(), "a", 1.0, 0.0)[1], server)
    (close,) = raw(server, op="init_producer", id=1)
    assert isinstance(close, CloseLink) and close.code == 1002 and "in use" in close.reason


def test_unknown_and_forbidden_ops() -> None:
    _, server = opened()
    assert error_sent(raw(server, op="fly", id=1)) == "UNSUPPORTED"
    assert raw(server, op="fly") == []
    assert error_sent(raw(server, op="heartbeat", id=1, node="r1", broker_epoch=1)) == "FORBIDDEN"
    assert error_sent(raw(server, op="hello", id=1, version=1, role="replica", node="x")) == "FORBIDDEN"
    *_, close = raw(server, op="notify", parts=[])
    assert isinstance(close, CloseLink) and close.code == 1008


def test_forbidden_messages_are_reported_on_the_receiving_side_too() -> None:
    _, server = opened()
    refused, _ = raw(server, op="heartbeat", id=1, node="r1", broker_epoch=1)
    assert isinstance(refused, Denied) and (refused.message, refused.error.code) == (Heartbeat("r1", 1), "FORBIDDEN")
    refused, _ = raw(server, op="notify", parts=[])
    assert isinstance(refused, Denied) and isinstance(refused.message, Notify)


def test_each_role_may_send_only_its_own_ops() -> None:
    server = accepting()
    carry(Session(0.0).greet(Hello(1, "replica", "r1")), server)
    assert raw(server, op="heartbeat", id=1, node="r1", broker_epoch=1) == [Deliver(1, Heartbeat("r1", 1))]
    assert error_sent(raw(server, op="init_producer", id=2)) == "FORBIDDEN"


@pytest.mark.parametrize(
    ("hello", "answer", "code"),
    [
        (Hello(2, "client", "x"), WELCOME, "UNSUPPORTED"),
        (Hello(1, "operator", "x"), WELCOME, "FORBIDDEN"),
        (Hello(1, "client", "x", "other"), refuse("WRONG_CLUSTER", "this is c"), "WRONG_CLUSTER"),
    ],
)
def test_a_refused_hello_is_answered_and_closed(hello: Hello, answer: Welcome | TidelogError, code: str) -> None:
    client, server = Session(0.0), accepting(answer)
    effects = carry(client.greet(hello), server)
    assert kinds(effects) == [Denied, Transmit, CloseLink] and server.peer is None
    assert isinstance(effects[0], Denied) and (effects[0].message, effects[0].error.code) == (hello, code)
    (close,) = carry(effects, client)
    assert isinstance(close, CloseLink) and close.error is not None and close.error.code == code


@pytest.mark.parametrize(
    "header", [{"op": "init_producer", "id": 1}, {"op": "credit", "sub": 1, "bytes": 1}, {"re": 0}]
)
def test_nothing_comes_before_hello(header: dict[str, object]) -> None:
    (close,) = raw(accepting(), **header)
    assert isinstance(close, CloseLink) and (close.code, close.reason) == (
        1002,
        "the first message must be hello",
    )


def test_nothing_comes_before_welcome() -> None:
    for header in ({"op": "credit", "sub": 1, "bytes": 1}, {"re": 1}, {"op": "watch", "id": 1}):
        (close,) = raw(Session(0.0), **header)
        assert isinstance(close, CloseLink) and close.code == 1002


def test_a_server_of_another_version_is_left() -> None:
    client = Session(0.0)
    (close,) = client.on_data(codec.encode(Welcome(2, "c", "g", "gateway", 1, 1), re=0)[0])
    assert isinstance(close, CloseLink) and "version 2" in close.reason


@pytest.mark.parametrize("session", [Session(10.0), accepting(now=10.0)], ids=["connecting", "accepting"])
def test_greeting_has_a_deadline(session: Session) -> None:
    due = session.deadline()
    assert due == 10.0 + HELLO_TIMEOUT_S and session.on_tick(due - 0.1) == []
    (close,) = session.on_tick(due)
    assert isinstance(close, CloseLink) and isinstance(close.error, TimedOut)
    assert session.deadline() is None


def test_nothing_can_be_asked_before_welcome() -> None:
    (refused,) = Session(0.0).ask(Watch(), "a", 1.0, 0.0)[1]
    assert isinstance(refused, Answered) and isinstance(refused.result, Unreachable)


def test_garbage_closes_with_its_code() -> None:
    _, server = opened()
    (close,) = server.on_data(b"\xff")
    assert isinstance(close, CloseLink) and close.code == 1007
    (close,) = server.on_data(cbor2.dumps({"op": "credit"}))
    assert isinstance(close, CloseLink) and close.code == 1002 and "missing sub, bytes" in close.reason


def test_the_connecting_end_serves_too() -> None:
    client, server = opened()
    _, effects = server.ask(Watch(), "w", 1.0, 0.0)
    (delivered,) = carry(effects, client)
    assert isinstance(delivered, Deliver) and delivered.id is not None
    answer: Message = Done()
    assert carry(client.answer(delivered.id, answer), server) == [Answered("w", Done())]
