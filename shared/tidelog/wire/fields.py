"""The fields of dataclasses that are written as CBOR maps: what their annotations and defaults say.

``schema.py`` makes encoders and decoders from it; tests and generators of pages and of JavaScript read it, too."""

from __future__ import annotations

import types
import typing
from dataclasses import MISSING, Field, fields
from typing import Any

from tidelog.wire.messages import ABSENT, Message, Payload

MAX_INT = 2**63 - 1
"""Largest integer of the protocol."""


def typed_fields(cls: type) -> list[tuple[Field[Any], Any]]:
    """The fields of a class in the order in which they are written, each with its type, resolved. In a message,
    fields that can only be named follow all others, so that those of a base class do not come first."""
    resolved = typing.get_type_hints(cls)
    named_last = issubclass(cls, Message)
    ordered = sorted(fields(cls), key=lambda field: named_last and field.kw_only is True)
    return [(field, resolved[field.name]) for field in ordered]


def hints(cls: type) -> dict[str, Any]:
    """Field names of a class and their types, resolved."""
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


def is_later(field: Field[Any]) -> bool:
    """Whether ``tidelog.types.later`` declared the field: it came after version 0.1."""
    return bool(field.metadata.get("later"))
