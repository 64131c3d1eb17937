"""Each message and part class as two functions, made once: to a header map, and from a decoded one.

Theory. The functions' source is generated from the class's annotations, as ``dataclasses`` does for ``__init__``: a
loop over field descriptions was three times slower, and these run for every message. What is generated for
``ProduceAck`` begins so::

    def encode(x, id=None, re=None):            def decode(m, payload=None):
        d = {'id': x.id}                            if type(m) is not dict: diagnose(cls, m, payload)
        if x.offset != default1:                    get = m.get
            d['offset'] = x.offset                  v0 = get('id')
        …                                           if type(v0) is not int or not 0 <= v0 <= MAX: diagnose(…)
        return d                                    …
                                                    if len(m) == 1: return cls(v0, default1, …)
                                                    v1 = get('offset', default1)
                                                    …
                                                    return cls(v0, v1, …)

Most fields are absent as a rule: if a map has only the required keys, the others are not looked up. A class with a
required field that may be null always looks.
A missing or wrong field fails one cheap test; only then ``_diagnose`` looks at the whole map again to say what is
wrong, and raises.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from tidelog.errors import ProtocolError
from tidelog.wire.messages import ABSENT, Message, Payload

MAX_INT = 2**63 - 1
"""Largest integer of the protocol."""
CLOSE_PROTOCOL = 1002
"""Close code for well-formed CBOR that is not a message of the protocol."""
_Encoder = Callable[..., Any]
_Decoder = Callable[..., Any]
_encoders: dict[type, _Encoder] = {}
_decoders: dict[type, _Decoder] = {}
RESERVED = frozenset({"op", "id", "re"})
"""Header keys that are not fields."""


def fault(text: str) -> ProtocolError:
    """What the peer sent is CBOR, but not the protocol."""
    return ProtocolError(text, close_code=CLOSE_PROTOCOL)


def encoder(cls: type) -> _Encoder:
    """The function ``(instance, id, re) -> header, payload`` of a message class, ``(instance) -> map`` of a part."""
    made = _encoders.get(cls)
    if made is None:
        made = _encoders[cls] = _compile_encoder(cls)
    return made


def decoder(cls: type) -> _Decoder:
    """The function ``(map, payload) -> instance``; it raises ``ProtocolError``."""
    made = _decoders.get(cls)
    if made is None:
        made = _decoders[cls] = _compile_decoder(cls)
    return made


def typed_fields(cls: type) -> list[tuple[Field[Any], Any]]:
    """The fields of a message or part class in their order on the wire, each with its type, resolved. Fields that can
    only be named follow all others, so that those of a base class do not come first."""
    resolved = typing.get_type_hints(cls)
    return [(field, resolved[field.name]) for field in sorted(fields(cls), key=lambda field: field.kw_only is True)]


def hints(cls: type) -> dict[str, Any]:
    """Field names of a message or part class and their types, resolved."""
    return {field.name: hint for field, hint in typed_fields(cls)}


def is_payload(hint: Any) -> bool:
    """Is this the type of a message's bulk, which is no part of the header?"""
    return bool(hint == Payload)


def optional_of(hint: Any) -> Any | None:
    """``X`` of ``X | None``; None for every other type."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        some = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        if len(some) == 1 and len(typing.get_args(hint)) == 2:
            return some[0]
    return None


def default_of(field: Field[Any]) -> Any:
    """What a field means that is not there, ``MISSING`` when it must be there."""
    if ABSENT in field.metadata:
        return field.metadata[ABSENT]
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default


def lowest_of(field: Field[Any]) -> int:
    """The least value of an integer field."""
    return -1 if default_of(field) == -1 else 0


def _compile_encoder(cls: type) -> _Encoder:
    names: dict[str, Any] = {"cls": cls}
    always: list[str] = []
    sometimes: list[str] = []
    payload = "b''"
    for number, (field, hint) in enumerate(typed_fields(cls)):
        value = f"x.{field.name}"
        if is_payload(hint):
            payload = value
            continue
        expression = _encode_expression(value, hint, names)
        default = default_of(field)
        if default is MISSING:
            always.append(f"{field.name!r}: {expression}")
            continue
        names[f"default{number}"] = default
        test = f"{value} is not None" if default is None else f"{value} != default{number}"
        sometimes += [f"    if {test}:", f"        d[{field.name!r}] = {expression}"]
    lines = []
    if issubclass(cls, Message):
        _check_message(cls)
        if cls.OP:
            request = cls.ANSWER is not None
            always.insert(0, f"'op': {cls.OP!r}" + (", 'id': id" if request else ""))
            lines += [f"    assert re is None and (id is not None) is {request}, 'wrong id or re for {cls.OP}'"]
        else:
            always.insert(0, "'re': re")
            lines += ["    assert re is not None and id is None, 'an answer needs re'"]
    result = f"d, {payload}" if issubclass(cls, Message) else "d"
    head = f"    d = {{{', '.join(always)}}}"
    lines = ["def encode(x, id=None, re=None):", *lines, head, *sometimes, f"    return {result}"]
    return _build(lines, names, "encode")


def _check_message(cls: type[Message]) -> None:
    taken = {field.name for field in fields(cls)} & (RESERVED if cls.OP else RESERVED | {"error"})
    assert not taken, f"{cls.__name__} uses reserved header keys: {sorted(taken)}"


def _encode_expression(value: str, hint: Any, names: dict[str, Any]) -> str:
    inner = optional_of(hint)
    if inner is not None:
        expression = _encode_expression(value, inner, names)
        return value if expression == value else f"(None if {value} is None else {expression})"
    if hint in (int, bool, str):
        return value
    if hint is bytes:
        return f"bytes({value})"  # a view would silently become an array of integers
    if hint == dict[str, str]:
        return value
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        expression = _encode_expression("i", item, names)
        return f"list({value})" if expression == "i" else f"[{expression} for i in {value}]"
    if is_dataclass(hint) and isinstance(hint, type):
        name = f"encode_{hint.__name__}"
        names[name] = encoder(hint)
        return f"{name}({value})"
    raise TypeError(f"no encoding for {hint}")


def _compile_decoder(cls: type) -> _Decoder:
    names: dict[str, Any] = {"cls": cls, "MISSING": MISSING, "diagnose": _diagnose, "MAX": MAX_INT}
    required: list[str] = []
    optional: list[str] = []
    arguments: list[str] = []
    defaults: list[str] = []
    counted = _header_keys(cls)
    may_be_absent = takes_payload = False
    for number, (field, hint) in enumerate(typed_fields(cls)):
        v = f"v{number}"
        name = f"{field.name}=" if field.kw_only else ""
        arguments.append(name + v)
        if is_payload(hint):
            takes_payload = True
            arguments[-1] = name + "b'' if payload is None else payload"
            defaults.append(arguments[-1])
            continue
        default = default_of(field)
        if default is MISSING:
            counted += 1
            may_be_absent = may_be_absent or optional_of(hint) is not None  # which means None
            required += [f"    {v} = get({field.name!r})", *_decode_lines(v, hint, field, names, number)]
            defaults.append(arguments[-1])
        else:
            names[f"default{number}"] = default
            optional += [f"    {v} = get({field.name!r}, default{number})"]
            optional += _decode_lines(v, hint, field, names, number)
            defaults.append(name + ("{}" if hint == dict[str, str] else f"default{number}"))
    lines = ["    if type(m) is not dict: diagnose(cls, m, payload)", "    get = m.get", *required]
    if not takes_payload and issubclass(cls, Message):
        lines.append("    if payload is not None: diagnose(cls, m, payload)")
    if not may_be_absent:
        lines.append(f"    if len(m) == {counted}: return cls({', '.join(defaults)})")
    lines = ["def decode(m, payload=None):", *lines, *optional, f"    return cls({', '.join(arguments)})"]
    return _build(lines, names, "decode")


def _header_keys(cls: type) -> int:
    """How many keys of ``RESERVED`` the header of a message has; a part has none."""
    if not issubclass(cls, Message):
        return 0
    return 2 if cls.OP and cls.ANSWER is not None else 1


def _decode_lines(v: str, hint: Any, field: Field[Any], names: dict[str, Any], number: int) -> list[str]:
    """Statements that check ``v`` and make of it what the dataclass holds. ``m`` is the map it came from."""
    wrong = "diagnose(cls, m, payload)"
    inner = optional_of(hint)
    if inner is not None:
        lines = _decode_lines(v, inner, field, names, number)
        return [f"    if {v} is not None:", *[f"    {line}" for line in lines]]
    if hint is int:
        return [f"    if type({v}) is not int or not {lowest_of(field)} <= {v} <= MAX: {wrong}"]
    if hint in (bool, str, bytes):
        return [f"    if type({v}) is not {hint.__name__}: {wrong}"]
    if hint == dict[str, str]:
        names["texts"] = _is_texts
        lines = [f"    if not texts({v}): {wrong}"]
        return lines if default_of(field) is MISSING else [*lines, f"    if {v} is default{number}: {v} = {{}}"]
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        if item in (str, bytes, int):
            names["items"] = _items_of
            return [f"    {v} = items({v}, {item.__name__})", f"    if {v} is None: {wrong}"]
        name = _decoder_name(item, names)
        return [
            f"    if type({v}) is list: {v} = tuple([{name}(i) for i in {v}])",
            f"    elif type({v}) is not tuple: {wrong}",
        ]
    return [f"    {v} = {_decoder_name(hint, names)}({v})"]


def _decoder_name(hint: Any, names: dict[str, Any]) -> str:
    if not (is_dataclass(hint) and isinstance(hint, type)):
        raise TypeError(f"no decoding for {hint}")
    name = f"decode_{hint.__name__}"
    names[name] = decoder(hint)
    return name


def _is_texts(value: object) -> bool:
    return type(value) is dict and all([type(k) is str and type(v) is str for k, v in value.items()])


def _items_of(value: object, kind: type) -> tuple[Any, ...] | None:
    """A list of texts, byte strings or integers as a tuple; None when it is not that."""
    if type(value) is not list and type(value) is not tuple:
        return None
    for item in value:
        if type(item) is not kind or (isinstance(item, int) and not 0 <= item <= MAX_INT):
            return None
    return tuple(value)


def _build(lines: list[str], names: dict[str, Any], name: str) -> Callable[..., Any]:
    exec("\n".join(lines), names)
    made: Callable[..., Any] = names[name]
    return made


def _diagnose(cls: type, m: object, payload: object) -> None:
    """A check failed: say which, naming every missing key. Always raises."""
    label = getattr(cls, "OP", "") or cls.__name__
    if type(m) is not dict:
        raise fault(f"{label}: not a map")
    missing = [
        field.name
        for field, hint in typed_fields(cls)
        if field.name not in m and default_of(field) is MISSING and not is_payload(hint)
    ]
    if missing:
        raise fault(f"{label}: missing {', '.join(missing)}")
    for field, hint in typed_fields(cls):
        if field.name in m and not is_payload(hint) and not _fits(m[field.name], hint, lowest_of(field)):
            raise fault(f"{label}: {field.name} is not {_describe(hint, lowest_of(field))}")
    raise fault(f"{label}: takes no payload" if payload is not None else f"{label}: malformed")


def _fits(value: object, hint: Any, lowest: int) -> bool:
    inner = optional_of(hint)
    if inner is not None:
        return value is None or _fits(value, inner, lowest)
    if hint is int:
        return type(value) is int and lowest <= value <= MAX_INT
    if hint in (bool, str, bytes):
        return type(value) is hint
    if hint == dict[str, str]:
        return _is_texts(value)
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        return type(value) is list and all(_fits(i, item, 0) for i in value)
    return type(value) is dict


def _describe(hint: Any, lowest: int) -> str:
    inner = optional_of(hint)
    if inner is not None:
        return f"{_describe(inner, lowest)} or null"
    if hint is int:
        return f"an integer from {lowest} to 2**63-1"
    if hint == dict[str, str]:
        return "a map of texts"
    if typing.get_origin(hint) is tuple:
        return "an array of the right items"
    return {bool: "a boolean", str: "a text", bytes: "a byte string"}.get(hint, "a map")
