"""An idempotent stream whose micro-batch is run more than once: real Spark, a real cluster. Every attempt must be the
same producer and send the very same bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tidelog.sync
from tidelog.batch.format import BatchHeader
from tidelog.client.trio_loop import connect
from tidelog.types import Position

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark.*"),
]

RECORDS = 1200
PER_BATCH = 600
"""Records of a micro-batch, half of them from each partition of the source."""
TROUBLE = RECORDS - 60
"""The first attempt of the task that comes to this record fails, late in the second micro-batch."""
FILLING = b"x" * 2000
PATIENCE_S = 240
Batches = dict[int, list[tuple[BatchHeader, bytes]]]


@pytest.fixture
def client(cluster: Any) -> Iterator[tidelog.sync.Log]:
    with tidelog.sync.connect(cluster.url) as log:
        yield log


@pytest.fixture
def small_tables(spark: Any) -> Iterator[None]:
    """Spark hands the rows over bit by bit, so that some are written before others are read."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, 20)
    yield
    spark.conf.set(name, before)


def troubled(url: str, marker: Path) -> Callable[[bytes], bytes]:
    """A step that fails once, as long as ``marker`` is there, when records of the second micro-batch are in the
    log."""
    number, first_batch, patience_s = b"%06d" % TROUBLE, PER_BATCH, PATIENCE_S

    def passed(value: bytes) -> bytes:
        if value.startswith(number) and marker.exists():
            with tidelog.sync.connect(url) as log:
                until = time.monotonic() + patience_s
                while (
                    sum(log.partitions.list_offset("replayed", p, "latest").offset for p in range(3)) <= first_batch
                ):
                    assert time.monotonic() < until
            marker.unlink()
            raise RuntimeError("trouble")
        return value

    return passed


def batches(cluster: Any) -> Batches:
    """What lies in the log of each partition: headers, and the bytes that the producer has sent."""

    async def read() -> Batches:
        async with connect(cluster.url) as log:
            topic = await log.topics.describe("replayed")
            found: Batches = {}
            for partition in range(len(topic.partitions)):
                mine = found[partition] = []
                while True:
                    at = Position(-1, mine[-1][0].end_offset if mine else 0)
                    _, more = await log.read_batches(topic.topic_id, partition, at)
                    if not more:
                        break
                    mine += [(header, bytes(data)) for header, data in more]
            return found

    return cluster.run(read)  # type: ignore[no-any-return]


def as_sent(found: Batches, epoch: int) -> list[tuple[int, bytes]]:
    """The batches of a micro-batch without what leaders write into them: partition, and bytes from the CRC on."""
    return sorted(
        (partition, data[12:])
        for partition, mine in found.items()
        for header, data in mine
        if header.producer_epoch == epoch
    )


def test_attempts_of_a_micro_batch_send_the_very_same_bytes(
    spark: Any, small_tables: None, cluster: Any, client: tidelog.sync.Log, tmp_path: Path
) -> None:
    from pyspark.sql import functions as f

    def run() -> None:
        reading = spark.readStream.format("tidelog").options(
            gateway=cluster.url, subscribe="played", startingOffsets="earliest", maxOffsetsPerTrigger=str(PER_BATCH)
        )
        value = f.udf(troubled(cluster.url, marker), "binary", useArrow=False)("value").alias("value")
        writing = reading.load().select("key", value).writeStream.format("tidelog")
        writing = writing.options(gateway=cluster.url, topic="replayed", delivery="idempotent", compression="zstd")
        query = writing.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()

    def forget_commit() -> None:
        """As if the driver had ended before Spark noted that the second micro-batch is done."""
        for noted in (tmp_path / "checkpoint" / "commits").glob("*1*"):
            noted.unlink()

    def create() -> None:
        client.topics.create("replayed", partitions=3, config={"flush": "os", "max_batch_bytes": "16384"})

    def numbers() -> list[int]:
        records = client.consume("replayed", start="earliest", end="latest")
        return sorted(int((record.value or b"")[:6]) for record in records)

    marker = tmp_path / "trouble"
    client.topics.create("played", partitions=2, config={"flush": "os"})
    create()
    with client.producer("played") as producer:
        for n in range(RECORDS):
            producer.submit(b"%06d" % n + FILLING, key=b"k%d" % n, partition=n % 2)
    marker.touch()
    run()
    assert not marker.exists(), "the second micro-batch has met trouble"
    first = batches(cluster)
    assert numbers() == list(range(RECORDS)), "a task that failed is run again"

    headers = [header for mine in first.values() for header, _ in mine]
    assert len({header.producer_id for header in headers}) == 2, "one for each task, in every micro-batch"
    for epoch in (0, 1):
        times = {(h.first_timestamp, h.max_timestamp) for h in headers if h.producer_epoch == epoch}
        assert len(times) == 1 and len(set(times.pop())) == 1, "a micro-batch has one time"

    forget_commit()
    run()
    assert numbers() == list(range(RECORDS)), "a restarted driver runs the last micro-batch again"
    assert batches(cluster) == first, "the log is as it was"

    client.topics.delete("replayed")
    create()
    forget_commit()
    run()
    replayed = batches(cluster)
    assert as_sent(replayed, epoch=1) == as_sent(first, epoch=1), "ids, sequences, CRCs and all other bytes"
    assert as_sent(replayed, epoch=0) == []
    assert min(len(mine) for mine in replayed.values()) > 10, "more than leaders remember of a producer"
