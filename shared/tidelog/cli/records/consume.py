"""``tidelog consume``: prints records."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import trio

from tidelog.cli.completion import topic_names
from tidelog.cli.main import connect, gateway_option, run
from tidelog.cli.option_types import Quantity
from tidelog.cli.output import say
from tidelog.cli.records.formats import FORMATS, style_of
from tidelog.cli.records.internal_records import readable
from tidelog.cli.records.record_filter import RecordFilter
from tidelog.cli.records.template import unescaped
from tidelog.client.options import CONSISTENCIES, ISOLATIONS, ON_UNREADABLE
from tidelog.errors import TidelogError
from tidelog.quantities import SECONDS

if TYPE_CHECKING:
    from tidelog.batch.format import Record
    from tidelog.client.group_consumer import GroupConsumer
    from tidelog.client.log import Log
    from tidelog.client.record_stream import RecordStream

TELL_WAITS_S = 2.0
"""Seconds without a record after which the cause is shown."""
LOOK_S = 0.05
"""Seconds between two checks whether a member of a group has come to the end."""
RAW = ("hex", "hexdump")
"""The formats that show what is stored, also of the cluster's own topics."""
WAITS = "waiting for new records; --from earliest shows all"


def place(text: str, option: str) -> str | int | datetime:
    """Parse a place in a topic, and return it: ``earliest`` or ``latest``, an offset as a number, or a time as a
    ``datetime``. Raises ``click.BadParameter``, which names ``option``, for another text."""
    if text in ("earliest", "latest"):
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    from tidelog.cli.explain.describe import parse_moment

    moment = parse_moment(text, datetime.now(UTC))
    if moment is None:
        raise click.BadParameter(
            f"{text!r} is not earliest, latest, an offset, or a time such as 2026-01-31T12:00:00 or -5m",
            param_hint=option,
        )
    return moment


class LineOutput:
    """The output of one ``consume`` command: it prints on stdout those records that ``chosen`` chooses, and counts
    them. ``most`` is the largest number of records that it prints; None: no limit. With ``flush`` each record is
    written out at once."""

    def __init__(
        self, style: Callable[[Record], bytes], chosen: RecordFilter, decode: bool, most: int | None, flush: bool
    ) -> None:
        """With ``decode`` records of the cluster's own topics are decoded first."""
        self._style = style
        self._chosen = chosen
        self._decode = decode
        self._left = math.inf if most is None else most
        self._flush = flush
        self.came = 0
        """Number of records that have come, printed or not."""

    async def print(self, records: RecordStream) -> None:
        """Print the records of a stream until the stream ends or the limit of this output is reached. Afterwards
        prints on stderr how many batches were skipped because they could not be decoded, if there were any."""
        write = sys.stdout.buffer.write
        async for record in records:
            self.came += 1
            found = self._chosen.choose(readable(record) if self._decode else record)
            if not found:
                continue
            for part in found:
                write(self._style(part))
            if self._flush:
                sys.stdout.buffer.flush()
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
    came = -1
    async with trio.open_nursery() as nursery:
        while True:
            await trio.sleep(TELL_WAITS_S)
            for error in log.waits:
                cause = error.code, str(error.detail.get("awaited", ""))
                if cause not in reported:
                    reported.add(cause)
                    say(f"tidelog: waiting: {error}", err=True)
            if output.came == came and not log.waits:
                nursery.start_soon(_ask_ends, log, topics)  # a subscription does not report the cause, a request does
            came = output.came


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


def _format_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the completions of a format's name for the shell."""
    return [name for name in FORMATS if name.startswith(incomplete)]


def _output(
    style: str, key_separator: str | None, grep: str | None, json_path: str | None, most: int | None, flush: bool
) -> LineOutput:
    """Return the output for the options of ``consume``. Raises ``click.UsageError`` for a format, separator or
    expression that is invalid."""
    if key_separator is not None and style != "key-value":
        raise click.UsageError("--key-separator is for --format key-value")
    try:
        separator = b"\t" if key_separator is None else unescaped(key_separator)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--key-separator") from error
    try:
        lines = style_of(style, separator, sys.stdout.isatty())
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--format") from error
    try:
        chosen = RecordFilter(grep, json_path)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return LineOutput(lines, chosen, style not in RAW, most, flush)


HELP = """Print records, a line each.

Without --from it waits for new records; with --to-end, --until or --max it begins at the earliest record. With
--reverse the newest record of each partition comes first, and it ends at the beginning, or at --until: '--reverse
--max 10' shows the last ten records.

\b
tidelog consume orders --to-end
tidelog consume orders -n 10 -f '%p/%o %k: %v\\n'
tidelog consume orders --from -1h --grep 'error|failed' -f json
tidelog consume orders --to-end --json-path '$.customer.name'
tidelog consume orders --to-end -f json | tidelog produce copy --input json

--format is one of these names, or a template:

\b
value      the bytes of the value
json       an object: topic, partition, offset, timestamp, key, value, headers;
           what is not UTF-8 in base64, as key_b64 and value_b64
key-value  the key, a separator and the value; without a key the value alone
hex        partition/offset, key and value in hexadecimal; - if there is none
hexdump    all bytes, 16 a line, with their positions and as text

A template prints one text for each record, and nothing between them:

\b
%t  topic              %k  key, empty if there is none
%p  partition          %K  bytes of the key, -1 if there is none
%o  offset             %v  value, empty if there is none
%e  leader epoch       %V  bytes of the value, -1 if there is none
%T  ms since 1970      %h  headers: name=value,name=value
%d  date and time      %%  a percent sign
Escapes: \\t \\n \\r \\0 \\\\ and \\x1f (a byte in hexadecimal)

On a terminal, control characters in records are printed as escapes; files and pipes get the bytes. Records of the
cluster's own topics (__timeline, __audit, __groups, __transactions) are printed as JSON, except in hexadecimal.

With --group the members of the group share the partitions; it continues at the group's position, and --from
counts only for partitions without one. A group can read several topics: TOPIC,TOPIC. 'tidelog groups describe'
shows the positions.

Records come from the leaders; with --read-from any from any replica in sync, as fresh as --max-staleness says."""


@click.command(help=HELP)
@click.argument("topic", shell_complete=topic_names)
@click.option(
    "--from",
    "start",
    metavar="earliest|latest|OFFSET|TIME",
    help="TIME: 2026-01-31T12:00:00, or -5m (also s, h, d).  "
    "[default: latest; earliest with --to-end, --until, --max or --group]",
)
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=click.IntRange(0),
    multiple=True,
    help="Read only this partition; repeatable.",
)
@click.option("--until", metavar="latest|OFFSET|TIME", help="Stop there, instead of waiting for more.")
@click.option("--to-end", is_flag=True, help="Stop at what is committed now: --until latest.")
@click.option("--reverse", is_flag=True, help="Newest first: from below --from down to --until, or to the beginning.")
@click.option(
    "-g", "--group", help="As a member of this consumer group, which shares the partitions and keeps its place."
)
@click.option("--instance", default="", help="With --group: the name of a static member, which keeps its share.")
@click.option("-n", "--max", "most", type=click.IntRange(1), help="Stop after so many records were printed.")
@click.option(
    "-f",
    "--format",
    "style",
    default="value",
    show_default=True,
    metavar="FORMAT",
    shell_complete=_format_names,
    help=f"{', '.join(FORMATS)}, or a template: '%p %o %k %v\\n'.",
)
@click.option("--grep", metavar="REGEX", help="Only records whose value matches this regular expression of Python.")
@click.option(
    "--json-path",
    metavar="PATH",
    help="Print only the part of JSON values that this JSONPath names ($.user.id, $.lines[*].sku), one record for "
    "each match; other records are not printed.",
)
@click.option(
    "--key-separator",
    metavar="S",
    help="For key-value: the text between key and value, as 'produce' reads it.  [default: \\t]",
)
@click.option("--read-from", type=click.Choice(["leader", "any"]), default="leader", show_default=True)
@click.option(
    "--consistency", type=click.Choice(CONSISTENCIES), help="Default: bounded with --max-staleness, else eventual."
)
@click.option(
    "--max-staleness", type=Quantity(SECONDS, least=0), help="Miss nothing that was committed longer ago than this."
)
@click.option(
    "--isolation",
    type=click.Choice(ISOLATIONS),
    default="committed",
    show_default=True,
    help="Of transactions read only committed records, or all, also those that are aborted later.",
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
    grep: str | None,
    json_path: str | None,
    consistency: str | None,
    max_staleness: float | None,
    gateways: tuple[str, ...],
    **reading: Any,
) -> None:
    """Print records; see ``HELP``."""
    if group and (reverse or until is not None or partitions):
        raise click.UsageError("--group does not go with --until, --reverse or --partition")
    if instance and not group:
        raise click.UsageError("--instance is for members of a --group")
    if to_end and (reverse or until is not None):
        raise click.UsageError(f"--to-end does not go with {'--reverse' if reverse else '--until'}")
    end = "latest" if to_end else None if until is None else place(until, "--until")
    waits = not (reverse or group or end is not None or most)
    begin = place(start or ("latest" if reverse or waits else "earliest"), "--from")
    reading["consistency"] = consistency or ("eventual" if max_staleness is None else "bounded")
    reading["max_staleness_s"] = max_staleness
    output = _output(style, key_separator, grep, json_path, most, flush=end is None and not reverse)

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
                async with log.consume(topic, **how, **reading) as records:
                    if waits and start is None and sys.stderr.isatty():
                        say(WAITS, err=True)
                    await output.print(records)
            nursery.cancel_scope.cancel()

    try:
        run(task)
        sys.stdout.buffer.flush()
    except* BrokenPipeError:  # the reader of the pipe has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python reports it once more at the end
