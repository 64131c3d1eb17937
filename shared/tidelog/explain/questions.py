"""The questions of ``tidelog why``: parses the words of a question, and answers it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.errors import ConfigError

if TYPE_CHECKING:
    from tidelog.client.log import Log
    from tidelog.explain.explanation import Explanation
    from tidelog.explain.refusal import Connect

_PARTITION = re.compile(r"(?P<topic>[^/@\s]+)/(?P<partition>[0-9]{1,9})", re.ASCII)
_TOPIC = re.compile(r"[^/@\s]+", re.ASCII)
_RECORD = re.compile(rf"{_PARTITION.pattern}@(?P<offset>[0-9]{{1,18}})", re.ASCII)
_ERROR = re.compile(r"[A-Za-z0-9._-]+-[0-9a-f]{8}-[0-9a-f]+", re.ASCII)
FORMS = """a question is one of
  TOPIC/PARTITION              a partition: how it came to its present state
  TOPIC/PARTITION@OFFSET       a record
  gap TOPIC/PARTITION@OFFSET   why readers get no record from an offset on
  duplicate RECORD RECORD      whether a record is a duplicate of another (TOPIC/PARTITION@OFFSET)
  group GROUP                  the lag of a consumer group
  slow TOPIC[/PARTITION]       which station takes the time of an ack
  ERROR-ID                     a refusal, by the id that the error shows"""
"""The forms of questions, for the error about a text that is none."""


@dataclass(frozen=True, slots=True)
class PartitionQuestion:
    """How a partition came to its present state. ``answer_question`` does not take it: its answer is a history."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class RecordQuestion:
    """Who sent the record at an offset, where it is, and who has read it."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class GapQuestion:
    """Why readers get no record at an offset and the ones behind it."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class DuplicateQuestion:
    """Whether two records are duplicates, and how that came about."""

    first: RecordQuestion
    second: RecordQuestion


@dataclass(frozen=True, slots=True)
class SlowQuestion:
    """Which station takes the time of the acks of a topic, or of one of its partitions (None: of all)."""

    topic: str
    partition: int | None


@dataclass(frozen=True, slots=True)
class GroupQuestion:
    """Why a consumer group lags."""

    group: str


@dataclass(frozen=True, slots=True)
class RefusalQuestion:
    """Which facts decided that a request was refused, by the id of the error."""

    error_id: str


Question = (
    PartitionQuestion
    | RecordQuestion
    | GapQuestion
    | DuplicateQuestion
    | GroupQuestion
    | SlowQuestion
    | RefusalQuestion
)


def parse_question(words: Sequence[str]) -> Question:
    """Parse the words of a question, such as ``orders/0@1234``. Raises ``ConfigError``, whose message lists the
    forms, for words that are none."""
    match list(words):
        case [text] if found := _RECORD.fullmatch(text):
            return RecordQuestion(found["topic"], int(found["partition"]), int(found["offset"]))
        case [text] if found := _PARTITION.fullmatch(text):
            return PartitionQuestion(found["topic"], int(found["partition"]))
        case [text] if _ERROR.fullmatch(text):
            return RefusalQuestion(text)
        case ["gap", text] if found := _RECORD.fullmatch(text):
            return GapQuestion(found["topic"], int(found["partition"]), int(found["offset"]))
        case ["duplicate", one, other] if (a := _RECORD.fullmatch(one)) and (b := _RECORD.fullmatch(other)):
            records = [RecordQuestion(at["topic"], int(at["partition"]), int(at["offset"])) for at in (a, b)]
            return DuplicateQuestion(*records)
        case ["slow", text] if found := _PARTITION.fullmatch(text):
            return SlowQuestion(found["topic"], int(found["partition"]))
        case ["slow", topic] if _TOPIC.fullmatch(topic):
            return SlowQuestion(topic, None)
        case ["group", group]:
            return GroupQuestion(group)
    raise ConfigError(f"{' '.join(words)!r} is no question: {FORMS}")


async def answer_question(log: Log, question: Question, connect: Connect | None = None) -> Explanation:
    """Answer a question about a connected cluster. ``connect`` opens a client of the gateway with a URL: a refusal is
    kept by the gateway that it came from. Raises ``UNKNOWN_TOPIC``, ``UNKNOWN_GROUP``, ``FORBIDDEN``, and
    ``ConfigError`` for a ``PartitionQuestion``."""
    match question:
        case RecordQuestion(topic, partition, offset):
            from tidelog.explain.record import why_record

            return await why_record(log, topic, partition, offset)
        case GapQuestion(topic, partition, offset):
            from tidelog.explain.gap import why_gap

            return await why_gap(log, topic, partition, offset)
        case DuplicateQuestion(first, second):
            from tidelog.explain.duplicate import why_duplicate

            places = [(one.topic, one.partition, one.offset) for one in (first, second)]
            return await why_duplicate(log, *places)
        case SlowQuestion(topic, number):
            from tidelog.explain.slow import why_slow

            return await why_slow(log, topic, number)
        case GroupQuestion(group):
            from tidelog.explain.group import why_group

            return await why_group(log, group)
        case RefusalQuestion(error_id):
            from tidelog.explain.refusal import why_refusal

            return await why_refusal(log, error_id, connect)
    raise ConfigError("the history of a partition is asked for by log.partitions.history")
