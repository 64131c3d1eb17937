"""The codec writes what ``tidelog.cddl`` says, for every message class; and the file knows every class. Tests
``wire/codec.py``, ``wire/schema.py`` and ``tidelog.cddl``."""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from functools import cache
from pathlib import Path
from typing import Any

import cbor2
import pycddl
import pytest
import tidelog.wire
from hypothesis import given, settings
from hypothesis import strategies as st
from support.message_strategies import CHOICES, instances
from tidelog.batch.format import SPARSE_HEADER_BYTES, NewRecord, decode_columns, encode_batch, encode_control
from tidelog.batch.sparse import thin_batch
from tidelog.errors import ProtocolError, refuse
from tidelog.types import ClusterImage, PartitionState, ServerState, TopicConfig, TopicPartition, TopicState
from tidelog.wire import codec
from tidelog.wire.codec import MESSAGES
from tidelog.wire.fields import MAX_INT, default_of, hints, is_payload, optional_of, typed_fields
from tidelog.wire.messages import ABSENT, Done, ErrorInfo, Message
from tidelog.wire.metadata_image import encode_delta, encode_image

GOLDEN = Path(__file__).parent / "golden" / "messages.json"
CDDL = (Path(tidelog.wire.__file__).parent / "tidelog.cddl").read_text(encoding="utf-8")
CLOSED = CDDL.replace("  * tstr => any,\n", "")
"""The file without the lines that allow keys of later releases, as it recommends for checks."""

by_class = pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)


def rule_name(cls: type) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()


@cache
def schema(rule: str) -> pycddl.Schema:
    return pycddl.Schema(f"root = {rule}\n{CDDL}")


@cache
def closed_schema(rule: str) -> pycddl.Schema:
    return pycddl.Schema(f"root = {rule}\n{CLOSED}")


def header_of(message: Message) -> bytes:
    """The header as it is sent."""
    request = message.ANSWER is not None
    head, payload = codec.encode(message, id=7 if request else None, re=None if message.OP else 7)
    assert not payload
    return head


def example(cls: type, *, full: bool) -> Any:
    """An instance with every field that has no default, or with all of them set to something else."""
    values = {}
    for field, hint in typed_fields(cls):
        if not is_payload(hint) and (full or default_of(field) is dataclasses.MISSING):
            values[field.name] = example_value(hint, f"{cls.__name__}.{field.name}", full=full)
        elif ABSENT in field.metadata:
            values[field.name] = default_of(field)
    return cls(**values)


def example_value(hint: Any, name: str, *, full: bool) -> Any:
    if name in CHOICES:
        return CHOICES[name][-1]
    inner = optional_of(hint)
    if inner is not None:
        return example_value(inner, name, full=full) if full else None
    if typing.get_origin(hint) is tuple:
        return (example_value(typing.get_args(hint)[0], "", full=full),) * (2 if full else 0)
    simple: dict[Any, Any] = {int: MAX_INT if full else 0, bool: full, str: "ä" if full else ""}
    simple[bytes] = b"b" if full else b""
    simple[dict[str, str]] = {"a": "b"} if full else {}
    simple[dict[str, int]] = {"a": MAX_INT} if full else {}
    return simple[hint] if hint in simple else example(hint, full=full)


@by_class
def test_examples_are_as_the_file_says(cls: type[Message]) -> None:
    for full in (False, True):
        message = example(cls, full=full)
        header = header_of(message)
        schema(rule_name(cls)).validate_cbor(header)
        assert codec.decode(header, answers=lambda _: cls).message == message


def golden(cls: type[Message]) -> list[str]:
    """The headers of both examples, in hexadecimal."""
    return [header_of(example(cls, full=full)).hex() for full in (False, True)]


@by_class
def test_golden_messages_are_still_what_is_written(cls: type[Message]) -> None:
    """To the byte, with the fields in the same order. When a message has got a field, ``python test_cddl.py`` writes
    the file anew."""
    assert golden(cls) == json.loads(GOLDEN.read_text())[cls.__name__]


@by_class
def test_each_field_is_read_beside_those_that_must_be_there(cls: type[Message]) -> None:
    """With and without a key of a later release."""
    least, full = example(cls, full=False), example(cls, full=True)
    for name, hint in hints(cls).items():
        if not is_payload(hint):
            message = dataclasses.replace(least, **{name: getattr(full, name)})
            header = cbor2.loads(header_of(message))
            for more in ({}, {"of a later release": 1}):
                assert codec.decode(cbor2.dumps(header | more), answers=lambda _: cls).message == message


@by_class
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_anything_of_the_right_types_is_as_the_file_says(cls: type[Message], data: st.DataObject) -> None:
    message = data.draw(instances(cls))
    header = header_of(message)
    schema(rule_name(cls)).validate_cbor(header)
    assert codec.decode(header, answers=lambda _: cls).message == message


@by_class
def test_every_field_is_in_its_rule_with_its_type(cls: type[Message]) -> None:
    """A value of another type is refused by the file, and by the codec, under every key of the full example."""
    full = cbor2.loads(header_of(example(cls, full=True)))
    for key in full:
        wrong = {**full, key: 1.5}
        with pytest.raises(pycddl.ValidationError):
            schema(rule_name(cls)).validate_cbor(cbor2.dumps(wrong))
        with pytest.raises(ProtocolError):
            codec.decode(cbor2.dumps(wrong), answers=lambda _: cls)


@by_class
def test_required_fields_are_required(cls: type[Message]) -> None:
    least = cbor2.loads(header_of(example(cls, full=False)))
    for key in least:
        fewer = {k: v for k, v in least.items() if k != key}
        with pytest.raises(pycddl.ValidationError):
            schema(rule_name(cls)).validate_cbor(cbor2.dumps(fewer))
        with pytest.raises(ProtocolError, match=None if key in ("op", "id", "re") else key):
            codec.decode(cbor2.dumps(fewer), answers=lambda _: cls)


@by_class
def test_unknown_keys_are_ignored(cls: type[Message]) -> None:
    message = example(cls, full=True)
    more = cbor2.dumps({**cbor2.loads(header_of(message)), "later": [1, {"a": None}]})
    schema(rule_name(cls)).validate_cbor(more)
    assert codec.decode(more, answers=lambda _: cls).message == message


def parts_of(cls: type) -> set[type]:
    """The class, and all that are inside of it."""
    found = {cls}
    for _, declared in typed_fields(cls):
        hint = optional_of(declared) or declared
        inner = typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else hint
        if dataclasses.is_dataclass(inner) and isinstance(inner, type):
            found |= parts_of(inner)
    return found


def test_every_key_of_messages_and_parts_is_in_the_file() -> None:
    """Read from the text: in arrays of maps the validator does not see unknown keys."""
    for cls in set().union(*map(parts_of, MESSAGES)):
        rule = re.search(rf"^{rule_name(cls)} = \{{\n(.*?)^}}", CDDL, re.MULTILINE | re.DOTALL)
        assert rule is not None, cls
        keys = set(re.findall(r'^  (?:\? )?"?([a-z_]+)"?: ', rule[1], re.MULTILINE))
        fields = {field.name for field, hint in typed_fields(cls) if not is_payload(hint)}
        assert keys - {"op", "id", "re"} == fields - {"op", "id", "re"}, cls


def test_each_operation_has_the_rule_of_its_answer() -> None:
    rules = re.findall(r"^answer-to-([a-z-]+) = ([a-z-]+)$", CDDL, re.MULTILINE)
    assert dict(rules) == {rule_name(c): rule_name(c.ANSWER) for c in MESSAGES if c.OP and c.ANSWER}
    assert len(rules) == len(dict(rules))


@pytest.mark.parametrize(
    "answer", [cls for cls in MESSAGES if not cls.OP and cls is not Done], ids=lambda cls: cls.__name__
)
def test_an_answer_to_another_operation_is_refused(answer: type[Message]) -> None:
    """Every answer with all its keys follows the closed rule of the operations that have this answer, and of no
    other. ``done`` has no key but the number: it is also a sparing form of answers whose other keys are optional."""
    header = header_of(example(answer, full=True))
    for cls in MESSAGES:
        if cls.OP and cls.ANSWER is answer:
            closed_schema(f"answer-to-{rule_name(cls)}").validate_cbor(header)
        elif cls.OP and cls.ANSWER:
            with pytest.raises(pycddl.ValidationError):
                closed_schema(f"answer-to-{rule_name(cls)}").validate_cbor(header)


def listed(rule: str) -> set[str]:
    """The alternatives of a choice rule."""
    found = re.search(rf"^{rule} = ((?:.*\n)(?:  / .*\n)*)", CDDL, re.MULTILINE)
    assert found is not None
    return set(re.findall(r"[a-z-]+", found[1]))


def test_requests_answers_and_bulk_are_listed() -> None:
    assert listed("request") == {rule_name(c) for c in MESSAGES if c.OP and c.ANSWER}
    assert listed("one-way") == {rule_name(c) for c in MESSAGES if c.OP and not c.ANSWER}
    assert listed("answer") == {rule_name(c) for c in MESSAGES if not c.OP}
    assert listed("bulk") == {rule_name(c) for c in MESSAGES if any(map(is_payload, hints(c).values()))}


def test_every_rule_is_used() -> None:
    rules = set(re.findall(r"^([a-z][a-z0-9-]*) =", CDDL, re.MULTILINE))
    code = re.sub(r";.*", "", CDDL)
    used = {rule for rule in rules if len(re.findall(rf"(?<![\w-]){rule}(?![\w-])(?!:)", code)) > 1}
    answers = {rule for rule in rules if rule.startswith("answer-to-")}
    assert rules - used - answers == {
        "header",
        "bulk",
        "metadata-image",
        "metadata-delta",
        "producers",
        "producer-crcs",
        "raft-entries",
        "batch-body",
    }


def test_an_error_answer() -> None:
    error = refuse("NOT_LEADER", "r2 leads", unknown_outcome=True, leader="r2", leader_epoch=7)
    header = codec.encode_error(3, error)
    schema("error-answer").validate_cbor(header)
    again = codec.decode(header, answers=lambda _: None)
    assert again.re == 3 and again.error is not None and again.message is None
    assert (again.error.code, again.error.detail) == ("NOT_LEADER", {"leader": "r2", "leader_epoch": 7})
    assert again.error.unknown_outcome and again.error.message == "r2 leads"


@settings(max_examples=25, deadline=None)
@given(instances(ErrorInfo))
def test_any_error_can_be_read_or_is_refused(info: ErrorInfo) -> None:
    header = cbor2.dumps({"re": 1, "error": codec.to_map(info)})
    schema("error-answer").validate_cbor(header)
    try:
        error = codec.decode(header, answers=lambda _: None).error
    except ProtocolError:
        return  # a detail that hides behind the name of another argument
    assert error is not None and error.code == info.code and error.message == info.message


@settings(max_examples=25, deadline=None)
@given(st.lists(instances(ServerState), max_size=3), st.lists(instances(TopicState), max_size=3))
def test_metadata(servers: list[ServerState], topics: list[TopicState]) -> None:
    image = ClusterImage(3, "c", tuple(servers), tuple(topics))
    schema("metadata-image").validate_cbor(encode_image(image))
    partitions = [(TopicPartition(t.topic_id, n), state) for t in topics for n, state in enumerate(t.partitions)]
    schema("metadata-delta").validate_cbor(encode_delta(servers, topics, ["gone"], partitions))


def test_metadata_states_are_complete() -> None:
    """Every field of the states is in the file: one more key would pass, one less would not."""
    state = TopicState("t", "n", TopicConfig(), (example(PartitionState, full=True),))
    image = cbor2.loads(encode_image(ClusterImage(1, "c", (example(ServerState, full=True),), (state,))))
    for path, cls in (
        (image["servers"][0], ServerState),
        (image["topics"][0], TopicState),
        (image["topics"][0]["config"], TopicConfig),
        (image["topics"][0]["partitions"][0], PartitionState),
    ):
        assert set(path) == {field.name for field in dataclasses.fields(cls)}
        for key, value in list(path.items()):
            path[key] = 1.5
            with pytest.raises(pycddl.ValidationError):
                schema("metadata-image").validate_cbor(cbor2.dumps(image))
            path[key] = value


def test_raft_entries_and_batch_bodies() -> None:
    schema("raft-entries").validate_cbor(cbor2.dumps([[1, b""], [2, b"x"], [2, [b"y"]]]))
    batch = encode_batch([NewRecord(b"v", b"k", 5, (("h", b"1"),)), NewRecord(None, None, 3, ())])
    schema("batch-body").validate_cbor(bytes(batch[64:]))
    thin = thin_batch(decode_columns(batch), batch, [1], 9)
    schema("batch-body").validate_cbor(bytes(thin[SPARSE_HEADER_BYTES:]))
    schema("batch-body").validate_cbor(bytes(thin_batch(decode_columns(batch), batch, [], 9)[SPARSE_HEADER_BYTES:]))
    schema("batch-body").validate_cbor(bytes(encode_control("epoch")[64:]))


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({cls.__name__: golden(cls) for cls in MESSAGES}, indent=1, sort_keys=True) + "\n")
