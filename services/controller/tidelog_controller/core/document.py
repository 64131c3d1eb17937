"""Values as CBOR documents and back, exactly: the form of a snapshot (Raft §7).

A dataclass is a map of its fields by name, a tuple an array, a dict a map in its own order; all else is itself. What
a field is follows from its annotation, so a new field needs nothing here; one that may be of several dataclasses is
the first of them that has all the fields of the document. Fields that a document lacks get their
defaults: it was written by an earlier version. A field that this version does not know is refused: a later one wrote
it, and what it means must not be dropped."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, TypeVar

T = TypeVar("T")

_PLAIN = (str, int, bool, bytes)
_ITSELF = (str, int, bytes, type(None))
_hints: dict[type, dict[str, Any]] = {}


def to_document(value: Any) -> Any:
    """``value`` as what CBOR knows."""
    if isinstance(value, _ITSELF):
        return value
    if isinstance(value, tuple | list):
        return [to_document(one) for one in value]
    if isinstance(value, dict):
        return {key: to_document(one) for key, one in value.items()}
    assert dataclasses.is_dataclass(value), type(value)
    return {field.name: to_document(getattr(value, field.name)) for field in dataclasses.fields(value)}


def from_document(kind: type[T], document: Any) -> T:
    """The value of that type. Raises ``ValueError`` where the document says something else."""
    value: T = _read(kind, document)
    return value


def _read(kind: Any, document: Any) -> Any:
    if type(document) is kind and kind in _PLAIN:
        return document
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return _read_union(arguments, document)
    if origin is tuple:
        return _read_tuple(kind, arguments, document)
    if origin is dict:
        if type(document) is not dict:
            raise ValueError(f"{document!r} is no map")
        return {_read(arguments[0], key): _read(arguments[1], one) for key, one in document.items()}
    if dataclasses.is_dataclass(kind):
        return _read_fields(kind, document)
    raise ValueError(f"{document!r} stands where {kind} belongs")


def _read_union(kinds: tuple[Any, ...], document: Any) -> Any:
    if document is None and type(None) in kinds:
        return None
    simple = [kind for kind in kinds if kind in _PLAIN and type(document) is kind]
    others = [kind for kind in kinds if kind is not type(None)]
    if len(others) > 1 and not simple and type(document) is dict:
        fit = (k for k in others if dataclasses.is_dataclass(k) and document.keys() <= _hints_of(k).keys())
        others = [*fit][:1]
    if not simple and len(others) != 1:
        raise ValueError(f"{document!r} is none of {kinds}")
    return _read(simple[0] if simple else others[0], document)


def _read_tuple(kind: Any, arguments: tuple[Any, ...], document: Any) -> tuple[Any, ...]:
    if type(document) is not list:
        raise ValueError(f"{document!r} is no array")
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple([_read(arguments[0], one) for one in document])
    if len(arguments) != len(document):
        raise ValueError(f"{len(document)} values where {kind} belongs")
    return tuple([_read(argument, one) for argument, one in zip(arguments, document, strict=True)])


def _hints_of(kind: Any) -> dict[str, Any]:
    if kind not in _hints:
        _hints[kind] = typing.get_type_hints(kind)
    return _hints[kind]


def _read_fields(kind: Any, document: Any) -> Any:
    if type(document) is not dict:
        raise ValueError(f"{document!r} is no {kind.__name__}")
    hints = _hints_of(kind)
    unknown = [name for name in document if name not in hints]
    if unknown:
        raise ValueError(f"{kind.__name__} has no {', '.join(map(str, unknown))}: a later version wrote it")
    try:
        return kind(**{name: _read(hints[name], value) for name, value in document.items()})
    except TypeError as error:
        raise ValueError(f"{kind.__name__}: {error}") from error
