"""What real processes show to Prometheus, and that the figures move as what happens does."""

from __future__ import annotations

import json
import urllib.request
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
from running import Cluster, in_sync, running_cluster, until
from tidelog.cli.local.local_cluster import LocalCluster
from tidelog.client.log import Log
from tidelog.client.options import GroupOptions, ProducerOptions
from tidelog_controller.observability import metrics as controller
from tidelog_gateway.observability import metrics as gateway
from tidelog_replica.observability import metrics as replica

pytestmark = pytest.mark.real

TABLES = {"controller": controller.METRICS, "replica": replica.METRICS, "gateway": gateway.METRICS}
Figures = Counter[str]
"""Values by ``name`` and by ``name{label value,…}``, in the order of the labels' names."""


@pytest.fixture
def untold_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster that writes no timeline: it holds no batch but the test's."""

    def prepare(local: LocalCluster) -> None:
        for node in ("c1", "c2", "c3"):
            with (local.folder / node / "config.toml").open("a") as config:
                config.write("[settings.timeline]\nreplication_factor = 0\n")

    with running_cluster(tmp_path / "cluster", prepare=prepare) as cluster:
        yield cluster


def read(url: str) -> str:
    """The page as Prometheus asks for it."""
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    request = urllib.request.Request(url.replace("ws:", "http:") + "/metrics", headers=accept)
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        return str(answer.read().decode())


async def look(cluster: Cluster, *nodes: str) -> Figures:
    """The figures of these processes, added up; of all that run, if none is named."""
    figures: Figures = Counter()
    for process in cluster.local.processes:
        if process.is_alive() and (not nodes or process.id in nodes):
            for family in parse(await trio.to_thread.run_sync(read, process.url)):
                for sample in family.samples:
                    figures[sample.name] += sample.value
                    figures[f"{sample.name}{{{','.join(sample.labels.values())}}}"] += sample.value
    return figures


async def led_by(log: Log, topic: str) -> str:
    return (await log.topics.describe(topic)).partitions[0].leader


async def test_every_process_shows_every_metric_of_its_table(failing_cluster: Cluster) -> None:
    for process in failing_cluster.local.processes:
        shown = {family.name: family for family in parse(await trio.to_thread.run_sync(read, process.url))}
        for metric in TABLES[process.role]:
            family = shown[metric.name]
            assert (family.type, family.documentation) == (metric.kind, metric.help)
        assert shown["process_open_fds"].samples[0].value > 0
    figures = await look(failing_cluster)
    assert figures["tidelog_controller_active"] == 1
    assert figures["tidelog_raft_role{leader}"] == 1 and figures["tidelog_raft_role{follower}"] == 2
    assert figures["tidelog_servers{live}"] == 3
    assert figures["tidelog_replica_registered"] == 3
    assert figures["tidelog_raft_persist_seconds_count"] > 0


async def test_batches_are_counted_once_at_each_station(untold_cluster: Cluster) -> None:
    cluster = untold_cluster
    async with cluster.connect() as log:
        await log.topics.create("counted", partitions=3, replication_factor=3, config={"min_insync_replicas": "2"})
        async with log.producer("counted") as producer:
            for number in range(60):
                await producer.send(b"x" * 100, key=b"%d" % number)
        assert len([r async for r in log.consume("counted", start="earliest", end="latest")]) == 60

        async def is_copied() -> bool:
            figures = await look(cluster)
            return figures["tidelog_replica_replicated_batches_total"] >= 120

        await until(is_copied)
    figures = await look(cluster)
    assert figures["tidelog_replica_replicated_batches_total"] == 120
    for name in (
        "tidelog_gateway_produced_batches_total",
        "tidelog_gateway_produced_records_total",
        "tidelog_gateway_produce_latency_seconds_count",
        "tidelog_replica_produced_batches_total",
        "tidelog_replica_produced_records_total",
        "tidelog_commit_latency_seconds_count",
        "tidelog_gateway_delivered_records_total",
    ):
        assert figures[name] == 60, name
    size = figures["tidelog_replica_produced_bytes_total"]
    assert size > 60 * 100
    assert figures["tidelog_gateway_produced_bytes_total"] == figures["tidelog_replica_log_bytes"] / 3 == size
    assert figures["tidelog_replica_replicated_bytes_total"] == 2 * size
    assert figures["tidelog_replica_flush_seconds_count"] > 0
    assert 0 < figures["tidelog_commit_latency_seconds_sum"] < figures["tidelog_gateway_produce_latency_seconds_sum"]
    assert sum(figures[f"tidelog_partition_leaders{{r{n}}}"] for n in (1, 2, 3)) == figures["tidelog_partitions"]
    assert figures["tidelog_replica_partitions{leader}"] == figures["tidelog_partitions"]


async def test_a_stopped_follower_lags_and_catches_up(failing_cluster: Cluster) -> None:
    cluster = failing_cluster
    async with cluster.connect() as log:
        await log.topics.create("lagging", replication_factor=3, config={"min_insync_replicas": "1"})
        leader = await led_by(log, "lagging")
        follower = next(f"r{n}" for n in (1, 2, 3) if f"r{n}" != leader)
        before = await look(cluster, follower)
        cluster.local.pause(follower)
        try:
            async with log.producer("lagging", ProducerOptions(acks="leader")) as producer:
                for _ in range(5):
                    await producer.send(b"x")

            async def is_seen() -> bool:
                figures = await look(cluster, leader)
                return figures[f"tidelog_partition_lag_records{{{follower},0,lagging}}"] == 5

            await until(is_seen)
            figures = await look(cluster, leader)
            assert figures[f"tidelog_replication_lag_records{{{follower}}}"] >= 5
            assert figures[f"tidelog_replication_largest_lag_records{{{follower}}}"] >= 5
            assert figures[f"tidelog_replication_lag_seconds{{{follower}}}"] > 0
            assert figures["tidelog_replica_under_replicated_partitions"] > 0
        finally:
            cluster.local.resume(follower)
        await until(partial(in_sync, log, "lagging"))

        async def is_over() -> bool:
            figures = await look(cluster, leader, follower)
            caught_up = (
                figures["tidelog_follower_catch_up_seconds_count"] > before["tidelog_follower_catch_up_seconds_count"]
            )
            lags = figures[f"tidelog_replication_lag_seconds{{{follower}}}"] > 0
            return caught_up and not lags and not figures["tidelog_catching_up_replicas"]

        await until(is_over)
        figures = await look(cluster, leader)
        assert f"tidelog_partition_lag_records{{{follower},0,lagging}}" not in figures
        assert figures[f"tidelog_replication_lag_records{{{follower}}}"] == 0


async def test_a_consumer_group_its_commits_and_its_lag(failing_cluster: Cluster) -> None:
    cluster = failing_cluster
    async with cluster.connect() as log:
        await log.topics.create("grouped", partitions=2, replication_factor=3)
        async with log.producer("grouped") as producer:
            for number in range(20):
                await producer.send(b"x", partition=number % 2)
        by_hand = GroupOptions(auto_commit_s=None)
        async with log.consume("grouped", group="slow", start="earliest", group_options=by_hand) as consumer:
            for _ in range(6):
                await anext(consumer)
            await consumer.commit()
            assert sum(progress.lag for progress in await log.groups.progress("slow")) == 14

            async def is_shown() -> bool:
                figures = await look(cluster, "r1", "r2", "r3")
                return figures["tidelog_group_lag_records{slow}"] == 14

            await until(is_shown)
            figures = await look(cluster, "r1", "r2", "r3")
            assert figures["tidelog_group_members{slow}"] == figures["tidelog_groups{stable}"] == 1
            assert figures["tidelog_group_commits_total"] >= 1
            assert figures["tidelog_group_generations_total"] >= 1 <= figures["tidelog_group_generation{slow}"]
            assert figures["tidelog_group_unknown_lag_partitions"] == 0


async def test_a_killed_leader_is_an_election_with_its_cause(failing_cluster: Cluster) -> None:
    cluster = failing_cluster
    async with cluster.connect() as log:
        await log.topics.create("elected", replication_factor=3)
        leader = await led_by(log, "elected")
        before = await look(cluster, "c1", "c2", "c3")
        led = before[f"tidelog_partition_leaders{{{leader}}}"]
        assert led >= 1
        cluster.local.kill(leader)

        async def is_elected() -> bool:
            figures = await look(cluster, "c1", "c2", "c3")
            return figures[f"tidelog_partition_leaders{{{leader}}}"] == 0 and figures["tidelog_servers{fenced}"] == 1

        await until(is_elected)
        grown = await look(cluster, "c1", "c2", "c3")
        grown.subtract(before)
        why = json.loads(cluster.ok("why", "elected/0", "--json"))
        cause = [entry["cause"] for entry in why if entry["event"] == "leader_elected"][-1]
        assert grown[f"tidelog_elections_total{{{cause}}}"] >= 1
        assert grown["tidelog_elections_total"] == led
        assert grown["tidelog_fences_total"] == grown["tidelog_controller_events_total{server_fenced}"] == 1
        assert grown["tidelog_isr_changes_total{isr_shrunk}"] + led == before["tidelog_partitions"]
        cluster.local.restart(leader)
        await until(partial(in_sync, log, "elected"))
