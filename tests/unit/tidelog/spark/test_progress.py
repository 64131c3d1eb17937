"""The lag of a streaming query, from Spark's reports."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from tidelog.spark.progress import lag


def source(**behind: int) -> dict[str, Any]:
    partitions = {number.removeprefix("p"): {"epoch": 4, "offset": 9, "behind": n} for number, n in behind.items()}
    topics = {"orders": {"id": "i", "partitions": partitions}}
    return {"latestOffset": {"behind": sum(behind.values()), "topics": topics, "version": 1}}


def test_lag_is_told_of_a_query_and_of_a_report() -> None:
    progress = {"sources": [source(p0=7, p10=0)]}
    assert lag(progress) == lag(SimpleNamespace(lastProgress=progress)) == {"orders": {0: 7, 10: 0}}


def test_a_query_without_a_report_has_no_lag() -> None:
    assert lag(SimpleNamespace(lastProgress=None)) == {}


def test_sources_of_other_formats_are_left_out_and_the_largest_lag_counts() -> None:
    as_text = {"latestOffset": json.dumps(source(p0=3, p1=8)["latestOffset"])}
    others = [{"latestOffset": None}, {"latestOffset": '{"topics": {}}'}, {"latestOffset": 17}, {"latestOffset": ""}]
    assert lag({"sources": [*others, source(p0=5, p1=6), as_text]}) == {"orders": {0: 5, 1: 8}}
