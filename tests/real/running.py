"""A cluster of real processes that a test talks to, by command and by client, and how a test waits for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import tidelog
import trio
from tidelog.cli.local.local_cluster import LocalCluster, free_base_port
from tidelog.client.log import Log

HEAL_S = 150.0
"""How long anything may take on a busy machine that is only waited for."""
LOOK_S = 0.05
"""Pause between two looks at something that nobody tells of."""
GUARD = """
import pathlib, sys
sys.stdin.read()  # ends with the process that holds the other end
from tidelog.cli.local.local_cluster import LocalCluster
LocalCluster.load(pathlib.Path(sys.argv[1])).stop()
"""


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

    def replica_folders(self) -> dict[str, Path]:
        """The folder of each replica server's records."""
        return {process.id: self.folder / process.id / "data" for process in self.local.of_role("replica")}

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Log]:
        """A client that knows all gateways."""
        async with tidelog.connect(self.gateways, connect_timeout_s=HEAL_S, request_timeout_s=HEAL_S) as log:
            yield log


@contextmanager
def running_cluster(
    folder: Path,
    replicas: int = 3,
    controllers: int = 3,
    prepare: Callable[[LocalCluster], None] = lambda local: None,
) -> Iterator[Cluster]:
    """So many controllers and replica servers, two gateways; ended in any case, also when the run is killed.
    ``prepare`` is called before anything starts."""
    port = free_base_port(controllers + replicas + 2)
    local = LocalCluster.create(folder, controllers=controllers, replicas=replicas, gateways=2, base_port=port)
    prepare(local)
    guard = subprocess.Popen([sys.executable, "-c", GUARD, folder], stdin=subprocess.PIPE, start_new_session=True)
    try:
        local.start()
        trio.run(local.wait_ready)
        yield Cluster(local)
    finally:
        local.stop()
        guard.kill()
        guard.communicate()


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
    partitions = (await log.topics.describe(topic)).partitions
    return all(p.leader and sorted(p.isr) == sorted(p.replicas) for p in partitions)
