"""Spark's intervals. ``tests/spark/test_pipeline_check.py`` compares this grammar with Spark's."""

from __future__ import annotations

import pytest
from tidelog.spark.pipelines.file.intervals import refuse_interval

GOOD = [
    *("10 seconds", "1 hour 30 minutes", "interval 5 second", "0 seconds", "1.5 seconds", ".5 seconds", "1. seconds"),
    *("+1 second", "5 SECONDS", "1 week", "1 millisecond", "1 days 2 hours", "\t1  second ", "3 microseconds"),
]
BAD = [
    *("10seconds", "1.5 minutes", "10 secs", "1 second2 minutes", "", " ", "interval", "10", "seconds", "1.s"),
    *("1.1234567890 seconds", "9999999999999999999 seconds", "interval 1 second interval 2 second", "1 nanosecond"),
    *("1 secondss", "ten seconds"),
]


@pytest.mark.parametrize("text", GOOD)
def test_an_interval_is_taken(text: str) -> None:
    assert refuse_interval(text) == ""


@pytest.mark.parametrize("text", [*BAD, "-1 second", "1 second -1 minute", "1 month", "2 years"])
def test_another_text_is_refused(text: str) -> None:
    assert refuse_interval(text).startswith("a ")


def test_a_delay_may_have_months() -> None:
    assert refuse_interval("1 month 2 years", months=True) == ""
