"""A cluster of the tests as an operator handles it: by commands, and by looking until something is so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import trio
from click.testing import CliRunner, Result
from tidelog.cli.main import main
from tidelog.client.log import Log
from tidelog.wire.messages import PartitionInfo

from .harness import Cluster

HEAL_S = 60.0
LOOK_S = 0.05
"""Pause between two looks at what nobody tells of."""


async def run(cluster: Cluster, *command: str) -> str:
    """A command that succeeds, and what it said, perhaps among lines that the services here have logged meanwhile."""
    call = partial(CliRunner().invoke, main, command, env={"TIDELOG_GATEWAY": cluster.gateway})
    done: Result = await trio.to_thread.run_sync(call)
    assert done.exit_code == 0, done.output
    return done.output


async def wait(holds: Callable[[], Awaitable[bool]]) -> None:
    """Look until it is so."""
    with trio.fail_after(HEAL_S):
        while not await holds():  # noqa: ASYNC110 (nobody tells of it)
            await trio.sleep(LOOK_S)


async def until(log: Log, topic: str, holds: Callable[[PartitionInfo], bool]) -> PartitionInfo:
    """Its only partition, when it is so."""
    found: list[PartitionInfo] = []

    async def look() -> bool:
        found[:] = (await log.topics.describe(topic)).partitions[:1]
        return holds(found[0])

    await wait(look)
    return found[0]


async def until_moved(log: Log) -> None:
    """Until no replica is on its way, nor waits for its turn."""

    async def moved() -> bool:
        on_the_way = [p for topic in (await log.cluster.status()).topics for p in topic.partitions if p.target]
        return not on_the_way and not await log.partitions.waiting_moves()

    await wait(moved)


async def until_fenced(log: Log, node: str) -> None:
    """Until the cluster takes that server for gone."""

    async def fenced() -> bool:
        return all(one.fenced for one in (await log.cluster.status()).servers if one.node == node)

    await wait(fenced)
