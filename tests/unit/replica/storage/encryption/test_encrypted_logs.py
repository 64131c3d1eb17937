"""What holds for every log, and for servers with logs, holds for encrypted ones: their tests, over sealed
segments. Tests ``encryption/files.py`` and ``tidelog_replica/storage/log.py``.

Left out are those that are about bytes at a place of a segment's file, the words that tell of damage, or nothing
that depends on what is in a segment: the first two are in ``encryption/test_files.py`` in a form of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tidelog.batch.format import read_header
from tidelog.errors import CorruptBatch
from tidelog.runtime.disk import Disk
from tidelog.testing.hardware.disk import SimDisk
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

from unit.replica import test_compaction_of_servers
from unit.replica.fetcher import test_copy_restart
from unit.replica.maintenance import test_log_repairer, test_repair_below_log_start, test_scrubber
from unit.replica.storage import (
    test_compaction,
    test_log,
    test_log_history,
    test_log_start,
    test_producer_snapshots,
    test_retention,
    test_unreadable_files,
)
from unit.replica.storage.recovery import test_crashes, test_leftovers

KEYS = Keyring({"k": b"k" * 32}, "k")
EXTRA_BYTES = 4 * (stored_bytes(1000) - 1000)
"""What a small segment of about four batches grows by; with it the segments hold the same batches."""
MODULES = (
    test_log,
    test_log_history,
    test_log_start,
    test_producer_snapshots,
    test_compaction,
    test_retention,
    test_crashes,
    test_leftovers,
    test_unreadable_files,
    test_scrubber,
    test_log_repairer,
    test_repair_below_log_start,
    test_copy_restart,
    test_compaction_of_servers,
)
LEFT_OUT = {
    "test_the_recovery_point_covers_no_segment_whose_name_may_be_lost",
    "test_a_reader_that_begins_anywhere_ends_up_knowing_the_same",
    "test_recovery_may_be_cut_off_at_each_step",
    "test_it_reads_no_faster_than_it_may",
    "test_D3_a_damaged_batch_stops_it",
    "test_an_index_whose_chain_is_not_that_of_the_headers_is_noticed",
    "test_the_rebuild_raises_an_error_for_damage",
    "test_the_producers_are_known_after_a_restart_without_reading_the_whole_log",
}

ENDS = [5, 6, 13]
"""Where a log is truncated here: within a batch, between two segments, near the end."""

for module in MODULES:
    for name, function in vars(module).items():
        if name.startswith("test_") and callable(function) and name not in LEFT_OUT:
            globals()[f"{module.__name__.rpartition('.')[2]}{name.removeprefix('test')}"] = function


@pytest.mark.parametrize("end", ENDS)
def test_crashes_a_truncation_may_be_cut_off_at_each_step(end: int) -> None:
    test_crashes.test_a_truncation_may_be_cut_off_at_each_step(end)


def sealing(disk: Disk) -> Disk:
    return disk if isinstance(disk, EncryptedDisk) else EncryptedDisk(disk, KEYS)


FLIP, READ = SimDisk.flip, SimDisk.read


def flip(disk: SimDisk, path: str, at: int = 100, bit: int = 3) -> None:
    """Damage to a file; to a segment behind its key."""
    path = path if "/" in path else f"{test_log_repairer.PATH}/{path}"
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
        patch.setattr(test_scrubber, "Scrub", lambda disk, *rest: Scrub(sealing(disk), *rest))
        patch.setattr(SimDisk, "flip", flip)
        for each in (test_log_repairer, test_scrubber):
            patch.setattr(each, "flip", flip)
        yield


@pytest.fixture(autouse=True)
def compared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was repaired holds the same batches as before, byte by byte, not the same ciphertext."""
    name = request.node.name
    if name.startswith(("test_log_repairer_", "test_scrubber_")):
        monkeypatch.setattr(SimDisk, "read", lambda disk, path: opened(path, READ(disk, path)))
