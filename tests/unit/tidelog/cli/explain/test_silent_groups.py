"""Tests ``tidelog.cli.explain.doctor``: how long it waits for consumer groups that do not answer, and what it says
of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from tidelog.cli.explain import doctor
from tidelog.cli.explain.doctor import PATIENT_S
from tidelog.cli.explain.findings.finding import NOTE
from tidelog.errors import TidelogError
from tidelog.explain.inquiry import ASK_S
from tidelog.wire.messages import DescribeGroupAnswer, GroupInfo, GroupMember, GroupPosition, PartitionInfo, TopicInfo

ORDERS = TopicInfo("id", "orders", {}, (PartitionInfo(0, ("r1",), ("r1",), "r1", 1, 1, 0, 100),))


class _Log:
    """A client with ten groups: those in ``held`` never answer, ``gone`` is deleted meanwhile, ``barred`` is refused,
    the others are 40 records behind. With ``list`` in ``held`` the list never comes. ``described`` counts the
    questions for the topic that they read."""

    def __init__(self, *held: str) -> None:
        self.held = held
        self.described = 0
        self.groups: Any = SimpleNamespace(list=self.list, describe=self.describe)
        self.topics: Any = SimpleNamespace(describe=self.topic)

    async def list(self) -> tuple[GroupInfo, ...]:
        if "list" in self.held:
            await trio.sleep_forever()
        return tuple(GroupInfo(name, "stable", 1) for name in ("gone", "barred", *(f"g{n}" for n in range(8))))

    async def describe(self, group: str) -> DescribeGroupAnswer:
        if group in ("gone", "barred"):
            raise TidelogError("no such right", code="UNKNOWN_GROUP" if group == "gone" else "FORBIDDEN")
        if group in self.held:
            await trio.sleep_forever()
        members, positions = (GroupMember("m", 1),), (GroupPosition("id", 0, 60),)
        return DescribeGroupAnswer(group, "stable", 1, "sticky", "r1", members, positions)

    async def topic(self, name: str, offsets: bool) -> TopicInfo:
        self.described += 1
        await trio.sleep_until(trio.current_time() + 1)  # of the virtual clock
        return ORDERS


async def test_groups_without_an_answer_hold_up_nobody_and_are_named(autojump_clock: trio.abc.Clock) -> None:
    log: Any = _Log("g1", "g6")
    found: list[Any] = []
    looks, overdue = await doctor._groups(log, (ORDERS,), found, 0.0, ASK_S)
    assert [look.group for look in looks] == ["g0", "g2", "g3", "g4", "g5", "g7"] and overdue == ()
    assert {(len(look.members), look.lag) for look in looks} == {(1, 40)}
    assert log.described == 1
    [note] = found
    assert (note.level, note.cause) == (NOTE, "groups-unknown")
    assert "3 consumer groups are" in note.what and "barred, g1, g6" in note.what and "gone" not in note.what
    assert "no answer within 5 s" in note.what and "no such right" in note.what


async def test_all_groups_together_take_no_longer_than_the_bound(autojump_clock: trio.abc.Clock) -> None:
    log: Any = _Log(*(f"g{n}" for n in range(8)))
    began = trio.current_time()
    assert await doctor._groups(log, (ORDERS,), [], 0.0, PATIENT_S) == ((), ())
    assert trio.current_time() - began == pytest.approx(PATIENT_S)


async def test_a_list_that_does_not_come_is_a_note(autojump_clock: trio.abc.Clock) -> None:
    log: Any = _Log("list")
    found: list[Any] = []
    assert await doctor._groups(log, (ORDERS,), found, 0.0, ASK_S) == ((), ())
    assert [note.cause for note in found] == ["groups-unknown"] and "no answer within 5 s" in found[0].what
