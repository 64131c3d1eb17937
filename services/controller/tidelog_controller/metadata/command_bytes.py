"""Commands as the data of Raft entries.

In an entry a command is one CBOR map: ``kind`` and the fields by name. A field that is as it is by default is left
out: so an earlier release, which may not know it, reads the entry as long as it says nothing new. Whether it may say
so is the feature level's to decide (``tidelog.feature_levels``); and no default ever changes. A part of a command is
written as in a snapshot (``STORED`` of ``tidelog.wire.schema``).
"""

from __future__ import annotations

import cbor2
from tidelog.wire.fields import is_later
from tidelog.wire.schema import Schema

from tidelog_controller.metadata.commands import KINDS, Command

COMMANDS = Schema(
    ValueError,
    lambda cls, field: issubclass(cls, Command) or is_later(field),
    ignores_unknown=False,
    bounds_integers=False,
)


def encode_command(command: Command) -> bytes:
    """The command as the data of a Raft entry; never empty (empty is Raft's no-op)."""
    return cbor2.dumps({"kind": command.KIND} | COMMANDS.to_map(command))


def decode_command(data: bytes) -> Command:
    """The command in a Raft entry. Raises ``ValueError`` for one that this release does not know: a controller
    must not skip what others apply."""
    values = cbor2.loads(data)
    kind = KINDS.get(values.pop("kind", ""))
    if kind is None:
        raise ValueError("the metadata log holds a command of a later release: upgrade this controller")
    return COMMANDS.from_map(kind, values)
