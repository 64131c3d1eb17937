"""Coordinators on the partitions of an internal topic that this server leads: state machines, each with its log.

    reading   a new leader reads its log from the log start to the start of its leader epoch, a part at a time, so
              that other requests are served in between; requests to the coordinator are refused with
              ``NOT_COORDINATOR``
    serving   a request changes the coordinator's state, the changes are appended as records, and the answer waits
              until the log is committed up to there. So does the answer to a request that changed nothing, since it
              may depend on records that are not committed yet. Answers that only a leader may give also wait for the
              proof that no other server led when the requests came

When the leader role ends, the coordinator ends with it: waiting requests are answered with ``NOT_COORDINATOR`` and an
unknown outcome. All requests may be repeated.

Nothing is appended while the leader would refuse a produce (too few replicas in sync, a handover, a full or stalled
disk): requests that may change something are refused with the same error, and due timers are postponed.
"""

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
"""Bytes of the log that a new coordinator reads in one step."""
READ_PAUSE_S = 0.001
"""Pause between two steps of reading the log, in seconds. Other work is done in it."""
UNREADY_PAUSE_S = 0.05
"""Pause in seconds before a coordinator that has read its log, but may not append to it yet, tries again to begin."""
BATCH_BYTES = 256 << 10
"""Bytes of keys and values after which a batch of records is closed. The last record may exceed the limit."""

Entry = tuple[bytes, bytes | None]
"""Key and value of a record."""


class CoordinatorCore(Protocol):
    """The state machine of one partition of an internal topic: all groups, or all transactions, that belong to the
    partition. It lives as long as the partition's leader role here. It does no I/O: ``CoordinatorRuntime`` appends
    its records to the log and sends its answers."""

    def handle(self, message: Message, now: float, wall_ms: int) -> Message | TidelogError:
        """Handle a request, and return the answer or the error that refuses the request. What it changes becomes
        records, which ``take_entries`` returns. The caller sends the answer only when these records, and all earlier
        ones, are committed."""

    def take_entries(self) -> list[Entry]:
        """Return the records that result from the requests and ticks since the last call, in order, and forget them.
        The caller must append them to the log before it sends any answer. An empty list if nothing was changed."""

    def on_tick(self, now: float, wall_ms: int) -> None:
        """Do everything that is due at ``now`` (seconds), such as expiring members or transactions. ``wall_ms`` is
        the wall clock in ms since 1970. ``take_entries`` returns the records that result."""

    def postpone(self, now: float) -> None:
        """Move all timers that are due at ``now`` to a later time without acting on them. The caller does this while
        no records can be appended."""

    def deadline(self) -> float | None:
        """Return the earliest time at which ``on_tick`` has something to do, in seconds; None if no timer is set."""


class StoredRecords(Protocol):
    """The contents of one partition of an internal topic, as a new coordinator reads them from the log: the last
    value of each key. The coordinator begins with them."""

    def add_record(self, key: bytes | None, value: bytes | None) -> None:
        """Add the next record of the log. Its value replaces an earlier one of the same key; a value of None deletes
        the key. Raises ``ValueError`` if the record cannot be decoded, for example if a newer version has written
        it."""


C = TypeVar("C", bound=CoordinatorCore)
S = TypeVar("S", bound=StoredRecords)


@dataclass(frozen=True, slots=True)
class Waiting:
    """An answer that is not sent yet. It waits until the log is committed up to offset ``awaited_end`` (exclusive),
    and until it is proved that no other replica led the partition at the time ``came``, in seconds (-inf: no proof is
    needed). At ``deadline`` the request is answered with an error instead."""

    awaited_end: int
    deadline: float
    source: int
    id: int | None
    answer: Message | TidelogError
    came: float


@dataclass(slots=True)
class CoordinatorShard(Generic[C, S]):
    """A partition of the internal topic that this server leads, with its coordinator and the answers that are not
    sent yet. It lives as long as the leader role."""

    partition: Partition
    leading: LeaderReplica
    read_to: int
    """Offset up to which the new coordinator has read the log, exclusive."""
    written: int
    """The log end after the last record that the coordinator has appended. An answer waits until the log is committed
    up to this offset."""
    stored: S
    """What was read from the log. Empty again when the coordinator has been made from it."""
    core: C | None = None
    """The coordinator; None until the whole log is read and records can be appended."""
    broken: str = ""
    """Why the log cannot be read; "" if it can."""
    waiting: Purgatory[Waiting] = field(default_factory=Purgatory)
    unproved: list[Waiting] = field(default_factory=list)
    """Answers whose records are committed, and which wait only for the proof of leadership."""

    @property
    def is_led(self) -> bool:
        """Return whether this server still leads the partition in the role for which this shard was made."""
        return self.partition.leading is self.leading


class CoordinatorRuntime(ABC, Generic[C, S]):
    """The coordinators of one internal topic on this server, one for each partition that is led here. It reads the
    log of each partition, passes requests to its coordinator, appends the resulting records and sends the answers
    once these are committed. It lives as long as the node. A subclass names the topic and supplies what differs
    between groups and transactions."""

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
        """Return an empty store for the records that a new coordinator reads from its log."""

    @abstractmethod
    def _make(self, led: CoordinatorShard[C, S], now: float) -> C:
        """Return a new coordinator, made from the records that the shard has read from its log."""

    @abstractmethod
    def _on_begun(self, led: CoordinatorShard[C, S], core: C) -> None:
        """Log that the coordinator has read its log and answers requests from now on."""

    @abstractmethod
    def _on_unreadable(self, led: CoordinatorShard[C, S]) -> None:
        """Log that the coordinator's log cannot be read, so that the coordinator never begins."""

    @abstractmethod
    def _number(self, message: Message) -> int:
        """Return the number of the partition of the internal topic that the group or transactional id in the request
        belongs to."""

    @abstractmethod
    def _changes(self, message: Message) -> bool:
        """Return whether a request of this kind can change the coordinator's state. Such a request is refused while
        no records can be appended."""

    def _add_record(self, stored: S, key: bytes | None, value: bytes | None, offset: int) -> None:
        """Add the next record of the log, which has this offset, to what was read before. Raises ``ValueError`` if
        the record cannot be decoded. A subclass whose coordinator needs the offset overrides it."""
        stored.add_record(key, value)

    def _needs_proof(self, message: Message, wrote: bool) -> bool:
        """Return whether the answer waits for a proof that no other server led when the request came. ``wrote`` says
        whether the request has appended records; their commit can be such a proof."""
        return not self._changes(message)

    def _holds_back(self, led: CoordinatorShard[C, S], message: Message, waiting: Waiting, now: float) -> bool:
        """Return whether the subclass has stored the answer to send it itself, since the answer waits for more than
        the commit of the log. False: the runtime sends it."""
        return False

    def _on_due(self, led: CoordinatorShard[C, S], core: C, now: float) -> None:
        """Let a coordinator act on the timers that are due at ``now``. It is called only while records can be
        appended to the coordinator's log."""
        core.on_tick(now, self._wall_ms())

    def _on_moved(self, led: CoordinatorShard[C, S], core: C, now: float) -> None:
        """Act on a possible move of the HW of a coordinator's log, which commits more of its records. Does nothing
        here; a subclass may override it."""

    def _due(self) -> float | None:
        """Return the earliest time (seconds) of a timer of the subclass that belongs to no coordinator; None if it
        has none."""
        return None

    # --- inputs ------------------------------------------------------------------------------------------

    def on_metadata(self, now: float) -> None:
        """Look up id and number of partitions of the internal topic in the current metadata, and store them. Does
        nothing if they are known already, or while the topic does not exist."""
        if not self.topic_id:
            for topic in self._assignment.image.topics:
                if topic.name == self.TOPIC:
                    self.topic_id, self.partitions = topic.topic_id, len(topic.partitions)

    def on_settled(self, partition: Partition, now: float) -> None:
        """Follow the state of a partition after an input. If this server has become its leader, begin to read its
        log; if the leader role is over, drop the coordinator and answer its waiting requests with
        ``NOT_COORDINATOR``; otherwise send the answers whose records are committed now. Does nothing for partitions
        of other topics."""
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
        """Pass a request to the coordinator that it is for, and append the records that result. The answer is sent
        when the log is committed up to these records, and, for requests that need it, when leadership is confirmed.
        If no coordinator here can handle the request, answer with the error of ``_find`` at once."""
        led = self._find(message, now)
        if isinstance(led, TidelogError):
            self._effects.answer(source, id, led)
            return
        assert led.core is not None
        before = led.written
        answer = led.core.handle(message, now, self._wall_ms())
        self._write(led)
        self._reply(led, source, id, message, answer, led.written > before, now)

    def _reply(
        self,
        led: CoordinatorShard[C, S],
        source: int,
        id: int | None,
        message: Message,
        answer: Message | TidelogError,
        wrote: bool,
        now: float,
    ) -> None:
        """Send the answer to a request when the log is committed as far as it is written now, and, for requests that
        need it, when leadership is confirmed. ``wrote``: the request has appended records."""
        came = -inf
        if self._needs_proof(message, wrote):
            came = now
            led.leading.core.ask_confirmation(now)
        waiting = Waiting(led.written, now + self._settings.ack_timeout_s, source, id, answer, came)
        if not self._holds_back(led, message, waiting, now):
            led.waiting.add(waiting)
        self._touch(led.partition.key)
        self._set_timer(now)

    def on_source_closed(self, source: int) -> None:
        """Drop the unsent answers to the requests that came over link ``source``, which is closed. What these
        requests changed stays."""
        for led in self._led.values():
            led.waiting.drop(source)
            led.unproved = [waiting for waiting in led.unproved if waiting.source != source]

    def on_tick(self, now: float) -> None:
        """Do the work that is due in each shard, and set the timer again: read on in the log of a new coordinator,
        let the coordinator act on its timers and append what results, answer requests that waited too long with an
        error. Drop the shards whose leader role is over."""
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
        """Set the timer to the earliest deadline of all coordinators, unsent answers and unfinished reads; does
        nothing if there is none."""
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
        """Return the shard whose coordinator can handle the request now; otherwise the error. ``NOT_COORDINATOR``:
        the internal topic does not exist, this server does not lead the partition, cannot confirm that it does, or
        has not read the log. Another code: the request may change something, and the leader accepts no appends
        now."""
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
        """Return the error with which the leader refuses appends to the coordinator's log now; None if it accepts
        them."""
        try:
            led.leading.admission.check_append(led.leading.log_end)
        except TidelogError as error:
            return error
        return None

    # --- the log -----------------------------------------------------------------------------------------

    def _read(self, led: CoordinatorShard[C, S], now: float) -> None:
        """Read the next part of the shard's log. Once all of it is read and records can be appended, make the
        coordinator, which answers requests from now on. Does nothing if the log was found unreadable."""
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
        """Add the records of the next ``CATCH_UP_FETCH_BYTES`` of the log to the shard's stored records. If a batch
        or record cannot be decoded, store the reason in ``led.broken`` and log it; the coordinator then never
        begins."""
        log, end = led.partition.log, led.leading.core.epoch_start
        led.read_to = max(led.read_to, log.start)
        try:
            for batch in log.read(led.read_to, CATCH_UP_FETCH_BYTES, end):
                columns = decode_columns(batch)
                for key, value, offset in zip(columns.keys, columns.values, columns.offsets, strict=True):
                    self._add_record(led.stored, key, value, offset)
                led.read_to = columns.header.end_offset
        except (CorruptBatch, ValueError) as error:
            led.broken = str(error)
            self._on_unreadable(led)

    def _write(self, led: CoordinatorShard[C, S]) -> None:
        """Take the coordinator's new records and append them to its log, in batches of about ``BATCH_BYTES``. Does
        nothing if there are none."""
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
        """Send the answers whose records are committed and whose proof of leadership, if needed, is there. Those that
        lack only the proof go on waiting in ``led.unproved``."""
        leader = led.leading.core
        ready = [*led.unproved, *led.waiting.complete(leader.high_watermark)]
        led.unproved = []
        for waiting in ready:
            if waiting.came > leader.fresh_at:
                led.unproved.append(waiting)
            else:
                self._effects.answer(waiting.source, waiting.id, waiting.answer)

    def _expire(self, led: CoordinatorShard[C, S], now: float) -> None:
        """Answer the requests whose deadline has passed with ``REQUEST_TIMED_OUT``, marked as of unknown outcome."""
        late = [*led.waiting.expire(now), *(waiting for waiting in led.unproved if waiting.deadline <= now)]
        led.unproved = [waiting for waiting in led.unproved if waiting.deadline > now]
        self._fail(
            late, "REQUEST_TIMED_OUT", "what the request changed is not committed yet, or who leads not proved"
        )

    def _resign(self, led: CoordinatorShard[C, S]) -> None:
        """Remove the shard with its coordinator, since the leader role is over. Answer its waiting requests with
        ``NOT_COORDINATOR``, marked as of unknown outcome."""
        del self._led[led.partition.key]
        self._fail([*led.waiting.take_all(), *led.unproved], "NOT_COORDINATOR", f"{self._node} leads no more")
        led.unproved = []

    def _fail(self, waiting: list[Waiting], code: str, message: str) -> None:
        """Answer the waiting requests with the error ``code``, marked as of unknown outcome: their records may still
        be committed."""
        for one in waiting:
            self._effects.answer(one.source, one.id, refuse(code, message, unknown_outcome=True))


def _size(entry: Entry) -> int:
    """Return the size of a record's key and value in bytes."""
    key, value = entry
    return len(key) + len(value or b"")
