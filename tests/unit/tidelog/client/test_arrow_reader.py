"""``read_arrow`` on trio, on asyncio and in threads: rows, places, forms, progress, and failures while it reads."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pyarrow as pa
import pytest
import tidelog
import tidelog.aio
import tidelog.sync
from support.fake_gateway import FakeCluster
from support.gateway_thread import served
from tidelog.batch.format import NewRecord, encode_batch, encode_control
from tidelog.client.arrow_reader import layout_of
from tidelog.errors import ConfigError, InvalidValue, TidelogError, UnreadableBatch

from unit.tidelog.client.test_unreadable_batches import garbage, planted


def fill(cluster: FakeCluster, partitions: int = 2) -> None:
    """Make a topic whose partitions have 30 records in zstd batches of 3, and control batches between them."""
    if partitions > 1:
        cluster.add_topic("orders", partitions)
    for partition in range(partitions):
        for first in range(0, 30, 3):
            records = [NewRecord(b'{"n":%d}' % n, b"k%d" % n, 1000 * n) for n in range(first, first + 3)]
            cluster.log("orders", partition).append(encode_batch(records, codec="zstd"), 4)
            cluster.log("orders", partition).append(encode_control("epoch"), 4)


def test_all_faces_read_what_the_iterator_reads() -> None:
    with served() as (cluster, url):
        fill(cluster, 1)
        with tidelog.sync.connect(url) as log:
            records = list(log.consume("orders", start="earliest", end="latest"))
            reader = log.read_arrow("orders")
            assert isinstance(reader, pa.RecordBatchReader)
            table = reader.read_all()
            middle = log.read_arrow("orders", start={0: 5}, end=12, partitions=[0], columns=["offset"]).read_all()
            assert middle["offset"].to_pylist() == [r.offset for r in records if 5 <= r.offset < 12]
        assert table["offset"].to_pylist() == [record.offset for record in records]
        assert table["value"].to_pylist() == [record.value for record in records]
        assert table["key"].to_pylist() == [record.key for record in records]

        async def on_asyncio() -> list[Any]:
            async with tidelog.aio.connect(url) as log:
                return [value async for batch in log.read_arrow("orders") for value in batch["value"].to_pylist()]

        assert asyncio.run(on_asyncio()) == [record.value for record in records]


async def test_schema_and_progress_are_known_when_the_reader_is_open() -> None:
    cluster = FakeCluster()
    fill(cluster)
    async with cluster.gateways(1) as urls, tidelog.connect(urls) as log:
        reader = log.read_arrow("orders", columns=["topic", "offset"])
        assert (reader.total, reader.remaining) == (None, None)
        with pytest.raises(ConfigError, match="open"):
            _ = reader.schema
        async with reader:
            assert reader.schema == pa.schema([("topic", pa.string()), ("offset", pa.int64())])
            assert (reader.total, reader.remaining) == (80, 80)
            rows = [row async for batch in reader for row in batch["topic"].to_pylist()]
            assert (len(rows), set(rows), reader.remaining) == (60, {"orders"}, 0)
        endless = log.read_arrow("orders", end=None, columns=["offset"])
        batch = await endless.next_batch()
        assert batch is not None and batch.num_rows >= 3 and endless.total is None


async def test_an_empty_topic_has_a_schema_and_no_batch() -> None:
    cluster = FakeCluster()
    cluster.add_topic("orders", 1)
    async with cluster.gateways(1) as urls, tidelog.connect(urls) as log:
        reader = log.read_arrow("orders", values="json")
        assert await reader.next_batch() is None
        assert reader.schema.field("value").type == pa.null()


async def test_values_that_are_no_json_follow_on_invalid() -> None:
    cluster = FakeCluster()
    cluster.add_topic("orders", 1)
    values = [b'{"n":1}', b"no", None, b'{"n":"x"}', b'{"n":2,"m":3}']
    cluster.log("orders", 0).append(encode_batch([NewRecord(value, b"\xff") for value in values]), 4)
    schema = pa.schema([("n", pa.int64())])
    async with cluster.gateways(1) as urls, tidelog.connect(urls) as log:
        how: dict[str, Any] = {"values": "json", "schema": schema, "columns": ["value"]}
        with pytest.raises(
            InvalidValue, match="orders/0 at offset 1: the value is not JSON: Expecting value"
        ) as told:
            await log.read_arrow("orders", **how).next_batch()
        assert told.value.detail == {"topic": "orders", "partition": 0, "offset": 1}
        batch = await log.read_arrow("orders", **how, on_invalid="null").next_batch()
        assert batch is not None
        assert batch.to_pylist() == [{"value": each} for each in ({"n": 1}, None, None, None, {"n": 2})]
        how["columns"] = ["key", "value"]
        batch = await log.read_arrow("orders", **how, keys="string", on_invalid="report").next_batch()
        assert batch is not None and batch.schema.names == ["key", "value", "invalid"]
        text = "key: is not text in UTF-8: invalid start byte at byte 0"
        found = batch["invalid"].to_pylist()
        assert found[0] == text and found[1].startswith(text + "; value: is not JSON")
        with pytest.raises(ConfigError, match="no common schema: Column") as told_config:
            await log.read_arrow("orders", values="json", columns=["value"]).next_batch()
        assert "Give a schema" in told_config.value.message


async def test_a_later_field_does_not_fit_an_inferred_schema() -> None:
    layout = layout_of("orders", ("value",), "json", "raw", None, "raise")
    rows = layout.row_buffer()
    rows.add(0, encode_batch([NewRecord(b'{"a":1}')]), 0, 1)
    first = rows.take()
    assert first is not None
    schema = layout.result(layout.infer(first))
    assert layout.finish(first, schema).to_pylist() == [{"value": {"a": 1}}]
    rows.add(0, encode_batch([NewRecord(b'{"a":1,"b":2}')]), 0, 1)
    second = rows.take()
    assert second is not None
    with pytest.raises(InvalidValue, match=r"unexpected field .*inferred from the first values: give one"):
        layout.finish(second, schema)


async def test_rows_before_a_failure_come_first() -> None:
    async with planted(garbage()) as (_, log):
        reader = log.read_arrow("orders", columns=["offset", "value"])
        batch = await reader.next_batch()
        assert batch is not None and batch["offset"].to_pylist() == [0, 1, 2]
        for _ in range(2):
            with pytest.raises(UnreadableBatch):
                await reader.next_batch()
        skipping = log.read_arrow("orders", columns=["value", "offset"], on_unreadable="skip")
        offsets = [offset async for batch in skipping for offset in batch["offset"].to_pylist()]
        assert offsets == [0, 1, 2, 6, 7, 8, 9]
        assert skipping.skipped_batches == 1


async def test_an_unknown_topic_and_contradictions_are_errors_that_say_what_to_do() -> None:
    cluster = FakeCluster()
    cluster.add_topic("orders", 1)
    async with cluster.gateways(1) as urls, tidelog.connect(urls) as log:
        with pytest.raises(TidelogError, match="UNKNOWN_TOPIC"):
            await log.read_arrow("nosuch").next_batch()
        for how, text in (
            ({"columns": ["valeu"]}, "there are no columns 'valeu': the columns are topic, "),
            ({"columns": []}, "columns names no column, or one twice"),
            ({"values": "xml"}, "values must be one of raw, string, json, not 'xml'"),
            ({"schema": pa.schema([])}, "a schema is for values='json'"),
            ({"values": "json", "schema": "a int"}, "schema must be a pyarrow.Schema, not str"),
            ({"on_invalid": "skip"}, "on_invalid must be one of raise, null, report"),
        ):
            with pytest.raises(ConfigError, match=text):
                log.read_arrow("orders", **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("missing", ["pyarrow", "numpy"])
def test_without_a_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    for name in [name for name in sys.modules if name.startswith("tidelog.arrow")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigError, match=rf"needs {missing}: pip install 'tidelog\[arrow\]'"):
        layout_of("orders", ("value",), "raw", "raw", None, "raise")


def test_the_progress_bar_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with served() as (cluster, url):
        fill(cluster, 1)
        with tidelog.sync.connect(url) as log:
            assert log.read_arrow("orders", progress=True).read_all().num_rows == 30
    out, err = capsys.readouterr()
    assert out == "" and "100%" in err
