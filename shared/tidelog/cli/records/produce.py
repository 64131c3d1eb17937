"""``tidelog produce``: sends each line of the input as a record."""

from __future__ import annotations

import sys
import time
from collections import deque
from dataclasses import dataclass
from io import RawIOBase
from typing import TYPE_CHECKING, BinaryIO, Literal

import click
import trio
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import tidelog
from tidelog.cli.completion import topic_names
from tidelog.cli.exit_status import DONE, FAILED
from tidelog.cli.main import connect, gateway_option, run
from tidelog.cli.output import console, print_json, say
from tidelog.errors import ConfigError, TidelogError

if TYPE_CHECKING:
    from tidelog.client.producer import Pending, Producer


@dataclass(slots=True)
class _Tally:
    """The counts of one ``produce`` command: records sent, acknowledged and failed, the bytes of their lines, and the
    first error."""

    sent: int = 0
    acked: int = 0
    failed: int = 0
    bytes: int = 0
    first_error: TidelogError | None = None


CHUNK_BYTES = 64 << 10
"""Most bytes that are read from the input at a time."""
MOST_WAITING = 50_000
"""Most records that are sent and whose outcome was not counted yet."""


class Lines:
    r"""The lines of an input, without their ends (``\n`` or ``\r\n``), as they arrive; a last line without an end
    counts. The input is read in a thread, so earlier lines are sent while a terminal or a pipe has no input."""

    def __init__(self, stream: RawIOBase | BinaryIO) -> None:
        self._stream = stream
        self._rest = b""

    async def more(self) -> list[bytes]:
        """Wait for input, and return the complete lines that have arrived, at least one. At the end of the input,
        return a last line without an end, if there is one, and then an empty list."""
        found: list[bytes] = []
        while not found:
            chunk = await trio.to_thread.run_sync(self._stream.read, CHUNK_BYTES, abandon_on_cancel=True)
            if not chunk:
                last, self._rest = self._rest, b""
                return [last] if last else []
            *found, self._rest = (self._rest + chunk).split(b"\n")
        return [line.removesuffix(b"\r") for line in found]


def _open(name: str) -> RawIOBase | BinaryIO:
    """Open the input for reading and return it; ``-`` is stdin. It is unbuffered, since a thread that waits for a
    terminal would hold the buffer's lock at the end of the process. Raises ``ConfigError`` if the file cannot be
    opened."""
    if name == "-":
        return getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
    try:
        return open(name, "rb", buffering=0)  # noqa: PTH123 (a path or what the shell makes of one; closed by the caller)
    except OSError as error:
        raise ConfigError(f"cannot read {name}: {error.strerror}") from error


@click.command()
@click.argument("topic", shell_complete=topic_names)
@click.option("--file", "name", default="-", show_default=True, metavar="FILE", help="Lines to send; - is stdin.")
@click.option("--acks", type=click.Choice(["none", "leader", "all"]), default="all", show_default=True)
@click.option("--key-separator", metavar="S", help="Before the first S of a line is its key, if there is an S.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Records per second at most.")
@click.option("--compression", type=click.Choice(["none", "zstd", "lz4"]), default="none", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the totals as JSON: the last line.")
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
    """Send one record per line, as the lines come. Exit code 0 only when every record was acknowledged.

    \b
    tidelog produce orders --file orders.txt
    tail -f app.log | tidelog produce logs --acks leader
    printf 'k1:one\\nk2:two\\n' | tidelog produce orders --key-separator : --json
    """
    tally = _Tally()
    separator = key_separator.encode() if key_separator else None
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=console(err=True), transient=True, disable=not sys.stderr.isatty(),
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
        say(f"tidelog: {tally.failed} records failed, the first with {tally.first_error}", err=True)
    if as_json:
        counts = {name: getattr(tally, name) for name in ("sent", "acked", "failed", "bytes")}
        print_json(counts | {"seconds": round(seconds, 3)}, indent=None)
    else:
        say(f"{tally.acked} of {tally.sent} records acknowledged, {tally.bytes} bytes, {seconds:.2f} s", err=True)
    sys.exit(DONE if tally.acked == tally.sent else FAILED)


async def _send(
    producer: Producer,
    stream: RawIOBase | BinaryIO,
    separator: bytes | None,
    rate: float | None,
    tally: _Tally,
    progress: Progress,
) -> None:
    """Send each line of ``stream`` as a record, at most ``rate`` per second, and count the outcomes in ``tally``.
    Shows the counts in ``progress``. The part of a line before ``separator``, if the line has it, is the record's
    key. Returns at the end of the input, when every record is acknowledged or has failed."""
    waiting: deque[Pending] = deque()
    bar = progress.add_task("acknowledged", total=None)
    began = trio.current_time()

    async def settle(most: int) -> None:
        """Count the outcomes of records that have one, and wait until at most ``most`` records have none."""
        while waiting and (waiting[0].is_settled or len(waiting) > most):
            try:
                await waiting.popleft().wait()
                tally.acked += 1
            except TidelogError as error:
                tally.failed += 1
                tally.first_error = tally.first_error or error
        progress.update(bar, completed=tally.acked, total=tally.sent)

    source = Lines(stream)
    with stream:
        while lines := await source.more():
            for line in lines:
                key, found, value = line.partition(separator) if separator else (b"", b"", line)
                if rate:
                    await settle(MOST_WAITING)
                    await trio.sleep_until(began + tally.sent / rate)
                waiting.append(await producer.submit(value if found else line, key=key if found else None))
                tally.sent += 1
                tally.bytes += len(line)
            await settle(MOST_WAITING)
    await producer.flush()
    await settle(0)
