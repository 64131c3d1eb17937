"""Reading a copy from the disk for a client that compares copies (``tidelog verify replicas``).

The jobs run one at a time for the whole server, beside those that work on logs. A few requests wait; further ones
are refused with ``OVERLOADED``. A request whose client has given up is not run. Damage that the jobs meet is repaired
as usual (``maintenance/log_repairer.py``). The client sets the pace.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial

from tidelog.errors import TidelogError, refuse
from tidelog.types import TopicPartition
from tidelog.wire.messages import CopyRead, Message, ReadCopy

from tidelog_replica.assignment.assignment import Assignment
from tidelog_replica.context import NodeContext
from tidelog_replica.jobs import READ_COPY
from tidelog_replica.partition.partition import Partition
from tidelog_replica.storage.copy_reader import BatchesRead, ReadBatches
from tidelog_replica.storage.segment import CorruptLog

MOST_BYTES = 1 << 20
"""Most bytes that are read for one request; a single batch may be larger."""
MOST_WAITING = 8
"""Requests that wait besides the one under way. A client has one at a time at each server."""
PATIENCE_S = 5.0
"""How long gateways wait for the answer, in seconds."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A client's request to read a copy whose read has not begun yet. At ``until`` (seconds of the node's clock) the
    gateway has given up waiting for the answer."""

    source: int
    id: int | None
    asked: ReadCopy
    until: float


class CopyReads:
    """The part of a node that reads copies of partitions from the disk for clients that compare copies, whatever the
    role of the copies here. It lives as long as the node."""

    def __init__(self, context: NodeContext, assignment: Assignment) -> None:
        self._node = context.node
        self._assignment = assignment
        self._effects = context.effects
        self._touch = context.touch
        self._waiting: deque[_Waiting] = deque()

    def read(self, source: int, id: int | None, asked: ReadCopy, now: float) -> None:
        """Queue a request for the fingerprints of the batches that a copy has on the disk from an offset on. A job
        reads them, and the answer follows with a later input. Refuse the request with ``OVERLOADED`` if
        ``MOST_WAITING`` requests wait already."""
        if len(self._waiting) >= MOST_WAITING:
            text = f"{MOST_WAITING} reads of copies wait on {self._node}"
            self._effects.answer(source, id, refuse("OVERLOADED", text))
            return
        self._waiting.append(_Waiting(source, id, asked, now + PATIENCE_S))
        self._go_on(now)

    def on_source_closed(self, source: int) -> None:
        """Discard the waiting requests that came over link ``source``, which is closed. A read that is under way runs
        to its end."""
        self._waiting = deque(waiting for waiting in self._waiting if waiting.source != source)

    def _go_on(self, now: float) -> None:
        """Begin the next waiting read, unless one is under way. Requests that have waited for ``PATIENCE_S`` are
        refused with ``REQUEST_TIMED_OUT``."""
        while self._waiting and not self._effects.jobs.busy(READ_COPY):
            waiting = self._waiting.popleft()
            if now < waiting.until:
                self._serve(waiting.source, waiting.id, waiting.asked)
            else:
                text = f"other reads of copies took {self._node} too long"
                self._effects.answer(waiting.source, waiting.id, refuse("REQUEST_TIMED_OUT", text))

    def _serve(self, source: int, id: int | None, asked: ReadCopy) -> None:
        """Begin the read for a request. Answer with an error instead if the request names another server, the
        partition is not open or is offline, or the offset is below the log start."""
        key = TopicPartition(asked.topic_id, asked.partition)
        partition = self._assignment.partitions.get(key)
        if asked.node != self._node:
            self._effects.answer(source, id, refuse("NOT_REPLICA", f"this is {self._node}, not {asked.node}"))
        elif partition is None or partition.offline is not None:
            self._effects.answer(
                source, id, self._assignment.refusal(key) if partition is None else partition.refusal()
            )
        elif asked.offset < partition.log.start:
            text = f"{asked.offset} is below the log start {partition.log.start}"
            error = refuse("OFFSET_OUT_OF_RANGE", text, log_start=partition.log.start)
            self._effects.answer(source, id, error)
        else:
            self._begin(source, id, partition, asked)

    def _begin(self, source: int, id: int | None, partition: Partition, asked: ReadCopy) -> None:
        """Start the job that reads the batches. Answer at once, without batches, if nothing is synced at that offset;
        answer with an error if the log turns out to be damaged, which takes the partition offline."""
        jobs: list[ReadBatches | None] = []
        length = max(1, min(asked.max_bytes, MOST_BYTES))
        partition.guard(
            lambda: jobs.append(partition.log.begin_reading(asked.offset, partition.high_watermark, length))
        )
        self._touch(partition.key)
        if not jobs:
            self._effects.answer(source, id, partition.refusal())
        elif jobs[0] is None:
            self._effects.answer(source, id, _answer(partition, BatchesRead(asked.offset, 0, b"")))
        else:
            done = partial(self._on_read, source, id, partition, jobs[0])
            self._effects.jobs.start(READ_COPY, jobs[0], done)

    def _on_read(
        self, source: int, id: int | None, partition: Partition, job: ReadBatches, result: object, now: float
    ) -> None:
        """Answer the request with the fingerprints that the job has read, and begin the next read. If the job met
        damage, the partition goes offline for repair and the answer is an error. If the damaged segment was cut or
        compacted meanwhile, the answer has no batches, and the client asks again. Another failure to read is answered
        with ``OFFLINE``."""
        answer: Message | TidelogError
        is_open = self._assignment.partitions.get(partition.key) is partition and partition.offline is None
        if isinstance(result, BatchesRead):
            answer = _answer(partition, result)
        elif not is_open:
            answer = self._assignment.refusal(partition.key)
        elif not isinstance(result, CorruptLog):
            answer = refuse("OFFLINE", f"the log on {self._node} cannot be read: {result}")
        elif not partition.log.is_still(job.target, job.generation):
            answer = _answer(partition, BatchesRead(job.offset, 0, b""))  # it was cut or compacted meanwhile
        else:
            partition.on_damage(result)
            self._touch(partition.key)
            answer = partition.refusal()
        self._effects.answer(source, id, answer)
        self._go_on(now)


def _answer(partition: Partition, read: BatchesRead) -> CopyRead:
    """Return the answer to a client with the fingerprints that were read, and the log start and HW of the copy."""
    return CopyRead(
        partition.log.start, partition.high_watermark, read.next_offset, read.size, payload=read.fingerprints
    )
