"""The bytes of commands in Raft entries and of a snapshot: ``golden/commands.json`` has those of earlier releases.

They never change. ``python test_command_bytes.py`` writes the line of a new command."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from support.timeline_cluster import cluster
from tidelog_controller.metadata.command_bytes import decode_command, encode_command
from tidelog_controller.metadata.commands import KINDS, Command
from tidelog_controller.metadata.state_machine import Replicated, decode_state, encode_state

GOLDEN = Path(__file__).parent / "golden" / "commands.json"


def filled(kind: Any, name: str) -> Any:
    """A value of this type that is no default."""
    if dataclasses.is_dataclass(kind):
        assert isinstance(kind, type)
        hints = get_type_hints(kind)
        return kind(**{one.name: filled(hints[one.name], one.name) for one in dataclasses.fields(kind)})
    if get_origin(kind) is tuple:
        return (filled(get_args(kind)[0], name),)
    if get_origin(kind) is dict:
        return {"key": f"{name} of key"}
    simple: dict[Any, Any] = {int: 1000 + len(name), bool: True, str: f"a {name}"}
    return simple[getattr(kind, "__value__", kind)]


def command_of(kind: type[Command]) -> Command:
    command = filled(kind, "")
    assert isinstance(command, Command)
    return command


def least(kind: type[Command]) -> Command:
    """The command with nothing but the fields that have no default."""
    hints = get_type_hints(kind)
    needed = [f for f in dataclasses.fields(kind) if f.default is f.default_factory is dataclasses.MISSING]
    return kind(**{one.name: filled(hints[one.name], one.name) for one in needed})


def state() -> Replicated:
    log = cluster()
    log.fence("r1")
    return Replicated(log.state)


def documents() -> dict[str, str]:
    written = {name: encode_command(command_of(kind)).hex() for name, kind in KINDS.items()}
    written |= {f"{name}, least": encode_command(least(kind)).hex() for name, kind in KINDS.items()}
    return written | {"snapshot": encode_state(state()).hex()}


@pytest.mark.parametrize("name", KINDS)
def test_a_command_is_written_and_read_as_ever(name: str) -> None:
    golden = json.loads(GOLDEN.read_text())
    for key, command in ((name, command_of(KINDS[name])), (f"{name}, least", least(KINDS[name]))):
        assert encode_command(command).hex() == golden[key], key
        assert decode_command(bytes.fromhex(golden[key])) == command, key


def test_a_snapshot_is_written_and_read_as_ever() -> None:
    golden = json.loads(GOLDEN.read_text())
    assert encode_state(state()).hex() == golden["snapshot"]
    assert decode_state(bytes.fromhex(golden["snapshot"])) == state()


def test_no_command_of_the_past_is_unknown() -> None:
    assert json.loads(GOLDEN.read_text()).keys() == documents().keys()


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(documents(), indent=1) + "\n")
