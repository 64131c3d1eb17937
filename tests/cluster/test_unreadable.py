"""A batch that no reader can decode, in a topic that trusts its producers: it is acknowledged, the scrubbers find it,
``tidelog doctor`` names it, and a group passes over it on request."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import tidelog
import trio
from click.testing import CliRunner
from tidelog.cli.main import main
from tidelog.errors import UnreadableBatch
from tidelog.wire.messages import Produce, ProducePart
from tidelog_replica.config import ReplicaSettings
from unit.tidelog.client.test_unreadable_batches import garbage

from cluster.harness import QUICK_GROUPS, connected, running

OFTEN = {"settings": ReplicaSettings(shutdown_s=0.0, groups=QUICK_GROUPS, scrub_interval_s=1.0)}


async def test_it_is_named_by_the_doctor_and_skipped_by_a_group(tmp_path: Path) -> None:
    settings = {name: OFTEN for name in ("r1", "r2", "r3")}
    async with running(tmp_path, settings=settings) as cluster, tidelog.connect(cluster.gateway) as log:
        config = {"validate_batches": "false", "segment_max_bytes": "65536"}
        topic = await log.topics.create("orders", replication_factor=3, config=config)
        async with connected(cluster) as client:
            await client.init()
            batch = garbage(client.producer_id)
            client.link.post(Produce((ProducePart(1, topic.topic_id, 0, 2, 15_000, len(batch)),), batch))
            assert (await client.wait_ack(1)).error is None
        async with log.producer("orders") as producer:
            for _ in range(2):
                await producer.send(b"." * 50_000)

        with trio.fail_after(60):
            while not (await log.cluster.metrics("r2")).unreadable:
                await trio.lowlevel.checkpoint()
        (place,) = (await log.cluster.metrics("r2")).unreadable
        assert (place.topic_id, place.base_offset, place.last_offset) == (topic.topic_id, 0, 2)
        assert place.producer_id == client.producer_id
        command = partial(CliRunner().invoke, main, ["doctor", "--gateway", cluster.gateway])
        told = (await trio.to_thread.run_sync(command)).output
        assert f"orders/0 offsets 0 to 2 (producer id {client.producer_id})" in told
        assert (await log.topics.describe("orders")).partitions[0].isr, "no copy was given up"

        async with log.consume("orders", group="g") as member:
            with pytest.raises(UnreadableBatch):
                await member.__anext__()
        async with log.consume("orders", group="g", on_unreadable="skip") as member:
            assert (await member.__anext__()).offset == 3
            await member.commit()
        assert (await log.groups.fetch_offsets("g", "orders"))[0].offset == 4
