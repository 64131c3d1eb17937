"""``tidelog produce`` as a user types it: what a line is, keys, totals, and lines that come slowly."""

from __future__ import annotations

import json
import os
from io import FileIO
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner, Result
from support.fake_gateway import FakeCluster
from support.gateway_thread import served
from tidelog.cli.main import main
from tidelog.cli.records.produce import CHUNK_BYTES, Lines
from tidelog.errors import refuse


def run(url: str, *arguments: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(main, ["produce", "orders", *arguments, "--gateway", url], input=stdin)


def written(cluster: FakeCluster) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in cluster.log("orders").records()]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (b"one\ntwo\n", [b"one", b"two"]),
        (b"one\r\ntwo\r\n", [b"one", b"two"]),
        (b"one\n\nlast", [b"one", b"", b"last"]),
        (b"a\rb\n", [b"a\rb"]),
        (b"", []),
        (b"x" * CHUNK_BYTES + b"y\r\nz\n", [b"x" * CHUNK_BYTES + b"y", b"z"]),
    ],
)
def test_a_record_is_a_line_without_its_end(text: bytes, values: list[bytes], tmp_path: Path) -> None:
    with served() as (cluster, url):
        file = tmp_path / "lines"
        file.write_bytes(text)
        for arguments, stdin in ((("--file", str(file)), b""), ((), text)):
            done = run(url, *arguments, "--json", stdin=stdin)
            told = json.loads(done.stdout)
            assert done.exit_code == 0 and set(told) == {"sent", "acked", "failed", "bytes", "seconds"}
            assert (told["sent"], told["acked"], told["failed"]) == (len(values), len(values), 0)
            assert told["bytes"] == sum(map(len, values))
        assert written(cluster) == [(None, value) for value in values] * 2


def test_the_text_before_the_separator_is_the_key() -> None:
    with served() as (cluster, url):
        assert run(url, "--key-separator", "::", stdin=b"k::v::w\nnone\n::empty\n").exit_code == 0
        assert written(cluster) == [(b"k", b"v::w"), (None, b"none"), (b"", b"empty")]


def test_refused_records_are_counted_and_set_the_exit_code() -> None:
    with served() as (cluster, url):
        cluster.refusals = [refuse("BATCH_TOO_LARGE", "too large")]
        done = run(url, "--json", stdin=b"one\n")
        told = json.loads(done.stdout)
        assert (done.exit_code, told["sent"], told["acked"], told["failed"]) == (1, 1, 0, 1)
        assert "too large" in done.stderr


def test_a_rate_is_not_exceeded() -> None:
    with served() as (cluster, url):
        told = json.loads(run(url, "--rate", "50", "--json", stdin=b"line\n" * 6).stdout)
        assert told["acked"] == 6 and told["seconds"] >= 5 / 50
        assert run(url, "--rate", "0", stdin=b"line\n").exit_code == 2
        assert len(written(cluster)) == 6


def test_a_file_that_cannot_be_read_is_wrong_usage() -> None:
    with served() as (_, url):
        done = run(url, "--file", "/nowhere/at/all")
        assert done.exit_code == 2 and "cannot read /nowhere/at/all" in done.stderr


async def test_a_line_is_there_as_soon_as_it_came_and_others_run_meanwhile() -> None:
    """The writer is a task of the same loop: it writes only while the reader does not hold the loop."""
    reading, writing = os.pipe()
    with FileIO(reading) as source, FileIO(writing, "w") as sink:
        lines = Lines(source)
        async with trio.open_nursery() as nursery:

            async def write() -> None:
                sink.write(b"one\ntw")

            nursery.start_soon(write)
            assert await lines.more() == [b"one"]
            sink.write(b"o\n")
            assert await lines.more() == [b"two"]
            sink.close()
            assert await lines.more() == []
