"""Requests in parallel, of which some are not answered. Tests ``tidelog.explain.inquiry``."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from tidelog.errors import refuse
from tidelog.explain.inquiry import ASK_S, AT_ONCE, Inquiry
from trio.testing import wait_all_tasks_blocked


async def test_a_bounded_number_of_requests_waits_at_the_same_time() -> None:
    waiting, most = 0, 0

    async def ask(number: int) -> int:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        await wait_all_tasks_blocked()
        waiting -= 1
        return number

    inquiry = Inquiry()
    asked = [inquiry.ask(f"request {number}", partial(ask, number)) for number in range(2 * AT_ONCE)]
    await inquiry.run()
    assert [one.value for one in asked] == list(range(2 * AT_ONCE)) and most == AT_ONCE


async def test_what_is_refused_or_not_answered_in_time_is_not_known(autojump_clock: trio.abc.Clock) -> None:
    async def refused() -> int:
        raise refuse("FORBIDDEN", "no such right")

    async def silent() -> int:
        await trio.sleep_forever()
        return 1

    began = trio.current_time()
    inquiry = Inquiry()
    for what, call in (("a", refused), ("b", silent), ("b", silent)):
        inquiry.ask(what, call)
    await inquiry.run()
    assert trio.current_time() - began == pytest.approx(ASK_S)
    assert inquiry.failures() == (
        "a is not known: [FORBIDDEN] no such right",
        "b is not known: no answer within 5 s",
    )
