"""Messages to bytes and back: a typed codec, compiled once per class from the annotations in ``messages.py``.

Theory. On the wire a message is a CBOR sequence (RFC 8742) of one or two items: a map with text keys, the
header, and, when the message has bulk bytes, one definite byte string, the payload. Only the header passes
cbor2. ``encode`` answers ``(head, payload)``, where ``head`` ends with the byte string's own head (RFC 8949
§3.1), so that head and payload sent one after the other are the whole message and the payload is never copied
here. ``decode`` reads the header from a bounded prefix (``cbor.py``) and hands out the payload as a view of what
arrived.

Besides the message's own fields a header has these keys, which no message may use as field names: ``op`` (which
class), ``id`` (a request's number), ``re`` (an answer's), and on an answer ``error``.

Everything that arrives is hostile until checked: strict CBOR first, then the fields. Unknown keys are ignored. A
missing or wrong field is found by one cheap test each; only then ``_diagnose`` looks again to say what is wrong.

Each class becomes two functions, whose source is generated here as ``dataclasses`` does for ``__init__``: a loop
over field descriptions was three times slower, and these run for every message.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Any, TypeVar

import cbor2

from tidelog.errors import ProtocolError, TidelogError, from_info
from tidelog.types import Buffer
from tidelog.wire import messages
from tidelog.wire.cbor import bytes_head, load_prefix, read_bytes_item
from tidelog.wire.messages import ErrorInfo, Message, Payload

Part = TypeVar("Part")
MAX_INT = 2**63 - 1
"""Largest integer of the protocol."""
CLOSE_PROTOCOL = 1002
"""Close code for well-formed CBOR that is not a message of the protocol."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a receiver takes. ``header_bytes``: longest header; ``header_items``: most CBOR items in it."""

    header_bytes: int
    header_items: int


STRANGER = Limits(256 << 10, 1 << 14)
"""For clients, and for everybody who has not said hello."""
SERVICE = Limits(4 << 20, 1 << 20)
"""For the services among each other, and for what a server answers: metadata of 10,000 partitions fits."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """What arrived. ``message`` is None when there is none that this version knows: an unknown ``op``, an answer
    nobody waits for, or an error answer (``re`` and ``error`` are then set)."""

    message: Message | None
    id: int | None = None
    re: int | None = None
    error: TidelogError | None = None
    op: str = ""


def encode(message: Message, *, id: int | None = None, re: int | None = None) -> tuple[bytes, Payload]:
    """A request (``id``), answer (``re``) or one-way message as head and payload; send one after the other."""
    header, payload = _encoder(type(message))(message, id, re)
    head = cbor2.dumps(header)
    if payload:
        size = payload_size(payload)
        if size:
            return head + bytes_head(size), payload
    return head, b""


def encode_error(re: int, error: TidelogError) -> bytes:
    """The answer that says that request ``re`` failed."""
    return cbor2.dumps({"re": re, "error": _encoder(ErrorInfo)(error.to_info())})


def decode(
    data: bytes | bytearray,
    *,
    answers: Callable[[int], type[Message] | None],
    limits: Limits = STRANGER,
) -> Decoded:
    """One whole WebSocket message. ``answers`` tells the class of the answer to a request of ours, None when
    nobody waits for it. The payload is a view of ``data``. Raises ``ProtocolError``; its detail ``close_code`` is
    the WebSocket close code that says so to the peer."""
    header, position = load_prefix(data, limits.header_bytes, limits.header_items)
    if type(header) is not dict:
        raise _fault("the header is no map")
    payload = read_bytes_item(data, position) if position < len(data) else None
    re = header.get("re")
    if re is not None:
        return _decode_answer(header, payload, re, answers)
    op = header.get("op")
    if type(op) is not str:
        raise _fault("the header has neither op nor re")
    id = header.get("id")
    if id is not None and (type(id) is not int or not 0 <= id <= MAX_INT):
        raise _fault("id is not an integer from 0 to 2**63-1")
    cls = OPS.get(op)
    if cls is None:
        return Decoded(None, id, op=op)
    if (id is None) is not (cls.ANSWER is None):
        raise _fault(f"{op} {'needs an id' if id is None else 'takes no id'}")
    return Decoded(_decoder(cls)(header, payload), id, op=op)


def payload_size(payload: Payload) -> int:
    """Length in bytes of a message's bulk."""
    if type(payload) is list:
        return sum([part.nbytes if type(part) is memoryview else len(part) for part in payload])
    return payload.nbytes if type(payload) is memoryview else len(payload)


def payload_buffers(payload: Payload) -> list[Buffer]:
    """The bulk as a list of buffers, however it was given."""
    if isinstance(payload, list):
        return payload
    return [payload] if len(payload) else []


def payload_view(payload: Payload) -> memoryview:
    """The bulk as one view; a copy only when it is several buffers."""
    if isinstance(payload, list):
        return memoryview(b"".join(payload))
    return memoryview(payload)


def to_map(part: Any) -> dict[str, Any]:
    """A part (any dataclass whose fields have the types of ``messages.py``) as the map that it is on the wire."""
    made: dict[str, Any] = _encoder(type(part))(part)
    return made


def from_map(cls: type[Part], content: object) -> Part:
    """The part that a decoded map holds. Raises ``ProtocolError``."""
    made: Part = _decoder(cls)(content)
    return made


# --- compiling the classes -------------------------------------------------------------------------------


def _fault(text: str, close_code: int = CLOSE_PROTOCOL) -> ProtocolError:
    return ProtocolError(text, close_code=close_code)


def _decode_answer(
    header: dict[Any, Any], payload: memoryview | None, re: object, answers: Callable[[int], type[Message] | None]
) -> Decoded:
    if type(re) is not int or not 0 <= re <= MAX_INT:
        raise _fault("re is not an integer from 0 to 2**63-1")
    error = header.get("error")
    if error is not None:
        info = _decoder(ErrorInfo)(error)
        try:
            return Decoded(None, re=re, error=from_info(info))
        except (TypeError, ValueError) as fault:  # a detail that is no keyword, a number beyond reading
            raise _fault("the error's detail cannot be read") from fault
    cls = answers(re)
    if cls is None:
        return Decoded(None, re=re)
    return Decoded(_decoder(cls)(header, payload), re=re)


_Encoder = Callable[..., Any]
_Decoder = Callable[..., Any]
_encoders: dict[type, _Encoder] = {}
_decoders: dict[type, _Decoder] = {}
RESERVED = frozenset({"op", "id", "re"})
"""Header keys that are not fields."""


def _encoder(cls: type) -> _Encoder:
    made = _encoders.get(cls)
    if made is None:
        made = _encoders[cls] = _compile_encoder(cls)
    return made


def _decoder(cls: type) -> _Decoder:
    made = _decoders.get(cls)
    if made is None:
        made = _decoders[cls] = _compile_decoder(cls)
    return made


def hints(cls: type) -> dict[str, Any]:
    """Field names of a message or part class and their types, resolved."""
    resolved = typing.get_type_hints(cls)
    return {field.name: resolved[field.name] for field in fields(cls)}


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
    """A field's default, ``MISSING`` when it has none."""
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default


def _compile_encoder(cls: type) -> _Encoder:
    names: dict[str, Any] = {"cls": cls}
    always: list[str] = []
    sometimes: list[str] = []
    payload = "b''"
    for number, (field, hint) in enumerate(zip(fields(cls), hints(cls).values(), strict=True)):
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
        names[name] = _encoder(hint)
        return f"{name}({value})"
    raise TypeError(f"no encoding for {hint}")


def _compile_decoder(cls: type) -> _Decoder:
    names: dict[str, Any] = {"cls": cls, "MISSING": MISSING, "diagnose": _diagnose, "MAX": MAX_INT}
    lines = ["    if type(m) is not dict: diagnose(cls, m, payload)", "    get = m.get"]
    arguments: list[str] = []
    takes_payload = False
    for number, (field, hint) in enumerate(zip(fields(cls), hints(cls).values(), strict=True)):
        v = f"v{number}"
        arguments.append(v)
        if is_payload(hint):
            takes_payload = True
            arguments[-1] = "b'' if payload is None else payload"
            continue
        default = default_of(field)
        if default is MISSING:
            lines.append(f"    {v} = get({field.name!r})")
        else:
            names[f"default{number}"] = default
            lines.append(f"    {v} = get({field.name!r}, default{number})")
        lines += _decode_lines(v, hint, default, names, number)
    if not takes_payload and issubclass(cls, Message):
        lines.append("    if payload is not None: diagnose(cls, m, payload)")
    lines = ["def decode(m, payload=None):", *lines, f"    return cls({', '.join(arguments)})"]
    return _build(lines, names, "decode")


def _decode_lines(v: str, hint: Any, default: Any, names: dict[str, Any], number: int) -> list[str]:
    """Statements that check ``v`` and make of it what the dataclass holds. ``m`` is the map it came from."""
    fault = "diagnose(cls, m, payload)"
    inner = optional_of(hint)
    if inner is not None:
        lines = _decode_lines(v, inner, default, names, number)
        return [f"    if {v} is not None:", *[f"    {line}" for line in lines]]
    if hint is int:
        lowest = -1 if default == -1 else 0
        return [f"    if type({v}) is not int or not {lowest} <= {v} <= MAX: {fault}"]
    if hint in (bool, str, bytes):
        return [f"    if type({v}) is not {hint.__name__}: {fault}"]
    if hint == dict[str, str]:
        names["texts"] = _is_texts
        return (
            [f"    if not texts({v}): {fault}", f"    if {v} is default{number}: {v} = {{}}"]
            if (default is not MISSING)
            else [f"    if not texts({v}): {fault}"]
        )
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        if item in (str, bytes, int):
            names["items"] = _items_of
            return [f"    {v} = items({v}, {item.__name__})", f"    if {v} is None: {fault}"]
        name = _decoder_name(item, names)
        return [
            f"    if type({v}) is list: {v} = tuple([{name}(i) for i in {v}])",
            f"    elif type({v}) is not tuple: {fault}",
        ]
    return [f"    {v} = {_decoder_name(hint, names)}({v})"]


def _decoder_name(hint: Any, names: dict[str, Any]) -> str:
    if not (is_dataclass(hint) and isinstance(hint, type)):
        raise TypeError(f"no decoding for {hint}")
    name = f"decode_{hint.__name__}"
    names[name] = _decoder(hint)
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
        raise _fault(f"{label}: not a map")
    missing = [
        field.name
        for field, hint in zip(fields(cls), hints(cls).values(), strict=True)
        if field.name not in m and default_of(field) is MISSING and not is_payload(hint)
    ]
    if missing:
        raise _fault(f"{label}: missing {', '.join(missing)}")
    for field, hint in zip(fields(cls), hints(cls).values(), strict=True):
        if field.name in m and not is_payload(hint) and not _fits(m[field.name], hint, default_of(field)):
            raise _fault(f"{label}: {field.name} is not {_describe(hint, default_of(field))}")
    raise _fault(f"{label}: takes no payload" if payload is not None else f"{label}: malformed")


def _fits(value: object, hint: Any, default: Any) -> bool:
    inner = optional_of(hint)
    if inner is not None:
        return value is None or _fits(value, inner, default)
    if hint is int:
        return type(value) is int and (-1 if default == -1 else 0) <= value <= MAX_INT
    if hint in (bool, str, bytes):
        return type(value) is hint
    if hint == dict[str, str]:
        return _is_texts(value)
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        return type(value) is list and all(_fits(i, item, MISSING) for i in value)
    return type(value) is dict


def _describe(hint: Any, default: Any) -> str:
    inner = optional_of(hint)
    if inner is not None:
        return f"{_describe(inner, default)} or null"
    if hint is int:
        return f"an integer from {-1 if default == -1 else 0} to 2**63-1"
    if hint == dict[str, str]:
        return "a map of texts"
    if typing.get_origin(hint) is tuple:
        return "an array of the right items"
    return {bool: "a boolean", str: "a text", bytes: "a byte string"}.get(hint, "a map")


def _collect(base: type[Message]) -> list[type[Message]]:
    return [c for c in vars(messages).values() if isinstance(c, type) and issubclass(c, base) and c is not base]


MESSAGES: tuple[type[Message], ...] = tuple(_collect(Message))
"""Every message class, requests and answers alike."""
OPS: dict[str, type[Message]] = {cls.OP: cls for cls in MESSAGES if cls.OP}
"""Class of each ``op``."""
assert len(OPS) == len([cls for cls in MESSAGES if cls.OP]), "two messages share an op"
