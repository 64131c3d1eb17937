"""Answers to messages that cannot be decoded, so that one bad request does not end a connection.

Theory. WebSocket keeps the borders of messages, so a message that cannot be decoded says nothing about those behind
it. What the peer waits for is an answer to its number:

- A *request* whose ``op`` and ``id`` can be read is answered with an error. They can be read if the header is a map
  in CBOR; or else, if they are among the entries with which the header begins, before the first value that is neither
  a text nor an integer.
- The batches of a *produce* message have a number each. A part that cannot be decoded is refused with an ack; the
  others are appended, if each part says how many bytes of the payload are its own. Otherwise all parts are refused.
- For everything else nobody waits, or nobody knows for what: the connection is closed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidelog.errors import ProtocolError, TidelogError, refuse
from tidelog.types import Buffer
from tidelog.wire.cbor import leading_entries, load_prefix, read_bytes_item
from tidelog.wire.codec import Limits
from tidelog.wire.fields import MAX_INT
from tidelog.wire.messages import Produce, ProduceAck, Produced, ProducePart
from tidelog.wire.schema import STRICT, WIRE, unknown_keys


@dataclass(frozen=True, slots=True)
class RefusedRequest:
    """A request that cannot be decoded: its operation and number, and the error to answer with."""

    op: str
    id: int
    error: TidelogError


@dataclass(frozen=True, slots=True)
class RefusedBatches:
    """A produce message of which some batches, or all, are refused: the acks of these, and the message without them;
    None if nothing is left."""

    acks: Produced
    rest: Produce | None
    op: str = Produce.OP


def refusal_of(
    data: bytes | bytearray, fault: ProtocolError, limits: Limits, *, strict: bool
) -> RefusedRequest | RefusedBatches | None:
    """Return what is refused of a message for which ``decode`` has raised ``fault``, given the arguments of that
    call. None if there is no number to answer to, so that the connection has to be closed."""
    header: dict[Any, Any] = {}
    payload: Buffer | None = None
    try:
        whole, position = load_prefix(data, limits.header_bytes, limits.header_items)
        header = whole if type(whole) is dict else {}
        payload = read_bytes_item(data, position) if position < len(data) else b""
    except ProtocolError:
        header = header or dict(leading_entries(data))
    op, number = header.get("op"), header.get("id")
    if type(op) is not str or "re" in header:
        return None
    if type(number) is int and _is_number(number):
        return RefusedRequest(op, number, _answer(fault))
    if op == Produce.OP and "id" not in header:
        return _refuse_batches(header, payload, fault, strict=strict)
    return None


def _refuse_batches(
    header: dict[Any, Any], payload: Buffer | None, fault: ProtocolError, *, strict: bool
) -> RefusedBatches | None:
    """Return the acks of the refused batches of a produce message, and the message with the others. ``payload`` is
    None if it cannot be read. Returns None if the number of a part cannot be read."""
    parts = header.get("parts")
    if type(parts) is not list or not all(type(part) is dict and _is_number(part.get("id")) for part in parts):
        return None
    decode = (STRICT if strict else WIRE).decoder(ProducePart)
    unknown = [str(key) for key in header if key not in ("op", "parts")] if strict else []
    if unknown:
        fault = unknown_keys(Produce.OP, unknown)
    is_divided = payload is not None and not unknown and all(_is_number(part.get("size")) for part in parts)
    acks, kept, batches, position = [], [], [], 0
    for part in parts:
        try:
            decoded, why = decode(part), None if is_divided else fault
        except ProtocolError as error:
            decoded, why = None, error
        if is_divided and payload is not None:
            batch = payload[position : position + part["size"]]
            position += part["size"]
            if why is None:
                kept.append(decoded)
                batches.append(batch)
        if why is not None:
            acks.append(ProduceAck(part["id"], error=_answer(why).to_info()))
    if not acks:
        return None
    return RefusedBatches(Produced(tuple(acks)), Produce(tuple(kept), b"".join(batches)) if kept else None)


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_INT


def _answer(fault: ProtocolError) -> TidelogError:
    """Return a fault as the error that its sender gets: without the close code, since nothing is closed."""
    answer = refuse(fault.code, fault.message)
    answer.detail = {key: value for key, value in fault.detail.items() if key != "close_code"}
    return answer
