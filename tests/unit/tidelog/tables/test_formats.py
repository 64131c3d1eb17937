"""Tests ``tidelog.tables`` with each format: iceberg, delta and parquet."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from fsspec.implementations.local import LocalFileSystem
from model.table_subjects import FORMATS, SCHEMA, address_of, append_of, read, written
from support.s3_server import SECRET, S3Server, s3_server
from tidelog.errors import ConfigError
from tidelog.tables import upsert as upserts
from tidelog.tables.columns import PartitionField, SchemaConflict
from tidelog.tables.commit_protocol import Answer, ForeignApplication, Verdict
from tidelog.tables.committer import STAGED_S, Append, StagedTooLong, commit
from tidelog.tables.compaction import Compacted
from tidelog.tables.file_writer import FileWriter
from tidelog.tables.iceberg import IcebergTable
from tidelog.tables.manifest import FULL_EVERY, ManifestTable, read_manifest
from tidelog.tables.storage import TableFolder
from tidelog.tables.tables import open_table, read_offset
from tidelog.tables.upsert import BatchTooLarge

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # SQLAlchemy leaves connections to be collected

each_format = pytest.mark.parametrize("format", FORMATS)
WIDER = pa.schema([*SCHEMA, pa.field("city", pa.string())])
TIMES = pa.schema([("id", pa.int32()), ("at", pa.timestamp("us", "UTC")), ("city", pa.string())])
BY_DAY_AND_CITY = (PartitionField("at", by_day=True), PartitionField("city"))


def batches(address: Any) -> list[tuple[int, int]]:
    """The (batch, attempt) of each row."""
    return sorted((row["batch"], row["attempt"]) for row in read(address).to_pylist())


def committed(table: Any, *numbers: int) -> None:
    for batch in numbers:
        assert commit(table, append_of(table, batch, 100 + batch), time.time_ns()) is Verdict.MINE


@each_format
def test_of_two_drivers_that_race_one_commits(format: str, tmp_path: Path) -> None:
    address = address_of(format, tmp_path)
    one, other = open_table(address), open_table(address)
    committed(one, 0)
    mine, late = append_of(one, 1, 1), append_of(other, 1, 2)
    before = other.load("a")
    assert one.replace(one.load("a"), mine) is Answer.COMMITTED
    assert fails(other, before, late)
    assert commit(other, late, time.time_ns()) is Verdict.ANOTHER
    assert commit(one, mine, time.time_ns()) is Verdict.MINE, "the answer was lost"
    assert batches(address) == [(0, 100), (1, 1)]


@each_format
def test_many_drivers_at_a_time(format: str, tmp_path: Path) -> None:
    """Four threads commit the same batches, each with files of its own; every batch is there once."""
    address = address_of(format, tmp_path)
    with closing(open_table(address)) as table:
        table.prepare(SCHEMA, ())
    ready = threading.Barrier(4)

    def drive(number: int) -> list[Verdict]:
        with closing(open_table(address)) as table:
            verdicts = []
            for batch in range(3):
                change = append_of(table, batch, 10 * batch + number)
                ready.wait(timeout=60)
                verdicts.append(commit(table, change, time.time_ns()))
            return verdicts

    with ThreadPoolExecutor(4) as pool:
        verdicts = list(pool.map(drive, range(4)))
    for batch in range(3):
        assert sorted(mine[batch].value for mine in verdicts) == ["another"] * 3 + ["mine"]
    assert [batch for batch, _ in batches(address)] == [0, 1, 2]
    assert len(table.files()) == 3


@each_format
def test_another_application_is_no_obstacle(format: str, tmp_path: Path) -> None:
    address = address_of(format, tmp_path)
    table, other = open_table(address), open_table(address)
    committed(table, 0)
    change = append_of(other, 0, 7)
    stale = other.load("b")
    committed(table, 1)
    theirs = replace(change, app="b")
    if other.replace(stale, theirs) is not Answer.COMMITTED:
        assert commit(other, theirs, time.time_ns()) is Verdict.MINE
    assert batches(address) == [(0, 7), (0, 100), (1, 101)]
    assert [read_offset(table, app, "events", 0) for app in ("a", "b", "c")] == [20, 10, None]


@each_format
def test_a_driver_that_is_late_is_refused_after_compaction_and_expiry(format: str, tmp_path: Path) -> None:
    address = address_of(format, tmp_path)
    table, zombie = open_table(address), open_table(address)
    committed(table, 0, 1)
    before, late = zombie.load("a"), append_of(zombie, 2, 9)
    committed(table, *range(2, 2 + FULL_EVERY))
    assert table.compact(1 << 20) == Compacted(2 + FULL_EVERY, 1)
    committed(table, 2 + FULL_EVERY)
    age(tmp_path, days=60)
    expired = table.expire(30 * 86400 if format != "iceberg" else 0)
    assert expired.snapshots > 0
    assert fails(zombie, before, late)
    assert commit(zombie, late, time.time_ns()) is Verdict.ANOTHER
    assert batches(address) == [(n, 100 + n) for n in range(3 + FULL_EVERY)]
    assert read_offset(table, "a", "events", 0) == 10 * (3 + FULL_EVERY)


def fails(table: Any, state: Any, change: Append) -> bool:
    """Whether a table refuses to replace a state that is no longer the newest."""
    try:
        return table.replace(state, change) is Answer.CONFLICT
    except OSError:
        return True


def age(folder: Path, days: int) -> None:
    """Make all files so many days older."""
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix != ".db":
            at = path.stat().st_mtime - days * 86400
            os.utime(path, (at, at))


@pytest.mark.parametrize("format", ["iceberg", "delta"])
def test_a_rollback_does_not_let_a_late_driver_in(format: str, tmp_path: Path) -> None:
    address = address_of(format, tmp_path)
    table, zombie = open_table(address), open_table(address)
    committed(table, 0)
    before, late = zombie.load("a"), append_of(zombie, 1, 9)
    version = before.handle.version() if format == "delta" else before.handle.current_snapshot().snapshot_id
    committed(table, 1)
    if format == "delta":
        table.load("a").handle.restore(version)
    else:
        table.load("a").handle.manage_snapshots().rollback_to_snapshot(version).commit()
    assert batches(address) == [(0, 100)]
    assert fails(zombie, before, late)
    assert commit(zombie, late, time.time_ns()) is Verdict.ANOTHER
    committed(table, 2)
    assert batches(address) == [(0, 100), (2, 102)]


@each_format
def test_a_compaction_beside_commits_loses_nothing(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = address_of(format, tmp_path)
    table, other = open_table(address), open_table(address)
    committed(table, 0, 1)
    if format != "delta":  # whose compaction is one call
        name = "_rewritten"
        rewritten = getattr(type(table), name)

        def and_a_commit(*args: Any) -> Any:
            made = rewritten(*args)
            committed(other, 2)
            return made

        monkeypatch.setattr(type(table), name, and_a_commit)
    assert table.compact(1 << 20) == Compacted(2, 1)
    expected = 2 if format == "delta" else 3
    assert batches(address) == [(n, 100 + n) for n in range(expected)]
    assert len(table.files()) == expected - 1


@pytest.mark.parametrize("format", ["iceberg", "parquet"])  # Delta's compaction is one call
def test_two_compactions_of_the_same_files(format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = address_of(format, tmp_path)
    table, other = open_table(address), open_table(address)
    committed(table, 0, 1)
    rewritten = type(table)._rewritten  # type: ignore[attr-defined]
    nested: list[Compacted] = []

    def and_another(*args: Any) -> Any:
        made = rewritten(*args)
        if not nested:
            nested.append(Compacted(0, 0))
            nested[0] = other.compact(1 << 20)
        return made

    monkeypatch.setattr(type(table), "_rewritten", and_another)
    assert table.compact(1 << 20) == Compacted(0, 0)
    assert nested == [Compacted(2, 1)]
    assert batches(address) == [(0, 100), (1, 101)]


@pytest.mark.parametrize("format", ["iceberg", "parquet"])
def test_a_request_that_was_sent_twice_on_the_way_meets_itself(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is done, and is answered as a conflict; nothing that it has added may be deleted."""
    address = address_of(format, tmp_path)
    table = open_table(address)
    committed(table, 0)
    if format == "parquet":
        put_new = TableFolder.put_new

        def twice(folder: TableFolder, name: str, data: bytes) -> bool:
            put_new(folder, name, data)
            return put_new(folder, name, data)

        monkeypatch.setattr(TableFolder, "put_new", twice)
    else:
        from pyiceberg.catalog.sql import SqlCatalog
        from pyiceberg.exceptions import CommitFailedException

        commit_table = SqlCatalog.commit_table

        def and_again(catalog: Any, opened: Any, *what: Any) -> Any:
            commit_table(catalog, opened, *what)
            raise CommitFailedException

        monkeypatch.setattr(SqlCatalog, "commit_table", and_again)
    for batch in range(1, 3):
        assert table.replace(table.load("a"), append_of(table, batch, 100 + batch)) is Answer.COMMITTED
    assert table.compact(1 << 20) == Compacted(3, 1)
    assert batches(address) == [(n, 100 + n) for n in range(3)]


def test_a_rewrite_that_loses_rows_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for format in ("iceberg", "parquet"):
        (tmp_path / format).mkdir()
        address = address_of(format, tmp_path / format)
        table = open_table(address)
        committed(table, 0, 1)
        with monkeypatch.context() as patch, pytest.raises(OSError, match="2 rows, and 0"):
            patch.setattr(FileWriter, "add", lambda *_: None)
            table.compact(1 << 20)
        assert batches(address) == [(0, 100), (1, 101)]


@each_format
def test_an_application_belongs_to_one_query(format: str, tmp_path: Path) -> None:
    table = open_table(address_of(format, tmp_path))
    committed(table, 0)
    with pytest.raises(ForeignApplication):
        commit(table, append_of(table, 5, 1, query="another"), time.time_ns())


@each_format
def test_a_batch_without_rows_is_committed_too(format: str, tmp_path: Path) -> None:
    table = open_table(address_of(format, tmp_path))
    empty = replace(append_of(table, 0, 1), files=())
    assert commit(table, empty, time.time_ns()) is Verdict.MINE
    assert commit(table, append_of(table, 0, 2), time.time_ns()) is Verdict.ANOTHER
    assert table.files() == []


@each_format
def test_files_that_may_have_been_deleted_are_not_committed(format: str, tmp_path: Path) -> None:
    table = open_table(address_of(format, tmp_path))
    with pytest.raises(StagedTooLong):
        commit(table, append_of(table, 0, 1), time.time_ns() - (STAGED_S + 60) * 10**9)


@each_format
def test_files_that_nobody_commits_are_deleted(format: str, tmp_path: Path) -> None:
    address = address_of(format, tmp_path)
    table = open_table(address)
    committed(table, 0)
    append_of(table, 1, 1)
    age(tmp_path, days=2)
    append_of(table, 1, 2)
    committed(table, 1)
    there = len([path for path in tmp_path.rglob("*.parquet") if "_delta_log" not in path.parts])
    assert there == 4
    assert table.expire(24 * 3600).files == 1, "not the one that is young, and may yet be committed"
    assert batches(address) == [(0, 100), (1, 101)]


def test_the_draft_of_a_commit_that_was_killed_is_deleted(tmp_path: Path) -> None:
    table = open_table(address_of("parquet", tmp_path))
    committed(table, 0)
    manifest = next(path for path in tmp_path.rglob("manifest-*.json"))
    draft, other = manifest.with_name(f".{manifest.name}.{'0f' * 16}"), manifest.with_name(".notes.json.0f")
    for path in (draft, other):
        path.write_text("{")
    assert table.expire(24 * 3600) and draft.exists(), "it may be written now"
    age(tmp_path, days=2)
    assert table.expire(24 * 3600) and not draft.exists() and other.exists() and manifest.exists()


def test_a_delta_table_that_cannot_be_read_is_an_error_of_the_storage(tmp_path: Path) -> None:
    address = address_of("delta", tmp_path)
    table = open_table(address)
    with pytest.raises(OSError, match=address.place):
        table.files()
    log = Path(address.place) / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text("{")
    for call in (lambda: table.prepare(SCHEMA, ()), lambda: table.load("a"), table.files):
        with pytest.raises(OSError, match=address.place):
            call()


def test_a_catalog_that_fails_while_a_table_is_made_is_an_error_of_the_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy.exc import OperationalError

    table = open_table(address_of("iceberg", tmp_path))

    def locked(*_: Any, **__: Any) -> Any:
        raise OperationalError("INSERT", {}, Exception("database is locked"))

    for step in ("create_table_transaction", "create_namespace_if_not_exists"):
        with monkeypatch.context() as patched, pytest.raises(OSError, match="database is locked"):
            patched.setattr(SqlCatalog, step, locked)
            table.prepare(SCHEMA, ())


def test_an_expiry_of_delta_keeps_files_of_a_part_of_an_hour(tmp_path: Path) -> None:
    table = open_table(address_of("delta", tmp_path))
    committed(table, 0)
    (file,) = append_of(table, 1, 7).files
    path = Path(address_of("delta", tmp_path).place) / file.name
    at = time.time_ns() / 1e9 - 24.25 * 3600
    os.utime(path, (at, at))
    assert table.expire(24.5 * 3600).files == 0
    assert table.expire(24 * 3600).files == 1


@each_format
def test_new_columns_are_added_and_are_null_in_earlier_rows(format: str, tmp_path: Path) -> None:
    address = address_of(format, tmp_path)
    table = open_table(address)
    committed(table, 0)
    commit(table, append_of(table, 1, 1, [("a", 1, 1, 0, "Rome")], schema=WIDER), time.time_ns())
    committed(table, 2)
    assert sorted(read(address)["city"].to_pylist(), key=str) == [None, None, "Rome"]
    assert table.compact(1 << 20) == Compacted(3, 1)
    assert sorted(read(address)["city"].to_pylist(), key=str) == [None, None, "Rome"]


@each_format
def test_a_column_of_another_type_is_refused(format: str, tmp_path: Path) -> None:
    table = open_table(address_of(format, tmp_path))
    committed(table, 0)
    other = pa.schema([pa.field("app", pa.string()), pa.field("batch", pa.string())])
    with pytest.raises(SchemaConflict, match="batch is string, and in the table int64"):
        table.prepare(other, ())
    with pytest.raises(SchemaConflict, match="divided by"):
        table.prepare(SCHEMA, (PartitionField("app"),))
    with pytest.raises(SchemaConflict, match="there is no column town"):
        table.prepare(SCHEMA, (PartitionField("town"),))


@each_format
def test_partitions_by_day_and_column(format: str, tmp_path: Path) -> None:
    address = address_of(format, tmp_path)
    table = open_table(address)
    start = datetime(2026, 1, 31, 23, 59, 59, 999_999, UTC)
    rows = [
        (n, None if n == 3 else start + timedelta(microseconds=n % 2), city)
        for n, city in enumerate(["Å/b", "100%", None, "x"])
    ]
    more = {"schema": TIMES, "partition": BY_DAY_AND_CITY}
    for batch in range(2):
        commit(table, append_of(table, batch, batch, rows, **more), time.time_ns())
    assert len(table.files()) == 8
    assert table.compact(1 << 20) == Compacted(8, 4)
    found = sorted((row["id"], row["at"], row["city"]) for row in read(address).to_pylist())
    assert found == sorted(2 * [(n, at, city) for n, at, city in rows], key=lambda row: row[0])
    assert any("at_day=2026-02-01/city=100%25" in path for path in table.files())
    if format != "iceberg":
        days = {row["id"]: row["at_day"] for row in read(address).to_pylist()}
        assert days == {0: date(2026, 1, 31), 1: date(2026, 2, 1), 2: date(2026, 1, 31), 3: None}


@pytest.fixture(scope="module")
def store() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@each_format
def test_tables_in_an_object_store(
    format: str, store: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    store.empty_bucket("lake")
    options = {
        "s3.endpoint": store.url,
        "s3.access-key-id": SECRET["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": SECRET["AWS_SECRET_ACCESS_KEY"],
        "s3.region": SECRET["AWS_REGION"],
    }
    local = {"local": str(tmp_path)} if format == "iceberg" else {}
    address = address_of(format, "s3://lake", **options, **local)
    one, other = open_table(address), open_table(address)
    committed(one, 0)
    before, late = other.load("a"), append_of(other, 1, 9)
    committed(one, 1)
    assert fails(other, before, late)
    assert commit(other, late, time.time_ns()) is Verdict.ANOTHER
    if format == "parquet":
        assert read_manifest("s3://lake/parquet", options).rows == 2
        assert all(path.startswith("s3://lake/parquet/data/") for path in one.files())
    else:
        assert batches(address) == [(0, 100), (1, 101)]
    assert one.compact(1 << 20) == Compacted(2, 1)
    assert len(one.files()) == 1


def test_a_manifest_in_a_gap_is_no_commit(tmp_path: Path) -> None:
    """A driver creates a manifest whose number was expired between its look at the table and its commit."""
    address = address_of("parquet", tmp_path)
    table, late = open_table(address), open_table(address)
    assert isinstance(late, ManifestTable)
    committed(table, 0)
    before, change = late.load("b"), append_of(late, 0, 9)
    committed(table, *range(1, 2 * FULL_EVERY))
    age(tmp_path, days=60)
    assert table.expire(30 * 86400).snapshots > 2
    assert late.replace(before, change) is Answer.CONFLICT
    assert (0, 9) not in batches(address)


def test_written_files_are_unknown_before_the_commit(tmp_path: Path) -> None:
    for format in FORMATS:
        (tmp_path / format).mkdir()
        table = open_table(address_of(format, tmp_path / format))
        written(table, [("a", 0, 0, 0)])
        assert table.files() == []


KINDS = pa.schema(
    [
        ("id", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("s", pa.string()),
        ("x", pa.float64()),
        ("d", pa.decimal128(20, 2)),
        ("ok", pa.bool_()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("many", pa.list_(pa.string())),
        ("nothing", pa.string()),
    ]
)
START = datetime(2026, 1, 31, 23, 59, 59, 999_999, UTC)


def row_of(n: int, x: float | None) -> tuple[Any, ...]:
    text = "é" * (20 * (n % 4)) + ("y" * 3000 if n % 5 == 4 else "")
    amount = Decimal("123456789012345678.01") + n
    return (
        n,
        START + timedelta(days=n),
        text,
        x,
        amount,
        n % 2 == 0,
        b"\xff%d" % n,
        date(2026, 1, 1 + n),
        [text],
        None,
    )


@pytest.mark.parametrize("format", ["iceberg", "delta"])
def test_rows_replace_those_with_the_same_key_once(format: str, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string()), ("_offset", pa.int64())])
    address = address_of(format, tmp_path)
    table, zombie = open_table(address), open_table(address)

    def upsert(table: Any, batch: int, attempt: int, *rows: tuple[int | None, str, int]) -> Append:
        return replace(append_of(table, batch, attempt, list(rows), schema=schema), key="id", order="_offset")

    def found() -> dict[int, str]:
        rows = read(address).to_pylist()
        assert len(rows) == len({row["id"] for row in rows})
        return {row["id"]: row["text"] for row in rows}

    first = upsert(table, 0, 1, (1, "late", 7), (2, "b", 3), (1, "early", 2))
    assert commit(table, first, time.time_ns()) is Verdict.MINE
    assert found() == {1: "late", 2: "b"}
    late = upsert(zombie, 1, 9, (2, "zombie", 9), (4, "zombie", 10))
    before = zombie.load("a")
    assert commit(table, upsert(table, 1, 2, (2, "B", 8), (3, "c", 9)), time.time_ns()) is Verdict.MINE
    assert fails(zombie, before, late)
    assert commit(zombie, late, time.time_ns()) is Verdict.ANOTHER
    assert found() == {1: "late", 2: "B", 3: "c"}
    assert read_offset(table, "a", "events", 0) == 20
    same = upsert(table, 2, 3, (3, "c", 9))
    assert commit(table, same, time.time_ns()) is Verdict.MINE
    assert commit(table, upsert(table, 2, 4, (3, "x", 9)), time.time_ns()) is Verdict.ANOTHER
    assert (
        commit(table, replace(same, marker=replace(same.marker, batch=3), files=()), time.time_ns()) is Verdict.MINE
    )
    assert found() == {1: "late", 2: "B", 3: "c"}
    with pytest.raises(SchemaConflict, match="a row has no id"):
        commit(table, upsert(table, 4, 5, (None, "x", 1)), time.time_ns())
    with pytest.MonkeyPatch.context() as patch, pytest.raises(BatchTooLarge, match="2"):
        patch.setattr(upserts, "MAX_ROWS", 1)
        commit(table, upsert(table, 4, 6, (8, "x", 1), (9, "y", 2)), time.time_ns())


@pytest.mark.parametrize("format", ["iceberg", "delta"])
@pytest.mark.parametrize("special", [0.5, float("nan"), float("inf"), None])
def test_statistics_let_readers_skip_files_and_never_rows(format: str, special: float | None, tmp_path: Path) -> None:
    """``special`` is a value that JSON does not have, or that no bounds cover."""
    address = address_of(format, tmp_path)
    table = open_table(address)
    rows = [row_of(n, special if n == 4 else n + 0.5) for n in range(8)]
    for n in range(0, 8, 2):
        commit(table, append_of(table, n, n, rows[n : n + 2], schema=KINDS), time.time_ns())
    if format == "delta":
        from deltalake import DeltaTable

        data = DeltaTable(address.place).to_pyarrow_dataset()

        def ids(column: str, value: Any) -> list[int]:
            wanted = ds.field(column) == pa.scalar(value, KINDS.field(column).type)
            return sorted(pa.table(data.to_table(filter=wanted))["id"].to_pylist())

        assert [set(one) > {"numRecords"} for one in stated(tmp_path)] == [True, True, special in (0.5, None), True]
    else:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.expressions import EqualTo

        opened = load_catalog("tidelog", **address.catalog).load_table(address.place)

        def ids(column: str, value: Any) -> list[int]:
            text = value.isoformat() if isinstance(value, date) else value
            return sorted(opened.scan(EqualTo(column, text)).to_arrow()["id"].to_pylist())

        assert len(list(opened.scan(EqualTo("id", 1)).plan_files())) == 1
    for n, row in enumerate(rows):
        for column, value in zip(KINDS.names, row, strict=True):
            if column not in ("many", "nothing", "x"):
                at = KINDS.get_field_index(column)
                assert ids(column, value) == [m for m, other in enumerate(rows) if other[at] == value], column
        if n != 4 or special == 0.5:
            assert n in ids("x", row[3])


def stated(folder: Path) -> list[dict[str, Any]]:
    """The statistics of the files of a Delta table, in the order of its log."""
    paths = sorted((folder / "delta" / "_delta_log").glob("*.json"))
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    return [json.loads(line["add"]["stats"]) for line in lines if "add" in line]


def test_an_expiry_leaves_files_of_other_engines_alone(tmp_path: Path) -> None:
    address = address_of("iceberg", tmp_path)
    table = open_table(address)
    committed(table, 0)
    other = Path(table.files()[0]).with_name("00000-1-engine.parquet")
    other.write_bytes(b"about to be committed")
    age(tmp_path, days=9)
    assert table.expire(24 * 3600).files == 0
    assert other.exists()
    assert batches(address) == [(0, 100)]


def test_an_expiry_deletes_nothing_behind_a_link(tmp_path: Path) -> None:
    """Who may write to the folder of a table must not have files deleted elsewhere, by the rights of who expires."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "passwords").write_text("x")
    table = open_table(address_of("parquet", tmp_path / "one"))
    committed(table, 0)
    data = tmp_path / "one" / "parquet" / "data"
    (data / "link").symlink_to(theirs)
    age(tmp_path, days=9)
    assert table.expire(24 * 3600).files == 0
    data.rename(data.with_name("moved"))
    data.symlink_to(theirs)
    assert table.expire(24 * 3600).files == 0

    table = open_table(address_of("delta", tmp_path))
    committed(table, 0)
    (tmp_path / "delta" / "link").symlink_to(theirs)
    age(tmp_path, days=9)
    with pytest.raises(ConfigError, match="link is a symbolic link to a folder"):
        table.expire(24 * 3600)
    assert (theirs / "passwords").exists()


def test_a_file_of_unknown_age_is_young(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every object store tells when a file was changed."""
    table = open_table(address_of("parquet", tmp_path))
    committed(table, 0)
    append_of(table, 1, 1)
    age(tmp_path, days=9)
    find = LocalFileSystem.find
    monkeypatch.setattr(LocalFileSystem, "find", lambda *args, **more: {path: {} for path in find(*args, **more)})
    assert table.expire(24 * 3600).files == 0
    monkeypatch.undo()
    assert table.expire(24 * 3600).files == 1


@pytest.mark.parametrize("is_allowed", [True, False])
def test_an_iceberg_table_may_forbid_that_files_are_deleted(tmp_path: Path, is_allowed: bool) -> None:
    address = address_of("iceberg", tmp_path)
    table = open_table(address)
    assert isinstance(table, IcebergTable)
    committed(table, 0, 1)
    with table._loaded().transaction() as change:
        change.set_properties({"gc.enabled": str(is_allowed).lower()})
    if is_allowed:
        assert table.expire(0).snapshots == 1
        return
    with pytest.raises(ConfigError, match=r"gc\.enabled"):
        table.expire(0)


def test_an_iceberg_expiry_deletes_nothing_outside_of_the_table(tmp_path: Path) -> None:
    """Any path can stand in a manifest: files that another engine has added where they are, or those of somebody
    else."""
    address = address_of("iceberg", tmp_path)
    table = open_table(address)
    assert isinstance(table, IcebergTable)
    committed(table, 0)
    file = Path(table.files()[0].removeprefix("file://"))
    theirs = tmp_path / "theirs.parquet"
    theirs.write_bytes(file.read_bytes())
    with table._loaded().transaction() as change:
        change.add_files([str(theirs)])
    with table._loaded().transaction() as change:
        change.delete("batch >= 0")
    committed(table, 1)
    age(tmp_path, days=9)
    assert table.expire(0).files == 1
    assert theirs.exists()
    assert not file.exists()


@pytest.mark.parametrize("name", ["../../theirs.parquet", "/theirs.parquet", "at_day=2026-01-31/../../x.parquet"])
def test_a_manifest_that_names_a_file_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    table = open_table(address_of("parquet", tmp_path))
    committed(table, 0, 1)
    last = max((tmp_path / "parquet" / "_tidelog").iterdir())
    found = json.loads(last.read_text())
    found["added"][0]["name"] = name
    last.write_text(json.dumps(found))
    with pytest.raises(ConfigError, match="outside of the table's folder"):
        table.compact(1 << 20)
