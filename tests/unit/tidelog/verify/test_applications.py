"""The history checker on consumer groups and transactions: each planted fault is flagged with exactly its kind.
Tests ``verify/check_groups.py`` and ``verify/check_transactions.py``."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from tidelog.verify.anomalies import KINDS
from tidelog.verify.checker import check
from tidelog.verify.history import (
    ABORTED,
    COMMITTED,
    OK,
    UNKNOWN,
    CommitCall,
    OperationHistory,
    ReadCall,
    Row,
    SendCall,
    TransactionCall,
)

PLACES = ("a/0", "a/1")


def sound_history(seed: int, count: int = 24) -> OperationHistory:
    """An application whose transactions move its group, each with a record in both partitions; some are aborted, of
    some nobody knows. A group of two members reads everything, and they take over from each other."""
    rng = random.Random(seed)
    history = OperationHistory(final={place: [] for place in PLACES}, control={place: set() for place in PLACES})
    ends = dict.fromkeys(PLACES, 0)
    moved = 0
    for number in range(count):
        label, start = f"t{number}", float(number)
        lands = rng.random() < 0.7
        known = rng.random() < 0.8
        one = TransactionCall(
            label, "app", start, start + 0.5, UNKNOWN, asked=lands or rng.random() < 0.5, position=moved
        )
        if known:
            one.fate = COMMITTED if lands else ABORTED
        for place in PLACES:
            value = f"{label}:{place}".encode()
            history.operations.append(
                SendCall("app", place, number, (value,), start, start + 0.2, OK, ends[place], transaction=label)
            )
            if lands:
                history.final[place].append((ends[place], value))
            else:
                history.control[place].add(ends[place])
            history.control[place].add(ends[place] + 1)  # the marker of its end
            ends[place] += 2
        moved += lands
        history.transactions.append(one)
    history.moved = {"app": moved}
    read_as_group(history, rng)
    return history


def read_as_group(history: OperationHistory, rng: random.Random) -> None:
    for place in PLACES:
        position, generation, when, rows = 0, 0, 100.0, history.final[place]
        while rows and position <= rows[-1][0]:
            generation += rng.randint(1, 2)
            member = f"m{generation % 2}.{generation}"
            taken = tuple([row for row in rows if row[0] >= position][: rng.randint(1, 6)])
            history.operations.append(ReadCall(member, place, position, taken, when, when + 1, group="g"))
            position = taken[-1][0] + 1
            history.operations.append(CommitCall(member, "g", generation, place, position, when + 1, when + 2, OK))
            when += 3
        history.committed["g", place] = position


def kinds(history: OperationHistory) -> set[str]:
    return {anomaly.kind for anomaly in check(history)}


def find(history: OperationHistory, fate: str, seen: bool) -> TransactionCall:
    """The last transaction with that fate that is in the log at the end, or is not."""
    values = {value for _, value in history.final["a/0"]}
    wanted = [
        one for one in history.transactions if one.fate == fate and (f"{one.label}:a/0".encode() in values) is seen
    ]
    return wanted[-1]


def hide(history: OperationHistory, label: str, *places: str) -> None:
    """Its records are not shown any more, to anybody."""
    for place in places:
        value = f"{label}:{place}".encode()
        history.control[place] |= {offset for offset, kept in history.final[place] if kept == value}
        history.final[place] = [row for row in history.final[place] if row[1] != value]
        for at, op in enumerate(history.operations):
            if isinstance(op, ReadCall):
                history.operations[at] = replace(op, rows=tuple(row for row in op.rows if row[1] != value))


def reveal(history: OperationHistory, label: str, *places: str) -> None:
    for op in history.operations:
        if isinstance(op, SendCall) and op.transaction == label and op.partition in places:
            history.final[op.partition] = sorted([*history.final[op.partition], (op.offset, op.values[0])])
    history.operations = [op for op in history.operations if not isinstance(op, CommitCall)]


def last_commit(history: OperationHistory) -> CommitCall:
    return [op for op in history.operations if isinstance(op, CommitCall)][-1]


def plant_aborted_and_there(history: OperationHistory) -> None:
    reveal(history, find(history, ABORTED, seen=False).label, *PLACES)
    history.transactions = [replace(one, position=-1) for one in history.transactions]
    history.moved = {}


def plant_aborted_and_shown(history: OperationHistory) -> None:
    op = next(
        op
        for op in history.operations
        if isinstance(op, SendCall) and op.transaction == find(history, ABORTED, False).label
    )
    history.operations.append(ReadCall("k", op.partition, op.offset, ((op.offset, op.values[0]),), 500.0, 501.0))


def plant_never_asked(history: OperationHistory) -> None:
    next(one for one in history.transactions if one.label == find(history, UNKNOWN, True).label).asked = False


def plant_torn(history: OperationHistory) -> None:
    hide(history, find(history, COMMITTED, seen=True).label, "a/1")


def plant_lost_commit(history: OperationHistory) -> None:
    hide(history, find(history, COMMITTED, seen=True).label, *PLACES)
    history.moved = {}


def plant_twice(history: OperationHistory) -> None:
    one = find(history, COMMITTED, seen=True)
    end = history.final["a/0"][-1][0] + 2
    history.final["a/0"].append((end, f"{one.label}:a/0".encode()))


def plant_lost_update(history: OperationHistory) -> None:
    find(history, COMMITTED, seen=True).position = find(history, COMMITTED, seen=True).position - 1


def plant_moved_without_records(history: OperationHistory) -> None:
    history.moved["app"] += 1


def plant_two_members_of_one_generation(history: OperationHistory) -> None:
    op = last_commit(history)
    history.operations.append(replace(op, process="another", start=op.start + 0.1, end=op.end + 0.1))


def plant_commit_of_an_old_generation(history: OperationHistory) -> None:
    op = last_commit(history)
    history.operations.append(replace(op, process="old", generation=0, start=op.end + 1, end=op.end + 2))


def plant_commit_that_goes_back(history: OperationHistory) -> None:
    op = last_commit(history)
    history.operations.append(replace(op, offset=op.offset - 1, start=op.end + 1, end=op.end + 2))


def plant_commit_that_is_forgotten(history: OperationHistory) -> None:
    history.committed["g", "a/1"] -= 1


def plant_record_that_no_member_was_shown(history: OperationHistory) -> None:
    at, op = next(
        (at, op) for at, op in enumerate(history.operations) if isinstance(op, ReadCall) and len(op.rows) > 2
    )
    rows: tuple[Row, ...] = op.rows
    history.operations[at : at + 1] = [
        replace(op, process="one", rows=rows[:1]),
        replace(op, process="two", position=rows[2][0], rows=rows[2:]),
    ]


PLANTS: dict[Callable[[OperationHistory], None], str] = {
    plant_aborted_and_there: "aborted_read",
    plant_aborted_and_shown: "aborted_read",
    plant_never_asked: "aborted_read",
    plant_torn: "torn",
    plant_lost_commit: "lost_commit",
    plant_twice: "twice",
    plant_lost_update: "lost_update",
    plant_moved_without_records: "lost_update",
    plant_two_members_of_one_generation: "double_commit",
    plant_commit_of_an_old_generation: "double_commit",
    plant_commit_that_goes_back: "commit_back",
    plant_commit_that_is_forgotten: "commit_back",
    plant_record_that_no_member_was_shown: "consumer_skip",
}


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_planted_fault_is_flagged_with_exactly_its_kind(plant: Callable[[OperationHistory], None]) -> None:
    for seed in range(5):
        history = sound_history(seed)
        plant(history)
        assert kinds(history) == {PLANTS[plant]}


def test_every_kind_has_a_plant() -> None:
    letters = {"A14"} | {kind.letter for kind in KINDS.values() if kind.letter.startswith("T")}
    told_of_stories_only = {"went_back"}
    assert {kind for kind, row in KINDS.items() if row.letter in letters} - told_of_stories_only <= set(
        PLANTS.values()
    )


def test_sound_histories_are_not_flagged() -> None:
    for seed in range(1000):
        assert check(sound_history(seed, 12)) == []


def test_missing_records_are_no_anomaly_where_nobody_has_read_the_end() -> None:
    history = sound_history(1)
    history.undrained, history.final, history.control = set(PLACES), {}, {}
    assert check(history) == []
