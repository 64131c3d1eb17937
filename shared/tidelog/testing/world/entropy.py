"""Chance and clocks of a world: everything that a program may ask for and that would differ from run to run.

Within the block ``random``, ``secrets``, ``uuid.uuid4``, ``os.urandom`` and the clocks of ``time`` are functions of
the seed, in the thread of the run. What they return does not depend on the machine, the process or
``PYTHONHASHSEED``. A module that has copied ``time.time`` (``from time import time``) before has the real one, as has
``datetime.now``; the order of a set of texts is Python's own.
"""

from __future__ import annotations

import gc
import os
import platform
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from tidelog.testing.shells.streams import NODE

EPOCH_S = 1_700_000_000.0
"""The wall clock when a run begins, in seconds since 1970."""
PROCESS = 4711


class WallClocks:
    """The wall clocks of all nodes, each with the seconds by which it is wrong."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.wrong_s: dict[str, float] = {}
        self._now = now

    def seconds(self) -> float:
        """Return the wall clock of the node that the running task belongs to, in seconds since 1970."""
        wrong_s = self.wrong_s.get(NODE.get("").partition("#")[0], 0.0) if self.wrong_s else 0.0
        return EPOCH_S + self._now() + wrong_s


@contextmanager
def seeded(rng: random.Random, now: Callable[[], float], clocks: WallClocks) -> Iterator[None]:
    """Make chance and clocks functions of ``rng`` and ``now`` within the block, in this thread."""
    thread = threading.get_ident()

    def here(virtual: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
        def choose(*arguments: Any) -> Any:
            return (virtual if threading.get_ident() == thread else real)(*arguments)

        return choose

    seed = random.Random.seed

    def reseed(self: random.Random, a: Any = None, version: int = 2) -> None:
        seed(self, rng.getrandbits(64) if a is None else a, version)

    def sleep(seconds: float) -> None:
        raise RuntimeError(
            f"time.sleep({seconds}) would stop the whole world, in which threads do not run: use trio.sleep"
        )

    replaced: list[tuple[Any, str, Callable[..., Any]]] = [
        (time, "time", clocks.seconds),
        (time, "time_ns", lambda: int(clocks.seconds() * 1e9)),
        (time, "sleep", sleep),
        (os, "urandom", rng.randbytes),
        (os, "getpid", lambda: PROCESS),
        (platform, "node", lambda: "world"),
        (random, "_urandom", rng.randbytes),
    ]
    for name in ("monotonic", "perf_counter"):
        replaced += [(time, name, now), (time, f"{name}_ns", lambda: int(now() * 1e9))]
    state = random.getstate()
    with ExitStack() as stack:
        for module, name, virtual in replaced:
            stack.enter_context(mock.patch.object(module, name, here(virtual, getattr(module, name))))
        stack.enter_context(mock.patch.object(random.Random, "seed", reseed))
        for name in ("_generate_time_safe", "_UuidCreate"):  # uuid1 by the operating system
            stack.enter_context(mock.patch.object(uuid, name, None, create=True))
        random.seed(rng.getrandbits(64))
        try:
            yield
        finally:
            random.setstate(state)


@contextmanager
def without_collection() -> Iterator[None]:
    """Let Python collect no cycles of objects within the block: when it does depends on what the process did before,
    and what is collected may end with a message, such as a consumer that was left."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
