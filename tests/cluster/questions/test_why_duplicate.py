"""``tidelog why duplicate`` on a real cluster: two producers, one that sends twice, and a transaction."""

from __future__ import annotations

from pathlib import Path

import tidelog

from cluster.harness import running
from cluster.questions.answers import why, why_by_command


async def test_records_of_one_producer_of_two_and_of_a_transaction(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, tidelog.connect(cluster.gateway) as log:
        await log.topics.create("orders", replication_factor=3)
        async with log.producer("orders") as producer:
            for value in (b"same", b"same", b"other"):
                await producer.send(value, key=b"k", timestamp_ms=1_795_255_109_771)
        async with log.producer("orders") as producer:
            await producer.send(b"same", key=b"k", timestamp_ms=1_795_255_109_771)
        async with log.transaction("etl") as tx:
            await tx.send("orders", b"same", key=b"k")
        await log.wait_visible("etl")

        twice = await why_by_command(cluster, "duplicate", "orders/0@1", "orders/0@0")
        assert twice["facts"]["same"] == {"key": True, "value": True, "headers": True}
        assert "its application sent the record twice" in " ".join(twice["sentences"])
        assert twice["facts"]["first"]["offset"] == 0
        two = await why(log, "duplicate", "orders/0@0", "orders/0@3")
        assert "The producer ids differ" in " ".join(two["sentences"])
        assert two["facts"]["first"]["producer_id"] != two["facts"]["second"]["producer_id"]
        others = await why(log, "duplicate", "orders/0@0", "orders/0@2")
        assert "are no duplicates: their values differ" in others["sentences"][0]
        third = await why(log, "duplicate", "orders/0@0", "orders/0@4")
        assert third["facts"]["second"]["application"] == "etl"
