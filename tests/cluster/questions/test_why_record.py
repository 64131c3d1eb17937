"""``tidelog why TOPIC/PARTITION@OFFSET`` on a real cluster: records of plain producers, transactions and groups, on
both sides of a change of leaders."""

from __future__ import annotations

from pathlib import Path

import tidelog

from cluster.harness import running
from cluster.questions.answers import why, why_by_command, why_until


async def test_a_plain_record_a_group_and_a_former_leader(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, tidelog.connect(cluster.gateway) as log:
        await log.topics.create("orders", replication_factor=3, config={"retention_waits_for": "archive"})
        async with log.producer("orders") as producer:
            for number in range(3):
                await producer.send(b"value", key=f"k{number}".encode())
            first = (await log.topics.describe("orders")).partitions[0]
            other = next(node for node in first.isr if node != first.leader)
            await log.partitions.transfer("orders", 0, other)
            await producer.send(b"later")
        async with log.consume("orders", group="archive") as member:
            for _ in range(2):
                await member.__anext__()
            await member.commit()

        found = await why_by_command(cluster, "orders/0@1")
        facts, text = found["facts"], " ".join(found["sentences"])
        assert facts["batch"]["key"] == "k1" and facts["batch"]["producer_id"] > 0
        assert facts["taken_by"]["leader"] == first.leader and facts["batch"]["leader_epoch"] == first.leader_epoch
        assert f"by {first.leader}, which led from " in text and f"; {other} leads now." in text
        assert "It is durable (fsync) on r" in text and "missing on" not in text
        assert facts["groups"]["archive"]["offset"] == 2 and "Archived by archive" in text
        assert "Not archived yet by archive" in " ".join((await why(log, "orders/0@2"))["sentences"])
        later = await why(log, "orders/0@3")
        assert later["facts"]["taken_by"]["leader"] == other
        assert (await why(log, "orders/0@4"))["sentences"] == [
            "orders/0 has no record 4 yet: its high watermark is 4."
        ]


async def test_transactions_that_are_open_committed_and_aborted(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, tidelog.connect(cluster.gateway) as log:
        await log.topics.create("orders", replication_factor=3)
        async with log.transaction("etl") as tx:
            await tx.send("orders", b"kept")
            opened = " ".join((await why(log, "orders/0@0"))["sentences"])
            assert "in a transaction of application etl" in opened and "Its transaction is open" in opened
            assert "Readers of committed records wait at offset 0" in opened
        await log.wait_visible("etl")
        kept = await why(log, "orders/0@0")
        assert kept["facts"]["batch"]["marker"]["committed"] is True
        assert "Its transaction was committed: the marker at offset 1" in " ".join(kept["sentences"])
        try:
            async with log.transaction("etl") as tx:
                await tx.send("orders", b"dropped")
                raise KeyError
        except KeyError:
            pass
        await why_until(log, "Its transaction was aborted", "orders/0@2")
        dropped = await why(log, "orders/0@2")
        assert "Readers of committed records do not get the record." in dropped["sentences"]
        marker = await why(log, "orders/0@3")
        assert marker["sentences"] == ["orders/0 has no record at 3: the offset is that of a transaction's marker."]
