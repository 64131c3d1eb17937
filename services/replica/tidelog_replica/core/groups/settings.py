"""Bounds and times of a coordinator of consumer groups."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.config import setting


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Every setting's meaning and range is in its metadata."""

    heartbeat_ms: int = setting(3000, "How often members of consumer groups are to heartbeat.", 10, 60_000)
    session_min_ms: int = setting(6000, "Shortest session timeout that a member may ask for.", 10, 3_600_000)
    session_max_ms: int = setting(1_800_000, "Longest session timeout that a member may ask for.", 10, 86_400_000)
    offsets_retention_ms: int = setting(
        604_800_000,
        "The positions of a group that has had no members, and no commits, for so long are forgotten.",
        1,
        1 << 50,
    )
    max_groups: int = setting(10_000, "Most groups of one partition of __groups.", 1, 1 << 20)
    principal_max_groups: int = setting(
        2000, "Most groups of one partition of __groups that one principal has begun.", 1, 1 << 20
    )
    max_members: int = setting(1000, "Most members of one group.", 1, 1 << 16)
    principal_max_members: int = setting(
        2000, "Most members of groups of one partition of __groups that one principal has.", 1, 1 << 20
    )
    max_topics: int = setting(256, "Most topics that one member subscribes to.", 1, 1 << 16)
    max_metadata_bytes: int = setting(4096, "Longest text that a member may commit with a position.", 0, 1 << 16)
    max_joins_per_s: int = setting(
        500, "Most joins per second that one partition of __groups takes; more are told to come again.", 1, 1 << 20
    )
