"""What is read out of Spark's reports of a micro-batch."""

from __future__ import annotations

import json
from typing import Any

from tidelog.spark.pipelines.batch_report import BatchReport, batch_report


def source(behind: dict[str, int], lost: int = 0) -> dict[str, Any]:
    partitions = {number: {"epoch": 1, "offset": 9, "behind": lag, "lost": 0} for number, lag in behind.items()}
    topics = {"t": {"id": "x", "partitions": partitions}}
    return {"latestOffset": json.dumps({"behind": 0, "lost": lost, "topics": topics, "version": 1})}


def test_the_lag_of_each_partition_and_the_lost_offsets_of_all_are_told() -> None:
    report = batch_report(3, 7, [source({"0": 2, "1": 0}, 3), source({"2": 3}, 1)])
    assert report == BatchReport(3, 7, {("t", 0): 2, ("t", 1): 0, ("t", 2): 3}, 4)


def test_two_sources_of_one_topic_have_the_larger_lag() -> None:
    assert batch_report(0, 1, [source({"0": lag}) for lag in (1, 6, 2)]).lags == {("t", 0): 6}


def test_sources_that_are_not_ours_or_say_nothing_yet_add_nothing() -> None:
    others = [{"latestOffset": text} for text in ("None", "", "17", '{"t": {"0": 3}}', None)]
    assert batch_report(0, 1, others) == BatchReport(0, 1)
