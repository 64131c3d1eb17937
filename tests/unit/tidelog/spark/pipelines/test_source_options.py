"""The options that parts of a pipeline stand for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'tidelog[spark]'")

from tidelog.spark.pipelines.declaration import Input
from tidelog.spark.pipelines.source_options import is_whole

PLAIN = Input("orders", "orders", options={"includeHeaders": "true", "failOnDataLoss": "true"})


def test_records_as_they_are_make_an_archive() -> None:
    assert is_whole(PLAIN)


@pytest.mark.parametrize(
    "change",
    [
        {"value": "json", "schema": "id INT"},
        {"columns": {"n": "offset + 1"}},
        {"required": ("key",)},
        {"valid": "offset > 3"},
        {"options": {"failondataloss": "False"}},
        {"options": {"onUnreadable": "skip"}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_an_input_that_changes_or_drops_records_makes_none(change: dict[str, Any]) -> None:
    assert not is_whole(replace(PLAIN, **change))
