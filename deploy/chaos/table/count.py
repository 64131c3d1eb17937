"""What the table has at the end: the files that its format names are fetched from the store, and DuckDB counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.table.object_store import BUCKET


@dataclass(slots=True)
class Counted:
    """The rows of a table. ``lost`` are numbers that were acknowledged and are in no row, ``twice`` rows that are
    there beyond the first of their number."""

    rows: int = 0
    lost: int = 0
    twice: int = 0
    files: int = 0
    faults: list[str] = field(default_factory=list)


def files_of(format: str, folder: Path, options: Mapping[str, str]) -> list[str]:
    """Return the keys of the table's files in the bucket, as a program that knows the format and not Tidelog finds
    them."""
    if format == "iceberg":
        from pyiceberg.catalog import load_catalog

        properties = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"s3://{BUCKET}/warehouse",
        }
        table = load_catalog("tidelog", **properties, **options).load_table("shop.events")
        urls = [task.file.file_path for task in table.scan().plan_files()]
    else:
        from deltalake import DeltaTable

        words = {
            "AWS_ENDPOINT_URL": options["s3.endpoint"],
            "AWS_ACCESS_KEY_ID": options["s3.access-key-id"],
            "AWS_SECRET_ACCESS_KEY": options["s3.secret-access-key"],
            "AWS_REGION": options["s3.region"],
            "AWS_ALLOW_HTTP": "true",
        }
        urls = DeltaTable(f"s3://{BUCKET}/events", storage_options=words).file_uris()
    return [url.removeprefix(f"s3://{BUCKET}/") for url in urls]


def count_rows(keys: list[str], client: Any, folder: Path, records: int, ends: Mapping[int, int]) -> Counted:
    """Fetch these files, and count: each number from 0 to ``records`` - 1 must be the value of one row, and each
    offset below ``ends`` of its partition must be there once."""
    import duckdb

    folder.mkdir()
    paths = []
    for number, key in enumerate(keys):
        paths.append(str(folder / f"{number}.parquet"))
        client.download_file(BUCKET, key, paths[-1])
    counted = Counted(files=len(paths))
    with duckdb.connect(str(folder / "counts.db")) as database:
        database.execute("set memory_limit = '2GB'")
        if paths:
            source = f"read_parquet({paths}, union_by_name = true)"
            database.execute(
                "create table seen as select cast(decode(value) as bigint) number, partition,"
                f' "offset" place from {source}'
            )
        else:
            database.execute("create table seen (number bigint, partition integer, place bigint)")
        [(counted.rows, numbers)] = database.execute("select count(*), count(distinct number) from seen").fetchall()
        [(foreign,)] = database.execute(
            f"select count(*) from seen where number < 0 or number >= {records}"
        ).fetchall()
        counted.lost, counted.twice = records - numbers, counted.rows - numbers
        found = database.execute(
            "select partition, count(*), count(distinct place), min(place), max(place) from seen group by 1"
        ).fetchall()
    seen = {partition: (rows, places, first, last) for partition, rows, places, first, last in found}
    for partition, end in ends.items():
        rows, places, first, last = seen.get(partition, (0, 0, 0, -1))
        if (rows, places, first, last) != (end, end, 0, end - 1):
            counted.faults.append(
                f"partition {partition} has {end} records; the table has {rows} rows at {places} offsets,"
                f" {first} to {last}"
            )
    for count, words in ((counted.lost, "lost"), (counted.twice, "there twice"), (foreign, "of no producer")):
        if count:
            counted.faults.append(f"{count} records are {words}")
    return counted
