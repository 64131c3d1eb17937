"""Trio as a function of a seed: one thread, a clock that jumps, one order of tasks, no entropy of the machine.

    tasks      trio sorts each batch of runnable tasks and shuffles it with its own generator, which is seeded
    deadlines  those of the same time come in the order in which they were set (trio's tie-break is ``id``)
    threads    a call runs at one moment, after a while of virtual time: while a real thread ran the clock would jump
    entropy    masks and nonces (``os.urandom``), the services' generators, the wall clock

Trio's names are private: the test that a seed replays says when they change.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from heapq import heappush
from typing import Any, TypeVar
from unittest import mock

import structlog
import tidelog_controller.server
import tidelog_gateway.server
import tidelog_replica.server
import trio
import trio.testing
from trio._core import _run

T = TypeVar("T")


class _Quiet:
    """A logger that drops everything."""

    def __getattr__(self, name: str) -> Callable[..., _Quiet]:
        return lambda *args, **fields: self


@contextmanager
def determined(rng: random.Random, thread_s: Callable[[], float]) -> Iterator[None]:
    """Within the block everything that trio does is a function of ``rng``. ``thread_s`` returns how many seconds the
    next call in a thread takes."""
    order = itertools.count()

    def add(deadlines: Any, deadline: float, scope: trio.CancelScope) -> None:
        heappush(deadlines._heap, (deadline, next(order), scope))
        deadlines._active += 1

    async def run_sync(call: Callable[..., T], *args: object, **_: object) -> T:
        await trio.sleep(thread_s())
        return call(*args)

    generators = mock.Mock(spec=["Random", "SystemRandom"])
    generators.Random.side_effect = generators.SystemRandom.side_effect = lambda: random.Random(rng.random())
    with (
        mock.patch.object(_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
        mock.patch.object(_run, "_r", random.Random(rng.random())),
        mock.patch.object(_run.Deadlines, "add", add),
        mock.patch.object(trio.to_thread, "run_sync", run_sync),
        mock.patch.object(os, "urandom", rng.randbytes),
        mock.patch.object(tidelog_replica.server, "random", generators),
        mock.patch.object(tidelog_controller.server, "random", generators),
        mock.patch.object(tidelog_gateway.server, "random", generators),
        mock.patch.object(time, "time_ns", lambda: int((1.7e9 + _now()) * 1e9)),
        mock.patch.object(structlog, "get_logger", lambda *args, **fields: _Quiet()),
    ):
        yield


def _now() -> float:
    try:
        return trio.current_time()
    except RuntimeError:  # outside of trio
        return 0.0


def run(main: Callable[[], Awaitable[T]]) -> T:
    """Run ``main`` under a clock that jumps to the next deadline when no task can run, and return its result."""
    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.0))
