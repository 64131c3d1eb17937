"""A read that begins in a table and goes on in the log, without Spark: real tables, and a gateway in memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tidelog.sync
from support.gateway_thread import served

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'tidelog[spark]'")

from tidelog.spark.errors import SourceError
from tidelog.spark.history import HistoryReader, TablePartition
from tidelog.spark.options import parse
from tidelog.spark.read import arrow
from tidelog.spark.source import TidelogReader
from tidelog.spark.table_sink import Staged, TableStreamWriter, archive_of, joined, offsets_of
from tidelog.spark.table_sink import parse as parse_sink
from tidelog.tables.commit_protocol import Archive, merged_offsets
from tidelog.tables.tables import open_table, open_writer

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # SQLAlchemy leaves connections to be collected

PARTITIONS = 2


class Archived:
    """A topic, and a table to which it is archived."""

    def __init__(self, url: str, cluster: Any, format: str, folder: Path) -> None:
        self.url, self.cluster = url, cluster
        self.place = {
            "iceberg": "iceberg:lake.orders",
            "delta": f"delta:{folder}/table",
            "parquet": f"manifest:{folder}/table",
        }[format]
        catalog = {"catalog.type": "sql", "catalog.uri": f"sqlite:///{folder}/c.db", "catalog.warehouse": str(folder)}
        self.catalog = catalog if format == "iceberg" else {}
        self.sink = {"format": format, "table": self.place.partition(":")[2], "appId": "app", **self.catalog}
        self.batch = 0
        self.ends = dict.fromkeys(range(PARTITIONS), 0)

    def produce(self, count: int) -> None:
        with tidelog.sync.connect(self.url) as log, log.producer("orders") as producer:
            for n in range(count):
                headers = {"n": b"%d" % n} if n % 3 == 0 else None
                producer.submit(b"%d" % n, key=b"k" if n % 2 else None, headers=headers, partition=n % PARTITIONS)

    def archive(self, archive: str = "true") -> None:
        """What a pipeline does with the next micro-batch."""
        options = parse_sink(self.sink | ({"archive": archive} if archive else {}))
        start = {"orders": self.ends}
        source = TidelogReader(parse({"gateway": self.url, "subscribe": "orders", "includeHeaders": "true"}))
        plan = open_table(options.address).prepare(arrow.schema(include_headers=True), ())
        staged = []
        for partition in source.partitions():
            writer, kept, offsets = open_writer(plan), Archive(0), {}
            for whole in source.read(partition):
                first = start["orders"][partition.range.partition]
                rows = whole.filter(pa.compute.greater_equal(whole.column("offset"), first))
                if rows.num_rows:
                    writer.add(rows)
                    kept, offsets = joined(kept, archive_of(rows)), merged_offsets(offsets, offsets_of(rows))
            made = writer.finish(), offsets, plan.layout, time.time_ns(), kept if archive else None
            staged.append(Staged("q", self.batch, *made))
            self.ends |= offsets.get("orders", {})
        TableStreamWriter(options, plan).commit(staged, self.batch)
        self.batch += 1

    def reader(self, **options: str) -> HistoryReader:
        given = {"gateway": self.url, "subscribe": "orders", "history": self.place, "history.appId": "app"}
        given |= {f"history.{name}": text for name, text in self.catalog.items()}
        return HistoryReader(parse(given | {"includeHeaders": "true"} | options))

    def read(self, **options: str) -> list[dict[str, Any]]:
        source = self.reader(**options)
        return [row for one in source.partitions() for batch in source.read(one) for row in batch.to_pylist()]

    def everything(self) -> list[dict[str, Any]]:
        """All rows as the log has them."""
        source = TidelogReader(parse({"gateway": self.url, "subscribe": "orders", "includeHeaders": "true"}))
        return [row for one in source.partitions() for batch in source.read(one) for row in batch.to_pylist()]

    def delete_to(self, offset: int) -> None:
        for partition in range(PARTITIONS):
            self.cluster.log("orders", partition).start = offset


@pytest.fixture(params=["iceberg", "delta", "parquet"])
def archived(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Archived]:
    with served(PARTITIONS) as (cluster, url):
        yield Archived(url, cluster, request.param, tmp_path)


def test_each_row_is_read_once_and_is_the_same_from_the_table(archived: Archived) -> None:
    archived.produce(40)
    archived.archive()
    archived.produce(60)
    archived.archive()
    archived.archive()  # a batch without rows
    expected_places = [("table", 0, 50), ("log", 50, 60)] * PARTITIONS
    open_table(parse_sink(archived.sink).address).compact(1 << 20)
    archived.produce(20)
    expected = archived.everything()
    archived.delete_to(50)
    assert archived.read() == expected
    assert [len(expected), {row["offset"] for row in expected}] == [120, set(range(60))]
    places = [
        ("table" if isinstance(one, TablePartition) else "log", one.range.start, one.range.end)
        for one in archived.reader().partitions()
    ]
    assert places == expected_places
    assert archived.read(minPartitions="9", maxRecordsPerPartition="7") == expected
    names = ["key", "value", "topic", "partition", "offset", "leader_epoch", "timestamp"]
    assert archived.read(includeHeaders="false") == [{name: row[name] for name in names} for row in expected]


def test_a_log_that_begins_behind_the_join_is_a_loss(archived: Archived) -> None:
    archived.produce(40)
    archived.archive()
    archived.produce(20)
    archived.delete_to(23)
    with pytest.raises(SourceError, match=r"TIDELOG_DATA_LOSS\] orders/0.*offsets 20 to 22: deleted by retention"):
        archived.read()
    left = [row["offset"] for row in archived.read(failOnDataLoss="false")]
    assert left == [*range(20), *range(23, 30)] * PARTITIONS


def test_a_log_that_was_written_anew_below_the_join_is_a_loss(archived: Archived) -> None:
    """An unclean election: records that the table has were replaced in the log."""
    archived.produce(40)
    archived.archive()
    for partition in range(PARTITIONS):
        log = archived.cluster.log("orders", partition)
        log.batches.clear()
        log.end = 0
    archived.cluster.epoch += 1
    with pytest.raises(SourceError, match=r"TIDELOG_DATA_LOSS\] orders/0.*offsets 0 to 19: truncated"):
        archived.read()
    assert len(archived.read(failOnDataLoss="false")) == 40, "the table has them still"
    archived.produce(60)
    [_, behind, *_] = archived.reader().partitions()
    assert (behind.range.start, behind.range.start_epoch) == (20, archived.cluster.epoch - 1), "the leader compares"


def test_a_batch_that_was_no_archive_ends_the_archive(archived: Archived) -> None:
    archived.produce(10)
    archived.archive()
    assert len(archived.read()) == 10
    archived.archive(archive="")
    archived.archive()
    with pytest.raises(SourceError, match=r"TIDELOG_HISTORY.*is not known to have every record"):
        archived.read()


def test_a_topic_that_was_made_anew_is_noticed(archived: Archived) -> None:
    archived.produce(10)
    archived.archive(archive='{"orders": "an earlier one"}')
    with pytest.raises(SourceError, match=r"TIDELOG_TOPIC_CHANGED"):
        archived.read()


def test_a_file_that_is_not_parquet_is_said(archived: Archived) -> None:
    archived.produce(4)
    archived.archive()
    for path in open_table(parse_sink(archived.sink).address).files():
        Path(path).write_bytes(b"PAR1, and then something else")
    with pytest.raises(SourceError, match="TIDELOG_HISTORY"):
        archived.read()


def test_a_table_that_is_not_there_is_said(archived: Archived) -> None:
    with pytest.raises(SourceError, match=r"TIDELOG_HISTORY\] .*(there is no (Delta )?table|no such table)"):
        archived.read()


def test_what_cannot_be_a_history_is_said(tmp_path: Path) -> None:
    with served(PARTITIONS) as (cluster, url):
        archived = Archived(url, cluster, "parquet", tmp_path)
        archived.produce(10)
        archived.archive()
        with pytest.raises(SourceError, match=r"TIDELOG_HISTORY.*no application other; it has app"):
            archived.read(**{"history.appId": "other"})
        assert len(archived.read(**{"history.appId": ""})) == 10, "the only one"
        [path, *_] = open_table(parse_sink(archived.sink).address).files()
        twice = pa.concat_tables([pq.read_table(path).slice(0, 4), pq.read_table(path).slice(0, 1)])
        pq.write_table(twice, path)
        with pytest.raises(SourceError, match=r"TIDELOG_HISTORY.*the table has an offset twice"):
            archived.read()
        pq.write_table(twice.slice(0, 4), path)
        with pytest.raises(SourceError, match=r"TIDELOG_DATA_LOSS.*9 of the 10 rows"):
            archived.read()
