"""What a comparison of records says about both sides."""

from __future__ import annotations

from tidelog.backup.kafka.batches import Row
from tidelog.backup.kafka.comparison import PartitionComparison


def rows(*values: tuple[int, bytes]) -> list[Row]:
    return [(offset, (value, b"k", 1, ())) for offset, value in values]


def compared(there: list[Row], here: list[Row]) -> PartitionComparison:
    found = PartitionComparison("orders/0", 0, 10)
    found.add(there, here)
    return found


def test_the_same_records_are_a_copy_however_they_are_divided() -> None:
    both = rows((0, b"a"), (1, b"b"), (4, b"c"))
    whole, parts = compared(both, both), PartitionComparison("orders/0", 0, 10)
    for row in both:
        parts.add([row], [row])
    assert whole.is_copy(compacted=False) and whole.records == parts.records == 3
    assert whole.checksums == parts.checksums and len(set(whole.checksums)) == 1


def test_records_of_one_side_are_differences_unless_the_topic_is_compacted() -> None:
    both = rows((0, b"a"), (1, b"b"))
    for there, here, counts in ((both, both[:1], (1, 0)), (both[1:], both, (0, 1))):
        found = compared(there, here)
        assert (found.records, found.only_in_kafka, found.only_in_tidelog) == (1, *counts)
        assert found.is_copy(compacted=True) and not found.is_copy(compacted=False)
        assert len(set(found.checksums)) == 2


def test_a_record_that_differs_is_named_also_in_a_compacted_topic() -> None:
    found = compared(rows((0, b"a"), (5, b"b")), rows((0, b"a"), (5, b"x"), (6, b"y")))
    assert (found.differs_at, found.records, found.is_copy(compacted=True)) == (5, 1, False)
