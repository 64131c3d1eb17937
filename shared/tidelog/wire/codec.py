"""Messages to bytes and back: a typed codec, made from the annotations in ``messages/``.

Theory. On the wire a message is a CBOR sequence (RFC 8742) of one or two items: a map with text keys, the
header, and, when the message has bulk bytes, one definite byte string, the payload. Only the header passes
cbor2. ``encode`` answers ``(head, payload)``, where ``head`` ends with the byte string's own head (RFC 8949
§3.1), so that head and payload sent one after the other are the whole message and the payload is never copied
here. ``decode`` reads the header from a bounded prefix (``cbor.py``) and hands out the payload as a view of what
arrived.

Besides the message's own fields a header has these keys, which no message may use as field names: ``op`` (which
class), ``id`` (a request's number), ``re`` (an answer's), and on an answer ``error``.

Everything that arrives is hostile until checked: strict CBOR first, then the fields (``wire/schema.py``). Unknown
keys are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import cbor2

from tidelog.errors import TidelogError, from_info
from tidelog.types import Buffer
from tidelog.wire import messages
from tidelog.wire.cbor import array_head, bytes_head, load_prefix, map_head, read_bytes_item
from tidelog.wire.fields import MAX_INT
from tidelog.wire.messages import ErrorInfo, Message, Payload
from tidelog.wire.schema import WIRE, fault

Part = TypeVar("Part")
_encoder, _decoder = WIRE.encoder, WIRE.decoder


@dataclass(frozen=True, slots=True)
class Limits:
    """What a receiver takes. ``header_bytes``: longest header; ``header_items``: most CBOR items in it."""

    header_bytes: int
    header_items: int


STRANGER = Limits(256 << 10, 1 << 14)
"""For clients, and for everybody who has not said hello."""
SERVICE = Limits(512 << 10, 1 << 15)
"""For services that have said hello: twice a stranger's, since gateways pass on what strangers sent and add to it.
Whoever asks about many partitions asks ``MAX_PARTS`` at a time."""
ANSWERS = Limits(4 << 20, 1 << 20)
"""For what comes from a server that this end has connected to: metadata of 10,000 partitions fits."""
MAX_PARTS = 1000
"""Most parts of a request from one service to another."""


def in_shares(parts: Sequence[Part]) -> Iterator[tuple[Part, ...]]:
    """The parts of requests from one service to another: ``MAX_PARTS`` for each."""
    for first in range(0, len(parts), MAX_PARTS):
        yield tuple(parts[first : first + MAX_PARTS])


@dataclass(frozen=True, slots=True)
class Decoded:
    """What arrived. ``message`` is None when there is none that this version knows: an unknown ``op``, an answer
    nobody waits for, or an error answer (``re`` and ``error`` are then set)."""

    message: Message | None
    id: int | None = None
    re: int | None = None
    error: TidelogError | None = None
    op: str = ""


@dataclass(frozen=True, slots=True)
class EncodedAnswer(Message):
    """An answer whose fields are encoded already: what is long is encoded a part at a time, and many may be sent the
    same bytes. ``keys``: how many fields; ``content``: their keys and values in turn, each field as CBOR."""

    keys: int
    content: bytes


def encode_fields(**fields: object) -> bytes:
    """Keys and values of some fields of an ``EncodedAnswer``."""
    return b"".join([cbor2.dumps(key) + cbor2.dumps(value) for key, value in fields.items()])


def encode_array(name: str, items: Sequence[bytes]) -> bytes:
    """A field of an ``EncodedAnswer`` that is an array of parts, each of them encoded already."""
    return b"".join([cbor2.dumps(name), array_head(len(items)), *items])


def encode_part(part: Any) -> bytes:
    """A part by itself."""
    return cbor2.dumps(to_map(part))


def encode(message: Message, *, id: int | None = None, re: int | None = None) -> tuple[bytes, Payload]:
    """A request (``id``), answer (``re``) or one-way message as head and payload; send one after the other."""
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
        raise fault("the header is no map")
    payload = read_bytes_item(data, position) if position < len(data) else None
    re = header.get("re")
    if re is not None:
        return _decode_answer(header, payload, re, answers)
    op = header.get("op")
    if type(op) is not str:
        raise fault("the header has neither op nor re")
    id = header.get("id")
    if id is not None and (type(id) is not int or not 0 <= id <= MAX_INT):
        raise fault("id is not an integer from 0 to 2**63-1")
    cls = OPS.get(op)
    if cls is None:
        return Decoded(None, id, op=op)
    if (id is None) is not (cls.ANSWER is None):
        raise fault(f"{op} {'needs an id' if id is None else 'takes no id'}")
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
    """A part (any dataclass whose fields have the types of ``messages``) as the map that it is on the wire."""
    return WIRE.to_map(part)


def from_map(cls: type[Part], content: object) -> Part:
    """The part that a decoded map holds. Raises ``ProtocolError``."""
    return WIRE.from_map(cls, content)


def _decode_answer(
    header: dict[Any, Any], payload: memoryview | None, re: object, answers: Callable[[int], type[Message] | None]
) -> Decoded:
    if type(re) is not int or not 0 <= re <= MAX_INT:
        raise fault("re is not an integer from 0 to 2**63-1")
    error = header.get("error")
    if error is not None:
        return Decoded(None, re=re, error=from_info(_decoder(ErrorInfo)(error)))
    cls = answers(re)
    if cls is None:
        return Decoded(None, re=re)
    return Decoded(_decoder(cls)(header, payload), re=re)


def _collect() -> list[type[Message]]:
    found = [c for c in vars(messages).values() if isinstance(c, type) and issubclass(c, Message)]
    return [c for c in found if c not in messages.BASES]


MESSAGES: tuple[type[Message], ...] = tuple(_collect())
"""Every message class, requests and answers alike."""
OPS: dict[str, type[Message]] = {cls.OP: cls for cls in MESSAGES if cls.OP}
"""Class of each ``op``."""
assert len(OPS) == len([cls for cls in MESSAGES if cls.OP]), "two messages share an op"
