"""The offsets of many logs at once: requests of a gateway to the replica servers that lead them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidelog.wire.messages.base import Message, StableOffset
from tidelog.wire.messages.groups import TopicShare


@dataclass(frozen=True, slots=True)
class LogBounds:
    """Part of ``DescribeLogsAnswer``: the offsets of a partition's log, as its leader knows them."""

    topic_id: str
    partition: int
    log_start: int
    """First offset that the log still has."""
    high_watermark: int
    stable: StableOffset | None = None
    """The last stable offset, if it is below the high watermark."""
    bytes: int = -1
    """Size of the log on the disk of the server that answers, without indexes."""


@dataclass(frozen=True, slots=True)
class DescribeLogsAnswer(Message):
    """Answer to ``DescribeLogs``. Partitions that this server does not lead now are left out, and those of which it
    does not know yet how far earlier leaders have committed."""

    logs: tuple[LogBounds, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribeLogs(Message):
    """Request of a gateway to a replica server: describe the logs of partitions that it leads. The server does not
    prove that it still leads them, so the answer may be older than the request. A server of an earlier release
    answers ``UNSUPPORTED``; the gateway then sends a ``ListOffset`` for each partition."""

    OP: ClassVar[str] = "describe_logs"
    ANSWER: ClassVar[type[Message]] = DescribeLogsAnswer
    shares: tuple[TopicShare, ...] = ()
    """1,000 partitions at most."""
