"""Tests ``testing/real/service_thread.py``: calls while the services fail or have ended."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from tidelog.testing.real.service_thread import ServiceThread

PATIENCE_S = 120.0


async def nothing() -> None:
    """Do nothing, as a service that waits for its end."""


def test_a_call_while_failed_services_end_raises_their_error() -> None:
    ending, may_end = threading.Event(), threading.Event()

    @asynccontextmanager
    async def services() -> AsyncIterator[trio.Nursery]:
        async with trio.open_nursery() as nursery:
            try:
                yield nursery
            finally:
                ending.set()
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(may_end.wait)

    class Token:
        """Hand a function to the loop of the services, and then let them end."""

        def __init__(self, token: trio.lowlevel.TrioToken) -> None:
            self._token = token

        def run_sync_soon(self, function: Callable[..., object], *arguments: Any) -> None:
            self._token.run_sync_soon(function, *arguments)
            self._token.run_sync_soon(may_end.set)

    async def fail() -> None:
        raise ValueError("the disk is full")

    thread = ServiceThread(services)

    async def begin_to_fail() -> None:
        thread.value.start_soon(fail)

    thread.run(begin_to_fail)
    assert ending.wait(PATIENCE_S)
    vars(thread)["_token"] = Token(thread._token)
    with pytest.raises(ValueError, match="the disk is full"):
        thread.run(nothing)


def test_the_end_fails_the_calls_that_have_no_result_and_leaves_the_others() -> None:
    @asynccontextmanager
    async def services() -> AsyncIterator[None]:
        yield

    thread = ServiceThread(services)
    done: Future[str] = Future()
    done.set_result("done")
    waiting: Future[str] = Future()
    vars(thread)["_calls"] = dict.fromkeys([done, waiting])
    thread.close()
    assert done.result() == "done"
    assert waiting.exception(timeout=PATIENCE_S) is not None
