"""Scrubbing: reading a segment again, piece by piece, to find out whether the disk still has what was written. It
reads full segments, and the synced part of the active one.

Every batch is checked as its writer checked it: CRC, length, counts. What no CRC covers is checked against the log:
the offsets must be consecutive, the leader epochs must be those of the epoch cache, and the hash chain at the
segment's end must be the one from when the segment was written. Last comes the index file of a full segment: one that
is damaged, or describes another segment, is removed, since it can be made again.

Also, the body of each batch is decoded as a reader decodes it. A body that cannot be decoded is no damage: the CRC is
right, so its producer wrote it like that, and every replica holds the same bytes. Such batches are only reported. A
small batch may decompress to many megabytes, so a piece decodes at most ``DECODED_BYTES``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tidelog.batch.format import HEADER_BYTES, BatchHeader, chain_after, check_batch, check_body, read_header
from tidelog.errors import CorruptBatch
from tidelog.runtime.disk import Disk, File
from tidelog.types import Buffer

from tidelog_replica.replication.leader_epochs import LeaderEpochCache
from tidelog_replica.storage.encryption.files import decrypt_beside
from tidelog_replica.storage.index import SparseIndex, read_summary
from tidelog_replica.storage.segment import OTHER_CHAIN, CorruptLog, Segment, remove
from tidelog_replica.storage.segment_reader import lost, open_window

DECODED_BYTES = 8 << 20
"""How many bytes of bodies, decompressed, are decoded at most in one piece of a segment. Batches beyond that are not
decoded."""


class Unreadable(NamedTuple):
    """A batch whose CRC is right but whose body cannot be decoded, because its producer wrote it like that. The
    scrubber reports it."""

    base_offset: int
    end_offset: int
    producer_id: int


class ScrubPosition(NamedTuple):
    """A position up to which a segment is checked: the byte and the offset of the next batch, and the hash chain of
    the log up to that batch."""

    position: int
    offset: int
    chain: bytes


@dataclass(frozen=True, slots=True)
class ScrubTarget:
    """A segment as it was when a check of it began, as far as it is checked: the batches in its first ``size`` bytes,
    with the offsets ``base`` to ``end`` (exclusive), and the hash chain before and after them. ``is_full`` is False
    for the segment that is still written."""

    path: str
    index_path: str
    base: int
    end: int
    size: int
    chain_before: bytes
    chain: bytes
    rewrites: int
    is_full: bool

    @classmethod
    def of(cls, segment: Segment, synced: int | None = None) -> ScrubTarget:
        """Return a target that describes ``segment`` as it is now: the whole segment if it is full (``synced`` is
        None), or the batches of the active segment below offset ``synced``. Raises ``OSError``."""
        size, end, chain = segment.place_at(segment.end_offset if synced is None else synced)
        return cls(
            segment.path,
            segment.index_path,
            segment.base,
            end,
            size,
            segment.chain_before,
            chain,
            segment.rewrites,
            synced is None,
        )

    def is_still(self, segment: Segment | None) -> bool:
        """Return whether ``segment`` is the segment that this target describes, and compaction has not replaced its
        file since the target was made. Return False for None. The caller must know that the log was not cut since."""
        return segment is not None and (segment.base, segment.rewrites) == (self.base, self.rewrites)

    @property
    def first_position(self) -> ScrubPosition:
        """Return the position at which the check of the target begins: its first batch."""
        return ScrubPosition(0, self.base, self.chain_before)


class Checked(NamedTuple):
    """The result of checking one piece of a segment: the position behind the piece, whether the index file was
    deleted, and the batches that no reader can decode."""

    place: ScrubPosition
    """The position at which the next piece begins; the end of the target if the check is complete."""
    index_removed: bool
    """Whether the segment's index file was damaged and was removed. Only the last piece checks that."""
    unreadable: tuple[Unreadable, ...]
    """The batches of the piece whose bodies cannot be decoded, in the order of their offsets."""


@dataclass(frozen=True, slots=True)
class Scrub:
    """A job that reads about ``length`` bytes of a segment, from ``place`` on, and checks the batches in them: their
    CRCs, offsets, leader epochs and bodies, and at the end of the segment also its hash chain and index file."""

    disk: Disk
    target: ScrubTarget
    place: ScrubPosition
    length: int
    epochs: LeaderEpochCache
    """A copy of the log's leader epochs, since the log may change meanwhile."""

    def run(self) -> Checked:
        """Check the piece, and return the position behind it and the batches that no reader can decode. At the end of
        a full segment, an index file that is damaged or describes another segment is deleted. Raises ``CorruptLog``
        if the segment is damaged, and other ``OSError``s, which say nothing about the segment; a failure to read the
        active segment is one of these (``storage/segment_reader.py``)."""
        target = self.target
        try:
            file = self.disk.open(target.path)
        except OSError as error:
            if not target.is_full:
                raise  # the disk fails
            raise lost(target.path, error) from error
        try:
            if file.size() < target.size:
                raise CorruptLog(target.path, f"it has {file.size()} bytes, not {target.size}")
            place, unreadable = self._check(file)
            if place.position < target.size:
                return Checked(place, False, unreadable)
            if place.offset != target.end:
                raise CorruptLog(target.path, f"it ends at offset {place.offset}, not {target.end}")
            if place.chain != target.chain:
                raise CorruptLog(target.path, OTHER_CHAIN)
            return Checked(place, target.is_full and self._removed_index(file), unreadable)
        finally:
            file.close()

    def _check(self, file: File) -> tuple[ScrubPosition, tuple[Unreadable, ...]]:
        """Check the batches of the piece. Return the position behind them, and the batches whose bodies cannot be
        decoded. Raises ``CorruptLog`` at the first damaged batch."""
        target, (position, offset, chain) = self.target, self.place
        unreadable: list[Unreadable] = []
        left = DECODED_BYTES
        window = open_window(file, target.size, self.length, target.path if target.is_full else None)
        stop = min(position + self.length, target.size)
        try:
            while position < stop:
                header = read_header(window.get(position, HEADER_BYTES))
                batch = window.get(position, min(header.batch_length, target.size - position))
                check_batch(batch)
                if header.base_offset != offset:
                    raise CorruptBatch(f"batch at offset {header.base_offset}, expected {offset}")
                if header.leader_epoch != self.epochs.epoch_before(offset + 1):
                    raise CorruptBatch(f"batch at offset {offset} names leader epoch {header.leader_epoch}")
                if not header.is_control and header.body_length <= left:
                    left -= header.body_length
                    if not _is_readable(header, batch):
                        unreadable.append(Unreadable(offset, header.end_offset, header.producer_id))
                position += window.stored(header.batch_length)
                offset, chain = header.end_offset, chain_after(chain, batch)
        except CorruptBatch as error:
            raise CorruptLog(target.path, f"at byte {position}: {error.message}") from error
        return ScrubPosition(position, offset, chain), tuple(unreadable)

    def _removed_index(self, file: File) -> bool:
        """Delete the segment's index file if it is damaged or does not describe this segment, and return True. Return
        False if the file is sound or does not exist."""
        target = self.target
        try:
            data = decrypt_beside(file, self.disk.read(target.index_path))
        except FileNotFoundError:
            return False
        summary = read_summary(data)
        described = summary is not None and summary[:3] == (target.base, target.end, target.size)
        if described and SparseIndex.from_bytes(data) is not None:
            return False
        remove(self.disk, target.index_path)  # another job may have removed it already
        return True


def _is_readable(header: BatchHeader, batch: Buffer) -> bool:
    """Return whether the body of a batch can be decoded."""
    try:
        check_body(header, batch)
    except CorruptBatch:
        return False
    return True
