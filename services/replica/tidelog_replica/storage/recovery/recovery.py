"""Opening a log: which bytes on the disk are the log, and which are left of a write that never finished.

Theory. A file beside the segments holds the *recovery point*: an offset below which everything had been synced when
it was written (``OffsetCheckpoint``). It is written after a flush and lowered durably before a truncation, so it is
never too high. It decides what a bad batch means, wherever the batch is:

- at or past the recovery point, with nothing whole behind it: a torn write, a tail of zeros, garbage. No producer has
  an ack for these bytes. The log is cut at the first bad batch;
- at or past the recovery point, with whole batches behind it, in this segment or a later one: the tail is doubtful
  (``storage/recovery/doubtful_tail.py``). Opening raises ``DoubtfulLog`` and cuts nothing, until a tail file shows
  that the doubt is settled;
- below the recovery point: the bytes were durable and may have been acked; the disk lost or changed them. Cutting the
  log there would silently drop acked records, so opening raises ``CorruptLog``. A log that ends before its recovery
  point is damaged in the same way.

The high watermark that was written down has the same meaning if it is higher: it is never above what was durable.
Only under flush policy ``os`` a power loss may have taken records below it. Then the log is cut nevertheless, and
records what it lacks (``storage/checkpoints.py``); its server has reported to the controller that no other server is
to rely on it.

The recovery point is synced together with a flush when it has passed another full segment, or when
``RECOVERY_POINT_BYTES`` (``log.py``) were appended since it was last synced. So after a power loss at most that many
durable bytes lie above it, and those of one flush: damage below it is never taken for a torn write.

Without a readable recovery point, everything below the last segment counts as synced, and nothing in it. A segment
that the disk cannot read (EIO) is damaged, wherever it is; any other file that cannot be read counts as missing.

Every batch from the segment that holds the recovery point on is read whole: CRC, consecutive offsets, leader epoch.
Segments that end at or before the recovery point are trusted if their index file describes them. Otherwise they are
read whole, too, and the index made of them is what later reads are checked against. They must join without a gap. The
last segment, too, is trusted if it ends at the recovery point and an index file describes it. A log that is closed
leaves such a file behind, so a clean start reads no batch.

Records above the recovery point are written again, with the same bytes, before they are synced and count. A flush
that failed in an earlier process may have left them in the page cache as clean, where they can be read and no sync
makes them durable.

The log begins at the offset in its ``log-start`` file (``storage/checkpoints.py``). Segments below that are left from
a retention; a first segment above it means damage. Without that file, or with another log's, it begins with its first
segment.

The CRC does not cover base offset and leader epoch (the leader stamps them). The offsets are proved by being
consecutive. The epochs are proved by the leader-epoch file, which is synced with or before the data that it
describes: a batch whose epoch that file does not name is bad like one with a bad CRC. Only where that file itself is
missing or damaged do the headers of synced batches give the epochs, and the file is made again.

After recovery everything in the log is synced. A log that ends at the recovery point is synced already: a clean start
syncs nothing. The recovery point does not cover two things: the names that this recovery, or an earlier process, has
given or deleted last, and an epoch in which nothing was written. They wait for the next flush, which syncs the
directory and comes before the recovery point moves: a deleted index file that came back with a crash could fit the
segment when that has grown to its former length.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from tidelog.batch.format import HEADER_BYTES, MAX_OFFSET, BatchHeader, check_batch, read_header
from tidelog.errors import CorruptBatch
from tidelog.runtime.disk import Disk, File
from tidelog.types import Buffer

from tidelog_replica.replication.leader_epochs import LeaderEpochCache
from tidelog_replica.storage.checkpoints import CLEANED as CLEANED
from tidelog_replica.storage.checkpoints import EPOCHS as EPOCHS
from tidelog_replica.storage.checkpoints import HIGH_WATERMARK as HIGH_WATERMARK
from tidelog_replica.storage.checkpoints import LOG_START as LOG_START
from tidelog_replica.storage.checkpoints import RECOVERY_POINT as RECOVERY_POINT
from tidelog_replica.storage.checkpoints import (
    REPAIR,
    RESET,
    HighWatermarkCheckpoint,
    LogStartCheckpoint,
    OffsetCheckpoint,
    read_cache,
    read_log_start,
    seed_of,
)
from tidelog_replica.storage.encryption.files import rewrite
from tidelog_replica.storage.producer_snapshots import Snapshots
from tidelog_replica.storage.recovery import reset
from tidelog_replica.storage.recovery.doubtful_tail import (
    DoubtfulLog,
    KnownEpochs,
    drop_tails,
    find_behind,
    tail_of,
    tail_start,
)
from tidelog_replica.storage.segment import CorruptLog, Segment, close, remove
from tidelog_replica.storage.segment_reader import BATCHES_CHUNK_BYTES, open_window

_SEGMENT_NAME = re.compile(r"[0-9]{20}\.log")
_INDEX_NAME = re.compile(r"[0-9]{20}\.index")
_LEFT_OVER = re.compile(rf"[0-9]{{20}}(\.log{re.escape(CLEANED)}|{re.escape(REPAIR)})")


@dataclass(slots=True)
class Recovered:
    """The log that recovery found in a directory, or made there, from which a ``Log`` is built. Everything in it is
    synced. ``segments`` is never empty, and its last one becomes the active segment."""

    segments: list[Segment]
    log_start: LogStartCheckpoint
    epochs: LeaderEpochCache
    epochs_file: File
    recovery_point: OffsetCheckpoint
    committed: HighWatermarkCheckpoint
    epochs_unsure: bool
    """Whether an earlier process may have failed to sync the end of the leader-epoch file. That end is written again
    before it counts."""
    names: list[str]
    """The names of all files that were in the directory; those that do not belong to segments still exist."""

    def close(self) -> None:
        """Close the files of the segments and the leader-epoch file, because no ``Log`` is built from them."""
        for segment in self.segments:
            close(segment)
        self.epochs_file.close()


def recover(disk: Disk, directory: str, *, intact: bool = True, has_peers: bool = False) -> Recovered:
    """Read the log in ``directory``, or make a new one. A torn end is cut off, leftovers of a crash are deleted, the
    rest is synced, and a ``Recovered`` is returned. If there is a tail file, a doubtful tail is cut and the batches
    in that file are appended. ``intact`` says that a power loss takes nothing that was durable under the log's flush
    policy. ``has_peers`` says that other replicas can be asked whether a bad end was a torn write. Raises
    ``DoubtfulLog`` if they must be asked, ``CorruptLog`` if durable bytes are damaged, and other ``OSError``s; no
    file is left open then."""
    segments: list[Segment] = []
    try:
        return _recover(disk, directory, segments, intact, has_peers)
    except OSError:
        for segment in segments:
            close(segment)
        raise


def _recover(disk: Disk, directory: str, segments: list[Segment], intact: bool, has_peers: bool) -> Recovered:
    """Do the work of ``recover``: read or make the log in ``directory``, clean it up, sync it and return it. Each
    opened segment is added to ``segments``, so that the caller can close them if this raises."""
    disk.mkdir(directory)
    names = disk.listdir(directory)
    if RESET in names:
        reset.finish(disk, directory)
        names = disk.listdir(directory)
    bases = sorted(int(name[:20]) for name in names if _SEGMENT_NAME.fullmatch(name))
    point = OffsetCheckpoint(disk, f"{directory}/{RECOVERY_POINT}")
    committed = HighWatermarkCheckpoint(disk, directory, names)
    high_watermark = committed.high_watermark if intact else 0
    stored = read_log_start(disk, directory)
    if not bases:
        sure = max(point.value or 0, high_watermark) or (0 if stored is None else stored.start)
        if sure:
            raise CorruptLog(directory, f"no segment is left of a log that was synced to offset {sure}")
        bases = [0]
        disk.open(f"{directory}/{0:020d}.log", create=True).close()
    retired = _retired(directory, bases, stored)
    del bases[: len(retired)]
    floor = bases[-1] if point.value is None else point.value
    promised = max(floor, high_watermark)
    believed = stored if stored is not None and stored.start == bases[0] else None
    epochs = _Epochs(disk, directory, floor if point.value is not None else None, believed)
    segments += [Segment(disk, directory, base) for base in bases]
    log_start = believed or _found_log_start(segments[0], epochs)
    segments[0].begin_at(log_start.chain)
    trusted = sum(base <= floor for base in bases[1:])
    for segment, following in pairwise(segments[: trusted + 1]):
        _trust(segment, following.base, epochs)
        following.begin_at(segment.chain)
    if trusted == len(bases) - 1 and point.value == promised and epochs.whole and segments[-1].trust(promised):
        close(segments[-1])
        cut = False
    else:
        end_check = _EndCheck(
            epochs, promised, tail_start(names), partial(tail_of, disk, directory, names), has_peers
        )
        kept, cut = _check(segments[trusted:], -1 if point.value is None else floor, end_check)
        dropped = segments[trusted + kept :]
        _drop(dropped)
        del segments[trusted + kept :]
        _renew_indexes(disk, segments[trusted:])
        cut = cut or bool(dropped)
    tail = tail_of(disk, directory, names, segments[-1].end_offset)
    _append(segments[-1], tail, epochs)
    end = segments[-1].end_offset
    unsynced = point.value is None or end > floor or cut or bool(tail)
    if stored != log_start:
        _write(disk, f"{directory}/{LOG_START}", log_start.to_bytes(directory))
        unsynced = True
    _clear(disk, directory, names, retired, segments)
    if unsynced:
        for segment in segments[trusted:]:
            if segment.size or cut:
                segment.file.sync()
    epochs_unsure = epochs.save(log_start.start, end, unsynced)
    drop_tails(disk, directory, names)
    if unsynced:
        _move_recovery_point(disk, directory, point, committed, end)
    for segment in segments:
        close(segment)
    committed.lack(end)
    epochs_file = disk.open(f"{directory}/{EPOCHS}", create=True)
    return Recovered(segments, log_start, epochs.cache, epochs_file, point, committed, epochs_unsure, names)


def _move_recovery_point(
    disk: Disk, directory: str, point: OffsetCheckpoint, committed: HighWatermarkCheckpoint, end: int
) -> None:
    """Write ``end``, the end of a log whose files are synced, as its recovery point. The names of the files are
    synced first, since the recovery point covers them, too. If the recovery point has no file yet, its file and that
    of the high watermark are created, durably; otherwise the write is not synced."""
    if point.value is not None or end:
        disk.sync_dir(directory)
    if point.value is None:
        committed.write(committed.high_watermark)  # makes the file now, while no other work waits for the disk
        point.write(end, sync=True)
        disk.sync_dir(directory)
    point.write(end)


def _retired(directory: str, bases: list[int], stored: LogStartCheckpoint | None) -> list[int]:
    """Return the base offsets of the segments that lie below the log start in ``stored``, oldest first; an empty list
    without a log start, or if it lies within a segment. Raises ``CorruptLog`` if all segments begin above the log
    start."""
    if stored is None or (stored.start not in bases and bases[0] < stored.start):
        return []
    if stored.start not in bases:
        raise CorruptLog(directory, f"the log begins at {stored.start}, but its first segment at {bases[0]}")
    return bases[: bases.index(stored.start)]


def _found_log_start(first: Segment, epochs: _Epochs) -> LogStartCheckpoint:
    """Return the log start for a log without a sound ``log-start`` file: the base of its first segment, with the
    leader epoch and the hash chain before it as the other files show them. If the hash chain is unknown, it begins
    anew."""
    if not first.base:
        return LogStartCheckpoint()
    summary = first.summary()
    chain = LogStartCheckpoint().chain if summary is None else summary.chain_before
    return LogStartCheckpoint(first.base, epochs.cache.epoch_before(first.base), chain)


def _write(disk: Disk, path: str, data: bytes, *, anew: bool = True) -> None:
    """Write ``data`` to the file at ``path`` and sync it. With ``anew`` the file is emptied first; without, it holds
    the same bytes already and is only written over."""
    file = disk.open(path, create=True)
    try:
        if anew:
            file.truncate(0)
        file.pwritev([data], 0)
        file.sync()
    finally:
        file.close()


def _clear(disk: Disk, directory: str, names: list[str], retired: list[int], segments: list[Segment]) -> None:
    """Delete the files that a crash has left in the directory: retired segments, half-made files, the indexes of
    segments that are gone, and producer snapshots outside of the log. Such an index might fit a later segment of the
    same length. A repair file must not stay either: it would look like a hole when its segment has been deleted by
    retention. A file that comes back with the next crash is deleted at the next opening; none comes back under a
    segment that the recovery point covers."""
    for base in retired:
        remove(disk, f"{directory}/{base:020d}.log")
    known = {segment.index_path for segment in segments}
    for name in names:
        path = f"{directory}/{name}"
        if _LEFT_OVER.fullmatch(name) or (_INDEX_NAME.fullmatch(name) and path not in known):
            remove(disk, path)
    Snapshots(disk, directory).remove(below=segments[0].base, above=segments[-1].end_offset, names=names)


class _Epochs:
    """The content of the leader-epoch file of a log while the log is opened. The leader epochs in the batches are
    checked against it. If the file is missing or damaged, it is completed from the headers of synced batches."""

    def __init__(
        self, disk: Disk, directory: str, recovery_point: int | None, stored: LogStartCheckpoint | None
    ) -> None:
        self._disk = disk
        self._path = f"{directory}/{EPOCHS}"
        self._recovery_point = recovery_point
        self._data = read_cache(disk, self._path)
        self._seed = seed_of(directory)
        self.cache, self.whole = LeaderEpochCache.from_bytes(self._data, self._seed)
        """Whether the file exists and is undamaged: then an epoch that it does not name does not exist."""
        if stored is not None and stored.last_epoch > self.cache.latest():  # the start was durable before this file
            self.cache.truncate_to(stored.start)
            self.cache.assign(stored.last_epoch, max(0, stored.start - 1))

    def fault_of(self, header: BatchHeader) -> str | None:
        """Return a text that says why the log cannot hold this batch with the leader epoch in its header; None if it
        can. If the file is damaged, an epoch in the header of a synced batch is believed and added."""
        cache, epoch, base = self.cache, header.leader_epoch, header.base_offset
        if cache.epoch_before(base + 1) == epoch:
            return None
        are_from_headers = not self.whole and (self._recovery_point is None or base < self._recovery_point)
        if are_from_headers and epoch > cache.latest() and base >= (cache.entries or [(0, 0)])[-1][1]:
            cache.assign(epoch, base)
            return None
        return f"batch at offset {base} names leader epoch {epoch}, which began elsewhere"

    @property
    def known(self) -> KnownEpochs:
        """Return the leader epochs that the file, and the batches that were read, show."""
        return KnownEpochs(self.cache, self.whole)

    def save(self, start: int, end: int, unsynced: bool) -> bool:
        """Remove the epochs that begin above offset ``end`` or are older than the one before ``start``, and write the
        file if its content has changed. The file is synced then, and also if the segments were ``unsynced``. Return
        whether entries at or above the recovery point may not be durable: an earlier process may have failed to sync
        them, and no later sync covers them unless they are written again."""
        self.cache.truncate_to(end + 1)
        self.cache.advance_to(start)
        self.cache = LeaderEpochCache(self.cache.entries, self._seed)
        data = self.cache.to_bytes()
        if data != self._data:
            self._disk.write_atomic(self._path, data)
        if unsynced:
            _write(self._disk, self._path, data, anew=False)
        sure = unsynced or data != self._data or self._recovery_point is None
        return not sure and self.cache.count_from(self._recovery_point or 0) > 0


def _trust(segment: Segment, end: int, epochs: _Epochs) -> None:
    """Set size, end and hash chain of a full segment that ends at offset ``end`` and whose batches were all synced.
    They come from its index file, or, if that is unusable, from reading the segment, which also writes a new index
    file. The segment's file is closed. Raises ``CorruptLog`` if the segment is damaged or ends elsewhere."""
    if epochs.whole and segment.trust(end):
        close(segment)
        return
    fault = _fill(segment, MAX_OFFSET, epochs)
    if fault is not None:
        raise CorruptLog(segment.path, f"at byte {segment.size}: {fault}")
    if segment.end_offset != end:
        raise CorruptLog(segment.path, f"ends at offset {segment.end_offset}, the next segment begins at {end}")
    segment.write_index_file()
    close(segment)


def _check(segments: list[Segment], synced: int, end_check: _EndCheck) -> tuple[int, bool]:
    """Read the segments batch by batch up to the first bad batch or gap. If ``end_check`` allows a cut there, cut the
    file of that segment; otherwise it raises. Return how many of the segments stay, and whether the last of these was
    cut. Batches above offset ``synced`` are written again, so that a sync covers them."""
    end, chain = segments[0].base, segments[0].chain
    for number, segment in enumerate(segments):
        if segment.base != end:
            end_check.check(segments[number - 1 :], f"the next segment begins at {segment.base}")
            return number, False
        segment.begin_at(chain)
        fault = _fill(segment, synced, end_check.epochs)
        end, chain = segment.end_offset, segment.chain
        if fault is not None:
            end_check.check(segments[number:], fault)
            segment.file.truncate(segment.size)
            return number + 1, True
    end_check.check(segments[-1:], None)
    return len(segments), False


@dataclass(frozen=True, slots=True)
class _EndCheck:
    """The rule that says whether a log may be cut where its valid batches end. Everything below offset ``promised``
    was synced. A tail file allows a cut from offset ``settled`` on, and ``held`` returns the batches that it has from
    an offset on. ``has_peers`` says that other replicas can be asked."""

    epochs: _Epochs
    promised: int
    settled: int
    held: Callable[[int], list[tuple[BatchHeader, Buffer]]]
    has_peers: bool

    def check(self, segments: list[Segment], fault: str | None) -> None:
        """Return if the log may be cut at the end of the valid batches of ``segments[0]``. Raise ``CorruptLog`` if
        synced records would be lost, or ``DoubtfulLog`` if other replicas must be asked. ``fault`` says what is wrong
        with the bytes that follow; None if no bytes follow."""
        first = segments[0]
        end = first.end_offset
        if end >= self.promised and (fault is None or end >= self.settled):
            return
        if end >= self.settled and any(header.end_offset >= self.promised for header, _ in self.held(end)):
            return
        known = self.epochs.known
        doubtful, places = (False, []) if fault is None else find_behind(segments, end, known.fits)
        text, last_epoch = fault or "nothing follows", self.epochs.cache.epoch_before(end)
        if end < self.promised:
            doubt = DoubtfulLog(first, places, text, known, last_epoch=last_epoch, end=self.promised)
            raise _less(first, self.promised, text, doubt)
        if doubtful or self.has_peers:
            raise DoubtfulLog(first, places, text, known, last_epoch=last_epoch, torn=not doubtful)


def _less(segment: Segment, promised: int, fault: str, doubt: DoubtfulLog | None = None) -> CorruptLog:
    """Return the ``CorruptLog`` to raise for a log that was synced up to offset ``promised`` but is sound only up to
    the end of ``segment``. ``fault`` says what is wrong behind that end."""
    return CorruptLog(
        segment.path,
        f"offsets up to {promised} were synced, but the log is sound only up to {segment.end_offset},"
        f" byte {segment.size}, {promised - segment.end_offset} less: {fault}",
        doubt,
    )


def _append(segment: Segment, tail: list[tuple[BatchHeader, Buffer]], epochs: _Epochs) -> None:
    """Append the batches of a tail file to the last segment of the log, unsynced. Leader epochs in their headers are
    believed and added to ``epochs``, since another replica holds the same batches."""
    for header, batch in tail:
        if header.leader_epoch > epochs.cache.latest():
            epochs.cache.assign(header.leader_epoch, header.base_offset)
        segment.append([header], [batch])


def _fill(segment: Segment, synced: int, epochs: _Epochs) -> str | None:
    """Read the valid batches at the beginning of the segment's file and add them to ``segment``. Return a text that
    says what is wrong with the first bad batch; None if there is none. Batches that end above offset ``synced`` are
    written again, so that a sync covers them."""
    size = segment.file_size()
    window = open_window(segment.file, size, BATCHES_CHUNK_BYTES, segment.path)
    while segment.size < size:
        try:
            header = read_header(window.get(segment.size, HEADER_BYTES))
            batch = window.get(segment.size, min(header.batch_length, size - segment.size))
            check_batch(batch)
        except CorruptBatch as error:
            return error.message
        fault = _misplaced(segment, header) or epochs.fault_of(header)
        if fault is not None:
            return fault
        if header.end_offset > synced:
            rewrite(segment.file, segment.size, batch)
        segment.add_written(header, batch)
    return None


def _misplaced(segment: Segment, header: BatchHeader) -> str | None:
    """Return a text that says that a batch does not begin at the end of the segment; None if it does begin there."""
    if header.base_offset == segment.end_offset:
        return None
    return f"batch at offset {header.base_offset}, expected {segment.end_offset}"


def _drop(segments: list[Segment]) -> None:
    """Delete the segments that lie behind a cut, the newest first. The directory must be synced before the recovery
    point moves, since the deleted files must not come back."""
    for segment in reversed(segments):
        close(segment)
        segment.unlink()


def _renew_indexes(disk: Disk, segments: list[Segment]) -> None:
    """Delete the index files of segments that were read whole, and write new ones for all but the last, which grows.
    An index file may describe what the segment held before an earlier crash. It is not written over: after the next
    crash its old content could be there again. The directory must be synced before the recovery point moves: from
    then on index files are trusted."""
    for segment in segments:
        remove(disk, segment.index_path)
    for segment in segments[:-1]:
        segment.write_index_file()
