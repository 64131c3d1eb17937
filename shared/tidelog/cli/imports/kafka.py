"""``tidelog import kafka``: copies topics from a Kafka cluster."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import click
import trio

from tidelog.cli.admin.topics import config_of
from tidelog.cli.exit_status import FAILED
from tidelog.cli.main import connect, gateway_option, run
from tidelog.cli.output import Table, console, print_json, result_output, say
from tidelog.errors import ConfigError
from tidelog.printable import escaped
from tidelog.quantities import counted

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from tidelog.backup.kafka.comparison import KafkaComparison
    from tidelog.backup.kafka.importer import KafkaImport, PartitionImport, TopicPlan
    from tidelog.client.log import Log

LOOK_S = 0.5
"""Seconds between two updates of the bars on a terminal."""


@click.command(epilog="Example: tidelog import kafka --brokers kafka1:9092,kafka2:9092 --topic orders --verify")
@click.option("--brokers", required=True, metavar="HOST:PORT,...", help="Kafka brokers; one that answers is enough.")
@click.option("--topic", "names", multiple=True, metavar="NAME", help="A topic to import; repeatable.")
@click.option(
    "--topic-regex", "regex", default="", metavar="REGEX", help="Also import topics whose whole name matches."
)
@click.option(
    "--properties",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Settings of librdkafka, one KEY=VALUE a line: TLS and passwords.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be imported, with which settings.")
@click.option("--follow", is_flag=True, help="Keep copying new records until Ctrl-C.")
@click.option(
    "--verify", is_flag=True, help="At the end read both sides from the beginning and compare every record."
)
@click.option(
    "--group", "groups", multiple=True, metavar="NAME", help="Copy only this group's positions; repeatable."
)
@click.option("--no-groups", is_flag=True, help="Copy no positions of consumer groups.")
@click.option(
    "--isolation",
    type=click.Choice(["committed", "uncommitted"]),
    default="committed",
    show_default=True,
    help="Leave out records of aborted and open transactions, or import them like all others.",
)
@click.option(
    "-r",
    "--replication-factor",
    type=click.IntRange(1),
    default=None,
    help="For topics that are created. [default: Kafka's]",
)
@click.option(
    "-c",
    "--config",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Setting of topics that are created, instead of Kafka's; repeatable.",
)
@click.option("--compression", type=click.Choice(["none", "zstd", "lz4"]), default="none", show_default=True)
@click.option(
    "--null-headers",
    type=click.Choice(["refuse", "empty", "drop"]),
    default="refuse",
    show_default=True,
    help="Headers whose value is null: end with an error, give them an empty value, or leave them out.",
)
@click.option("--skip-lost", is_flag=True, help="Continue after records that Kafka deleted before they were copied.")
@click.option(
    "--every",
    type=click.FloatRange(0.1),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two reports.",
)
@result_output
@gateway_option
def kafka(gateways: tuple[str, ...], dry_run: bool, output: str, **options: Any) -> None:
    """Copy topics from Kafka: every record once, with its offset, key, value, headers and timestamp, in the same
    partition; and the positions of consumer groups. Topics that are missing are created, with Kafka's settings as far
    as Tidelog has them.

    A run that was interrupted, also by kill -9, is continued by the same command: nothing is copied twice and nothing
    is left out. Until the move is over, no other program may write to the topics in Tidelog. docs/kafka.md has the
    steps of a move."""
    from tidelog.backup.kafka.cluster import KafkaCluster, Wanted
    from tidelog.backup.kafka.importer import ImportSettings, KafkaImport

    cluster = KafkaCluster(
        options["brokers"],
        _properties(options["properties"]),
        options["isolation"] == "committed",
        options["null_headers"],
    )
    wanted = ImportSettings(
        Wanted(options["names"], _regex(options)),
        options["replication_factor"] or 0,
        config_of(options["settings"]),
        options["follow"],
        not options["no_groups"],
        options["groups"],
        options["compression"],
        options["skip_lost"],
    )

    async def task() -> None:
        async with connect(gateways) as log:
            importer = KafkaImport(cluster, log, wanted)
            if dry_run:
                _show_plans(await importer.plan(), output)
            else:
                await _run(importer, log, options["every"], output, verify=options["verify"])

    run(task)


def _regex(options: dict[str, Any]) -> str:
    """Return the regular expression of ``--topic-regex``; "" if there is none. Raises ``click.UsageError`` if no
    topic is named at all, and ``click.BadParameter`` if the expression is invalid."""
    regex: str = options["regex"]
    if not regex and not options["names"]:
        raise click.UsageError("name the topics: --topic NAME, or --topic-regex REGEX")
    if options["groups"] and options["no_groups"]:
        raise click.UsageError("--group and --no-groups exclude each other")
    try:
        re.compile(regex)
    except re.error as error:
        raise click.BadParameter(f"{regex!r}: {error}", param_hint="--topic-regex") from error
    return regex


def _properties(file: Path | None) -> dict[str, str]:
    """Return the settings in a file with one ``KEY=VALUE`` a line; lines that begin with ``#`` are comments. Returns
    an empty map if ``file`` is None. Raises ``ConfigError``, which names the line."""
    if file is None:
        return {}
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--properties {file}: {error}") from error
    found = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--properties {file}, line {number}: not KEY=VALUE")
        found[name.strip()] = value.strip()
    return found


# --- the run ------------------------------------------------------------------------------------------------


async def _run(importer: KafkaImport, log: Log, every: float, output: str, *, verify: bool) -> None:
    """Run the import, and the comparison with ``verify``, and print what was done. Ends the process with ``FAILED``
    if the comparison has found a difference."""
    from tidelog.backup.kafka.comparison import KafkaComparison

    began = monotonic()
    await _until_signal(importer, every)
    seconds = monotonic() - began
    comparison = None
    if verify:
        comparison = KafkaComparison(importer.kafka, log, importer.topics)
        await _compare(comparison, importer)
    if output:
        print_json(_document(importer, seconds, comparison))
    else:
        _show_result(importer, seconds, comparison)
    if comparison is not None and comparison.differences:
        sys.exit(FAILED)


async def _until_signal(importer: KafkaImport, every: float) -> None:
    """Run the import until it has ended by itself. If it follows, SIGINT and SIGTERM end it, too. Shows its progress
    on stderr: bars on a terminal, and otherwise a line every ``every`` seconds. Raises the errors of the import."""
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async for _ in signals:
                    nursery.cancel_scope.cancel()

        async def show_bars() -> None:
            bars: dict[str, TaskID] = {}
            with _bars() as progress:
                while True:
                    _move(progress, bars, importer)
                    await trio.sleep(LOOK_S)

        async def show_lines() -> None:
            while True:
                await trio.sleep(every)
                say(_line(importer), err=True)

        if importer.settings.follow:
            nursery.start_soon(wait)
        report = show_bars if sys.stderr.isatty() else show_lines
        await importer.run(ready=lambda: nursery.start_soon(report))
        nursery.cancel_scope.cancel()


@contextmanager
def _bars() -> Iterator[Progress]:
    """Show progress bars on stderr while the block runs, if that is a terminal."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    name, more = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[more]}", markup=False)
    columns = (name, BarColumn(), TaskProgressColumn(), more)
    with Progress(*columns, console=console(err=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        yield progress


def _move(progress: Progress, bars: dict[str, TaskID], importer: KafkaImport) -> None:
    """Move the bar of each topic to where its copy is, and add one to ``bars`` for each topic that has none yet."""
    for name, parts in _by_topic(importer).items():
        if name not in bars:
            bars[name] = progress.add_task(escaped(name), total=None, more="")
        total = sum(max(0, each.kafka_end - each.start) for each in parts)
        done = sum(max(0, each.end - each.start) for each in parts)
        more = importer.waits or f"{_size(parts)}, {_behind(parts)}"
        progress.update(bars[name], total=max(total, done), completed=done, more=escaped(more))


async def _compare(comparison: KafkaComparison, importer: KafkaImport) -> None:
    """Run the comparison, with a bar on a terminal."""
    parts = list(importer.partitions.values())
    with _bars() as progress:
        bar = progress.add_task("comparing", total=sum(max(0, each.end - each.start) for each in parts), more="")
        await comparison.run(parts, lambda offsets: progress.advance(bar, offsets))


# --- what is shown ------------------------------------------------------------------------------------------


def _by_topic(importer: KafkaImport) -> dict[str, list[PartitionImport]]:
    """Return the progress of the partitions by topic."""
    found: dict[str, list[PartitionImport]] = {}
    for (name, _), each in sorted(importer.partitions.items()):
        found.setdefault(name, []).append(each)
    return found


def _lag(parts: list[PartitionImport]) -> int:
    """Return by how many offsets partitions are behind Kafka in all; -1 if that is not known yet."""
    lags = [each.lag for each in parts]
    return sum(lags) if lags and min(lags) >= 0 else -1


def _behind(parts: list[PartitionImport]) -> str:
    lag = _lag(parts)
    return f"{lag:,} behind" if lag >= 0 else "not known how far behind"


def _size(parts: list[PartitionImport]) -> str:
    return f"{sum(each.records for each in parts):,} records copied, {sum(e.bytes for e in parts) / 1e6:,.1f} MB"


def _line(importer: KafkaImport) -> str:
    """Return the progress of all topics on one line, and why the run waits if it does."""
    parts = list(importer.partitions.values())
    waits = f"; waits: {importer.waits}" if importer.waits else ""
    return f"{_size(parts)}; {_behind(parts)}{waits}"


def _show_result(importer: KafkaImport, seconds: float, comparison: KafkaComparison | None) -> None:
    """Print, by topic, what was copied and how far it is behind, the groups, and what the comparison has found."""
    for name, parts in _by_topic(importer).items():
        say(f"{name}: {_size(parts)}, {counted(len(parts), 'partition')}; {_behind(parts)}")
        groups = importer.groups.get(name, {})
        if done := [group for group, reason in groups.items() if not reason]:
            say(f"{name}: positions of {', '.join(sorted(done))}")
        for group, reason in sorted(groups.items()):
            if reason:
                say(f"{name}: the position of group {group} was not set: {reason}", err=True)
    say(f"{seconds:.1f} s, {sum(e.bytes for e in importer.partitions.values()) / 1e6 / max(seconds, 1e-3):,.1f} MB/s")
    if comparison is not None:
        _show_comparison(comparison)


def _show_comparison(comparison: KafkaComparison) -> None:
    """Print a table of the compared partitions, and in words where they differ."""
    table = Table("partition", "from", "to", "records", "checksum in Kafka", "checksum in Tidelog")
    for _, each in sorted(comparison.partitions.items()):
        table.add(each.name, each.start, each.end, each.records, *each.checksums)
    table.print()
    for each in comparison.partitions.values():
        if each.only_in_kafka or each.only_in_tidelog:
            say(
                f"{each.name}: {each.only_in_kafka} records only in Kafka, {each.only_in_tidelog} only in Tidelog"
                + (" (compaction)" if each not in comparison.differences else "")
            )
        if each.differs_at >= 0:
            say(f"{each.name}: the record at offset {each.differs_at} is different in Tidelog")
    differences = [each.name for each in comparison.differences]
    say(f"different: {', '.join(differences)}" if differences else "verified: every record is the same on both sides")


def _document(importer: KafkaImport, seconds: float, comparison: KafkaComparison | None) -> dict[str, Any]:
    """Return the result of a run as an object for JSON."""
    parts = list(importer.partitions.values())
    document: dict[str, Any] = {
        "records": sum(each.records for each in parts),
        "bytes": sum(each.bytes for each in parts),
        "seconds": seconds,
        "lag": _lag(parts),
        "partitions": [
            {
                "topic": each.key[0],
                "partition": each.key[1],
                "records": each.records,
                "end": each.end,
                "lag": each.lag,
            }
            for each in parts
        ],
        "groups": importer.groups,
    }
    if comparison is not None:
        document["different"] = [each.name for each in comparison.differences]
        document["verified"] = [
            {
                "topic": topic,
                "partition": partition,
                "start": each.start,
                "end": each.end,
                "records": each.records,
                "only_in_kafka": each.only_in_kafka,
                "only_in_tidelog": each.only_in_tidelog,
                "checksum_kafka": each.checksums[0],
                "checksum_tidelog": each.checksums[1],
            }
            for (topic, partition), each in sorted(comparison.partitions.items())
        ]
    return document


def _show_plans(plans: list[TopicPlan], output: str) -> None:
    """Print what an import would do, by topic."""
    if output:
        print_json(
            [
                {
                    "topic": plan.topic.name,
                    "partitions": plan.topic.partitions,
                    "offsets": plan.offsets,
                    "exists": plan.exists,
                    "replication_factor": plan.replication_factor,
                    "config": plan.settings.config,
                    "without_counterpart": plan.settings.without_counterpart,
                    "groups": list(plan.groups),
                }
                for plan in plans
            ]
        )
        return
    for plan in plans:
        how = (
            "exists already, and keeps its settings"
            if plan.exists
            else f"would be created, with replication factor {plan.replication_factor}"
        )
        size = f"{counted(plan.topic.partitions, 'partition')}, {plan.offsets:,} offsets in Kafka"
        say(f"{plan.topic.name}: {size}; {how}")
        for name, value in sorted(plan.settings.config.items()):
            say(f"  {name} = {value}")
        for name, value in plan.settings.without_counterpart.items():
            say(f"  Kafka's {name} = {value} has no counterpart")
        if plan.groups:
            say(f"  positions of {', '.join(plan.groups)}")
