"""What is said about a streaming query that has died."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import trio.testing
from tidelog.cli.explain.findings.diagnosis import examine
from tidelog.cli.explain.findings.finding import WARNING
from tidelog.cli.explain.streaming_queries import MOST_ASKED, OverdueQuery, find_overdue
from tidelog.client.admin.groups import GroupProgress
from tidelog.client.core.query_note import QueryNote
from tidelog.errors import refuse
from tidelog.wire.messages import OffsetAnswer

from unit.tidelog.cli.explain.findings.snapshots import healthy

NOW = 1_800_000_000.0


class _Log:
    """A client whose leaders have the record of every time at the offset ``due``."""

    def __init__(self, due: int) -> None:
        self.asked: list[float] = []
        self.due = due
        self.partitions: Any = SimpleNamespace(list_offset=self.list_offset)

    async def list_offset(self, topic: str, partition: int, at: Any) -> OffsetAnswer:
        self.asked.append(NOW - at.timestamp())
        return OffsetAnswer(self.due, 1)


def progress(age_s: float, note: QueryNote | None, behind: int = 40) -> GroupProgress:
    """A group at offset 60 of a partition, whose position was committed so long ago."""
    metadata = note.to_metadata() if note else ""
    committed_ms = round((NOW - age_s) * 1000)
    return GroupProgress("orders", "id", 0, 60, 1, 60 + behind, "", committed_ms, metadata)


async def test_a_query_is_overdue_if_a_record_waits_that_it_should_have_read_long_ago() -> None:
    log: Any = _Log(80)
    (found,) = await find_overdue(log, "etl", [progress(25.0, QueryNote("host-a", 1.5))], NOW)
    assert (found.group, found.topic, found.host, found.behind) == ("etl", "orders", "host-a", 40)
    assert found.silent_s == pytest.approx(25.0) and found.overdue_s == 12.0
    assert log.asked == pytest.approx([12.0])


@pytest.mark.parametrize(
    ("age_s", "note", "behind", "due", "why"),
    [
        (25.0, None, 40, 80, "no query commits there"),
        (5.0, QueryNote("a", 1.5), 40, 80, "it has just committed"),
        (25.0, QueryNote("a", 20.0), 40, 80, "it commits seldom"),
        (25.0, QueryNote("a", 1.5), 0, 80, "it has read everything"),
        (3600.0, QueryNote("a", 1.5), 40, 60, "what it has not read came a moment ago"),
    ],
)
async def test_a_query_is_not_overdue(age_s: float, note: QueryNote | None, behind: int, due: int, why: str) -> None:
    log: Any = _Log(due)
    assert await find_overdue(log, "etl", [progress(age_s, note, behind)], NOW) == [], why


async def test_the_leaders_of_a_query_with_many_partitions_are_asked_side_by_side_and_not_all() -> None:
    log: Any = _Log(80)
    together = 0
    answer = log.list_offset

    async def list_offset(topic: str, partition: int, at: Any) -> OffsetAnswer:
        nonlocal together
        before = len(log.asked)
        found: OffsetAnswer = await answer(topic, partition, at)
        await trio.testing.wait_all_tasks_blocked()  # all others have asked, too
        together = max(together, len(log.asked) - before)
        return found

    log.partitions.list_offset = list_offset
    note = QueryNote("host-a", 1.5)
    many = [replace(progress(25.0, note, behind=behind), partition=behind) for behind in range(1, MOST_ASKED + 4)]
    (found,) = await find_overdue(log, "etl", many, NOW)
    assert found.behind == sum(one.lag for one in many), "of all partitions"
    assert len(log.asked) == together == MOST_ASKED


async def test_a_partition_whose_leader_does_not_answer_hides_no_other() -> None:
    log: Any = _Log(80)
    answer = log.list_offset

    async def list_offset(topic: str, partition: int, at: Any) -> OffsetAnswer:
        if partition == 1:
            raise refuse("OFFLINE", "no leader")
        found: OffsetAnswer = await answer(topic, partition, at)
        return found

    log.partitions.list_offset = list_offset
    two = [replace(progress(25.0, QueryNote("host-a", 1.5)), partition=number) for number in (0, 1)]
    assert [one.behind for one in await find_overdue(log, "etl", two, NOW)] == [80]
    assert await find_overdue(log, "etl", two[1:], NOW) == []


def test_a_query_that_has_died_is_named_with_how_long_it_is_silent_and_its_lag_follows_from_that() -> None:
    query = OverdueQuery("etl", "orders", "host-a", 1.5, 25.0, 12.0, 40)
    view = replace(healthy(), lags={"etl": (0, 40)}, overdue=(query,))
    cause, rest = examine(view)
    assert (cause.level, cause.cause, cause.about) == (WARNING, "streaming-query-dead", ("etl",))
    assert "reads orders as group etl has died" in cause.what and "host-a" in cause.next_step
    assert "25 s old, before that it came every 1.5 s; 40 records wait" in cause.evidence
    assert (rest.cause, rest.because_of) == ("group-without-members", "streaming-query-dead")


def test_a_group_without_members_that_no_query_reads_is_another_cause() -> None:
    (found,) = examine(replace(healthy(), lags={"etl": (0, 40)}))
    assert (found.cause, found.because_of) == ("group-without-members", "")
