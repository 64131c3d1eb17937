"""A terminal of somebody who follows a page: bash, which is given the blocks of the page one after another. Every
wait has an end: nothing that a page starts can hang a test, or live longer than it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pages.place import Place

BLOCK_S = 120.0
"""Time after which a block of commands is given up."""
END_S = 30.0
"""Time after which a command that was told to end is killed."""
ENDED = "the block has ended"


class Terminal:
    """A bash in a place. A command that fails ends it, and so fails the test."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._bash = subprocess.Popen(
            ["bash", "-euo", "pipefail"],
            cwd=place.folder,
            env=place.environ | {"PYTHONUNBUFFERED": "1", "COLUMNS": "160"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._blocks = 0
        self.said = ""
        """Everything that was printed and not yet returned."""

    def run(self, block: str, deadline_s: float = BLOCK_S) -> str:
        """Run a block of a page, wait until it has ended, and return what was printed since the last block. What it
        starts in the background goes on."""
        self._blocks += 1
        script = self._place.folder / f".block-{os.getpid()}-{id(self)}-{self._blocks}"
        script.write_text(self._place.own(block))
        assert self._bash.stdin is not None
        self._bash.stdin.write(f"source {script} </dev/null; echo '{ENDED}' {self._blocks}\n".encode())
        self._bash.stdin.flush()
        return self.wait(f"{ENDED} {self._blocks}\n", deadline_s)

    def wait(self, text: str, deadline_s: float = BLOCK_S) -> str:
        """Wait until this text is printed, and return what was printed before it."""
        assert self._bash.stdout is not None
        until = time.monotonic() + deadline_s
        while text not in self.said:
            ready, _, _ = select.select([self._bash.stdout], [], [], max(0.0, until - time.monotonic()))
            assert ready, f"not said within {deadline_s:.0f} s: {text!r}\n{self.said}"
            read = os.read(self._bash.stdout.fileno(), 1 << 16)
            assert read, f"a command failed, and before that was printed:\n{self.said}"
            self.said += read.decode(errors="replace")
        before, _, self.said = self.said.partition(text)
        return before

    def end(self, deadline_s: float = END_S) -> None:
        """End bash and everything that it has started: by SIGTERM, and what does not heed it by SIGKILL. (Bash
        makes commands in the background ignore SIGINT.) All of it is one session, also a job with a process group of
        its own."""
        self._signal(signal.SIGTERM)
        until = time.monotonic() + deadline_s
        while self._session() and time.monotonic() < until:
            self._bash.poll()
            select.select([self._bash.stdout], [], [], 0.1)
        self._signal(signal.SIGKILL)
        self._bash.wait()
        for pipe in (self._bash.stdin, self._bash.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def _session(self) -> list[int]:
        """Return the processes of this terminal's session that run."""
        found = subprocess.run(["pgrep", "-s", str(self._bash.pid)], capture_output=True, text=True, check=False)
        return [int(number) for number in found.stdout.split()]

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to every process of the session."""
        for process in self._session():
            with suppress(ProcessLookupError):
                os.kill(process, number)


@contextmanager
def terminal(place: Place) -> Iterator[Terminal]:
    """A terminal for a block of a test."""
    opened = Terminal(place)
    try:
        yield opened
    finally:
        opened.end()
