"""Writes a history during the run, for ``tidelog verify check``: one JSON object a line. Each line is written to the
file before the operation continues, so the file of a recorder that is killed can be checked.

An operation that may append to a log has two lines: one before the request, one with its result. A read has one. The
format is described in ``docs/verify.md``, and read by ``history_reader.py``. The recorder serves one process with any
number of tasks, and has one clock."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import trio

from tidelog.client.clock import wall_ms
from tidelog.errors import ConfigError, TidelogError
from tidelog.verify.history import ABORTED, COMMITTED, FAILED, OK, UNKNOWN, Row

VERSION = 1
"""Version of the file format."""
ROWS_PER_LINE = 1000
"""Most records in one line of a drain or a dump."""


class Recorder:
    """A history file that is being written. As a context manager it closes the file as complete, unless an error
    leaves the block. ``path`` must not exist yet; ``ConfigError`` is raised if it cannot be created. ``about`` are
    settings or notes, which ``check`` prints. Every method writes its line before it returns."""

    def __init__(
        self,
        path: Path | str,
        *,
        about: Mapping[str, object] | None = None,
        patience_s: float = 10.0,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        try:
            self._file = Path(path).open("xb")  # noqa: SIM115 (closed by ``close``)
        except OSError as error:
            raise ConfigError(f"{path}: no history can be written there: {error.strerror}") from error
        self._clock = clock
        self._began = clock()
        self._id = 0
        self._numbers: dict[tuple[str, str], int] = {}
        self._lives: dict[tuple[str, str], int] = {}
        self._line(op="history", version=VERSION, wall_ms=wall_ms(), patience_s=patience_s, about=dict(about or {}))

    def now(self) -> float:
        """Return the seconds since the recorder was created; all times in the file are of this clock."""
        return round(self._clock() - self._began, 6)

    def close(self) -> None:
        """Write the line that marks the history as complete, and close the file. Does nothing if the file is
        closed."""
        if not self._file.closed:
            self._line(op="closed", at=self.now())
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        self._file.close()  # without the line ``closed``: the history counts as incomplete

    # --- what clients do ---------------------------------------------------------------------------------------

    def send(
        self,
        process: str,
        partition: str,
        values: Sequence[bytes],
        *,
        level: str = "all",
        idempotent: bool = True,
        expected_offset: int = -1,
        transaction: str = "",
    ) -> Sending:
        """Record that a producer is about to send a batch to ``partition`` (``TOPIC/NUMBER``), and return the
        operation, which records the result. ``values`` are the ``identity`` of each record, unique in the history;
        ``level`` is ``all``, ``leader`` or ``received`` (acks none). Settle the batches of one producer and partition
        in the order in which they were sent: after one that was not acknowledged no order is checked."""
        lane = (process, partition)
        number = self._numbers[lane] = self._numbers.get(lane, -1) + 1
        entry: dict[str, object] = {"number": number, "values": [_text(value) for value in values]}
        if level != "all":
            entry["level"] = level
        if not idempotent:
            entry["idempotent"] = False
        if expected_offset >= 0:
            entry["expected_offset"] = expected_offset
        if transaction:
            entry["transaction"] = transaction
        op = self._begin("send", process=process, partition=partition, **entry)

        def settle(result: str, **more: object) -> None:
            life = self._lives.get(lane, 0)
            if result != OK or level == "received":
                self._lives[lane] = life + 1
            self._end(op, result, **more, **({"life": life} if life else {}))

        return Sending(settle)

    def read(
        self,
        process: str,
        partition: str,
        position: int,
        rows: Iterable[tuple[int, bytes, int]],
        start: float,
        *,
        group: str = "",
        start_over: bool = False,
    ) -> None:
        """Record an answer to a consumer that wanted ``position``: ``rows`` are (offset, identity, leader epoch),
        ``start`` is the time of the request."""
        more: dict[str, object] = {"group": group} if group else {}
        if start_over:
            more["start_over"] = True
        entries = [[offset, _text(value), epoch] for offset, value, epoch in rows]
        self._line(
            op="read", process=process, partition=partition, position=position, rows=entries,
            start=start, end=self.now(), **more,
        )  # fmt: skip

    def control(self, partition: str, offsets: Iterable[int]) -> None:
        """Record that these offsets of a partition are taken by control batches, so that no record is missing
        there."""
        self._line(op="control", partition=partition, offsets=list(offsets))

    def latest(self, process: str, partition: str, offset: int, start: float, *, fresh: bool = True) -> None:
        """Record an answer with the end of the committed records. ``fresh``: the answer must cover every ack before
        ``start``. If the answer may be stale by some bound, ``start`` is that much earlier than the request."""
        self._line(
            op="latest", process=process, partition=partition, offset=offset, start=start, end=self.now(), fresh=fresh
        )

    def commit(self, process: str, group: str, generation: int, positions: Mapping[str, int]) -> Operation:
        """Record that a member is about to commit these positions (partition -> offset), and return the operation,
        which records the result."""
        op = self._begin("commit", process=process, group=group, generation=generation, positions=dict(positions))
        return Operation(lambda result, **more: self._end(op, result, **more))

    def transaction(self, label: str, app: str, position: int = -1) -> Transacting:
        """Record that a transaction is about to begin, and return the operation, which records its outcome; its sends
        name its ``label``. ``position``: see ``TransactionCall``."""
        op = self._begin("transaction", label=label, app=app)
        return Transacting(self, op, position)

    # --- what is known of the cluster --------------------------------------------------------------------------

    def partition(self, partition: str, start: int = 0) -> None:
        """Record that a partition is to be checked, from the offset ``start`` on: records below it are older."""
        self._line(op="partition", partition=partition, start=start)

    def healthy(self, start: float, end: float) -> None:
        """Record a span in which the cluster was able to accept every record; times are of ``now``."""
        self._line(op="healthy", start=start, end=end)

    def add_note(self, text: str) -> None:
        """Record an event, such as a fault, with the present time. ``check`` prints it with its findings."""
        self._line(op="note", at=self.now(), text=text)

    def loss(self, partition: str, before_epoch: int, start: int) -> None:
        """Record that the topic's settings allowed records to be lost; see ``Loss`` for the fields."""
        self._line(op="loss", partition=partition, before_epoch=before_epoch, start=start)

    # --- the end -----------------------------------------------------------------------------------------------

    def drain(self, process: str, partition: str, rows: Sequence[Row], control: Iterable[int] = ()) -> None:
        """Record a part of what a fresh consumer reads at the end, and the offsets of control batches in it. More
        than ``ROWS_PER_LINE`` records take several lines."""
        taken = list(control)
        for first in range(0, max(len(rows), 1), ROWS_PER_LINE):
            entries = [[offset, _text(value)] for offset, value in rows[first : first + ROWS_PER_LINE]]
            more = {"control": taken} if taken and not first else {}
            self._line(op="drain", process=process, partition=partition, rows=entries, **more)

    def drained(self, process: str, partition: str, start: int, isolation: str = "committed") -> None:
        """Record that a fresh consumer has read the log from its ``start`` to its end. With isolation ``uncommitted``
        it was shown everything that takes offsets, also aborted records."""
        self._line(op="drained", process=process, partition=partition, start=start, isolation=isolation)

    def dump(self, node: str, partition: str, rows: Sequence[Row]) -> None:
        """Record the log that a replica has on its disk."""
        for first in range(0, len(rows), ROWS_PER_LINE):
            entries = [[offset, _text(value)] for offset, value in rows[first : first + ROWS_PER_LINE]]
            self._line(op="dump", node=node, partition=partition, rows=entries)

    def replicas(
        self, partition: str, compared: Iterable[str], end: int, differ_from: int = -1, text: str = ""
    ) -> None:
        """Record that the logs of the replicas ``compared`` were compared by their hash chains up to the offset
        ``end``. ``differ_from`` is the first offset that differs (-1: the logs are equal), ``text`` describes the
        difference."""
        self._line(
            op="replicas", partition=partition, compared=list(compared), end=end, differ_from=differ_from, text=text
        )

    def group_at(self, group: str, partition: str, offset: int) -> None:
        """Record the position that a group has in a partition when the run is over."""
        self._line(op="group_at", group=group, partition=partition, offset=offset)

    def moved(self, app: str, position: int) -> None:
        """Record the position, at the end, of the group that an application's transactions move."""
        self._line(op="moved", app=app, position=position)

    # --- lines -------------------------------------------------------------------------------------------------

    def _begin(self, op: str, **entry: object) -> int:
        """Write the first line of an operation, and return the id that its result will name."""
        self._id += 1
        self._line(op=op, id=self._id, start=self.now(), **entry)
        return self._id

    def _end(self, op: int, result: str, **more: object) -> None:
        """Write the line with the result of an operation."""
        self._line(op="end", id=op, at=self.now(), result=result, **more)

    def _line(self, **entry: Any) -> None:
        """Write one line to the file, and flush it to the operating system."""
        self._file.write(json.dumps(entry, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
        self._file.flush()  # data in the operating system's cache survives this process


class Operation:
    """An operation that has begun and has no result yet. As a context manager it settles itself: an error that proves
    that nothing happened makes it ``failed``; any other error, and a cancellation, makes it ``unknown``; an end
    without error is ``ok``. Errors are passed on."""

    def __init__(self, write_result: Callable[..., None]) -> None:
        self._write_result = write_result
        self.result = ""
        """The recorded result; "" as long as there is none."""

    def ok(self) -> None:
        """Record that the operation was acknowledged."""
        self.settle(OK)

    def error(self, error: BaseException) -> None:
        """Record that the operation ended with an error: ``unknown`` if its outcome is not known, otherwise
        ``failed`` with the error's code."""
        if isinstance(error, TidelogError):
            self.settle(UNKNOWN if error.unknown_outcome else FAILED, error=error.code)
        else:
            self.settle(UNKNOWN)

    def settle(self, result: str, **more: object) -> None:
        """Record the result, with further fields of the line. Does nothing if a result was recorded before."""
        if not self.result:
            self.result = result
            self._write_result(result, **more)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.ok()
        else:
            self.error(error)


class Sending(Operation):
    """A batch that was sent. Its result is ``unknown`` unless ``acked`` or ``error`` is called."""

    def acked(self, offset: int, leader_epoch: int = -1) -> None:
        """Record the acknowledgement, with the offset of the first record and the leader epoch; -1: not known."""
        self.settle(OK, offset=offset, epoch=leader_epoch)

    def ok(self) -> None:
        """Record the result ``unknown``: the block has ended, and the batch was not acknowledged."""
        self.settle(UNKNOWN)


class Transacting(Operation):
    """A transaction that has begun and has no outcome yet. As a context manager it counts as committed when its block
    ends without error."""

    def __init__(self, recorder: Recorder, op: int, position: int) -> None:
        super().__init__(self._write_outcome)
        self._recorder = recorder
        self._op = op
        self._position = position

    def moves_from(self, position: int) -> None:
        """Set the position from which the transaction moves the group of its application on by one. Call before
        ``asks``."""
        self._position = position

    def asks(self) -> None:
        """Record that the commit is about to be requested: from now on the transaction may be committed."""
        self._recorder._line(op="asks", id=self._op, at=self._recorder.now(), position=self._position)

    def ok(self) -> None:
        """Record that the transaction was committed."""
        self.settle(COMMITTED)

    def aborted(self) -> None:
        """Record that the transaction was certainly aborted."""
        self.settle(ABORTED)

    def error(self, error: BaseException) -> None:
        """Record the outcome after an error: aborted if the error is ``TRANSACTION_ABORTED``, otherwise unknown."""
        aborted = isinstance(error, TidelogError) and error.code == "TRANSACTION_ABORTED"
        self.settle(ABORTED if aborted else UNKNOWN)

    def _write_outcome(self, fate: str, **more: object) -> None:
        """Write the line with the outcome."""
        self._recorder._end(self._op, fate, **more)


def _text(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"b64": b64encode(value).decode()}
