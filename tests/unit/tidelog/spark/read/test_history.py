"""The plan of a read that begins in a table and goes on in the log."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidelog.spark.errors import SourceError
from tidelog.spark.read.data_loss import PartitionExtent
from tidelog.spark.read.history import Kept, check_files, cut_at_joins, in_table, kept_of, prune, whole
from tidelog.spark.read.ranges import Range, plan
from tidelog.tables.commit_protocol import Archive, Marker, owner_of
from tidelog.tables.pinned import Footer, RowGroup

LOG = PartitionExtent("orders", "id", 0, 50, 100, 7)
TABLE = Kept(10, 60, 3)
MARKER = Marker(
    4,
    1,
    1,
    "q",
    {"orders": {0: 60}},
    Archive(50, {"orders": {0: 10}}, {"orders": {0: 3}}, {"orders": owner_of("id")}),
)


def parts(
    start: int | str, end: int | str, table: Kept = TABLE, log: PartitionExtent = LOG
) -> tuple[list[tuple[str, int, int, int]], list[str]]:
    """Where each part of a read is, its offsets and the epoch before it, and the losses."""
    kept = {("orders", 0): table}
    places = [one if isinstance(one, str) else {"orders": {0: one}} for one in (start, end)]
    found, losses = cut_at_joins(plan([whole(log, table)], *places, fail_on_data_loss=True), kept, [log])
    where = [("table" if in_table(one, kept) else "log", one.start, one.end, one.start_epoch) for one in found]
    return where, [str(loss).partition(". ")[2].partition(". Read from")[0] for loss in losses]


def test_a_read_is_cut_at_the_join() -> None:
    both = [("table", 10, 60, -1), ("log", 60, 100, 3)]
    assert parts("earliest", "latest") == (both, [])
    assert parts(20, 60) == ([("table", 20, 60, -1)], [])
    assert parts(59, 61) == ([("table", 59, 60, -1), ("log", 60, 61, 3)], [])
    assert parts(60, 61) == ([("log", 60, 61, 3)], [])
    assert parts(61, 99) == ([("log", 61, 99, -1)], []), "the record before the range is not the table's last"


def test_the_log_may_begin_exactly_at_the_join_and_not_behind_it() -> None:
    at = replace(LOG, start=60)
    assert parts("earliest", "latest", log=at) == ([("table", 10, 60, -1), ("log", 60, 100, 3)], [])
    behind = replace(LOG, start=63)
    found, [loss] = parts("earliest", "latest", log=behind)
    assert loss == "offsets 60 to 62: deleted by retention, the log begins at 63; offsets 63 to 99: retained"
    assert found == [("table", 10, 60, -1), ("log", 63, 100, -1)], "what is left with failOnDataLoss=false"
    assert parts(20, 60, log=behind) == ([("table", 20, 60, -1)], []), "nothing of the gap is asked for"


def test_a_log_that_ends_below_the_join_was_truncated() -> None:
    found, [loss] = parts("earliest", "latest", log=replace(LOG, end=55))
    assert loss == "offsets 55 to 59: truncated, the log ends at 55 now"
    assert found == [("table", 10, 60, -1)]
    assert parts(20, 55, log=replace(LOG, end=55)) == ([("table", 20, 55, -1)], [])


def test_a_table_that_begins_later_than_the_log_is_read_between() -> None:
    three = [("log", 0, 10, -1), ("table", 10, 60, -1), ("log", 60, 100, 3)]
    assert parts("earliest", "latest", log=replace(LOG, start=0)) == (three, [])


def test_a_partition_that_the_table_does_not_have_is_read_from_the_log() -> None:
    other = replace(LOG, partition=1)
    assert kept_of(MARKER, [LOG, other]) == {("orders", 0): TABLE}
    assert whole(other, None) == other
    ranges = plan([other], "earliest", "latest", fail_on_data_loss=True)
    assert cut_at_joins(ranges, {("orders", 0): TABLE}, [other]) == (ranges, [])


def test_only_an_archive_of_this_topic_will_do() -> None:
    with pytest.raises(SourceError, match=r"TIDELOG_HISTORY.*is not known to have every record"):
        kept_of(replace(MARKER, archive=None), [LOG])
    with pytest.raises(SourceError, match=r"TIDELOG_TOPIC_CHANGED.*of the earlier one"):
        kept_of(MARKER, [replace(LOG, topic_id="another")])
    assert MARKER.archive is not None
    without_id = replace(MARKER, archive=replace(MARKER.archive, topics={}))
    assert kept_of(without_id, [replace(LOG, topic_id="another")]) == {("orders", 0): TABLE}


def group(n: int, first: int, last: int, partitions: tuple[int, int] | None = (0, 0), rows: int = 10) -> RowGroup:
    return RowGroup("f", n, rows, partitions, (first, last))


def test_parts_of_files_are_pruned_and_sorted_in_groups() -> None:
    wanted = Range("orders", "id", 0, 20, 60)
    groups = (
        group(0, 40, 49),
        group(1, 0, 19),
        group(2, 19, 20),
        group(3, 60, 70),
        group(4, 20, 59, partitions=(1, 3)),
        group(5, 50, 59, partitions=(0, 3)),
        group(6, 45, 48),
        group(7, 30, 35, rows=0),
    )
    assert [[one.number for one in some] for some in prune([Footer((), groups)], wanted)] == [[2], [0, 6], [5]]
    unknown = RowGroup("f", 8, 10, None, None)
    assert [len(some) for some in prune([Footer((), groups), Footer((), (unknown,))], wanted)] == [5]


def test_the_files_must_have_what_was_committed() -> None:
    def check(rows: int, *columns: str) -> SourceError | None:
        footers = {"f": Footer(("key", "value"), (group(0, 0, 0, rows=rows),))}
        return check_files(MARKER, footers, columns)

    assert check(50, "key") is None
    assert "the table has 49 of the 50 rows that were committed: it was rolled back" in str(check(49, "key"))
    with pytest.raises(SourceError, match=r"TIDELOG_HISTORY.*51 rows, and 50 were committed"):
        check(51, "key")
    with pytest.raises(SourceError, match=r"TIDELOG_HISTORY.*f has no column headers"):
        check(50, "key", "headers")
