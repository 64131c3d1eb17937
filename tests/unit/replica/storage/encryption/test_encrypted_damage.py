"""A small encrypted log, cut at every byte and with a flip of every byte: of its batches, key pages and indexes.
Tests ``encryption/files.py`` and ``recovery/recovery.py``."""

from __future__ import annotations

import pytest
from support.log_builders import END, PATH, STORED, batches, content, flush, set_mark
from tidelog.batch.format import read_header
from tidelog.testing.hardware.disk import SimDisk
from tidelog_replica.storage.encryption.files import BATCHES_AT, HEAD_BYTES, PAGE_BYTES, read_pages, stored_bytes
from tidelog_replica.storage.encryption.rotation import rekey
from tidelog_replica.storage.log import CorruptLog

from unit.replica.storage.encryption.test_files import NONE, OF_OLD, build, files, open_sealed, segments

IN_A_PAGE = (*range(140), *range(140, PAGE_BYTES, 397))
"""All bytes of a key page that say something, and some of those that do not."""
IN_THE_PAGES = (*IN_A_PAGE, *(PAGE_BYTES + place for place in IN_A_PAGE))


def killed(durable: int) -> SimDisk:
    """``STORED``, of which so much was known to be synced, as a process leaves it that is killed."""
    disk = build()
    disk.unlink(segments(disk)[-1].replace(".log", ".index"))
    for name in disk.listdir(PATH):
        disk.replace(f"{PATH}/{name}", disk.read(f"{PATH}/{name}"))
    set_mark(disk, durable)
    return disk


def sealed_ends(path: str) -> list[tuple[int, int]]:
    """(offset, byte) of the ends of the batches in this segment, and its beginning."""
    base, position = int(path[-24:-4]), BATCHES_AT
    ends = [(base, 0)]
    for each in STORED:
        header = read_header(each)
        if header.base_offset >= base:
            position += stored_bytes(len(each))
            ends.append((header.end_offset, position))
    return ends


def end_before(path: str, position: int) -> int:
    return max(offset for offset, end in sealed_ends(path) if end <= position)


def goes_on_from(disk: SimDisk, end: int) -> None:
    """The log has what was whole, and what is written behind it is there."""
    log = open_sealed(disk)
    kept = [each for each in STORED if read_header(each).end_offset <= end]
    assert (log.end, log.durable, content(log, from_disk=True)) == (end, end, kept)
    more = batches(end, 9, [2, 2, 2])
    log.append(more)
    flush(log)
    assert content(open_sealed(disk), from_disk=True) == kept + more


def damaged(disk: SimDisk, path: str, data: bytes) -> SimDisk:
    disk = disk.clone()
    disk.replace(path, data)
    return disk


def flipped(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1 << position % 8]) + data[position + 1 :]


@pytest.mark.parametrize("which", [1])
def test_a_cut_at_every_byte_above_the_mark_leaves_the_whole_batches_before_it(which):
    disk = killed(durable=0)
    path = segments(disk)[which]
    data = disk.read(path)
    for cut in (*IN_THE_PAGES[::19], *range(BATCHES_AT, len(data))):
        goes_on_from(damaged(disk, path, data[:cut]), end_before(path, cut))


@pytest.mark.parametrize("which", [1, 2])
def test_a_flip_of_every_byte_above_the_mark_cuts_there(which):
    disk = killed(durable=0)
    path = segments(disk)[which]
    data = disk.read(path)
    for position in range(BATCHES_AT, len(data)):
        goes_on_from(damaged(disk, path, flipped(data, position)), end_before(path, position))


@pytest.mark.parametrize("which", [1])
def test_a_flip_of_any_byte_of_one_key_page_costs_nothing(which):
    disk = killed(durable=0)
    path = segments(disk)[which]
    data = disk.read(path)
    for position in IN_THE_PAGES:
        assert content(open_sealed(damaged(disk, path, flipped(data, position))), from_disk=True) == STORED


@pytest.mark.parametrize("which", [0, 2])
def test_a_cut_or_flip_of_every_byte_below_the_mark_is_damage_and_nothing_is_touched(which):
    disk = killed(durable=END)
    for path in segments(disk)[:-1]:
        disk.unlink(path.replace(".log", ".index"))
    path = segments(disk)[which]
    data = disk.read(path)
    for number, position in enumerate((*IN_THE_PAGES, *range(BATCHES_AT, len(data)))):
        for spoiled in (data[:position], flipped(data, position)):
            if position < BATCHES_AT and spoiled != data[:position]:
                continue
            after = damaged(disk, path, spoiled)
            before = files(after) if number % 50 == 0 else None
            with pytest.raises(CorruptLog):
                open_sealed(after)
            assert before is None or all(files(after)[name] == before[name] for name in before)


def test_an_index_that_is_damaged_or_of_another_segment_or_in_the_clear_is_made_again():
    disk = build()
    path, other = (each.replace(".log", ".index") for each in segments(disk)[:2])
    data, clear = disk.read(path), build(NONE).read(path)
    for spoiled in (disk.read(other), clear, data[:100], b"", *(flipped(data, at) for at in range(len(data)))):
        after = damaged(disk, path, spoiled)
        log = open_sealed(after)
        assert content(log, from_disk=True) == STORED
        assert log.offset_for_timestamp(1007, END) == (7, 1007)
        if data[:HEAD_BYTES] != spoiled[:HEAD_BYTES]:  # the rest is looked at when it is needed
            assert after.read(path) not in (spoiled, clear)


def test_a_start_makes_a_damaged_key_page_again_from_the_other():
    disk = build()
    path = segments(disk)[0]
    for page in (0, PAGE_BYTES):
        disk.flip(path, page + 90, 1)
        assert rekey(disk, "/data", OF_OLD).rewrapped == 1
    assert len(read_pages(disk.read(path))) == 2
    assert content(open_sealed(disk), from_disk=True) == STORED
