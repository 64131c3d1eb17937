"""``tidelog produce`` as a user types it: what a line is, keys, totals, and lines that come slowly."""

from __future__ import annotations

import json
import os
import signal
import sys
from io import BytesIO, FileIO
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
import tidelog
import tidelog.sync
import trio
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from real.running import until
from support.fake_gateway import FakeCluster
from support.gateway_thread import served
from tidelog.cli.main import main
from tidelog.cli.records.record_input import CHUNK_BYTES, Lines, record_of_json
from tidelog.cli.records.record_sender import RecordSender, Tally
from tidelog.errors import refuse

DATA = st.none() | st.binary(max_size=20) | st.text(max_size=20).map(str.encode)
RECORDS = st.fixed_dictionaries(
    {
        "value": DATA,
        "key": DATA,
        "headers": st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=3),
        "partition": st.integers(0, 1),
        "timestamp_ms": st.integers(0, 2**63 - 1),
    }
)


def run(url: str, *arguments: str, stdin: bytes = b"", topic: str = "orders") -> Result:
    return CliRunner().invoke(main, ["produce", topic, *arguments, "--gateway", url], input=stdin)


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


def test_separators_have_escapes() -> None:
    with served() as (cluster, url):
        assert run(url, "--key-separator", r"\t", stdin=b"k\tv\n").exit_code == 0
        assert run(url, "--key-separator", r"\x1f", stdin=b"k\x1fv\n").exit_code == 0
        assert written(cluster) == [(b"k", b"v")] * 2
        for wrong, words in ((r"\q", "is no escape"), ("", "it is empty")):
            done = run(url, "--key-separator", wrong)
            assert done.exit_code == 2 and words in done.stderr


def test_key_headers_and_partition_are_those_of_every_record() -> None:
    with served(partitions=3) as (cluster, url):
        arguments = ("-k", "k", "-H", "a=1=2", "-H", "a=", "-p", "2")
        assert run(url, *arguments, stdin=b"one\ntwo\n").exit_code == 0
        assert (
            run(url, "-H", "b=2", "-p", "2", "--input", "json", stdin=b'{"value":"v","headers":{"a":"1"}}').exit_code
            == 0
        )
        found = [(record.key, record.value, record.headers) for record in cluster.log("orders", 2).records()]
        headers = (("a", b"1=2"), ("a", b""))
        both = (("a", b"1"), ("b", b"2"))
        assert found == [(b"k", b"one", headers), (b"k", b"two", headers), (None, b"v", both)]
        for arguments, code, words in (
            (("-H", "a"), 2, "'a' is not NAME=VALUE"),
            (("-H", "\udcff=1"), 2, "with a name in UTF-8"),
            (("-p", "3"), 1, "line 1: orders has partitions 0 to 2, not 3; neither this nor what follows was sent"),
        ):
            done = run(url, *arguments, stdin=b"one\n")
            assert (done.exit_code, words in done.stderr) == (code, True), done.stderr


def test_each_file_is_a_record_and_files_are_sent_in_turn(tmp_path: Path) -> None:
    first, second, huge = tmp_path / "1", tmp_path / "2", tmp_path / "3"
    huge.write_bytes(b"x" * (2 << 20))
    first.write_bytes(b"a\r\nb\n")
    second.write_bytes(b"\xff\n")
    with served() as (cluster, url):
        assert run(url, "--file-as-record", str(first), "--file", str(second)).exit_code == 0
        assert run(url, "--file-as-record", stdin=b"x\ny\n").exit_code == 0
        assert run(url, str(first), "-", str(second), stdin=b"x").exit_code == 0
        done = run(url, "--file-as-record", str(huge), str(first))
        assert done.exit_code == 1 and f"{huge}: [BATCH_TOO_LARGE] a record of" in done.stderr
        values = [value for _, value in written(cluster)]
        assert values == [b"\xff\n", b"a\r\nb\n", b"x\ny\n", b"a", b"b", b"x", b"\xff"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--input json --key k", "--input json does not go with --key"),
        ("--input json --file-as-record", "--input json does not go with --file-as-record"),
        ("--key-separator : --key k", "--key-separator does not go with --key"),
        ("--key-separator : --input json", "--key-separator does not go with --input json"),
        ("--key-separator : --file-as-record", "--key-separator does not go with --file-as-record"),
        ("--expected-offset 5", "give --partition"),
        ("--expected-offset 5 -p 0 --acks none", "does not go with --acks none"),
        ("- -", "can be read once only"),
    ],
)
def test_what_does_not_go_together_is_reported(arguments: str, words: str) -> None:
    done = run("ws://127.0.0.1:1", *arguments.split())
    assert done.exit_code == 2 and words in done.stderr


def test_records_are_appended_at_the_expected_offset_or_not_at_all() -> None:
    with served() as (cluster, url):
        assert run(url, "-p", "0", "--expected-offset", "0", stdin=b"0\n1\n").exit_code == 0
        done = run(url, "-p", "0", "--expected-offset", "1", stdin=b"x\ny\n")
        assert done.exit_code == 1
        assert "line 1: [UNEXPECTED_OFFSET] the log ends at 2, not 1; what follows was not sent" in done.stderr
        assert run(url, "-p", "0", "--expected-offset", "2", stdin=b"2\n").exit_code == 0
        assert [value for _, value in written(cluster)] == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    ("arguments", "text", "words"),
    [
        ("--input json", b'{"value":"1"}\n\n[2]\n{"value":"3"}\n', "line 3: it is an array, not an object"),
        (
            "",
            b"1\n" + b"x" * (2 << 20) + b"\n3\n",
            "line 2: [BATCH_TOO_LARGE] a record of 2097168 bytes does not fit",
        ),
        ("--input json -p 0", b'{"value":"1"}\n{"value":"2","partition":"x"}', "line 2: partition is a text"),
        (
            "--input json",
            b'{"value":"1"}\n{"value":"2","partition":7}',
            "line 2: orders has partitions 0 to 0, not 7",
        ),
    ],
)
def test_it_stops_at_a_line_that_is_no_record_and_what_stands_before_it_is_sent(
    arguments: str, text: bytes, words: str
) -> None:
    with served() as (cluster, url):
        done = run(url, *arguments.split(), stdin=text)
        assert done.exit_code == 1 and f"tidelog: {words}" in done.stderr
        assert "neither this nor what follows was sent\n1 of 1 records acknowledged" in done.stderr
        assert written(cluster) == [(None, b"1")]


def test_a_wrong_line_of_several_files_is_named_with_its_file(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_bytes(b'{"value":"1"}\n')
    bad.write_bytes(b"no\n")
    with served() as (cluster, url):
        done = run(url, "--input", "json", *map(str, (good, bad, good)))
        assert done.exit_code == 1 and f"tidelog: {bad}, line 1: it is not JSON" in done.stderr
        assert written(cluster) == [(None, b"1")]


@settings(max_examples=10)
@given(st.lists(RECORDS, min_size=1, max_size=20))
def test_consume_as_json_and_produce_copy_a_topic_exactly(records: list[dict[str, Any]]) -> None:
    with served(partitions=2) as (cluster, url):
        cluster.add_topic("copy", 2)
        with tidelog.sync.connect(url) as log, log.producer("orders") as producer:
            for record in records:
                producer.submit(**record)
        printed = CliRunner().invoke(main, ["consume", "orders", "--to-end", "-f", "json", "--gateway", url])
        copied = run(url, "--input", "json", "--json", stdin=printed.stdout_bytes, topic="copy")
        assert json.loads(copied.stdout)["acked"] == len(records), copied.stderr
        for partition in range(2):
            first, second = [
                [record._replace(topic="", leader_epoch=0) for record in cluster.log(topic, partition).records()]
                for topic in ("orders", "copy")
            ]
            assert first == second


async def test_a_person_is_told_where_each_line_was_appended(capsys: pytest.CaptureFixture[str]) -> None:
    """What was refused is said, and the next line is sent all the same."""
    cluster = FakeCluster()
    cluster.add_topic("orders")
    tally = Tally()
    typed = BytesIO(b'{"value":"1"}\nno\n{"value":"2"}\n{"value":"3"}\n')
    async with cluster.gateways() as [url], tidelog.connect(url) as log, log.producer("orders") as producer:
        cluster.refusals = [None, refuse("TOPIC_READ_ONLY", "not now")]
        await RecordSender(producer, record_of_json, tally).converse(typed)
    assert capsys.readouterr().err.splitlines() == [
        "Each line becomes a record of orders; Ctrl-D ends.",
        "> orders/0 @ 0",
        "tidelog: not sent: it is not JSON: Expecting value, at character 1",
        "tidelog: [TOPIC_READ_ONLY] not now",
        "orders/0 @ 1",
        "> ",
    ]
    assert (tally.sent, tally.acked, tally.failed) == (3, 2, 1)


def test_refused_records_are_counted_and_set_the_exit_code() -> None:
    with served() as (cluster, url):
        cluster.refusals = [refuse("BATCH_TOO_LARGE", "too large")]
        done = run(url, "--json", stdin=b"one\n")
        told = json.loads(done.stdout)
        assert (done.exit_code, told["sent"], told["acked"], told["failed"]) == (1, 1, 0, 1)
        assert "too large" in done.stderr


async def test_an_interrupted_command_prints_what_became_of_the_records() -> None:
    with served() as (cluster, url):
        command = [sys.executable, "-m", "tidelog.cli", "produce", "orders", "--gateway", url]
        process = await trio.lowlevel.open_process(command, stdin=PIPE, stderr=PIPE)
        async with process.stdin, process.stderr:
            await process.stdin.send_all(b"one\ntwo\nthree\n")

            async def all_written() -> bool:
                return len(written(cluster)) == 3

            await until(all_written)
            process.send_signal(signal.SIGINT)
            told = b"".join([part async for part in process.stderr]).decode()
        assert "of 3 records acknowledged" in told and "Traceback" not in told
        assert await process.wait() == 130, told


def test_a_rate_is_not_exceeded() -> None:
    with served() as (cluster, url):
        told = json.loads(run(url, "--rate", "50", "--json", stdin=b"line\n" * 6).stdout)
        assert told["acked"] == 6 and told["seconds"] >= 5 / 50
        assert run(url, "--rate", "0", stdin=b"line\n").exit_code == 2
        assert len(written(cluster)) == 6


def test_a_file_that_cannot_be_read_is_wrong_usage_and_nothing_is_sent(tmp_path: Path) -> None:
    good = tmp_path / "good"
    good.write_bytes(b"line\n")
    with served() as (cluster, url):
        for wrong, words in (("/nowhere/at/all", "does not exist"), (str(tmp_path), "is a directory")):
            for arguments in ((str(good), wrong), (str(good), "--file", wrong)):
                done = run(url, *arguments)
                assert done.exit_code == 2 and f"'{wrong}' {words}" in done.stderr
        assert written(cluster) == []


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
