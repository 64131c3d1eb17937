"""``tidelog doctor`` names what ails groups and clients, in a cluster of real shells in virtual time.

Each story makes one thing go wrong, waits until the diagnosis names the cause, and looks whether anything else is
called a cause. ``deploy/incidents`` does the same with real processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import tidelog
import trio
from tidelog.acl import id_of
from tidelog.cli.explain.doctor import diagnose
from tidelog.cli.explain.findings.finding import NOTE, Finding
from tidelog.client.options import GroupOptions
from tidelog.errors import TidelogError
from tidelog.testing.shells.services import GATEWAY_URL
from tidelog.types import Quota

from simulation.staged import Stage, play

NAMED_S = 30.0
"""Virtual seconds within which the cause must be named."""
PAUSE_S = 0.1
"""Seconds between two records of the producer."""
Story = Callable[[Stage], Awaitable[None]]
AUTO = GroupOptions(auto_commit_s=0.5)


@asynccontextmanager
async def written(stage: Stage, **config: object) -> AsyncIterator[trio.Nursery]:
    """A topic ``t`` of two partitions, to which ten records a second are written during the block."""
    await stage.log.topics.create(
        "t", partitions=2, replication_factor=3, config={"retention_ms": 86_400_000} | config
    )
    await stage.until_in_sync("t")

    async def write() -> None:
        async with stage.log.producer("t") as producer:
            number = 0
            while True:
                await producer.send(b"x" * 50, partition=number % 2)
                number += 1
                await stage.tick(PAUSE_S)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        yield nursery
        nursery.cancel_scope.cancel()


async def read(stage: Stage, each_s: float = 0.0, options: GroupOptions = AUTO, most: int = 1 << 30) -> None:
    """Read ``t`` in the group ``g``, working ``each_s`` seconds on a record, until so many are read."""
    async with tidelog.connect(GATEWAY_URL) as log, log.consume("t", group="g", group_options=options) as member:
        async for _ in member:
            await stage.tick(each_s)
            most -= 1
            if not most:
                return


async def causes(stage: Stage) -> list[Finding]:
    """What the doctor calls causes now, but for notes."""
    return [one for one in await diagnose(stage.log) if one.level != NOTE and not one.because_of]


async def named(stage: Stage, cause: str) -> Finding:
    """Wait until the doctor names this cause and no other, and return the finding."""
    found: list[Finding] = []
    with trio.move_on_after(NAMED_S):
        while [one.cause for one in found] != [cause]:
            await stage.tick(1.0)
            found = await causes(stage)
    assert [one.cause for one in found] == [cause], found
    assert found[0].evidence and found[0].next_step
    return found[0]


async def silent(stage: Stage, seconds: float) -> None:
    """Wait until the doctor finds nothing any more, for so many seconds at most."""
    found = await causes(stage)
    with trio.move_on_after(seconds):
        while found:
            await stage.tick(1.0)
            found = await causes(stage)
    assert not found


async def a_healthy_group_is_silent(stage: Stage) -> None:
    async with written(stage) as nursery:
        nursery.start_soon(read, stage)
        for _ in range(20):
            await stage.tick(1.0)
            assert await causes(stage) == []


async def readers_are_too_slow(stage: Stage) -> None:
    async with written(stage) as nursery:
        slow = trio.CancelScope()

        async def slowly() -> None:
            with slow:
                await read(stage, 0.5)

        nursery.start_soon(slowly)
        found = await named(stage, "consumers-too-slow")
        assert "records a second of" in found.what and "t/" in found.what
        slow.cancel()
        nursery.start_soon(read, stage)
        await silent(stage, 60.0)


async def a_reader_never_commits(stage: Stage) -> None:
    async with written(stage) as nursery:
        nursery.start_soon(read, stage, 0.0, GroupOptions(auto_commit_s=None))
        await named(stage, "member-commits-nothing")


async def positions_are_set_back(stage: Stage) -> None:
    async with written(stage) as nursery:
        await read(stage, most=60)
        await stage.log.groups.reset("g", "t", {0: 0, 1: 0})
        nursery.start_soon(read, stage)
        found = await named(stage, "position-set-back")
        assert "processed again" in found.what
        await silent(stage, 120.0)


async def positions_are_set_forward(stage: Stage) -> None:
    async with written(stage) as nursery:
        await read(stage, most=60)
        before = await stage.log.groups.fetch_offsets("g", "t")
        await stage.tick(3.0)
        await stage.log.groups.reset("g", "t", await stage.log.partitions.find_positions("t", "latest"))
        await read(stage, most=10)
        await named(stage, "position-set-forward")
        await stage.log.groups.reset("g", "t", before)
        nursery.start_soon(read, stage)
        await silent(stage, 10.0)


async def retention_overtakes_a_reader(stage: Stage) -> None:
    async with written(stage, segment_max_bytes=1024):
        await read(stage, most=20)
        await stage.log.topics.alter("t", {"retention_records": 10})
        found = await named(stage, "retention-overtook-reader")
        assert "retention_records=10" in found.what
        await stage.log.topics.alter("t", {"retention_records": -1})
        await stage.log.groups.reset("g", "t", await stage.log.partitions.find_positions("t", "earliest"))
        await silent(stage, 5.0)


async def programs_end_and_are_started_again(stage: Stage) -> None:
    async with written(stage) as nursery:
        scope = trio.CancelScope()

        async def again() -> None:
            with scope:
                while True:
                    async with tidelog.connect(GATEWAY_URL) as log, log.consume("t", group="g") as member:
                        await member.__anext__()
                        await stage.tick(0.5)
                    await stage.tick(0.5)

        nursery.start_soon(again)
        await named(stage, "members-come-and-go")
        scope.cancel()
        nursery.start_soon(read, stage)
        await silent(stage, 60.0)


async def a_static_member_is_started_again_and_again(stage: Stage) -> None:
    async with written(stage) as nursery:

        async def again() -> None:
            while True:
                async with (
                    tidelog.connect(GATEWAY_URL) as log,
                    log.consume("t", group="g", instance="st-1") as member,
                ):
                    await member.__anext__()
                    await stage.tick(0.5)
                await stage.tick(0.5)

        nursery.start_soon(again)
        found = await named(stage, "members-come-and-go")
        assert "static member st-1" in found.what


async def a_quota_bites(stage: Stage) -> None:
    async with written(stage) as nursery:
        token = await stage.log.access.create_token("alice")
        await stage.log.access.alter_quotas([Quota("alice", bytes_in_s=1000)])

        async def write() -> None:
            async with tidelog.connect(GATEWAY_URL, token=token) as log, log.producer("t") as producer:
                while True:
                    await producer.send(b"x" * 1000)

        nursery.start_soon(write)
        found = await named(stage, "quota-used-up")
        assert found.what.startswith("alice sends more than its quota of bytes_in_s")
        await stage.log.access.alter_quotas([Quota("alice")])
        await silent(stage, 10.0)


async def a_revoked_token_is_in_use(stage: Stage) -> None:
    token = await stage.log.access.create_token("alice")
    await stage.log.access.revoke_token(id_of(token))
    with pytest.raises(TidelogError, match="revoked"):
        async with tidelog.connect(GATEWAY_URL, token=token):
            pass
    found = await named(stage, "token-revoked")
    assert id_of(token) in found.what and "alice" in found.what
    await silent(stage, 60.0)


STORIES = (
    *(a_healthy_group_is_silent, readers_are_too_slow, a_reader_never_commits),
    *(positions_are_set_back, positions_are_set_forward, retention_overtakes_a_reader),
    *(programs_end_and_are_started_again, a_static_member_is_started_again_and_again),
    *(a_quota_bites, a_revoked_token_is_in_use),
)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_the_doctor_names_what_happened_and_nothing_else(story: Story, tmp_path: Path) -> None:
    play(tmp_path, story)
