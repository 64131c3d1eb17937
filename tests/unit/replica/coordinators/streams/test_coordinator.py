"""The coordinator of streams beside a simple model, over any requests, and read again from its log at any time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog.errors import TidelogError
from tidelog.wire.messages import (
    AppendStream,
    CreateStream,
    DeleteStream,
    DescribeStream,
    Done,
    ReadStream,
    StreamInfo,
)
from tidelog_replica.config import StreamSettings
from tidelog_replica.coordinators.runtime import Entry
from tidelog_replica.coordinators.streams.coordinator import StoredStreams, StreamCoordinator, StreamRead
from tidelog_replica.coordinators.streams.records import data_of

TEXT = "text/plain"
SETTINGS = StreamSettings()


class Log:
    """A coordinator with its log, a list of records by offset. The coordinator can begin anew from the log, also
    after the log was compacted."""

    def __init__(self, settings: StreamSettings = SETTINGS) -> None:
        self.settings = settings
        self.records: dict[int, Entry] = {}
        self.end = 0
        self.epoch = 0
        self.now, self.wall_ms = 0.0, 1_000_000
        self.begin()

    def begin(self) -> None:
        """Let a new leader's coordinator begin."""
        stored = StoredStreams()
        for offset, (key, value) in sorted(self.records.items()):
            stored.add_record(key, value, offset)
        self.epoch += 1
        self.core = StreamCoordinator(self.settings, self.epoch, self.end)
        self.core.load_records(stored, self.now, self.wall_ms)

    def compact(self) -> None:
        """Keep the last record of each key, and no deleted key."""
        last = {key: offset for offset, (key, _) in sorted(self.records.items())}
        self.records = {o: e for o, e in self.records.items() if last[e[0]] == o and e[1] is not None}

    def write(self) -> None:
        for entry in self.core.take_entries():
            self.records[self.end] = entry
            self.end += 1

    def ask(self, message: Any) -> Any:
        answer = self.core.handle(message, self.now, self.wall_ms)
        self.write()
        return answer

    def read(self, path: str, position: int = 0, max_bytes: int = 1 << 20, stream_id: str = "") -> Any:
        """Return the bytes that a read finds, or its error."""
        found = self.core.read(ReadStream(path, position, stream_id, max_bytes), self.wall_ms)
        if isinstance(found, TidelogError):
            return found
        assert isinstance(found, StreamRead)
        parts = []
        for place in found.places:
            value = self.records[place][1]
            assert value is not None
            parts.append(data_of(value))
        return b"".join(parts)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.wall_ms += round(seconds * 1000)
        while (due := self.core.deadline()) is not None and due <= self.now:
            self.core.on_tick(self.now, self.wall_ms)
            self.write()
            if self.core.deadline() == due:
                break


def code(answer: object) -> str:
    return answer.code if isinstance(answer, TidelogError) else ""


@dataclass
class Model:
    """What a stream is to its users."""

    parts: list[bytes] = field(default_factory=list)
    closed: bool = False
    seqs: dict[str, int] = field(default_factory=dict)


PATHS = st.sampled_from(["a", "b/c"])
DATA = st.binary(max_size=5)
ACTS = st.one_of(
    st.tuples(st.just("create"), PATHS, DATA),
    st.tuples(st.just("append"), PATHS, st.binary(min_size=1, max_size=5)),
    st.tuples(st.just("produce"), PATHS, st.sampled_from(["p", "q"]), st.integers(0, 3)),
    st.tuples(st.just("close"), PATHS),
    st.tuples(st.just("delete"), PATHS),
    st.tuples(st.sampled_from(["begin", "compact", "wait"])),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(ACTS, max_size=40))
def test_streams_are_what_the_requests_make_of_them(acts: list[tuple[Any, ...]]) -> None:
    log, model = Log(), dict[str, Model]()
    for kind, *given_ in acts:
        match kind, *given_:
            case "create", path, data:
                answer = log.ask(CreateStream(path, TEXT, payload=data))
                if path in model:
                    assert code(answer) == ("STREAM_EXISTS" if model[path].closed else "")
                else:
                    assert answer.created
                    model[path] = Model([data] if data else [])
            case "append", path, data:
                answer = log.ask(AppendStream(path, TEXT, payload=data))
                expected = "UNKNOWN_STREAM" if path not in model else "STREAM_CLOSED" if model[path].closed else ""
                assert code(answer) == expected
                if not expected:
                    model[path].parts.append(data)
            case "produce", path, name, seq:
                data = f"{name}{seq}".encode()
                answer = log.ask(AppendStream(path, TEXT, "", name, 0, seq, payload=data))
                if path not in model:
                    assert code(answer) == "UNKNOWN_STREAM"
                    continue
                known = model[path].seqs.get(name, -1)
                if seq <= known:
                    assert answer.duplicate
                    assert answer.producer_seq == known
                elif model[path].closed:
                    assert code(answer) == "STREAM_CLOSED"
                elif seq > known + 1:
                    assert code(answer) == "STREAM_CONFLICT"
                else:
                    assert answer.producer_seq == seq
                    model[path].parts.append(data)
                    model[path].seqs[name] = seq
            case "close", path:
                answer = log.ask(AppendStream(path, close=True))
                assert code(answer) == ("" if path in model else "UNKNOWN_STREAM")
                if path in model:
                    model[path].closed = True
            case "delete", path:
                answer = log.ask(DeleteStream(path))
                assert answer == Done() if path in model else code(answer) == "UNKNOWN_STREAM"
                model.pop(path, None)
            case ("begin",):
                log.begin()
            case ("compact",):
                log.compact()
            case _:
                log.wait(1.0)
        for path in ("a", "b/c"):
            whole = log.read(path)
            if path not in model:
                assert code(whole) == "UNKNOWN_STREAM"
                continue
            assert whole == b"".join(model[path].parts)
            info = log.ask(DescribeStream(path))
            assert (info.end, info.closed) == (len(whole), model[path].closed)
            position = 0
            for part in model[path].parts:
                assert log.read(path, position, max_bytes=1) == part, "one append in any case"
                position += len(part)
    log.wait(100.0)
    log.compact()
    alive = sum(1 + log.core.streams[path].number - 1 for path in model)
    assert len(log.records) == alive, "nothing is left of deleted streams"


def test_a_read_begins_where_an_append_does() -> None:
    log = Log()
    log.ask(CreateStream("a", TEXT, payload=b"one"))
    log.ask(AppendStream("a", TEXT, payload=b"three"))
    assert log.read("a", 3) == b"three"
    assert log.read("a", 8) == log.read("a", -1) == b""
    assert [code(log.read("a", position)) for position in (1, 4, 9)] == ["OFFSET_OUT_OF_RANGE"] * 3
    assert log.read("a", 0, max_bytes=7) == b"one"
    assert log.read("a", 0, max_bytes=8) == b"onethree"


def test_a_position_in_a_deleted_stream_is_not_one_in_its_successor() -> None:
    log = Log()
    before: StreamInfo = log.ask(CreateStream("a", TEXT, payload=b"one"))
    log.ask(DeleteStream("a"))
    after: StreamInfo = log.ask(CreateStream("a", TEXT, payload=b"two"))
    assert code(log.read("a", 0, stream_id=before.stream_id)) == "UNKNOWN_STREAM"
    assert log.read("a", 0, stream_id=after.stream_id) == b"two"
    log.begin()
    assert log.ask(CreateStream("b", TEXT)).stream_id not in (before.stream_id, after.stream_id)


def test_a_stream_is_deleted_when_nobody_has_used_it_for_its_lifetime() -> None:
    log = Log()
    log.ask(CreateStream("a", TEXT, ttl_s=10))
    log.ask(CreateStream("b", TEXT, expires_ms=log.wall_ms + 15_000))
    log.wait(6)
    assert log.read("a") == b""
    log.wait(6)
    log.ask(DescribeStream("a"))
    log.begin()
    log.wait(5)
    assert log.ask(DescribeStream("a")).ttl_s == 10, "a new coordinator counts from its beginning"
    assert code(log.ask(DescribeStream("b"))) == "UNKNOWN_STREAM"
    log.wait(6)
    assert code(log.ask(AppendStream("a", TEXT, payload=b"x"))) == "UNKNOWN_STREAM"
    log.compact()
    assert not log.records


def test_a_producer_of_an_earlier_epoch_is_fenced_also_at_a_closed_stream() -> None:
    log = Log()
    log.ask(CreateStream("a", TEXT))
    log.ask(AppendStream("a", TEXT, "", "p", 3, 0, payload=b"x"))
    assert code(log.ask(AppendStream("a", TEXT, "", "p", 4, 1, payload=b"x"))) == "MALFORMED"
    log.ask(AppendStream("a", TEXT, "", "p", 4, 0, close=True, payload=b"y"))
    fenced = log.ask(AppendStream("a", TEXT, "", "p", 3, 1, payload=b"z"))
    assert (fenced.code, fenced.detail["epoch"]) == ("FENCED_PRODUCER", 4)
    assert log.read("a") == b"xy"


def test_order_marks_rise_and_types_are_those_of_the_stream() -> None:
    log = Log()
    log.ask(CreateStream("a", "Text/Plain; charset=utf-8"))
    assert code(log.ask(AppendStream("a", TEXT, "b", payload=b"x"))) == ""
    assert code(log.ask(AppendStream("a", TEXT, "a", payload=b"x"))) == "STREAM_CONFLICT"
    log.begin()
    assert code(log.ask(AppendStream("a", TEXT, "b", payload=b"x"))) == "STREAM_CONFLICT"
    assert code(log.ask(AppendStream("a", "text/html", payload=b"x"))) == "STREAM_CONFLICT"


def test_streams_and_producers_are_bounded() -> None:
    log = Log(StreamSettings(max_streams=3, principal_max_streams=2, max_producers=1))
    for path in ("a", "b"):
        log.ask(CreateStream(path, TEXT, principal="alice"))
    assert log.ask(CreateStream("c", TEXT, principal="alice")).detail["setting"] == "streams.principal_max_streams"
    log.ask(CreateStream("c", TEXT, principal="bob"))
    log.begin()
    assert log.ask(CreateStream("d", TEXT, principal="carol")).detail["setting"] == "streams.max_streams"
    log.ask(DeleteStream("a"))
    assert log.ask(CreateStream("d", TEXT, principal="alice")).created
    log.ask(AppendStream("b", TEXT, "", "p", 0, 0, payload=b"x"))
    assert code(log.ask(AppendStream("b", TEXT, "", "q", 0, 0, payload=b"x"))) == "LIMIT_EXCEEDED"


def test_records_of_a_newer_version_are_not_read() -> None:
    stored = StoredStreams()
    for key, value in ((b"\x82fstreama", b"\xa1fformat\x02"), (b"\x81cfoo", None), (b"\xff", None), (None, b"")):
        try:
            stored.add_record(key, value, 0)
        except ValueError:
            continue
        raise AssertionError("it was read")
