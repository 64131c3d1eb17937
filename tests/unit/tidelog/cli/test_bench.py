"""``tidelog bench``: what it counts, the shape of its report, and that it leaves nothing behind. No figure is
judged."""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from io import StringIO
from itertools import pairwise
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.gateway_thread import served
from tidelog.cli.bench.report import MOST_BARS, Delays, Report, ReportRow
from tidelog.cli.main import main
from tidelog.errors import refuse

ROW = {
    *("case", "seconds", "records", "bytes", "failed", "records_per_s", "mb_per_s", "latency", "latency_ms"),
}
LATENCY = {"count", "p50", "p90", "p99", "p99_9", "max", "histogram"}


def run(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", *arguments, "--gateway", url])


def report(url: str, *arguments: str) -> dict[str, Any]:
    done = run(url, *arguments, "--json")
    assert done.exit_code == 0, done.output
    told: dict[str, Any] = json.loads(done.stdout)
    assert set(told) == {"bench", "topic", "settings", "rows"}
    for row in told["rows"]:
        assert set(row) >= ROW and set(row["latency_ms"]) == LATENCY
        assert sum(bar["count"] for bar in row["latency_ms"]["histogram"]) == row["latency_ms"]["count"]
    return told


def test_produce_counts_each_record_once_and_removes_its_topic() -> None:
    with served() as (cluster, url):
        told = report(
            url, "produce", "--records", "500", "--producers", "3", "--record-bytes", "50", "--warm-up", "0"
        )
        [row] = told["rows"]
        assert (row["records"], row["bytes"], row["failed"], row["latency_ms"]["count"]) == (500, 25_000, 0, 500)
        assert list(cluster.topics) == ["orders"], "its own topic is gone"
        written = [log for (topic, _), log in cluster.logs.items() if told["topic"] in topic]
        assert sum(log.end for log in written) == 500


def test_a_topic_that_is_named_stays_and_bytes_are_an_end() -> None:
    with served() as (cluster, url):
        arguments = ("--topic", "orders", "--bytes", "999", "--record-bytes", "100", "--warm-up", "0")
        assert report(url, "produce", *arguments)["rows"][0]["records"] == 10
        assert cluster.log("orders").end == 10


def test_the_warm_up_is_sent_and_not_counted() -> None:
    with served() as (cluster, url):
        arguments = ("--topic", "orders", "--records", "10", "--rate", "100", "--warm-up", "0.05")
        assert report(url, "produce", *arguments)["rows"][0]["records"] == 10
        assert cluster.log("orders").end == 15


def test_failed_records_are_reported_and_set_the_exit_code() -> None:
    with served() as (cluster, url):
        cluster.refusals = [refuse("BATCH_TOO_LARGE", "too large")]
        done = run(url, "latency", "--acks", "all", "--records", "3", "--warm-up", "0", "--json")
        [row] = json.loads(done.stdout)["rows"]
        assert (done.exit_code, row["records"], row["failed"]) == (1, 2, 1)
        assert "too large" in row["first_error"] and "1 failed" in done.stderr


def test_latency_is_reported_for_each_level_of_acks() -> None:
    with served() as (_, url):
        rows = report(url, "latency", "--records", "20", "--warm-up", "2")["rows"]
        assert [row["case"] for row in rows] == ["acks none", "acks leader", "acks all"]
        assert [row["latency_ms"]["count"] for row in rows] == [20, 20, 20]


@pytest.mark.parametrize(("arguments", "each"), [((), 200), (("--topic", "orders"), 0)])
def test_each_consumer_reads_everything(arguments: tuple[str, ...], each: int) -> None:
    with served() as (_, url):
        size = ("--records", "200", "--record-bytes", "10")
        [row] = report(url, "consume", "--consumers", "2", *size, *arguments)["rows"]
        assert (row["records"], row["bytes"]) == (2 * each, 2 * each * 10)
        assert row["latency_ms"]["count"] == (2 if each else 0), "the first record of each"


def test_fanout_reports_the_records_of_each_subscriber() -> None:
    with served() as (cluster, url):
        arguments = ("--subscribers", "4", "--idle", "3", "--records", "12", "--rate", "1000", "--warm-up", "0.01")
        told = report(url, "fanout", *arguments)
        [row] = told["rows"]
        assert row["sent"] == 12 and row["each_got"] == {"least": 12, "most": 12, "missing": 0}
        assert row["records"] == row["latency_ms"]["count"] == 48
        assert set(row["acknowledged_ms"]) == {"p50", "p99", "max"}
        assert (told["settings"]["subscribers"], told["settings"]["idle"]) == (4, 3)
        assert list(cluster.topics) == ["orders"]


def test_percentiles_are_exact_to_one_percent_and_the_greatest_is_exact() -> None:
    delays = Delays()
    for n in range(1, 1001):
        delays.add(n / 1000)
    assert delays.percentile(0.5) == pytest.approx(0.5, rel=0.011)
    assert delays.percentile(0.999) == pytest.approx(0.999, rel=0.011)
    assert delays.percentile(1.0) == delays.greatest == 1.0


def test_a_histogram_has_no_gaps_few_bars_and_everything_in_it() -> None:
    delays = Delays()
    for exponent in range(-5, 2):
        delays.add(3 * 10.0**exponent)
    bars = delays.bars()
    assert len(bars) <= MOST_BARS and sum(count for _, _, count in bars) == 7
    assert all(before[1] == after[0] for before, after in pairwise(bars))
    assert bars[0][0] <= 3e-5 < bars[0][1] and bars[-1][0] <= 30 < bars[-1][1]


def test_the_report_for_people_has_a_table_and_a_histogram() -> None:
    row = ReportRow("acks all", "a delay", seconds=2.0, records=1000, bytes=1_000_000)
    for n in range(1, 1001):
        row.delays.add(n / 1e5)
    with redirect_stdout(StringIO()) as shown:
        Report("latency", "t", {}, [row]).show()
    said = shown.getvalue()
    assert "500" in said and "p99.9" in said and "a delay, 1,000 times" in said and "█" in said
