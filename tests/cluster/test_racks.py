"""A gateway and its rack: who may be served by any replica is served there."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import tidelog
import trio
from prometheus_client.parser import text_string_to_metric_families as parse

from cluster.harness import running, wait_registered

RACKS = {"r1": "east", "r2": "west", "r3": "south"}


def reads(url: str) -> float:
    """How often clients have read there."""
    with urllib.request.urlopen(url.replace("ws:", "http:") + "/metrics", timeout=30) as page:
        families = {family.name: family for family in parse(page.read().decode())}
    return float(families["tidelog_replica_reads"].samples[0].value)


async def reads_of(urls: dict[str, str]) -> dict[str, float]:
    """Return how often clients have read at each node."""
    return {node: await trio.to_thread.run_sync(reads, url) for node, url in urls.items()}


async def test_readers_of_any_replica_are_served_in_the_rack_of_their_gateway(tmp_path: Path) -> None:
    async with running(tmp_path, replicas=0) as cluster:
        cluster.settings = {node: {"rack": rack} for node, rack in RACKS.items()}
        urls = {node: await cluster.start(node) for node in RACKS}
        await wait_registered(cluster, list(urls.values()))
        async with tidelog.connect(cluster.gateway) as log:
            partition = (await log.topics.create("orders", replication_factor=3)).partitions[0]
            async with log.producer("orders") as producer:
                await producer.send(b"x")
        served: set[str] = set()
        for number, near in enumerate(RACKS):
            gateway = f"g{number + 2}"
            cluster.settings[gateway] = {"rack": RACKS[near]}
            before = await reads_of(urls)
            any_replica = tidelog.ConsumerOptions(read_from="any", consistency="bounded", max_staleness_s=1.0)
            async with tidelog.connect(await cluster.start(gateway)) as log:
                with trio.fail_after(30):
                    found = log.consume("orders", start="earliest", end={0: 1}, options=any_replica)
                    assert [record.value async for record in found] == [b"x"]
                    while (after := await reads_of(urls))[near] == before[near]:
                        continue  # a page may be shown again for a while, as it was
            served.add(near)  # of an earlier one the page may show a last read only now
            grown = {node for node in RACKS if after[node] > before[node]}
            assert near in grown <= served, f"{partition.leader} leads"
