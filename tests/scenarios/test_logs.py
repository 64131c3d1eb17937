"""Scenarios of two logs that part ways, straight on the roles of leader and follower over real logs."""

from __future__ import annotations

from appending import append_as_leader
from simulation.sim_disk import SimDisk
from tidelog.records import NewRecord, encode_batch, read_header, stamp_prefix
from tidelog.types import PartitionState, TopicConfig, TopicPartition
from tidelog.wire.messages import FetchedPart
from tidelog_replica.core.follower import Follower
from tidelog_replica.core.leader import Leader
from tidelog_replica.core.producers import ProducerState
from tidelog_replica.following import Following
from tidelog_replica.leading import Leading
from tidelog_replica.log.log import Log
from tidelog_replica.outbox import Outbox
from tidelog_replica.settings import ReplicaSettings

KEY = TopicPartition("t", 0)
CONFIG = TopicConfig()


def log_of(*records: tuple[int, bytes]) -> Log:
    """A log of these (leader epoch, value), one batch each."""
    log = Log.open(SimDisk(), "/log", CONFIG)
    for epoch, value in records:
        append_as_leader(log, encode_batch([NewRecord(value)]), epoch)
    return log


def headers(log: Log) -> list[tuple[int, int]]:
    return [(header.base_offset, header.leader_epoch) for header in log.headers()]


def leader_over(log: Log, epoch: int) -> Leading:
    log.assign_epoch(epoch)
    state = PartitionState(("a", "b"), ("a",), "a", epoch, 10)
    core = Leader(
        "a", 1, state, {}, min_insync_replicas=1, max_lag_s=10.0, retry_s=1.0, high_watermark=0,
        log_end=log.end, durable=log.durable, now=0.0,
    )  # fmt: skip
    return Leading(KEY, CONFIG, core, log, ProducerState(log.headers()), ReplicaSettings(), Outbox())


def follower_over(log: Log, epoch: int, high_watermark: int = 0) -> Following:
    return Following(KEY, Follower("a", epoch, high_watermark), log, ProducerState(log.headers()), Outbox())


def catch_up(follower: Following, leader: Leading) -> int:
    """The dialogue, then fetches until nothing is missing; how many questions it took."""
    for asked in range(1, 50):
        question = follower.epoch_request()
        if question is not None:
            follower.on_epoch_end(question, leader.epoch_end("b", 1, question))
            continue
        wanted = follower.fetch_request()
        part, batches = leader.fetch("b", 1, 1, wanted, 1 << 20, 0.0)
        outcome = follower.on_fetched(wanted, part, memoryview(b"".join(batches)))
        assert outcome.what != "failed", outcome
        if not batches and part.diverging_epoch < 0:
            return asked
    raise AssertionError("the logs never agree")


def test_A3_an_answer_names_its_epoch_and_the_diverged_batch_goes():
    """KIP-279: an end offset alone (A's epoch 1 ends at 3, B asks for its epoch 2) would leave b1 on B."""
    a = log_of((1, b"m0"), (1, b"a1"), (1, b"a2"))
    b = log_of((1, b"m0"), (2, b"b1"))
    leader = leader_over(a, 3)
    append_as_leader(a, encode_batch([NewRecord(b"a3")]), 3)
    follower = follower_over(b, 3, high_watermark=1)
    catch_up(follower, leader)
    assert headers(b) == headers(a) == [(0, 1), (1, 1), (2, 1), (3, 3)]
    assert b.read(0, 1 << 20) and b"".join(b.read(0, 1 << 20)) == b"".join(a.read(0, 1 << 20))


def test_B14_an_answer_that_starts_above_the_expected_offset_is_refused():
    log = log_of((1, b"m0"))
    follower = follower_over(log, 1)
    question = follower.epoch_request()
    assert question is not None
    follower.on_epoch_end(question, leader_over(log_of((1, b"m0")), 1).epoch_end("b", 1, question))
    batch = encode_batch([NewRecord(b"m2")])
    stamped = stamp_prefix(2, 1, read_header(batch).crc32c) + bytes(batch[16:])
    wanted = follower.fetch_request()
    part = FetchedPart(*KEY, 1, 3, 0, len(stamped))
    outcome = follower.on_fetched(wanted, part, memoryview(stamped))
    assert outcome.what == "failed"
    assert headers(log) == [(0, 1)]
    assert follower.high_watermark == 0
