"""What the producers of a log had written up to some offset, beside the segments: ``producers-<offset>``.

Theory. The producers' state is a function of the log from its very beginning (``replication/producer_state.py``). A
snapshot holds it as of one offset, so that opening a log reads the headers behind the newest one only, and so that it
survives the segments that retention deletes: the one at the log start stays, and is durable before they go. A
snapshot names the hash chain at its offset; one that another log wrote, or an earlier state of this one above a cut,
is not believed, nor is one that is damaged. Then an older one serves. Where none does, not even the one at the log
start, what is in memory of the time before that start is taken, and at an opening, the headers from the start on
alone: then producers that have written nothing since are forgotten, and of a duplicate of the very first batch of one
of them nothing is known any more (later ones are refused, as they continue nothing). Both are reported as
``producers_forgotten``.

Those at rolls, and within a segment after many batches, are not synced: they are caches. Of them the newest ``KEPT``
stay. Writing one down takes as long as there are producers, up to a tenth of a second, so it is a job
(``WriteProducerSnapshot``) with a copy of the state, which is cheap. The log may be cut meanwhile, and snapshots
removed: a missing file is no error. A file that is there stays as it is: it may be that of a log start, which has
come there since the roll, and nothing else has its content.

The file, big-endian: magic ``TLPS``, offset i64, chain 16 bytes, CRC32C of everything else; then the state as
``ProducerState.to_bytes`` has it.

What the producers of a log had written below some offset, read from its files in a thread.

A log that is cut forgets what its producers wrote behind the cut, and what came before that is not in memory any
more: it is read from the newest snapshot at or below the cut and from the headers behind that. There is a snapshot
for every few thousand batches (``log.py``), but only the newest two are kept: a cut that goes deeper reads most of a
segment, or most of the log. And a snapshot of ten thousand producers takes half a second to be understood, also one
that a copy gets with which it starts over.

The segments belong to the job (``Segment.read_only_view``). What is appended meanwhile does it no harm; no other job
of the log runs beside it, and where the log is cut or thrown away meanwhile, its result is dropped.
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
_NAME = re.compile(r"producers-([0-9]{20})")
_HEAD = struct.Struct(">4sq16s")
_CRC = struct.Struct(">I")
_MAGIC = b"TLPS"


class Snapshots:
    """The snapshots in one log's directory. Every method may raise ``OSError``."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory

    def _path(self, offset: int) -> str:
        return f"{self._directory}/producers-{offset:020d}"

    def offsets(self, names: Sequence[str] | None = None) -> list[int]:
        """Of which offsets there is one, rising. ``names``: of all files that are there, if they are known."""
        found = map(_NAME.fullmatch, self._disk.listdir(self._directory) if names is None else names)
        return sorted(int(name[1]) for name in found if name)

    def write(self, offset: int, chain: bytes, state: bytes, *, sync: bool = False) -> None:
        """Write one down, of a state ``ProducerState.to_bytes``. With ``sync`` it is durable when its name is."""
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
        """The state at ``offset``, where the log's chain is ``chain``; None where there is none to be believed."""
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
        """The newest one from ``start`` to ``end`` that is to be believed, and its offset; None where there is
        none. ``names`` as for ``offsets``."""
        for offset in reversed(self.offsets(names)):
            if start <= offset <= end:
                boundary, chain = chain_at(offset)
                data = self.read(offset, chain) if boundary == offset else None
                state = None if data is None else state_of(data)
                if state is not None:
                    return offset, state
        return None

    def retire(self, needed: Collection[int]) -> None:
        """Remove all but the newest and those of the offsets ``needed``."""
        for offset in self.offsets()[:-KEPT]:
            if offset not in needed:
                self.forget(offset)

    def remove(self, *, below: int = 0, above: int = 2**63, names: Sequence[str] | None = None) -> None:
        """Remove those below and those above these offsets. ``names`` as for ``offsets``."""
        for offset in self.offsets(names):
            if offset < below or offset > above:
                self.forget(offset)

    def forget(self, offset: int) -> None:
        """Remove one that may be there."""
        remove(self._disk, self._path(offset))


def state_of(data: bytes) -> ProducerState | None:
    """The state of the producers in these bytes; None where they hold none."""
    try:
        return ProducerState.from_bytes(data)
    except ProtocolError:
        return None


@dataclass(frozen=True, slots=True)
class WriteProducerSnapshot:
    """Write down what the producers had written up to ``offset``, and remove snapshots of no more use: a job (see
    ``jobs.py``). No result."""

    disk: Disk
    directory: str
    offset: int
    chain: bytes
    producers: ProducerState
    """The job's own."""
    needed: tuple[int, ...]
    """Offsets whose snapshots stay."""
    generation: int

    def run(self) -> None:
        """Write the snapshot of the producers; see ``Job``."""
        snapshots = Snapshots(self.disk, self.directory)
        if snapshots.read(self.offset, self.chain) is None:  # else it may be the durable one of a new log start
            snapshots.write(self.offset, self.chain, self.producers.to_bytes())
        snapshots.retire(self.needed)


def producers_below(
    disk: Disk, directory: str, segments: Sequence[Segment], end: int, latest: ProducerState
) -> ProducerState:
    """The state as of ``end``, of the log that begins with ``segments``, consecutive and up to ``end`` at least; they
    are closed then. ``latest`` is the state at the log's end. Raises ``OSError``."""
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
    segment = next(segment for segment in reversed(segments) if segment.base <= offset)
    return segment.chain_at(offset)


@dataclass(frozen=True, slots=True)
class ReadProducers:
    """Understand a state of the producers ``ProducerState.to_bytes``: a job (see ``jobs.py``). The result is the
    state; None where it is none."""

    data: bytes

    def run(self) -> ProducerState | None:
        """Decode the state of the producers; see ``Job``."""
        return state_of(self.data)


@dataclass(frozen=True, slots=True)
class RebuildProducerState:
    """What a log must know to be cut at ``end``: a job (see ``jobs.py``). The result is the producers' state."""

    disk: Disk
    directory: str
    segments: tuple[Segment, ...]
    """The job's own."""
    end: int
    latest: ProducerState
    """At the log's end; the job's own."""
    generation: int

    def run(self) -> ProducerState:
        """Rebuild the state of the producers from the files; see ``Job``."""
        return producers_below(self.disk, self.directory, self.segments, self.end, self.latest)
