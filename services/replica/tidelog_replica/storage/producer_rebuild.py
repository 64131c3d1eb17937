"""What the producers of a log had written below some offset, read from its files in a thread.

A log that is cut forgets what its producers wrote behind the cut, and what came before that is not in memory any
more: it is read from the newest snapshot at or below the cut and from the headers behind that. There is a snapshot
for every few thousand batches (``log.py``), but only the newest two are kept: a cut that goes deeper reads most of a
segment, or most of the log. And a snapshot of ten thousand producers takes half a second to be understood, also one
that a copy gets with which it starts over.

The segments belong to the job (``Segment.twin``). What is appended meanwhile does it no harm; no other job of the log
runs beside it, and where the log is cut or thrown away meanwhile, nobody wants its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from tidelog.disk import Disk

from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.storage.producer_snapshots import Snapshots, state_of
from tidelog_replica.storage.segment import Segment, close


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
class Recall:
    """What a log must know to be cut at ``end``: a job (see ``jobs.py``). The result is the producers' state."""

    disk: Disk
    directory: str
    segments: tuple[Segment, ...]
    """The job's own."""
    end: int
    latest: ProducerState
    """At the log's end; nobody else's."""
    generation: int

    def run(self) -> ProducerState:
        """Rebuild the state of the producers from the files; see ``Job``."""
        return producers_below(self.disk, self.directory, self.segments, self.end, self.latest)
