"""``tidelog produce``: lines to records."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

import click
import trio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import tidelog
from tidelog.cli.main import connect, gateway_option, print_json, run
from tidelog.errors import ConfigError, TidelogError


@dataclass(slots=True)
class _Tally:
    sent: int = 0
    acked: int = 0
    failed: int = 0
    bytes: int = 0
    first_error: TidelogError | None = None


def lines(stream: BinaryIO) -> Iterator[bytes]:
    """Lines without their ends (``\\n`` or ``\\r\\n``); a last line without one counts."""
    for line in stream:
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def _open(name: str) -> BinaryIO:
    if name == "-":
        return sys.stdin.buffer
    try:
        return open(name, "rb")  # noqa: PTH123 (a path or what the shell makes of one; closed by the caller)
    except OSError as error:
        raise ConfigError(f"cannot read {name}: {error.strerror}") from error


@click.command()
@click.argument("topic")
@click.option("--file", "name", default="-", show_default=True, metavar="FILE", help="Lines to send; - is stdin.")
@click.option("--acks", type=click.Choice(["none", "leader", "all"]), default="all", show_default=True)
@click.option("--key-separator", metavar="S", help="What stands before the first S of a line is its key.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Records per second at most.")
@click.option("--compression", type=click.Choice(["none", "zstd", "lz4"]), default="none", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the totals as JSON, last.")
@gateway_option
def produce(
    topic: str,
    name: str,
    acks: str,
    key_separator: str | None,
    rate: float | None,
    compression: Literal["none", "zstd", "lz4"],
    as_json: bool,
    gateways: tuple[str, ...],
) -> None:
    """Send one record per line. Exit code 0 only when every record was acknowledged."""
    tally = _Tally()
    separator = key_separator.encode() if key_separator else None
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty(),
    )  # fmt: skip

    async def task() -> None:
        options = tidelog.ProducerOptions(acks=acks, compression=compression)
        async with connect(gateways) as log, log.producer(topic, options) as producer:
            await _send(producer, _open(name), separator, rate, tally, progress)

    started = time.monotonic()
    with progress:
        run(task)
    seconds = time.monotonic() - started
    if tally.first_error:
        click.echo(f"tidelog: {tally.failed} records failed, the first with {tally.first_error}", err=True)
    if as_json:
        print_json(
            {
                "sent": tally.sent,
                "acked": tally.acked,
                "failed": tally.failed,
                "bytes": tally.bytes,
                "seconds": round(seconds, 3),
            }
        )
    else:
        click.echo(
            f"{tally.acked} of {tally.sent} records acknowledged, {tally.bytes} bytes, {seconds:.2f} s", err=True
        )
    sys.exit(0 if tally.acked == tally.sent else 1)


async def _send(
    producer: Any, stream: BinaryIO, separator: bytes | None, rate: float | None, tally: _Tally, progress: Progress
) -> None:
    waiting: deque[Any] = deque()
    bar = progress.add_task("acknowledged", total=None)
    began = trio.current_time()

    async def settle() -> None:
        try:
            await waiting.popleft().wait()
            tally.acked += 1
        except TidelogError as error:
            tally.failed += 1
            tally.first_error = tally.first_error or error
        progress.update(bar, completed=tally.acked, total=tally.sent)

    with stream:
        for line in lines(stream):
            key, found, value = line.partition(separator) if separator else (b"", b"", line)
            key_or_none = key if found else None
            if separator and not found:
                value = line
            if rate:
                await trio.sleep_until(began + tally.sent / rate)
            waiting.append(await producer.submit(value, key=key_or_none))
            tally.sent += 1
            tally.bytes += len(line)
            while len(waiting) > 50_000:
                await settle()
    await producer.flush()
    while waiting:
        await settle()
