"""Producers of the tasks of numbered batches, as a coordinator assigns them.

A program such as Spark runs the tasks of a batch more than once: after a failure, beside a slow attempt, or again
after a restart. Each attempt must send the very same bytes, or leaders cannot tell a copy from other records. So the
coordinator decides what a replay must not choose for itself, once per batch: producer ids, producer epoch and
timestamp.

An application has one block of ``MAX_TASKS`` producer ids; task ``n`` has the ``n``-th of them. Each batch has the
next producer epoch, so that leaders refuse what tasks of an earlier batch still send (as the epoch of a transaction
does in KIP-890). When the epochs of a block are used up, the application gets another block.

What is remembered is one record per application: its latest batch. That is all that a program can replay which
begins a batch only when the one before is done, as Spark does. An earlier batch is refused.

Invariants: (application, batch, task) has one answer, for as long as the batch is the latest and the application is
remembered; two batches, or two tasks, never share (producer id, epoch); producer epochs of an id only rise."""

from __future__ import annotations

from dataclasses import replace

from tidelog.errors import refuse
from tidelog.types import MAX_TASKS
from tidelog.wire.messages import InitTaskProducer

from tidelog_replica.coordinators.transactions.records import ProducerRecord

MAX_EPOCH = (1 << 16) - 1
"""The last producer epoch of a block of producer ids."""
MAX_OWNER = 249
"""Most characters of an owner's name."""


def record_of_batch(known: ProducerRecord | None, asked: InitTaskProducer, wall_ms: int) -> ProducerRecord | None:
    """Return the application's record after the request ``asked`` for a task's producer: ``known`` itself if the
    request is about the latest batch, a new record if it begins the next batch. Return None if the next batch needs a
    new block of producer ids and the request brings none. Raises ``FENCED_PRODUCER`` for an earlier batch, and
    ``INVALID_TRANSACTION`` if the task or the owner's name is out of bounds, or the application belongs to another
    owner."""
    if not 1 <= len(asked.owner) <= MAX_OWNER:
        raise refuse("INVALID_TRANSACTION", f"owner is a name of 1 to {MAX_OWNER} characters")
    if asked.task >= MAX_TASKS:
        raise refuse("INVALID_TRANSACTION", f"task is {asked.task}: a batch has at most {MAX_TASKS} tasks")
    if known is not None and known.owner != asked.owner:
        text = f"application {asked.app} belongs to {known.owner}, not to {asked.owner}: use another name"
        raise refuse("INVALID_TRANSACTION", text, owner=known.owner)
    if known is not None and asked.batch < known.batch:
        text = f"batch {asked.batch} of {asked.app} is over: batch {known.batch} has begun"
        raise refuse("FENCED_PRODUCER", text)
    if known is not None and asked.batch == known.batch:
        return known
    if known is not None and known.epoch < MAX_EPOCH:
        later_ms = max(wall_ms, known.timestamp_ms)
        return replace(known, batch=asked.batch, epoch=known.epoch + 1, timestamp_ms=later_ms)
    if not asked.first_id:
        return None
    later_ms = max(wall_ms, 0 if known is None else known.timestamp_ms)
    return ProducerRecord(asked.owner, asked.batch, asked.first_id, 0, later_ms)
