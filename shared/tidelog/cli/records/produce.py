"""``tidelog produce``: sends lines, lines of JSON or whole files as records."""

from __future__ import annotations

import os
import sys
import time
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Literal

import click

from tidelog.cli.completion import topic_names
from tidelog.cli.exit_status import DONE, FAILED
from tidelog.cli.main import connect, gateway_option, run
from tidelog.cli.option_types import Quantity
from tidelog.cli.output import print_json, result_output, say
from tidelog.cli.progress import Bar, shown
from tidelog.cli.records.record_input import InputRecord, Parse, open_input, record_of_json, record_of_line
from tidelog.cli.records.record_sender import RecordSender, Tally
from tidelog.cli.records.template import unescaped
from tidelog.quantities import COUNT

if TYPE_CHECKING:
    from tidelog.batch.format import RecordHeaders


def _header(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> RecordHeaders:
    """Return the headers of the option ``--header``, as a callback of click. Raises ``click.BadParameter`` for one
    without ``=``."""
    pairs = []
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not _is_utf_8(name):
            raise click.BadParameter(f"{text!r} is not NAME=VALUE, with a name in UTF-8")
        pairs.append((name, os.fsencode(value)))
    return tuple(pairs)


def _is_utf_8(text: str) -> bool:
    """Return whether an argument is UTF-8; Python keeps bytes that are not as lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _separator(ctx: click.Context, param: click.Parameter, given: str | None) -> bytes | None:
    """Return the bytes of the option ``--key-separator``, as a callback of click; None if it is not given. Raises
    ``click.BadParameter`` for an empty text or an unknown escape."""
    if given is None:
        return None
    try:
        found = unescaped(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    if not found:
        raise click.BadParameter("it is empty")
    return found


def _line_parser(separator: bytes | None) -> Parse:
    """Return the function that makes a record of a line; ``separator`` is the text after the key; None: lines have no
    keys."""
    return InputRecord if separator is None else partial(record_of_line, separator=separator)


def _parse(
    line: bytes, parse: Parse, key: bytes | None, headers: RecordHeaders, partition: int | None
) -> InputRecord | None:
    """Return the record that ``parse`` finds in a line, with this key, these headers besides its own, and in this
    partition; None for one that is not given. None if the line holds no record."""
    record = parse(line)
    if record is None:
        return None
    return InputRecord(
        record.value,
        record.key if key is None else key,
        record.headers + headers,
        record.partition if partition is None else partition,
        record.timestamp_ms,
    )


INPUT = click.Path(exists=True, dir_okay=False, readable=True, allow_dash=True)
HELP = """Send one record per line, as the lines come. Exit code 0 only when every record was acknowledged. With
--json the totals are the last line that is printed.

\b
tidelog produce orders orders.txt
tail -f app.log | tidelog produce logs --acks leader
printf 'k1:one\\nk2:two\\n' | tidelog produce orders --key-separator : --json
tidelog produce orders -k k1 -H source=shop -H trace=7 order.json --file-as-record
tidelog consume orders --to-end -f json | tidelog produce copy --input json
echo three | tidelog produce orders -p 0 --expected-offset 2

Where stdin is a terminal, it asks for lines, and prints where each record was appended: TOPIC/PARTITION @ OFFSET.

With --input json a line is an object, of which only value must be there:

\b
{"key": "k1", "value": "one", "headers": {"trace": "7"}, "timestamp": "2026-01-31T12:00:00Z"}

Keys and values are texts; value null is a record without a value. key_b64 and value_b64 are bytes in base64, headers
may be an array of objects with name and value or value_b64, timestamp a number of ms since 1970, and partition is the
number of the partition. So what 'consume --format json' prints is copied exactly, into the same partitions; topic,
offset and leader_epoch are not read. To have the keys choose the partitions, put jq -c 'del(.partition)' between.

At a line that is no record, or is too long for one, it stops with the number of the line: all lines before it are
sent, that line and those behind it are not."""


@click.command(help=HELP)
@click.argument("topic", shell_complete=topic_names)
@click.argument("files", nargs=-1, metavar="[FILE]...", type=INPUT)
@click.option(
    "--file", "named", metavar="FILE", type=INPUT, multiple=True, help="The same as FILE.  [default: -, stdin]"
)
@click.option("--file-as-record", is_flag=True, help="Each file is one record, as it is.")
@click.option(
    "--input",
    "kind",
    type=click.Choice(["lines", "json"]),
    default="lines",
    show_default=True,
    help="What a line is: the value of a record, or a record as 'consume --format json' prints it.",
)
@click.option("-k", "--key", help="The key of every record.")
@click.option(
    "--key-separator",
    metavar="S",
    callback=_separator,
    help="The key of a line ends before its first S; a line without S has no key. \\t is a tab.",
)
@click.option(
    "-H",
    "--header",
    "headers",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_header,
    help="A header of every record; repeatable.",
)
@click.option(
    "-p",
    "--partition",
    type=click.IntRange(0),
    help="The partition of every record.  [default: by the key; without a key all take turns]",
)
@click.option(
    "--expected-offset",
    type=click.IntRange(0),
    help="Append only if the partition ends here, and each further record right behind: otherwise stop.",
)
@click.option("--acks", type=click.Choice(["none", "leader", "all"]), default="all", show_default=True)
@click.option("--rate", type=Quantity(COUNT, least=0, above=True), help="Records per second at most.")
@click.option("--compression", type=click.Choice(["none", "zstd", "lz4"]), default="none", show_default=True)
@result_output
@gateway_option
def produce(
    topic: str,
    files: tuple[str, ...],
    named: tuple[str, ...],
    file_as_record: bool,
    kind: str,
    key: str | None,
    key_separator: bytes | None,
    headers: RecordHeaders,
    partition: int | None,
    expected_offset: int | None,
    acks: str,
    rate: float | None,
    compression: Literal["none", "zstd", "lz4"],
    output: str,
    gateways: tuple[str, ...],
) -> None:
    """Send records; see ``HELP``."""
    names = (*named, *files) or ("-",)
    _refuse_contradictions(names, file_as_record, kind, key, key_separator, partition, expected_offset, acks)
    converses = names == ("-",) and not file_as_record and sys.stdin.isatty()
    parse = record_of_json if kind == "json" else _line_parser(key_separator)
    if key is not None or headers or partition is not None:
        given = None if key is None else os.fsencode(key)
        parse = partial(_parse, parse=parse, key=given, headers=headers, partition=partition)
    tally = Tally()

    bar = Bar("acknowledged")

    async def task() -> None:
        from tidelog import ProducerOptions

        options = ProducerOptions(acks=acks, compression=compression)
        async with connect(gateways) as log, log.producer(topic, options) as producer:
            sender = RecordSender(producer, parse, tally, rate, expected_offset, bar)
            try:
                if converses:
                    with open_input("-") as stream:
                        await sender.converse(stream)
                else:
                    await sender.send_files(names, file_as_record)
            finally:
                sender.count_outcomes()

    started = time.monotonic()
    try:
        with nullcontext() if converses else shown(bar):
            run(task)
    except SystemExit:
        if tally.sent:
            _print_totals(tally, time.monotonic() - started, bool(output))
        raise
    _print_totals(tally, time.monotonic() - started, bool(output))
    sys.exit(DONE if tally.acked == tally.sent and not tally.stopped else FAILED)


def _refuse_contradictions(
    names: tuple[str, ...],
    file_as_record: bool,
    kind: str,
    key: str | None,
    key_separator: bytes | None,
    partition: int | None,
    expected_offset: int | None,
    acks: str,
) -> None:
    """Raise ``click.UsageError`` for options that do not go together."""
    if key_separator is not None and (key is not None or file_as_record or kind == "json"):
        other = "--key" if key is not None else "--file-as-record" if file_as_record else "--input json"
        raise click.UsageError(f"--key-separator does not go with {other}")
    if kind == "json" and (key is not None or file_as_record):
        raise click.UsageError(f"--input json does not go with {'--file-as-record' if file_as_record else '--key'}")
    if names.count("-") > 1:
        raise click.UsageError("stdin (-) can be read once only")
    if expected_offset is not None and partition is None:
        raise click.UsageError("--expected-offset is of one partition: give --partition, too")
    if expected_offset is not None and acks == "none":
        raise click.UsageError("--expected-offset does not go with --acks none, which gives no answer")


def _print_totals(tally: Tally, seconds: float, as_json: bool) -> None:
    """Print what became of the records: errors and counts on stderr, or the counts as JSON on stdout."""
    if tally.first_error:
        say(f"tidelog: {tally.failed} records failed, the first with {tally.first_error}", err=True)
    if tally.stopped:
        say(f"tidelog: {tally.stopped}", err=True)
    unknown = tally.sent - tally.acked - tally.failed
    if unknown:
        say(f"tidelog: {unknown} records have no acknowledgement: they may be in the log, or not", err=True)
    if as_json:
        counts = {name: getattr(tally, name) for name in ("sent", "acked", "failed", "bytes")}
        print_json(counts | {"seconds": round(seconds, 3)}, indent=None)
    else:
        say(f"{tally.acked} of {tally.sent} records acknowledged, {tally.bytes} bytes, {seconds:.2f} s", err=True)
