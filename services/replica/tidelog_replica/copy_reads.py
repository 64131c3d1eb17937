"""Reading a copy from the disk for a client that compares copies (``tidelog verify replicas``).

The jobs run one at a time for the whole server, beside those that work on logs. Damage that they meet is repaired as
usual (``repair.py``). The client sets the pace.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tidelog.errors import TidelogError, refuse
from tidelog.types import NodeId, TopicPartition
from tidelog.wire.messages import CopyRead, Message, ReadCopy

from tidelog_replica.assignment import Assignment
from tidelog_replica.log.copy_reading import BatchesRead, ReadBatches
from tidelog_replica.log.segment import CorruptLog
from tidelog_replica.outbox import Outbox
from tidelog_replica.partition import Partition

MOST_BYTES = 1 << 20
"""Bytes that are read for one request; a single batch may be larger."""
KEY = TopicPartition("", -2)
"""The key of these jobs: they only read, so they need not wait for those that work on the log."""


class CopyReads:
    """``touch`` tells the owner that a partition's input has to be settled."""

    def __init__(
        self, node: NodeId, assignment: Assignment, outbox: Outbox, touch: Callable[[Partition], None]
    ) -> None:
        self._node = node
        self._assignment = assignment
        self._outbox = outbox
        self._touch = touch

    def read(self, source: int, id: int | None, asked: ReadCopy) -> None:
        """Answer with fingerprints of the batches that are on the disk, once a job has read them."""
        key = TopicPartition(asked.topic_id, asked.partition)
        partition = self._assignment.partitions.get(key)
        if asked.node != self._node:
            self._outbox.answer(source, id, refuse("NOT_REPLICA", f"this is {self._node}, not {asked.node}"))
        elif partition is None or partition.offline is not None:
            self._outbox.answer(
                source, id, self._assignment.refusal(key) if partition is None else partition.refusal()
            )
        elif asked.offset < partition.log.start:
            text = f"{asked.offset} is below the log start {partition.log.start}"
            error = refuse("OFFSET_OUT_OF_RANGE", text, log_start=partition.log.start)
            self._outbox.answer(source, id, error)
        else:
            self._begin(source, id, partition, asked)

    def _begin(self, source: int, id: int | None, partition: Partition, asked: ReadCopy) -> None:
        jobs: list[ReadBatches | None] = []
        length = max(1, min(asked.max_bytes, MOST_BYTES))
        partition.guard(
            lambda: jobs.append(partition.log.begin_reading(asked.offset, partition.high_watermark, length))
        )
        self._touch(partition)
        if not jobs:
            self._outbox.answer(source, id, partition.refusal())
        elif jobs[0] is None:
            self._outbox.answer(source, id, _answer(partition, BatchesRead(asked.offset, 0, b"")))
        else:
            done = partial(self._on_read, source, id, partition, jobs[0])
            self._outbox.jobs.start(KEY, jobs[0], done)

    def _on_read(
        self, source: int, id: int | None, partition: Partition, job: ReadBatches, result: object, now: float
    ) -> None:
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
            partition.meet(result)
            self._touch(partition)
            answer = partition.refusal()
        self._outbox.answer(source, id, answer)


def _answer(partition: Partition, read: BatchesRead) -> CopyRead:
    return CopyRead(
        partition.log.start, partition.high_watermark, read.next_offset, read.size, payload=read.fingerprints
    )
