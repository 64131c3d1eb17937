"""Small logs for the tests of the log: batches, and checks of everything that a log answers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from random import Random

from tidelog.batch.format import NewRecord, chain_after, encode_batch, read_header, stamp_prefix, with_sent_crc
from tidelog.runtime.disk import Disk
from tidelog.testing.hardware.disk import PowerLost, SimDisk
from tidelog.types import TopicConfig
from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.storage.checkpoints import OffsetCheckpoint
from tidelog_replica.storage.log import CopyStart, Log
from tidelog_replica.storage.recovery.doubtful_tail import DoubtfulLog, WriteTail
from tidelog_replica.storage.recovery.recovery import RECOVERY_POINT

PATH = "/data/t-0"
SMALL = TopicConfig(segment_max_bytes=500)
"""Settings with segments of about four batches."""


def batch(base: int, epoch: int, count: int = 1, size: int = 20, timestamp_ms: int = 1000) -> bytes:
    """Return a batch as its leader stored it; its values name its epoch and offsets."""
    values = [f"{epoch}/{base + number}".encode().ljust(size, b".") for number in range(count)]
    new = encode_batch([NewRecord(value, None, timestamp_ms + number) for number, value in enumerate(values)])
    return stamp_prefix(base, epoch, read_header(new).crc32c) + new[16:]


def batches(base: int, epoch: int, counts: Sequence[int]) -> list[bytes]:
    """Return consecutive batches, one for each count of records."""
    made = []
    for count in counts:
        made.append(batch(base, epoch, count, timestamp_ms=1000 + base))
        base += count
    return made


def produced(base: int, epoch: int, producer: int, sequence: int, count: int = 1, producer_epoch: int = 0) -> bytes:
    """Return a stored batch of an idempotent producer."""
    values = [NewRecord(f"{base + number}".encode().ljust(20, b"."), None, 1000 + base) for number in range(count)]
    new = encode_batch(values, producer_id=producer, producer_epoch=producer_epoch, base_sequence=sequence)
    return stamp_prefix(base, epoch, read_header(new).crc32c) + new[16:]


def after_power_losses(
    prepare: Callable[[], SimDisk], action: Callable[[SimDisk], Callable[[], object]], *, seeds: int, changes: int
) -> Iterator[SimDisk]:
    """Yield the disks that an action leaves when a power loss interrupts it at its first change, its second, … its
    last, each after ``seeds`` different crashes. ``prepare`` makes a disk, ``action`` returns the function that then
    changes it, in at least ``changes`` changes."""
    for done in itertools.count():
        disk = prepare()
        act = action(disk)
        disk.lose_power(after=done)
        try:
            act()
        except PowerLost:
            for seed in range(seeds):
                after = disk.clone()
                after.crash(Random(seed))
                yield after
        else:
            assert done >= changes, "the action changes more than that"
            return


def take_snapshot(log: Log) -> None:
    """Write the producer snapshot that is due, if any."""
    snapshot = log.begin_snapshot()
    if snapshot is not None:
        snapshot.run()
        log.complete_snapshot(snapshot)


def flush(log: Log) -> None:
    """Write the producer snapshot that is due, and flush the log."""
    take_snapshot(log)
    pending = log.begin_flush()
    if pending is not None:
        pending.run()
        log.complete_flush(pending)


def reset(log: Log, start: int, last_epoch: int, chain: bytes, past: ProducerState | None = None) -> None:
    """Drop the log and start it again at an offset."""
    producers = past or ProducerState()
    log.reset(CopyStart(start, last_epoch, chain, producers.to_bytes()), producers.copy())


def open_alone(disk: Disk, path: str, config: TopicConfig) -> Log:
    """Open the only existing copy of a log; a doubtful tail is cut."""
    try:
        return Log.open(disk, path, config)
    except DoubtfulLog as doubt:
        WriteTail(disk, path, doubt.start, ()).run()
        return Log.open(disk, path, config)


def open_log(disk: SimDisk, config: TopicConfig = SMALL) -> Log:
    """Open the log of these tests with ``open_alone``."""
    return open_alone(disk, PATH, config)


def content(log: Log, *, from_disk: bool = False) -> list[bytes]:
    """Return all batches of a log, read in small steps; ``from_disk``: without the tail cache."""
    if from_disk:
        log.segments.forget_tail()
    found: list[bytes] = []
    offset = log.start
    while offset < log.end:
        step = log.read(offset, 300)
        assert step, f"nothing at {offset} of {log.end}"
        found += map(bytes, step)
        offset = read_header(found[-1]).end_offset
    return found


def epochs_of(stored: Sequence[bytes]) -> list[tuple[int, int]]:
    """Return the entries of the leader-epoch cache for these batches, without empty epochs."""
    entries: list[tuple[int, int]] = []
    for header in map(read_header, stored):
        if not entries or entries[-1][0] != header.leader_epoch:
            entries.append((header.leader_epoch, header.base_offset))
    return entries


def sound(log: Log) -> None:
    """Check everything that must hold for a log at any time."""
    stored = content(log, from_disk=True)
    headers = list(log.segments.headers())
    assert [with_sent_crc(read_header(each), each) for each in stored] == headers
    offset = log.start
    for header in headers:
        assert header.base_offset == offset
        assert log.epoch_at(offset + 1) == header.leader_epoch
        offset = header.end_offset
    assert offset == log.end
    boundary, chain = log.chain_at(log.start)
    assert boundary == log.start
    for header, each in zip(headers, stored, strict=True):
        boundary, chain = header.end_offset, chain_after(chain, each)
        assert log.chain_at(boundary) == (boundary, chain)
    assert log.start <= log.durable <= log.end
    assert log.start <= log.read_high_watermark() <= log.end


SEGMENTS = [f"{PATH}/{base:020d}.log" for base in (0, 6, 12)]
STORED = [*batches(0, 1, [1, 1, 1, 1, 2, 1]), *batches(7, 2, [1]), *batches(8, 3, [2, 1, 1, 1, 1])]
"""Batches of three segments; the epoch changes within the second; the last segment has two batches."""
END = 14


def build(durable: int = END, high_watermark: int = 9) -> SimDisk:
    """Return a disk with a log of ``STORED`` as a killed process leaves it: all of it on the disk, and synced up to
    ``durable`` (the end of a segment) by its recovery point. The HW is stored if it is not above ``durable``."""
    disk = SimDisk()
    log = open_log(disk)
    for each in STORED:
        log.append([each])
    flush(log)
    if high_watermark <= durable:
        log.write_high_watermark(high_watermark)
    assert [segment.path for segment in log.segments] == SEGMENTS
    log.close()
    disk.unlink(SEGMENTS[-1].replace(".log", ".index"))
    set_mark(disk, durable)
    for name in disk.listdir(PATH):
        disk.replace(f"{PATH}/{name}", disk.read(f"{PATH}/{name}"))
    return disk


def set_mark(disk: SimDisk, value: int) -> None:
    """Set the recovery point of the log on a disk."""
    disk.replace(f"{PATH}/{RECOVERY_POINT}", b"")
    OffsetCheckpoint(disk, f"{PATH}/{RECOVERY_POINT}").write(value)


def ends_before(path: str, position: int) -> int:
    """Return the end offset of the last batch that ends at or before a position in a segment."""
    base = int(path[-24:-4])
    end = base
    for each in STORED:
        header = read_header(each)
        if header.base_offset >= base:
            position -= len(each)
            if position < 0:
                break
            end = header.end_offset
    return end


def append_as_leader(log: Log, batch: bytes, leader_epoch: int) -> int:
    """Append a batch with the next offset and a leader epoch, and return the offset."""
    base = log.end
    prefix = stamp_prefix(base, leader_epoch, read_header(batch).crc32c)
    log.append([prefix + batch[len(prefix) :]])
    return base
