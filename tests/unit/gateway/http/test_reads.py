"""Tests ``reads.py``: how many records of a batch one answer takes."""

from __future__ import annotations

import pytest
from tidelog.batch.format import Record
from tidelog_gateway.http.reads import _first


def record(size: int) -> Record:
    """A record of this many bytes in key, value and headers."""
    return Record("t", 0, 0, 0, 0, b"k", bytes(size - 3), (("n", b"x"),))


@pytest.mark.parametrize(
    ("sizes", "most", "most_bytes", "taken"),
    [
        ([10, 10, 10], 3, 30, 3),
        ([10, 10, 10], 2, 30, 2),
        ([10, 10, 10], 3, 29, 3),
        ([10, 10, 10], 3, 19, 2),
        ([1000, 10], 2, 20, 1),
        ([10, 10], 2, -5, 1),
        ([], 5, 20, 0),
        ([10], 0, 20, 0),
    ],
)
def test_an_answer_takes_about_so_many_bytes_and_one_record_at_least(
    sizes: list[int], most: int, most_bytes: int, taken: int
) -> None:
    assert _first([record(size) for size in sizes], most, most_bytes) == taken
