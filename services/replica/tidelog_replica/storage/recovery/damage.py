"""The repair of a closed log with a damaged segment: what happens to the files, step by step, as jobs.

Theory. Bytes that were durable are damaged or gone (``CorruptLog``), or cannot be read. The rest of the log is good
and is kept. The damaged segment is *quarantined*: renamed to ``<base>.quarantined``, where it can be examined.
Its records come from the leader. Two cases:

    hole    a segment follows. An empty ``<base>.repair`` is made before the damaged one is renamed. As long as it
            exists and ``<base>.log`` does not, the log has a hole from ``base`` to the beginning of the next segment,
            and is not opened. The repair file is filled batch by batch with the leader's batches, synced when it
            reaches the end of the hole, and renamed to ``<base>.log``.
    tail    no segment follows. The log ends before the damaged segment now: HW and recovery point are lowered first,
            durably. The records behind are fetched again like any others that a follower lacks.

If the damage is not that of one segment (the recovery point names a log that is gone), nothing of the log can be
relied on: every segment is quarantined, and the log begins anew.

If the leader's log begins behind the hole (retention was faster), nothing can fill it: the log begins behind it, too.

A batch that fills a hole must be whole and undamaged, begin exactly where the last one ended, and be of the leader
epoch that the log's own epochs have at that offset. A batch that does not fit shows that the log behind the hole
diverges from the leader's, too.

A filled hole must not bring back a deleted key (``storage/tombstones.py``) either. If the leader still has values
whose tombstones this log has dropped, or has dropped tombstones of values that this log still has, the hole is not
filled.

A crash at any step leaves a hole, or a log that opens, or one that is found damaged again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tidelog.batch.format import check_batch, split
from tidelog.errors import CorruptBatch
from tidelog.runtime.disk import Disk
from tidelog.types import Buffer

from tidelog_replica.replication.leader_epochs import LeaderEpochCache
from tidelog_replica.storage.checkpoints import (
    HIGHEST_COMMITTED,
    PENDING_LOSSES,
    HighWatermarkCheckpoint,
    LogStartCheckpoint,
    OffsetCheckpoint,
    read_cache,
    read_log_start,
    seed_of,
    write_log_start,
)
from tidelog_replica.storage.encryption.files import stored_size
from tidelog_replica.storage.producer_snapshots import Snapshots, state_of
from tidelog_replica.storage.recovery.recovery import EPOCHS, RECOVERY_POINT
from tidelog_replica.storage.segment import CorruptLog, Segment, close, remove
from tidelog_replica.storage.tombstones import UNKNOWN, Compacted, Deletions

_SEGMENT = re.compile(r"([0-9]{20})\.(log|repair)")
QUARANTINED = ".quarantined"


@dataclass(frozen=True, slots=True)
class Hole:
    """The missing offsets ``base`` to ``end`` (exclusive) of a log that is closed for repair, where a segment was
    quarantined. ``last_epoch`` is the leader epoch of the record before the hole; -1 if there is none."""

    base: int
    end: int
    last_epoch: int = -1


class DivergentRepair(Exception):
    """The reason why a log cannot be repaired from its leader: the leader's batches do not fit into the hole or to
    the log behind it. Jobs return it as their result and do not raise it."""


def base_of(error: CorruptLog) -> int | None:
    """Return the base offset of the segment that ``error`` calls damaged; None if the error is about the log as a
    whole."""
    found = _SEGMENT.fullmatch(str(error.filename or "").rpartition("/")[2])
    return int(found[1]) if found else None


def find_hole(disk: Disk, path: str, names: Sequence[str]) -> CorruptLog | None:
    """Return a ``CorruptLog`` that names the first hole in the log at ``path``, which an earlier process has left;
    None if there is no hole. A hole below the log start does not count. ``names`` are the names of all files in the
    directory."""
    bases = _kinds(names)
    holes = [base for base, kinds in sorted(bases.items()) if "log" not in kinds]
    stored = read_log_start(disk, path) if holes else None
    start = stored.start if stored is not None and "log" in bases.get(stored.start, ()) else 0
    hole = next((base for base in holes if base >= start), None)
    return None if hole is None else CorruptLog(_name(path, hole, "log"), "it is quarantined and not repaired yet")


def _bases(disk: Disk, path: str) -> dict[int, list[str]]:
    """Return which of the files ``<base>.log`` and ``<base>.repair`` exist in the directory: for each base offset
    their endings."""
    return _kinds(disk.listdir(path))


def _kinds(names: Sequence[str]) -> dict[int, list[str]]:
    """Return which of the files ``<base>.log`` and ``<base>.repair`` are among ``names``: for each base offset their
    endings."""
    bases: dict[int, list[str]] = {}
    for name in names:
        found = _SEGMENT.fullmatch(name)
        if found:
            bases.setdefault(int(found[1]), []).append(found[2])
    return bases


def _name(path: str, base: int, kind: str) -> str:
    """Return the path of the file ``<base>.<kind>`` in the log's directory ``path``."""
    return f"{path}/{base:020d}.{kind}"


def _quarantine(disk: Disk, path: str, base: int) -> None:
    """Rename the file of a segment to ``<base>.quarantined``, where the log does not find it any more, and delete its
    index file. Nothing is synced."""
    disk.rename(_name(path, base, "log"), _name(path, base, "log")[: -len(".log")] + QUARANTINED)
    try:
        disk.unlink(_name(path, base, "index"))
    except FileNotFoundError:
        return


@dataclass(frozen=True, slots=True)
class Quarantine:
    """A job that quarantines the damaged segment at offset ``base`` of a closed log: its file is renamed so that the
    log does not find it. With ``cut`` every later segment is quarantined as well."""

    disk: Disk
    path: str
    base: int
    cut: bool = False

    def run(self) -> Hole | None:
        """Rename the segment's file, durably, leave an empty repair file in its place, and return the ``Hole``. If no
        segment follows, or with ``cut``, the log ends at ``base`` afterwards: HW and recovery point are lowered
        first, an empty segment is made there, and None is returned. May be repeated after a crash. Raises
        ``OSError``."""
        disk, path, base = self.disk, self.path, self.base
        bases = _bases(disk, path)
        following = min((b for b in bases if b > base), default=None)
        if self.cut or following is None:
            self._cut(bases)
            return None
        if "log" in bases.get(base, ()):
            disk.open(_name(path, base, "repair"), create=True).close()
            disk.sync_dir(path)
            _quarantine(disk, path, base)
            disk.sync_dir(path)
        return Hole(base, following, _epochs(disk, path).epoch_before(base))

    def _cut(self, bases: dict[int, list[str]]) -> None:
        """Lower HW and recovery point to ``base``, quarantine the segments from there on, and create an empty segment
        at ``base``, durably."""
        disk, path, base = self.disk, self.path, self.base
        HighWatermarkCheckpoint(disk, path, disk.listdir(path)).lack(base)
        OffsetCheckpoint(disk, f"{path}/{RECOVERY_POINT}").write(base, sync=True)
        for each in sorted((b for b in bases if b >= base), reverse=True):
            if "log" in bases[each]:
                _quarantine(disk, path, each)
            if "repair" in bases[each]:
                disk.unlink(_name(path, each, "repair"))
        disk.open(_name(path, base, "log"), create=True).close()
        disk.sync_dir(path)


@dataclass(frozen=True, slots=True)
class StartOver:
    """A job that quarantines all segments of a closed log, so that the next opening makes a new, empty log. Only the
    highest committed offset and the pending losses are kept, so that this copy can report what is lost if it is
    elected because no better one is left."""

    disk: Disk
    path: str

    def run(self) -> None:
        """Lower HW and recovery point to 0, rename all segments to ``.quarantined``, and delete the other files
        except the two that are kept, durably. The newest segment is renamed first, so that a crash leaves a beginning
        of the log. Raises ``OSError``."""
        disk, path = self.disk, self.path
        HighWatermarkCheckpoint(disk, path, disk.listdir(path)).lack(0)
        OffsetCheckpoint(disk, f"{path}/{RECOVERY_POINT}").write(0, sync=True)
        for base, kinds in sorted(_bases(disk, path).items(), reverse=True):
            if "log" in kinds:
                _quarantine(disk, path, base)
                disk.sync_dir(path)
        for name in disk.listdir(path):
            if not name.endswith(QUARANTINED) and name not in (HIGHEST_COMMITTED, PENDING_LOSSES):
                disk.unlink(f"{path}/{name}")
        disk.sync_dir(path)


@dataclass(frozen=True, slots=True)
class FillHole:
    """A job that writes batches from the leader into the repair file of a hole, from ``offset`` on, at byte ``size``
    of the file. ``source`` says how far the leader's log was compacted when the batches were read."""

    disk: Disk
    path: str
    hole: Hole
    offset: int
    size: int
    batches: Buffer
    source: Compacted = UNKNOWN

    def run(self) -> tuple[int, int] | DivergentRepair:
        """Check the batches and append those below the hole's end to the repair file; sync the file if it reaches
        that end. Return the offset and the size in bytes that the file has reached. Return a ``DivergentRepair``, and
        write nothing, if a batch is damaged or does not fit, or if compaction forbids the repair. Raises
        ``OSError``."""
        deletions = Deletions(self.disk, self.path, self.disk.listdir(self.path))
        fault = deletions.fault_of_fill(self.hole.base, self.source)
        if fault is not None:
            return DivergentRepair(fault)
        epochs, offset = _epochs(self.disk, self.path), self.offset
        taken: list[Buffer] = []
        try:
            for _, batch in split(memoryview(self.batches)):
                header = check_batch(batch)
                if header.base_offset >= self.hole.end:
                    break
                if header.base_offset != offset or header.end_offset > self.hole.end:
                    return DivergentRepair(
                        f"batch of offsets {header.base_offset} to {header.end_offset}, expected {offset}"
                    )
                epoch = epochs.epoch_before(header.base_offset + 1)
                if header.leader_epoch != epoch:
                    return DivergentRepair(f"batch at {offset} is of leader epoch {header.leader_epoch}, not {epoch}")
                taken.append(batch)
                offset = header.end_offset
        except CorruptBatch as error:
            return DivergentRepair(error.message)
        deletions.before_fill(self.hole.base, self.source)
        file = self.disk.open(_name(self.path, self.hole.base, "repair"), create=True)
        try:
            if not self.size:
                file.truncate(0)
            file.pwritev(taken, self.size)
            if offset == self.hole.end:
                file.sync()
        finally:
            file.close()
        return offset, self.size + sum(stored_size(file, len(batch)) for batch in taken)


@dataclass(frozen=True, slots=True)
class CloseHole:
    """A job that ends the repair of a hole: it turns the repair file, which must be full and synced, into the
    segment."""

    disk: Disk
    path: str
    hole: Hole

    def run(self) -> None:
        """Rename the repair file to the segment's file, durably. Raises ``OSError``."""
        self.disk.rename(_name(self.path, self.hole.base, "repair"), _name(self.path, self.hole.base, "log"))
        self.disk.sync_dir(self.path)


@dataclass(frozen=True, slots=True)
class BeginBehind:
    """A job that moves the start of a closed log behind its hole, to ``log_start``, where the leader's log begins
    now. ``producers`` is the producer state there as the leader sent it, since the records that would show it are
    missing here."""

    disk: Disk
    path: str
    log_start: LogStartCheckpoint
    producers: bytes

    def run(self) -> int | DivergentRepair:
        """Write the producer snapshot and the new log start, durably, delete the files below, and return the offset
        of the new start. Return a ``DivergentRepair``, and change nothing, if no sound segment begins there with the
        leader's epoch and hash chain, or if the producer state is malformed. Files that a crash leaves below the
        start are deleted at the next opening. Raises ``OSError``."""
        disk, path, bases, start = self.disk, self.path, _bases(self.disk, self.path), self.log_start.start
        if self._own(bases) != self.log_start or state_of(self.producers) is None:
            return DivergentRepair(f"no segment that is left begins where the leader's log does, at {start}")
        Snapshots(disk, path).write(start, self.log_start.chain, self.producers, sync=True)
        disk.sync_dir(path)
        write_log_start(disk, path, self.log_start)
        for base in sorted(base for base in bases if base < start):
            for kind in bases[base]:
                disk.unlink(_name(path, base, kind))
            remove(disk, _name(path, base, "index"))
        disk.sync_dir(path)
        return start

    def _own(self, bases: dict[int, list[str]]) -> LogStartCheckpoint | None:
        """Return this log's own leader epoch and hash chain before the offset of the new start; None if no sound
        segment begins there."""
        start = self.log_start.start
        if "log" not in bases.get(start, ()):
            return None
        segment = Segment(self.disk, self.path, start)
        try:
            summary = segment.summary()
        finally:
            close(segment)
        if summary is None:
            return None
        return LogStartCheckpoint(start, _epochs(self.disk, self.path).epoch_before(start), summary.chain_before)


def _epochs(disk: Disk, path: str) -> LeaderEpochCache:
    """Return the leader epochs in the leader-epoch file of the log; an empty cache if the file is missing, and the
    entries before the damage if it is damaged."""
    return LeaderEpochCache.from_bytes(read_cache(disk, f"{path}/{EPOCHS}"), seed_of(path))[0]
