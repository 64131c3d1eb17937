"""The source without Spark around it: planning and reading against a gateway in memory."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import tidelog.sync
from support.gateway_thread import served

from unit.tidelog.client.test_unreadable_batches import garbage, plant

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'tidelog[spark]'")

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThanOrEqual
from tidelog.batch.format import read_header
from tidelog.spark.errors import SourceError
from tidelog.spark.options import parse
from tidelog.spark.read import extents
from tidelog.spark.source import FilteringReader, RangePartition, TidelogDataSource, TidelogReader


def fill(url: str, count: int, partitions: int = 1) -> None:
    with tidelog.sync.connect(url) as log, log.producer("orders") as producer:
        for n in range(count):
            producer.submit(b"%d" % n, partition=n % partitions)


def reader(url: str, **options: str) -> TidelogReader:
    return TidelogReader(parse({"gateway": url, "subscribe": "orders", **options}))


def rows(source: TidelogReader, partitions: list[RangePartition]) -> list[tuple[int, int, bytes]]:
    found: list[dict[str, Any]] = []
    for partition in partitions:
        for batch in source.read(partition):
            found += batch.to_pylist()
    return [(row["partition"], row["offset"], row["value"]) for row in found]


def test_ends_are_fixed_when_the_read_is_planned() -> None:
    with served(2) as (_, url):
        fill(url, 100, 2)
        source = reader(url)
        planned = source.partitions()
        fill(url, 50, 2)
        found = rows(source, planned)
        assert found == [(p, n, b"%d" % (2 * n + p)) for p in range(2) for n in range(50)]


def test_every_cut_reads_the_same_rows() -> None:
    with served() as (_, url):
        fill(url, 1000)
        whole = rows(reader(url), reader(url).partitions())
        source = reader(url, minPartitions="7")
        planned = source.partitions()
        assert len(planned) == 7
        assert rows(source, planned) == whole
        assert len(whole) == 1000


def test_nothing_to_read_is_no_work() -> None:
    with served() as (_, url):
        assert reader(url).partitions() == []
        assert list(reader(url).read(None)) == []


def test_retention_that_overtakes_the_read_is_reported_exactly() -> None:
    with served() as (cluster, url):
        fill(url, 100)
        source = reader(url)
        planned = source.partitions()
        cluster.log("orders").start = 30
        wanted = re.escape("offsets 0 to 29: deleted by retention, the log begins at 30; offsets 30 to 99: retained")
        with pytest.raises(SourceError, match=wanted):
            rows(source, planned)


def test_allowed_data_loss_goes_on_with_what_is_there_and_counts_it(caplog: pytest.LogCaptureFixture) -> None:
    with served() as (cluster, url):
        fill(url, 100)
        source = reader(url, failOnDataLoss="false")
        planned = source.partitions()
        cluster.log("orders").start = 30
        assert [offset for _, offset, _ in rows(source, planned)] == list(range(30, 100))
        assert "offsets 0 to 29: deleted by retention, the log begins at 30" in caplog.text


def test_a_topic_that_was_made_anew_is_not_read_for_the_old_one() -> None:
    with served() as (cluster, url):
        fill(url, 10)
        source = reader(url)
        planned = source.partitions()
        cluster.add_topic("orders")
        fill(url, 10)
        with pytest.raises(SourceError, match="TIDELOG_TOPIC_CHANGED"):
            rows(source, planned)


def test_a_missing_topic_or_partition_is_refused_at_planning() -> None:
    with served() as (_, url):
        with pytest.raises(SourceError, match=r"^\[TIDELOG_UNKNOWN_TOPIC\] there is no topic nothing"):
            TidelogReader(parse({"gateway": url, "subscribe": "nothing"})).partitions()
        with pytest.raises(SourceError, match="orders has partitions 0 to 0; assign names"):
            TidelogReader(parse({"gateway": url, "assign": '{"orders": [0, 1]}'})).partitions()


def test_a_gateway_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.spark.read.extents.PLAN_TIMEOUT_S", 0.1)
    with pytest.raises(SourceError, match=r"^\[TIDELOG_UNREACHABLE\] no gateway can be reached"):
        reader("ws://127.0.0.1:1").partitions()


def test_records_that_replaced_planned_ones_by_an_unclean_election_are_reported() -> None:
    with served() as (cluster, url):
        fill(url, 100)
        source = reader(url)
        planned = source.partitions()
        log = cluster.log("orders")
        del log.batches[-1]
        log.end = first = sum(read_header(batch).record_count for batch in log.batches)
        cluster.epoch += 1
        fill(url, 100 - first)
        wanted = f"offsets {first} to 99: truncated, what was read before parts from the log at {first}"
        with pytest.raises(SourceError, match=wanted):
            rows(source, planned)
        assert len(rows(reader(url, failOnDataLoss="false"), planned)) == 100


def test_times_are_places() -> None:
    with served(2) as (_, url):
        with tidelog.sync.connect(url) as log, log.producer("orders") as producer:
            for n in range(20):
                producer.submit(b"x", partition=n % 2, timestamp_ms=1000 * n)
        planned = reader(url, startingTimestamp="6500", endingTimestamp="12000").partitions()
        assert [(p.range.start, p.range.end) for p in planned] == [(4, 6), (3, 6)]
        each = '{"orders": {"0": 4000, "1": 30000}}'
        planned = reader(url, endingOffsetsByTimestamp=each).partitions()
        assert [(p.range.start, p.range.end) for p in planned] == [(0, 2), (0, 10)]
        with pytest.raises(SourceError, match="orders/1: a starting time is 30000, and no record is of that time"):
            reader(url, startingOffsetsByTimestamp=each).partitions()
        late = reader(url, startingOffsetsByTimestamp=each, startingOffsetsByTimestampStrategy="latest")
        assert [(p.range.partition, p.range.start, p.range.end) for p in late.partitions()] == [(0, 2, 10)]


def test_a_pattern_takes_every_topic_that_it_matches_as_a_whole() -> None:
    with served() as (cluster, url):
        fill(url, 3)
        cluster.add_topic("my-orders")
        with tidelog.sync.connect(url) as log, log.producer("my-orders") as producer:
            producer.send(b"x")
        source = TidelogReader(parse({"gateway": url, "subscribePattern": "ord.*"}))
        assert [each.range.topic for each in source.partitions()] == ["orders"]
        source = TidelogReader(parse({"gateway": url, "subscribePattern": ".*ord.*"}))
        assert [each.range.topic for each in source.partitions()] == ["my-orders", "orders"]


def test_filters_leave_out_excluded_rows() -> None:
    with served(3) as (_, url):
        fill(url, 300, 3)
        source = FilteringReader(parse({"gateway": url, "subscribe": "orders", "filterPushdown": "true"}))
        filters = [
            In(("partition",), (0, 2)),
            EqualTo(("partition",), 2),
            GreaterThan(("offset",), 9),
            LessThanOrEqual(("offset",), 20),
            EqualTo(("key",), b"k"),
        ]
        assert list(source.pushFilters(filters)) == filters
        assert [(p.range.partition, p.range.start, p.range.end) for p in source.partitions()] == [(2, 10, 21)]


TIMES = (5000, 1000, 9000, 2000, 8000, 8000, 3000, 9500, 100, 7000)
"""The timestamps of records, as producers with clocks of their own set them."""


@pytest.mark.parametrize("batches", [1, 2, 10], ids=lambda n: f"{n} batches")
def test_a_filter_on_times_out_of_order_loses_no_row(batches: int) -> None:
    with served() as (_, url):
        with tidelog.sync.connect(url) as log:
            for n in range(0, len(TIMES), len(TIMES) // batches):
                with log.producer("orders") as producer:
                    for at in TIMES[n : n + len(TIMES) // batches]:
                        producer.submit(b"x", timestamp_ms=at)
        for after in (0, 5000, 5001, 8000, 9000, 9001, 9500, 9501):
            time = datetime.fromtimestamp(after / 1000, UTC)
            first = next((offset for offset, at in enumerate(TIMES) if at >= after), None)
            expected = [] if first is None else [(first, len(TIMES))]
            for wanted in (GreaterThanOrEqual(("timestamp",), time), EqualTo(("timestamp",), time)):
                assert planned(url, wanted) == expected
            odd = time.astimezone(timezone(timedelta(hours=3))) + timedelta(microseconds=700)
            assert planned(url, GreaterThan(("timestamp",), odd)) == expected, "a record of this millisecond is kept"


def test_filters_on_times_narrow_together_with_others_and_never_the_end() -> None:
    with served() as (_, url):
        with tidelog.sync.connect(url) as log, log.producer("orders") as producer:
            for n in range(100):
                producer.submit(b"x", timestamp_ms=1000 * n)
        at = [datetime.fromtimestamp(n, UTC) for n in range(100)]
        column = ("timestamp",)
        late = GreaterThanOrEqual(column, at[40])
        assert planned(url, GreaterThan(column, at[30]), late, LessThanOrEqual(column, at[50])) == [(40, 100)]
        assert planned(url, late, LessThanOrEqual(("offset",), 44)) == [(40, 45)]
        assert planned(url, late, LessThanOrEqual(("offset",), 30)) == []
        for ignored in (at[40].replace(tzinfo=None), datetime(1969, 1, 1, tzinfo=UTC), None, 40_000):
            assert planned(url, GreaterThanOrEqual(column, ignored)) == [(0, 100)]


def test_a_topic_that_was_made_anew_meanwhile_is_not_narrowed_by_the_times_of_the_new_one() -> None:
    with served() as (cluster, url):
        fill(url, 10)
        [found] = reader(url).partitions()
        cluster.add_topic("orders")
        fill(url, 20)
        with tidelog.sync.connect(url) as log:
            assert extents.since(log, [found.range], datetime(2100, 1, 1, tzinfo=UTC)) == [found.range]


def planned(url: str, *filters: Filter) -> list[tuple[int, int]]:
    """The ranges of offsets that a read with these filters plans."""
    source = FilteringReader(parse({"gateway": url, "subscribe": "orders", "filterPushdown": "true"}))
    assert list(source.pushFilters([*filters])) == [*filters], "Spark applies each of them again"
    return [(each.range.start, each.range.end) for each in source.partitions()]


def test_a_read_that_is_left_early_closes_its_connection() -> None:
    with served() as (cluster, url):
        fill(url, 20_000)
        source = reader(url)
        [partition] = source.partitions()
        reading = source.read(partition)
        next(reading)
        reading.close()
        with tidelog.sync.connect(url) as log:
            log.topics.list()
            assert len(cluster.links) == 1


def test_the_columns_are_those_of_the_options() -> None:
    assert TidelogDataSource.name() == "tidelog"
    assert "headers" not in TidelogDataSource({"subscribe": "a"}).schema()
    assert "headers" in TidelogDataSource({"subscribe": "a", "includeHeaders": "true"}).schema()


def test_a_batch_that_cannot_be_decoded_ends_the_task_with_its_place() -> None:
    with served() as (cluster, url):
        plant(cluster.log("orders"), garbage())
        source = reader(url)
        with pytest.raises(SourceError, match="TIDELOG_CORRUPT") as raised:
            rows(source, source.partitions())
        text = str(raised.value)
        assert "orders/0: the batch at offsets 3 to 5, of producer id 17, cannot be read" in text
        assert "Read from offset 6, or set onUnreadable=skip" in text


def test_skipping_gives_every_other_row_at_its_offset_and_counts(caplog: pytest.LogCaptureFixture) -> None:
    with served() as (cluster, url):
        plant(cluster.log("orders"), garbage())
        expected = [(0, n, b"%d" % n) for n in (0, 1, 2, 6, 7, 8, 9)]
        whole, cut = reader(url, onUnreadable="skip"), reader(url, onUnreadable="skip", maxRecordsPerPartition="4")
        assert rows(whole, whole.partitions()) == expected
        texts = [entry.getMessage() for entry in caplog.records if entry.name == "tidelog.spark"]
        assert any("skipped: orders/0: the batch at offsets 3 to 5" in text for text in texts)
        assert "orders/0: skipped 3 offsets in 1 batches that cannot be decoded" in texts
        assert len(cut.partitions()) == 3 and rows(cut, cut.partitions()) == expected


def test_a_damaged_batch_is_not_skipped() -> None:
    with served() as (cluster, url):
        plant(cluster.log("orders"), garbage())
        cluster.log("orders").batches[1] = cluster.log("orders").batches[1][:-1] + b"."
        source = reader(url, onUnreadable="skip")
        with pytest.raises(SourceError, match="damaged on the way"):
            rows(source, source.partitions())
