"""Tables of a whole cluster: ``read_arrow`` reads what the record iterator reads, beside aborted transactions too."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import tidelog
import trio

from cluster.harness import running


async def test_a_table_has_the_committed_records_and_no_others(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, tidelog.connect(cluster.gateway) as log:
        await log.topics.create("orders", partitions=2, replication_factor=3, config={"flush": "os"})
        options = tidelog.ProducerOptions(compression="zstd", batch_bytes=2000)
        async with log.producer("orders", options) as producer:
            for n in range(300):
                await producer.submit(b"%d" % n, key=b"k%d" % (n % 7), headers={"n": b"%d" % n} if n % 2 else {})
        with suppress(ZeroDivisionError):
            async with log.transaction("billing") as tx:
                await tx.submit("orders", b"never seen")
                raise ZeroDivisionError
        async with log.transaction("billing") as tx:
            await tx.submit("orders", b"last")
        await log.wait_visible("billing")
        with trio.fail_after(60):
            records = [record async for record in log.consume("orders", start="earliest", end="latest")]
            batches = [batch async for batch in log.read_arrow("orders")]
        rows = sorted(
            (
                row["partition"],
                row["offset"],
                row["key"],
                row["value"],
                tuple((h["key"], h["value"]) for h in row["headers"]),
            )
            for batch in batches
            for row in batch.to_pylist()
        )
        assert len(rows) == 301
        assert rows == sorted((r.partition, r.offset, r.key, r.value, r.headers) for r in records)
