"""Controllers alone, as real processes whose log lines a test can wait for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from tidelog.cli.local.local_cluster import free_base_port
from tidelog.feature_levels import service_hello
from tidelog.net.controller_link import ControllerLink
from tidelog.net.link import Link, connect_link
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.wire.messages import Message

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


class Controllers:
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
                "[settings.timeline]",
                "replication_factor = 0",  # there are no replica servers
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
        hello = service_hello(role, name, "test")

        def handle(_link: Link, _id: int | None, message: Message) -> None:
            if on_message is not None:
                on_message(message)

        async with connect_link(WebSocketTransport(), self.urls[node], hello, handle) as link:
            yield link

    @asynccontextmanager
    async def active(self, role: str = "gateway", name: str = "g1") -> AsyncIterator[ControllerLink]:
        """The active controller as the other services ask it: whoever that is by then, and again after what may
        pass."""
        urls, hello = [*self.urls.values()], service_hello(role, name, "test")
        active = ControllerLink(
            WebSocketTransport(), urls, hello, on_message=lambda message: None, on_up=lambda: None
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(active.run)
            yield active
            nursery.cancel_scope.cancel()
