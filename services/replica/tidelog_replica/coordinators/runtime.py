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
"""Bytes of the log that a new coordinator reads at a time."""
READ_PAUSE_S = 0.001
"""Pause between two such reads, in which other work is done."""
UNREADY_PAUSE_S = 0.05
"""Pause before a coordinator that has read its log, but may not append yet, tries again to begin."""
BATCH_BYTES = 256 << 10
"""About the most bytes of records in one batch."""

Entry = tuple[bytes, bytes | None]
"""Key and value of a record."""


class CoordinatorCore(Protocol):
    """The state machine of one partition of an internal topic, for one leader epoch. It has no log: the caller writes
    its records."""

    def handle(self, message: Message, now: float, wall_ms: int) -> Message | TidelogError:
        """Handle a request, and return the answer or the error. The caller sends it only when the records of
        ``take_entries`` are committed."""

    def take_entries(self) -> list[Entry]:
        """Return the records that must be written before any request is answered, in order, and forget them."""

    def on_tick(self, now: float, wall_ms: int) -> None:
        """Do everything that is due at ``now`` (seconds), such as time-outs; ``wall_ms`` is the wall clock. The
        records that result are returned by ``take_entries``."""

    def postpone(self, now: float) -> None:
        """Move every due timer ahead, since nothing can be written now."""

    def deadline(self) -> float | None:
        """Return the time at which ``on_tick`` has something to do (seconds); None if nothing is due."""


class StoredRecords(Protocol):
    """The records of a partition of an internal topic while a new coordinator reads the log: the last record of each
    key."""

    def add_record(self, key: bytes | None, value: bytes | None) -> None:
        """Take the log's next record, which replaces an earlier one with its key. Raises ``ValueError`` if the record
        cannot be read, for example since a newer version wrote it."""


C = TypeVar("C", bound=CoordinatorCore)
S = TypeVar("S", bound=StoredRecords)


@dataclass(frozen=True, slots=True)
class Waiting:
    """An answer that waits until the log is committed up to ``awaited_end``, and until it is proved that no other
    replica led at the time ``came`` (-inf: no proof is needed)."""

    awaited_end: int
    deadline: float
    source: int
    id: int | None
    answer: Message | TidelogError
    came: float


@dataclass(slots=True)
class CoordinatorShard(Generic[C, S]):
    """A partition of the internal topic that this server leads, with its coordinator and the answers that wait. It
    lives as long as the leader's role."""

    partition: Partition
    leading: LeaderReplica
    read_to: int
    """The log has been read up to this offset."""
    written: int
    """The end of the coordinator's records in the log; no request is answered before the log is committed up to
    there."""
    stored: S
    """The records that were read, until the coordinator has them."""
    core: C | None = None
    """The coordinator; None until the log is read."""
    broken: str = ""
    """Why the log cannot be read; "" if it can."""
    waiting: Purgatory[Waiting] = field(default_factory=Purgatory)
    unproved: list[Waiting] = field(default_factory=list)
    """Answers whose records are committed, and which wait only for the proof of leadership."""

    @property
    def is_led(self) -> bool:
        """Whether the leader's role for which this shard was made still lasts."""
        return self.partition.leading is self.leading


class CoordinatorRuntime(ABC, Generic[C, S]):
    """The coordinators of one internal topic on this server, one for each partition that is led here. It reads their
    logs, writes their records and sends their answers, and lives as long as the node."""

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
        """Id of the internal topic; "" while the topic does not exist."""
        self.partitions = 0
        """Number of the internal topic's partitions; 0 while the topic does not exist."""

    # --- of each kind ------------------------------------------------------------------------------------

    @abstractmethod
    def _store(self) -> S:
        """Return an empty store for the records of a log."""

    @abstractmethod
    def _make(self, led: CoordinatorShard[C, S], now: float) -> C:
        """Return a coordinator that begins with the shard's stored records."""

    @abstractmethod
    def _on_begun(self, led: CoordinatorShard[C, S], core: C) -> None:
        """Log that the coordinator has read its log and serves from now on."""

    @abstractmethod
    def _on_unreadable(self, led: CoordinatorShard[C, S]) -> None:
        """Log that the coordinator's log cannot be read."""

    @abstractmethod
    def _number(self, message: Message) -> int:
        """Return the number of the partition whose coordinator the request is for."""

    @abstractmethod
    def _changes(self, message: Message) -> bool:
        """Return whether a request of this kind may change something."""

    def _needs_proof(self, message: Message, wrote: bool) -> bool:
        """Return whether only the leader may give the answer, and what the request wrote does not prove that this
        server leads."""
        return not self._changes(message)

    def _holds_back(self, led: CoordinatorShard[C, S], message: Message, waiting: Waiting, now: float) -> bool:
        """Return whether the subclass has kept the answer, to send it later itself, since it waits for more than the
        log."""
        return False

    def _on_due(self, led: CoordinatorShard[C, S], core: C, now: float) -> None:
        """Let a coordinator act on its timers; called only while records can be appended to its log."""
        core.on_tick(now, self._wall_ms())

    def _on_moved(self, led: CoordinatorShard[C, S], core: C, now: float) -> None:
        """Called when the HW of a coordinator's log may have moved, so that more of its records are committed. Does
        nothing here; a subclass may act on it."""

    def _due(self) -> float | None:
        """Return when the subclass has something to do that belongs to no coordinator; None if it has nothing."""
        return None

    # --- inputs ------------------------------------------------------------------------------------------

    def on_metadata(self, now: float) -> None:
        """Take id and number of partitions of the internal topic from the metadata, as soon as the topic exists."""
        if not self.topic_id:
            for topic in self._assignment.image.topics:
                if topic.name == self.TOPIC:
                    self.topic_id, self.partitions = topic.topic_id, len(topic.partitions)

    def on_settled(self, partition: Partition, now: float) -> None:
        """Follow a partition after an input: begin to read its log if this server leads it now, end its coordinator
        if the role is over, and send the answers that were waiting for the HW. Does nothing for partitions of other
        topics."""
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
        """Let the coordinator that the request is for handle it, and append the records that result. The answer is
        sent when the log is committed up to these records, and if needed when leadership is confirmed. Answer with
        the error at once if no coordinator here can take the request."""
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
        """Forget the answers to requests that came over a link that is closed. Their changes stay."""
        for led in self._led.values():
            led.waiting.drop(source)
            led.unproved = [waiting for waiting in led.unproved if waiting.source != source]

    def on_tick(self, now: float) -> None:
        """Do everything that is due: read on in the logs of new coordinators, let coordinators act on their
        deadlines, refuse requests that waited too long, end the coordinators of roles that are over."""
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
        """Set the timer to the earliest deadline of all coordinators and answers."""
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
        """Return the shard whose coordinator can take the request now; otherwise the error: ``NOT_COORDINATOR`` if
        this server does not lead, cannot confirm that, or has not read the log; the refusal of a produce if the
        request may change something and nothing can be appended."""
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
            led.leading.admission.check_append(led.leading.log_end)
        except TidelogError as error:
            return error
        return None

    # --- the log -----------------------------------------------------------------------------------------

    def _read(self, led: CoordinatorShard[C, S], now: float) -> None:
        """Read the next part of the shard's log. After the last one, and as soon as records can be appended, make the
        coordinator. Does nothing for a log that cannot be read."""
        end = led.leading.core.epoch_start
        if led.broken:
            return
        if led.read_to < end:
            led.partition.guard(self._read_records, led)
        if led.read_to < end or led.broken or self._refuse_write(led) is not None:
            return
        led.core = self._make(led, now)
        led.stored = self._store()
        self._write(led)
        self._on_begun(led, led.core)

    def _read_records(self, led: CoordinatorShard[C, S]) -> None:
        """Add the next part of the log to the stored records. If the log cannot be read, record and log why; the
        coordinator never begins then."""
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
        """Append the coordinator's new records to its log, in batches of about ``BATCH_BYTES``."""
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
        """Send the answers whose records are committed and for which it is proved that no other replica led."""
        leader = led.leading.core
        ready = [*led.unproved, *led.waiting.complete(leader.high_watermark)]
        led.unproved = []
        for waiting in ready:
            if waiting.came > leader.fresh_at:
                led.unproved.append(waiting)
            else:
                self._effects.answer(waiting.source, waiting.id, waiting.answer)

    def _expire(self, led: CoordinatorShard[C, S], now: float) -> None:
        """Answer requests that waited too long with ``REQUEST_TIMED_OUT`` and an unknown outcome."""
        late = [*led.waiting.expire(now), *(waiting for waiting in led.unproved if waiting.deadline <= now)]
        led.unproved = [waiting for waiting in led.unproved if waiting.deadline > now]
        self._fail(
            late, "REQUEST_TIMED_OUT", "what the request changed is not committed yet, or who leads not proved"
        )

    def _resign(self, led: CoordinatorShard[C, S]) -> None:
        """Drop the shard, since the leader's role is over. Answers that wait become ``NOT_COORDINATOR`` with an
        unknown outcome."""
        del self._led[led.partition.key]
        self._fail([*led.waiting.take_all(), *led.unproved], "NOT_COORDINATOR", f"{self._node} leads no more")
        led.unproved = []

    def _fail(self, waiting: list[Waiting], code: str, message: str) -> None:
        """Answer the waiting requests with an error and an unknown outcome."""
        for one in waiting:
            self._effects.answer(one.source, one.id, refuse(code, message, unknown_outcome=True))


def _size(entry: Entry) -> int:
    """Return the size of a record's key and value in bytes."""
    key, value = entry
    return len(key) + len(value or b"")
