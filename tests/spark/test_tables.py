"""Outputs of a pipeline that are tables: real Spark, a real cluster, and each record once whatever is run twice."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tidelog.sync

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'tidelog[spark]'")

import duckdb
import polars
import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from tidelog.spark.pipelines import table_outputs
from tidelog.spark.pipelines.declaration import parse
from tidelog.spark.pipelines.run import Run
from tidelog.spark.table_sink import Staged, TableStreamWriter
from tidelog.spark.table_sink import parse as parse_options
from tidelog.tables.columns import PartitionField
from tidelog.tables.commit_protocol import owner_of
from tidelog.tables.manifest import read_manifest
from tidelog.tables.tables import open_table, open_writer, read_offset

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark.*"),
]

RECORDS = 300
DAYS = (PartitionField("at", by_day=True), PartitionField("city"))
FORMATS = ("iceberg", "delta", "manifest")
PIPELINE = """
    name = "lake"
    [in.events]
    topic = "events"
    value = "json"
    schema = "id INT, city STRING, at TIMESTAMP{more}"
    options = {{ maxOffsetsPerTrigger = 100 }}
    [out.iceberg]
    from = "events"
    iceberg = "shop.events"
    partition-by = ["day(at)", "city"]
    [out.delta]
    from = "events"
    delta = "delta"
    partition-by = ["day(at)", "city"]
    [out.manifest]
    from = "events"
    manifest = "manifest"
    partition-by = ["day(at)", "city"]
    [out.latest]
    from = "events"
    delta = "latest"
    upsert-by = "city"
"""


@pytest.fixture
def client(cluster: Any) -> Iterator[tidelog.sync.Log]:
    with tidelog.sync.connect(cluster.url) as log:
        yield log


def produce(client: tidelog.sync.Log, start: int, count: int, **more: object) -> None:
    with client.producer("events") as producer:
        for n in range(start, start + count):
            value = {"id": n, "city": ("Å b", "B")[n % 2], "at": f"2026-01-{1 + n % 3:02}T10:00:00.{n:06}Z", **more}
            producer.submit(json.dumps(value).encode(), partition=n % 2)


def address_of(name: str, folder: Path) -> Any:
    options = {
        "iceberg": {
            "format": "iceberg",
            "table": "shop.events",
            "catalog.type": "sql",
            "catalog.uri": f"sqlite:///{folder}/warehouse/catalog.db",
            "catalog.warehouse": f"{folder}/warehouse",
        },
        "delta": {"format": "delta", "table": str(folder / "delta")},
        "manifest": {"format": "parquet", "table": str(folder / "manifest")},
    }[name]
    return parse_options(options | {"appId": f"lake.{name}"})


def read(name: str, folder: Path) -> pa.Table:
    """The rows of a table as a program reads them that knows its format and not Tidelog."""
    if name == "iceberg":
        catalog = load_catalog("tidelog", **address_of(name, folder).address.catalog)
        return catalog.load_table("shop.events").scan().to_arrow()
    if name == "delta":
        return pa.table(DeltaTable(str(folder / "delta")).to_pyarrow_table())
    paths = read_manifest(str(folder / "manifest")).paths
    return duckdb.sql(f"select * from read_parquet({paths}, union_by_name = true)").to_arrow_table()


def ids(name: str, folder: Path) -> list[int]:
    found: list[int] = read(name, folder).column("id").to_pylist()
    return sorted(found)


def latest(folder: Path) -> dict[str, int]:
    """The last record of each city, as the table has it whose rows replace others."""
    rows = pa.table(DeltaTable(str(folder / "latest")).to_pyarrow_table()).to_pylist()
    assert len(rows) == 2
    return {row["city"]: row["id"] for row in rows}


def forget_last(folder: Path, name: str) -> int:
    """As if the driver had ended between its commit and Spark's note of it. Returns the number of the batch."""
    commits = folder / "checkpoints" / name / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    for path in commits.glob(f"*{last}*"):
        path.unlink()
    return last


def test_each_record_is_in_each_table_once(
    spark: Any, cluster: Any, client: tidelog.sync.Log, tmp_path: Path
) -> None:
    def run(more: str = "") -> list[int]:
        started = Run(parse(PIPELINE.format(more=more)), spark, tmp_path, cluster.url)
        return [outcome.rows for outcome in started.finish(started.start())]

    client.topics.create("events", partitions=2, config={"flush": "os"})
    produce(client, 0, RECORDS)
    assert run() == [RECORDS] * 4
    assert latest(tmp_path) == {"Å b": RECORDS - 2, "B": RECORDS - 1}
    everything = list(range(RECORDS))
    for name in FORMATS:
        assert ids(name, tmp_path) == everything
        table = open_table(address_of(name, tmp_path).address)
        assert [read_offset(table, f"lake.{name}", "events", n) for n in (0, 1)] == [150, 150]

    replayed = [forget_last(tmp_path, name) for name in FORMATS]
    assert replayed == [2, 2, 2]
    assert forget_last(tmp_path, "latest") == 2
    assert run() == [100] * 4, "Spark runs the last batch again"
    for name in FORMATS:
        assert ids(name, tmp_path) == everything, "the table had the batch"
        assert orphans(name, tmp_path) == [], "its files are not left behind"

    for name in FORMATS:
        zombie(name, tmp_path, batch=2)
        assert ids(name, tmp_path) == everything

    produce(client, RECORDS, 10, note="x")
    assert run(more=", note STRING") == [10] * 4
    assert latest(tmp_path) == {"Å b": RECORDS + 8, "B": RECORDS + 9}
    for name in FORMATS:
        rows = read(name, tmp_path)
        assert ids(name, tmp_path) == list(range(RECORDS + 10))
        assert rows.column("note").null_count == RECORDS, "a new column is null in earlier rows"
        check_readers(name, rows, spark, tmp_path)
    check_refusals(run, tmp_path)


def check_readers(name: str, rows: pa.Table, spark: Any, folder: Path) -> None:
    """DuckDB, Polars and Spark find the same rows in a table."""
    count = RECORDS + 10
    assert duckdb.sql("select count(*), count(distinct id), count(note) from rows").fetchall() == [(count, count, 10)]
    frames = {
        "iceberg": lambda: polars.from_arrow(rows),
        "delta": lambda: polars.read_delta(str(folder / "delta")),
        "manifest": lambda: polars.scan_parquet(
            read_manifest(str(folder / "manifest")).paths, missing_columns="insert", extra_columns="ignore"
        ).collect(),
    }
    frame = frames[name]()
    assert (frame.height, set(frame["city"])) == (count, {"Å b", "B"})
    output = next(one for one in parse(PIPELINE.format(more="")).outputs if one.name == name)
    seen = table_outputs.load(spark, output, lambda path: str(folder / path))
    assert seen.selectExpr("count(*)", "count(distinct id)", "count(note)", "count(city)").collect() == [
        (count, count, 10, count)
    ]


def check_refusals(run: Any, folder: Path) -> None:
    """A lost checkpoint, and a column of another type, end the query and change no table."""
    (folder / "checkpoints").rename(folder / "lost")
    with pytest.raises(Exception, match=r"TIDELOG_TABLE_APP.*Give it another appId"):
        run(more=", note STRING")
    shutil.rmtree(folder / "checkpoints")
    (folder / "lost").rename(folder / "checkpoints")
    with pytest.raises(Exception, match=r"TIDELOG_TABLE_SCHEMA.*note is double"):
        run(more=", note DOUBLE")
    for name in FORMATS:
        assert ids(name, folder) == list(range(RECORDS + 10))


def zombie(name: str, folder: Path, batch: int) -> None:
    """A driver that is late commits a batch that the table has: it is told that all is well, and nothing changes."""
    options = address_of(name, folder)
    table = open_table(options.address)
    rows = read(name, folder).slice(0, 5)
    plan = table.prepare(rows.drop_columns(["at_day"] if "at_day" in rows.column_names else []).schema, DAYS)
    marker = table.load(options.app).marker
    assert marker is not None
    query = json.loads((folder / "checkpoints" / name / "metadata").read_text())["id"]
    assert marker.owner == owner_of(query)
    writer = open_writer(plan)
    for one in rows.to_batches():
        writer.add(one)
    late = Staged(query, batch, writer.finish(), {}, plan.layout, begun_ns=time.time_ns())
    TableStreamWriter(options, plan).commit([late], batch)
    assert orphans(name, folder) == []


def orphans(name: str, folder: Path) -> list[str]:
    """Data files that are in the folder and not in the table."""
    root = {"iceberg": folder / "warehouse", "delta": folder / "delta", "manifest": folder / "manifest"}[name]
    there = {str(path) for path in root.rglob("*.parquet") if "_delta_log" not in path.parts}
    known = set(open_table(address_of(name, folder).address).files())
    return sorted(there - known)
