"""Copies the positions of consumer groups in a topic. A copy of a topic has the offsets of its source, so the
positions are valid in it."""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.client.log import Log
from tidelog.errors import TidelogError
from tidelog.wire.messages import TopicInfo

Positions = dict[str, dict[int, int]]
"""Group -> partition -> offset of the next record."""


async def positions_in(log: Log, topic: TopicInfo) -> Positions:
    """Request the committed positions of every group in a topic, and return them by group and partition; groups
    without a position in the topic are left out. Raises ``FORBIDDEN`` without the right to describe all groups."""
    found: Positions = {}
    for info in await log.groups.list():
        positions = await log.groups.fetch_offsets(info.group, topic.name)
        if positions:
            found[info.group] = {partition: at.offset for partition, at in sorted(positions.items())}
    return found


async def set_positions(log: Log, topic: TopicInfo, wanted: Positions, ends: Mapping[int, int]) -> dict[str, str]:
    """Set the positions of each group in a topic: at most to the ends of the partitions, and never further back than
    they are. Returns each group that the cluster refused, with the reason: for example that the group has members,
    which alone set its positions. Raises errors that may pass."""
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
