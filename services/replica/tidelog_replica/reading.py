"""Readers of a partition, in whichever role this server has: committed batches, offsets by name and by time.

What is committed, and how much of it may be told, the role's core says (``Committed``); this class moves the bytes
and keeps who waits for news. Any ``OSError`` is the caller's: the partition goes offline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from tidelog.errors import TidelogError, refuse
from tidelog.wire.messages import ListOffset, OffsetAnswer, Read, ReadAnswer

from tidelog_replica.core.leader import divergence
from tidelog_replica.core.waiters import Waiters
from tidelog_replica.log.log import Log
from tidelog_replica.outbox import Outbox
from tidelog_replica.settings import ReplicaSettings


class Committed(Protocol):
    """What a role's core knows of the committed part of the log."""

    @property
    def leader_epoch(self) -> int:
        """The leader epoch that the role is for."""

    @property
    def high_watermark(self) -> int:
        """Everything below it is committed."""

    @property
    def knows_end(self) -> bool:
        """Nothing committed before this leader epoch is unknown here."""

    def refusal(self, leader_epoch: int) -> TidelogError | None:
        """Whether a request that names this leader epoch may be served; -1 names none."""


@dataclass(frozen=True, slots=True)
class _Reader:
    """A read at the HW that waits for news."""

    end: int
    deadline: float
    source: int
    id: int | None
    read: Read


class Reading:
    """The readers of one partition, for as long as the role lasts."""

    def __init__(self, core: Committed, log: Log, settings: ReplicaSettings, outbox: Outbox) -> None:
        self._core = core
        self._log = log
        self._settings = settings
        self._outbox = outbox
        self._readers: Waiters[_Reader] = Waiters()

    # --- requests ----------------------------------------------------------------------------------------

    def read(self, source: int, id: int | None, read: Read, now: float) -> None:
        """Answer with committed batches, or wait at the HW for news."""
        refusal = self._refusal(read)
        if refusal is not None:
            self._outbox.answer(source, id, refusal)
            return
        no_room = len(self._readers) >= self._settings.partition_max_waiting
        if read.offset < self._core.high_watermark or read.max_wait_ms <= 0 or no_room:
            self._answer(source, id, read)
            return
        wait_s = min(read.max_wait_ms / 1000, self._settings.read_wait_max_s)
        self._readers.add(_Reader(read.offset + 1, now + wait_s, source, id, read))

    def _refusal(self, read: Read) -> TidelogError | None:
        core, log, hw = self._core, self._log, self._core.high_watermark
        refusal = core.refusal(read.leader_epoch)
        if refusal is not None:
            return refusal
        bounds: dict[str, Any] = {"log_start": log.start, "high_watermark": hw, "leader_epoch": core.leader_epoch}
        if read.last_epoch > core.leader_epoch:
            return refuse("UNKNOWN_LEADER_EPOCH", f"the position names leader epoch {read.last_epoch}", **bounds)
        if read.offset < log.start:
            return refuse("OFFSET_OUT_OF_RANGE", f"{read.offset} is below the log start {log.start}", **bounds)
        if read.offset > hw and not core.knows_end:
            return self._end_not_known()
        diverging = divergence(read.offset, read.last_epoch, log.epochs, log.start, log.end)
        if diverging is not None:
            epoch, end = diverging
            return refuse(
                "LOG_TRUNCATED",
                f"epoch {read.last_epoch} does not reach {read.offset}: the logs part at {end} in epoch {epoch}",
                **{**bounds, "leader_epoch": epoch, "end_offset": end},
            )
        if read.offset > hw:
            if read.offset <= log.end:
                return refuse("OFFSET_NOT_AVAILABLE", f"committed up to {hw} only", **bounds)
            return refuse("OFFSET_OUT_OF_RANGE", f"{read.offset} is past the high watermark {hw}", **bounds)
        return None

    def _answer(self, source: int, id: int | None, read: Read) -> None:
        hw, known, payload = self._core.high_watermark, self._core.knows_end, []
        if read.offset < hw:
            max_bytes = max(1, min(read.max_bytes, self._settings.fetch_max_bytes))
            payload = self._log.read(read.offset, max_bytes, hw)
        elif not known:
            self._outbox.answer(source, id, self._end_not_known())
            return
        told = hw if known else -1  # the leader before may have told more
        self._outbox.answer(source, id, ReadAnswer(self._core.leader_epoch, told, self._log.start, payload or b""))

    def _end_not_known(self) -> TidelogError:
        hw = self._core.high_watermark
        text = f"committed up to {hw} at least; not known further yet"
        return refuse("OFFSET_NOT_AVAILABLE", text, high_watermark=hw, leader_epoch=self._core.leader_epoch)

    def list_offset(self, asked: ListOffset) -> OffsetAnswer | TidelogError:
        """An offset by name or by time."""
        log, hw = self._log, self._core.high_watermark
        refusal = self._core.refusal(asked.leader_epoch)
        if refusal is not None:
            return refusal
        if asked.at == "earliest":
            return OffsetAnswer(log.start, log.epoch_at(log.start))
        if asked.at not in ("latest", "timestamp"):
            return refuse("MALFORMED", f"at is earliest, latest or timestamp, not {asked.at!r}")
        if asked.at == "timestamp":
            found = log.offset_for_timestamp(asked.timestamp_ms, hw)
            if found is not None:
                return OffsetAnswer(found[0], log.epoch_at(found[0]), found[1])
        if not self._core.knows_end:
            return self._end_not_known()
        return OffsetAnswer(hw, log.epoch_at(hw))

    # --- the end of every input --------------------------------------------------------------------------

    def settle(self) -> None:
        """Wake the readers whom the HW has reached."""
        for reader in self._readers.wake(self._core.high_watermark):
            self._answer(reader.source, reader.id, reader.read)

    def on_tick(self, now: float) -> None:
        """Answer those who have waited long enough."""
        for reader in self._readers.expire(now):
            self._answer(reader.source, reader.id, reader.read)

    def deadline(self) -> float | None:
        """When ``on_tick`` has something to do; perhaps earlier than that."""
        return self._readers.deadline

    def on_source_closed(self, source: int) -> None:
        """Nobody waits at the other end of this link any more."""
        self._readers.drop(source)

    def resign(self, code: str, message: str) -> None:
        """The role ends: readers go elsewhere."""
        for reader in self._readers.take_all():
            self._outbox.answer(reader.source, reader.id, refuse(code, message))
