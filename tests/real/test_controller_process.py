"""Controllers as real processes on loopback, with real SQLite: kill -9, take-over, restart, refusals at the start."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import trio
from controller_processes import START_S, Controllers
from tidelog.errors import BrokerError
from tidelog.types import ClusterImage
from tidelog.wire.messages import (
    CreateTopic,
    DescribeQuorum,
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
from tidelog.wire.metadata_image import apply_update

pytestmark = pytest.mark.real


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


async def test_kill_of_the_active_controller_loses_no_metadata(controllers: Controllers) -> None:
    first = await controllers.wait_active(["c1", "c2", "c3"], {})
    others = [node for node in controllers.nodes if node != first]
    for server in ("r1", "r2", "r3"):
        async with controllers.link(first, "replica", server) as link:
            answer = await link.call(Register(server, f"ws://{server}"), START_S)
            assert isinstance(answer, Registered)
            with pytest.raises(BrokerError, match="FORBIDDEN"):
                await link.call(Register("r9", "ws://r9"), START_S)
    watcher = Watcher()
    async with controllers.link(others[0], on_message=watcher.on_message) as watch:
        await watch.call(Watch(), START_S)
        async with controllers.link(first) as link:
            created = await link.call(CreateTopic("before", 3, 3), START_S)
            assert isinstance(created, TopicCreated)
        await watcher.wait_topics("before")

        after = {node: len(controllers.nodes[node].events) for node in others}
        await controllers.nodes[first].kill()
        second = await controllers.wait_active(others, after)
        async with controllers.link(second) as link:
            with pytest.raises(BrokerError, match="TOPIC_EXISTS"):
                await link.call(CreateTopic("before"), START_S)
            await link.call(CreateTopic("after", 1, 3), START_S)
            history = await link.call(History(created.topic_id, 2), START_S)
            assert isinstance(history, HistoryAnswer)
            assert [entry.event for entry in history.entries] == ["created"]
        await watcher.wait_topics("before", "after")

    await controllers.start(first)
    back = Watcher()
    async with controllers.link(first, on_message=back.on_message) as link:
        await link.call(Watch(), START_S)
        await back.wait_topics("before", "after")
        assert {server.node for server in back.image.servers} == {"r1", "r2", "r3"}
        quorum = await link.call(DescribeQuorum(), START_S)
        assert isinstance(quorum, QuorumAnswer) and quorum.active == second


async def test_all_controllers_killed_at_once_come_back_with_everything(controllers: Controllers) -> None:
    first = await controllers.wait_active(["c1", "c2", "c3"], {})
    async with controllers.link(first, "replica", "r1") as link:
        await link.call(Register("r1", "ws://r1"), START_S)
    async with controllers.link(first) as link:
        await link.call(CreateTopic("kept"), START_S)
    after = {node: len(process.events) for node, process in controllers.nodes.items()}
    for process in controllers.nodes.values():
        await process.kill()
    await controllers.start(*controllers.nodes)
    active = await controllers.wait_active(list(controllers.nodes), after)
    async with controllers.link(active) as link:
        with pytest.raises(BrokerError, match="TOPIC_EXISTS"):
            await link.call(CreateTopic("kept"), START_S)


async def refused(*arguments: str) -> str:
    """What a controller prints that refuses to start."""
    command = [sys.executable, "-m", "tidelog_controller", *arguments]
    with trio.fail_after(START_S):
        done = await trio.run_process(command, check=False, capture_stderr=True, env=dict(os.environ))
    assert done.returncode == 2, done.stderr
    return done.stderr.decode()


async def test_all_faults_of_a_wrong_configuration_are_reported_together(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text('node = "c1"\nprot = 1\n[settings]\nsession_timeout_s = "soon"\n[peers]\nc2 = "http://x"\n')
    told = await refused("--config", str(config))
    assert "prot is unknown; did you mean port?" in told
    assert "session_timeout_s" in told
    config.write_text('node = "c1"\n[peers]\nc2 = "http://x"\n')
    told = await refused("--config", str(config))
    assert "c1 is not among c2" in told
    assert "ws://host:port" in told


async def test_running_controllers_data_is_refused_to_another_process(
    controllers: Controllers, tmp_path: Path
) -> None:
    assert "in use by another process" in await refused(
        *("--node", "c1", "--cluster", "test", "--port", "0", "--data-dir", str(tmp_path / "c1"))
    )
    await controllers.nodes["c1"].kill()
    assert "belongs to node 'c1' of cluster 'test'" in await refused(
        *("--node", "c1", "--cluster", "other", "--port", "0", "--data-dir", str(tmp_path / "c1"))
    )
