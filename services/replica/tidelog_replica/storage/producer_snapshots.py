"""Producer snapshots: the state of a log's producers at some offset, in files ``producers-<offset>`` beside the
segments.

Theory. The producer state is a function of the log from its very beginning (``replication/producer_state.py``). A
snapshot holds the state at one offset. So opening a log reads only the headers behind the newest snapshot, and the
state survives the segments that retention deletes: the snapshot at the log start stays, and is durable before they
are deleted. A snapshot names the hash chain at its offset. It is not used if it is damaged, if another log wrote it,
or if this log wrote it above a later cut; then an older one is used. If there is none, not even one at the log start,
the state before that start is what memory holds of it; at an opening, only the headers from the start on give it.
Then producers that have written nothing since are forgotten, and a duplicate of the very first batch of such a
producer is not recognised (its later batches are refused, since they continue nothing). Both cases are reported as
``producers_forgotten``.

The snapshots at rolls, and within a segment after many batches, are not synced: they are caches, of which the newest
``KEPT`` stay. Writing one takes up to a tenth of a second, in proportion to the producers. So it is a job
(``WriteProducerSnapshot``) with a copy of the state, which is cheap. The log may be cut meanwhile, and snapshots
removed: a missing file is no error. An existing file stays as it is: it may be that of a log start that has moved
there since the roll, and nothing else has its content.

The file, big-endian: magic ``TLPS``, offset i64, chain 16 bytes, CRC32C of everything else; then the state as
``ProducerState.to_bytes`` has it.

A log that is cut needs the producer state at the cut, which memory does not hold any more. It is read from the newest
snapshot at or below the cut and from the headers behind that. There is a snapshot for every few thousand batches
(``log.py``), but only the newest two are kept: a deeper cut reads most of a segment, or most of the log. Decoding a
snapshot of ten thousand producers takes half a second, also one that another server sends to a copy that starts over.
So both are jobs, ``RebuildProducerState`` and ``ReadProducers``.

The segments belong to the job (``Segment.read_only_view``). Appends meanwhile do no harm. No other job of the log
runs beside it, and if the log is cut or reset meanwhile, its result is discarded.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from crc32c import crc32c
from tidelog.errors import ProtocolError
from tidelog.runtime.disk import Disk

from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.storage.checkpoints import read_cache
from tidelog_replica.storage.segment import Segment, close, remove

KEPT = 2
"""How many of the newest snapshots are kept, besides those that a log start needs."""
_NAME = re.compile(r"producers-([0-9]{20})")
_HEAD = struct.Struct(">4sq16s")
_CRC = struct.Struct(">I")
_MAGIC = b"TLPS"


class Snapshots:
    """The producer snapshots in one log's directory, each named after its offset. Every method may raise
    ``OSError``."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory

    def _path(self, offset: int) -> str:
        """Return the path of the snapshot at ``offset``."""
        return f"{self._directory}/producers-{offset:020d}"

    def offsets(self, names: Sequence[str] | None = None) -> list[int]:
        """Return the offsets of all snapshots in the directory, ascending. ``names`` are the names of all files
        there, if the caller has them; otherwise the directory is listed."""
        found = map(_NAME.fullmatch, self._disk.listdir(self._directory) if names is None else names)
        return sorted(int(name[1]) for name in found if name)

    def write(self, offset: int, chain: bytes, state: bytes, *, sync: bool = False) -> None:
        """Write a snapshot file for ``offset`` with ``state``, the producer state as bytes of
        ``ProducerState.to_bytes``, and ``chain``, the log's hash chain at that offset. An older file is overwritten.
        With ``sync`` the content is durable; its name is durable only after a ``sync_dir``."""
        head = _HEAD.pack(_MAGIC, offset, chain)
        file = self._disk.open(self._path(offset), create=True)
        try:
            file.truncate(0)
            file.pwritev([head, _CRC.pack(crc32c(state, crc32c(head))), state], 0)
            if sync:
                file.sync()
        finally:
            file.close()

    def read(self, offset: int, chain: bytes) -> bytes | None:
        """Return the producer state in the snapshot at ``offset``, as bytes. Return None if there is no such
        snapshot, if it is damaged, or if it was written for a log with another hash chain than ``chain`` at that
        offset."""
        data = read_cache(self._disk, self._path(offset))
        head, state = data[: _HEAD.size], data[_HEAD.size + _CRC.size :]
        if len(data) < _HEAD.size + _CRC.size or head != _HEAD.pack(_MAGIC, offset, chain):
            return None
        return state if _CRC.unpack_from(data, _HEAD.size)[0] == crc32c(state, crc32c(head)) else None

    def newest(
        self,
        start: int,
        end: int,
        chain_at: Callable[[int], tuple[int, bytes]],
        names: Sequence[str] | None = None,
    ) -> tuple[int, ProducerState] | None:
        """Return the offset and the producer state of the newest sound snapshot from offset ``start`` to ``end``,
        both inclusive; None if there is none. ``chain_at`` returns the log's last batch boundary at or below an
        offset, and the hash chain up to it; a snapshot counts only if that agrees. ``names`` are the names of all
        files in the directory, if the caller has them."""
        for offset in reversed(self.offsets(names)):
            if start <= offset <= end:
                boundary, chain = chain_at(offset)
                data = self.read(offset, chain) if boundary == offset else None
                state = None if data is None else state_of(data)
                if state is not None:
                    return offset, state
        return None

    def retire(self, needed: Collection[int]) -> None:
        """Delete all snapshots except the newest ``KEPT`` and those at the offsets in ``needed``."""
        for offset in self.offsets()[:-KEPT]:
            if offset not in needed:
                self.forget(offset)

    def remove(self, *, below: int = 0, above: int = 2**63, names: Sequence[str] | None = None) -> None:
        """Delete the snapshots whose offset is below ``below`` or above ``above``; by default none. ``names`` are the
        names of all files in the directory, if the caller has them."""
        for offset in self.offsets(names):
            if offset < below or offset > above:
                self.forget(offset)

    def forget(self, offset: int) -> None:
        """Delete the snapshot at ``offset``; does nothing if there is none."""
        remove(self._disk, self._path(offset))


def state_of(data: bytes) -> ProducerState | None:
    """Return the producer state that ``data``, bytes of ``ProducerState.to_bytes``, describes; None if the bytes are
    malformed."""
    try:
        return ProducerState.from_bytes(data)
    except ProtocolError:
        return None


@dataclass(frozen=True, slots=True)
class WriteProducerSnapshot:
    """A job that writes the producer state at ``offset`` to a snapshot file and deletes snapshots that are no longer
    needed. ``Log.begin_snapshot`` makes it, a thread runs it, and then it goes to ``Log.complete_snapshot``."""

    disk: Disk
    directory: str
    offset: int
    chain: bytes
    producers: ProducerState
    """The producer state at ``offset``; a copy that belongs to the job."""
    needed: tuple[int, ...]
    """Offsets whose snapshots must be kept."""
    generation: int

    def run(self) -> None:
        """Write the snapshot, unsynced, unless a sound one exists at that offset. Then delete all older snapshots
        except the newest few and those in ``needed``. Raises ``OSError``."""
        snapshots = Snapshots(self.disk, self.directory)
        if snapshots.read(self.offset, self.chain) is None:  # that of a new log start is durable
            snapshots.write(self.offset, self.chain, self.producers.to_bytes())
        snapshots.retire(self.needed)


def producers_below(
    disk: Disk, directory: str, segments: Sequence[Segment], end: int, latest: ProducerState
) -> ProducerState:
    """Return the producer state of a log at offset ``end``, made from the newest sound snapshot at or below it and
    the batch headers behind that. ``segments`` are the log's first segments; they are consecutive and reach to
    ``end`` at least, and their files are closed afterwards. ``latest`` is the producer state at the log's end:
    without a snapshot, the state before the log start is taken from it. Raises ``OSError``."""
    start = segments[0].base
    try:
        found = Snapshots(disk, directory).newest(start, end, partial(_chain_at, segments))
        offset, producers = found or (start, latest.before(start))
        for segment in segments:
            if segment.end_offset <= offset:
                continue
            for header in segment.headers(offset):
                if header.end_offset > end:
                    break
                producers.record(header, header.base_offset)
    finally:
        for segment in segments:
            close(segment)
    return producers


def _chain_at(segments: Sequence[Segment], offset: int) -> tuple[int, bytes]:
    """Return the last batch boundary at or below ``offset`` in ``segments``, and the hash chain of the log up to that
    boundary."""
    segment = next(segment for segment in reversed(segments) if segment.base <= offset)
    return segment.chain_at(offset)


@dataclass(frozen=True, slots=True)
class ReadProducers:
    """A job that decodes ``data``, a producer state that another server has sent for a copy that starts over. It
    takes up to half a second."""

    data: bytes

    def run(self) -> ProducerState | None:
        """Return the decoded producer state; None if the bytes are malformed."""
        return state_of(self.data)


@dataclass(frozen=True, slots=True)
class RebuildProducerState:
    """A job that computes the producer state of a log at offset ``end``, where the log is to be cut.
    ``Log.begin_rebuild`` makes it, a thread runs it, and ``Log.truncate`` takes its result."""

    disk: Disk
    directory: str
    segments: tuple[Segment, ...]
    """Read-only views of the log's segments up to ``end``. They belong to the job."""
    end: int
    latest: ProducerState
    """The producer state at the log's end; a copy that belongs to the job."""
    generation: int

    def run(self) -> ProducerState:
        """Return the producer state at ``end``, made from the newest sound snapshot and the batch headers behind it.
        Closes the files of the segments' views. Raises ``OSError``."""
        return producers_below(self.disk, self.directory, self.segments, self.end, self.latest)
