"""The fields of dataclasses that are written as CBOR maps: what their annotations and defaults say.

``schema.py`` makes encoders and decoders from this; tests, and generators of pages and of JavaScript, read it, too.
"""

from __future__ import annotations

import types
import typing
from dataclasses import MISSING, Field, fields
from typing import Any

from tidelog.wire.messages import ABSENT, Message, Payload

MAX_INT = 2**63 - 1
"""Largest integer of the protocol."""


def typed_fields(cls: type) -> list[tuple[Field[Any], Any]]:
    """Return the fields of a dataclass in the order in which they are encoded, each with its resolved type. In a
    message, keyword-only fields come after all others, so that those of a base class do not come first."""
    resolved = typing.get_type_hints(cls)
    named_last = issubclass(cls, Message)
    ordered = sorted(fields(cls), key=lambda field: named_last and field.kw_only is True)
    return [(field, resolved[field.name]) for field in ordered]


def hints(cls: type) -> dict[str, Any]:
    """Return the resolved type of each field of a dataclass, by the field's name."""
    return {field.name: hint for field, hint in typed_fields(cls)}


def is_payload(hint: Any) -> bool:
    """Return whether a field's type is ``Payload``: the bulk bytes of a message, which are not part of its header."""
    return bool(hint == Payload)


def optional_of(hint: Any) -> Any | None:
    """Return ``X`` for a type ``X | None``, and None for every other type."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        some = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        if len(some) == 1 and len(typing.get_args(hint)) == 2:
            return some[0]
    return None


def default_of(field: Field[Any]) -> Any:
    """Return the value that a field has if it is absent in the map; ``MISSING`` if the field is required."""
    if ABSENT in field.metadata:
        return field.metadata[ABSENT]
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default


def lowest_of(field: Field[Any]) -> int:
    """Return the least value that an integer field may have on the wire: -1 if its default is -1, else 0."""
    return -1 if default_of(field) == -1 else 0


def is_later(field: Field[Any]) -> bool:
    """Return whether a field was added after version 0.1, that is, declared with ``tidelog.types.later``."""
    return bool(field.metadata.get("later"))
