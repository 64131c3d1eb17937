"""Commands as the data of Raft entries.

In an entry a command is one CBOR map: ``kind`` and the fields by name. A field that is as it is by default is left
out: so an earlier release, which may not know it, reads the entry as long as it says nothing new. Whether it may say
so is the feature level's to decide (``tidelog.feature_levels``); and no default ever changes.
"""

from __future__ import annotations

import dataclasses
import types
from typing import Any, get_args, get_origin, get_type_hints

import cbor2
from tidelog.types import later_fields

from tidelog_controller.metadata.commands import KINDS, Command


def encode_command(command: Command) -> bytes:
    """The command as the data of a Raft entry; never empty (empty is Raft's no-op)."""
    fields = ((known, getattr(command, known.name)) for known in dataclasses.fields(command))
    return cbor2.dumps(
        {"kind": command.KIND} | {f.name: _plain(value) for f, value in fields if value != _default(f)}
    )


def _default(known: dataclasses.Field[Any]) -> Any:
    return known.default if known.default_factory is dataclasses.MISSING else known.default_factory()


def decode_command(data: bytes) -> Command:
    """The command in a Raft entry. Raises ``ValueError`` for one that this release does not know: a controller
    must not skip what others apply."""
    values = cbor2.loads(data)
    kind = KINDS.get(values.pop("kind", ""))
    if kind is None:
        raise ValueError("the metadata log holds a command of a later release: upgrade this controller")
    command = _typed(kind, values)
    assert isinstance(command, Command)
    return command


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        later = later_fields(type(value))
        held = {known.name: getattr(value, known.name) for known in dataclasses.fields(value)}
        return {name: _plain(one) for name, one in held.items() if name not in later or one != later[name]}
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return value


_HINTS: dict[type, dict[str, Any]] = {}


def _typed(kind: Any, value: Any) -> Any:
    """``value`` as CBOR gave it, as the type that the field says."""
    if dataclasses.is_dataclass(kind):
        assert isinstance(kind, type)
        if kind not in _HINTS:
            _HINTS[kind] = get_type_hints(kind)
        hints = _HINTS[kind]
        if unknown := [name for name in value if name not in hints]:
            raise ValueError(
                f"{kind.__name__} has no {', '.join(unknown)}: a later release wrote it; upgrade this one"
            )
        return kind(**{name: _typed(hints[name], v) for name, v in value.items()})
    origin = get_origin(kind)
    if origin is tuple:
        return tuple(_typed(get_args(kind)[0], v) for v in value)
    expected = origin or kind
    if isinstance(kind, types.UnionType) or not isinstance(value, expected):
        raise ValueError(f"the metadata log holds {value!r} where {kind} belongs")
    return value
