"""Programs that read as members of consumer groups, for the incidents of groups: in this process, or in one of their
own that can be paused."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field

import trio
from incidents.load import PAUSE_S
from incidents.stage import READERS, WORDS, Stage
from tidelog.client.options import GroupOptions
from tidelog.errors import TidelogError

PARTITIONS = 4
"""Partitions of a topic of an incident's own, so that each member of its group gets some."""
AGAIN_S = 0.5
"""Seconds until a reader that failed is started again."""
SHORT_SESSION_S = 1.5
"""Session timeout of readers that are paused: the shortest that the stage's servers take is one second."""
PROGRAM = """
import sys, trio, tidelog
from tidelog.client.options import GroupOptions

async def main(url, topic, group, session_s):
    options = GroupOptions(session_timeout_s=float(session_s), auto_commit_s=0.5)
    async with tidelog.connect(url, name="paused-reader") as log:
        async with log.consume(topic, group=group, group_options=options) as member:
            async for record in member:
                await trio.sleep(0.01)

trio.run(main, *sys.argv[1:])
"""
"""A reader in a process of its own: URL, topic, group and session timeout are its arguments."""


async def make_topic(stage: Stage, name: str, config: dict[str, object] | None = None) -> str:
    """Make a topic with a name that the seed draws, and a producer that writes to it until the end of the run. Return
    the topic's name. ``name``: that of the incident."""
    topic = stage.random.choice([word for word in WORDS if word not in stage.load.topics]) + f"-{name}"
    settings = {"min_insync_replicas": 2, "retention_ms": 86_400_000} | (config or {})
    await stage.log.topics.create(topic, partitions=PARTITIONS, replication_factor=3, config=settings)
    stage.begin(f"{name}.producer", lambda: _produce(stage, topic))
    return topic


async def _produce(stage: Stage, topic: str) -> None:
    """Write records to all partitions in turn, with a new client after each failure, until cancelled."""
    while True:
        with suppress(TidelogError):
            async with stage.connect(name="writer") as log, log.producer(topic) as producer:
                number = 0
                while True:
                    await producer.send(b"{}" * 20, partition=number % PARTITIONS)
                    number += 1
                    await trio.sleep(PAUSE_S)
        await trio.sleep(AGAIN_S)


def draw_group(stage: Stage, name: str) -> str:
    """Return a name of a group, which the seed draws. ``name``: that of the incident."""
    return stage.random.choice([word for word in READERS if word != stage.group]) + f"-{name}"


@dataclass
class Reader:
    """A member of a consumer group, in this process. ``each_s``: seconds that it works on a record, which may change
    while it runs. ``commits``: whether it commits what it has done."""

    stage: Stage
    topic: str
    group: str
    each_s: float = 0.0
    commits: bool = True
    read: int = 0
    _scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    _over: trio.Event = field(default_factory=trio.Event)

    def begin(self) -> None:
        """Start to read, with a new client after each failure."""
        self.stage.nursery.start_soon(self._run)

    async def _run(self) -> None:
        with self._scope:
            while True:
                with suppress(TidelogError):
                    await self._read()
                await trio.sleep(AGAIN_S)
        self._over.set()

    async def _read(self) -> None:
        options = GroupOptions(auto_commit_s=0.5 if self.commits else None)
        async with (
            self.stage.connect(name=f"{self.group}-reader") as log,
            log.consume(self.topic, group=self.group, group_options=options) as member,
        ):
            async for _ in member:
                self.read += 1
                await trio.sleep(self.each_s)

    async def has_read(self, records: int) -> None:
        """Wait until it has read so many records more."""
        wanted = self.read + records

        async def holds() -> bool:
            return self.read >= wanted

        await self.stage.until(holds, f"{self.group} reads {records} records")

    async def end(self) -> None:
        """End the reader in order, and wait until its group has no members."""
        self._scope.cancel()
        await self._over.wait()
        await wait_empty(self.stage, self.group)


async def wait_empty(stage: Stage, group: str) -> None:
    """Wait until a group has no members."""

    async def empty() -> bool:
        return not (await stage.log.groups.describe(group)).members

    await stage.until(empty, f"{group} has no members")


async def positions(stage: Stage, group: str, topic: str) -> dict[int, int]:
    """Return the positions of a group in a topic, by partition."""
    return {number: at.offset for number, at in (await stage.log.groups.fetch_offsets(group, topic)).items()}


async def reset(stage: Stage, group: str, topic: str, where: str, *partitions: int) -> None:
    """Set the positions of a group as an administrator does. Raises ``RuntimeError`` if the command fails."""
    chosen = [word for number in partitions for word in ("-p", str(number))]
    done = await stage.tidelog("groups", "reset", group, "-t", topic, "--to", where, *chosen)
    if done.returncode:
        raise RuntimeError(done.stderr.decode())


class PausedReader:
    """A member of a group in a process of its own, which can be paused: then it sends no heartbeats either."""

    def __init__(self, stage: Stage, topic: str, group: str) -> None:
        arguments = (stage.gateway, topic, group, str(SHORT_SESSION_S))
        self._process = subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], stderr=subprocess.DEVNULL)
        stage.nursery.start_soon(self._end_with_run)

    async def _end_with_run(self) -> None:
        """Kill the process at the end of the run, however that ends."""
        try:
            await trio.sleep_forever()
        finally:
            self.end()

    async def pause(self, seconds: float) -> None:
        """Stop the process for so long, as a long computation does, and let it go on."""
        try:
            self._process.send_signal(signal.SIGSTOP)
            await trio.sleep(seconds)
        finally:
            self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()
