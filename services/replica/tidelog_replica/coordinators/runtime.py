"""Coordinators on the partitions of an internal topic that this server leads: a state machine meets its log.

    reading   a new leader reads its log from the begin to where its leader epoch begins, a share at a time, so that
              others are served in between; requests are refused with ``NOT_COORDINATOR`` until then
    serving   a request changes the core, what it changed is appended as records, and the answer waits until the log
              is committed up to there: also that of a request which changed nothing, since it may depend on records
              that are not committed yet. Answers that only a leader may give wait besides for the proof that nobody
              else led when the requests came

A role that ends takes its coordinator with it: requests that wait are answered ``NOT_COORDINATOR`` with an unknown
outcome. All requests may be repeated.

Nothing is appended while the leader would take no produce (too few in sync, handing over, a full or stalled disk):
requests that may change something are refused as a produce would be, and what is due is put off."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from math import inf
from typing import ClassVar, Generic, Protocol, TypeVar

from tidelog.batch.format import NewRecord, decode_columns, encode_batch, read_header
from tidelog.errors import CorruptBatch, TidelogError, refuse
from tidelog.types import TopicPartition
from tidelog.wire.messages import Message

from tidelog_replica.assignment.assignment import Assignment
from tidelog_replica.assignment.leadership import Leadership
from tidelog_replica.context import NodeContext
from tidelog_replica.partition.leader_replica import LeaderReplica
from tidelog_replica.partition.partition import Partition
from tidelog_replica.partition.purgatory import Purgatory

CATCH_UP_FETCH_BYTES = 256 << 10
READ_PAUSE_S = 0.001
UNREADY_PAUSE_S = 0.05
"""A coordinator that could begin, but for what a produce would be refused for, looks again after so long."""
BATCH_BYTES = 256 << 10

Entry = tuple[bytes, bytes | None]
"""Key and value of a record."""


class CoordinatorCore(Protocol):
    """The state machine of one partition, for one leader epoch of it."""

    def handle(self, message: Message, now: float, wall_ms: int) -> Message | TidelogError:
        """The answer, for when what was written is committed."""

    def take_entries(self) -> list[Entry]:
        """What has to be written before anybody is answered, in this order."""

    def on_tick(self, now: float, wall_ms: int) -> None:
        """Everything that is due."""

    def postpone(self, now: float) -> None:
        """Nothing can be written now: what is due is due later."""

    def deadline(self) -> float | None:
        """When ``on_tick`` has something to do."""


class StoredRecords(Protocol):
    """The records of a partition, the last of each key."""

    def add_record(self, key: bytes | None, value: bytes | None) -> None:
        """The next one. Raises ``ValueError``: it is of a newer version."""


C = TypeVar("C", bound=CoordinatorCore)
S = TypeVar("S", bound=StoredRecords)


@dataclass(frozen=True, slots=True)
class Waiting:
    """An answer that waits: for what is written, and (``came``) for the proof that no other replica led then."""

    awaited_end: int
    deadline: float
    source: int
    id: int | None
    answer: Message | TidelogError
    came: float


@dataclass(slots=True)
class CoordinatorShard(Generic[C, S]):
    """A partition of the topic that this server leads."""

    partition: Partition
    leading: LeaderReplica
    read_to: int
    """The log is known up to here."""
    written: int
    """No request is answered before the log is committed up to here."""
    stored: S
    core: C | None = None
    """None: the log is not read yet."""
    broken: str = ""
    """Why it cannot be read."""
    waiting: Purgatory[Waiting] = field(default_factory=Purgatory)
    unproved: list[Waiting] = field(default_factory=list)

    @property
    def is_led(self) -> bool:
        """The role has not ended."""
        return self.partition.leading is self.leading


class CoordinatorRuntime(ABC, Generic[C, S]):
    """The coordinators of one internal topic on this server: one for each partition that is led here."""

    TOPIC: ClassVar[str]

    def __init__(self, context: NodeContext, assignment: Assignment, leadership: Leadership) -> None:
        self._node = context.node
        self._assignment = assignment
        self._leadership = leadership
        self._settings = context.settings
        self._effects = context.effects
        self._timers = context.timers
        self._touch = context.touch
        self._wall_ms = context.wall_ms
        self._led: dict[TopicPartition, CoordinatorShard[C, S]] = {}
        self.topic_id = ""
        """Of the internal topic; "": there is none yet."""
        self.partitions = 0

    # --- of each kind ------------------------------------------------------------------------------------

    @abstractmethod
    def _store(self) -> S:
        """For the records of a log."""

    @abstractmethod
    def _make(self, led: CoordinatorShard[C, S], now: float) -> C:
        """A core that begins with what was stored."""

    @abstractmethod
    def _on_begun(self, led: CoordinatorShard[C, S], core: C) -> None:
        """It has read its log: say so."""

    @abstractmethod
    def _on_unreadable(self, led: CoordinatorShard[C, S]) -> None:
        """It cannot: say so."""

    @abstractmethod
    def _number(self, message: Message) -> int:
        """Which partition's coordinator a request is for."""

    @abstractmethod
    def _changes(self, message: Message) -> bool:
        """The request may change something."""

    def _needs_proof(self, message: Message, wrote: bool) -> bool:
        """Whether only the leader may answer it, and what it wrote does not prove that this server leads."""
        return not self._changes(message)

    def _holds_back(self, led: CoordinatorShard[C, S], message: Message, waiting: Waiting, now: float) -> bool:
        """Whether the subclass keeps the answer, until something else than the log has come so far."""
        return False

    def _on_due(self, led: CoordinatorShard[C, S], core: C, now: float) -> None:
        """Everything that is due, while something can be written."""
        core.on_tick(now, self._wall_ms())

    def _on_moved(self, led: CoordinatorShard[C, S], core: C, now: float) -> None:
        """The log is committed further, perhaps."""

    def _due(self) -> float | None:
        """When something is due that is no coordinator's."""
        return None

    # --- inputs ------------------------------------------------------------------------------------------

    def on_metadata(self, now: float) -> None:
        """The metadata is another."""
        if not self.topic_id:
            for topic in self._assignment.image.topics:
                if topic.name == self.TOPIC:
                    self.topic_id, self.partitions = topic.topic_id, len(topic.partitions)

    def on_settled(self, partition: Partition, now: float) -> None:
        """A partition's input is over: its role may have changed, its log be committed further."""
        if partition.key.topic_id != self.topic_id:
            return
        led = self._led.get(partition.key)
        if led is not None and not led.is_led:
            self._resign(led)
            led = None
        if led is not None:
            self._wake(led)
            if led.core is not None:
                self._on_moved(led, led.core, now)
        elif partition.leading is not None:
            leading = partition.leading
            end = leading.core.epoch_start
            self._led[partition.key] = CoordinatorShard(partition, leading, partition.log.start, end, self._store())
            self._timers.set(self, now + READ_PAUSE_S)

    def on_request(self, source: int, id: int | None, message: Message, now: float) -> None:
        """A request for a coordinator."""
        led = self._find(message, now)
        if isinstance(led, TidelogError):
            self._effects.answer(source, id, led)
            return
        assert led.core is not None
        before = led.written
        answer = led.core.handle(message, now, self._wall_ms())
        self._write(led)
        came = -inf
        if self._needs_proof(message, led.written > before):
            came = now
            led.leading.core.ask_confirmation(now)
        waiting = Waiting(led.written, now + self._settings.ack_timeout_s, source, id, answer, came)
        if not self._holds_back(led, message, waiting, now):
            led.waiting.add(waiting)
        self._touch(led.partition.key)
        self._set_timer(now)

    def on_source_closed(self, source: int) -> None:
        """Forget the requests that came over a link, which is closed."""
        for led in self._led.values():
            led.waiting.drop(source)
            led.unproved = [waiting for waiting in led.unproved if waiting.source != source]

    def on_tick(self, now: float) -> None:
        """Everything that is due."""
        for led in list(self._led.values()):
            if not led.is_led:
                self._resign(led)
                continue
            self._expire(led, now)
            if led.core is None:
                self._read(led, now)
            elif self._refuse_write(led) is not None:
                led.core.postpone(now)
            else:
                self._on_due(led, led.core, now)
                self._write(led)
            self._touch(led.partition.key)
        self._set_timer(now)

    def _set_timer(self, now: float) -> None:
        due = [self._due()]
        for led in self._led.values():
            due += [led.waiting.deadline, *(waiting.deadline for waiting in led.unproved)]
            if led.core is not None:
                due.append(led.core.deadline())
            elif not led.broken:
                due.append(now + (READ_PAUSE_S if led.read_to < led.written else UNREADY_PAUSE_S))
        self._timers.set(self, min((when for when in due if when not in (None, inf)), default=None))

    # --- the coordinator that is asked --------------------------------------------------------------------

    def _find(self, message: Message, now: float) -> CoordinatorShard[C, S] | TidelogError:
        """The coordinator that is asked, if it may take the request on now."""
        if not self.partitions:
            return refuse("NOT_COORDINATOR", f"{self._node} knows of no {self.TOPIC} yet")
        number = self._number(message)
        led = self._led.get(TopicPartition(self.topic_id, number))
        if led is None or not led.is_led:
            return refuse("NOT_COORDINATOR", f"{self._node} does not lead {self.TOPIC}/{number}")
        if (unconfirmed := self._leadership.refuse(led.partition, now)) is not None:
            return refuse("NOT_COORDINATOR", unconfirmed.message)
        if led.core is None:
            why = led.broken or "it has not read its log yet"
            return refuse("NOT_COORDINATOR", f"{self._node} leads {self.TOPIC}/{number}, but {why}")
        refusal = self._refuse_write(led) if self._changes(message) else None
        return refusal or led

    def _refuse_write(self, led: CoordinatorShard[C, S]) -> TidelogError | None:
        """Return the error that forbids an append to the coordinator's log now; None if appends are allowed."""
        try:
            led.leading.admit()
        except TidelogError as error:
            return error
        return None

    # --- the log -----------------------------------------------------------------------------------------

    def _read(self, led: CoordinatorShard[C, S], now: float) -> None:
        """Read the next share of the log. After the last one the coordinator begins."""
        end = led.leading.core.epoch_start
        if led.broken:
            return
        if led.read_to < end:
            led.partition.guard(self._take, led)
        if led.read_to < end or led.broken or self._refuse_write(led) is not None:
            return
        led.core = self._make(led, now)
        led.stored = self._store()
        self._write(led)
        self._on_begun(led, led.core)

    def _take(self, led: CoordinatorShard[C, S]) -> None:
        log, end = led.partition.log, led.leading.core.epoch_start
        led.read_to = max(led.read_to, log.start)
        try:
            for batch in log.read(led.read_to, CATCH_UP_FETCH_BYTES, end):
                columns = decode_columns(batch)
                for key, value in zip(columns.keys, columns.values, strict=True):
                    led.stored.add_record(key, value)
                led.read_to = columns.header.end_offset
        except (CorruptBatch, ValueError) as error:
            led.broken = str(error)
            self._on_unreadable(led)

    def _write(self, led: CoordinatorShard[C, S]) -> None:
        """Append what the core has changed."""
        assert led.core is not None
        entries = led.core.take_entries()
        stamp = self._wall_ms()
        while entries:
            size = count = 0
            while count < len(entries) and (not count or size < BATCH_BYTES):
                size += _size(entries[count])
                count += 1
            records = [NewRecord(value, key, stamp) for key, value in entries[:count]]
            batch = encode_batch(records)
            led.written = led.leading.append(batch, read_header(batch))
            del entries[:count]

    # --- answers -----------------------------------------------------------------------------------------

    def _wake(self, led: CoordinatorShard[C, S]) -> None:
        """Answer the requests whose records are committed and for which it is proved that no other replica led."""
        leader = led.leading.core
        ready = [*led.unproved, *led.waiting.complete(leader.high_watermark)]
        led.unproved = []
        for waiting in ready:
            if waiting.came > leader.fresh_at:
                led.unproved.append(waiting)
            else:
                self._effects.answer(waiting.source, waiting.id, waiting.answer)

    def _expire(self, led: CoordinatorShard[C, S], now: float) -> None:
        late = [*led.waiting.expire(now), *(waiting for waiting in led.unproved if waiting.deadline <= now)]
        led.unproved = [waiting for waiting in led.unproved if waiting.deadline > now]
        self._fail(
            late, "REQUEST_TIMED_OUT", "what the request changed is not committed yet, or who leads not proved"
        )

    def _resign(self, led: CoordinatorShard[C, S]) -> None:
        """The role is over."""
        del self._led[led.partition.key]
        self._fail([*led.waiting.take_all(), *led.unproved], "NOT_COORDINATOR", f"{self._node} leads no more")
        led.unproved = []

    def _fail(self, waiting: list[Waiting], code: str, message: str) -> None:
        for one in waiting:
            self._effects.answer(one.source, one.id, refuse(code, message, unknown_outcome=True))


def _size(entry: Entry) -> int:
    key, value = entry
    return len(key) + len(value or b"")
