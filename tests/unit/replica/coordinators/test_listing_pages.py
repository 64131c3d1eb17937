"""Coordinators tell their groups and transactions in pages, and all of them to an earlier gateway. Tests
``groups/coordinator.py`` and ``transactions/coordinator.py``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.group_coordinator import SETTINGS, Desk
from tidelog.wire.messages import (
    BeginTransaction,
    CommitOffsets,
    GroupPosition,
    JoinGroup,
    LeaveGroup,
    ListGroups,
    ListTransactions,
)
from tidelog_replica.config import TransactionSettings
from tidelog_replica.coordinators.groups.coordinator import GroupCoordinator
from tidelog_replica.coordinators.groups.records import StoredGroups
from tidelog_replica.coordinators.transactions.coordinator import TransactionCoordinator
from tidelog_replica.coordinators.transactions.records import StoredTransactions


def listing_desk() -> Desk:
    desk = Desk()
    desk.core = GroupCoordinator(
        "r1", replace(SETTINGS, max_groups=10, max_joins_per_s=100), desk.topics, desk.counts
    )
    desk.core.load_records(StoredGroups(), desk.now)
    for name in "caebd":
        desk.ask(JoinGroup(name, f"member-{name}", ("orders",)))
    return desk


def test_groups_come_in_pages_by_name() -> None:
    desk = listing_desk()
    pages, after, more = [], "", True
    while more:
        told = desk.ask(ListGroups(0, after, 2))
        pages.append("".join(info.group for info in told.groups))
        after, more = told.groups[-1].group, told.more
    assert pages == ["ab", "cd", "e"]
    assert "".join(info.group for info in desk.ask(ListGroups(0)).groups) == "abcde", "to an earlier gateway"


def test_a_group_that_is_deleted_between_pages_leaves_no_gap() -> None:
    desk = listing_desk()
    del desk.core.groups["b"]
    assert [info.group for info in desk.ask(ListGroups(0, "b", 2)).groups] == ["c", "d"]


def test_groups_come_with_their_positions_in_one_partition() -> None:
    desk = listing_desk()
    desk.core.handle(LeaveGroup("b", "member-b"), desk.now, desk.wall_ms)
    desk.ask(CommitOffsets("b", (GroupPosition("id-orders", 1, 7), GroupPosition("id-orders", 2, 8))))
    listed = desk.ask(ListGroups(0, "a", 2, "id-orders", 2)).groups
    assert [(info.group, info.positions) for info in listed] == [
        ("b", (GroupPosition("id-orders", 2, 8, committed_ms=desk.wall_ms),)),
        ("c", ()),
    ]
    assert [info.positions for info in desk.ask(ListGroups(0)).groups] == [None] * 5, "none is asked for"


def test_transactions_come_in_pages_of_whole_applications() -> None:
    core = TransactionCoordinator(TransactionSettings())
    core.load_records(StoredTransactions(), 0, 0.0, 1000)
    for number, (app, staged) in enumerate([("a", ""), ("b", "1"), ("b", "2"), ("b", "3"), ("c", ""), ("d", "")], 5):
        core.handle(BeginTransaction(app, "owner", staged, producer_id=number), 0.0, 1000)

    def told(after: str, most: int) -> tuple[str, bool]:
        answer: Any = core.handle(ListTransactions("", 0, after, most), 0.0, 1000)
        return "".join(info.app for info in answer.transactions), answer.more

    assert told("", 2) == ("abbb", True), "all of an application, so that none of it is left out"
    assert told("b", 2) == ("cd", False)
    assert told("", 0) == ("abbbcd", False), "to an earlier gateway"
