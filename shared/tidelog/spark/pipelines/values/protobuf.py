"""Values that are messages of Protocol Buffers, as a file with compiled descriptors describes them
(``protoc --include_imports --descriptor_set_out=FILE.desc``)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC
from typing import Any

from pyspark.sql import types as t

from tidelog.errors import ConfigError
from tidelog.spark.pipelines.values.conversion import BadValue, Decode

TIMESTAMP = "google.protobuf.Timestamp"


def message_descriptor(descriptors: bytes, message: str) -> Any:
    """Return the descriptor of a message, by its full name, from the content of a file with compiled descriptors.
    Raises ``ConfigError`` if it is not such a file, or has no such message."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import DecodeError

    pool = DescriptorPool()
    try:
        files = FileDescriptorSet.FromString(descriptors)
        for one in files.file:
            pool.AddSerializedFile(one.SerializeToString())
    except DecodeError:
        raise ConfigError("it is not a set of compiled descriptors: protoc --descriptor_set_out makes one") from None
    except TypeError as error:
        raise ConfigError(f"it cannot be used, protoc needs --include_imports: {error}") from None
    try:
        return pool.FindMessageTypeByName(message)
    except KeyError:
        known = [f"{one.package}.{each.name}".lstrip(".") for one in files.file for each in one.message_type]
        raise ConfigError(f"there is no message {message}; there are {', '.join(known)}") from None


def message_columns(descriptor: Any) -> t.StructType:
    """Return the columns of a message, one for each field. Raises ``ConfigError`` for a message inside of itself."""
    return _struct(descriptor, ())


def protobuf_decoder(descriptors: bytes, message: str) -> Decode:
    """Return a decoder for values that are one message. Others raise ``BadValue``."""
    from google.protobuf.message import DecodeError
    from google.protobuf.message_factory import GetMessageClass

    kind = GetMessageClass(message_descriptor(descriptors, message))

    def decode(value: bytes, at_us: int) -> Mapping[str, Any]:
        found = kind()
        try:
            found.ParseFromString(value)
        except DecodeError as error:
            raise BadValue(f"the value is not a message {message}: {error}") from None
        if not found.IsInitialized():
            raise BadValue(f"fields are missing: {', '.join(found.FindInitializationErrors())}")
        return _fields(found)

    return decode


def _struct(descriptor: Any, inside: tuple[str, ...]) -> t.StructType:
    if descriptor.full_name in inside:
        raise ConfigError(f"the message {descriptor.full_name} contains itself, which a column cannot")
    inside = (*inside, descriptor.full_name)
    return t.StructType([t.StructField(one.name, _kind(one, inside)) for one in descriptor.fields])


def _kind(one: Any, inside: tuple[str, ...]) -> t.DataType:
    """Return the type of a field's column."""
    if _is_map(one):
        entry = one.message_type.fields_by_name
        return t.MapType(_single(entry["key"], inside), _single(entry["value"], inside))
    return t.ArrayType(_single(one, inside)) if one.is_repeated else _single(one, inside)


def _single(one: Any, inside: tuple[str, ...]) -> t.DataType:
    """Return the type of one value of a field."""
    simple: dict[int, t.DataType] = {
        one.CPPTYPE_BOOL: t.BooleanType(),
        one.CPPTYPE_INT32: t.IntegerType(),
        one.CPPTYPE_INT64: t.LongType(),
        one.CPPTYPE_UINT32: t.LongType(),
        one.CPPTYPE_UINT64: t.DecimalType(20, 0),
        one.CPPTYPE_FLOAT: t.FloatType(),
        one.CPPTYPE_DOUBLE: t.DoubleType(),
        one.CPPTYPE_ENUM: t.StringType(),
        one.CPPTYPE_STRING: t.BinaryType() if one.type == one.TYPE_BYTES else t.StringType(),
    }
    if one.cpp_type != one.CPPTYPE_MESSAGE:
        return simple[one.cpp_type]
    return t.TimestampType() if one.message_type.full_name == TIMESTAMP else _struct(one.message_type, inside)


def _is_map(one: Any) -> bool:
    return bool(one.is_repeated and one.message_type is not None and one.message_type.GetOptions().map_entry)


def _fields(message: Any) -> dict[str, Any]:
    """Return the fields of a message by name. A field that can be missing, and is, is None."""
    made: dict[str, Any] = {}
    for one in message.DESCRIPTOR.fields:
        value = getattr(message, one.name)
        try:
            if _is_map(one):
                each = one.message_type.fields_by_name["value"]
                made[one.name] = {key: _value(each, value[key]) for key in value}
            elif one.is_repeated:
                made[one.name] = [_value(one, single) for single in value]
            elif one.has_presence and not message.HasField(one.name):
                made[one.name] = None
            else:
                made[one.name] = _value(one, value)
        except BadValue as error:
            raise error.below(one.name) from None
    return made


def _value(one: Any, value: Any) -> Any:
    if one.cpp_type == one.CPPTYPE_ENUM:
        if value not in one.enum_type.values_by_number:
            raise BadValue(f"{value} is not in the enum {one.enum_type.full_name}")
        return one.enum_type.values_by_number[value].name
    if one.cpp_type != one.CPPTYPE_MESSAGE:
        return value
    if one.message_type.full_name != TIMESTAMP:
        return _fields(value)
    try:
        return value.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise BadValue(f"{value.seconds} seconds since 1970 are no TIMESTAMP") from None
