"""Values as CBOR documents and back, exactly: the form of a snapshot (Raft §7).

A dataclass is a map of its fields by name, a tuple an array, a dict a map in its own order; all else is itself. What
a field is follows from its annotation, so a new field needs nothing here; one that may be of several dataclasses is
the first of them that has all the fields of the document. Fields that a document lacks get their
defaults: it was written by an earlier version. A field that this version does not know is refused: a later one wrote
it, and what it means must not be dropped. A field that ``tidelog.types.later`` declares is left out while it has its
default: an earlier version reads the document until the field is used."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar

from tidelog.types import later_fields

T = TypeVar("T")
Reader = Callable[[Any], Any]

_PLAIN = (str, int, bool, bytes)
_readers: dict[Any, Reader] = {}
"""What reads each annotation; made once."""
_fields: dict[type, tuple[tuple[str, ...], dict[str, Any]]] = {}
"""Of each dataclass that was written: the fields that are always there, and the later ones with their defaults."""


def to_document(value: Any) -> Any:
    """``value`` as what CBOR knows."""
    kind = type(value)
    if kind in _PLAIN or value is None:
        return value
    known = _fields.get(kind)
    if known is not None:
        names, later = known
        document = {name: to_document(getattr(value, name)) for name in names}
        for name, default in later.items():
            if (one := getattr(value, name)) != default:
                document[name] = to_document(one)
        return document
    if isinstance(value, tuple | list):
        return [to_document(one) for one in value]
    if isinstance(value, dict):
        return {key: to_document(one) for key, one in value.items()}
    if isinstance(value, _PLAIN):
        return value
    assert dataclasses.is_dataclass(value), kind
    later = later_fields(kind)
    _fields[kind] = tuple(field.name for field in dataclasses.fields(value) if field.name not in later), later
    return to_document(value)


def from_document(kind: type[T], document: Any) -> T:
    """The value of that type. Raises ``ValueError`` where the document says something else."""
    value: T = _reader(kind)(document)
    return value


def _reader(kind: Any) -> Reader:
    if kind not in _readers:
        _readers[kind] = _make_reader(kind)
    return _readers[kind]


def _make_reader(kind: Any) -> Reader:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return _of_union(arguments)
    if origin is tuple:
        return _of_tuple(kind, arguments)
    if origin is dict:
        return _of_dict(arguments)
    if dataclasses.is_dataclass(kind):
        return _of_fields(kind)

    def read(document: Any) -> Any:
        if type(document) is not kind or kind not in _PLAIN:
            raise ValueError(f"{document!r} stands where {kind} belongs")
        return document

    return read


def _of_union(kinds: tuple[Any, ...]) -> Reader:
    simple = [kind for kind in kinds if kind in _PLAIN]
    others = [kind for kind in kinds if kind is not type(None)]
    several = {kind: typing.get_type_hints(kind).keys() for kind in others if dataclasses.is_dataclass(kind)}

    def read(document: Any) -> Any:
        if document is None and type(None) in kinds:
            return None
        if type(document) in simple:
            return document
        fit = others
        if len(others) > 1 and type(document) is dict:
            fit = [kind for kind, names in several.items() if document.keys() <= names][:1]
        if len(fit) != 1:
            raise ValueError(f"{document!r} is none of {kinds}")
        return _reader(fit[0])(document)

    return read


def _of_tuple(kind: Any, arguments: tuple[Any, ...]) -> Reader:
    alike = len(arguments) == 2 and arguments[1] is Ellipsis
    readers = [_reader(one) for one in arguments[: 1 if alike else None]]

    def read(document: Any) -> tuple[Any, ...]:
        if type(document) is not list:
            raise ValueError(f"{document!r} is no array")
        if alike:
            return tuple(map(readers[0], document))
        if len(arguments) != len(document):
            raise ValueError(f"{len(document)} values where {kind} belongs")
        return tuple([reader(one) for reader, one in zip(readers, document, strict=True)])

    return read


def _of_dict(arguments: tuple[Any, ...]) -> Reader:
    key_of, value_of = map(_reader, arguments)

    def read(document: Any) -> dict[Any, Any]:
        if type(document) is not dict:
            raise ValueError(f"{document!r} is no map")
        return {key_of(key): value_of(one) for key, one in document.items()}

    return read


def _of_fields(kind: Any) -> Reader:
    hints = typing.get_type_hints(kind)
    readers: dict[str, Reader] = {}

    def read(document: Any) -> Any:
        if type(document) is not dict:
            raise ValueError(f"{document!r} is no {kind.__name__}")
        unknown = [name for name in document if name not in hints]
        if unknown:
            raise ValueError(f"{kind.__name__} has no {', '.join(map(str, unknown))}: a later version wrote it")
        if not readers:  # not earlier: a type may be of itself
            readers.update({name: _reader(hint) for name, hint in hints.items()})
        try:
            return kind(**{name: readers[name](value) for name, value in document.items()})
        except TypeError as error:
            raise ValueError(f"{kind.__name__}: {error}") from error

    return read
