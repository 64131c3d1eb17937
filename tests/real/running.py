"""A cluster of real processes that a test talks to, by command and by client, and how a test waits for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import tidelog
import trio
from tidelog.cli.local_cluster import LocalCluster
from tidelog.client.log import Log

HEAL_S = 60.0
"""How long anything may take on a busy machine that is only waited for."""
LOOK_S = 0.05
"""Pause between two looks at something that nobody tells of."""


class Cluster:
    """A running cluster, and the command to talk to it."""

    def __init__(self, local: LocalCluster) -> None:
        self.local = local
        self.folder = local.folder
        self.gateways = local.gateways()

    def tidelog(self, *arguments: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        """Run the command; stdout and stderr are kept."""
        return run_tidelog(*arguments, gateway=self.gateways[0], stdin=stdin)

    def ok(self, *arguments: str, stdin: bytes | None = None) -> bytes:
        """Run it; it must succeed."""
        done = self.tidelog(*arguments, stdin=stdin)
        assert done.returncode == 0, f"{arguments}: {done.stderr.decode()}"
        return done.stdout

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Log]:
        """A client that knows all gateways."""
        async with tidelog.connect(self.gateways, connect_timeout_s=HEAL_S, request_timeout_s=HEAL_S) as log:
            yield log


def run_tidelog(*arguments: str, gateway: str = "", stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    """The command as a user runs it."""
    command = [sys.executable, "-m", "tidelog.cli", *arguments]
    environment = os.environ | ({"TIDELOG_GATEWAY": gateway} if gateway else {})
    return subprocess.run(command, input=stdin, capture_output=True, env=environment, timeout=120, check=False)


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait until it is so."""
    with trio.fail_after(HEAL_S):
        while not await holds():  # noqa: ASYNC110 (what happens in another process sets no event)
            await trio.sleep(LOOK_S)


async def in_sync(log: Log, topic: str) -> bool:
    """Every replica of the topic is in the ISR, and every partition has a leader."""
    partitions = (await log.describe(topic)).partitions
    return all(p.leader and sorted(p.isr) == sorted(p.replicas) for p in partitions)
