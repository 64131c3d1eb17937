"""E. Idempotent producers: a copy is the same bytes, whatever has happened to the log."""

from __future__ import annotations

from collections.abc import Callable

import cbor2
import pytest
from support.log_builders import take_snapshot
from support.replica_network import cluster, code
from tidelog.batch.format import NewRecord, encode_batch
from tidelog.errors import TidelogError, from_info
from tidelog.sansio.effects import Post
from tidelog.testing.clients.producer import Batch
from tidelog.testing.hardware.disk import SimDisk
from tidelog.types import Acks, TopicConfig
from tidelog.verify.history import FAILED, OK
from tidelog.wire.messages import Produced, ProducePart
from tidelog_replica.partition.leader_replica import LeaderReplica
from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.storage.log import CopyStart, Log
from tidelog_replica.storage.producer_snapshots import Snapshots

from scenarios.stage import Stage
from scenarios.two_logs import KEY, PATH, catch_up, flush, follower_over, leader_over, open_log

COMPACTED = TopicConfig(segment_max_bytes=300, cleanup="compact")
SMALL = TopicConfig(segment_max_bytes=300)
COUNT = 12
FIRST, SECOND, OTHER = 7, 8, 9
"""Producer ids."""


def batch(producer: int, sequence: int, value: bytes = b"") -> bytes:
    """Return a batch with one record of a producer; each record changes the same key."""
    record = NewRecord(value or b"%d/%d" % (producer, sequence), b"key", 1000)
    return encode_batch([record], producer_id=producer, base_sequence=sequence)


def send(leading: LeaderReplica, data: bytes) -> tuple[int, bool] | TidelogError:
    """Produce a batch; returns its offset and whether it is a copy, or the code of its refusal."""
    part = ProducePart(1, *KEY, Acks.NONE, 0, len(data), leading.core.leader_epoch)
    leading.produce(1, part, data, 0.0)
    leading.write(0.0)
    take_snapshot(leading._log)
    (ack,) = [ack for post in leading._effects.drain() if isinstance(post, Post) for ack in acks_of(post)]
    return (ack.offset, ack.duplicate) if ack.error is None else from_info(ack.error)


def acks_of(post: Post) -> tuple[object, ...]:
    return post.message.acks if isinstance(post.message, Produced) else ()


def filled(disk: SimDisk, config: TopicConfig) -> Log:
    """Fill a log: the first batch is of the second producer, then come those of another; the first producer's last
    batch is the one before the end."""
    log = open_log(disk, config)
    leading = leader_over(log, 1)
    for number, data in enumerate((batch(FIRST, 0), *(batch(OTHER, n) for n in range(COUNT)), batch(SECOND, 0))):
        assert send(leading, data) == (number, False)
    flush(log)
    return log


def is_kept(log: Log) -> None:
    """Check that the next leader over this log takes the same bytes for a copy, refuses other bytes, and writes
    neither."""
    leading, end = leader_over(log, 9), log.end
    for producer, offset in ((FIRST, 0), (SECOND, COUNT + 1)):
        assert send(leading, batch(producer, 0)) == (offset, True)
        refused = send(leading, batch(producer, 0, b"other"))
        assert isinstance(refused, TidelogError)
        assert (refused.code, refused.unknown_outcome, refused.retriable) == ("SEQUENCE_CONFLICT", False, False)
    assert log.end == end


def test_E1_a_retry_at_the_new_leader_leaves_one_copy() -> None:
    net = cluster()
    first = net.send("r1", b"a", producer_id=5, base_sequence=0)
    net.lead("r2", "r1 r2 r3")
    second = net.send("r2", b"a", producer_id=5, base_sequence=0)
    assert net.acks[second].duplicate
    assert net.acks[second].offset == net.acks[first].offset
    assert net.acks[second].leader_epoch == 0
    assert net.values("r2") == [b"a"]
    gap = net.send("r2", b"c", producer_id=5, base_sequence=2)
    assert code(net.acks[gap]) == "OUT_OF_ORDER_SEQUENCE"


def test_E14_two_producers_that_were_given_one_id_lose_nothing_that_is_acked() -> None:
    """Both begin at sequence 0, as after metadata that went back gave ids a second time; and again after a change of
    the leader."""
    stage, sent = Stage(min_insync_replicas="2"), dict[str, list[Batch]]()
    for by in ("one", "two"):
        sent[by] = [stage.send(b"%s %d" % (by.encode(), n), by=by, first_id=1 << 40) for n in range(2)]
        stage.until(lambda by=by: all(each.result for each in sent[by]))  # type: ignore[misc]
    assert [each.result for each in sent["one"]] == [OK, OK]
    assert sent["two"][0].result == FAILED and sent["two"][0].errors == ["SEQUENCE_CONFLICT"]
    stage.kill(stage.first)
    stage.until(lambda: stage.leader in stage.others and stage.leads(stage.leader))
    sent["two"].append(stage.put(b"two again", by="two"))
    stage.restart(stage.first)
    stage.settle()
    acked = [value for batches in sent.values() for each in batches if each.result == OK for value in each.values]
    assert sorted(stage.read_all()) == sorted(acked)
    assert len(acked) == 3


def reopen(disk: SimDisk, log: Log, config: TopicConfig) -> Log:
    log.close()
    return open_log(disk, config)


def crash(disk: SimDisk, log: Log, config: TopicConfig) -> Log:
    return open_log(disk, config)


def retire(disk: SimDisk, log: Log, config: TopicConfig) -> Log:
    """Remove the first producer's batch by retention; only a snapshot has it when the log is opened again."""
    assert log.advance_start(COUNT) and log.start > 0
    log.close()
    return open_log(disk, config)


def cut(disk: SimDisk, log: Log, config: TopicConfig) -> Log:
    """Append one more batch and cut it, after retention has moved the log start."""
    assert log.advance_start(COUNT)
    leading = leader_over(log, 2)
    assert send(leading, batch(SECOND, 1)) == (COUNT + 2, False)
    log.truncate(COUNT + 2)
    return log


def copy(disk: SimDisk, log: Log, config: TopicConfig) -> Log:
    """Let a follower begin its copy at the log start, with the producer state that the leader sends."""
    assert log.advance_start(COUNT)
    leading, other = leader_over(log, 2, isr=("a", "b")), open_log(SimDisk(), config)
    start, epoch, chain, state = log.copy_start()
    other.reset(CopyStart(start, epoch, chain, state), ProducerState.from_bytes(state))
    catch_up(follower_over(other, 2), leading)
    assert (other.start, other.end) == (log.start, log.end)
    return other


@pytest.mark.parametrize("history", [reopen, crash, retire, cut, copy])
def test_E15_a_batch_is_compared_with_the_original_whatever_became_of_the_log(
    history: Callable[[SimDisk, Log, TopicConfig], Log],
) -> None:
    disk = SimDisk()
    is_kept(history(disk, filled(disk, SMALL), SMALL))


def forget_crcs(disk: SimDisk) -> None:
    """Rewrite the snapshots as an earlier release did: only the first CBOR item."""
    snapshots = Snapshots(disk, PATH)
    for offset in snapshots.offsets():
        chain = disk.read(f"{PATH}/producers-{offset:020d}")[12:28]
        state = snapshots.read(offset, chain)
        assert state is not None
        snapshots.write(offset, chain, cbor2.dumps(cbor2.loads(state)), sync=True)


@pytest.mark.parametrize("value", [b"", b"other"], ids=["the same bytes", "other bytes"])
def test_E16_a_batch_that_an_earlier_release_remembers_without_crc_is_never_taken_for_a_copy(value: bytes) -> None:
    """Retention has removed the batch, and the snapshot has its sequence only. Another batch that is still in the log
    is compared with it."""
    disk = SimDisk()
    retire(disk, filled(disk, SMALL), SMALL).close()
    forget_crcs(disk)
    log = open_log(disk, SMALL)
    leading, end = leader_over(log, 9), log.end
    refused = send(leading, batch(FIRST, 0, value))
    assert isinstance(refused, TidelogError)
    assert (refused.code, refused.unknown_outcome, refused.retriable) == ("UNVERIFIED_SEQUENCE", True, False)
    found = send(leading, batch(SECOND, 0, value))
    assert found == (COUNT + 1, True) if not value else isinstance(found, TidelogError)
    if isinstance(found, TidelogError):
        assert (found.code, found.unknown_outcome) == ("SEQUENCE_CONFLICT", False)
    assert log.end == end


def compacted(disk: SimDisk, passes: int) -> Log:
    """Return a log in which compaction has emptied the batches of both producers, once or twice, without
    snapshots."""
    log = filled(disk, COMPACTED)
    for number in range(passes):
        leading = leader_over(log, 2 + number)
        for sequence in range(4):
            assert send(leading, batch(OTHER + 1 + number, sequence)) == (log.end - 1, False)
        log.roll()
        flush(log)
        log.compact(log.end, 10_000 * (1 + number))
    sparse = {header.base_offset for header in log.segments.headers() if header.is_sparse}
    assert {0, COUNT + 1} <= sparse
    for offset in log._snapshots.offsets():
        log._snapshots.forget(offset)
    return log


@pytest.mark.parametrize("passes", [1, 2])
def test_E17_of_a_compacted_batch_the_original_counts_when_the_state_is_made_from_the_log(passes: int) -> None:
    disk = SimDisk()
    before = compacted(disk, passes).producers.snapshot()
    log = open_log(disk, COMPACTED)
    assert log.producers.snapshot() == before
    is_kept(log)


@pytest.mark.parametrize("passes", [1, 2])
def test_E17_of_a_compacted_batch_the_original_counts_at_a_follower_that_copies_it(passes: int) -> None:
    """The follower has never had the original; then it leads, and is opened again."""
    log, disk = compacted(SimDisk(), passes), SimDisk()
    other = open_log(disk, COMPACTED)
    catch_up(follower_over(other, 5), leader_over(log, 5, isr=("a", "b")))
    assert other.producers.snapshot() == log.producers.snapshot()
    flush(other)
    is_kept(other)
    is_kept(open_log(disk, COMPACTED))
