"""The streaming source without Spark around it: what it plans, replays and tells, against a gateway in memory."""

from __future__ import annotations

import itertools
from socket import gethostname
from typing import Any

import pytest
import tidelog.sync
from support.gateway_thread import served

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'tidelog[spark]'")

from pyspark.sql.streaming.datasource import ReadAllAvailable
from tidelog.batch.format import read_header
from tidelog.client.core.query_note import QueryNote
from tidelog.spark import checkpoint_planner as stream
from tidelog.spark.checkpoint_planner import TidelogStreamReader
from tidelog.spark.errors import SourceError
from tidelog.spark.options import parse
from tidelog.spark.progress import lag
from tidelog.types import TopicPartition
from tidelog.wire.messages import JoinGroup

Offset = dict[str, Any]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "WAIT_S", 0.0)


def fill(url: str, count: int, partitions: int = 1) -> None:
    with tidelog.sync.connect(url) as log, log.producer("orders") as producer:
        for n in range(count):
            producer.submit(b"%d" % n, partition=n % partitions)


def reader(url: str, **options: str) -> TidelogStreamReader:
    which = {} if "assign" in options or "subscribePattern" in options else {"subscribe": "orders"}
    return TidelogStreamReader(parse({"gateway": url, **which, **options}, streaming=True))


def step(source: TidelogStreamReader, start: Offset) -> Offset:
    return source.latestOffset(start, source.getDefaultReadLimit())


def offsets(source: TidelogStreamReader, start: Offset, end: Offset) -> list[tuple[int, int]]:
    planned = source.partitions(start, end)
    rows = [row for each in planned for batch in source.read(each) for row in batch.to_pylist()]
    return [(row["partition"], row["offset"]) for row in rows]


def upto(end: Offset) -> dict[int, tuple[int, int]]:
    places = end["topics"]["orders"]["partitions"]
    return {int(partition): (at["epoch"], at["offset"]) for partition, at in places.items()}


def test_batches_follow_each_other_without_gap_or_repeat() -> None:
    with served(2) as (_, url):
        fill(url, 10, 2)
        source = reader(url)
        start = source.initialOffset()
        assert step(source, start) == start, "it begins at the end"
        fill(url, 4, 2)
        first = step(source, start)
        assert offsets(source, start, first) == [(0, 5), (0, 6), (1, 5), (1, 6)]
        assert step(source, first) == first
        fill(url, 2, 2)
        second = step(source, first)
        assert offsets(source, first, second) == [(0, 7), (1, 7)]
        assert upto(second) == {0: (4, 8), 1: (4, 8)}
        source.stop()


def test_the_first_answer_stays_and_the_first_batch_is_replayed_from_where_it_was_planned() -> None:
    with served() as (_, url):
        fill(url, 10)
        source = reader(url)
        start = source.initialOffset()
        fill(url, 10)
        assert source.initialOffset() == start
        end = step(source, start)
        source.stop()
        again = reader(url)  # Spark has kept the end, not the start
        later = again.initialOffset()
        assert upto(later) == {0: (4, 20)}
        assert offsets(again, later, end) == [(0, n) for n in range(10, 20)]
        again.stop()


def test_a_bounded_batch_knows_the_leader_epoch_of_its_last_record() -> None:
    with served() as (cluster, url):
        fill(url, 10)
        cluster.epoch = 7
        fill(url, 10)
        source = reader(url, startingOffsets="earliest", maxOffsetsPerTrigger="6")
        marks = [source.initialOffset()]
        for _ in range(4):
            marks.append(step(source, marks[-1]))
        assert [upto(mark)[0] for mark in marks[1:]] == [(4, 6), (7, 12), (7, 18), (7, 20)]
        assert [len(offsets(source, a, b)) for a, b in itertools.pairwise(marks)] == [6, 6, 6, 2]
        source.stop()


def test_a_batch_waits_for_enough_records_but_not_for_ever() -> None:
    with served() as (_, url):
        source = reader(url, startingOffsets="earliest", minOffsetsPerTrigger="10", maxTriggerDelay="1h")
        start = source.initialOffset()
        fill(url, 3)
        first = step(source, start)
        assert upto(first) == {0: (4, 3)}, "the first comes at once"
        fill(url, 9)
        assert step(source, first) == first
        assert upto(source.latestOffset(first, ReadAllAvailable())) == {0: (4, 12)}
        fill(url, 1)
        assert upto(step(source, first)) == {0: (4, 13)}
        source.stop()
        hasty = reader(url, minOffsetsPerTrigger="100", maxTriggerDelay="0s")
        assert upto(step(hasty, first)) == {0: (4, 13)}
        hasty.stop()


def test_available_now_ends_with_what_there_was() -> None:
    with served() as (_, url):
        fill(url, 10)
        source = reader(url, startingOffsets="earliest", maxOffsetsPerTrigger="8", minOffsetsPerTrigger="5")
        start = source.initialOffset()
        source.prepareForTriggerAvailableNow()
        fill(url, 10)
        first = step(source, start)
        second = step(source, first)
        assert [upto(first), upto(second)] == [{0: (4, 8)}, {0: (4, 10)}]
        assert step(source, second) == second
        source.stop()


def test_a_partition_that_is_added_is_read_from_its_start() -> None:
    with served(1) as (cluster, url):
        source = reader(url, subscribePattern="ord.*")
        start = source.initialOffset()
        cluster.add_topic("ordered", 1)
        with tidelog.sync.connect(url) as log, log.producer("ordered") as producer:
            producer.submit(b"x")
        end = step(source, start)
        planned = source.partitions(start, end)
        assert [(each.range.topic, each.range.start, each.range.end) for each in planned] == [("ordered", 0, 1)]
        source.stop()


def test_retention_that_overtakes_the_query_is_reported_exactly_or_skipped_and_counted() -> None:
    with served() as (cluster, url):
        fill(url, 100)
        source = reader(url, startingOffsets="earliest")
        start = source.initialOffset()
        end = step(source, start)
        cluster.log("orders").start = 30
        with pytest.raises(SourceError, match="offsets 0 to 29: deleted by retention, the log begins at 30"):
            source.partitions(start, end)
        source.stop()
        lenient = reader(url, startingOffsets="earliest", failOnDataLoss="false")
        assert offsets(lenient, start, end) == [(0, n) for n in range(30, 100)]
        step(lenient, end)
        assert lenient.reportLatestOffset()["lost"] == 30
        lenient.stop()


def test_a_log_of_which_nothing_is_left_is_a_loss_too() -> None:
    with served() as (cluster, url):
        fill(url, 100)
        source = reader(url, startingOffsets='{"orders": {"0": 40}}')
        start = source.initialOffset()
        cluster.log("orders").start = 100
        with pytest.raises(SourceError, match="offsets 40 to 99: deleted by retention"):
            source.partitions(start, step(source, start))
        source.stop()


def test_a_log_that_became_shorter_is_reported() -> None:
    with served() as (cluster, url):
        fill(url, 100)
        source = reader(url)
        start = source.initialOffset()
        log = cluster.log("orders")
        del log.batches[-1]
        log.end = left = sum(read_header(batch).record_count for batch in log.batches)
        with pytest.raises(SourceError, match=f"offsets? {left}.*: truncated, the log ends at {left} now"):
            step(source, start)
        source.stop()
        lenient = reader(url, failOnDataLoss="false")
        end = step(lenient, start)
        assert upto(end)[0][1] == left
        assert lenient.partitions(start, end) == []
        lenient.stop()


def test_a_topic_that_was_made_anew_ends_the_query() -> None:
    with served() as (cluster, url):
        fill(url, 10)
        source = reader(url, startingOffsets="earliest", failOnDataLoss="false")
        start = source.initialOffset()
        end = step(source, start)
        cluster.add_topic("orders")
        fill(url, 20)
        with pytest.raises(SourceError, match="TIDELOG_TOPIC_CHANGED"):
            step(source, end)
        with pytest.raises(SourceError, match="TIDELOG_TOPIC_CHANGED"):
            source.partitions(start, end)
        source.stop()


def test_the_group_knows_what_is_done_and_where_a_new_query_goes_on() -> None:
    with served(2) as (cluster, url):
        fill(url, 10, 2)
        source = reader(url, groupId="g")
        start = source.initialOffset()
        fill(url, 10, 2)
        assert {at.offset for at in cluster.group.positions.values()} == {5}, "kept before anything is read"
        end = step(source, start)
        assert {at.offset for at in cluster.group.positions.values()} == {5}, "planned is not done"
        step(source, end)
        assert {(at.leader_epoch, at.offset) for at in cluster.group.positions.values()} == {(4, 10)}
        source.stop()
        fill(url, 10, 2)
        assert upto(reader(url, groupId="g").initialOffset()) == {0: (4, 10), 1: (4, 10)}


def test_a_commit_says_where_the_query_runs_and_how_often_it_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(stream, "monotonic", lambda: now)
    with served(2) as (cluster, url):

        def note() -> QueryNote | None:
            (metadata,) = {at.metadata for at in cluster.group.positions.values()}
            return QueryNote.from_metadata(metadata)

        source = reader(url, groupId="g")
        start = source.initialOffset()
        assert note() == QueryNote(gethostname(), 0.0), "there was no batch before"
        fill(url, 10, 2)
        now += 3
        end = step(source, start)
        now += 2
        step(source, end)
        assert note() == QueryNote(gethostname(), 3.0), "the longer wait of two"
        source.stop()


def test_a_group_that_others_use_is_refused() -> None:
    with served() as (cluster, url):
        fill(url, 1)
        member = JoinGroup("g", "m", ("orders",), "i")
        cluster.group.give("i", [TopicPartition(cluster.topics["orders"].topic_id, 0)])
        cluster.group.answer(member)
        with pytest.raises(SourceError, match=r"\[TIDELOG_GROUP\] groupId g: .*; a query needs a group of its own"):
            reader(url, groupId="g").initialOffset()


def test_progress_reports_how_far_each_partition_is_behind_the_batch_that_is_planned() -> None:
    with served(2) as (cluster, url):
        fill(url, 20, 2)
        cluster.log("orders").start = 3
        start = '{"orders": {"0": 1, "1": 6}}'
        source = reader(url, startingOffsets=start, maxOffsetsPerTrigger="4", failOnDataLoss="false")
        begin = source.initialOffset()
        end = step(source, begin)
        source.partitions(begin, end)
        report = source.reportLatestOffset()
        assert upto(end) == {0: (4, 5), 1: (4, 8)}
        assert (report["behind"], report["lost"], upto(report)) == (7, 2, {0: (4, 10), 1: (4, 10)})
        partitions = report["topics"]["orders"]["partitions"]
        assert {n: (at["behind"], at["lost"]) for n, at in partitions.items()} == {"0": (5, 2), "1": (2, 0)}
        assert lag({"sources": [{"latestOffset": report}]}) == {"orders": {0: 5, 1: 2}}
        end = step(source, step(source, end))
        assert step(source, end) == end
        assert lag({"sources": [{"latestOffset": source.reportLatestOffset()}]}) == {"orders": {0: 0, 1: 0}}
        source.stop()
