"""A process that watches how long controllers leave a request unanswered: the longest wait shows the longest step of
their event loops.

    python -m bench.harness.answer_waits CLUSTER URL...

It asks every controller ``DescribeQuorum`` again and again, ``PAUSE_S`` after the last answer. For each line on its
standard input it writes one line: the longest wait for an answer of each controller since the last line, in seconds,
in the order of the URLs. A request that is not answered yet counts with its wait so far. It is a process of its own,
so that the work of a benchmark does not delay it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import trio
from tidelog.errors import TidelogError
from tidelog.feature_levels import service_hello
from tidelog.net.link import connect_link
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.wire.messages import DescribeQuorum

PAUSE_S = 0.02
"""Pause in seconds between an answer and the next request."""
TIMEOUT_S = 120.0
"""Longest wait in seconds for an answer."""


class AnswerWaits:
    """The process, as the benchmark that starts it sees it. It runs until ``end``."""

    def __init__(self, cluster: str, urls: Sequence[str]) -> None:
        command = [sys.executable, "-m", "bench.harness.answer_waits", cluster, *urls]
        folder = Path(__file__).resolve().parents[2]
        self._process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def take(self) -> list[float]:
        """Return the longest wait of each controller in seconds since the last call."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        return [float(word) for word in self._process.stdout.readline().split()]

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


class _Controller:
    """One controller that is asked again and again."""

    def __init__(self, cluster: str, url: str) -> None:
        self._url = url
        self._hello = service_hello("gateway", "answer-waits", cluster)
        self._asked_at: float | None = None
        self._longest_s = 0.0

    async def run(self) -> None:
        """Ask until cancelled; connect again after a failure."""
        while True:
            try:
                async with connect_link(WebSocketTransport(), self._url, self._hello) as link:
                    while True:
                        self._asked_at = trio.current_time()
                        await link.call(DescribeQuorum(), TIMEOUT_S)
                        self._longest_s = max(self._longest_s, trio.current_time() - self._asked_at)
                        self._asked_at = None
                        await trio.sleep(PAUSE_S)
            except TidelogError:
                self._asked_at = None
                await trio.sleep(PAUSE_S)

    def take(self) -> float:
        """Return the longest wait since the last call, and forget it."""
        longest, self._longest_s = self._longest_s, 0.0
        waiting = 0.0 if self._asked_at is None else trio.current_time() - self._asked_at
        return max(longest, waiting)


async def _run(cluster: str, urls: Sequence[str]) -> None:
    controllers = [_Controller(cluster, url) for url in urls]
    async with trio.open_nursery() as nursery:
        for controller in controllers:
            nursery.start_soon(controller.run)
        async for _ in trio.lowlevel.FdStream(0):
            print(*(f"{controller.take():.3f}" for controller in controllers), flush=True)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(_run, sys.argv[1], sys.argv[2:])
