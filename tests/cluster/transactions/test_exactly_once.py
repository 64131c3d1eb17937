"""Spark's sink over a whole cluster, without Spark around it: what is seen when tasks and batches are run again."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from contextvars import ContextVar
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
from tidelog.client.log import Log
from tidelog.client.trio_loop import connect

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'tidelog[spark]'")

import pyarrow as pa
from tidelog.spark import sink
from tidelog.spark.errors import SourceError
from tidelog.spark.sink import TidelogStreamWriter, Written
from tidelog.spark.write import task_input
from tidelog.spark.write.options import parse

from cluster.harness import running
from cluster.transactions.test_transactions import seen, seen_at_last

TASK: ContextVar[SimpleNamespace] = ContextVar("task")


class Query:
    """A streaming query as the sink knows it. What it calls has nothing in common with the call before."""

    def __init__(self, url: str) -> None:
        self._url = url

    def _writer(self) -> TidelogStreamWriter:
        return TidelogStreamWriter(parse({"gateway": self._url, "topic": "orders"}, streaming=True))

    async def write(self, batch: int, task: int, *values: str) -> Written:
        """An attempt of a task."""
        properties = {sink.QUERY_ID: "query", sink.BATCH_ID: str(batch)}
        TASK.set(SimpleNamespace(partitionId=lambda: task, getLocalProperty=properties.get))
        rows = [pa.RecordBatch.from_pydict({"value": list(values)})] if values else []
        written = await trio.to_thread.run_sync(self._writer().write, iter(rows))
        assert isinstance(written, Written)
        return written

    async def commit(self, batch: int, *messages: Written) -> None:
        await trio.to_thread.run_sync(self._writer().commit, list(messages), batch)

    async def abort(self, batch: int, *messages: Written | None) -> None:
        await trio.to_thread.run_sync(self._writer().abort, list(messages), batch)


@pytest.fixture
async def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Query, Log]]:
    monkeypatch.setattr(sink, "TaskContext", SimpleNamespace(get=TASK.get))
    monkeypatch.setattr(task_input, "_input", lambda: io.BufferedReader(io.BytesIO(b"the rows are all there")))
    async with running(tmp_path) as cluster, connect(cluster.gateway) as log:
        await log.topics.create("orders", partitions=2, replication_factor=3)
        yield Query(cluster.gateway), log


async def test_a_batch_is_seen_whole_or_not_at_all_and_once(stage: tuple[Query, Log]) -> None:
    query, log = stage
    one, two, empty = await query.write(0, 0, "a", "b"), await query.write(0, 1, "c"), await query.write(0, 2)
    assert (one.rows, two.rows, empty) == (2, 1, Written(0)), "who has nothing to write stages nothing"
    assert await seen(log) == []
    await query.commit(0, one, two, empty)
    await seen_at_last(log, b"a", b"b", b"c")

    # The driver ends before it notes that, and the batch is cut in another way after the restart.
    again = [await query.write(0, task, value) for task, value in enumerate("cab")]
    await query.commit(0, *again)
    await query.commit(1, await query.write(1, 0, "d"))
    await seen_at_last(log, b"a", b"b", b"c", b"d")


async def test_of_attempts_that_write_the_same_one_counts(stage: tuple[Query, Log]) -> None:
    query, log = stage
    await query.write(0, 0, "a"), await query.write(0, 3, "left by a driver that ended")
    later = await query.write(0, 0, "a")
    await query.commit(0, later)
    await query.commit(1, await query.write(1, 0, "b"))
    await seen_at_last(log, b"a", b"b")
    with trio.fail_after(30):
        while not await all_is_stable(log):
            await trio.lowlevel.checkpoint()


async def all_is_stable(log: Log) -> bool:
    """Nothing is open that readers would have to wait for."""
    partitions = (await log.topics.describe("orders", offsets=True)).partitions
    ends = [await log.partitions.list_offset("orders", number, "latest") for number in range(len(partitions))]
    return [end.offset for end in ends] == [partition.high_watermark for partition in partitions]


async def test_a_batch_that_fails_is_never_seen(stage: tuple[Query, Log]) -> None:
    query, log = stage
    done = await query.write(0, 0, "a")
    await query.abort(0, done, None)
    with pytest.raises(SourceError, match=r"\[TIDELOG_NOT_WRITTEN\] not prepared, or not any more: owner=query/0-0-"):
        await query.commit(0, done)
    await query.commit(0, done := await query.write(0, 0, "b"))
    await query.abort(0, done)  # does nothing to what is committed
    await seen_at_last(log, b"b")
