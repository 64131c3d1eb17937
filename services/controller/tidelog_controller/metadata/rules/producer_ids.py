"""Blocks of producer ids. No id is ever given twice."""

from __future__ import annotations

from tidelog.errors import TidelogError, refuse
from tidelog.feature_levels import RECOVERY
from tidelog.types import PRODUCER_IDS_END, SHARE_IDS, SHARES
from tidelog.wire.messages import AllocateProducerIds, ProducerIds

from tidelog_controller.metadata.changeset import ChangeSet
from tidelog_controller.metadata.commands import TakeProducerIds
from tidelog_controller.metadata.registry import applies
from tidelog_controller.metadata.rules.recovery import first_free_id, first_of_share
from tidelog_controller.metadata.state import MetadataState

MAX_PRODUCER_IDS = 1_000_000
"""Number of producer ids that one request may take at most."""


def plan_producer_ids(
    state: MetadataState, request: AllocateProducerIds, wall_ms: int
) -> TakeProducerIds | TidelogError:
    """Return the command that gives away a block of producer ids, all of the share that the request names, unless
    that is -1. A block that is given away at the same time can push this one out of its share; the gateway then asks
    again. Return the error ``INVALID_CONFIG`` for an invalid number or share, or if all ids are used up."""
    count, share = request.count, request.share
    if not 1 <= count <= MAX_PRODUCER_IDS:
        return refuse("INVALID_CONFIG", f"count is {count}; it must be 1 to {MAX_PRODUCER_IDS}")
    if share >= 0 and (share >= SHARES or count > SHARE_IDS):
        return refuse("INVALID_CONFIG", f"a share is below {SHARES}, and gives {SHARE_IDS} ids at a time")
    if state.level < RECOVERY:
        return TakeProducerIds(wall_ms, count)
    first = first_free_id(state.next_producer_id, wall_ms)
    if share >= 0:
        first = first_of_share(first, count, share)
    if first + count > PRODUCER_IDS_END:
        return refuse("INVALID_CONFIG", f"all producer ids below {PRODUCER_IDS_END} are used up")
    return TakeProducerIds(wall_ms, count, first)


@applies(TakeProducerIds)
def take_producer_ids(changes: ChangeSet, command: TakeProducerIds) -> ProducerIds:
    """Give away the next block of producer ids, and return its first id and the number of ids. No id of the block or
    below it is given away again."""
    first = max(changes.next_producer_id, command.first)
    changes.next_producer_id = first + command.count
    return ProducerIds(first, command.count)
