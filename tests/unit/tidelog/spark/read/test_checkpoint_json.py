"""What a micro-batch's bounds look like in the checkpoint, and how a bounded batch is shared out."""

from __future__ import annotations

import json

import pytest
from tidelog.spark.errors import SourceError
from tidelog.spark.read.checkpoint_json import CheckpointOffset, Key, share
from tidelog.types import Position

A0, A1, B0 = Key("a", 0, "ia"), Key("a", 1, "ia"), Key("b", 0, "ib")


def test_equal_marks_are_equal_texts() -> None:
    one = CheckpointOffset({B0: Position(1, 2), A1: Position(3, 4), A0: Position(-1, 0)})
    other = CheckpointOffset({A0: Position(-1, 0), A1: Position(3, 4), B0: Position(1, 2)})
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())
    assert json.loads(json.dumps(one.to_json())) == {
        "topics": {
            "a": {"id": "ia", "partitions": {"0": {"epoch": -1, "offset": 0}, "1": {"epoch": 3, "offset": 4}}},
            "b": {"id": "ib", "partitions": {"0": {"epoch": 1, "offset": 2}}},
        },
        "version": 1,
    }


@pytest.mark.parametrize(
    "mark",
    [
        CheckpointOffset({A0: Position(1, 2)}, first=True),
        CheckpointOffset({A0: Position(1, 2)}, since=CheckpointOffset({A0: Position(-1, 0)})),
    ],
)
def test_a_mark_survives_the_checkpoint(mark: CheckpointOffset) -> None:
    assert CheckpointOffset.from_json(json.loads(json.dumps(mark.to_json()))) == mark


def test_a_checkpoint_of_somebody_else_is_refused() -> None:
    with pytest.raises(SourceError, match="the checkpoint is of another source or version"):
        CheckpointOffset.from_json({"a": {"0": 5}})


def test_waiting_records_are_counted_including_those_of_new_partitions() -> None:
    mark = CheckpointOffset({A0: Position(1, 20)})
    assert [mark.behind(A0, 50), mark.behind(A1, 7), mark.behind(A0, 19)] == [30, 7, 0]


def test_a_batch_without_need_to_share_takes_all() -> None:
    assert share({A0: 5, A1: 0, B0: -3}, 5) == {A0: 5}


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 50, 111])
def test_a_bounded_batch_takes_exactly_its_bound_and_something_of_all(limit: int) -> None:
    sizes = {A0: 100, A1: 1, B0: 11}
    taken = share(sizes, limit)
    assert sum(taken.values()) == limit
    assert len(taken) == min(limit, 3)
    assert all(0 < count <= sizes[key] for key, count in taken.items())


def test_the_partition_with_the_most_waiting_records_comes_first() -> None:
    assert share({A0: 3, A1: 9, B0: 4}, 1) == {A1: 1}
