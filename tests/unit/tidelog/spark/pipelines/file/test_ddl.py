"""Schemas as texts. ``tests/spark/test_pipeline_check.py`` compares this grammar with Spark's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog.spark.pipelines.file.ddl import refuse_schema

GOOD = [
    *(
        "id BIGINT",
        "a ARRAY<INT>, m MAP<STRING, INT>",
        "s STRUCT<a: INT, b: STRING>",
        "s STRUCT<a INT>",
        "s STRUCT<>",
    ),
    *("d DECIMAL(10,2)", "d DECIMAL", "d DECIMAL( 3 )", "v VARCHAR(3)", "`a b` INT", "a INT NOT NULL COMMENT 'x, y'"),
    *(
        "a ARRAY<ARRAY<STRUCT<x: MAP<INT, DATE>>>>",
        "i INTERVAL DAY TO SECOND",
        "i INTERVAL",
        "t TIME(3)",
        "v VARIANT",
    ),
    *("1a INT", "select INT", "a STRING COLLATE UNICODE", "a INT -- x", "a /* x */ INT", "a TIMESTAMP_NTZ"),
    *("a TIMESTAMP WITHOUT TIME ZONE", "a LONG, b CHAR(2)"),
]
BAD = [
    *("id", "id BIGNT", "v VARCHAR", "a INT,", "", "a INT b INT", "a: INT", "a-b INT", "a INT DEFAULT 3", "INT"),
    *("array<int>", "a ARRAY<INT", "a MAP<INT>", "a DECIMAL(x)", "a DECIMAL(1,2,3)", "a INT NOT", "a INT COMMENT"),
    *("a DOUBLE PRECISION", ", a INT", "a STRUCT<b>", "a INT;"),
]


@pytest.mark.parametrize("text", GOOD)
def test_a_schema_is_taken(text: str) -> None:
    assert refuse_schema(text) == ""


@pytest.mark.parametrize("text", BAD)
def test_another_text_is_refused(text: str) -> None:
    assert refuse_schema(text).startswith("columns with their types")


def test_the_fault_names_the_column() -> None:
    assert refuse_schema("id BIGINT, what STRNG").endswith(": what has the unknown type STRNG")
    assert refuse_schema("id INT, ID INT") == "columns with different names; id is there twice"
    assert refuse_schema("a " + "ARRAY<" * 9999).endswith("too deep")


@given(st.text("ab INTSTRUCT<>,:`()1'-/*\n", max_size=40))
def test_no_text_breaks_the_check(text: str) -> None:
    assert isinstance(refuse_schema(text), str)
