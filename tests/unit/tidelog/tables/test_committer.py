"""Tests ``tidelog.tables.committer``: a commit goes on after errors, for a bounded number of times."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from tidelog.tables import committer
from tidelog.tables.commit_protocol import Answer, CommitGivenUp, Marker, TableState, Verdict, owner_of
from tidelog.tables.committer import MAX_ERRORS, Append, commit
from tidelog.tables.file_writer import WrittenFile

CHANGE = Append("a", Marker(1, 1, owner_of("q")), (WrittenFile("f", 1, 1, (), b""),))


class Faulty:
    """A table in memory whose next calls fail."""

    def __init__(self, *faults: str) -> None:
        self.faults = list(faults)
        self.marker: Marker | None = None
        self.discarded: list[str] = []

    def load(self, app: str) -> TableState:
        if self.faults[:1] == ["load"]:
            self.faults.pop(0)
            raise OSError("no answer")
        return TableState(self.marker)

    def replace(self, state: TableState, change: Append) -> Answer:
        fault = self.faults.pop(0) if self.faults else ""
        if fault != "request":
            self.marker = change.marker
        if fault:
            raise OSError("no answer")
        return Answer.COMMITTED

    def files(self) -> list[str]:
        return ["/folder/committed"]

    def discard(self, names: list[str]) -> None:
        self.discarded += names
        raise OSError("cannot delete")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "FIRST_WAIT_S", 0.0)


@pytest.mark.parametrize("faults", [(), ("load",), ("request",), ("answer",), ("load", "request", "load", "answer")])
def test_a_commit_goes_on_after_errors(faults: tuple[str, ...]) -> None:
    table = Faulty(*faults)
    assert commit(table, CHANGE, time.time_ns()) is Verdict.MINE
    assert (table.marker, table.discarded) == (CHANGE.marker, [])


@pytest.mark.parametrize("fault", ["load", "request"])
def test_a_table_that_never_answers_ends_the_commit(fault: str) -> None:
    with pytest.raises(CommitGivenUp, match="no answer"):
        commit(Faulty(*[fault] * MAX_ERRORS), CHANGE, time.time_ns())


def test_files_of_an_attempt_that_is_late_are_deleted_if_that_can_be() -> None:
    table = Faulty()
    table.marker = Marker(1, 2, owner_of("q"))
    files = (*CHANGE.files, WrittenFile("committed", 1, 1, (), b""))
    assert commit(table, replace(CHANGE, files=files), time.time_ns()) is Verdict.ANOTHER
    assert table.discarded == ["f"], "and never one that is in the table"
