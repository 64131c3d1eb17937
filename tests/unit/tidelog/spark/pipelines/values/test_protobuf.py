"""Messages of Protocol Buffers, and the columns of their descriptors."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'tidelog[spark]'")
pytest.importorskip("google.protobuf", reason="protobuf is not installed: pip install 'tidelog[formats]'")

from google.protobuf import descriptor_pb2 as pb
from google.protobuf import timestamp_pb2
from google.protobuf.message_factory import GetMessageClass
from tidelog.errors import ConfigError
from tidelog.spark.pipelines.values.conversion import BadValue, Rules, converter
from tidelog.spark.pipelines.values.protobuf import message_columns, message_descriptor, protobuf_decoder

KIND = pb.FieldDescriptorProto
SCALARS: dict[str, tuple[int, str, Any]] = {
    "i32": (KIND.TYPE_SINT32, "int", -1),
    "i64": (KIND.TYPE_INT64, "bigint", -(2**63)),
    "u32": (KIND.TYPE_UINT32, "bigint", 2**32 - 1),
    "u64": (KIND.TYPE_UINT64, "decimal(20,0)", 2**64 - 1),
    "single": (KIND.TYPE_FLOAT, "float", 0.5),
    "real": (KIND.TYPE_DOUBLE, "double", 0.1),
    "flag": (KIND.TYPE_BOOL, "boolean", True),
    "text": (KIND.TYPE_STRING, "string", "é"),
    "data": (KIND.TYPE_BYTES, "binary", b"\xff"),
}


def descriptors(syntax: str = "proto3", imports: bool = True) -> bytes:
    """A message a.All with a field of each kind, as protoc compiles it."""
    file = pb.FileDescriptorProto(name="all.proto", package="a", syntax=syntax)
    message = file.message_type.add(name="All")
    for n, (name, (kind, *_)) in enumerate(SCALARS.items(), 1):
        message.field.add(name=name, number=n, type=kind, label=KIND.LABEL_OPTIONAL)
    file.enum_type.add(name="Suit").value.add(name="A", number=0)
    message.field.add(name="suit", number=20, type=KIND.TYPE_ENUM, label=KIND.LABEL_OPTIONAL, type_name=".a.Suit")
    times = timestamp_pb2.DESCRIPTOR
    for name, number, label, kind in (
        ("at", 21, KIND.LABEL_OPTIONAL, ".google.protobuf.Timestamp"),
        ("point", 22, KIND.LABEL_OPTIONAL, ".a.Point"),
        ("points", 23, KIND.LABEL_REPEATED, ".a.Point"),
        ("counts", 24, KIND.LABEL_REPEATED, ".a.All.CountsEntry"),
    ):
        message.field.add(name=name, number=number, type=KIND.TYPE_MESSAGE, label=label, type_name=kind)
    entry = message.nested_type.add(name="CountsEntry", options=pb.MessageOptions(map_entry=True))
    entry.field.add(name="key", number=1, type=KIND.TYPE_INT32, label=KIND.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=KIND.TYPE_MESSAGE, label=KIND.LABEL_OPTIONAL, type_name=".a.Point")
    point = file.message_type.add(name="Point")
    label = KIND.LABEL_REQUIRED if syntax == "proto2" else KIND.LABEL_OPTIONAL
    point.field.add(name="x", number=1, type=KIND.TYPE_INT32, label=label)
    node = file.message_type.add(name="Node")
    node.field.add(name="next", number=1, type=KIND.TYPE_MESSAGE, label=KIND.LABEL_OPTIONAL, type_name=".a.Node")
    file.dependency.append(times.name)
    first = pb.FileDescriptorProto()
    times.CopyToProto(first)
    made: bytes = pb.FileDescriptorSet(file=[first, file] if imports else [file]).SerializeToString()
    return made


def test_each_kind_of_field_has_its_column() -> None:
    descriptor = message_descriptor(descriptors(), "a.All")
    columns = message_columns(descriptor)
    point = "struct<x:int>"
    assert {one.name: one.dataType.simpleString() for one in columns} == {
        **{name: kind for name, (_, kind, _) in SCALARS.items()},
        "suit": "string", "at": "timestamp", "point": point, "points": f"array<{point}>",
        "counts": f"map<int,{point}>",
    }  # fmt: skip
    scalars = {name: value for name, (_, _, value) in SCALARS.items()}
    message = GetMessageClass(descriptor)(**scalars, points=[{"x": 1}])
    message.at.FromDatetime(datetime(2026, 1, 2, tzinfo=UTC))
    message.counts[-1].x = 7
    found = protobuf_decoder(descriptors(), "a.All")(message.SerializeToString(), 0)
    assert found is not None
    made = {one.name: None if found[one.name] is None else converter(one.dataType, Rules())(found[one.name])
            for one in columns}  # fmt: skip
    assert made == {
        **scalars, "u64": Decimal(2**64 - 1), "suit": "A",
        "at": datetime(2026, 1, 2, tzinfo=UTC), "point": None, "points": [{"x": 1}], "counts": [(-1, {"x": 7})],
    }  # fmt: skip


def test_a_field_without_presence_has_its_default() -> None:
    found = protobuf_decoder(descriptors(), "a.All")(b"", 0)
    assert found is not None
    assert (found["i32"], found["text"], found["at"], found["points"]) == (0, "", None, [])
    found = protobuf_decoder(descriptors("proto2"), "a.All")(b"", 0)
    assert found is not None and found["i32"] is None


@pytest.mark.parametrize(
    ("value", "syntax", "reason"),
    [
        (b"\xff", "proto3", "the value is not a message a.All: "),
        (b"\xa0\x01\x05", "proto3", "suit: 5 is not in the enum a.Suit"),
        (b"\xb2\x01\x00", "proto2", "fields are missing: point.x"),
        (b"\x42\x01\xff", "proto3", "the value is not a message a.All: "),
        (b"\xaa\x01\x0a\x08" + b"\xff" * 8 + b"\x7f", "proto3", "at: 9223372036854775807 seconds"),
    ],
)
def test_what_is_not_a_message_is_bad(value: bytes, syntax: str, reason: str) -> None:
    with pytest.raises(BadValue) as caught:
        protobuf_decoder(descriptors(syntax), "a.All")(value, 0)
    assert str(caught.value).startswith(reason)


def test_descriptors_that_cannot_be_used_are_refused() -> None:
    for content, message, fault in (
        (b"syntax", "a.All", "it is not a set of compiled descriptors"),
        (descriptors(imports=False), "a.All", "protoc needs --include_imports"),
        (descriptors(), "a.None", "there is no message a.None; there are google.protobuf.Timestamp, a.All, a.Point"),
    ):
        with pytest.raises(ConfigError, match=fault):
            message_descriptor(content, message)
    with pytest.raises(ConfigError, match=r"the message a\.Node contains itself"):
        message_columns(message_descriptor(descriptors(), "a.Node"))
