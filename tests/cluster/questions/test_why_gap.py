"""``tidelog why gap`` on a real cluster: transactions, a batch that cannot be decoded, and what was deleted."""

from __future__ import annotations

from pathlib import Path

import tidelog
from tidelog.wire.messages import Produce, ProducePart
from tidelog_replica.config import ReplicaSettings
from unit.tidelog.client.test_unreadable_batches import garbage

from cluster.harness import QUICK_GROUPS, connected, running
from cluster.questions.answers import why, why_by_command, why_until

QUICK = ReplicaSettings(shutdown_s=0, groups=QUICK_GROUPS, retention_check_interval_s=0.05)


async def test_transactions_and_a_batch_that_no_reader_can_decode(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, tidelog.connect(cluster.gateway) as log:
        await log.topics.create("orders", replication_factor=3, config={"validate_batches": "false"})
        try:
            async with log.transaction("etl") as tx:
                await tx.send("orders", b"dropped")
                raise KeyError
        except KeyError:
            pass
        await why_until(log, "Offset 0: records of a transaction that was aborted", "gap", "orders/0@0")
        topic = await log.topics.describe("orders")
        async with connected(cluster) as client:
            await client.init()
            batch = garbage(client.producer_id)
            client.link.post(Produce((ProducePart(1, topic.topic_id, 0, 2, 15_000, len(batch)),), batch))
            assert (await client.wait_ack(1)).error is None
        async with log.producer("orders") as producer:
            end = (await producer.send(b"kept")).offset
        found = await why_by_command(cluster, "gap", "orders/0@0")
        assert [part["kind"] for part in found["facts"]["parts"]] == ["aborted", "marker", "unreadable"]
        assert found["facts"]["next_record"] == end and "application etl" in found["sentences"][1]
        beyond = await why(log, "gap", f"orders/0@{end + 1}")
        assert beyond["sentences"] == [
            f"orders/0 ends at {end + 1} (high watermark): nothing behind it is committed."
        ]


async def test_compaction_and_retention(tmp_path: Path) -> None:
    settings: dict[str, dict[str, object]] = {"r1": {"settings": QUICK}}
    async with (
        running(tmp_path, replicas=1, settings=settings) as cluster,
        tidelog.connect(cluster.gateway) as log,
    ):
        small = {"segment_max_bytes": "1024"}
        await log.topics.create("table", config={"cleanup": "compact", **small})
        await log.topics.create("short", config={"retention_records": "1", **small})
        for name in ("table", "short"):
            async with log.producer(name) as producer:
                for number in range(12):
                    await producer.send(b"%d" % number * 200, key=b"key")
        await why_until(log, "Offsets 0 to ", "gap", "table/0@0")
        found = await why(log, "gap", "table/0@0")
        assert found["facts"]["parts"][0]["kind"] == "compacted" and found["facts"]["parts"][0]["start"] == 0
        text = await why_until(log, "deleted; the log starts at", "gap", "short/0@0")
        assert "retention_records 1" in text
