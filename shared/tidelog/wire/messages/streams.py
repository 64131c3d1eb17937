"""Streams: requests of a gateway to the coordinator of a stream. Clients ask for them over HTTP
(``docs/streams.md``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidelog.wire.messages.base import Done, Message, Payload, SequencedRequest
from tidelog.wire.messages.metadata import TopicCreated


@dataclass(frozen=True, slots=True)
class StreamInfo(Message):
    """Answer to ``CreateStream``, ``AppendStream`` and ``DescribeStream``: the stream as the request has left it."""

    stream_id: str
    """Id of the stream. A stream that is created again under the same path has another one."""
    end: int
    """Position behind the last byte of the stream."""
    content_type: str
    """Content type with which the stream was created."""
    closed: bool = False
    """The stream is complete: nothing more is appended."""
    ttl_s: int = -1
    """Seconds without a read or an append after which the stream is deleted; -1: never."""
    expires_ms: int = -1
    """Wall clock at which the stream is deleted, in milliseconds; -1: never."""
    created: bool = False
    """The request has created the stream. False: it was there already."""
    duplicate: bool = False
    """The append was carried out before; it changed nothing now."""
    producer_seq: int = -1
    """Highest sequence number that was accepted from the producer of the append; -1: the append named none."""


@dataclass(frozen=True, slots=True)
class CreateStream(Message):
    """Request of a gateway to the coordinator of a stream: create the stream, with the payload as its first bytes. If
    a stream with the same path, content type, lifetime and closure exists, nothing is changed; if it differs in one
    of these, the request is refused with ``STREAM_EXISTS``."""

    OP: ClassVar[str] = "create_stream"
    ANSWER: ClassVar[type[Message]] = StreamInfo
    path: str
    content_type: str
    ttl_s: int = -1
    """As in ``StreamInfo``."""
    expires_ms: int = -1
    """As in ``StreamInfo``."""
    closed: bool = False
    """The stream is complete with this payload."""
    principal: str = ""
    """Principal that the stream counts for, in the bound per principal; "": none."""
    payload: Payload = b""


@dataclass(frozen=True, slots=True)
class AppendStream(Message):
    """Request of a gateway to the coordinator of a stream: append the payload, as a whole or not at all. Without a
    payload it only closes the stream. Refused with ``STREAM_CLOSED``, ``STREAM_CONFLICT``, ``FENCED_PRODUCER`` or
    ``OUT_OF_ORDER`` as ``docs/streams.md`` describes."""

    OP: ClassVar[str] = "append_stream"
    ANSWER: ClassVar[type[Message]] = StreamInfo
    path: str
    content_type: str = ""
    """Content type of the payload. It must be that of the stream, apart from parameters."""
    seq: str = ""
    """Order mark of the writer: it must be greater than that of the append before, in byte order; "": none."""
    producer: str = ""
    """Name of an idempotent producer; "": the append has none."""
    producer_epoch: int = -1
    """Epoch of the producer; -1 without one."""
    producer_seq: int = -1
    """Number of the append, from 0 in each epoch; -1 without a producer."""
    close: bool = False
    """The stream is complete with this append."""
    payload: Payload = b""


@dataclass(frozen=True, slots=True)
class StreamData(Message):
    """Answer to ``ReadStream``: whole appends from the position on. The payload is empty at the end of the stream,
    also after ``max_wait_ms`` without an append."""

    stream_id: str
    content_type: str
    position: int
    """Position of the first byte of the payload."""
    end: int
    """Position behind the last byte of the stream."""
    closed: bool = False
    """The stream is complete."""
    payload: Payload = b""


@dataclass(frozen=True, slots=True)
class ReadStream(Message):
    """Request of a gateway to the coordinator of a stream: read whole appends from a position on. This
    renews the lifetime of the stream."""

    OP: ClassVar[str] = "read_stream"
    ANSWER: ClassVar[type[Message]] = StreamData
    path: str
    position: int = -1
    """Position to read from, at the beginning of an append or at the end; -1: the end. Any other position is refused
    with ``OFFSET_OUT_OF_RANGE``."""
    stream_id: str = ""
    """Id of the stream that the position belongs to; "": any. If the stream has another id, the read is refused with
    ``UNKNOWN_STREAM`` and the detail ``stream_id``."""
    max_bytes: int = 1 << 20
    """About how many bytes the answer may have. It has one append in any case."""
    max_wait_ms: int = 0
    """How long to wait at the end of the stream for an append, in milliseconds."""


@dataclass(frozen=True, slots=True)
class DescribeStream(Message):
    """Request of a gateway to the coordinator of a stream: describe it. This does not renew its lifetime."""

    OP: ClassVar[str] = "describe_stream"
    ANSWER: ClassVar[type[Message]] = StreamInfo
    path: str


@dataclass(frozen=True, slots=True)
class DeleteStream(Message):
    """Request of a gateway to the coordinator of a stream: delete it with its data."""

    OP: ClassVar[str] = "delete_stream"
    ANSWER: ClassVar[type[Message]] = Done
    path: str


@dataclass(frozen=True, slots=True)
class PrepareStreams(SequencedRequest):
    """Request of a gateway to the active controller, before its first request about a stream: create the topic
    ``__streams``. Does nothing if the topic exists; the answer has its id in any case. Refused with
    ``UNSUPPORTED_LEVEL`` below feature level 6."""

    OP: ClassVar[str] = "prepare_streams"
    ANSWER: ClassVar[type[Message]] = TopicCreated
