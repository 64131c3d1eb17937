"""Positions of consumer groups in a topic. They are copied, too, since a copy has the offsets of its source."""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.client.log import Log
from tidelog.errors import TidelogError
from tidelog.wire.messages import TopicInfo

Positions = dict[str, dict[int, int]]
"""Group -> partition -> offset of the next record."""


async def positions_in(log: Log, topic: TopicInfo) -> Positions:
    """Return the positions of every group in the topic. Raises ``FORBIDDEN`` without the right to describe all
    groups."""
    found: Positions = {}
    for info in await log.groups.list():
        positions = await log.groups.fetch_offsets(info.group, topic.name)
        if positions:
            found[info.group] = {partition: at.offset for partition, at in sorted(positions.items())}
    return found


async def set_positions(log: Log, topic: TopicInfo, wanted: Positions, ends: Mapping[int, int]) -> dict[str, str]:
    """Set the position of each group, at most to the end of the partition and never further back than it is. Return
    the groups that were refused, and why: the position of a group with members is its own."""
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
