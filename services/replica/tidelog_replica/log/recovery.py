"""Opening a log: what of the bytes on the disk is the log, and what is the rest of a write that never finished.

Theory. Beside the segments stands the *mark*: an offset below which everything had been synced when it was written
(``Checkpoint``; it is written after a flush, lowered durably before a truncation, and so never too high). It decides
what a bad batch means, wherever it stands:

- at or past the mark, nobody was promised these bytes: a torn write, a tail of zeros, garbage, a gap between
  segments. The log is cut at the first bad batch, and every segment behind it goes;
- below the mark the bytes were durable and may have been acked: the disk lost or changed them. To cut there would
  silently drop acked records, so opening raises ``CorruptLog``; a log that ends before its mark is the same.

Without a readable mark, everything below the last segment counts as synced, and nothing in it.

Every batch from the segment that holds the mark on is read whole: CRC, consecutive offsets, leader epoch. Segments
that end at or before the mark are trusted if their index file describes them, else their headers are walked; they
must join without a gap.

The CRC does not cover base offset and leader epoch (the leader stamps them). The offsets are proved by being
consecutive. The epochs are proved by the leader-epoch file, which is synced with or before the data that it
describes: a batch whose epoch the file does not tell is bad like one with a bad CRC. Only where that file itself is
missing or damaged do the headers of synced batches tell the epochs, and the file is made again.

After recovery everything present is synced.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidelog.disk import Disk, File
from tidelog.errors import CorruptBatch
from tidelog.records import HEADER_BYTES, BatchHeader, check_batch, read_header

from tidelog_replica.core.epochs import EpochCache
from tidelog_replica.log.checkpoint import Checkpoint
from tidelog_replica.log.segment import BATCHES_CHUNK_BYTES, CorruptLog, Segment, Window, walk

MARK = "recovery-mark"
EPOCHS = "leader-epochs"
HIGH_WATERMARK = "high-watermark"
_SEGMENT_NAME = re.compile(r"[0-9]{20}\.log")


@dataclass(slots=True)
class Recovered:
    """A log as it was found, all of it synced. ``segments`` is never empty."""

    segments: list[Segment]
    epochs: EpochCache
    epochs_file: File
    mark: Checkpoint
    high_watermark: Checkpoint


def recover(disk: Disk, directory: str) -> Recovered:
    """Open the log in ``directory``, or make a new one. Raises ``CorruptLog`` and other ``OSError``s."""
    disk.mkdir(directory)
    bases = sorted(int(name[:20]) for name in disk.listdir(directory) if _SEGMENT_NAME.fullmatch(name))
    mark = Checkpoint(disk.open(f"{directory}/{MARK}", create=True))
    if not bases:
        if mark.value:
            raise CorruptLog(directory, f"no segment is left of a log that was synced to offset {mark.value}")
        bases = [0]
        disk.open(f"{directory}/{0:020d}.log", create=True).close()
    floor = bases[-1] if mark.value is None else mark.value
    epochs = _Epochs(disk, directory, floor if mark.value is not None else None)
    segments = [Segment(disk, directory, base) for base in bases]
    trusted = sum(base <= floor for base in bases[1:])
    for segment, end in zip(segments[:trusted], bases[1:], strict=False):
        _trust(segment, end, epochs)
    kept = _check(segments[trusted:], floor, epochs)
    _drop(disk, directory, segments[trusted + kept :], segments[trusted + kept - 1])
    del segments[trusted + kept :]
    for segment in segments[trusted:]:
        segment.file.sync()
    epochs_file = epochs.save(segments[-1].end_offset)
    high_watermark = Checkpoint(disk.open(f"{directory}/{HIGH_WATERMARK}", create=True))
    disk.sync_dir(directory)
    mark.write(segments[-1].end_offset)
    mark.sync()
    return Recovered(segments, epochs.cache, epochs_file, mark, high_watermark)


class _Epochs:
    """The leader-epoch file, as the judge of the epochs in the batches."""

    def __init__(self, disk: Disk, directory: str, mark: int | None) -> None:
        self._disk = disk
        self._path = f"{directory}/{EPOCHS}"
        self._mark = mark
        try:
            self._data = disk.read(self._path)
        except FileNotFoundError:
            self._data = b""
        self.cache, self.whole = EpochCache.from_bytes(self._data)
        """The file is there and undamaged: what it does not say is not so."""

    def fault_of(self, header: BatchHeader) -> str | None:
        """Why the batch cannot be of the epoch that it names; None where it can."""
        cache, epoch, base = self.cache, header.leader_epoch, header.base_offset
        if cache.epoch_before(base + 1) == epoch:
            return None
        told_by_headers = not self.whole and (self._mark is None or base < self._mark)
        if told_by_headers and epoch > cache.latest() and base >= (cache.entries or [(0, 0)])[-1][1]:
            cache.assign(epoch, base)
            return None
        return f"batch at offset {base} names leader epoch {epoch}, which began elsewhere"

    def save(self, end: int) -> File:
        """Forget what begins past the log's end, make the file say what the cache does, durably; open it."""
        self.cache.truncate_to(end + 1)
        if self.cache.to_bytes() != self._data:
            self._disk.write_atomic(self._path, self.cache.to_bytes())
        file = self._disk.open(self._path, create=True)
        file.sync()
        return file


def _trust(segment: Segment, end: int, epochs: _Epochs) -> None:
    """A full segment whose every batch was synced."""
    if epochs.whole and segment.trust(end):
        close(segment)
        return
    size = segment.file.size()
    try:
        for _, header in walk(segment.file, 0, size):
            fault = _misplaced(segment, header) or epochs.fault_of(header)
            if fault is not None:
                raise CorruptBatch(fault)
            segment.note(header)
    except CorruptBatch as error:
        raise CorruptLog(segment.path, f"at byte {segment.size}: {error.message}") from error
    if segment.end_offset != end:
        raise CorruptLog(segment.path, f"ends at offset {segment.end_offset}, the next segment begins at {end}")
    segment.seal()
    close(segment)


def _check(segments: list[Segment], floor: int, epochs: _Epochs) -> int:
    """Read whole segments, batch by batch, and cut at the first bad one; how many segments are left."""
    end = segments[0].base
    for number, segment in enumerate(segments):
        if segment.base != end:
            return _end_at(segments[number - 1], number, floor, f"the next segment begins at {segment.base}")
        fault = _fill(segment, epochs)
        end = segment.end_offset
        if fault is not None:
            kept = _end_at(segment, number + 1, floor, fault)
            segment.file.truncate(segment.size)
            return kept
    return _end_at(segments[-1], len(segments), floor, "nothing follows")


def _end_at(segment: Segment, kept: int, floor: int, fault: str) -> int:
    if segment.end_offset < floor:
        raise CorruptLog(
            segment.path,
            f"offsets up to {floor} were synced, but the log is sound only up to {segment.end_offset},"
            f" byte {segment.size}: {fault}",
        )
    return kept


def _fill(segment: Segment, epochs: _Epochs) -> str | None:
    """Take the valid batches at the beginning of the file; what is wrong with the next one, None at the end."""
    size = segment.file.size()
    window = Window(segment.file, size, BATCHES_CHUNK_BYTES)
    while segment.size < size:
        try:
            header = read_header(window.get(segment.size, HEADER_BYTES))
            check_batch(window.get(segment.size, min(header.batch_length, size - segment.size)))
        except CorruptBatch as error:
            return error.message
        fault = _misplaced(segment, header) or epochs.fault_of(header)
        if fault is not None:
            return fault
        segment.note(header)
    return None


def _misplaced(segment: Segment, header: BatchHeader) -> str | None:
    if header.base_offset == segment.end_offset:
        return None
    return f"batch at offset {header.base_offset}, expected {segment.end_offset}"


def _drop(disk: Disk, directory: str, segments: list[Segment], active: Segment) -> None:
    """Remove the segments behind the cut, the newest first, and an index that the active segment has outgrown."""
    for segment in reversed(segments):
        close(segment)
        remove(disk, segment.path)
        remove(disk, segment.index_path)
    remove(disk, active.index_path)
    disk.sync_dir(directory)


def close(segment: Segment) -> None:
    """Close the segment's file; it is opened again when it is needed."""
    file = segment.release()
    if file is not None:
        file.close()


def remove(disk: Disk, path: str) -> None:
    """Unlink a file that may be there."""
    try:
        disk.unlink(path)
    except FileNotFoundError:
        return
