"""What a task of a write has and produces: its producer, the limits of topics, and encoded batches. Plain objects,
which the driver makes or ships, too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.spark.errors import SourceError
from tidelog.types import MAX_TASKS


class WriteTarget(NamedTuple):
    """A partition of a topic to which a task writes."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class NumberedBatch:
    """An encoded batch of the log with its sequence number, ready to be sent to ``target``. ``count`` is the number
    of its records."""

    target: WriteTarget
    data: bytes
    count: int


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """The producer under which a task writes: all batches of the task carry its id and epoch."""

    id: int
    epoch: int
    timestamp_ms: int
    """The timestamp of the task's records, in milliseconds since 1970, where rows have none of their own."""
    transaction: str = ""
    """Transactional id of the staged transaction that the batches belong to; "": they belong to none."""
    ticket: str = field(default="", repr=False)
    """Proof that the cluster gave the id to this principal, for a connection that has not presented it."""


@dataclass(frozen=True, slots=True)
class Task:
    """The identity of a task of a numbered batch of an application, for which the cluster returns the same producer
    to every attempt. ``app`` is the transactional id of the application, ``owner`` the query that writes the batches,
    ``number`` the task's number in the batch."""

    app: str
    owner: str
    batch: int
    number: int


@dataclass(frozen=True, slots=True)
class Reserved:
    """The producer ids that the driver of a batch write has reserved for its tasks: task ``n`` gets the id ``first_id
    + n``."""

    first_id: int
    timestamp_ms: int
    ticket: str = field(default="", repr=False)
    """Ticket for all of the ids."""

    def of_task(self, task: int) -> TaskIdentity:
        """Return the producer of a task, which is the same for all its attempts. Raises ``TIDELOG_OPTION`` if the
        task's number is not below ``MAX_TASKS``."""
        if task >= MAX_TASKS:
            raise SourceError("TIDELOG_OPTION", f"an idempotent write has at most {MAX_TASKS} tasks: use coalesce()")
        return TaskIdentity(self.first_id + task, 0, self.timestamp_ms, ticket=self.ticket)


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """The limits of a topic that a task needs for encoding: its number of partitions, and the largest batch in
    bytes."""

    partitions: int
    max_batch_bytes: int
