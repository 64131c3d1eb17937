"""``tidelog consume``: prints each record as a line."""

from __future__ import annotations

import base64
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import trio

from tidelog.batch.format import Record
from tidelog.cli.completion import topic_names
from tidelog.cli.explain.describe import parse_moment
from tidelog.cli.main import connect, gateway_option, run
from tidelog.cli.output import json_text, say
from tidelog.client.options import CONSISTENCIES, ISOLATIONS, ON_UNREADABLE, Reading
from tidelog.client.record_stream import RecordStream
from tidelog.errors import TidelogError
from tidelog.printable import escaped
from tidelog.timeline.records import decode
from tidelog.types import TIMELINE

if TYPE_CHECKING:
    from tidelog.client.group_consumer import GroupConsumer
    from tidelog.client.log import Log


def _text_or_b64(name: str, data: bytes | None) -> dict[str, Any]:
    """Return ``{name: text}`` for data in UTF-8, ``{NAME_b64: base64}`` for other data, and ``{name: None}`` for
    None."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_b64": base64.b64encode(data).decode()}


def _value(record: Record) -> dict[str, Any]:
    """Return the value of a record as a map for JSON: ``value`` with the decoded contents of a record of the
    timeline, otherwise ``value`` as text or ``value_b64`` in base64."""
    if record.topic == TIMELINE:
        with suppress(ValueError):
            if (document := decode(record.value)) is not None:
                return {"value": document}
    return _text_or_b64("value", record.value)


def _as_json(record: Record) -> bytes:
    """Return a record as a line of JSON, with its place, time, key, value and headers."""
    document = {
        "partition": record.partition,
        "offset": record.offset,
        "leader_epoch": record.leader_epoch,
        "timestamp": datetime.fromtimestamp(record.timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        **_text_or_b64("key", record.key),
        **_value(record),
        "headers": [{"name": name, **_text_or_b64("value", value)} for name, value in record.headers],
    }
    return json_text(document).encode()


def _as_hex(record: Record) -> bytes:
    """Return a record as ``PARTITION/OFFSET KEY VALUE``, key and value in hexadecimal; ``-`` stands for a missing key
    or value."""
    key = record.key.hex() if record.key is not None else "-"
    value = record.value.hex() if record.value is not None else "-"
    return f"{record.partition}/{record.offset} {key} {value}".encode()


def _as_value(record: Record) -> bytes:
    """Return the bytes of a record's value, empty if it has none. For a record of the timeline, return its contents
    as JSON."""
    if record.topic == TIMELINE and isinstance(document := _value(record).get("value"), dict):
        return json_text(document).encode()
    return record.value or b""


TELL_WAITS_S = 2.0
"""Seconds without a record after which the cause is shown."""
LOOK_S = 0.05
"""Seconds between two checks whether a member of a group has come to the end."""


def as_key_value(separator: bytes) -> Callable[[Record], bytes]:
    """Return a function that formats a record as key, separator and value, as ``produce --key-separator`` reads them.
    It formats a record without a key as the value alone."""

    def style(record: Record) -> bytes:
        value = _as_value(record)
        return value if record.key is None else record.key + separator + value

    return style


def for_terminal(style: Callable[[Record], bytes]) -> Callable[[Record], bytes]:
    """Return a function that formats a record like ``style``, made safe for a terminal: on one line, with escapes for
    control characters and other characters that do not show. Tabs stay."""

    def printable(record: Record) -> bytes:
        text = style(record).decode("utf-8", "backslashreplace")
        return "\t".join(map(escaped, text.split("\t"))).encode()

    return printable


def _as_hexdump(record: Record) -> bytes:
    """Return a record in the manner of ``hexdump -C``: a line that names the record, then key, value and headers, 16
    bytes in each line as position, hexadecimal and printable characters."""
    at = datetime.fromtimestamp(record.timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    lines = [f"{escaped(record.topic)}/{record.partition} offset {record.offset} epoch {record.leader_epoch} {at}"]
    parts = [
        ("key", record.key),
        ("value", record.value),
        *((f"header {escaped(name)}", data) for name, data in record.headers),
    ]
    for name, data in parts:
        if data is not None:
            lines += [f"{name}, {len(data)} bytes", *_dump(data)]
        elif name == "value":
            lines.append("no value")
    return "\n".join([*lines, ""]).encode()


def _dump(data: bytes) -> Iterator[str]:
    """Yield the lines of a hexdump of ``data``, 16 bytes in each."""
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        halves = f"{row[:8].hex(' '):23}  {row[8:].hex(' '):23}"
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"{at:08x}  {halves}  |{text}|"


FORMATS = {
    "value": _as_value,
    "json": _as_json,
    "key-value": as_key_value(b"\t"),
    "hex": _as_hex,
    "hexdump": _as_hexdump,
}
"""Value of ``--format`` -> the function that formats a record."""


def _line_of(style: str, key_separator: str | None) -> Callable[[Record], bytes]:
    """Return the function that formats a record for the options ``--format`` and ``--key-separator`` (None: not
    given). If stdout is a terminal, its text is made safe for terminals."""
    line = FORMATS[style] if key_separator is None else as_key_value(key_separator.encode())
    return for_terminal(line) if sys.stdout.isatty() and style in ("value", "key-value") else line


def place(text: str, option: str) -> str | int | datetime:
    """Parse a place in a topic, and return it: ``earliest`` or ``latest``, an offset as a number, or a time as a
    ``datetime``. Raises ``click.BadParameter``, which names ``option``, for another text."""
    if text in ("earliest", "latest"):
        return text
    if text.isdigit():
        return int(text)
    moment = parse_moment(text, datetime.now(UTC))
    if moment is None:
        raise click.BadParameter(
            f"{text!r} is not earliest, latest, an offset, or a time such as 2026-01-31T12:00:00 or -5m",
            param_hint=option,
        )
    return moment


class LineOutput:
    """The output of one ``consume`` command: it prints records on stdout, a line each, and counts them. ``most`` is
    the largest number of records that it prints; None: no limit. With ``flush`` each line is written out at once."""

    def __init__(self, style: Callable[[Record], bytes], most: int | None, flush: bool) -> None:
        self._style = style
        self._left = math.inf if most is None else most
        self._flush = flush
        self.printed = 0
        """Number of records that were printed."""

    async def print(self, records: RecordStream) -> None:
        """Print the records of a stream until the stream ends or the limit of this output is reached. Afterwards
        prints on stderr how many batches were skipped because they could not be decoded, if there were any."""
        write = sys.stdout.buffer.write
        async for record in records:
            write(self._style(record) + b"\n")
            if self._flush:
                sys.stdout.buffer.flush()
            self.printed += 1
            self._left -= 1
            if self._left == 0:
                break
        if records.skipped_batches:
            skipped = f"{records.skipped_offsets} offsets in {records.skipped_batches} batches"
            say(f"tidelog: skipped {skipped} that cannot be decoded", err=True)

    async def print_share(self, log: Log, member: GroupConsumer, topics: list[str], to_end: bool) -> None:
        """Join a consumer group as ``member``, print the records of its partitions until the stream ends or the limit
        is reached, then commit the positions behind what was printed. With ``to_end`` it stops at the ends that the
        topics had at first. Raises the errors of the client."""
        ends: dict[tuple[str, int], int] = {}
        for topic in topics:
            places = await log.partitions.find_positions(topic, "latest")
            ends.update({(topic, partition): at.offset for partition, at in places.items()})
        async with member:
            async with trio.open_nursery() as nursery:
                if to_end:
                    nursery.start_soon(_cancel_at, member, ends, nursery.cancel_scope)
                await self.print(member)
                nursery.cancel_scope.cancel()
            sys.stdout.buffer.flush()
            await member.commit()


async def tell_waits(log: Log, topics: list[str], output: LineOutput) -> None:
    """Print on stderr, once for each cause, why the client waits for the cluster; runs until cancelled. It looks
    every ``TELL_WAITS_S`` seconds. If no record has come and no cause is known, it asks for the ends of ``topics``,
    since a request, unlike a subscription, reports the cause."""
    reported: set[tuple[str, str]] = set()
    printed = -1
    async with trio.open_nursery() as nursery:
        while True:
            await trio.sleep(TELL_WAITS_S)
            for error in log.waits:
                cause = error.code, str(error.detail.get("awaited", ""))
                if cause not in reported:
                    reported.add(cause)
                    say(f"tidelog: waiting: {error}", err=True)
            if output.printed == printed and not log.waits:
                nursery.start_soon(_ask_ends, log, topics)  # a subscription does not report the cause, a request does
            printed = output.printed


async def _ask_ends(log: Log, topics: list[str]) -> None:
    """Ask for the ends of the topics, and ignore answers and errors. The client remembers an error as the reason why
    a leader does not answer."""
    for topic in topics:
        with suppress(TidelogError):
            await log.partitions.find_positions(topic, "latest")


async def _cancel_at(member: GroupConsumer, ends: Mapping[tuple[str, int], int], scope: trio.CancelScope) -> None:
    """Cancel ``scope`` as soon as the member has reached the end offsets ``ends`` in all partitions that are assigned
    to it. While no partition is assigned, it waits."""
    while True:
        await trio.sleep(LOOK_S)
        share, positions = member.assignment, member.positions
        if share and all(one in positions and positions[one].offset >= ends.get(one, 0) for one in share):
            scope.cancel()


@click.command()
@click.argument("topic", shell_complete=topic_names)
@click.option(
    "--from",
    "start",
    metavar="earliest|latest|OFFSET|TIME",
    help="TIME: 2026-01-31T12:00:00, or -5m (also s, h, d).  [default: latest; with --group, earliest]",
)
@click.option("--partition", "partitions", type=click.IntRange(0), multiple=True, help="Only this one; repeatable.")
@click.option("--until", metavar="latest|OFFSET|TIME", help="Stop there, instead of waiting for more.")
@click.option("--to-end", is_flag=True, help="Stop at what is committed now: --until latest.")
@click.option("--reverse", is_flag=True, help="Newest first: from below --from down to --until, or to the beginning.")
@click.option("--group", help="As a member of this consumer group, which shares the partitions and keeps its place.")
@click.option("--instance", default="", help="With --group: the name of a static member, which keeps its share.")
@click.option("--max", "most", type=click.IntRange(1), help="Stop after so many records.")
@click.option("--format", "style", type=click.Choice(list(FORMATS)), default="value", show_default=True)
@click.option(
    "--key-separator",
    metavar="S",
    help="Of key-value: between the two, as 'produce' reads it.  [default: a tab]",
)
@click.option("--read-from", type=click.Choice(["leader", "any"]), default="leader", show_default=True)
@click.option(
    "--consistency", type=click.Choice(CONSISTENCIES), help="Default: bounded with --max-staleness, else eventual."
)
@click.option("--max-staleness", type=float, metavar="SECONDS", help="Everything committed until so long ago.")
@click.option(
    "--isolation",
    type=click.Choice(ISOLATIONS),
    default="committed",
    show_default=True,
    help="Of transactions only what is committed, or everything, also what is aborted later.",
)
@click.option(
    "--on-unreadable",
    type=click.Choice(ON_UNREADABLE),
    default="raise",
    show_default=True,
    help="At a batch that cannot be decoded: end with an error that names it, or skip it with a warning.",
)
@gateway_option
def consume(
    topic: str,
    start: str | None,
    partitions: tuple[int, ...],
    until: str | None,
    to_end: bool,
    reverse: bool,
    group: str | None,
    instance: str,
    most: int | None,
    style: str,
    key_separator: str | None,
    read_from: str,
    consistency: str | None,
    max_staleness: float | None,
    isolation: str,
    on_unreadable: str,
    gateways: tuple[str, ...],
) -> None:
    """Print records, a line each. The format 'value' prints the bytes of the value, 'json' an object, 'key-value' the
    key, a separator and the value (without a key the value alone), 'hex' partition/offset, key and value in
    hexadecimal, 'hexdump' all bytes, 16 a line, with their positions and as text. Records of __timeline, which
    describe what happened to the cluster, are printed as JSON.

    With --reverse the newest record of each partition comes first, and it ends at the beginning, or at --until:
    '--reverse --max 10' shows the last ten records.

    With --group the members of the group share the partitions; it continues at the group's position, and --from
    counts only for partitions without one. Several topics: TOPIC,TOPIC. 'tidelog groups describe' shows the
    positions.

    Records come from the leaders; with --read-from any from any replica in sync, as fresh as --max-staleness says."""
    begin = place(start or ("earliest" if group else "latest"), "--from")
    if group and (reverse or until is not None or partitions):
        raise click.UsageError("--group does not go with --until, --reverse and --partition")
    if instance and not group:
        raise click.UsageError("--instance is for members of a --group")
    if to_end and (reverse or until is not None):
        raise click.UsageError(f"--to-end does not go with {'--reverse' if reverse else '--until'}")
    end = "latest" if to_end else None if until is None else place(until, "--until")
    consistency = consistency or ("eventual" if max_staleness is None else "bounded")
    reading: Reading = {
        "read_from": read_from,
        "consistency": consistency,
        "max_staleness_s": max_staleness,
        "isolation": isolation,
        "on_unreadable": on_unreadable,
    }
    if key_separator is not None and style != "key-value":
        raise click.UsageError("--key-separator is for --format key-value")
    output = LineOutput(_line_of(style, key_separator), most, flush=end is None and not reverse)

    async def task() -> None:
        async with connect(gateways) as log, trio.open_nursery() as nursery:
            chosen, topics = partitions or None, topic.split(",") if group else [topic]
            if end is not None:
                nursery.start_soon(tell_waits, log, topics, output)
            if group:
                member = log.consume(topics, group=group, instance=instance, start=begin, **reading)
                await output.print_share(log, member, topics, to_end)
            else:
                how: dict[str, Any] = {"start": begin, "end": end, "partitions": chosen, "reverse": reverse}
                await output.print(log.consume(topic, **how, **reading))
            nursery.cancel_scope.cancel()

    try:
        run(task)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        sys.stderr.close()  # the reader of the pipe has ended: no error message at exit
