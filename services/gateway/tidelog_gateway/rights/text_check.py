"""Checks that every text that a client sends is printable and bounded (``tidelog.printable``).

The text fields are found by the types of the message classes, so a new field is checked as well.
"""

from __future__ import annotations

import dataclasses
import typing
from functools import cache
from operator import attrgetter
from typing import Any

from tidelog.printable import MAX_NAME_BYTES, refuse_text
from tidelog.wire.fields import hints, optional_of
from tidelog.wire.messages import GroupPosition, Hello, Message

FREE = frozenset({(GroupPosition, "metadata"), (Hello, "token")})
"""Texts that are not checked here. Metadata of positions are only kept for clients, bounded by the coordinator of the
group, and escaped when shown. Tokens have a bound of their own."""
MAX_TOKEN_BYTES = 16 << 10
"""Tokens of an outside issuer may be long."""


def fault_of_texts(message: Message) -> str:
    """Return what is wrong with the texts of a client's message: the first that is not printable or too long; "" if
    nothing is. The name and token in a ``Hello`` have bounds of their own."""
    if isinstance(message, Hello):
        fault = refuse_text(message.node, "node", MAX_NAME_BYTES)
        fault = fault or refuse_text(message.token, "token", MAX_TOKEN_BYTES)
        if fault:
            return fault
    return _fault_of_texts(message)


def _fault_of_texts(part: Any) -> str:
    """Return what is wrong with the texts of a message or of one of its parts; "" if nothing is. This runs for every
    batch, so it avoids generators."""
    for name, kind, get in _fields(type(part)):  # type: ignore[arg-type]
        value = get(part)
        if not value:
            continue
        if kind is str:
            fault = refuse_text(value, name)
        elif kind is Message:
            parts = value if isinstance(value, tuple) else (value,)
            fault = next(filter(None, map(_fault_of_texts, parts)), "")
        else:
            texts = (*value, *value.values()) if kind is dict else value
            fault = next(filter(None, (refuse_text(text, name) for text in texts)), "")
        if fault:
            return fault
    return ""


@cache
def _fields(cls: type) -> tuple[tuple[str, type, Any], ...]:
    """Return the fields of a message class that hold texts, each as name, kind and getter. The kind is ``str``,
    ``dict``, ``tuple`` of texts, or ``Message`` for parts with texts of their own. The result is cached."""
    found: list[tuple[str, type, Any]] = []
    for name, declared in hints(cls).items():
        hint = optional_of(declared) or declared
        inner = typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else None
        kind: type | None = None
        if hint is str and (cls, name) not in FREE:
            kind = str
        elif hint == dict[str, str]:
            kind = dict
        elif inner is str:
            kind = tuple
        elif dataclasses.is_dataclass(hint) or (
            dataclasses.is_dataclass(inner) and _fields(typing.cast(type, inner))
        ):
            kind = Message
        if kind is not None:
            found.append((name, kind, attrgetter(name)))
    return tuple(found)
