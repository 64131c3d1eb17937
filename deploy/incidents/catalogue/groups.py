"""Incidents of consumer groups: readers that are too slow, never commit, process twice, rebalance for ever, or were
overtaken by retention."""

from __future__ import annotations

from contextlib import suppress

import trio
from incidents.incident import Incident
from incidents.readers import (
    SHORT_SESSION_S,
    PausedReader,
    Reader,
    draw_group,
    make_topic,
    positions,
    reset,
)
from incidents.stage import Stage
from tidelog.errors import TidelogError

# --- records that wait ---------------------------------------------------------------------------------------


async def _begin_reader(stage: Stage, name: str, **how: float | bool) -> Reader:
    """Start a reader of the second topic under load, in a group of its own, and keep it under the incident's name."""
    reader = Reader(stage, stage.other_topic, draw_group(stage, name))
    for field, value in how.items():
        setattr(reader, field, value)
    stage.facts[name] = reader
    reader.begin()
    return reader


async def slow_reader(stage: Stage) -> None:
    """Start a reader that works longer on a record than it takes until the next one is written."""
    reader = await _begin_reader(stage, "lag", each_s=stage.random.uniform(0.3, 0.6))
    await reader.has_read(1)


async def quick_reader(stage: Stage) -> None:
    """Let it work faster."""
    stage.facts["lag"].each_s = 0.0


async def forgetful_reader(stage: Stage) -> None:
    """Start a reader that keeps up, and never commits."""
    reader = await _begin_reader(stage, "no-commits", commits=False)
    await reader.has_read(1)


async def committing_reader(stage: Stage) -> None:
    """Replace it by one that commits."""
    await stage.facts["no-commits"].end()
    reader: Reader = stage.facts["no-commits"]
    stage.facts["no-commits"] = again = Reader(stage, reader.topic, reader.group)
    again.begin()


# --- records that are processed twice, or not at all ------------------------------------------------------------


async def _processed(stage: Stage, name: str) -> Reader:
    """Let a reader process for a while, and end it. Its positions are kept in the facts."""
    reader = await _begin_reader(stage, name)
    await reader.has_read(stage.random.randint(40, 80))
    await reader.end()
    stage.facts[f"{name}.before"] = await positions(stage, reader.group, reader.topic)
    return reader


async def _go_on(stage: Stage, name: str) -> None:
    """Start the reader of an incident again, in its group."""
    reader: Reader = stage.facts[name]
    stage.facts[name] = again = Reader(stage, reader.topic, reader.group)
    again.begin()
    await again.has_read(1)


async def set_back(stage: Stage) -> None:
    """Set the positions of a group back while its reader is away for a moment."""
    reader = await _processed(stage, "set-back")
    await reset(stage, reader.group, reader.topic, "earliest")
    await _go_on(stage, "set-back")


async def read_again(stage: Stage) -> None:
    """Let the reader pass the place where it was: then nothing more is repeated."""
    reader: Reader = stage.facts["set-back"]
    before = stage.facts["set-back.before"]

    async def passed() -> bool:
        now = await positions(stage, reader.group, reader.topic)
        return all(now.get(number, 0) >= offset for number, offset in before.items())

    await stage.until(passed, f"{reader.group} has passed where it was")


async def set_forward(stage: Stage) -> None:
    """Set the positions of a group to the end while its reader is away, and more has been written."""
    reader = await _processed(stage, "set-forward")
    await trio.sleep(stage.random.uniform(2.0, 4.0))
    await reset(stage, reader.group, reader.topic, "latest")
    await _go_on(stage, "set-forward")


async def put_back(stage: Stage) -> None:
    """Put the positions back where the reader was, and let it go on there."""
    reader: Reader = stage.facts["set-forward"]
    await reader.end()
    for number, offset in stage.facts["set-forward.before"].items():
        await reset(stage, reader.group, reader.topic, str(offset), number)
    await _go_on(stage, "set-forward")


async def pause_once(stage: Stage) -> None:
    """Pause a reader once, for longer than its session timeout."""
    topic = await make_topic(stage, "paused")
    group = draw_group(stage, "paused")
    stage.facts["paused"] = PausedReader(stage, topic, group)
    stage.facts["paused.other"] = other = Reader(stage, topic, group)
    other.begin()
    await _members(stage, group, 2)
    await stage.facts["paused"].pause(2 * SHORT_SESSION_S)


async def end_paused(stage: Stage) -> None:
    """Kill the reader that is paused; the other one reads all."""
    stage.facts["paused"].end()


async def _members(stage: Stage, group: str, number: int) -> None:
    """Wait until a group has so many members, and each has partitions."""

    async def there() -> bool:
        members = (await stage.log.groups.describe(group)).members
        return len(members) == number and all(member.assignment for member in members)

    await stage.until(there, f"{group} has {number} members")


# --- groups that rebalance for ever ------------------------------------------------------------------------------


async def pause_often(stage: Stage) -> None:
    """Pause a reader again and again, each time for longer than its session timeout."""
    topic = await make_topic(stage, "rebalance")
    group = draw_group(stage, "rebalance")
    stage.facts["rebalance"] = paused = PausedReader(stage, topic, group)
    stage.facts["rebalance.other"] = other = Reader(stage, topic, group)
    other.begin()
    await _members(stage, group, 2)
    runs_s = stage.random.uniform(1.0, 2.0)

    async def again() -> None:
        while True:
            await paused.pause(2 * SHORT_SESSION_S)
            await trio.sleep(runs_s)

    stage.begin("rebalance", again)


async def pause_no_more(stage: Stage) -> None:
    """Kill the reader that is paused; the other one reads all."""
    await stage.end("rebalance")
    stage.facts["rebalance"].end()


async def crash_often(stage: Stage) -> None:
    """Start a reader that fails at its first record and is started again, again and again."""
    topic = await make_topic(stage, "crashes")
    group = draw_group(stage, "crashes")
    lives_s = stage.random.uniform(0.2, 0.8)
    stage.facts["crashes.other"] = other = Reader(stage, topic, group)
    other.begin()
    await other.has_read(1)

    async def again() -> None:
        while True:
            with suppress(TidelogError):
                async with stage.connect(name="crashing-reader") as log, log.consume(topic, group=group) as member:
                    await member.__anext__()
                    await trio.sleep(lives_s)  # and fails: the record is not finished

    stage.begin("crashes", again)


async def crash_no_more(stage: Stage) -> None:
    """Do not start it again."""
    await stage.end("crashes")


# --- retention ---------------------------------------------------------------------------------------------------


async def overtake(stage: Stage) -> None:
    """Let retention delete what a reader, which is away, has not read."""
    topic = await make_topic(stage, "overtaken", {"segment_max_bytes": 4096})
    reader = Reader(stage, topic, draw_group(stage, "overtaken"))
    stage.facts["overtaken"] = reader
    reader.begin()
    await reader.has_read(stage.random.randint(5, 20))
    await reader.end()
    before = await positions(stage, reader.group, topic)
    await stage.log.topics.alter(topic, {"retention_records": stage.random.randint(5, 15)})

    async def overtaken() -> bool:
        described = await stage.log.topics.describe(topic, offsets=True)
        return any(one.log_start > before.get(one.partition, one.log_start) for one in described.partitions)

    await stage.until(overtaken, f"retention of {topic} overtakes {reader.group}")


async def keep_longer(stage: Stage) -> None:
    """Keep records longer, and let the reader go on with what is left."""
    reader: Reader = stage.facts["overtaken"]
    await stage.log.topics.alter(reader.topic, {"retention_records": -1})
    await reset(stage, reader.group, reader.topic, "earliest")
    await _go_on(stage, "overtaken")


LAGS = "The lag of a group grows, although its program runs and nothing fails."
TWICE = "Records arrive twice in the database behind the consumers."
REBALANCES = "The consumers of a group get and lose their partitions all the time."
MISSING = "Records are missing in the database behind the consumers."
GROUP = frozenset({"group"})
INCIDENTS = (
    Incident(
        name="consumers-lag",
        symptom=LAGS,
        cause="consumers-too-slow",
        plant=slow_reader,
        mend=quick_reader,
        twin="never-commits",
        strikes=GROUP,
        metric="tidelog_group_lag_records",
        alert="TidelogGroupFallsBehind",
    ),
    Incident(
        name="never-commits",
        symptom=LAGS,
        cause="member-commits-nothing",
        plant=forgetful_reader,
        mend=committing_reader,
        twin="consumers-lag",
        strikes=GROUP,
        metric="tidelog_group_lag_records",
        alert="TidelogGroupFallsBehind",
    ),
    Incident(
        name="duplicates",
        symptom=TWICE,
        cause="position-set-back",
        plant=set_back,
        mend=read_again,
        twin="reader-paused",
        strikes=GROUP,
        metric="tidelog_group_moved_positions",
        alert="TidelogPositionsMoved",
    ),
    Incident(
        name="reader-paused",
        symptom=TWICE,
        cause="member-expelled-while-alive",
        plant=pause_once,
        mend=end_paused,
        strikes=GROUP,
        metric="tidelog_group_expelled_members_total",
    ),
    Incident(
        name="rebalances",
        symptom=REBALANCES,
        cause="member-expelled-repeatedly",
        plant=pause_often,
        mend=pause_no_more,
        twin="crash-loop",
        strikes=GROUP,
        metric="tidelog_group_expelled_members_total",
        alert="TidelogGroupRebalances",
    ),
    Incident(
        name="crash-loop",
        symptom=REBALANCES,
        cause="members-come-and-go",
        plant=crash_often,
        mend=crash_no_more,
        strikes=GROUP,
        metric="tidelog_group_short_lived_members_total",
        alert="TidelogGroupRebalances",
    ),
    Incident(
        name="overtaken",
        symptom=MISSING,
        cause="retention-overtook-reader",
        plant=overtake,
        mend=keep_longer,
        twin="skipped",
        strikes=GROUP,
        metric="tidelog_group_overtaken_partitions",
        alert="TidelogGroupOvertaken",
    ),
    Incident(
        name="skipped",
        symptom=MISSING,
        cause="position-set-forward",
        plant=set_forward,
        mend=put_back,
        strikes=GROUP,
        metric="tidelog_group_moved_positions",
        alert="TidelogPositionsMoved",
    ),
)
