"""The replicated state machine: its state as a document, exactly, and requests that are applied once."""

from __future__ import annotations

import dataclasses
from typing import Any

import cbor2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.applied_commands import Log
from tidelog.errors import BrokerError, refuse
from tidelog.types import TopicConfig
from tidelog.wire.messages import AlterIsrAnswer, Done, Message, ProducerIds, TopicCreated
from tidelog_controller.metadata.application import apply
from tidelog_controller.metadata.client_sessions import CLIENTS, PER_CLIENT, ClientSessions, RequestId
from tidelog_controller.metadata.commands import AddTopic, Command, RegisterServer, TakeProducerIds
from tidelog_controller.metadata.state import MetadataState
from tidelog_controller.metadata.state_machine import (
    Replicated,
    decode_proposal,
    decode_state,
    encode_proposal,
    encode_state,
    step,
)
from tidelog_controller.raft.log import Entry
from tidelog_controller.raft.membership import encode_members, members_of

from unit.controller.metadata.test_application_random import action, commands_of


def order_of(value: Any) -> Any:
    """Return a value with every map as a list of pairs, so that maps that differ in order only are not equal."""
    if isinstance(value, dict):
        return [(key, order_of(one)) for key, one in value.items()]
    if dataclasses.is_dataclass(value):
        return [order_of(getattr(value, field.name)) for field in dataclasses.fields(value)]
    return [order_of(one) for one in value] if isinstance(value, tuple) else value


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.builds(Replicated, st.from_type(MetadataState), st.from_type(ClientSessions)))
def test_any_state_is_equal_after_encoding_and_decoding(state: Replicated) -> None:
    again = decode_state(encode_state(state))
    assert again == state
    assert order_of(again) == order_of(state)


@settings(max_examples=40, deadline=None)
@given(st.lists(action, max_size=25), st.integers(0, 30))
def test_applying_after_a_restore_is_applying_without(actions: list[tuple[object, ...]], cut: int) -> None:
    log = Log()
    for number, one in enumerate(actions):
        for command in commands_of(log, number, one):
            log.write(command)
    plain = restored = Replicated(MetadataState("test"))
    for index, command in enumerate(log.commands, 1):
        entry = Entry(index, 1, encode_proposal(command, RequestId("g1", index) if index % 3 else None))
        plain, restored = step(plain, entry).state, step(restored, entry).state
        if index == cut:
            restored = decode_state(encode_state(restored))
    assert restored == plain and order_of(restored) == order_of(plain)
    assert encode_state(restored) == encode_state(plain), "equal on every controller, byte for byte"


def test_a_later_field_is_left_out_while_it_has_its_default() -> None:
    """An earlier release refuses fields that it does not know: it reads the log until the field is used."""
    for validate in (True, False):
        config = TopicConfig(validate_batches=validate, max_compaction_lag_ms=0 if validate else 60_000)
        add = AddTopic(1, "t1", "orders", config, (("r1",),))
        register = RegisterServer(1, "r1", "ws://r1", ("one",), True, "")
        commands = [register, add]
        state = Replicated(MetadataState("c"))
        for index, command in enumerate(commands, 1):
            state = step(state, Entry(index, 1, encode_proposal(command, None))).state
        assert state.metadata.topics["t1"].config == config
        assert decode_state(encode_state(state)) == state
        entry = cbor2.loads(encode_proposal(add, None))
        document = cbor2.loads(encode_state(state))
        for written in (entry["config"], document["topics"]["t1"]["config"]):
            assert ("validate_batches" in written) is not validate
            assert ("max_compaction_lag_ms" in written) is not validate


def test_a_document_of_an_earlier_version_gets_defaults_and_one_of_a_later_version_is_refused() -> None:
    document = cbor2.loads(encode_state(Replicated(MetadataState("c", 7, next_producer_id=9))))
    del document["next_producer_id"]
    assert decode_state(cbor2.dumps(document)).metadata == MetadataState("c", 7)
    for later in ({**document, "tariffs": {}}, {**document, "format": 2}, {**document, "index": "7"}):
        with pytest.raises(ValueError, match=r"later (release|version)|not an integer"):
            decode_state(cbor2.dumps(later))
    with pytest.raises(ValueError, match="no CBOR"):
        decode_state(b"\xff\x00")


# --- entries ---------------------------------------------------------------------------------------------


def entry(index: int, command: Command, request: RequestId | None = None) -> Entry:
    return Entry(index, 1, encode_proposal(command, request))


def test_an_entry_says_whose_request_it_is() -> None:
    command = TakeProducerIds(5, 10)
    for request in (None, RequestId("g1", 3)):
        assert decode_proposal(encode_proposal(command, request)) == (command, request)


def test_entries_without_a_command_only_move_the_index() -> None:
    state = Replicated(MetadataState("c"))
    for one in (Entry(1, 1, b""), Entry(1, 1, encode_members(members_of("c1")), is_members=True)):
        outcome = step(state, one)
        assert outcome.state == Replicated(MetadataState("c", 1)) and outcome.applied is None


def test_a_retried_command_is_applied_once_and_answered_alike() -> None:
    """Raft §8: "the state machine tracks the latest serial number processed for each client"."""
    state = Replicated(MetadataState("c"))
    request = RequestId("g1", 1)
    first = step(state, entry(1, TakeProducerIds(0, 10), request))
    again = step(first.state, entry(2, TakeProducerIds(0, 10), request))
    other = step(again.state, entry(3, TakeProducerIds(0, 10), RequestId("g1", 2)))
    answers: list[Message | Exception | None] = [first.answer, again.answer, other.answer]
    assert answers == [ProducerIds(1, 10), ProducerIds(1, 10), ProducerIds(11, 10)]
    assert again.applied is None and other.state.metadata.next_producer_id == 21


def test_a_refusal_is_remembered_too() -> None:
    state = Replicated(MetadataState("c"))
    lost = AddTopic(0, "t", "orders", TopicConfig(), (("r1",),))
    refused = step(state, entry(1, lost, RequestId("g1", 1)))
    assert isinstance(refused.answer, BrokerError) and refused.answer.code == "INVALID_REPLICATION_FACTOR"
    live = step(refused.state, entry(2, RegisterServer(0, "r1", "ws://r1"))).state
    again = step(live, entry(3, lost, RequestId("g1", 1)))
    assert isinstance(again.answer, BrokerError)
    assert again.answer.to_info() == refused.answer.to_info(), "though it would go through now"


# --- the table -------------------------------------------------------------------------------------------


def test_every_kind_of_answer_comes_back_as_it_was() -> None:
    answers = [Done(), TopicCreated("t1"), ProducerIds(4, 2), AlterIsrAnswer(3, ("r1", "r2"))]
    once = ClientSessions()
    for number, answer in enumerate(answers, 1):
        once = once.with_answer(RequestId("g1", number), answer)
    assert [once.find(RequestId("g1", number)) for number in range(1, 6)] == [*answers, None]
    assert once.find(RequestId("g2", 1)) is None


def test_the_table_is_bounded_and_what_it_forgot_is_not_done_again() -> None:
    once = ClientSessions()
    for number in range(1, PER_CLIENT + 3):
        once = once.with_answer(RequestId("g1", number), Done())
    assert len(once.clients["g1"].answers) == PER_CLIENT
    for old in (1, 2):
        refusal = once.find(RequestId("g1", old))
        assert isinstance(refusal, BrokerError) and "too long ago" in refusal.message
    assert once.find(RequestId("g1", 3)) == Done()
    for number in range(CLIENTS):
        once = once.with_answer(RequestId(f"x{number}", 1), refuse("TOPIC_EXISTS", "x"))
    assert len(once.clients) == CLIENTS and "g1" not in once.clients


def test_metadata_are_applied_as_before() -> None:
    command = RegisterServer(0, "r1", "ws://r1")
    state = Replicated(MetadataState("c"))
    assert step(state, entry(1, command)).applied == apply(state.metadata, command, 1)
