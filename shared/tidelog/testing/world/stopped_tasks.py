"""Programs that stand still: trio tasks that are not run while their node is stopped.

A process that gets ``SIGSTOP`` does nothing until ``SIGCONT``: its timers pass, its sockets fill, and nobody is told.
A process that is killed does nothing ever again: no ``finally`` runs. A task has neither. So the tasks of a stopped
node, which are those with its name in the context variable ``NODE``, are taken out of trio's queue whenever trio puts
them there, and put back when the node goes on. The name of trio's queue is private: the test that a seed replays
says when it changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from trio._core import _run

from tidelog.testing.shells.streams import NODE


class StoppedTasks:
    """The tasks of nodes that stand still, by node."""

    def __init__(self) -> None:
        self._held: dict[str, list[Any]] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Hold the tasks of stopped nodes within the block."""
        schedule = _run.Runner.reschedule

        def reschedule(runner: Any, *arguments: Any) -> None:
            schedule(runner, *arguments)
            if self._held:
                held = self._held.get(runner.runq[-1].context.get(NODE))
                if held is not None:
                    held.append(runner.runq.pop())

        with mock.patch.object(_run.Runner, "reschedule", reschedule):
            yield

    def stop(self, node: str) -> None:
        """Let no task of a node run from now on. A task that runs just now goes on until it next waits."""
        held = self._held.setdefault(node, [])
        queue = _run.GLOBAL_RUN_CONTEXT.runner.runq
        for task in list(queue):
            if task.context.get(NODE) == node:
                queue.remove(task)
                held.append(task)

    def resume(self, node: str) -> None:
        """Let the tasks of a node run again. Those whose time has passed or that were woken run at once."""
        _run.GLOBAL_RUN_CONTEXT.runner.runq.extend(self._held.pop(node, ()))

    def resume_all(self) -> None:
        """Let all tasks run again."""
        for node in list(self._held):
            self.resume(node)
