"""Indexes of a history for the checks: the send of each value, its place in the final log, and what may rightly be
missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeVar

from tidelog.verify.anomalies import Anomaly
from tidelog.verify.history import OK, CommitCall, Latest, Loss, OperationHistory, ReadCall, SendCall

T = TypeVar("T", SendCall, CommitCall)
SHOWN_CHARS = 60
"""Most characters of a value in a finding."""


def show(value: bytes | None) -> str:
    """Return a record's value as text for a finding, shortened to ``SHOWN_CHARS`` characters; "nothing" for None."""
    if value is None:
        return "nothing"
    text = value.decode(errors="backslashreplace")
    return repr(text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "…")


def span(op: SendCall | ReadCall | Latest | CommitCall) -> str:
    """Return start and end of an operation, in seconds, as text for a finding."""
    return f"{op.start:.3f} to {op.end:.3f} s"


def sent(op: SendCall) -> str:
    """Return process, number, times and result of a send as text for a finding."""
    return f"sent by {op.process} as number {op.number}, {span(op)}, {op.result}"


def after(ops: Sequence[T], measure: Callable[[T], int]) -> Iterator[tuple[T, T]]:
    """Yield pairs of an operation and, of all operations that had ended before it began, the one with the greatest
    ``measure``. Operations before which none had ended are left out. The pairs are in the order in which the
    operations began."""
    ends = sorted(ops, key=lambda op: op.end)
    place, highest = 0, None
    for op in sorted(ops, key=lambda op: op.start):
        while place < len(ends) and ends[place].end < op.start:
            if highest is None or measure(ends[place]) > measure(highest):
                highest = ends[place]
            place += 1
        if highest is not None:
            yield op, highest


class Facts:
    """The state of one check: indexes of a history (sends, reads, offsets in the final log), which ``checker.check``
    builds once, and ``found``, the anomalies that the checks have found."""

    def __init__(self, history: OperationHistory) -> None:
        self.history = history
        self.found: list[Anomaly] = []
        self.sends: list[SendCall] = []
        self.reads: list[ReadCall] = []
        self.latest: list[Latest] = []
        self.commits: list[CommitCall] = []
        add: dict[type, Callable[[Any], None]] = {
            SendCall: self.sends.append,
            ReadCall: self.reads.append,
            Latest: self.latest.append,
            CommitCall: self.commits.append,
        }
        for op in history.operations:
            add[type(op)](op)
        self.sent: dict[bytes, SendCall] = {value: op for op in self.sends for value in op.values}
        self.losses: dict[str, list[Loss]] = {}
        for loss in history.losses:
            self.losses.setdefault(loss.partition, []).append(loss)
        self.final = {partition: dict(rows) for partition, rows in history.final.items()}
        self.offsets: dict[bytes, list[int]] = {}
        """Value -> its offsets in the final log."""
        for rows in history.final.values():
            for offset, value in rows:
                self.offsets.setdefault(value, []).append(offset)
        self.dropped = {one.label for one in history.transactions if one.fate == "aborted" or not one.asked}
        """Labels of transactions whose records must never be seen: those that were aborted, or whose commit was not
        requested."""

    @cached_property
    def acked_at(self) -> dict[tuple[str, int], SendCall]:
        """Return the acknowledged sends by place: (partition, offset) -> the send of the record that was acknowledged
        there."""
        placed = [op for op in self.sends if op.result == OK and op.offset >= 0]
        return {(op.partition, op.offset + place): op for op in placed for place in range(len(op.values))}

    def flag(self, kind: str, text: str) -> None:
        """Add an anomaly of this kind (a key of ``KINDS``) to ``found``."""
        self.found.append(Anomaly(kind, text))

    def may_be_lost(self, partition: str, epoch: int, offset: int) -> bool:
        """Return whether a loss that the topic's settings allowed (``Loss``) explains that the record which was
        acknowledged at ``offset`` in leader epoch ``epoch`` is gone."""
        return bool(self.losses) and any(loss.covers(epoch, offset) for loss in self.losses.get(partition, ()))

    @cached_property
    def promised(self) -> list[SendCall]:
        """Return the sends that were acknowledged with ``all`` at a known offset and that no allowed loss may have
        removed: their records must be in the log."""
        return [
            op
            for op in self.sends
            if op.result == OK
            and op.level == "all"
            and op.offset >= 0
            and not (self.losses and self.may_be_lost(op.partition, op.epoch, op.offset))
        ]

    def follows(self, partition: str, wanted: int, offset: int) -> bool:
        """Return whether a reader that wants the offset ``wanted`` may get ``offset`` next: the same offset, or a
        later one if no offset between them has a record. True for every later offset if the partition was not read to
        its end."""
        if offset <= wanted:
            return offset == wanted
        if partition in self.history.undrained:
            return True  # it is not known whether the offsets between have records
        taken = self.history.control.get(partition, ())
        return all(between in taken for between in range(wanted, offset))

    def is_kept(self, partition: str, offset: int) -> bool:
        """Return whether the final log must have a record at this offset: the partition was read to its end, its
        topic was not deleted, and the offset is not below the first one that retention left."""
        history = self.history
        if partition in history.deleted or partition in history.undrained:
            return False
        return offset >= history.retained_from.get(partition, 0)
