"""Counts in a service what ``messages.py`` reports. Python imports this module by its name at the start of every
process that has this folder in ``PYTHONPATH``.

``SIGUSR1`` sets all counts to zero. ``SIGUSR2`` writes them to ``$TIDELOG_COUNTS/PID.json``.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import trio

FOLDER = Path(os.environ["TIDELOG_COUNTS"])
counts: Counter[str] = Counter()


class Turns(trio.abc.Instrument):
    """Counts the turns of trio's event loop, and the steps of tasks in them."""

    def before_io_wait(self, timeout: float) -> None:
        counts["turns"] += 1

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        counts["steps"] += 1


def count_messages() -> None:
    """Let every session count the messages that it sends, and the batches in the ``Produce`` messages."""
    from tidelog.wire.link_session import Session

    def counting(name: str, place: int) -> None:
        original = getattr(Session, name)

        def method(self: Any, *args: Any, **named: Any) -> Any:
            message = args[place]
            counts[type(message).__name__] += 1
            if type(message).__name__ == "Produce":
                counts["batches"] += len(message.parts)
            return original(self, *args, **named)

        setattr(Session, name, method)

    counting("ask", 0)
    counting("send_one_way", 0)
    counting("answer", 1)


def write(_number: int, _frame: object) -> None:
    """Write the counts to a file, which appears whole."""
    file = FOLDER / f"{os.getpid()}.json"
    file.with_suffix(".new").write_text(json.dumps(counts))
    file.with_suffix(".new").rename(file)


def run(function: Any, *args: Any, **options: Any) -> Any:
    """Run trio as ``trio.run`` does, and count."""
    count_messages()
    signal.signal(signal.SIGUSR1, lambda _number, _frame: counts.clear())
    signal.signal(signal.SIGUSR2, write)
    return run_uncounted(function, *args, instruments=[Turns()], **options)


run_uncounted, trio.run = trio.run, run
