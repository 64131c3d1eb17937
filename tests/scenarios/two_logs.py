"""Two logs that may have diverged, and the roles of leader and follower over them, without a cluster."""

from __future__ import annotations

from support.log_builders import append_as_leader, open_alone
from support.node_contexts import node_context
from tidelog.batch.format import NewRecord, Record, decode_batch, encode_batch, split
from tidelog.testing.hardware.disk import SimDisk
from tidelog.types import PartitionState, TopicConfig, TopicPartition
from tidelog.wire.messages import FetchedPart, FetchPart
from tidelog_replica.partition.follower_replica import FollowerReplica, Outcome, RetryLater
from tidelog_replica.partition.leader_replica import LeaderReplica
from tidelog_replica.replication.follower_state import FollowerState
from tidelog_replica.replication.leader_state import LeaderState
from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.storage.log import Log

KEY = TopicPartition("t", 0)
CONFIG = TopicConfig()
SMALL = TopicConfig(segment_max_bytes=300)
"""Settings with segments of about three batches."""
PATH = "/log"


def open_log(disk: SimDisk, config: TopicConfig = CONFIG) -> Log:
    """Open the log on a disk."""
    return open_alone(disk, PATH, config)


def append(log: Log, epoch: int, *values: bytes) -> None:
    """Append one batch for each value, as a leader of that epoch does."""
    for value in values:
        append_as_leader(log, encode_batch([NewRecord(value)]), epoch)


def log_of(*records: tuple[int, bytes], disk: SimDisk | None = None, config: TopicConfig = CONFIG) -> Log:
    """Return a log of these (leader epoch, value), one batch each."""
    log = open_log(disk or SimDisk(), config)
    for epoch, value in records:
        append(log, epoch, value)
    return log


def log_of_epochs(epochs: str) -> Log:
    """Return a log with one record per digit: its leader epoch."""
    return log_of(*((int(epoch), f"{epoch}@{offset}".encode()) for offset, epoch in enumerate(epochs)))


def flush(log: Log) -> None:
    """Flush the whole log."""
    pending = log.begin_flush()
    if pending is not None:
        pending.run()
        log.complete_flush(pending)


def headers(log: Log) -> list[tuple[int, int]]:
    """Return base offset and leader epoch of every batch."""
    return [(header.base_offset, header.leader_epoch) for header in log.segments.headers()]


def records(log: Log) -> list[Record]:
    """Return all records of a log, in order."""
    found: list[Record] = []
    offset = log.start
    while offset < log.end:
        for buffer in log.read(offset, 1 << 20):
            for header, batch in split(buffer):
                found += decode_batch(batch)
                offset = header.end_offset
    return found


def values(log: Log) -> list[bytes | None]:
    """Return the values of a log's records."""
    return [record.value for record in records(log)]


def leader_over(log: Log, epoch: int, *, isr: tuple[str, ...] = ("a",)) -> LeaderReplica:
    """Return the leader role of server a over a log."""
    log.assign_epoch(epoch)
    state = PartitionState(("a", "b"), isr, "a", epoch, 10)
    core = LeaderState(
        "a", 1, state, {}, min_insync_replicas=1, max_lag_s=10.0, retry_s=1.0, high_watermark=0,
        log_end=log.end, durable=log.durable, now=0.0,
    )  # fmt: skip
    return LeaderReplica(node_context(), KEY, CONFIG, core, log, log.producers)


def follower_over(log: Log, epoch: int, high_watermark: int = 0) -> FollowerReplica:
    """Return the follower role of server b over a log."""
    core, producers = FollowerState("a", epoch, high_watermark), ProducerState(log.segments.headers())
    return FollowerReplica(node_context("b"), KEY, core, log, producers, guard=lambda action: action())


def take(follower: FollowerReplica, wanted: FetchPart, part: FetchedPart, data: bytes = b"") -> Outcome:
    """Give the follower an answer to its fetch and return the outcome."""
    return follower.on_fetched(wanted, part, memoryview(data), 0.0)


def agree(follower: FollowerReplica, leader: LeaderReplica) -> int:
    """Run the epoch dialogue and return the number of its questions."""
    for asked in range(50):
        question = follower.epoch_request()
        if question is None:
            return asked
        follower.on_epoch_end(question, leader.epoch_end("b", 1, question))
    raise AssertionError("the dialogue never ends")


def catch_up(follower: FollowerReplica, leader: LeaderReplica) -> None:
    """Run the epoch dialogue, then fetch until the follower has everything."""
    agree(follower, leader)
    for _ in range(50):
        wanted = follower.fetch_request()
        part, batches = leader.fetch("b", 1, 1, wanted, 1 << 20, 0.0)
        outcome = take(follower, wanted, part, b"".join(batches))
        assert not isinstance(outcome, RetryLater), outcome
        if not batches and part.diverging_epoch < 0:
            return
    raise AssertionError("the logs never agree")
