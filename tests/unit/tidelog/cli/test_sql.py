"""``tidelog sql``: topics as tables, places, projection, output, errors, and what a query may not reach."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.fake_gateway import FakeCluster
from support.gateway_thread import served
from tidelog.batch.format import NewRecord, encode_batch
from tidelog.cli.exit_status import INTERRUPTED
from tidelog.cli.main import main
from tidelog.cli.progress import Bar
from tidelog.cli.sql_tables import COLUMNS, Form, Source, TopicTable, name_calls
from tidelog.types import Position

numbers = st.integers(0, 45).map(str)
OPERATORS = ["=", "<", "<=", ">", ">=", "<>"]


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
        "value": '{"city":"Ulm","n":2}', "headers": [{"key": "h", "value": "x"}], "leader_epoch": 4,
        "topic": "orders",
    }  # fmt: skip
    assert rows(url, query) == [expected]
    done = sql(url, "-o", "tsv", query)
    names, row = (line.split("\t") for line in done.stdout.splitlines())
    assert names == list(expected)
    assert row == [
        *("1", "2", "1970-01-01T00:00:02.000+00:00", "k2", '{"city":"Ulm","n":2}'),
        *('[{"key": "h", "value": "x"}]', "4", "orders"),
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


class StandIn:
    """Stands for a ``Log`` with one topic of three partitions, whose offsets begin at 10; keeps how it was read."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.partitions = self
        places = [(partition, offset) for partition in range(3) for offset in range(10, 40)]
        self.rows = pa.table(
            {
                "partition": pa.array([partition for partition, _ in places], pa.int32()),
                "offset": pa.array([offset for _, offset in places], pa.int64()),
                "timestamp": pa.array([self.time(*place) for place in places], pa.timestamp("ms", tz="UTC")),
                "key": pa.array([None if offset % 7 == 0 else f"k{offset % 4}" for _, offset in places]),
                "value": pa.array([f"{offset}" for _, offset in places]),
            }
        )

    @staticmethod
    def time(partition: int, offset: int) -> int:
        """Return the time of a record: rising, but for every fifth."""
        return 1000 * (offset - 8 * (offset % 5 == 0)) + partition

    def find_positions(self, topic: str, where: Any, partitions: list[int] | None = None) -> dict[int, Position]:
        def find(partition: int) -> int:
            if isinstance(where, datetime):
                at = round(where.timestamp() * 1000)
                return next((each for each in range(10, 40) if self.time(partition, each) >= at), 40)
            return {"earliest": 10, "latest": 40}.get(where, where)

        return {each: Position(-1, find(each)) for each in (range(3) if partitions is None else partitions)}

    def read_arrow(self, topic: str, **how: Any) -> pa.RecordBatchReader:
        self.asked.append(how)
        places = zip(self.rows["partition"].to_pylist(), self.rows["offset"].to_pylist(), strict=True)
        read = [p in how["partitions"] and how["start"][p] <= offset < how["end"][p] for p, offset in places]
        return self.rows.filter(pa.array(read, pa.bool_())).select(how["columns"]).to_reader()


@pytest.fixture(scope="module")
def stand_in() -> Iterator[tuple[StandIn, Any]]:
    """A stand-in for a log, and a function that returns the rows of a query over its table ``orders``. ``plain`` is
    the same table without bounds."""
    log = StandIn()
    with duckdb.connect() as connection:
        table = TopicTable(log, Source("orders"), Form("string", "string", "raise"), Bar(""))  # type: ignore[arg-type]
        connection.register("orders", table)
        connection.register("plain", log.rows)
        yield log, lambda query: connection.execute(query).fetchall()


def test_only_the_columns_of_the_query_are_read(stand_in: tuple[StandIn, Any]) -> None:
    log, run = stand_in
    for query, columns in (
        ("select count(*) from orders", ["partition"]),
        ("select max(value) from orders", ["value"]),
        ("select max(value) from orders where key = 'k1'", ["value", "key"]),
    ):
        log.asked.clear()
        assert run(query)
        assert [each["columns"] for each in log.asked] == [columns]


@pytest.mark.parametrize(
    ("condition", "starts", "ends"),
    [
        ('"offset" >= 15', {0: 15, 1: 15, 2: 15}, {0: 40, 1: 40, 2: 40}),
        ('"offset" between 15 and 20 and partition = 1', {1: 15}, {1: 21}),
        ('partition in (0, 2) and "offset" < 3', {0: 10, 2: 10}, {0: 3, 2: 3}),
        ('"offset" = 12 or "offset" = 30', {0: 12, 1: 12, 2: 12}, {0: 31, 1: 31, 2: 31}),
        ("timestamp > '1970-01-01T00:00:20.001Z' and partition < 2", {0: 21, 1: 21}, {0: 40, 1: 40}),
        ("timestamp < '1970-01-01T00:00:20Z' and partition = 0", {0: 10}, {0: 40}),
        ("key = 'x) and (offset >= 30'", {0: 10, 1: 10, 2: 10}, {0: 40, 1: 40, 2: 40}),
        ("partition = 9", {}, {}),
    ],
)
def test_conditions_bound_what_is_read(
    stand_in: tuple[StandIn, Any], condition: str, starts: dict[int, int], ends: dict[int, int]
) -> None:
    log, run = stand_in
    log.asked.clear()
    expected = run(f"select count(*) from plain where {condition}")
    assert run(f"select count(*) from orders where {condition}") == expected
    assert [(each["start"], each["end"]) for each in log.asked] == [(starts, ends)]


ATOMS = st.one_of(
    st.builds("{} {} {}".format, st.sampled_from(['"offset"', "partition"]), st.sampled_from(OPERATORS), numbers),
    st.builds('"offset" in ({}, {})'.format, numbers, numbers),
    st.builds("timestamp {} make_timestamp({}000000)::timestamptz".format, st.sampled_from(OPERATORS), numbers),
    st.sampled_from(["key = 'k1'", "key is null", "value < '3'", '"offset" % 3 = 1', "key > value"]),
)
CONDITIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds("({} and {})".format, inner, inner),
        st.builds("({} or {})".format, inner, inner),
        st.builds("not ({})".format, inner),
    ),
    max_leaves=5,
)


@given(CONDITIONS)
@example("timestamp > make_timestamp(16000000)::timestamptz")
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_condition_loses_a_row(stand_in: tuple[StandIn, Any], condition: str) -> None:
    query = 'select partition, "offset" from {} where {} order by 1, 2'
    assert stand_in[1](query.format("orders", condition)) == stand_in[1](query.format("plain", condition))


def test_strings_comments_and_names_are_no_calls() -> None:
    query = "select 'topic(''x'')', \"topic\" -- topic('y')\n from topic('a''b.c','earliest') topic"
    rewritten, sources = name_calls(query)
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
        ("", 2, "only reads, by queries such as: select count(*)"),
        ("select 1; copy (select 1) to 'FOLDER/evil'", 2, "only reads, by queries"),
        ("set enable_external_access = true", 2, "only reads, by queries"),
        ("attach 'FOLDER/evil'", 2, "only reads, by queries"),
        ("select * from ordres", 1, "there is no topic ordres: did you mean orders?"),
        ("select * from topic('Orders')", 1, "there is no topic Orders: did you mean orders?"),
        ("select city from orders", 2, "A topic has the columns partition, offset, "),
        ("select offset from orders", 2, 'write the column in double quotes, "offset"'),
        ("select max(offset) from topic('orders')", 2, 'write the column in double quotes, "offset"'),
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


def test_topics_are_listed_and_described_as_tables_are(cluster: tuple[FakeCluster, str]) -> None:
    fake, url = cluster
    fake.add_topic("a.b", 1)
    assert rows(url, "show tables") == [{"name": "a.b", "partitions": 1}, {"name": "orders", "partitions": 2}]
    done = sql(url, "SHOW ALL TABLES; -- all")
    assert done.stdout.splitlines() == ["name    partitions", "a.b     1", "orders  2"]
    assert "A topic is a table by its name, in double quotes if it has dots or dashes" in done.stderr
    for query in ("describe orders", "show orders", "describe topic('orders', '-1h')", 'desc "a.b"'):
        types = {row["column_name"]: row["column_type"] for row in rows(url, query)}
        assert list(types) == [*COLUMNS] and types["value"] == "VARCHAR"


def test_several_queries_have_several_results(cluster: tuple[FakeCluster, str]) -> None:
    _, url = cluster
    query = "select count(*) n from orders; select key from topic('orders', 2, 3) where partition = 0;"
    done = sql(url, query)
    assert done.stdout.splitlines() == ["n", "40", "", "key", "k2"]
    done = sql(url, "-o", "json", query)
    assert [json.loads(line) for line in done.stdout.splitlines()] == [[{"n": 40}], [{"key": "k2"}]]
    done = sql(url, "select 1; select * from nosuch")
    assert (done.exit_code, done.stdout) == (1, "")


def test_headers_are_text_where_they_are_text(cluster: tuple[FakeCluster, str]) -> None:
    fake, url = cluster
    headers = (("name", "é".encode()), ("bytes", b"\xff\x00"), ("name", b""))
    fake.log("orders", 0).append(encode_batch([NewRecord(b"v", None, 0, headers)]), 4)
    expected = [{"key": "name", "value": "é"}, {"key": "bytes", "value_b64": "/wA="}, {"key": "name", "value": ""}]
    assert rows(url, "select headers from orders where value = 'v'") == [{"headers": expected}]
    first = "select decode(headers[1].value) v from orders where value = 'v'"
    assert rows(url, first) == [{"v": "é"}]


def test_ctrl_c_ends_a_query_that_prints(cluster: tuple[FakeCluster, str]) -> None:
    _, url = cluster
    query = "select a.key from orders a, orders b, orders c, orders d, orders e, orders f"
    command = [sys.executable, "-m", "tidelog.cli", "sql", "--gateway", url, "-o", "tsv", query]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(3)] == ["key\n", "k0\n", "k0\n"]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED
    assert err == "tidelog: interrupted: the result is not complete\n"
    assert out.endswith("\n")


WITH_TERMINAL = """
import fcntl, os, sys, termios

fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""A program that runs the command in its arguments with its stdin as the terminal, from which Ctrl-C comes."""


def test_on_a_terminal_a_bar_is_shown_until_ctrl_c_is_typed(cluster: tuple[FakeCluster, str]) -> None:
    """The query reads all and prints nothing for hours."""
    _, url = cluster
    query = f"select count(*) from {', '.join(f'orders o{n}' for n in range(9))} where o0.key > o8.value || o4.value"
    command = [sys.executable, "-m", "tidelog.cli", "sql", "--gateway", url, query]
    terminal, side = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100", "NO_COLOR": "1"}
    streams: dict[str, Any] = {"stdin": side, "stdout": side, "stderr": side, "start_new_session": True}
    with subprocess.Popen([sys.executable, "-c", WITH_TERMINAL, *command], env=environment, **streams) as process:
        os.close(side)
        shown = b""
        while b"reading offsets" not in shown:
            shown += os.read(terminal, 4096)
        os.write(terminal, b"\x03")
        with suppress(OSError):  # EIO: the process has ended
            while more := os.read(terminal, 4096):
                shown += more
    os.close(terminal)
    assert process.returncode == INTERRUPTED
    assert shown.endswith(b"\r\ntidelog: interrupted: the result is not complete\r\n") and b"Traceback" not in shown


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
