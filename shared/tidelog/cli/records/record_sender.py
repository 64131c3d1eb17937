"""Sends the records of one ``tidelog produce`` command, and counts what became of them."""

from __future__ import annotations

import sys
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from tidelog.cli.output import say
from tidelog.cli.records.record_input import Lines, Parse, open_input, read_all
from tidelog.errors import BrokerError, TidelogError

if TYPE_CHECKING:
    from io import RawIOBase
    from typing import BinaryIO

    from tidelog.cli.progress import Bar
    from tidelog.client.producer import Ack, Pending, Producer

MOST_WAITING = 50_000
"""Most records that are sent and whose outcome was not counted yet."""


@dataclass(slots=True)
class Tally:
    """The counts of one ``produce`` command: records sent, acknowledged and failed, the bytes of their lines, and the
    first error."""

    sent: int = 0
    acked: int = 0
    failed: int = 0
    bytes: int = 0
    first_error: TidelogError | None = None
    stopped: str = ""
    """Where and why the command stopped before the end of its input; "": it did not."""


class RecordSender:
    """Sends the records of inputs to one topic. It stops at a line that is no record: the records before that line
    are sent, the line and everything after it are not. ``rate``: records per second at most.

    With ``expected_offset`` it sends one record at a time: the first is appended at that offset, each other right
    behind the one before, and it stops at the first that fails."""

    def __init__(
        self,
        producer: Producer,
        parse: Parse,
        tally: Tally,
        rate: float | None = None,
        expected_offset: int | None = None,
        bar: Bar | None = None,
    ) -> None:
        self._producer = producer
        self._parse = parse
        self._tally = tally
        self._rate = rate
        self._expected_offset = expected_offset
        self._bar = bar
        self._waiting: deque[Pending] = deque()
        self._began = trio.current_time()

    async def send_files(self, names: tuple[str, ...], as_records: bool) -> None:
        """Send the lines of each file in turn, or with ``as_records`` each file as one record; ``-`` is stdin. The
        records are acknowledged or have failed when it returns. Raises ``ConfigError`` if a file cannot be opened."""
        for name in names:
            if not self._tally.stopped:
                with open_input(name) as stream:
                    where = "standard input" if name == "-" else name
                    if as_records:
                        await self._send_file(stream, where)
                    else:
                        await self._send_lines(stream, "" if len(names) == 1 else f"{where}, ")
        await self._producer.flush()
        await self._settle(0)

    async def converse(self, stream: RawIOBase | BinaryIO) -> None:
        """Send what a person types, a line a record: print a prompt, and of each record where it was appended, or why
        it was not. Returns at the end of the input (Ctrl-D)."""
        source = Lines(stream)
        say(f"Each line becomes a record of {self._producer.topic}; Ctrl-D ends.", err=True)
        _prompt()
        while lines := await source.more():
            for line in lines:
                wrong = await self._submit(line)
                if wrong:
                    say(f"tidelog: not sent: {wrong}", err=True)
                elif self._waiting:
                    await self._tell_outcome()
            _prompt()
        say(err=True)

    async def _tell_outcome(self) -> None:
        """Wait for the record that was sent, and print where it was appended, or why it was not."""
        try:
            ack = await self._first_ack()
        except TidelogError as error:
            say(f"tidelog: {error}", err=True)
        else:
            offset = ack.offset if ack.offset >= 0 else "an offset that is not known"
            say(f"{self._producer.topic}/{ack.partition} @ {offset}", err=True)

    async def _send_file(self, stream: RawIOBase | BinaryIO, name: str) -> None:
        """Send the contents of an input as one record. Sets ``Tally.stopped`` if that cannot be sent."""
        try:
            data = await read_all(stream)
        except ValueError as error:
            self._stop(name, str(error))
        else:
            await self._check(await self._submit(data), name)

    async def _send_lines(self, stream: RawIOBase | BinaryIO, name: str) -> None:
        """Send each line of an input as a record, until its end, or until a line cannot be sent, which sets
        ``Tally.stopped``. ``name`` stands before the number of the line there."""
        source, number = Lines(stream), 0
        while True:
            try:
                lines = await source.more()
            except ValueError as error:
                self._stop(f"{name}line {number + 1}", str(error))
                return
            if not lines:
                return
            for line in lines:
                number += 1
                wrong = await self._submit(line)
                if wrong or self._expected_offset is not None:
                    await self._check(wrong, f"{name}line {number}")
                    if self._tally.stopped:
                        return
            await self._settle(MOST_WAITING)

    async def _check(self, wrong: str, place: str) -> None:
        """Set ``Tally.stopped`` if the record that stands at ``place`` was not sent because of ``wrong``, or if an
        offset is expected and the record fails."""
        if wrong:
            self._stop(place, wrong)
        elif self._expected_offset is not None and self._waiting:
            try:
                await self._first_ack()
            except TidelogError as error:
                self._tally.stopped = f"{place}: {error}; what follows was not sent"
            self._expected_offset += 1

    def _stop(self, place: str, why: str) -> None:
        self._tally.stopped = f"{place}: {why}; neither this nor what follows was sent"

    async def _submit(self, line: bytes) -> str:
        """Give the record of a line to the producer, if the line holds one. Returns why that is impossible; "" if it
        was done."""
        try:
            record = self._parse(line)
            if record is None:
                return ""
            if self._rate:
                await self._settle(MOST_WAITING)
                await trio.sleep_until(self._began + self._tally.sent / self._rate)
            value, key, headers, partition, timestamp_ms = record
            pending = await self._producer.submit(
                value,
                key=key,
                headers=headers,
                partition=partition,
                timestamp_ms=timestamp_ms,
                expected_offset=self._expected_offset,
            )
        except ValueError as error:
            return str(error)
        except BrokerError as error:
            if error.code != "BATCH_TOO_LARGE":
                raise
            return str(error)
        self._waiting.append(pending)
        self._tally.sent += 1
        self._tally.bytes += len(line)
        return ""

    async def _first_ack(self) -> Ack:
        """Wait for the acknowledgement of the record that has waited longest, count it and return it. Raises the
        error of the record, which is counted, too."""
        try:
            ack = await self._waiting.popleft().wait()
        except TidelogError:
            self._tally.failed += 1
            raise
        self._tally.acked += 1
        return ack

    def count_outcomes(self) -> None:
        """Count the records whose outcome is known, without waiting."""
        while self._waiting and self._waiting[0].is_settled:
            try:
                self._waiting.popleft().result()
            except TidelogError as error:
                self._tally.failed += 1
                self._tally.first_error = self._tally.first_error or error
            else:
                self._tally.acked += 1

    async def _settle(self, most: int) -> None:
        """Count the outcomes of records that have one, and wait until at most ``most`` records have none."""
        self.count_outcomes()
        while len(self._waiting) > most:
            with suppress(TidelogError):  # count_outcomes counts it
                await self._waiting[0].wait()
            self.count_outcomes()
        if self._bar is not None:
            self._bar.update(done=self._tally.acked, total=self._tally.sent)


def _prompt() -> None:
    """Print the prompt on stderr."""
    sys.stderr.write("> ")
    sys.stderr.flush()
