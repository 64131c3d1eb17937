"""What the services of ``tidelog dev`` say to each other is heard once each, by name, and clients are not."""

from __future__ import annotations

from tidelog.cli.local.message_tap import KEPT, WORDS, ConnectionTap, MessageTap
from tidelog.wire.codec import encode
from tidelog.wire.messages import Done, Hello, Message, PauseTopic, PlayedMessage, Welcome


def data(message: Message, *, id: int | None = None, re: int | None = None) -> bytes:
    """A whole message."""
    head, payload = encode(message, id=id, re=re)
    return head + bytes(payload) if isinstance(payload, bytes) else head


def heard(role: str = "replica", peer: str = "r2") -> tuple[MessageTap, ConnectionTap]:
    """The end of a connection at r1 that a service has opened; recording."""
    recorder = MessageTap(lambda: 1000)
    tap = ConnectionTap(recorder, "r1")
    tap.record_received(data(Hello(1, role, peer), id=0))
    recorder.start_recording()
    return recorder, tap


REQUEST = PauseTopic("orders", (1, 2), client="c", sequence=3)


def test_a_request_is_described_by_its_op_and_fields() -> None:
    recorder, tap = heard()
    tap.record_received(data(REQUEST, id=7))
    [message] = recorder.stop_recording()
    assert message == PlayedMessage(1000, "r2", "r1", "pause_topic", False, message.words)
    assert message.words.startswith("name orders, partitions [1 2]") and "7" not in message.words


def test_an_answer_is_named_by_the_op_that_it_answers() -> None:
    recorder, tap = heard()
    tap.remember_requests([encode(REQUEST, id=7)])
    tap.record_received(data(Done(), re=7))
    tap.record_received(data(Done(), re=8))
    assert [(one.op, one.answer) for one in recorder.stop_recording()] == [("pause_topic", True), ("", True)]


def test_the_end_that_has_connected_knows_the_other_by_its_welcome() -> None:
    recorder = MessageTap(lambda: 0)
    tap = ConnectionTap(recorder, "r1")
    tap.record_received(data(Welcome(1, "dev", "c1", "controller", 1, 1), re=0))
    recorder.start_recording()
    tap.record_received(data(REQUEST, id=1))
    assert [one.sender for one in recorder.stop_recording()] == ["c1"]


def test_clients_are_not_listened_to() -> None:
    recorder, tap = heard(role="client")
    tap.record_received(data(REQUEST, id=7))
    assert recorder.stop_recording() == ()


def test_nothing_is_kept_while_nobody_wants_to_know_and_each_time_begins_anew() -> None:
    recorder, tap = heard()
    tap.record_received(data(REQUEST, id=1))
    assert len(recorder.stop_recording()) == 1
    tap.record_received(data(REQUEST, id=2))
    tap.remember_requests([encode(REQUEST, id=3)])
    recorder.start_recording()
    tap.record_received(data(Done(), re=3))
    assert [(one.op, one.answer) for one in recorder.stop_recording()] == [("", True)]


def test_the_newest_are_kept_and_long_ones_cut_off() -> None:
    recorder, tap = heard()
    for number in range(KEPT + 5):
        tap.record_received(data(PauseTopic("x" * 1000, (number,)), id=number))
    messages = recorder.stop_recording()
    assert len(messages) == KEPT
    assert {len(one.words) for one in messages} == {WORDS} and messages[0].words.endswith("…")
