"""Reading batches of a log from its disk, to compare them with those of another copy: a job (see ``jobs.py``).

Nothing comes from the server's memory: the job opens the segment's file itself. It checks the CRC, the offsets and
the leader epoch of each batch, as the scrubber does, and computes the batch's fingerprint
(``tidelog.batch.fingerprints``). It reads from one segment only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tidelog.batch.fingerprints import fingerprint_of, pack
from tidelog.batch.format import HEADER_BYTES, check_batch, read_header
from tidelog.errors import CorruptBatch
from tidelog.runtime.disk import Disk, File

from tidelog_replica.replication.leader_epochs import LeaderEpochCache
from tidelog_replica.storage.segment import CorruptLog
from tidelog_replica.storage.segment_reader import BATCHES_CHUNK_BYTES, lost, open_window
from tidelog_replica.storage.segment_scrub import ScrubTarget


class BatchesRead(NamedTuple):
    """The result of ``ReadBatches``: the fingerprints of the batches that the job read, and the offset at which to
    continue."""

    next_offset: int
    """The offset at which the next job begins."""
    size: int
    """Bytes of the batches together."""
    fingerprints: bytes
    """The fingerprints of the batches, one after the other, as ``pack`` writes them."""


@dataclass(frozen=True, slots=True)
class ReadBatches:
    """A job that reads and checks batches in one segment's file and computes their fingerprints, to compare them with
    those of another copy. It begins with the batch that holds ``offset`` and takes batches that end at or below
    offset ``end``, about ``length`` bytes of them. The first such batch is read even if it is longer."""

    disk: Disk
    target: ScrubTarget
    offset: int
    end: int
    length: int
    position: int
    """A byte of the segment at which a batch begins, at or before ``offset``."""
    base: int
    """The offset of the batch at ``position``."""
    epochs: LeaderEpochCache
    """A copy of the log's leader epochs, since the log may change meanwhile."""
    generation: int
    """The log's generation when the job was made."""

    def run(self) -> BatchesRead:
        """Read and check the batches, and return their fingerprints and the offset behind the last one. Blocks on the
        disk. Raises ``CorruptLog`` if the segment is damaged, and other ``OSError``s, which say nothing about the
        segment."""
        target = self.target
        try:
            file = self.disk.open(target.path)
        except OSError as error:
            if not target.is_full:
                raise
            raise lost(target.path, error) from error
        try:
            return self._read(file)
        finally:
            file.close()

    def _read(self, file: File) -> BatchesRead:
        """Read and check the batches in the open file, and return their fingerprints and the offset behind the last
        one. Raises ``CorruptLog`` if a batch is damaged, has an unexpected offset or names another leader epoch than
        the log."""
        target, position, offset = self.target, self.position, self.base
        used, found = 0, bytearray()
        path = target.path if target.is_full else None
        window = open_window(file, target.size, BATCHES_CHUNK_BYTES, path)
        try:
            while position < target.size:
                header = read_header(window.get(position, HEADER_BYTES))
                if header.end_offset > self.end or (used and used + header.batch_length > self.length):
                    break
                batch = window.get(position, min(header.batch_length, target.size - position))
                check_batch(batch)
                if header.base_offset != offset:
                    raise CorruptBatch(f"batch at offset {header.base_offset}, expected {offset}")
                if header.leader_epoch != self.epochs.epoch_before(offset + 1):
                    raise CorruptBatch(f"batch at offset {offset} names leader epoch {header.leader_epoch}")
                position += window.stored(header.batch_length)
                offset = header.end_offset
                if offset > self.offset:
                    found += pack(fingerprint_of(header, batch))
                    used += header.batch_length
        except CorruptBatch as error:
            raise CorruptLog(target.path, f"at byte {position}: {error.message}") from error
        return BatchesRead(offset, used, bytes(found))
