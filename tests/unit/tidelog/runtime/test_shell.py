"""What the shells of the services have in common."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
import trio
from tidelog.errors import refuse
from tidelog.net.link import PROTOCOL_VERSION
from tidelog.runtime.shell import AcceptedLinks, EventLog, Wakeup, refuse_other_sender
from tidelog.sansio.effects import Answer, Event, Post
from tidelog.wire.messages import Done, Hello
from trio.testing import wait_all_tasks_blocked


def hello(role: Any, node: str) -> Hello:
    return Hello(PROTOCOL_VERSION, role, node, "c")


def test_effects_go_over_the_link_that_they_name_and_nowhere_once_it_has_ended() -> None:
    sent: list[object] = []
    link: Any = SimpleNamespace(source=7, post=sent.append, answer=lambda id, message: sent.append((id, message)))
    links, error = AcceptedLinks(), refuse("FORBIDDEN", "no")
    links.add(link)
    for effect in (Post(7, Done()), Answer(7, 1, error), Post(8, Done()), Answer(8, 2, Done())):
        links.perform(effect)
    assert sent == [Done(), (1, error)] and list(links) == [link] and len(links) == 1
    assert links.remove(link) and not links.remove(link)
    links.perform(Post(7, Done()))
    assert len(sent) == 2 and not links


def test_every_line_of_the_log_is_counted_and_has_the_context() -> None:
    log = EventLog(node="r1")
    with structlog.testing.capture_logs() as lines:
        log.event("peer_failed", peer="r2")
        log.perform(Event("peer_failed", {"peer": "r3"}))
    assert log.counts == {"peer_failed": 2}
    assert [(line["node"], line["peer"], line["log_level"]) for line in lines] == [
        ("r1", "r2", "warning"),
        ("r1", "r3", "warning"),
    ]


async def test_a_task_sleeps_until_its_deadline_or_until_it_is_woken(autojump_clock: trio.abc.Clock) -> None:
    wakeup, began = Wakeup(), trio.current_time()
    await wakeup.sleep(began + 5)
    assert trio.current_time() == wakeup.deadline == began + 5
    wakeup.wake()
    await wakeup.sleep(None)
    assert (trio.current_time(), wakeup.deadline) == (began + 5, math.inf), "it was woken before it slept"
    wakeup.wake()
    wakeup.clear()
    await wakeup.sleep(began + 6)
    assert trio.current_time() == began + 6, "what woke it is forgotten"


@pytest.mark.parametrize(("earlier", "slept_s"), [(None, 9.0), (9.5, 9.0), (9.0, 9.0), (2.0, 0.0)])
async def test_only_an_earlier_deadline_wakes_a_task(
    earlier: float | None, slept_s: float, autojump_clock: trio.abc.Clock
) -> None:
    wakeup, began = Wakeup(), trio.current_time()

    async def change() -> None:
        await wait_all_tasks_blocked()
        wakeup.wake_before(None if earlier is None else began + earlier)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(change)
        await wakeup.sleep(began + 9)
    assert trio.current_time() - began == pytest.approx(slept_s)


def test_only_a_replica_server_must_speak_for_itself() -> None:
    assert refuse_other_sender(hello("replica", "r1"), "r1") is None
    assert refuse_other_sender(hello("gateway", "g1"), "r1") is None
    refusal = refuse_other_sender(hello("replica", "r1"), "r2")
    assert refusal is not None and (refusal.code, refusal.message) == ("FORBIDDEN", "r1 speaks for itself only")
