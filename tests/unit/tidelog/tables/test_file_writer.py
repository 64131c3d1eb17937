"""Tests ``tidelog.tables.file_writer``: files of bounded size, for any number of partitions, in bounded memory."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tidelog.tables import file_writer
from tidelog.tables.columns import PartitionField
from tidelog.tables.file_writer import FileWriter, WritePlan, footer_of, is_own_name

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


class Folder:
    """A folder that counts the files that are open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: list[Any] = []
        self.most = 0

    def open(self, name: str) -> Any:
        (self._path / name).parent.mkdir(parents=True, exist_ok=True)
        self._files.append((self._path / name).open("wb"))
        self.most = max(self.most, sum(not file.closed for file in self._files))
        return self._files[-1]


def writer_of(folder: Folder, *partition: str) -> FileWriter:
    fields = tuple(map(PartitionField, partition))
    return FileWriter(WritePlan("", SCHEMA.serialize().to_pybytes(), fields), folder.open)


def test_a_large_file_is_closed_and_another_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_writer, "ROW_GROUP_BYTES", 10_000)
    monkeypatch.setattr(file_writer, "FILE_BYTES", 5_000)
    writer = writer_of(Folder(tmp_path))
    for start in range(0, 10_000, 500):
        numbers = list(range(start, start + 500))
        writer.add(pa.RecordBatch.from_pydict({"n": numbers, "text": [str(n * 7919) for n in numbers]}))
    files = writer.finish()
    assert len(files) > 3
    assert [file.size for file in files] == [(tmp_path / file.name).stat().st_size for file in files]
    assert max(file.size for file in files) < 20_000
    assert all(pq.read_metadata(tmp_path / file.name).num_rows == file.rows for file in files)
    assert all(footer_of(file).num_rows == file.rows and is_own_name(file.name) for file in files)
    assert [n for file in files for n in pq.read_table(tmp_path / file.name)["n"].to_pylist()] == list(range(10_000))


def test_many_partitions_do_not_need_as_many_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_writer, "MAX_OPEN_FILES", 4)
    folder = Folder(tmp_path)
    writer = writer_of(folder, "text")
    for _ in range(2):
        writer.add(pa.RecordBatch.from_pydict({"n": list(range(20)), "text": [f"p{n % 10}" for n in range(20)]}))
    files = writer.finish()
    assert folder.most <= 4
    rows: Counter[str] = Counter()
    for file in files:
        assert set(pq.ParquetFile(tmp_path / file.name).read()["text"].to_pylist()) == {file.partition[0]}
        rows[str(file.partition[0])] += file.rows
    assert rows == {f"p{n}": 4 for n in range(10)}


def test_columns_are_in_the_order_of_the_table_and_missing_ones_are_null(tmp_path: Path) -> None:
    writer = writer_of(Folder(tmp_path))
    writer.add(pa.RecordBatch.from_pydict({"n": pa.array([1], pa.int8())}))
    (file,) = writer.finish()
    assert pq.read_table(tmp_path / file.name).to_pylist() == [{"n": 1, "text": None}]


def test_without_rows_there_is_no_file(tmp_path: Path) -> None:
    writer = writer_of(Folder(tmp_path), "text")
    writer.add(pa.RecordBatch.from_pylist([], schema=SCHEMA))
    assert writer.finish() == []
