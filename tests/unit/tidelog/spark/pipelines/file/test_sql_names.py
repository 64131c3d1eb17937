"""The tables that a query reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog.spark.pipelines.file.sql_names import refuse_command, tables_of


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("SELECT 1", []),
        ("SELECT * FROM a", ["a"]),
        ("select x from A, b c, `D` AS e where f = 1", ["a", "b", "d"]),
        ("SELECT * FROM a JOIN b ON a.x = b.y LEFT JOIN c USING (z)", ["a", "b", "c"]),
        ("SELECT * FROM (SELECT * FROM a) AS q, b", ["a", "b"]),
        ("SELECT * FROM a WHERE x IN (SELECT y FROM b) AND z > (SELECT max(k), l FROM c)", ["a", "b", "c"]),
        ("WITH t AS (SELECT * FROM a), u AS (SELECT * FROM t) SELECT * FROM u JOIN b", ["a", "b"]),
        ("SELECT extract(YEAR FROM at), trim(BOTH FROM x) FROM a", ["a"]),
        ("SELECT x IS DISTINCT FROM y FROM a", ["a"]),
        ("SELECT 'FROM b', \"JOIN c\" -- FROM d\n/* FROM e */ FROM a", ["a"]),
        ("SELECT * FROM db.t, range(3), a", ["a"]),
        ("SELECT * FROM a LATERAL VIEW explode(x) t AS y", ["a"]),
        ("SELECT * FROM a UNION ALL SELECT * FROM b ORDER BY c, d", ["a", "b"]),
        ("FROM a SELECT x, y", ["a"]),
    ],
)
def test_the_tables_of_a_query(sql: str, names: list[str]) -> None:
    assert [one.name for one in tables_of(sql)] == names


def test_the_line_of_a_table() -> None:
    assert [(one.name, one.line) for one in tables_of("SELECT 'a\n'\nFROM x\n  JOIN y")] == [("x", 3), ("y", 4)]


@given(st.lists(st.sampled_from(["from", "a", ",", "(", ")", "join", "'", "`", "--", "/*", "\n", " ", "with", "as"])))
def test_no_text_breaks_the_search(words: list[str]) -> None:
    assert all(one.name for one in tables_of(" ".join(words)))


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "SELECT 1",
        "/* why */ -- because\n((select 1))",
        "WITH a AS (SELECT 1), b AS (SELECT 2) SELECT update, `delete` FROM a JOIN b WHERE kind = 'INSERT INTO'",
        "VALUES (1)",
        "FROM a SELECT insert",
    ],
)
def test_a_query_is_no_command(sql: str) -> None:
    assert refuse_command(sql) == ""


@pytest.mark.parametrize(
    "sql",
    [
        "DROP TABLE a",
        "x",
        "BEGIN SELECT 1; END",
        "INSERT OVERWRITE DIRECTORY '/home' USING parquet SELECT 1",
        "/* SELECT */ ADD JAR 'x.jar'",
        "WITH a AS (SELECT 1) INSERT OVERWRITE DIRECTORY '/home' USING parquet SELECT * FROM a",
        "WITH a AS (SELECT r'\\') INSERT /* SELECT */ INTO b SELECT 'x'",
        "WITH a AS (SELECT 1) -- why\r DELETE FROM b",
        "FROM a INSERT INTO b SELECT 1",
    ],
)
def test_a_command_is_refused(sql: str) -> None:
    assert refuse_command(sql) == "a query, which begins with SELECT or WITH; not a command"
