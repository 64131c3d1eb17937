"""``tidelog bench …``: measures a running cluster as its clients see it.

All producers and subscribers share one process, and so one CPU core: start several processes to load a large cluster.
Times are those of one clock, that of this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from typing import Any

import click

from tidelog.cli.admin.topics import config_of
from tidelog.cli.bench.consumers import STAMP, fill
from tidelog.cli.bench.consumers import consume as consume_many
from tidelog.cli.bench.consumers import fanout as fan_out
from tidelog.cli.bench.measurement import BenchTarget, Load
from tidelog.cli.bench.producers import one_by_one
from tidelog.cli.bench.producers import produce as produce_many
from tidelog.cli.bench.report import Report
from tidelog.cli.completion import topic_names
from tidelog.cli.exit_status import FAILED
from tidelog.cli.main import gateway_option, run
from tidelog.cli.option_types import Quantity
from tidelog.cli.output import print_for_programs, rows_output, say
from tidelog.quantities import BYTES, COUNT, SECONDS
from tidelog.runtime.process_settings import raise_open_files

ACKS = ("none", "leader", "all")
DEFAULT_S = 10.0
"""Duration in seconds of a measurement for which no end is given."""
FILL_RECORDS = 100_000
"""Number of records that are written to be read, if no number is given."""

_SETTINGS = (
    click.option(
        "--topic",
        default="",
        shell_complete=topic_names,
        help="Of this topic, which stays.  [default: one of its own, removed again]",
    ),
    click.option("--partitions", type=click.IntRange(1), help="Of a topic of its own.  [default: 3; of fanout 1]"),
    click.option(
        "--replication-factor",
        type=click.IntRange(1),
        help="The same.  [default: 3, or as many as there are servers]",
    ),
    click.option("--config", "settings", multiple=True, metavar="KEY=VALUE", help="The same: a setting; repeatable."),
    click.option(
        "--record-bytes",
        type=Quantity(BYTES, least=1, most=1 << 20, whole=True),
        default=1000,
        show_default=True,
        help="Size of a value.",
    ),
    click.option("--records", type=Quantity(COUNT, least=1, whole=True), help="Stop after so many."),
    click.option(
        "--bytes", "size", type=Quantity(BYTES, least=1, whole=True), help="Stop after so many bytes of values."
    ),
    click.option(
        "--seconds",
        type=Quantity(SECONDS, least=0, above=True),
        help="Stop after so long.  [default: 10, where no end is given; of latency 5]",
    ),
)
_WARM_UP = click.option(
    "--warm-up",
    type=Quantity(SECONDS, least=0),
    default="1s",
    show_default=True,
    help="At first, not counted.",
)
_ACKS = click.option("--acks", type=click.Choice(ACKS), default="all", show_default=True)
_BATCHES = (
    click.option("--compression", type=click.Choice(["none", "zstd", "lz4"]), default="none", show_default=True),
    click.option("--batch-bytes", type=Quantity(BYTES, least=1, whole=True), default="128KiB", show_default=True),
)


def _measure(*more: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a decorator that adds options to a command: ``more``, which only this measurement has, and those that
    all measurements have."""

    def add(command: Any) -> Any:
        for option in (gateway_option, rows_output, *reversed(_SETTINGS), *reversed(more)):
            command = option(command)
        return command

    return add


def _target(options: dict[str, Any], partitions: int = 3) -> BenchTarget:
    """Return the cluster and topic that the options of a command name, as a ``BenchTarget``. ``partitions`` is the
    default for a topic that is created."""
    return BenchTarget(
        options["gateways"],
        options["topic"],
        options["partitions"] or partitions,
        options["replication_factor"],
        config_of(options["settings"]),
    )


def _load(options: dict[str, Any], seconds: float | None = DEFAULT_S) -> Load:
    """Return the load that the options of a command describe, as a ``Load``. If the options give no end (records,
    bytes or seconds), the load ends after ``seconds``; None: it has no end."""
    ends = {"records": options["records"], "total_bytes": options["size"], "seconds": options["seconds"]}
    if not any(ends.values()):
        ends["seconds"] = seconds
    names = ("acks", "compression", "batch_bytes", "rate")
    return Load(options["record_bytes"], **ends, **{name: options[name] for name in names if name in options})


def _report(
    kind: str, target: BenchTarget, load: Load, output: str, measure: Callable[[Report], Awaitable[None]]
) -> None:
    """Run ``measure``, which adds rows to a report, and print the report. The topic of the measurement is created and
    removed again unless the options name one. Ends the command with status ``FAILED`` if records failed or did not
    arrive."""
    raise_open_files()
    settings = {name: value for name, value in asdict(load).items() if value is not None}
    report = Report(kind, target.topic, settings)

    async def task() -> None:
        async with target.some_topic(kind) as topic:
            report.topic = topic
            await measure(report)

    run(task)
    if not print_for_programs(output, report.table(), report.as_json()):
        report.show()
    for row in report.rows:
        if row.failed:
            say(f"tidelog: {row.case}: {row.failed} failed {row.first_error}".rstrip(), err=True)
    if not report.is_whole:
        raise SystemExit(FAILED)


@click.group()
def bench() -> None:
    """Measure a running cluster: through its gateways, as its clients see it.

    All producers and consumers of a run share this process, and so one CPU core. With --json the figures for scripts;
    exit code 1 where records failed or did not arrive."""


@bench.command()
@_measure(
    click.option("--producers", type=click.IntRange(1, 1000), default=1, show_default=True, help="At once."),
    _ACKS,
    *_BATCHES,
    click.option(
        "--rate",
        type=Quantity(COUNT, least=0, above=True),
        help="Records per second, all together; a delay counts from when a record was due.  [default: no limit]",
    ),
    _WARM_UP,
)
def produce(producers: int, warm_up: float, output: str, **options: Any) -> None:
    """Send records; report how many a second, and how long each waited for its acknowledgement.

    Without --rate the producers send as fast as they can: a delay then is mostly that of the queue before them.

    \b
    tidelog bench produce
    tidelog bench produce --producers 16 --seconds 30
    tidelog bench produce --rate 1000 --acks leader --json
    """
    target, load = _target(options), _load(options)

    async def measure(report: Report) -> None:
        report.rows.append(await produce_many(target, report.topic, load, producers, warm_up))

    _report("produce", target, load, output, measure)


@bench.command()
@_measure(
    click.option("--consumers", type=click.IntRange(1, 1000), default=1, show_default=True, help="At once."),
    *_BATCHES,
)
def consume(consumers: int, output: str, **options: Any) -> None:
    """Read records from the beginning, decoded; each consumer gets all of them.

    A topic of its own is filled first: with --records, --bytes, or 100,000 records. With --topic it reads what is
    there, at most --records or --bytes each.

    \b
    tidelog bench consume --records 1000000
    tidelog bench consume --topic orders --consumers 4
    """
    target, load = _target(options), _load(options, seconds=None)
    if not target.topic and not (load.records or load.total_bytes):
        load = replace(load, records=FILL_RECORDS)

    async def measure(report: Report) -> None:
        if not target.topic:
            await fill(target, report.topic, replace(load, seconds=None))
        report.rows.append(await consume_many(target, report.topic, load, consumers))

    _report("consume", target, load, output, measure)


@bench.command()
@_measure(
    click.option(
        "--acks",
        "chosen",
        type=click.Choice(ACKS),
        multiple=True,
        default=ACKS,
        show_default=True,
        help="One after the other; repeatable.",
    ),
    click.option(
        "--warm-up",
        type=click.IntRange(0),
        default=50,
        show_default=True,
        metavar="RECORDS",
        help="At first, not counted.",
    ),
)
def latency(chosen: tuple[str, ...], warm_up: int, output: str, **options: Any) -> None:
    """Send one record at a time, the next when the last is acknowledged, and report the delay at each level of acks.

    \b
    tidelog bench latency
    tidelog bench latency --acks all --records 1000 --record-bytes 100 --config flush=os
    """
    target, load = _target(options), _load(options, seconds=DEFAULT_S / 2)

    async def measure(report: Report) -> None:
        if warm_up:
            say(f"warm-up of {warm_up} records each, not counted", err=True)
        for acks in chosen:
            report.rows.append(await one_by_one(target, report.topic, replace(load, acks=acks), warm_up))

    _report("latency", target, load, output, measure)


@bench.command()
@_measure(
    click.option("--subscribers", type=click.IntRange(1, 100_000), default=100, show_default=True),
    click.option(
        "--idle",
        type=click.IntRange(0, 100_000),
        default=0,
        show_default=True,
        help="Subscribers besides, of a topic to which nothing is written.",
    ),
    _ACKS,
    click.option(
        "--rate",
        type=Quantity(COUNT, least=0, above=True),
        default=50,
        show_default=True,
        help="Records per second.",
    ),
    _WARM_UP,
)
def fanout(subscribers: int, idle: int, warm_up: float, output: str, **options: Any) -> None:
    """Send records to many subscribers, each with a connection of its own, and report what each got, and how late.

    A delay is that from handing a record to the producer to a subscriber that has it, decoded; all of them share this
    process, so with many it is also a measure of this process.

    \b
    tidelog bench fanout --subscribers 100
    tidelog bench fanout --subscribers 1 --idle 1000 --rate 20
    """
    target, load = _target(options, partitions=1), _load(options)
    if load.record_bytes < STAMP.size:
        raise click.BadParameter(f"a record has room for its time of {STAMP.size} bytes", param_hint="--record-bytes")

    async def measure(report: Report) -> None:
        report.settings |= {"subscribers": subscribers, "idle": idle}
        report.rows.append(await fan_out(target, report.topic, load, subscribers, idle, warm_up))

    _report("fanout", target, load, output, measure)
