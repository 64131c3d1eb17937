"""``tidelog sql``: topics as tables, places, projection, output, errors, and what a query may not reach."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner, Result
from support.fake_gateway import FakeCluster
from support.gateway_thread import served
from tidelog.batch.format import NewRecord, encode_batch
from tidelog.cli.main import main
from tidelog.cli.sql_tables import COLUMNS, Form, Source, TopicTable, sources_of


@pytest.fixture
def cluster() -> Iterator[tuple[FakeCluster, str]]:
    """A cluster with a topic ``orders``: 2 partitions, 20 records in each."""
    with served(2) as (cluster, url):
        for partition in range(2):
            values = [b'{"city":"%s","n":%d}' % ([b"Ulm", "Évry".encode()][n % 2], n) for n in range(20)]
            records = [NewRecord(value, b"k%d" % (n % 3), 1000 * n, (("h", b"x"),)) for n, value in enumerate(values)]
            cluster.log("orders", partition).append(encode_batch(records), 4)
        yield cluster, url


def sql(url: str, *words: str) -> Result:
    return CliRunner().invoke(main, ["sql", "--gateway", url, *words])


def rows(url: str, *words: str) -> Any:
    done = sql(url, "-o", "json", *words)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_topics_are_tables_by_name_and_by_place(cluster: tuple[FakeCluster, str]) -> None:
    _, url = cluster
    by_city = (
        "select value->>'$.city' city, count(*) n, sum((value->>'$.n')::int) s from orders group by 1 order by 1"
    )
    assert rows(url, by_city) == [{"city": "Ulm", "n": 20, "s": 180}, {"city": "Évry", "n": 20, "s": 200}]
    places = "select count(*) n, min(\"offset\") first, max(\"offset\") last from topic('orders', '5', 12) /* é */"
    assert rows(url, places) == [{"n": 14, "first": 5, "last": 11}]
    late = "select count(*) n from Topic ( 'orders', '1970-01-01T00:00:15+00:00', 'latest' ) where partition = 1"
    assert rows(url, late) == [{"n": 5}]
    joined = "select count(*) n from topic('orders') a join topic('orders', 10) b using (\"offset\", partition)"
    assert rows(url, joined) == [{"n": 20}]
    where = "select \"offset\" o from orders where key = 'k1' and value like '%\"n\":1%' and partition = 0"
    assert rows(url, where) == [{"o": 1}, {"o": 10}, {"o": 13}, {"o": 16}, {"o": 19}]


def test_a_row_has_the_columns_of_a_record(cluster: tuple[FakeCluster, str]) -> None:
    _, url = cluster
    query = 'select * from orders where partition = 1 and "offset" = 2'
    expected = {
        "partition": 1, "offset": 2, "timestamp": "1970-01-01T00:00:02.000+00:00", "key": "k2",
        "value": '{"city":"Ulm","n":2}', "headers": [{"key": "h", "value": "eA=="}], "leader_epoch": 4,
        "topic": "orders",
    }  # fmt: skip
    assert rows(url, query) == [expected]
    done = sql(url, "-o", "tsv", query)
    names, row = (line.split("\t") for line in done.stdout.splitlines())
    assert names == list(expected)
    assert row == [
        *("1", "2", "1970-01-01T00:00:02.000+00:00", "k2", '{"city":"Ulm","n":2}'),
        *('[{"key": "h", "value": "eA=="}]', "4", "orders"),
    ]
    done = sql(url, "select key, null x, count(*) n from orders group by key order by key")
    assert done.stdout.splitlines() == ["key  x  n", "k0      14", "k1      14", "k2      12"]
    assert rows(url, "select 1 where false") == []


def test_a_long_result_is_a_table_only_at_its_beginning(cluster: tuple[FakeCluster, str]) -> None:
    _, url = cluster
    query = "select a.key from orders a, orders b"
    done = sql(url, query)
    assert (len(done.stdout.splitlines()), done.exit_code) == (1001, 0)
    assert "more than 1000 rows; -o json and -o tsv print all" in done.stderr
    assert len(rows(url, query)) == 1600


class Asked:
    """Stands for a ``Log``; keeps the columns that were asked for."""

    def __init__(self) -> None:
        self.columns: list[list[str]] = []

    def read_arrow(self, topic: str, *, columns: list[str], **_: object) -> Any:
        import pyarrow as pa
        from tidelog.arrow.rows import RowBuffer, row_schema

        self.columns.append(columns)
        buffer = RowBuffer(topic, row_schema(columns), 10)
        buffer.add(0, encode_batch([NewRecord(b"v", b"k", 5)]), 0, 1)
        return pa.RecordBatchReader.from_batches(row_schema(columns), [buffer.take()])


def test_only_the_columns_of_the_query_are_read() -> None:
    asked = Asked()
    with duckdb.connect() as connection:
        connection.register("orders", TopicTable(asked, Source("orders"), Form("raw", "raw", "raise")))  # type: ignore[arg-type]
        for query, columns in (
            ("select count(*) from orders", ["partition"]),
            ("select max(value) from orders", ["value"]),
            ("select max(value) from orders where key = 'k'::blob", ["value", "key"]),
        ):
            asked.columns.clear()
            assert connection.execute(query).fetchall()
            assert asked.columns[-1] == columns and all(each == [*COLUMNS] for each in asked.columns[:-1])


def test_strings_comments_and_names_are_no_calls() -> None:
    with duckdb.connect() as connection:
        query = "select 'topic(''x'')', \"topic\" -- topic('y')\n from topic('a''b.c','earliest') topic"
        rewritten, sources = sources_of(query, connection)
    assert sources == {"topic 1: a'b.c": Source("a'b.c", "earliest")}
    assert rewritten == query.replace("topic('a''b.c','earliest')", '"topic 1: a\'b.c"')


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ("select * from nosuch", 1, "[UNKNOWN_TOPIC] there is no topic nosuch\n'tidelog topics list' shows"),
        ("selec 1", 2, "Parser Error: syntax error at or near"),
        ("select x from orders", 2, 'Referenced column "x" not found'),
        ("select * from topic(orders)", 2, "a topic is a table as topic('NAME'), "),
        ("select * from topic('orders', 'soon')", 2, "'soon' is not earliest, latest, an offset, or a time"),
        ("select * from topic('orders', 1, 2, 3)", 2, "a topic is a table as topic('NAME'), "),
        ("select * from orders, Orders", 2, "write topic('"),
        ("select 1; select 2", 2, "runs one query, such as: select count(*)"),
        ("copy (select 1) to 'FOLDER/evil'", 2, "runs one query"),
        ("set enable_external_access = true", 2, "runs one query"),
        ("attach 'FOLDER/evil'", 2, "runs one query"),
        ("select * from read_csv('/etc/passwd')", 1, "file system operations are disabled"),
        ("select * from read_text('http://127.0.0.1/')", 1, "disabled"),
        ("select * from '/etc/passwd'", 1, "there is no topic /etc/passwd"),
        ("select * from glob('/*')", 1, "file system operations are disabled"),
        ("select * from cluster", 1, "there is no topic cluster"),
    ],
)
def test_errors_are_told_in_words(
    cluster: tuple[FakeCluster, str], tmp_path: Path, query: str, status: int, text: str
) -> None:
    done = sql(cluster[1], query.replace("FOLDER", str(tmp_path)))
    assert (done.exit_code, done.stdout) == (status, "")
    assert text in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_value_that_is_no_text_names_its_record(cluster: tuple[FakeCluster, str]) -> None:
    fake, url = cluster
    fake.add_topic("a.b", 1)
    fake.log("a.b", 0).append(
        encode_batch([NewRecord(b"ok"), NewRecord(b"\xff\x00"), NewRecord(None, b"\x1b[31m")]), 4
    )
    done = sql(url, 'select value from "a.b"')
    assert done.exit_code == 1
    assert "[INVALID_VALUE] a.b/0 at offset 1: the value is not text in UTF-8" in done.stderr
    assert "'--on-invalid null' makes it null; '--values raw'" in done.stderr
    assert rows(url, 'select value from "a.b"', "--on-invalid", "null") == [{"value": v} for v in ("ok", None, None)]
    assert rows(url, "select value v from topic('a.b') where \"offset\" = 1", "--values", "raw") == [{"v": "/wA="}]
    done = sql(url, 'select key from "a.b" where key is not null')
    assert done.stdout.splitlines() == ["key", "\\x1b[31m"]


def test_what_exceeds_the_memory_is_an_error_with_the_option(cluster: tuple[FakeCluster, str]) -> None:
    _, url = cluster
    done = sql(url, "--memory", "5MB", "select array_agg(i) from range(5000000) r(i)")
    assert done.exit_code == 1 and "The query needs more than --memory 5MB." in done.stderr
    done = sql(url, "--memory", "much", "select 1")
    assert done.exit_code == 2 and "--memory much: " in done.stderr
