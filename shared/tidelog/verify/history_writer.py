"""Writes a history during the run, for ``tidelog verify check``: one JSON object a line. Each line is written to the
file before the operation continues, so the file of a recorder that is killed can be checked.

An operation that may append to a log has two lines: one before the request, one with its result. A read has one line.
The format is described in ``docs/verify.md``, and read by ``history_reader.py``. A recorder serves one process with
any number of tasks, and has one clock.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import trio

from tidelog.client.loop import wall_ms
from tidelog.errors import ConfigError, TidelogError
from tidelog.verify.history import ABORTED, COMMITTED, FAILED, OK, UNKNOWN, Row

VERSION = 1
"""Version of the file format."""
ROWS_PER_LINE = 1000
"""Most records in one line of a drain or a dump."""


class Recorder:
    """A history file that is being written: each method adds its line to the file before it returns. ``path`` must
    not exist yet; ``ConfigError`` is raised if the file cannot be created. ``about`` has settings or notes that
    ``check`` prints. As a context manager the recorder closes the file as complete, unless an error leaves the
    block."""

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
        """(Process, partition) -> number of its last send."""
        self._lives: dict[tuple[str, str], int] = {}
        """(Process, partition) -> number of sends without an acknowledgement; written as ``life`` with later results,
        so that no order is checked across them."""
        self._line(op="history", version=VERSION, wall_ms=wall_ms(), patience_s=patience_s, about=dict(about or {}))

    def now(self) -> float:
        """Return the seconds since the recorder was created. All times in the file are of this clock."""
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
        """Write that a producer is about to send a batch to ``partition`` (``TOPIC/NUMBER``), and return the
        operation, on which the caller records the result. ``values`` are the ``identity`` of each record, unique in
        the history; ``level`` is ``all``, ``leader`` or ``received`` (acks none). Results of one producer and
        partition must be recorded in the order of the sends: no order is checked across a send that was not
        acknowledged."""
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
        """Write an answer to a consumer that wanted offset ``position``: ``rows`` are (offset, identity, leader
        epoch) of its records, ``start`` is the time of the request. ``start_over``: the consumer had lost its
        position."""
        more: dict[str, object] = {"group": group} if group else {}
        if start_over:
            more["start_over"] = True
        entries = [[offset, _text(value), epoch] for offset, value, epoch in rows]
        self._line(
            op="read", process=process, partition=partition, position=position, rows=entries,
            start=start, end=self.now(), **more,
        )  # fmt: skip

    def control(self, partition: str, offsets: Iterable[int]) -> None:
        """Write that these offsets of a partition have no record for readers, because control batches or aborted
        records take them, so that they do not count as a gap."""
        self._line(op="control", partition=partition, offsets=list(offsets))

    def latest(self, process: str, partition: str, offset: int, start: float, *, fresh: bool = True) -> None:
        """Write an answer with the end of a partition's committed records. With ``fresh`` the answer must cover every
        ack before ``start``. If the answer may be stale by some bound, ``start`` is that much earlier than the
        request."""
        self._line(
            op="latest", process=process, partition=partition, offset=offset, start=start, end=self.now(), fresh=fresh
        )

    def commit(self, process: str, group: str, generation: int, positions: Mapping[str, int]) -> Operation:
        """Write that a member is about to commit these positions (partition -> offset) of a group, and return the
        operation, on which the caller records the result."""
        op = self._begin("commit", process=process, group=group, generation=generation, positions=dict(positions))
        return Operation(lambda result, **more: self._end(op, result, **more))

    def transaction(self, label: str, app: str, position: int = -1) -> Transacting:
        """Write that a transaction is about to begin, and return the operation, on which the caller records its
        outcome. The transaction's sends name its ``label``. ``position``: see ``TransactionCall``."""
        op = self._begin("transaction", label=label, app=app)
        return Transacting(self, op, position)

    # --- what is known of the cluster --------------------------------------------------------------------------

    def partition(self, partition: str, start: int = 0) -> None:
        """Write that a partition is to be checked from the offset ``start`` on; records below it are older than the
        recording."""
        self._line(op="partition", partition=partition, start=start)

    def healthy(self, start: float, end: float) -> None:
        """Write a span of time (of ``now``) in which the cluster was able to accept every record, so that sends must
        succeed."""
        self._line(op="healthy", start=start, end=end)

    def add_note(self, text: str) -> None:
        """Write an event, such as a fault, with the present time. ``check`` prints the notes with its findings."""
        self._line(op="note", at=self.now(), text=text)

    def loss(self, partition: str, before_epoch: int, start: int) -> None:
        """Write that the topic's settings allowed records to be lost: those of leader epochs below ``before_epoch``,
        from offset ``start`` on."""
        self._line(op="loss", partition=partition, before_epoch=before_epoch, start=start)

    # --- the end -----------------------------------------------------------------------------------------------

    def drain(self, process: str, partition: str, rows: Sequence[Row], control: Iterable[int] = ()) -> None:
        """Write a part of the records that a fresh consumer reads at the end, and the offsets of control batches in
        it. More than ``ROWS_PER_LINE`` records take several lines."""
        taken = list(control)
        for first in range(0, max(len(rows), 1), ROWS_PER_LINE):
            entries = [[offset, _text(value)] for offset, value in rows[first : first + ROWS_PER_LINE]]
            more = {"control": taken} if taken and not first else {}
            self._line(op="drain", process=process, partition=partition, rows=entries, **more)

    def drained(self, process: str, partition: str, start: int, isolation: str = "committed") -> None:
        """Write that a fresh consumer has read a partition from ``start`` to its end. With isolation ``uncommitted``
        it was shown everything that takes offsets, also aborted records."""
        self._line(op="drained", process=process, partition=partition, start=start, isolation=isolation)

    def dump(self, node: str, partition: str, rows: Sequence[Row]) -> None:
        """Write the records of the log that a replica has on its disk."""
        for first in range(0, len(rows), ROWS_PER_LINE):
            entries = [[offset, _text(value)] for offset, value in rows[first : first + ROWS_PER_LINE]]
            self._line(op="dump", node=node, partition=partition, rows=entries)

    def replicas(
        self, partition: str, compared: Iterable[str], end: int, differ_from: int = -1, text: str = ""
    ) -> None:
        """Write that the logs of the replicas ``compared`` were compared by their hash chains up to the offset
        ``end``. ``differ_from`` is the first offset that differs (-1: the logs are equal), ``text`` describes the
        difference."""
        self._line(
            op="replicas", partition=partition, compared=list(compared), end=end, differ_from=differ_from, text=text
        )

    def group_at(self, group: str, partition: str, offset: int) -> None:
        """Write the committed position that a group has in a partition when the run is over."""
        self._line(op="group_at", group=group, partition=partition, offset=offset)

    def moved(self, app: str, position: int) -> None:
        """Write the position, at the end, of the group that an application's transactions move on."""
        self._line(op="moved", app=app, position=position)

    # --- lines -------------------------------------------------------------------------------------------------

    def _begin(self, op: str, **entry: object) -> int:
        """Write the first line of an operation, and return the id by which the line with its result refers to it."""
        self._id += 1
        self._line(op=op, id=self._id, start=self.now(), **entry)
        return self._id

    def _end(self, op: int, result: str, **more: object) -> None:
        """Write the line with the result of the operation that has the id ``op``."""
        self._line(op="end", id=op, at=self.now(), result=result, **more)

    def _line(self, **entry: Any) -> None:
        """Write one line to the file, and hand it to the operating system, so that it survives the end of this
        process."""
        self._file.write(json.dumps(entry, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
        self._file.flush()  # data in the operating system's cache survives this process


class Operation:
    """An operation in a history that has begun and has no result yet. As a context manager it records its result at
    the end of the block: ``ok`` without an error, ``failed`` after an error that proves that nothing happened,
    ``unknown`` after any other error or a cancellation. Errors are passed on."""

    def __init__(self, write_result: Callable[..., None]) -> None:
        self._write_result = write_result
        self.result = ""
        """The recorded result; "" as long as there is none."""

    def ok(self) -> None:
        """Record that the operation succeeded, unless a result was recorded before."""
        self.settle(OK)

    def error(self, error: BaseException) -> None:
        """Record that the operation ended with an error, unless a result was recorded before: ``failed`` with the
        error's code if the error proves that nothing happened, otherwise ``unknown``."""
        if isinstance(error, TidelogError):
            self.settle(UNKNOWN if error.unknown_outcome else FAILED, error=error.code)
        else:
            self.settle(UNKNOWN)

    def settle(self, result: str, **more: object) -> None:
        """Write the result to the history, with further fields of the line. Does nothing if a result was recorded
        before."""
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
    """A batch that was sent, as an operation in a history. Its result is ``unknown`` unless ``acked`` or ``error`` is
    called."""

    def acked(self, offset: int, leader_epoch: int = -1) -> None:
        """Record that the batch was acknowledged, with the offset of its first record and the leader epoch (-1: not
        known). Does nothing if a result was recorded before."""
        self.settle(OK, offset=offset, epoch=leader_epoch)

    def ok(self) -> None:
        """Record the result ``unknown`` at the end of the context manager's block, unless ``acked`` or ``error`` was
        called in it."""
        self.settle(UNKNOWN)


class Transacting(Operation):
    """A transaction as an operation in a history, which has begun and has no outcome yet. As a context manager it is
    recorded as committed when its block ends without error."""

    def __init__(self, recorder: Recorder, op: int, position: int) -> None:
        super().__init__(self._write_outcome)
        self._recorder = recorder
        self._op = op
        self._position = position

    def moves_from(self, position: int) -> None:
        """Set the position from which the transaction moves the group of its application on by one. It must be called
        before ``asks``, which writes the position."""
        self._position = position

    def asks(self) -> None:
        """Write that the commit is about to be requested: from now on the transaction may be committed."""
        self._recorder._line(op="asks", id=self._op, at=self._recorder.now(), position=self._position)

    def ok(self) -> None:
        """Record that the transaction was committed, unless an outcome was recorded before."""
        self.settle(COMMITTED)

    def aborted(self) -> None:
        """Record that the transaction was certainly aborted, unless an outcome was recorded before."""
        self.settle(ABORTED)

    def error(self, error: BaseException) -> None:
        """Record the outcome of a transaction that ended with an error: aborted if the error is
        ``TRANSACTION_ABORTED``, otherwise unknown. Does nothing if an outcome was recorded before."""
        aborted = isinstance(error, TidelogError) and error.code == "TRANSACTION_ABORTED"
        self.settle(ABORTED if aborted else UNKNOWN)

    def _write_outcome(self, fate: str, **more: object) -> None:
        """Write the line with the transaction's outcome."""
        self._recorder._end(self._op, fate, **more)


def _text(value: bytes) -> str | dict[str, str]:
    """Return the value of a record as it stands in a line: as text, or in base64 if it is not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"b64": b64encode(value).decode()}
