"""Controllers as real processes on loopback, with real SQLite: kill -9, take-over, restart, refusals at the start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from tidelog.cli.local_cluster import free_base_port
from tidelog.errors import BrokerError
from tidelog.link import PROTOCOL_VERSION, Link, connect_link
from tidelog.types import ClusterImage
from tidelog.websocket import WebSocketTransport
from tidelog.wire.image import apply_update
from tidelog.wire.messages import (
    CreateTopic,
    DescribeQuorum,
    Hello,
    History,
    HistoryAnswer,
    Message,
    MetadataUpdate,
    QuorumAnswer,
    Register,
    Registered,
    TopicCreated,
    Watch,
)

pytestmark = pytest.mark.real

START_S = 30.0
"""How long a start, an election or an answer may take on a busy machine."""


class ControllerProcess:
    """One process. Its log lines are events that a test can wait for."""

    def __init__(self, node: str, config: Path) -> None:
        self.node = node
        self.config = config
        self.events: list[dict[str, Any]] = []
        self._process: trio.Process | None = None
        self._news = trio.Event()

    async def start(self, nursery: trio.Nursery) -> None:
        """Start it, and wait until it listens."""
        command = [sys.executable, "-m", "tidelog_controller", "--config", str(self.config)]
        self._process = await trio.lowlevel.open_process(command, stderr=subprocess.PIPE)
        seen = len(self.events)
        nursery.start_soon(self._read, self._process)
        await self.wait_event("controller_started", after=seen)

    async def _read(self, process: trio.Process) -> None:
        assert process.stderr is not None
        rest = b""
        async for data in process.stderr:
            *lines, rest = (rest + data).split(b"\n")
            self.events += [json.loads(line) for line in lines if line.startswith(b"{")]
            self._news.set()
            self._news = trio.Event()

    async def wait_event(self, name: str, after: int = 0) -> dict[str, Any]:
        """The first event of that name behind the first ``after`` ones."""
        with trio.fail_after(START_S):
            while True:
                for event in self.events[after:]:
                    if event["event"] == name:
                        return event
                await self._news.wait()

    async def stop(self) -> int:
        """SIGTERM, and its exit code."""
        assert self._process is not None
        self._process.terminate()
        with trio.fail_after(START_S):
            return await self._process.wait()

    async def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        assert self._process is not None
        self._process.kill()
        await self._process.wait()


class Cluster:
    """Three controllers in a folder."""

    def __init__(self, folder: Path, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.folder = folder
        self.urls: dict[str, str] = {}
        self.nodes: dict[str, ControllerProcess] = {}
        self.lay_out("c1", "c2", "c3")

    def lay_out(self, *nodes: str, join: bool = False) -> None:
        """Configure controllers that know each other and those that there are."""
        folder, base = self.folder, free_base_port(len(nodes))
        ports = {node: base + i for i, node in enumerate(nodes)}
        self.urls |= {node: f"ws://127.0.0.1:{port}" for node, port in ports.items()}
        self.nodes |= {node: ControllerProcess(node, folder / f"{node}.toml") for node in ports}
        for node in nodes:
            process = self.nodes[node]
            lines = [
                f'node = "{node}"',
                'cluster = "test"',
                f"port = {ports[node]}",
                f'data_dir = "{folder / node}"',
                "log_json = true",
                f"join = {str(join).lower()}",
                "[settings]",
                "session_timeout_s = 60.0",
                "[peers]",
                *(f'{peer} = "{url}"' for peer, url in self.urls.items()),
            ]
            process.config.write_text("\n".join(lines))

    async def start(self, *nodes: str) -> None:
        async with trio.open_nursery() as starting:
            for node in nodes:
                starting.start_soon(self.nodes[node].start, self._nursery)

    async def wait_active(self, among: list[str], after: dict[str, int]) -> str:
        """The controller that became active behind these numbers of events."""
        found: list[str] = []
        async with trio.open_nursery() as racing:

            async def wait(node: str) -> None:
                await self.nodes[node].wait_event("controller_active", after.get(node, 0))
                found.append(node)
                racing.cancel_scope.cancel()

            for node in among:
                racing.start_soon(wait, node)
        return found[0]

    @asynccontextmanager
    async def link(
        self, node: str, role: str = "gateway", name: str = "g1", on_message: Callable[[Message], None] | None = None
    ) -> AsyncIterator[Link]:
        hello = Hello(PROTOCOL_VERSION, role, name, "test")

        def handle(_link: Link, _id: int | None, message: Message) -> None:
            if on_message is not None:
                on_message(message)

        async with connect_link(WebSocketTransport(), self.urls[node], hello, handle) as link:
            yield link


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with trio.open_nursery() as nursery:
        cluster = Cluster(tmp_path, nursery)
        try:
            await cluster.start("c1", "c2", "c3")
            yield cluster
        finally:
            with trio.CancelScope(shield=True):
                for process in cluster.nodes.values():
                    await process.kill()
            nursery.cancel_scope.cancel()


class Watcher:
    """The metadata as one watch shows it."""

    def __init__(self) -> None:
        self.image = ClusterImage()
        self._news = trio.Event()

    def on_message(self, message: Message) -> None:
        assert isinstance(message, MetadataUpdate)
        self.image = apply_update(self.image, message)
        self._news.set()
        self._news = trio.Event()

    async def wait_topics(self, *names: str) -> None:
        with trio.fail_after(START_S):
            while {topic.name for topic in self.image.topics} != set(names):
                await self._news.wait()


async def test_kill_of_the_active_controller_loses_no_metadata(cluster: Cluster) -> None:
    first = await cluster.wait_active(["c1", "c2", "c3"], {})
    others = [node for node in cluster.nodes if node != first]
    for server in ("r1", "r2", "r3"):
        async with cluster.link(first, "replica", server) as link:
            answer = await link.call(Register(server, f"ws://{server}"), START_S)
            assert isinstance(answer, Registered)
            with pytest.raises(BrokerError, match="FORBIDDEN"):
                await link.call(Register("r9", "ws://r9"), START_S)
    watcher = Watcher()
    async with cluster.link(others[0], on_message=watcher.on_message) as watch:
        await watch.call(Watch(), START_S)
        async with cluster.link(first) as link:
            created = await link.call(CreateTopic("before", 3, 3), START_S)
            assert isinstance(created, TopicCreated)
        await watcher.wait_topics("before")

        after = {node: len(cluster.nodes[node].events) for node in others}
        await cluster.nodes[first].kill()
        second = await cluster.wait_active(others, after)
        async with cluster.link(second) as link:
            with pytest.raises(BrokerError, match="TOPIC_EXISTS"):
                await link.call(CreateTopic("before"), START_S)
            await link.call(CreateTopic("after", 1, 3), START_S)
            history = await link.call(History(created.topic_id, 2), START_S)
            assert isinstance(history, HistoryAnswer)
            assert [entry.event for entry in history.entries] == ["created"]
        await watcher.wait_topics("before", "after")

    await cluster.start(first)
    back = Watcher()
    async with cluster.link(first, on_message=back.on_message) as link:
        await link.call(Watch(), START_S)
        await back.wait_topics("before", "after")
        assert {server.node for server in back.image.servers} == {"r1", "r2", "r3"}
        quorum = await link.call(DescribeQuorum(), START_S)
        assert isinstance(quorum, QuorumAnswer) and quorum.active == second


async def test_all_controllers_killed_at_once_come_back_with_everything(cluster: Cluster) -> None:
    first = await cluster.wait_active(["c1", "c2", "c3"], {})
    async with cluster.link(first, "replica", "r1") as link:
        await link.call(Register("r1", "ws://r1"), START_S)
    async with cluster.link(first) as link:
        await link.call(CreateTopic("kept"), START_S)
    after = {node: len(process.events) for node, process in cluster.nodes.items()}
    for process in cluster.nodes.values():
        await process.kill()
    await cluster.start(*cluster.nodes)
    active = await cluster.wait_active(list(cluster.nodes), after)
    async with cluster.link(active) as link:
        with pytest.raises(BrokerError, match="TOPIC_EXISTS"):
            await link.call(CreateTopic("kept"), START_S)


async def refused(*arguments: str) -> str:
    """What a controller prints that refuses to start."""
    command = [sys.executable, "-m", "tidelog_controller", *arguments]
    with trio.fail_after(START_S):
        done = await trio.run_process(command, check=False, capture_stderr=True, env=dict(os.environ))
    assert done.returncode == 2, done.stderr
    return done.stderr.decode()


async def test_wrong_configuration_is_told_at_once_and_entirely(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text('node = "c1"\nprot = 1\n[settings]\nsession_timeout_s = "soon"\n[peers]\nc2 = "http://x"\n')
    told = await refused("--config", str(config))
    assert "prot is unknown; did you mean port?" in told
    assert "session_timeout_s" in told
    config.write_text('node = "c1"\n[peers]\nc2 = "http://x"\n')
    told = await refused("--config", str(config))
    assert "c1 is not among c2" in told
    assert "ws://host:port" in told


async def test_running_controllers_data_is_refused_to_another_process(cluster: Cluster, tmp_path: Path) -> None:
    assert "in use by another process" in await refused(
        *("--node", "c1", "--cluster", "test", "--port", "0", "--data-dir", str(tmp_path / "c1"))
    )
    await cluster.nodes["c1"].kill()
    assert "belongs to node 'c1' of cluster 'test'" in await refused(
        *("--node", "c1", "--cluster", "other", "--port", "0", "--data-dir", str(tmp_path / "c1"))
    )
