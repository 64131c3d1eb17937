"""What holds for every log, and for servers with logs, holds for encrypted ones: their tests, over sealed segments.

Left out are those that are about bytes at a place of a segment's file, the words that tell of damage, or nothing
that depends on what is in a segment: the first two are in ``test_encryption.py`` in a form of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import test_compacting_servers
import test_compaction
import test_copy_restart
import test_log
import test_log_past
import test_log_start
import test_recall
import test_recovery_crashes
import test_recovery_leftovers
import test_repair
import test_repair_behind
import test_retention
import test_scrubbing
import test_unreadable
from simulation.sim_disk import SimDisk
from tidelog.batch.format import read_header
from tidelog.errors import CorruptBatch
from tidelog.runtime.disk import Disk
from tidelog.types import TopicConfig
from tidelog_replica.node import ReplicaNode
from tidelog_replica.storage.encryption.files import (
    BATCHES_AT,
    SEGMENT,
    EncryptedDisk,
    decrypt_head,
    decrypt_rest,
    read_pages,
    stored_bytes,
    unwrap,
)
from tidelog_replica.storage.encryption.keyring import Cipher, Keyring
from tidelog_replica.storage.log import Log
from tidelog_replica.storage.segment_scrub import Scrub

KEYS = Keyring({"k": b"k" * 32}, "k")
EXTRA_BYTES = 4 * (stored_bytes(1000) - 1000)
"""What a small segment of about four batches grows by; with it the segments hold the same batches."""
MODULES = (
    test_log,
    test_log_past,
    test_log_start,
    test_recall,
    test_compaction,
    test_retention,
    test_recovery_crashes,
    test_recovery_leftovers,
    test_unreadable,
    test_scrubbing,
    test_repair,
    test_repair_behind,
    test_copy_restart,
    test_compacting_servers,
)
LEFT_OUT = {
    "test_the_mark_vouches_for_no_segment_whose_name_may_be_lost",
    "test_a_reader_that_begins_anywhere_ends_up_knowing_the_same",
    "test_recovery_may_be_cut_off_at_each_step",
    "test_it_reads_no_faster_than_it_may",
    "test_D3_a_damaged_batch_stops_it",
    "test_an_index_whose_chain_is_not_that_of_the_headers_is_noticed",
    "test_damage_that_the_job_meets_is_told",
    "test_the_producers_are_known_after_a_restart_without_reading_the_whole_log",
}

ENDS = [5, 6, 13]
"""Where a log is truncated here: within a batch, between two segments, near the end."""

for module in MODULES:
    for name, function in vars(module).items():
        if name.startswith("test_") and callable(function) and name not in LEFT_OUT:
            globals()[f"{module.__name__}{name.removeprefix('test')}"] = function


@pytest.mark.parametrize("end", ENDS)
def test_recovery_crashes_a_truncation_may_be_cut_off_at_each_step(end: int) -> None:
    test_recovery_crashes.test_a_truncation_may_be_cut_off_at_each_step(end)


def sealing(disk: Disk) -> Disk:
    return disk if isinstance(disk, EncryptedDisk) else EncryptedDisk(disk, KEYS)


FLIP, READ = SimDisk.flip, SimDisk.read


def flip(disk: SimDisk, path: str, at: int = 100, bit: int = 3) -> None:
    """Damage to a file; to a segment behind its key."""
    path = path if "/" in path else f"{test_repair.PATH}/{path}"
    FLIP(disk, path, at + BATCHES_AT if path.endswith(".log") else at, bit)


def opened(path: str, data: bytes) -> bytes:
    """The batches in the file; the file as it is where they do not open."""
    pages = read_pages(data) if SEGMENT.search(path) else []
    if not pages:
        return data
    cipher, position, found = Cipher(unwrap(KEYS, path, pages)), BATCHES_AT, b""
    try:
        while position < len(data):
            length = read_header(head := decrypt_head(cipher, data[position:])).batch_length
            stored = data[position : (position := position + stored_bytes(length))]
            found += (head + decrypt_rest(cipher, stored) if length > len(head) else head)[:length]
    except CorruptBatch:
        return data
    return found


@pytest.fixture(autouse=True, scope="module")
def sealed() -> Iterator[None]:
    """All logs are opened over disks that seal, and all servers have such."""
    open_log, make = Log.open.__func__, ReplicaNode.__init__

    def open_sealed(cls: type[Log], disk: Disk, directory: str, config: TopicConfig, *rest: Any, **more: Any) -> Log:
        if config.segment_max_bytes < 1000:
            config = replace(config, segment_max_bytes=config.segment_max_bytes + EXTRA_BYTES)
        return open_log(cls, sealing(disk), directory, config, *rest, **more)

    def make_sealed(self: ReplicaNode, node: str, url: str, disk: Disk, *rest: Any, **more: Any) -> None:
        make(self, node, url, sealing(disk), *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Log, "open", classmethod(open_sealed))
        patch.setattr(ReplicaNode, "__init__", make_sealed)
        patch.setattr(test_scrubbing, "Scrub", lambda disk, *rest: Scrub(sealing(disk), *rest))
        patch.setattr(SimDisk, "flip", flip)
        for each in (test_repair, test_scrubbing):
            patch.setattr(each, "flip", flip)
        yield


@pytest.fixture(autouse=True)
def compared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was repaired holds the same batches as before, byte by byte, not the same ciphertext."""
    name = request.node.name
    if name.startswith(("test_repair_", "test_scrubbing_")) and not name.startswith("test_repair_behind_"):
        monkeypatch.setattr(SimDisk, "read", lambda disk, path: opened(path, READ(disk, path)))
