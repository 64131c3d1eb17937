"""``tidelog why slow`` on a real cluster: a slow disk of the leader is named."""

from __future__ import annotations

from pathlib import Path

import tidelog
from tidelog.explain.samples import total
from tidelog.explain.slow import ACKS, COMMITS, FLUSHES

from cluster.harness import running
from cluster.questions.answers import why, why_by_command


async def test_the_stations_of_real_acks(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, tidelog.connect(cluster.gateway) as log:
        await log.topics.create("orders", replication_factor=3)
        assert (await why(log, "slow", "orders"))["facts"]["acks"]["count"] == 0
        async with log.producer("orders") as producer:
            for _ in range(10):
                await producer.send(b"value")
        found = await why_by_command(cluster, "slow", "orders/0")
        facts = found["facts"]
        leader = (await log.topics.describe("orders")).partitions[0].leader
        assert 0 < facts["acks"]["count"] <= 10 and facts["leaders"] == [leader]
        assert facts["servers"][leader]["commit"]["count"] <= 10
        assert found["sentences"][0].startswith("Most of the time of an ack of orders/0 goes to the ")
        for node, metric in (("", ACKS), (leader, COMMITS), (leader, FLUSHES)):
            answer = await log.cluster.metrics(node)
            assert answer.recent_ms >= 0 and f"{metric}_count" in answer.recent
            assert total(answer.recent, f"{metric}_count") <= total(answer.page, f"{metric}_count")
