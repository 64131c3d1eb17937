"""The parts of a chaos run with a table: its store, which fails as it is told, and the count at the end, which
finds what is lost and what is there twice. Tests ``deploy/chaos/table``: store, object_store, count and
pipeline_process."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trio
from botocore.config import Config
from botocore.exceptions import ClientError, EndpointConnectionError
from chaos.table.count import count_rows
from chaos.table.object_store import BUCKET, ObjectStore
from chaos.table.pipeline_process import declaration
from tidelog.cli.local.local_cluster import free_base_port
from tidelog.spark.pipelines.declaration import parse

ONCE = Config(retries={"total_max_attempts": 1})


class Folder:
    """A client of an object store whose objects are files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def download_file(self, bucket: str, key: str, path: str) -> None:
        assert bucket == BUCKET
        shutil.copy(self._folder / key, path)


def table(folder: Path, *files: list[tuple[int, int, int]]) -> tuple[list[str], Folder]:
    """Files with rows of (number, partition, offset)."""
    keys = []
    for n, rows in enumerate(files):
        keys.append(f"{n}.parquet")
        columns = {
            "value": pa.array([b"%d" % number for number, _, _ in rows], pa.binary()),
            "partition": pa.array([partition for _, partition, _ in rows], pa.int32()),
            "offset": pa.array([offset for _, _, offset in rows], pa.int64()),
        }
        pq.write_table(pa.table(columns), folder / keys[-1])
    return keys, Folder(folder)


@pytest.mark.parametrize(
    ("files", "lost", "twice", "faults"),
    [
        ([[(0, 0, 0), (1, 1, 0)], [(2, 0, 1), (3, 1, 1)]], 0, 0, 0),
        ([[(0, 0, 0), (1, 1, 0)], [(2, 0, 1)]], 1, 0, 2),  # a row is missing
        ([[(0, 0, 0), (1, 1, 0)], [(2, 0, 1), (3, 1, 1)], [(2, 0, 1)]], 0, 1, 2),  # a batch was committed twice
        ([[(0, 0, 0), (1, 1, 0), (2, 0, 1), (2, 1, 1)]], 1, 1, 2),  # the number of rows is right
        ([[(0, 0, 0), (1, 1, 0), (2, 0, 1), (9, 1, 1)]], 0, 0, 1),  # a record that nobody has sent
        ([], 4, 0, 3),
    ],
)
def test_the_count_finds_what_is_lost_and_what_is_there_twice(
    tmp_path: Path, files: list[list[tuple[int, int, int]]], lost: int, twice: int, faults: int
) -> None:
    keys, client = table(tmp_path, *files)
    counted = count_rows(keys, client, tmp_path / "counted", 4, {0: 2, 1: 2})
    assert (counted.lost, counted.twice, len(counted.faults)) == (lost, twice, faults), counted


def test_a_partition_without_rows_is_found(tmp_path: Path) -> None:
    keys, client = table(tmp_path, [(0, 0, 0), (1, 0, 1)])
    assert count_rows(keys, client, tmp_path / "counted", 2, {0: 2, 1: 1}).faults


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[tuple[ObjectStore, Any]]:
    store = ObjectStore(folder / "store", free_base_port(2))
    try:
        await store.start()
        yield store, store.client(ONCE)
    finally:
        store.close()


def put(client: Any, key: str) -> int:
    """The status of a put, of an object that must not exist."""
    try:
        answer = client.put_object(Bucket=BUCKET, Key=key, Body=b"x", IfNoneMatch="*")
    except ClientError as error:
        answer = error.response
    status: int = answer["ResponseMetadata"]["HTTPStatusCode"]
    return status


async def test_a_store_keeps_what_it_has_over_kills_and_fails_as_it_is_told(tmp_path: Path) -> None:
    async with running(tmp_path) as (store, client):
        assert put(client, "one") == 200 and put(client, "one") == 412
        store.refuse()
        assert put(client, "two") == 503
        store.answer_late()
        assert sorted((put(client, "three"), put(client, "four"))) == [200, 500]
        store.be_well()
        assert [put(client, key) for key in ("two", "three", "four")] == [200, 412, 412]
        store.kill_front()
        with pytest.raises(EndpointConnectionError):
            put(client, "one")
        await store.start_front()
        assert put(client, "one") == 412
        assert client.get_object(Bucket=BUCKET, Key="one", Range="bytes=0-0")["Body"].read() == b"x"
        assert client.head_object(Bucket=BUCKET, Key="one")["ContentLength"] == 1
        half = b"PUT /lake/half HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf"
        chunks = b"PUT /lake/chunks HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n0\r\n\r\n"
        for request in (half, chunks):
            stream = await trio.open_tcp_stream("127.0.0.1", store.port)
            async with stream:
                await stream.send_all(request)
                await stream.send_eof()
                await stream.receive_some(1000)
        found = {one["Key"]: one["Size"] for one in client.list_objects_v2(Bucket=BUCKET)["Contents"]}
        assert "half" not in found and found["chunks"] == 3


@pytest.mark.parametrize("format", ["iceberg", "delta"])
def test_the_pipeline_is_one_that_tidelog_takes(format: str, tmp_path: Path) -> None:
    options = {"s3.endpoint": "http://127.0.0.1:1", "s3.region": "us-east-1"}
    pipeline = parse(declaration(format, "1 second", 500, tmp_path, "ws://127.0.0.1:1,ws://127.0.0.1:2", options))
    [output] = pipeline.outputs
    assert output.options == options and getattr(output, format)
    assert pipeline.inputs[0].options == {"maxOffsetsPerTrigger": "500"}
