"""The coordinator of the streams of one partition of ``__streams``, for one leader epoch of the partition.

The bytes of the streams stay in the log; the coordinator has an index of them. All other state is in the log, too:
``take_entries`` returns the changes of each input as records, and the caller answers no request before these are
committed.

    handle     serves a request; a refused one changes nothing
    read       finds the places in the log that a read needs; the caller reads them
    on_tick    deletes streams at the end of their lifetime, and the records of deleted streams, some at a time

The lifetime of a stream begins anew with each append and each read. Reads leave no record: a new coordinator counts
from its beginning.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidelog.errors import TidelogError, refuse
from tidelog.principal_bounds import refuse_excess
from tidelog.sansio.timers import Timers
from tidelog.wire.messages import (
    AppendStream,
    CreateStream,
    DeleteStream,
    DescribeStream,
    Done,
    Message,
    ReadStream,
    StreamData,
    StreamInfo,
)

from tidelog_replica.config import StreamSettings
from tidelog_replica.coordinators.runtime import Entry
from tidelog_replica.coordinators.streams.records import (
    AppendRecord,
    StreamRecord,
    append_entry,
    read_append,
    read_key,
    read_stream,
    stream_entry,
)
from tidelog_replica.coordinators.streams.stream import Stream, media_type
from tidelog_replica.coordinators.tally import Tally

WRITES = (CreateStream, AppendStream, DeleteStream)
KINDS = (*WRITES, ReadStream, DescribeStream)
"""The requests to a stream coordinator."""
CLEAN_RECORDS, CLEAN_PAUSE_S = 500, 0.05
"""Records of deleted streams that are deleted in one step, and the pause between two steps, in seconds."""
POSTPONED_S = 1.0
"""Pause in seconds after which due work is tried again while no records can be appended."""


class StoredStreams:
    """The contents of one partition of ``__streams``, as a new coordinator reads them from the log."""

    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}
        """The streams by path."""
        self.deleted: dict[str, range] = {}
        """Numbers of the appends of deleted streams whose records are still in the log, by stream id."""
        self._by_id: dict[str, Stream] = {}

    def add_record(self, key: bytes | None, value: bytes | None, offset: int = -1) -> None:
        """Apply the next record of the log, which has this offset. Raises ``ValueError`` if it cannot be decoded."""
        kind, name, number = read_key(key)
        if kind == "stream":
            before = self.streams.pop(name, None)
            if before is not None:
                del self._by_id[before.id]
                self._forget(before.id, range(1, before.number))
            if value is not None:
                record = read_stream(value)
                self.streams[name] = self._by_id[record.id] = Stream(name, record, offset)
        elif value is None:
            self._forget(name, range(number + 1, self.deleted.get(name, range(0)).stop))
        elif name in self._by_id:
            self._by_id[name].apply(read_append(value), offset)
        else:  # its stream is deleted, and the record of that was compacted
            rest = self.deleted.get(name)
            self._forget(name, range(number if rest is None else rest.start, number + 1))

    def _forget(self, stream_id: str, numbers: range) -> None:
        if numbers:
            self.deleted[stream_id] = numbers
        else:
            self.deleted.pop(stream_id, None)


@dataclass(frozen=True, slots=True)
class StreamRead:
    """A read whose bytes are still to be fetched: the answer without them, and the log offsets of their records."""

    answer: StreamData
    places: list[int]


class StreamCoordinator:
    """The coordinator of all streams of one partition of ``__streams``, as long as this server leads the partition.
    ``now`` is the caller's clock in seconds, ``wall_ms`` the wall clock in ms since 1970."""

    def __init__(self, settings: StreamSettings, epoch: int, log_end: int) -> None:
        """``epoch``: the leader epoch; ``log_end``: the offset of the first record that will be appended."""
        self._settings = settings
        self._epoch = epoch
        self._next_offset = log_end
        self._next_id = 1
        self._entries: list[Entry] = []
        self._timers: Timers[str] = Timers()
        self._created = Tally()
        self._deleted: dict[str, range] = {}
        self._clean_at: float | None = None
        self._changed: set[str] = set()
        self.streams: dict[str, Stream] = {}
        """The streams by path."""

    def load_records(self, stored: StoredStreams, now: float, wall_ms: int) -> None:
        """Restore all streams from the contents of the log. Each has its whole lifetime again. Called one time,
        before all other methods."""
        self.streams, self._deleted = stored.streams, stored.deleted
        for stream in self.streams.values():
            stream.touched_ms = wall_ms
            self._created.add(stream.principal)
            self._set_timer(stream, now, wall_ms)
        self._clean_soon(now)

    # --- requests --------------------------------------------------------------------------------------------

    def handle(self, message: Message, now: float, wall_ms: int) -> Message | TidelogError:
        """Handle a request other than ``ReadStream``, and return the answer or the error that refuses it."""
        if isinstance(message, CreateStream):
            return self._create(message, now, wall_ms)
        assert isinstance(message, AppendStream | DescribeStream | DeleteStream)
        stream = self._find(message.path, wall_ms)
        if stream is None:
            return _unknown(message.path)
        if isinstance(message, DescribeStream):
            return stream.info()
        if isinstance(message, DeleteStream):
            self._delete(stream, now)
            return Done()
        return self._append(stream, message, wall_ms)

    def read(self, message: ReadStream, wall_ms: int) -> StreamRead | TidelogError:
        """Find what a read needs, and renew the lifetime of the stream. Return the read, or the error that refuses
        it."""
        stream = self._find(message.path, wall_ms)
        if stream is None:
            return _unknown(message.path)
        if message.stream_id and message.stream_id != stream.id:
            text = f"the position is of an earlier stream {message.path}, which was deleted"
            return refuse("UNKNOWN_STREAM", text, stream_id=stream.id)
        position = stream.end if message.position < 0 else message.position
        places = stream.places_from(position, min(message.max_bytes, self._settings.read_bytes))
        if places is None:
            text = f"no append to {message.path} begins at {position}"
            return refuse("OFFSET_OUT_OF_RANGE", text, end=stream.end)
        stream.touched_ms = max(stream.touched_ms, wall_ms)
        answer = StreamData(stream.id, stream.content_type, position, stream.end, stream.closed)
        return StreamRead(answer, places)

    def _create(self, asked: CreateStream, now: float, wall_ms: int) -> StreamInfo | TidelogError:
        known = self._find(asked.path, wall_ms)
        if known is not None:
            same = (
                media_type(known.content_type) == media_type(asked.content_type)
                and (known.ttl_s, known.expires_ms) == (asked.ttl_s, asked.expires_ms)
                and known.closed == asked.closed
            )
            return known.info() if same else refuse("STREAM_EXISTS", f"there is another stream {asked.path}")
        if asked.path in self.streams:  # its lifetime is over
            self._delete(self.streams[asked.path], now)
        if len(self.streams) >= self._settings.max_streams:
            text = f"this partition of __streams has {len(self.streams)} streams: streams.max_streams"
            return refuse("LIMIT_EXCEEDED", text, bound="streams", setting="streams.max_streams")
        mine, most = self._created.of(asked.principal), self._settings.principal_max_streams
        over = refuse_excess(asked.principal, "streams", mine, "streams.principal_max_streams", most)
        if over is not None:
            return over
        record = StreamRecord(
            f"{self._epoch:x}-{self._next_id:x}",
            asked.content_type,
            asked.ttl_s,
            asked.expires_ms,
            asked.principal,
            wall_ms,
            asked.closed,
            _bytes(asked.payload),
        )
        self._next_id += 1
        stream = Stream(asked.path, record, self._put(stream_entry(asked.path, record)))
        self.streams[asked.path] = stream
        self._created.add(asked.principal)
        self._changed.add(asked.path)
        self._set_timer(stream, now, wall_ms)
        return stream.info(created=True)

    def _append(self, stream: Stream, asked: AppendStream, wall_ms: int) -> StreamInfo | TidelogError:
        found = stream.check_append(asked)
        if found is not None:
            return found
        is_new = asked.producer and asked.producer not in stream.producers
        if is_new and len(stream.producers) >= self._settings.max_producers:
            text = f"{stream.path} has {len(stream.producers)} producers: streams.max_producers"
            return refuse("LIMIT_EXCEEDED", text, bound="producers", setting="streams.max_producers")
        record = AppendRecord(
            wall_ms,
            asked.seq,
            asked.producer,
            asked.producer_epoch,
            asked.producer_seq,
            asked.close,
            _bytes(asked.payload),
        )
        stream.apply(record, self._put(append_entry(stream.id, stream.number, record)))
        self._changed.add(stream.path)
        return stream.info(producer=asked.producer)

    def _find(self, path: str, wall_ms: int) -> Stream | None:
        """Return the stream of this path; None if there is none, or its lifetime is over."""
        stream = self.streams.get(path)
        ends = None if stream is None else stream.deleted_at_ms()
        return None if ends is not None and ends <= wall_ms else stream

    def _delete(self, stream: Stream, now: float) -> None:
        """Delete a stream now, and the records of its appends bit by bit."""
        del self.streams[stream.path]
        self._created.drop(stream.principal)
        self._put(stream_entry(stream.path, None))
        self._changed.add(stream.path)
        if stream.number > 1:
            self._deleted[stream.id] = range(1, stream.number)
            self._clean_soon(now)

    def _put(self, entry: Entry) -> int:
        """Add a record to those that the caller is to append. Return the offset that it will have."""
        self._entries.append(entry)
        self._next_offset += 1
        return self._next_offset - 1

    def take_entries(self) -> list[Entry]:
        """Return the records of all changes since the last call, in order, and forget them. The caller must append
        them to the log before it sends any answer."""
        entries, self._entries = self._entries, []
        return entries

    def take_changed(self) -> Iterable[str]:
        """Return the paths of the streams that were created, deleted or appended to since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    # --- time ------------------------------------------------------------------------------------------------

    def _set_timer(self, stream: Stream, now: float, wall_ms: int) -> None:
        """Set the timer to the end of the stream's lifetime, if it has one."""
        ends = stream.deleted_at_ms()
        if ends is not None:
            self._timers.set(stream.path, now + max(ends - wall_ms, 0) / 1000)

    def _clean_soon(self, now: float) -> None:
        if self._deleted and self._clean_at is None:
            self._clean_at = now + CLEAN_PAUSE_S

    def on_tick(self, now: float, wall_ms: int) -> None:
        """Delete the streams whose lifetime is over, and some records of deleted streams."""
        for path in self._timers.pop_due(now):
            stream = self.streams.get(path)
            ends = None if stream is None else stream.deleted_at_ms()
            if stream is not None and ends is not None:
                if ends <= wall_ms:
                    self._delete(stream, now)
                else:
                    self._set_timer(stream, now, wall_ms)
        if self._clean_at is not None and self._clean_at <= now:
            self._clean_at = None
            self._clean()
            self._clean_soon(now)

    def _clean(self) -> None:
        left = CLEAN_RECORDS
        while left and self._deleted:
            stream_id, numbers = next(iter(self._deleted.items()))
            for number in numbers[:left]:
                self._put(append_entry(stream_id, number, None))
            rest = numbers[left:]
            left -= len(numbers) - len(rest)
            if rest:
                self._deleted[stream_id] = rest
            else:
                del self._deleted[stream_id]

    def postpone(self, now: float) -> None:
        """Move everything that is due ``POSTPONED_S`` ahead, since no records can be appended now."""
        for path in self._timers.pop_due(now):
            self._timers.set(path, now + POSTPONED_S)
        if self._clean_at is not None and self._clean_at <= now:
            self._clean_at = now + POSTPONED_S

    def deadline(self) -> float | None:
        """Return the earliest time at which ``on_tick`` has something to do, in seconds; None if there is none."""
        times = [time for time in (self._timers.deadline(), self._clean_at) if time is not None]
        return min(times, default=None)


def _unknown(path: str) -> TidelogError:
    return refuse("UNKNOWN_STREAM", f"there is no stream {path}")


def _bytes(payload: object) -> bytes:
    """Return a payload, one buffer or several, as bytes."""
    return b"".join(map(bytes, payload)) if isinstance(payload, list) else bytes(payload)  # type: ignore[call-overload]
