"""The tools that read consumer groups."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import trio
from pydantic import BaseModel, Field

from tidelog.cli.mcp.tool import Answer, Tool, clock
from tidelog.errors import TidelogError

if TYPE_CHECKING:
    from tidelog.client.admin.groups import GroupProgress
    from tidelog.client.log import Log

MOST_GROUPS = 200
"""Most groups of one list."""
MOST_LAGS = 50
"""Most groups of one list whose lag is asked for."""
LAGS_S = 15.0
"""Longest time that asking for the lags of a list may take, in seconds."""
MOST_DATED = 32
"""Most partitions of a group for which the oldest unread record is read."""
DATED_S = 10.0
"""Longest time that reading those records may take, in seconds."""


class ListGroups(BaseModel, extra="forbid"):
    """Arguments of ``list_groups``."""

    name_contains: str = Field("", description="Only groups whose name contains this text.")


class GroupSummary(BaseModel):
    """One consumer group in a list."""

    group: str
    state: str
    members: int
    lag: int | None = Field(description="Offsets that it has not processed; null: not known.")


class GroupList(BaseModel):
    """Data of ``list_groups``."""

    groups: list[GroupSummary] = Field(
        description=f"Those that lag most come first. Only the first {MOST_LAGS} by name are asked for their lag."
    )


async def list_groups(log: Log, given: ListGroups) -> Answer:
    """List the consumer groups, those that lag most first."""
    found = [group for group in await log.groups.list() if given.name_contains in group.group]
    lags = await _lags(log, [group.group for group in found[:MOST_LAGS]])
    rows = [
        GroupSummary(group=one.group, state=one.state, members=one.members, lag=lags.get(one.group)) for one in found
    ]
    rows.sort(key=lambda row: -(row.lag or 0))
    behind = sum(bool(row.lag) for row in rows)
    left_out = {"groups": len(rows) - MOST_GROUPS} if len(rows) > MOST_GROUPS else {}
    not_asked = max(0, len(found) - MOST_LAGS)
    unknown = sum(row.lag is None for row in rows) - not_asked
    summary = f"{len(rows)} consumer groups; {behind} have records that they have not processed."
    if not_asked:
        summary += (
            f" Only the first {MOST_LAGS} by name were asked for their lag, and {not_asked} were not, which may lag"
            " more: give name_contains, or call 'describe_group' for one."
        )
    if unknown:
        summary += f" The lag of {unknown} is not known: call 'describe_group' for one."
    return Answer(summary, GroupList(groups=rows[:MOST_GROUPS]), left_out, "Give name_contains.")


async def _lags(log: Log, groups: list[str]) -> dict[str, int]:
    """Ask how far these groups are, all at the same time, and return the offsets that each has not processed. A group
    is left out if that is not known after ``LAGS_S``: a partition without a leader keeps its answer waiting."""
    found: dict[str, int] = {}

    async def ask(group: str) -> None:
        try:
            found[group] = sum(one.lag for one in await log.groups.progress(group) if one.lag >= 0)
        except TidelogError:  # deleted meanwhile, or hidden from the caller
            return

    with trio.move_on_after(LAGS_S):
        async with trio.open_nursery() as nursery:
            for group in groups:
                nursery.start_soon(ask, group)
    return found


class DescribeGroup(BaseModel, extra="forbid"):
    """Arguments of ``describe_group``."""

    group: str = Field(description="Name of the consumer group.")


class MemberDescription(BaseModel):
    """One member of a group."""

    member: str
    instance: str | None
    program: str
    partitions: list[str]
    away: bool = Field(description="A static member that is away; it keeps its partitions for its session time-out.")


class PartitionProgress(BaseModel):
    """How far a group is in one partition."""

    topic: str
    partition: int
    member: str | None = Field(description="Who has the partition; null: nobody.")
    position: int | None
    high_watermark: int | None
    lag: int | None
    last_commit: str | None
    behind_since: str | None = Field(description="Time of the oldest record that is not processed.")


class GroupDescription(BaseModel):
    """Data of ``describe_group``."""

    group: str
    state: str
    generation: int
    coordinator: str
    members: list[MemberDescription]
    partitions: list[PartitionProgress]


async def describe_group(log: Log, given: DescribeGroup) -> Answer:
    """Describe a group: its members, and in each partition its position, its lag, and since when it lags."""
    group = await log.groups.describe(given.group)
    progress = await log.groups.progress(given.group)
    since = await _behind_since(log, [one for one in progress if one.lag > 0][:MOST_DATED])
    rows = [
        PartitionProgress(
            topic=one.topic,
            partition=one.partition,
            member=one.member or None,
            position=one.offset if one.offset >= 0 else None,
            high_watermark=one.high_watermark if one.high_watermark >= 0 else None,
            lag=one.lag if one.lag >= 0 else None,
            last_commit=clock(one.committed_ms),
            behind_since=clock(since.get((one.topic, one.partition), -1)),
        )
        for one in progress
    ]
    members = [
        MemberDescription(
            member=one.member,
            instance=one.instance or None,
            program=one.node,
            partitions=[f"{share.topic or share.topic_id}/{p}" for share in one.assignment for p in share.partitions],
            away=one.away,
        )
        for one in group.members
    ]
    data = GroupDescription(
        group=group.group,
        state=group.state,
        generation=group.generation,
        coordinator=group.coordinator,
        members=members,
        partitions=rows,
    )
    lag = sum(row.lag or 0 for row in rows)
    unowned = sum(row.member is None for row in rows)
    summary = f"{len(members)} members, {len(rows)} partitions, {unowned} of them without a member; lag {lag} offsets"
    if since:
        seconds = max(0, time.time_ns() // 1_000_000 - min(since.values())) / 1000
        summary += f"; the oldest record that is not processed was written {seconds:.0f} s ago"
    return Answer(f"{summary}.", data)


async def _behind_since(log: Log, behind: list[GroupProgress]) -> dict[tuple[str, int], int]:
    """Read the record at the group's position in each of these partitions, and return their timestamps. Partitions
    that give no record in time are left out."""
    found: dict[tuple[str, int], int] = {}

    async def read(one: GroupProgress) -> None:
        how = {"start": one.offset, "end": one.high_watermark, "partitions": [one.partition]}
        try:
            async with log.consume(one.topic, isolation="uncommitted", **how) as records:  # type: ignore[call-overload]
                async for record in records:
                    found[one.topic, one.partition] = record.timestamp_ms
                    return
        except TidelogError:  # deleted by retention, or the caller may not read the topic
            return

    with trio.move_on_after(DATED_S):
        async with trio.open_nursery() as nursery:
            for one in behind:
                if one.topic:
                    nursery.start_soon(read, one)
    return found


TOOLS = (
    Tool(
        "list_groups",
        "List consumer groups",
        "List the consumer groups with members and lag, those that lag most first.",
        ListGroups,
        GroupList,
        list_groups,
    ),
    Tool(
        "describe_group",
        "Describe a consumer group",
        "Describe a consumer group: its members, and for each partition position, lag, last commit, and since when it"
        " is behind.",
        DescribeGroup,
        GroupDescription,
        describe_group,
    ),
)
