"""``tidelog produce`` and ``tidelog consume`` where a person sits: prompts, acknowledgements, hints and escapes."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from running import HEAL_S, Cluster

pytestmark = pytest.mark.real


class Terminal:
    """A command that runs in a terminal of its own."""

    def __init__(self, master: int, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._master = master
        self._shown = b""

    def type(self, text: bytes) -> None:
        os.write(self._master, text)

    def wait_shown(self, words: bytes) -> bytes:
        """All that was shown until these words, and with them; the next call looks behind them."""
        deadline = time.monotonic() + HEAL_S
        while words not in self._shown:
            readable, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
            assert readable, f"{words!r} did not come: {self._shown!r}"
            self._shown += os.read(self._master, 1 << 16)
        before, found, self._shown = self._shown.partition(words)
        return before + found


@contextmanager
def terminal(cluster: Cluster, *arguments: str) -> Iterator[Terminal]:
    """Run the command in a terminal, and kill it at the end of the block if it still runs."""
    master, slave = os.openpty()
    command = [sys.executable, "-m", "tidelog.cli", *arguments, "--gateway", cluster.gateways[0]]
    environment = os.environ | {"NO_COLOR": "1"}
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
    )
    os.close(slave)
    try:
        yield Terminal(master, process)
    finally:
        process.kill()
        process.wait()
        os.close(master)


def test_a_typed_line_is_acknowledged_and_a_consumer_says_that_it_waits(cluster: Cluster) -> None:
    cluster.ok("topics", "create", "typed", "--replication-factor", "3")
    cluster.ok("produce", "typed", stdin=b"before\n")
    with terminal(cluster, "consume", "typed") as reader, terminal(cluster, "produce", "typed") as writer:
        reader.wait_shown(b"waiting for new records; --from earliest shows all\r\n")
        writer.wait_shown(b"Each line becomes a record of typed; Ctrl-D ends.\r\n> ")
        writer.type(b"one\n")
        writer.wait_shown(b"typed/0 @ 1\r\n> ")
        assert reader.wait_shown(b"one\r\n") == b"one\r\n"
        writer.type(b"two\n\x04")
        writer.wait_shown(b"typed/0 @ 2\r\n> \r\n2 of 2 records acknowledged")
        assert writer.process.wait(HEAL_S) == 0


def test_a_terminal_gets_escapes_and_a_pipe_the_bytes(cluster: Cluster) -> None:
    cluster.ok("topics", "create", "hostile")
    cluster.ok("produce", "hostile", "-k", "\x1b]0;owned\x07", stdin=b"v\x1b[2J\n")
    arguments = ("consume", "hostile", "--to-end", "-f", r"%k %v\n")
    assert cluster.ok(*arguments) == b"\x1b]0;owned\x07 v\x1b[2J\n"
    with terminal(cluster, *arguments) as reader:
        assert reader.wait_shown(b"\n") == b"\\x1b]0;owned\\x07 v\\x1b[2J\r\n"


def test_a_pipe_that_ends_early_is_no_error(cluster: Cluster) -> None:
    cluster.ok("topics", "create", "piped")
    cluster.ok("produce", "piped", stdin=b"line\n" * 50_000)
    command = f"{sys.executable} -m tidelog.cli consume piped --to-end --gateway {cluster.gateways[0]} | head -n 1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"line\n", b"")
