"""A whole log, with all that can stand in its directory, and one byte of it flipped, or one file cut: every one."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from support.log_builders import PATH, SEGMENTS, STORED, build, flush, open_log, produced, set_mark, sound
from tidelog.batch.format import check_batch, read_header
from tidelog.errors import CorruptBatch
from tidelog.testing.hardware.disk import SimDisk
from tidelog.types import TopicConfig
from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.storage.log import CorruptLog, Log

CONFIG = TopicConfig(segment_max_bytes=400, cleanup="compact,delete")
COUNT = 18
WHOLE = [produced(n, 1 + (n > 7), 1 + n % 2, n // 2) for n in range(COUNT)]
PRODUCERS = ProducerState(map(read_header, WHOLE)).snapshot()


def built(durable: int) -> tuple[SimDisk, int]:
    """A log that has lost its first segments to retention, and was compacted once; synced up to ``durable``."""
    disk = SimDisk()
    log = open_log(disk, CONFIG)
    for each in WHOLE:
        log.append([each])
    flush(log)
    log.write_high_watermark(min(COUNT - 1, durable))
    log.advance_start(7)
    log.compact(COUNT - 1, 5000)
    start = log.start
    assert 0 < start <= 7 and len(log.segments.extents()) >= 3
    log.close()
    for name in disk.listdir(PATH):
        disk.replace(f"{PATH}/{name}", disk.read(f"{PATH}/{name}"))
    if durable < COUNT:
        for name in disk.listdir(PATH):
            if name.endswith(".index") and int(name[:20]) + 3 > durable:
                disk.unlink(f"{PATH}/{name}")
        set_mark(disk, durable)
    return disk, start


def stored(log: Log) -> list[bytes]:
    log.segments.forget_tail()
    found, offset = [], log.start
    while offset < log.end:
        step = log.read(offset, 300)
        assert step, f"nothing at {offset} of {log.end}"
        found += map(bytes, step)
        offset = read_header(found[-1]).end_offset
    return found


def judge(disk: SimDisk, name: str, data: bytes, start: int, durable: int) -> str:
    """What became of the log: ``whole``, ``shorter``, ``refused``, or ``seen`` where reading shows the damage."""
    after = disk.clone()
    after.replace(f"{PATH}/{name}", data)
    try:
        log = open_log(after, CONFIG)
    except CorruptLog:
        return "refused"
    assert log.start == start and log.end >= durable, name
    try:
        found = stored(log)
        for each in found:
            check_batch(each)
        sound(log)
    except (CorruptLog, CorruptBatch):
        return "seen"
    assert found == WHOLE[start : start + len(found)] and log.end == start + len(found)
    assert log.producers.snapshot() == ProducerState(map(read_header, WHOLE[: log.end])).snapshot()
    assert log.epoch_at(start) == 1
    return "whole" if log.end == COUNT else "shorter"


def variants(data: bytes) -> list[bytes]:
    flipped = [data[:p] + bytes([data[p] ^ 1 << p % 8]) + data[p + 1 :] for p in range(len(data))]
    return [*flipped, *(data[:p] for p in range(len(data)))]


DISK, START = built(COUNT)
NAMES = DISK.listdir(PATH)


def kinds(name: str) -> str:
    return name.rpartition(".")[2] if "." in name else name.partition("-0")[0]


def test_every_kind_of_file_is_there():
    expected = {"log", "index", "producers", "leader-epochs", "recovery-mark", "high-watermark", "log-start"}
    assert {kinds(name) for name in NAMES} == expected | {"compacted-to", "tombstones-to"}
    assert judge(DISK, "nothing", b"", START, COUNT) == "whole"


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith(".log")])
def test_D5_damage_beside_the_segments_changes_nothing(name):
    for data in (*variants(DISK.read(f"{PATH}/{name}")), b"", b"\xff" * 300, Random(1).randbytes(200)):
        assert judge(DISK, name, data, START, COUNT) == "whole"


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith(".log")])
def test_D3_damage_to_durable_data_is_refused_at_the_opening_or_seen_in_reading(name):
    data = DISK.read(f"{PATH}/{name}")
    for each in variants(data):
        assert judge(DISK, name, each, START, COUNT) in ("refused", "seen")


@pytest.mark.parametrize("position", [-1, -2])
def test_D4_damage_above_the_recovery_point_leaves_the_records_before_it(position):
    names = [name for name in NAMES if name.endswith(".log")]
    durable = int(names[position][:20])
    disk, _ = built(durable)
    for name in names[position:]:
        outcomes = {judge(disk, name, each, START, durable) for each in variants(disk.read(f"{PATH}/{name}"))}
        assert outcomes == {"shorter"}


QUESTIONS: dict[str, Callable[[Log], object]] = {
    "producers": lambda log: log.producers.snapshot(),
    "headers": lambda log: list(log.segments.headers()),
    "chain": lambda log: [log.chain_at(offset) for offset in range(log.start, log.end + 1)],
    "times": lambda log: [log.offset_for_timestamp(time, log.end) for time in range(995, 1000 + COUNT + 5)],
    "left after a cut": lambda log: (log.truncate(log.start + 4), log.producers.snapshot(), log.chain_at(log.end)),
}
"""What a log answers from its batch headers alone."""


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith(".log")])
def test_no_header_that_the_disk_changed_is_believed(name, indexed):
    """A flipped bit in the header of a batch that nobody reads. The producers have to be learned from the headers
    anew: the only snapshot is that of the log's start."""
    disk = DISK.clone()
    for other in NAMES:
        if (kinds(other) == "producers" and other != f"producers-{START:020d}") or (
            other.endswith(".index") and not indexed
        ):
            disk.unlink(f"{PATH}/{other}")
    truth = {question: ask(open_log(disk.clone(), CONFIG)) for question, ask in QUESTIONS.items()}
    refused: set[str] = set()
    data = disk.read(f"{PATH}/{name}")
    for position in range(len(data)):
        after = disk.clone()
        after.flip(f"{PATH}/{name}", position, position % 8)
        for question, ask in QUESTIONS.items():
            try:
                answer = ask(open_log(after, CONFIG))
            except CorruptLog:
                refused.add(question)
            else:
                assert answer == truth[question]
    assert refused == set(QUESTIONS)


def test_a_batch_whose_leader_epoch_the_disk_changed_is_not_read():
    """No CRC covers it, and a follower would take it for its leader's line."""
    disk = build()
    log = open_log(disk)
    log.segments.forget_tail()
    assert read_header(log.read(0, 1)[0]).leader_epoch == 1
    disk.flip(SEGMENTS[0], 11, 1)
    with pytest.raises(CorruptLog, match="batch at offset 0 names leader epoch 3"):
        log.read(0, 1)


def test_under_os_a_failed_flush_takes_nothing_that_was_reported_as_present():
    disk = SimDisk()
    lazy = TopicConfig(segment_max_bytes=400, flush="os")
    log = open_log(disk, lazy)
    log.append(WHOLE)
    pending = log.begin_flush()
    assert pending is not None
    disk.fail_syncs()
    with pytest.raises(OSError, match="simulated"):
        pending.run()
    disk.heal()
    log.discard_unsynced()
    log = open_log(disk, lazy)
    assert log.end == COUNT
    disk.crash(Random(2))
    assert open_log(disk, lazy).end == COUNT


@pytest.mark.parametrize("fails_at", [0, 1])
def test_a_batch_that_a_failed_flush_left_in_the_page_cache_is_durable_when_the_next_life_counts_it_so(fails_at):
    """Its own bytes, or the epoch file that tells its epoch. The sync that fails drops the pages as clean: they can
    be read, and no later sync would write them."""
    for killed_with in (1, 12):
        disk = SimDisk()
        log = open_log(disk, CONFIG)
        log.append(WHOLE[:2])
        flush(log)
        log.append([produced(n, 2, 5, n) for n in range(2, 2 + killed_with)])
        pending = log.begin_flush()
        assert pending is not None
        disk.fail_syncs(after=fails_at)
        with pytest.raises(OSError, match="simulated"):
            pending.run()
        disk.heal()  # and the process dies before it can cut anything
        log = open_log(disk, CONFIG)
        told = log.durable
        assert told > 2
        for seed in range(25):
            after = disk.clone()
            after.crash(Random(seed))
            found = open_log(after, CONFIG)
            assert found.end == told and found.epochs.entries == log.epochs.entries
            sound(found)


def test_a_batch_whose_records_the_disk_changed_is_not_read():
    disk = build()
    data = bytearray(disk.read(SEGMENTS[0]))
    data[len(STORED[0]) - 1] ^= 1  # in the body of the first batch: its header is sound
    disk.replace(SEGMENTS[0], bytes(data))
    log = open_log(disk)
    with pytest.raises(CorruptLog, match="CRC"):
        log.read(0, 300)
    assert log.read(1, 300)[:2] == STORED[1:3], "the others are"
