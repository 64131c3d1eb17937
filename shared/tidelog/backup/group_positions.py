"""Positions of consumer groups in a topic: taken along, since a copy has the offsets of its source."""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.client.log import Log
from tidelog.errors import TidelogError
from tidelog.wire.messages import TopicInfo

Positions = dict[str, dict[int, int]]
"""Group -> partition -> offset of the next record."""


async def positions_in(log: Log, topic: TopicInfo) -> Positions:
    """Of every group that has come anywhere in it. Raises ``FORBIDDEN`` where one may not look into all groups."""
    found: Positions = {}
    for info in await log.groups.list():
        positions = await log.groups.fetch_offsets(info.group, topic.name)
        if positions:
            found[info.group] = {partition: at.offset for partition, at in sorted(positions.items())}
    return found


async def set_positions(log: Log, topic: TopicInfo, wanted: Positions, ends: Mapping[int, int]) -> dict[str, str]:
    """Have each group go on there, or at the end of what there is of the partition; never further back than it is.
    The groups that were refused, and why: one that has members moves by itself."""
    refused: dict[str, str] = {}
    for group, positions in sorted(wanted.items()):
        at = {partition: min(offset, ends.get(partition, 0)) for partition, offset in positions.items()}
        try:
            there = await log.groups.fetch_offsets(group, topic.name)
            ahead = {p: offset for p, offset in at.items() if p not in there or offset > there[p].offset}
            if ahead:
                await log.groups.reset(group, topic.name, ahead)
        except TidelogError as error:
            if error.retriable or error.code == "UNREACHABLE":
                raise
            refused[group] = str(error)
    return refused
