"""Messages to bytes and back: a typed codec, made from the annotations in ``messages/``.

Theory. On the wire a message is a CBOR sequence (RFC 8742) of one or two items. The first is the header, a map with
text keys. The second, if the message has bulk bytes, is the payload, one definite byte string. Only the header passes
cbor2. ``encode`` returns ``(head, payload)``. ``head`` ends with the byte string's own head (RFC 8949 §3.1), so head
and payload sent one after the other are the whole message, and the payload is never copied here. ``decode`` reads the
header from a bounded prefix (``cbor.py``) and returns the payload as a view of the bytes that arrived.

Besides the message's own fields a header has these keys, which no message may use as field names: ``op`` (the class
of a request or one-way message), ``id`` (the number of a request), ``re`` (the number of the request that an answer
belongs to), and, in an answer, ``error``.

Everything that arrives is hostile until it is checked: strict CBOR first, then the fields (``wire/schema.py``).
Unknown keys are ignored, or, in requests of a client that has asked for that, refused (``strict``). A message that
cannot be decoded may still have an answer: ``wire/refused_messages.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

import cbor2

from tidelog.errors import TidelogError, from_info
from tidelog.types import Buffer
from tidelog.wire import messages
from tidelog.wire.cbor import array_head, bytes_head, load_prefix, map_head, read_bytes_item
from tidelog.wire.fields import MAX_INT
from tidelog.wire.messages import ErrorInfo, Message, Payload
from tidelog.wire.schema import STRICT, WIRE, malformed

Part = TypeVar("Part")
_encoder, _decoder = WIRE.encoder, WIRE.decoder


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of what a receiver accepts in a message from one kind of sender: the length of the header in bytes,
    and the number of CBOR items in the header."""

    header_bytes: int
    header_items: int


STRANGER = Limits(256 << 10, 1 << 14)
"""Limits for clients, and for every peer that has not sent a hello yet."""
SERVICE = Limits(512 << 10, 1 << 15)
"""Limits for services that have sent their hello. They are twice those of a stranger, because gateways add to what
strangers sent before they pass it on. A request about many partitions is split into requests of ``MAX_PARTS``."""
ANSWERS = Limits(16 << 20, 4 << 20)
"""Limits for messages of a server to an end that has connected to it. A header may be as long as a message, so that
metadata of 100,000 partitions with their offsets fit."""
MAX_PARTS = 1000
"""Most parts of a request from one service to another."""


def in_shares(parts: Sequence[Part]) -> Iterator[tuple[Part, ...]]:
    """Split the parts of a large request to another service: yield tuples of at most ``MAX_PARTS`` parts, in order,
    each for one request to send. Yields nothing if there are no parts."""
    for first in range(0, len(parts), MAX_PARTS):
        yield tuple(parts[first : first + MAX_PARTS])


@dataclass(frozen=True, slots=True)
class Decoded:
    """A message as it was decoded from received bytes: a request has ``op`` and ``id``, a one-way message ``op``, an
    answer ``re``. ``message`` is None if the ``op`` is unknown to this release, if no request of this end waits for
    the answer, or if the answer is an ``error``."""

    message: Message | None
    id: int | None = None
    re: int | None = None
    error: TidelogError | None = None
    op: str = ""


@dataclass(frozen=True, slots=True)
class EncodedAnswer(Message):
    """An answer whose fields are encoded already, so that a long answer can be encoded in steps, and many receivers
    can get the same bytes. ``keys`` is the number of fields; ``content`` is the CBOR of each key and its value, one
    after the other, as ``encode_fields`` and ``encode_array`` return it."""

    keys: int
    content: bytes


def encode_fields(**fields: object) -> bytes:
    """Return the CBOR of each field's key and value, one after the other: content of an ``EncodedAnswer``."""
    return b"".join([cbor2.dumps(key) + cbor2.dumps(value) for key, value in fields.items()])


def encode_array(name: str, items: Sequence[bytes]) -> bytes:
    """Return the CBOR of one field whose value is an array of parts that are encoded already: content of an
    ``EncodedAnswer``."""
    return b"".join([cbor2.dumps(name), array_head(len(items)), *items])


def encode_part(part: Any) -> bytes:
    """Return the CBOR of one part (a dataclass inside of a message), to be put into ``encode_array``."""
    return cbor2.dumps(to_map(part))


def encode(message: Message, *, id: int | None = None, re: int | None = None) -> tuple[bytes, Payload]:
    """Encode a request (with ``id``), an answer (with ``re``) or a one-way message (with neither). Return head and
    payload: their bytes, sent one after the other, are the message. The payload is not copied; it is b"" if the
    message has none."""
    if type(message) is EncodedAnswer:
        assert re is not None, "an answer needs re"
        return b"".join([map_head(message.keys + 1), encode_fields(re=re)]), [message.content]
    header, payload = _encoder(type(message))(message, id, re)
    head = cbor2.dumps(header)
    if payload:
        size = payload_size(payload)
        if size:
            return head + bytes_head(size), payload
    return head, b""


def encode_error(re: int, error: TidelogError) -> bytes:
    """Return the bytes of the error answer to request ``re``."""
    return cbor2.dumps({"re": re, "error": _encoder(ErrorInfo)(error.to_info())})


def decode(
    data: bytes | bytearray,
    *,
    answers: Callable[[int], type[Message] | None],
    limits: Limits = STRANGER,
    strict: bool = False,
) -> Decoded:
    """Decode one whole WebSocket message. ``answers`` maps the number of a request of this end to the class of its
    answer, or to None if nothing waits for it. The payload of the result is a view of ``data``. Raises
    ``ProtocolError`` if the bytes are no valid message or exceed ``limits``, and with ``strict`` if a request or
    one-way message has a key that this release does not know; the error's detail ``close_code`` is the WebSocket
    close code for the peer."""
    header, position = load_prefix(data, limits.header_bytes, limits.header_items)
    if type(header) is not dict:
        raise malformed("the header is no map")
    payload = read_bytes_item(data, position) if position < len(data) else None
    re = header.get("re")
    if re is not None:
        return _decode_answer(header, payload, re, answers)
    op = header.get("op")
    if type(op) is not str:
        raise malformed("the header has neither op nor re")
    id = header.get("id")
    if id is not None and (type(id) is not int or not 0 <= id <= MAX_INT):
        raise malformed("id is not an integer from 0 to 2**63-1")
    cls = _ops.get(op) or _class_of(op)
    if cls is None:
        return Decoded(None, id, op=op)
    if (id is None) is not (cls.ANSWER is None):
        raise malformed(f"{op} {'needs an id' if id is None else 'takes no id'}")
    decoder = STRICT.decoder if strict else _decoder
    return Decoded(decoder(cls)(header, payload), id, op=op)


def payload_size(payload: Payload) -> int:
    """Return the length of a message's payload in bytes; the payload may be one buffer or several."""
    if type(payload) is list:
        return sum([part.nbytes if type(part) is memoryview else len(part) for part in payload])
    return payload.nbytes if type(payload) is memoryview else len(payload)


def payload_buffers(payload: Payload) -> list[Buffer]:
    """Return the payload of a message as a list of buffers, without a copy; an empty list if it has no bytes."""
    if isinstance(payload, list):
        return payload
    return [payload] if len(payload) else []


def payload_view(payload: Payload) -> memoryview:
    """Return the payload of a message as one view. The bytes are copied only if the payload is a list of buffers."""
    if isinstance(payload, list):
        return memoryview(b"".join(payload))
    return memoryview(payload)


def to_map(part: Any) -> dict[str, Any]:
    """Return a part of a message, or any dataclass with the same types of fields, as the map that is encoded for
    it."""
    return WIRE.to_map(part)


def from_map(cls: type[Part], content: object) -> Part:
    """Return an instance of the dataclass ``cls`` with the fields of a decoded map. Raises ``ProtocolError`` if a
    field is missing or has a wrong type."""
    return WIRE.from_map(cls, content)


def _decode_answer(
    header: dict[Any, Any], payload: memoryview | None, re: object, answers: Callable[[int], type[Message] | None]
) -> Decoded:
    """Decode the header and payload of an answer to request ``re``, which may be an error. Raises
    ``ProtocolError``."""
    if type(re) is not int or not 0 <= re <= MAX_INT:
        raise malformed("re is not an integer from 0 to 2**63-1")
    error = header.get("error")
    if error is not None:
        return Decoded(None, re=re, error=from_info(_decoder(ErrorInfo)(error)))
    cls = answers(re)
    if cls is None:
        return Decoded(None, re=re)
    return Decoded(_decoder(cls)(header, payload), re=re)


_ops: dict[str, type[Message]] = {}
_unread = list(messages.MODULES)
"""The modules whose ops are not in ``_ops`` yet."""
MESSAGES: tuple[type[Message], ...]
"""All message classes, by module and name: requests, one-way messages and answers. Made when it is first used."""
OPS: dict[str, type[Message]]
"""Message class of each ``op``. Made when it is first used."""


def _class_of(op: str) -> type[Message] | None:
    """Return the message class of an ``op``; None if there is none. Modules of messages are imported one after the
    other until one has it."""
    while _unread and op not in _ops:
        for one in vars(import_module(f"{messages.__name__}.{_unread.pop(0)}")).values():
            if isinstance(one, type) and issubclass(one, Message) and one.OP:
                assert _ops.setdefault(one.OP, one) is one, f"two messages share the op {one.OP}"
    return _ops.get(op)


def know_all_messages() -> None:
    """Import the modules of all messages. A port does so before it opens, so that no peer has to wait for it."""
    _class_of("")


def __getattr__(name: str) -> Any:
    if name not in ("MESSAGES", "OPS"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    know_all_messages()
    found = [getattr(messages, one) for one in messages.__all__]
    kinds = [one for one in found if isinstance(one, type) and issubclass(one, Message) and one not in messages.BASES]
    kinds.sort(key=lambda one: (one.__module__, one.__name__.lower()))
    globals().update(OPS=_ops, MESSAGES=tuple(kinds))
    return globals()[name]
