"""A log of three producers and four leader epochs, for the tests of what a log knows about earlier records."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tidelog.batch.format import NO_CHAIN, chain_after, read_header
from tidelog.testing.hardware.disk import SimDisk
from tidelog.types import TopicConfig
from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.storage.log import Log

from support.log_builders import (
    PATH,
    SMALL,
    after_power_losses,
    content,
    flush,
    open_log,
    produced,
    sound,
    take_snapshot,
)

COUNT = 30


def made(count: int = COUNT) -> list[bytes]:
    """Return batches of three producers, one of which ends early; the leader epoch changes at 5, 13 and 21."""
    batches, sequences = [], {1: 0, 2: 0, 3: 0}
    for offset in range(count):
        epoch = 1 + sum(offset >= start for start in (5, 13, 21))
        producer = 3 if offset < 2 else 1 + offset % 2
        batches.append(produced(offset, epoch, producer, sequences[producer]))
        sequences[producer] += 1
    return batches


STORED = made()
HEADERS = [read_header(each) for each in STORED]
ALL = ProducerState(HEADERS).snapshot()


def chain_to(offset: int) -> bytes:
    """Return the hash chain of ``STORED`` up to an offset."""
    chain = NO_CHAIN
    for each in STORED[:offset]:
        chain = chain_after(chain, each)
    return chain


def filled(disk: SimDisk, config: TopicConfig = SMALL, *, flushed: bool = True) -> Log:
    """Return a log with all batches of ``STORED`` and the due snapshots; flushed by default."""
    log = open_log(disk, config)
    for each in STORED:
        log.append([each])
        take_snapshot(log)
    if flushed:
        flush(log)
    return log


def stable(disk: SimDisk) -> SimDisk:
    """Make every file of the log durable, and return the disk."""
    for name in disk.listdir(PATH):
        disk.replace(f"{PATH}/{name}", disk.read(f"{PATH}/{name}"))
    return disk


def check(log: Log, start: int) -> None:
    """Check that a log has ``STORED`` from ``start`` on and knows epochs, hash chain and producers of what came
    before."""
    assert (log.start, log.end) == (start, COUNT)
    assert content(log) == content(log, from_disk=True) == STORED[start:]
    assert log.epoch_at(start) == (HEADERS[start - 1].leader_epoch if start else -1)
    assert log.chain_at(start) == (start, chain_to(start))
    assert log.producers.snapshot() == ALL
    sound(log)


def at_each_step(
    prepare: Callable[[], SimDisk], action: Callable[[Log], object], judge: Callable[[Log], None], least: int
) -> None:
    """Lose power at the first change of ``action``, at the second, … of at least ``least`` ones, and call ``judge``
    with the log opened afterwards, twice."""
    for after in after_power_losses(prepare, lambda disk: partial(action, open_log(disk)), seeds=12, changes=least):
        judge(open_log(after))
        judge(open_log(after))


def built() -> SimDisk:
    """Return the disk of such a log, closed."""
    disk = SimDisk()
    filled(disk).close()
    return disk
