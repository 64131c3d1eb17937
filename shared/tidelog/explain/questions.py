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

_PARTITION = re.compile(r"(?P<topic>[^/@\s]+)/(?P<partition>[0-9]{1,9})", re.ASCII)
_RECORD = re.compile(rf"{_PARTITION.pattern}@(?P<offset>[0-9]{{1,18}})", re.ASCII)
FORMS = """a question is one of
  TOPIC/PARTITION              a partition: how it came to its present state
  TOPIC/PARTITION@OFFSET       a record
  group GROUP                  the lag of a consumer group"""
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
class GroupQuestion:
    """Why a consumer group lags."""

    group: str


Question = PartitionQuestion | RecordQuestion | GroupQuestion


def parse_question(words: Sequence[str]) -> Question:
    """Parse the words of a question, such as ``orders/0@1234``. Raises ``ConfigError``, whose message lists the
    forms, for words that are none."""
    match list(words):
        case [text] if found := _RECORD.fullmatch(text):
            return RecordQuestion(found["topic"], int(found["partition"]), int(found["offset"]))
        case [text] if found := _PARTITION.fullmatch(text):
            return PartitionQuestion(found["topic"], int(found["partition"]))
        case ["group", group]:
            return GroupQuestion(group)
    raise ConfigError(f"{' '.join(words)!r} is no question: {FORMS}")


async def answer_question(log: Log, question: Question) -> Explanation:
    """Answer a question about a connected cluster. Raises ``UNKNOWN_TOPIC``, ``UNKNOWN_GROUP``, ``FORBIDDEN``, and
    ``ConfigError`` for a ``PartitionQuestion``."""
    match question:
        case RecordQuestion(topic, partition, offset):
            from tidelog.explain.record import why_record

            return await why_record(log, topic, partition, offset)
        case GroupQuestion(group):
            from tidelog.explain.group import why_group

            return await why_group(log, group)
    raise ConfigError("the history of a partition is asked for by log.partitions.history")
