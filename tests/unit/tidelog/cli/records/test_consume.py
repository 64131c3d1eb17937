"""``tidelog consume`` as a user types it: where it begins and ends, in which order, and what does not go together."""

from __future__ import annotations

import click
import pytest
import tidelog.sync
from click.testing import CliRunner, Result
from support.gateway_thread import served
from tidelog.cli.main import main
from tidelog.cli.records import consume
from tidelog.errors import refuse
from tidelog.net.link import Link
from tidelog.wire.messages import ListOffset, Message


def run(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["consume", *arguments, "--gateway", url])


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        ("--from earliest --to-end", "0 1 2 3 4 5 6 7 8 9"),
        ("--to-end", "0 1 2 3 4 5 6 7 8 9"),
        ("--from latest --to-end", ""),
        ("--max 3", "0 1 2"),
        ("-n 2 --from 4", "4 5"),
        ("--until 2", "0 1"),
        ("--reverse --until 7", "9 8 7"),
        ("-p 0 --to-end --grep [13579]", "1 3 5 7 9"),
        ("-n 2 --grep [13579]", "1 3"),
        ("--reverse -n 2 --grep [13579]", "9 7"),
        ("--from 3 --until 6", "3 4 5"),
        ("--from 1970-01-01T00:00:07+00:00 --until latest", "7 8 9"),
        ("--from earliest --until 1970-01-01T00:00:02+00:00", "0 1"),
        ("--reverse", "9 8 7 6 5 4 3 2 1 0"),
        ("--reverse --max 3", "9 8 7"),
        ("--reverse --from 6 --until 4", "5 4"),
        ("--reverse --until 1970-01-01T00:00:08+00:00", "9 8"),
    ],
)
def test_a_range_of_records_in_either_order(arguments: str, printed: str) -> None:
    with served() as (_, url):
        with tidelog.sync.connect(url) as log, log.producer("orders") as producer:
            for n in range(10):
                producer.submit(b"%d" % n, timestamp_ms=1000 * n)
        done = run(url, "orders", *arguments.split())
        assert (done.exit_code, done.stdout.split()) == (0, printed.split()), done.output


def test_to_end_reports_the_replicas_that_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new leader does not know the end before another replica has shown what it has: until then it is refused."""
    monkeypatch.setattr(consume, "TELL_WAITS_S", 0.01)
    told: list[str] = []
    echo = click.echo

    def listen(text: str, *, err: bool = False) -> None:
        told.append(text)
        echo(text, err=err)

    monkeypatch.setattr(consume.click, "echo", listen)
    with served() as (cluster, url):
        with tidelog.sync.connect(url) as log, log.producer("orders") as producer:
            producer.submit(b"v")
        answer = cluster.answer

        def refuse_until_told(link: Link, message: Message) -> Message:
            if isinstance(message, ListOffset) and message.at == "latest" and not told:
                raise refuse("OFFSET_NOT_AVAILABLE", "the leader waits for r3", awaited="r3")
            return answer(link, message)

        monkeypatch.setattr(cluster, "answer", refuse_until_told)
        done = run(url, "orders", "--from", "earliest", "--to-end")
    assert (done.exit_code, done.stdout) == (0, "v\n")
    assert done.stderr.count("waiting: [OFFSET_NOT_AVAILABLE] the leader waits for r3") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--to-end --reverse", "--to-end does not go with --reverse"),
        ("--to-end --until 5", "--to-end does not go with --until"),
        ("--until never", "--until"),
        ("--from never", "--from"),
        ("--from ²", "--from"),
        ("--format nope", "none of value, json, key-value, hex, hexdump, and no template"),
        ("--format %v%", "--format: it ends with a lone %"),
        ("--grep [", "--grep: '[' is no regular expression"),
        ("--json-path $[", "--json-path: '$[' is no JSONPath"),
        ("--format key-value --key-separator \\q", "--key-separator: \\q is no escape"),
    ],
)
def test_wrong_usage_is_reported_by_option(arguments: str, words: str) -> None:
    done = run("ws://127.0.0.1:1", "orders", *arguments.split())
    assert done.exit_code == 2 and words in done.output


def formatted(*arguments: str) -> bytes:
    """What is printed of three records: with a key, without one, and without a value."""
    with served() as (_, url):
        with tidelog.sync.connect(url) as log, log.producer("orders") as producer:
            producer.submit(b"one", key=b"k", timestamp_ms=0)
            producer.submit(bytes(range(0x38, 0x4A)), headers={"h": b"\xff"}, timestamp_ms=1500)
            producer.submit(None, key=b"gone", timestamp_ms=2000)
        done = run(url, "orders", "--from", "earliest", "--to-end", *arguments)
        assert done.exit_code == 0, done.output
        return done.stdout_bytes


def test_values_are_the_bytes_and_a_newline() -> None:
    assert formatted() == b"one\n89:;<=>?@ABCDEFGHI\n\n"


def test_key_and_value_are_separated_as_produce_reads_them() -> None:
    assert formatted("--format", "key-value") == b"k\tone\n89:;<=>?@ABCDEFGHI\ngone\t\n"
    assert formatted("--format", "key-value", "--key-separator", "::").startswith(b"k::one\n89")
    assert formatted("--format", "key-value", "--key-separator", r"\x1f").startswith(b"k\x1fone\n89")


def test_a_template_prints_what_it_says() -> None:
    assert formatted("-f", r"%t/%p@%o %T %k=%v %h;") == (
        b"orders/0@0 0 k=one ;orders/0@1 1500 =89:;<=>?@ABCDEFGHI h=\xff;orders/0@2 2000 gone= ;"
    )


def test_a_part_of_a_value_takes_the_place_of_the_value() -> None:
    with served() as (_, url):
        with tidelog.sync.connect(url) as log, log.producer("orders") as producer:
            for value in (b'{"a": {"b": [1, "x"]}}', b"no JSON", b'{"a": {}}', b'{"a": {"b": "text"}}'):
                producer.submit(value, key=b"k")
        done = run(url, "orders", "--to-end", "--json-path", "$.a.b", "-f", r"%k: %v\n")
        assert (done.exit_code, done.stdout) == (0, 'k: [1, "x"]\nk: text\n')
        done = run(url, "orders", "-n", "1", "--json-path", "$.a.b[*]")
        assert (done.exit_code, done.stdout) == (0, "1\nx\n"), "a record, all its parts"


def test_on_a_terminal_control_characters_of_records_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    style_of = consume.style_of
    monkeypatch.setattr(consume, "style_of", lambda name, separator, terminal: style_of(name, separator, True))
    with served() as (_, url):
        with tidelog.sync.connect(url) as log, log.producer("orders") as producer:
            producer.submit(b"v\x1b[2J\n\tv", key=b"\x1b]0;title\x07", headers={"h\u202e": b"\x9b"})
        for arguments, printed in (
            ((), "v\\x1b[2J\\n\tv\n"),
            (("-f", "key-value"), "\\x1b]0;title\\x07\tv\\x1b[2J\\n\tv\n"),
            (("-f", r"%k %h %v\n"), "\\x1b]0;title\\x07 h\\u202e=\\x9b v\\x1b[2J\\n\tv\n"),
        ):
            assert run(url, "orders", "--to-end", *arguments).stdout == printed
        assert run(url, "orders", "--to-end", "-f", "json").stdout.rstrip("\n").isprintable()


def test_hex_has_place_key_and_value_on_a_line() -> None:
    assert formatted("--format", "hex").splitlines()[::2] == [b"0/0 6b 6f6e65", b"0/2 676f6e65 -"]


def test_hexdump_shows_all_bytes_with_their_places_and_as_text() -> None:
    records = formatted("--format", "hexdump").split(b"\n\n")
    assert records[1].decode().splitlines() == [
        "orders/0 offset 1 epoch 4 1970-01-01T00:00:01.500+00:00",
        "value, 18 bytes",
        "00000000  38 39 3a 3b 3c 3d 3e 3f  40 41 42 43 44 45 46 47  |89:;<=>?@ABCDEFG|",
        "00000010  48 49                                             |HI|",
        "header h, 1 bytes",
        "00000000  ff                                                |.|",
    ]
    assert records[2].decode().splitlines()[1:] == [
        "key, 4 bytes",
        "00000000  67 6f 6e 65                                       |gone|",
        "no value",
    ]


def test_a_separator_is_for_keys_and_values() -> None:
    done = run("ws://127.0.0.1:1", "orders", "--key-separator", ":")
    assert done.exit_code == 2 and "--format key-value" in done.output
