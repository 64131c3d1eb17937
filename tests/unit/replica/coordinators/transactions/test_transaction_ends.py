"""The end of a transaction is written with the begin of the next one of its application, or a little later alone.
Tests ``transactions/coordinator.py`` and ``transactions/markers.py``."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
from support.fake_controller import KEY
from tidelog.errors import TidelogError
from tidelog.wire.messages import (
    BeginTransaction,
    CommitStaged,
    Done,
    EndTransaction,
    EnrolPartition,
    ListTransactions,
    ListTransactionsAnswer,
    Message,
    PrepareTransaction,
    TransactionBegun,
)
from tidelog_replica.config import TransactionSettings
from tidelog_replica.coordinators.groups.records import Entry
from tidelog_replica.coordinators.transactions.coordinator import LATER_S, SOON_S, TransactionCoordinator
from tidelog_replica.coordinators.transactions.records import StoredTransactions
from tidelog_replica.coordinators.transactions.transaction import Marker

APP = "app"


class Log:
    """A coordinator, and what it has written: all of it is committed when ``commit`` is called."""

    def __init__(self) -> None:
        self.written: list[list[Entry]] = []
        self.core = self.new_coordinator()

    def new_coordinator(self) -> TransactionCoordinator:
        stored = StoredTransactions()
        for key, value in (entry for entries in self.written for entry in entries):
            stored.add_record(key, value)
        self.core = TransactionCoordinator(TransactionSettings())
        self.core.load_records(stored, self.end, 0.0, 1000)
        return self.core

    @property
    def end(self) -> int:
        return sum(map(len, self.written))

    def ask(self, message: Message, now: float) -> Any:
        answer = self.core.handle(message, now, 1000)
        self.write()
        return answer

    def write(self) -> None:
        if entries := self.core.take_entries():
            self.written.append(entries)
            self.core.on_written(self.end)

    def tick(self, now: float) -> None:
        self.core.on_tick(now, 1000)
        self.write()

    def begin(self, now: float, staged: str = "", owner: str = "one", producer_id: int = 5) -> TransactionBegun:
        begun = self.ask(BeginTransaction(APP, owner, staged, producer_id=producer_id), now)
        assert isinstance(begun, TransactionBegun), begun
        enrolled = self.ask(EnrolPartition("r1", APP, begun.producer_id, begun.producer_epoch, *KEY), now)
        assert enrolled == Done()
        return begun

    def markers(self, now: float) -> list[Marker]:
        self.core.on_committed(self.end)
        return self.core.take_markers(now)

    def commit(self, now: float) -> None:
        """A transaction whose leaders all have the marker."""
        begun = self.begin(now)
        self.ask(EndTransaction(APP, begun.producer_id, begun.producer_epoch, True), now)
        for marker in self.markers(now):
            self.core.on_marker(marker, True, now)

    def states(self, number: int = -1) -> list[str | None]:
        """Of the transactions in one write."""
        return [None if value is None else cbor2.loads(value)["state"] for _, value in self.written[number]]

    def reported(self, app: str = APP) -> list[tuple[str, int]]:
        answer = self.ask(ListTransactions(app), 1.0)
        assert isinstance(answer, ListTransactionsAnswer)
        return [(info.state, info.partitions) for info in answer.transactions]


def test_the_next_begin_and_the_end_before_it_are_one_write() -> None:
    log = Log()
    log.commit(1.0)
    before = len(log.written)
    log.ask(BeginTransaction(APP, "two", producer_id=6), 1.01)
    assert len(log.written) == before + 1
    assert log.states() == ["committed", "open"]


def test_without_a_next_one_it_is_written_after_a_while() -> None:
    log = Log()
    log.commit(1.0)
    before = len(log.written)
    log.tick(1.0 + LATER_S / 2)
    assert len(log.written) == before
    log.tick(1.0 + LATER_S)
    assert log.states() == ["committed"]
    log.tick(2.0)
    assert len(log.written) == before + 1, "once"


def test_until_then_it_is_reported_as_ended() -> None:
    log = Log()
    log.commit(1.0)
    assert log.reported() == [("committed", 0)]
    assert log.reported("") == [], "it is none of those that have yet to end"


def test_an_end_that_somebody_waits_for_is_written_soon() -> None:
    log = Log()
    begun = log.begin(1.0)
    log.ask(EndTransaction(APP, begun.producer_id, begun.producer_epoch, True), 1.0)
    [marker] = log.markers(1.0)
    log.core.on_marker(marker, True, 1.0, awaited=True)
    log.tick(1.0 + SOON_S)
    assert log.states() == ["committed"]


def test_a_committed_staged_transaction_is_forgotten_soon() -> None:
    log = Log()
    begun = log.begin(1.0, "task")
    log.ask(PrepareTransaction(APP, begun.producer_id, begun.producer_epoch), 1.0)
    log.ask(CommitStaged(APP, 1, ("task",)), 1.0)
    for marker in log.markers(1.0):
        log.core.on_marker(marker, True, 1.0)
    log.tick(1.0 + SOON_S)
    assert log.states() == [None]


def test_a_decision_without_its_end_is_sent_again_by_the_next_coordinator() -> None:
    log = Log()
    log.commit(1.0)
    log.new_coordinator()
    refused = log.ask(BeginTransaction(APP, "two", producer_id=6), 1.0)
    assert isinstance(refused, TidelogError) and refused.code == "TRANSACTION_ENDING"
    [marker] = log.markers(1.0)
    log.core.on_marker(marker, True, 1.0)
    assert log.begin(1.0, owner="two").producer_epoch == marker.epoch + 1


@pytest.mark.parametrize("commit", [True, False])
def test_a_decision_that_is_not_committed_is_no_end(commit: bool) -> None:
    """Also of a transaction without partitions, which has no marker to wait for."""
    log = Log()
    begun = log.ask(BeginTransaction(APP, "one", producer_id=5), 1.0)
    log.ask(EndTransaction(APP, begun.producer_id, begun.producer_epoch, commit), 1.0)
    refused = log.ask(BeginTransaction(APP, "two", producer_id=6), 1.0)
    assert isinstance(refused, TidelogError) and refused.code == "TRANSACTION_ENDING"
    assert log.reported() == [("committing" if commit else "aborting", 0)]
    assert log.markers(1.0) == []
    assert log.ask(BeginTransaction(APP, "two", producer_id=6), 1.0).producer_epoch == begun.producer_epoch + 1
