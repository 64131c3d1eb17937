"""docs/upgrade.md, as it is written, under load: a cluster of feature level 1 is upgraded process by process, and
raised. No produce fails, nothing that was acked is lost, and who is left behind is refused."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import tidelog
import trio
from tidelog.cli.local.local_cluster import free_base_port
from tidelog.errors import TidelogError
from tidelog.feature_levels import NEWEST, Levels, service_hello
from tidelog.net.link import connect_link
from tidelog.timeline.records import decode
from tidelog.types import TIMELINE

from cluster.harness import Cluster, running, wait_registered

PAGE = Path(__file__).parents[2] / "docs" / "upgrade.md"
TOPIC, PARTITIONS = "orders", 2
OLD = {"feature_level_max": 1}


def steps() -> list[list[str]]:
    """The commands of the page's procedure, each without the name of the program."""
    block = re.search(r"^## The procedure$.*?^```sh\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert block is not None
    lines = [line.partition("#")[0].split() for line in block[1].splitlines()]
    assert all(line[0] == "tidelog" for line in lines)
    return [line[1:] for line in lines]


def test_the_page_restarts_controllers_then_servers_then_gateways_and_raises_the_level_at_the_end() -> None:
    nodes = [step[2] for step in steps() if step[:2] == ["cluster", "restart"]]
    assert nodes == [step[2] for step in steps() if step[:2] == ["cluster", "end"]]
    assert nodes == ["c1", "c2", "c3", "r1", "r2", "r3", "g1", "g2"]
    assert steps()[-1] == ["features", "raise"]


class Load:
    """A producer, which waits for each ack before it sends on, in each partition."""

    def __init__(self) -> None:
        self.acked: dict[tuple[int, int], bytes] = {}
        self._over = False
        self._news = trio.Event()

    async def run(self, log: tidelog.Log) -> None:
        """Until ``end``; whatever fails is raised."""
        async with log.producer(TOPIC) as producer, trio.open_nursery() as nursery:
            for partition in range(PARTITIONS):
                nursery.start_soon(self._send, producer, partition)

    async def _send(self, producer: tidelog.Producer, partition: int) -> None:
        while not self._over:
            value = b"%d" % len(self.acked)
            ack = await producer.send(value, partition=partition)
            self.acked[partition, ack.offset] = value
            self._news.set()
            self._news = trio.Event()

    async def more(self) -> None:
        """Wait for some acks more."""
        wanted = len(self.acked) + 4 * PARTITIONS
        while len(self.acked) < wanted:
            await self._news.wait()

    def end(self) -> None:
        """Send no more."""
        self._over = True


@asynccontextmanager
async def old_cluster(folder: Path) -> AsyncIterator[tuple[Cluster, tidelog.Log]]:
    """A cluster that acts as one of an earlier release, with two gateways, and a client."""
    port = free_base_port(6) + 3  # controllers take the first three
    settings = {node: OLD for node in ("c1", "c2", "c3", "r1", "r2", "r3")}
    settings |= {f"g{n}": {**OLD, "port": port + n - 1, "shutdown_s": 5.0} for n in (1, 2)}
    async with running(folder, controllers=3, shutdown_s=5.0, settings=settings) as cluster:
        urls = [cluster.gateway, await cluster.start("g2")]
        async with tidelog.connect(urls) as log:
            await log.topics.create(TOPIC, partitions=PARTITIONS, replication_factor=3)
            yield cluster, log


async def take(cluster: Cluster, log: tidelog.Log, step: list[str]) -> None:
    """One step of the procedure, and what it says to wait for."""
    match step:
        case ["features", "list"]:
            assert all(one.level_max == 1 for one in (await log.cluster.features()).processes)
        case ["features", "raise", "--dry-run"]:
            await log.cluster.raise_level(NEWEST, dry_run=True)
        case ["features", "raise"]:
            await log.cluster.raise_level(NEWEST)
        case ["cluster", "end", node]:
            await cluster.stop(node)
        case ["cluster", "restart", node]:
            cluster.settings[node] = {k: v for k, v in cluster.settings[node].items() if k not in OLD}
            url = await cluster.start(node)
            if node.startswith("r"):
                await wait_registered(cluster, [url])
                await in_sync(log)
        case _:
            raise AssertionError(f"no step of an upgrade: {step}")


async def in_sync(log: tidelog.Log) -> None:
    """Every replica is in sync, and every partition has a leader."""
    while True:
        found = (await log.topics.describe(TOPIC)).partitions
        if all(p.leader and len(p.isr) == len(p.replicas) for p in found):
            return


async def test_a_rolling_upgrade_under_load_loses_nothing_and_fails_no_produce(tmp_path: Path) -> None:
    load = Load()
    with trio.fail_after(120):
        async with old_cluster(tmp_path) as (cluster, log):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(load.run, log)
                await load.more()
                with pytest.raises(TidelogError, match=r"replica r1 understands 1; .*gateway g2 understands 1"):
                    await log.cluster.raise_level(NEWEST)
                for step in steps():
                    await take(cluster, log, step)
                    await load.more()
                load.end()
            told = await log.cluster.features()
            assert told.level == NEWEST and all(one.level_max == NEWEST for one in told.processes)
            await check_records(log, load)
            await wait_told(log, f"the cluster is at feature level {NEWEST} from now on, after 1")
            await check_refusal(cluster)


async def check_records(log: tidelog.Log, load: Load) -> None:
    """All that was acked is there, where it was acked, and every replica has it."""
    there = {}
    async for record in log.consume(TOPIC, start="earliest", end="latest"):
        there[record.partition, record.offset] = record.value
    assert load.acked.items() <= there.items()
    topic = await log.topics.describe(TOPIC)
    for partition in range(PARTITIONS):
        compared = await log.partitions.compare_replicas(topic, partition, ("r1", "r2", "r3"))
        assert compared.difference is None and len(compared.compared) == 3


async def wait_told(log: tidelog.Log, words: str) -> None:
    """Until the timeline says so."""
    async for record in log.consume(TIMELINE, start="earliest"):
        told = decode(record.value)
        if told is not None and told.get("words", "").startswith(words):
            return


async def check_refusal(cluster: Cluster) -> None:
    """Every controller refuses a process of the earlier release, with words."""
    for url in cluster.controllers.values():
        for role in ("replica", "gateway", "controller"):
            hello = service_hello(role, "late", "test", Levels(1, 1))
            words = f"at feature level {NEWEST}, late understands 1: upgrade it"
            with pytest.raises(TidelogError, match=words) as caught:
                async with connect_link(cluster.transport, url, hello, lambda *_: None):
                    pass
            assert caught.value.code == "UNSUPPORTED_LEVEL"
