"""Writes a history down while it happens, for ``tidelog verify check``: one JSON object a line, each written to the
file before what it tells of goes on, so that a recorder that is killed leaves a file that can be judged.

What may append to a log has two lines: one before it is asked for, one with its result. Reads have one. The format is
described in ``docs/verify.md``, and read by ``loading``. One process, any number of tasks, one clock.
"""

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
ROWS_PER_LINE = 1000


class Recorder:
    """A history file that is being written. ``path`` must not exist yet. Raises ``ConfigError`` where it cannot be
    made. ``about``: anything worth knowing later, such as settings; it is printed by ``check``."""

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
        """Seconds since the recorder began: the time of everything in the file."""
        return round(self._clock() - self._began, 6)

    def close(self) -> None:
        """The history is complete."""
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
        self._file.close()  # without the last line: it is not complete

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
        """A batch is about to be sent by that producer to ``TOPIC/PARTITION``. ``values``: the ``identity`` of each
        record; unique in the history. ``level``: ``all``, ``leader`` or ``received`` (acks none). Settle those of one
        producer and partition in the order in which they were sent: of what follows one that was not acknowledged no
        order is demanded."""
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
        """A consumer that wanted ``position`` was shown these (offset, identity, leader epoch)."""
        more: dict[str, object] = {"group": group} if group else {}
        if start_over:
            more["start_over"] = True
        told = [[offset, _text(value), epoch] for offset, value, epoch in rows]
        self._line(
            op="read", process=process, partition=partition, position=position, rows=told,
            start=start, end=self.now(), **more,
        )  # fmt: skip

    def control(self, partition: str, offsets: Iterable[int]) -> None:
        """These offsets were taken by the cluster itself."""
        self._line(op="control", partition=partition, offsets=list(offsets))

    def latest(self, process: str, partition: str, offset: int, start: float, *, fresh: bool = True) -> None:
        """The end of what is committed, as it was told. ``fresh``: all that was acked before ``start`` must be in it;
        for an answer that may be stale by so much, ``start`` is that much earlier than the question."""
        self._line(
            op="latest", process=process, partition=partition, offset=offset, start=start, end=self.now(), fresh=fresh
        )

    def commit(self, process: str, group: str, generation: int, positions: Mapping[str, int]) -> Operation:
        """A member is about to commit these positions, by partition."""
        op = self._begin("commit", process=process, group=group, generation=generation, positions=dict(positions))
        return Operation(lambda result, **more: self._end(op, result, **more))

    def transaction(self, label: str, app: str, position: int = -1) -> Transacting:
        """A transaction is about to begin; sends name its ``label``. ``position``: see ``Transaction``."""
        op = self._begin("transaction", label=label, app=app)
        return Transacting(self, op, position)

    # --- what is known of the cluster --------------------------------------------------------------------------

    def partition(self, partition: str, start: int = 0) -> None:
        """A partition that is judged; what is below ``start`` was there before."""
        self._line(op="partition", partition=partition, start=start)

    def healthy(self, start: float, end: float) -> None:
        """In this span the cluster could have taken every record."""
        self._line(op="healthy", start=start, end=end)

    def note(self, text: str) -> None:
        """Something happened, such as a fault: ``check`` tells it beside what it finds."""
        self._line(op="note", at=self.now(), text=text)

    def deleted(self, partition: str) -> None:
        """The topic was deleted, and everything in it."""
        self._line(op="deleted", partition=partition)

    def loss(self, partition: str, before_epoch: int, start: int) -> None:
        """The topic's settings allowed records to be lost; see ``Loss``."""
        self._line(op="loss", partition=partition, before_epoch=before_epoch, start=start)

    # --- the end -----------------------------------------------------------------------------------------------

    def drain(self, process: str, partition: str, rows: Sequence[Row], control: Iterable[int] = ()) -> None:
        """A part of what a fresh consumer reads at the end, and the offsets in it that the cluster took."""
        taken = list(control)
        for first in range(0, max(len(rows), 1), ROWS_PER_LINE):
            told = [[offset, _text(value)] for offset, value in rows[first : first + ROWS_PER_LINE]]
            more = {"control": taken} if taken and not first else {}
            self._line(op="drain", process=process, partition=partition, rows=told, **more)

    def drained(self, process: str, partition: str, start: int, isolation: str = "committed") -> None:
        """That consumer has read the log from its ``start`` to its end. With isolation ``uncommitted`` it has shown
        everything that takes offsets, also what was aborted."""
        self._line(op="drained", process=process, partition=partition, start=start, isolation=isolation)

    def dump(self, node: str, partition: str, rows: Sequence[Row]) -> None:
        """What a replica holds."""
        for first in range(0, len(rows), ROWS_PER_LINE):
            told = [[offset, _text(value)] for offset, value in rows[first : first + ROWS_PER_LINE]]
            self._line(op="dump", node=node, partition=partition, rows=told)

    def replicas(
        self, partition: str, compared: Iterable[str], end: int, differ_from: int = -1, text: str = ""
    ) -> None:
        """The logs of these replicas were compared by their hash chains up to ``end``; -1: they do not differ."""
        self._line(
            op="replicas", partition=partition, compared=list(compared), end=end, differ_from=differ_from, text=text
        )

    def group_at(self, group: str, partition: str, offset: int) -> None:
        """How far a group has come in the end."""
        self._line(op="group_at", group=group, partition=partition, offset=offset)

    def moved(self, app: str, position: int) -> None:
        """Where the group of an application's transactions stands in the end."""
        self._line(op="moved", app=app, position=position)

    # --- lines -------------------------------------------------------------------------------------------------

    def _begin(self, op: str, **entry: object) -> int:
        self._id += 1
        self._line(op=op, id=self._id, start=self.now(), **entry)
        return self._id

    def _end(self, op: int, result: str, **more: object) -> None:
        self._line(op="end", id=op, at=self.now(), result=result, **more)

    def _line(self, **entry: Any) -> None:
        self._file.write(json.dumps(entry, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
        self._file.flush()  # what the operating system has outlives this process


class Operation:
    """Something that has begun. As a context manager: an error that says that nothing came of it makes it ``failed``,
    any other, also that it was cancelled, ``unknown``; an end without error is ``ok``. Errors go on."""

    def __init__(self, settle: Callable[..., None]) -> None:
        self._settle = settle
        self.result = ""
        """Its result; "" as long as it has none."""

    def ok(self) -> None:
        """It was acknowledged."""
        self.end(OK)

    def error(self, error: BaseException) -> None:
        """It was not."""
        if isinstance(error, TidelogError):
            self.end(UNKNOWN if error.unknown_outcome else FAILED, error=error.code)
        else:
            self.end(UNKNOWN)

    def end(self, result: str, **more: object) -> None:
        """Its result; the first counts."""
        if not self.result:
            self.result = result
            self._settle(result, **more)

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
    """A batch on its way. Without ``acked`` its end is ``unknown``."""

    def acked(self, offset: int, leader_epoch: int = -1) -> None:
        """It was acknowledged; -1: nobody said at which offset."""
        self.end(OK, offset=offset, epoch=leader_epoch)

    def ok(self) -> None:
        """It has come to its end, and nobody has acknowledged it."""
        self.end(UNKNOWN)


class Transacting(Operation):
    """A transaction that is open."""

    def __init__(self, recorder: Recorder, op: int, position: int) -> None:
        super().__init__(self._told)
        self._recorder = recorder
        self._op = op
        self._position = position

    def moves_from(self, position: int) -> None:
        """It moves the group of its application on by one, from here."""
        self._position = position

    def asks(self) -> None:
        """Its commit is about to be asked for: from now on it may be committed."""
        self._recorder._line(op="asks", id=self._op, at=self._recorder.now(), position=self._position)

    def ok(self) -> None:
        """It was committed."""
        self.end(COMMITTED)

    def aborted(self) -> None:
        """It was aborted for certain."""
        self.end(ABORTED)

    def error(self, error: BaseException) -> None:
        """What it ended with. Whether its commit was asked for tells what may have become of it."""
        told = isinstance(error, TidelogError) and error.code == "TRANSACTION_ABORTED"
        self.end(ABORTED if told else UNKNOWN)

    def _told(self, fate: str, **more: object) -> None:
        self._recorder._end(self._op, fate, **more)


def _text(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"b64": b64encode(value).decode()}
