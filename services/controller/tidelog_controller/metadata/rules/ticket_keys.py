"""The keys that sign tickets for producer ids (``tidelog.tickets``): how the cluster gets its first, and rotation.

The secret of a key is random, so the active controller draws it and the command carries it. The id of a key is the
index of its command: it rises with every key, also over a rescue, which lets the index jump. The first key comes with
whatever command is the first at feature level ``TICKETS``, the one that raises the level included: so there is no
moment at that level without a key.
"""

from __future__ import annotations

from dataclasses import replace

from tidelog.errors import TidelogError, refuse
from tidelog.feature_levels import TICKETS
from tidelog.tickets import KEYS, SECRET_BITS, successor
from tidelog.types import TicketKey
from tidelog.wire.messages import Done, RotateTicketKeys

from tidelog_controller.metadata.changeset import ChangeSet
from tidelog_controller.metadata.commands import AddTicketKey, Command, SetLevel
from tidelog_controller.metadata.registry import applies
from tidelog_controller.metadata.rules.placement import Random
from tidelog_controller.metadata.state import MetadataState


def new_secret(rng: Random) -> str:
    """Return a new random secret for a ticket key, as hexadecimal digits."""
    return f"{rng.getrandbits(SECRET_BITS):0{SECRET_BITS // 4}x}"


def with_first_key(state: MetadataState, command: Command, rng: Random) -> Command:
    """Return a copy of the command that carries the secret of the cluster's first ticket key, if the cluster has no
    key and is at feature level ``TICKETS`` once the command is applied. Otherwise return the command unchanged."""
    level = max(state.level, command.level, command.to if isinstance(command, SetLevel) else 0)
    return replace(command, ticket_key=new_secret(rng)) if level >= TICKETS and not state.ticket_keys else command


def plan_rotation(
    state: MetadataState, request: RotateTicketKeys, rng: Random, wall_ms: int
) -> AddTicketKey | TidelogError:
    """Return the command that adds a ticket key with a new random secret, or the error ``UNSUPPORTED_LEVEL`` below
    feature level ``TICKETS``."""
    if state.level < TICKETS:
        text = f"there are tickets from feature level {TICKETS} on; the cluster is at {state.level}"
        return refuse("UNSUPPORTED_LEVEL", f"{text}: raise it ('tidelog features raise')", level=state.level)
    return AddTicketKey(wall_ms, new_secret(rng))


def keys_after_rescue(keys: tuple[TicketKey, ...], index: int) -> tuple[TicketKey, ...]:
    """Return the ticket keys of a rescued survivor as they are from entry ``index`` on: its own keys, and a new one
    whose id is greater than that of any key that the lost controllers have made. At most ``KEYS`` are kept, the
    newest ones. An empty tuple if the survivor had no key."""
    return (*keys, successor(keys[-1], index))[-KEYS:] if keys else ()


def add_first_key(changes: ChangeSet, command: Command) -> None:
    """Add the ticket key that a command carries to the cluster. Does nothing if the command carries none, if the
    cluster has a key already, or below feature level ``TICKETS``."""
    if command.ticket_key and changes.level >= TICKETS and not changes.ticket_keys:
        changes.ticket_keys = (TicketKey(changes.index, command.ticket_key),)


@applies(AddTicketKey)
def add_key(changes: ChangeSet, command: AddTicketKey) -> Done:
    """Add the key in the command, with which tickets are signed from now on. If there are more than ``KEYS`` keys
    then, the oldest is dropped. The event ``ticket_keys_rotated`` is recorded. Always returns ``Done``."""
    changes.ticket_keys = (*changes.ticket_keys, TicketKey(changes.index, command.secret))[-KEYS:]
    changes.record_event("ticket_keys_rotated", "operator", {"key_id": str(changes.index)}, None, None)
    return Done()
