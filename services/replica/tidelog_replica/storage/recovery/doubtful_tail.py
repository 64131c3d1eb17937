"""A doubtful tail: a bad batch above the recovery point with whole batches behind it.

A bad batch with nothing behind it is a torn write: the log is cut there. Whole batches behind a bad one have two
causes that cannot be distinguished on the disk:

    honest    the power was lost before a sync; unsynced writes reach a disk in any order
    damaged   the bytes were synced, and may have been acknowledged; a bit of them flipped

A bad batch with nothing behind it is nearly always a torn write, but may be the last batch that was synced. If other
replicas can be asked, the log counts as doubtful, too (``torn``); their answers within ``TORN_WAIT_S`` decide.

So recovery neither cuts nor reports damage. It raises ``DoubtfulLog``, which lists the whole batches behind the first
bad one, and the server asks the other replicas (``maintenance/doubtful_tails.py``). When the doubt is settled, the
batches that they hold are written to a *tail file*, ``<start>.tail``, consecutive from the first bad one on. A tail
file allows recovery to cut the log from the file's start on, and holds the batches that recovery appends then. It is
synced before the log is cut, and removed after the log is synced: after a crash at any step between, the next opening
repeats all of it.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidelog.batch.format import HEADER_BYTES, MAGIC, MAX_OFFSET, VERSION, BatchHeader, check_batch, read_header
from tidelog.errors import CorruptBatch
from tidelog.runtime.disk import Disk
from tidelog.types import Buffer

from tidelog_replica.replication.leader_epochs import LeaderEpochCache
from tidelog_replica.storage.encryption.files import cipher_of, stored_bytes
from tidelog_replica.storage.segment import CorruptLog, Segment, close, remove
from tidelog_replica.storage.segment_reader import BATCHES_CHUNK_BYTES, SegmentReader, open_window

_TAIL = re.compile(r"([0-9]{20})\.tail")
_UNFINISHED = re.compile(r"[0-9]{20}\.tail\.new")
_MAGIC_AT = 16
_BEGINS = MAGIC.to_bytes(2, "big") + bytes([VERSION])
"""The bytes that stand at ``_MAGIC_AT`` in every batch."""
CHECKED_PER_BYTE = 8
"""The search computes CRCs over at most this many times the bytes that it searches: records may hold bytes that look
like batches, one within the other."""
ENCRYPTED_TRIES = 1 << 20
"""How many positions of an encrypted file are tried at most: nothing in it shows where a batch begins."""


class StoredBatch(NamedTuple):
    """A whole batch behind the first bad one of a log: its offsets, leader epoch, and the place in a file where it is
    stored."""

    start: int
    """Its base offset."""
    end: int
    leader_epoch: int
    path: str
    position: int
    length: int
    stored: int
    """How many bytes the batch takes in the file."""
    anchored: bool
    """Whether a batch is known to begin there: at the start of a segment, or where another batch ends. If not, these
    bytes may be the value of a record that looks like a batch."""


class KnownEpochs(NamedTuple):
    """The leader epochs of a log's records, as far as its leader-epoch file shows them."""

    cache: LeaderEpochCache
    is_whole: bool
    """Whether the file is undamaged. If not, ``cache`` has the entries before the damage, and which epochs begin
    after them is unknown."""

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch of the record at ``offset``; -1 if the leader-epoch file does not show it."""
        tells = self.is_whole or self.cache.count_from(offset + 1) > 0
        return self.cache.epoch_before(offset + 1) if tells else -1

    def fits(self, header: BatchHeader) -> bool:
        """Return whether the log can hold a batch with this header: its leader epoch is the one that the leader-epoch
        file shows at its offset. Where a damaged file shows none, any epoch from the last known one on fits."""
        epoch = self.epoch_at(header.base_offset)
        if epoch < 0 and not self.is_whole:
            return header.leader_epoch >= self.cache.latest()
        return header.leader_epoch == epoch


class DoubtfulLog(OSError):
    """An error that says that it is unknown where a log ends. The log is whole up to offset ``start``, where a bad
    batch stands at byte ``position`` of the segment at ``path``. ``places`` are the whole batches behind it, in the
    order in which they are stored. ``torn`` says that nothing whole follows: a torn write looks like that, but also a
    flipped bit in the last batch."""

    def __init__(
        self,
        segment: Segment,
        places: Sequence[StoredBatch],
        fault: str,
        epochs: KnownEpochs,
        *,
        last_epoch: int = -1,
        torn: bool = False,
        end: int = 0,
    ) -> None:
        """Make the error for a log that is whole up to the end of ``segment``, as far as that was read. ``fault``
        says what is wrong with the batch behind that end, and the log was synced at least up to offset ``end``."""
        self.epochs = epochs
        self.last_epoch = last_epoch
        """Leader epoch of the record before ``start``; -1: there is none."""
        self.torn = torn
        self.path = path = segment.path
        self.start = start = segment.end_offset
        self.position = position = segment.size
        self.encrypted = cipher_of(segment.file) is not None
        self.places = tuple(places)
        self.end = max([start + 1, end, *(place.end for place in places)])
        """No offset at or above this one is known to have been written."""
        behind = "nothing whole follows" if torn else "whole batches follow"
        text = f"the log is whole up to offset {start}; {behind} a bad batch at byte {position}: {fault}"
        super().__init__(errno.EIO, text, path)

    def stored(self, length: int) -> int:
        """Return how many bytes a batch of ``length`` bytes takes in the damaged segment's file."""
        return stored_bytes(length) if self.encrypted else length


def find_behind(
    segments: Sequence[Segment], start: int, fits: Callable[[BatchHeader], bool]
) -> tuple[bool, list[StoredBatch]]:
    """Search for whole batches behind the bad one at the end of the valid part of ``segments[0]``, also in the later
    segments. ``start`` is the offset at which the valid part ends, and ``fits`` returns whether the log can hold a
    batch with a given header. Return whether the tail is doubtful, and the batches found. The tail is doubtful if a
    batch was found, if the bad batch is whole except for its offset, or if the search gave up. Raises ``OSError``."""
    found: list[StoredBatch] = []
    doubtful = False
    for number, segment in enumerate(segments):
        size = segment.file_size()
        begin = segment.size if not number else 0
        window = open_window(segment.file, size, BATCHES_CHUNK_BYTES, segment.path)
        search = _BatchSearch(segment, window, size, begin)
        edge = (begin, segment.base) if number else _end_of(window, begin, start)
        sure, whole = True, bool(number)  # ``whole``: the batch that ends at the edge is whole
        for position, header, stored in search.run():
            if not number and position == begin and header.base_offset != start:
                doubtful = True  # its CRC is right: no torn write, but its offset has changed
                continue
            if header.base_offset < start or not fits(header):
                continue
            if position == edge[0] and header.base_offset != edge[1] and whole:
                continue
            sure = position == begin or (sure and (position, header.base_offset) == edge)
            whole = True
            place = (header.base_offset, header.end_offset, header.leader_epoch, segment.path)
            found.append(StoredBatch(*place, position, header.batch_length, stored, sure))
            edge = (position + stored, header.end_offset)
        doubtful = doubtful or search.gave_up
    return doubtful or bool(found), found


def _end_of(window: SegmentReader, position: int, start: int) -> tuple[int, int]:
    """Return where the bad batch at byte ``position`` ends according to its header, as (byte position, offset); (-1,
    -1) if the header is unreadable or does not begin at offset ``start``."""
    try:
        header = read_header(window.get(position, HEADER_BYTES))
    except CorruptBatch:
        return -1, -1
    if header.base_offset != start:
        return -1, -1
    return position + window.stored(header.batch_length), header.end_offset


class _BatchSearch:
    """A search for whole batches in a segment's file from byte ``begin`` to its end, wherever they begin. After the
    search, ``gave_up`` says whether it ended early, because it had checked too many bytes or tried too many
    positions."""

    def __init__(self, segment: Segment, window: SegmentReader, size: int, begin: int) -> None:
        self._segment = segment
        self._window = window
        self._size = size
        self._begin = begin
        self._left = CHECKED_PER_BYTE * (size - begin)
        self.gave_up = False

    def run(self) -> Iterator[tuple[int, BatchHeader, int]]:
        """Yield byte position, header and number of stored bytes of each whole batch that is found, in the order of
        the file."""
        position = self._begin
        while position < self._size:
            header = self._whole_at(position)
            if header is not None:
                stored = self._window.stored(header.batch_length)
                yield position, header, stored
                position += stored
            else:
                position = self._next(position + 1)

    def _whole_at(self, position: int) -> BatchHeader | None:
        """Return the header of the batch at byte ``position``. Return None if no whole batch stands there, or if the
        limit of checked bytes is exceeded, which ends the search."""
        try:
            header = read_header(self._window.get(position, HEADER_BYTES))
            if position + self._window.stored(header.batch_length) > self._size:
                return None
            self._left -= header.batch_length
            if self._left < 0:
                self.gave_up = True
                return None
            return check_batch(self._window.get(position, header.batch_length))
        except CorruptBatch:
            return None

    def _next(self, position: int) -> int:
        """Return the next byte position, from ``position`` on, at which a batch may begin; the size of the file if
        there is none or the search gave up."""
        if self.gave_up:
            return self._size
        cipher = cipher_of(self._segment.file)
        if cipher is None:
            return self._next_magic(position)
        return self._next_encrypted(position)

    def _next_magic(self, position: int) -> int:
        """Return the next byte position, from ``position`` on, at which an unencrypted batch may begin, as its magic
        bytes show; the size of the file if there is none."""
        file, at = self._segment.file, position + _MAGIC_AT
        while at < self._size:
            chunk = file.pread(min(BATCHES_CHUNK_BYTES, self._size - at), at)
            found = chunk.find(_BEGINS)
            if found >= 0:
                return at + found - _MAGIC_AT
            at += max(1, len(chunk) - len(_BEGINS) + 1)
        return self._size

    def _next_encrypted(self, position: int) -> int:
        """Return the next byte position, from ``position`` on, at which the header of an encrypted batch can be
        decrypted; the size of the file if there is none, or if the search gives up after ``ENCRYPTED_TRIES``
        positions."""
        tries = 0
        while position < self._size:
            try:
                read_header(self._window.get(position, HEADER_BYTES))
            except CorruptBatch:
                position += 1
                tries += 1
                if tries >= ENCRYPTED_TRIES:
                    self.gave_up = True
                    return self._size
            else:
                return position
        return self._size


def read_place(disk: Disk, place: StoredBatch) -> bytes:
    """Return the bytes of the batch that is stored at ``place``, checked by its CRC. Raises ``CorruptBatch`` if it is
    no longer whole there, and other ``OSError``s."""
    segment = Segment(disk, place.path.rpartition("/")[0], int(place.path.rpartition("/")[2][:20]))
    try:
        size = segment.file_size()
        window = open_window(segment.file, size, place.length, segment.path)
        batch = bytes(window.get(place.position, place.length))
    except CorruptLog as error:
        raise CorruptBatch(error.strerror or str(error)) from error
    finally:
        close(segment)
    if check_batch(batch).base_offset != place.start:
        raise CorruptBatch(f"the batch at byte {place.position} begins at another offset than {place.start}")
    return batch


# --- the tail file ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WriteTail:
    """A job that writes the tail file of a doubtful log, once the other replicas have shown which batches follow
    offset ``start``. ``batches`` are consecutive from that offset on; each is given as bytes, or as the place of a
    batch that the log itself holds."""

    disk: Disk
    path: str
    start: int
    batches: tuple[bytes | StoredBatch, ...]

    def run(self) -> None:
        """Write the tail file, durably: under a temporary name first, which is then renamed. Blocks on the disk.
        Raises ``OSError``, also if a batch of the log is no longer whole."""
        disk, name = self.disk, tail_path(self.path, self.start)
        file = disk.open(name + ".new", create=True)
        try:
            file.truncate(0)
            position = 0
            for one in self.batches:
                batch = read_place(disk, one) if isinstance(one, StoredBatch) else one
                file.pwritev([batch], position)
                position = file.size()
            file.sync()
        except CorruptBatch as error:
            raise OSError(errno.EIO, error.message, name) from error
        finally:
            file.close()
        disk.rename(name + ".new", name)
        disk.sync_dir(self.path)


@dataclass(frozen=True, slots=True)
class ReadPlace:
    """A job that reads one whole batch of a doubtful log, for another replica that asks for it."""

    disk: Disk
    place: StoredBatch

    def run(self) -> bytes | None:
        """Return the bytes of the batch; None if it is no longer whole at its place. Raises ``OSError``."""
        try:
            return read_place(self.disk, self.place)
        except CorruptBatch:
            return None


def tail_path(directory: str, start: int) -> str:
    """Return the path of the tail file in ``directory`` for a log that is to be cut at offset ``start``."""
    return f"{directory}/{start:020d}.tail"


def tail_start(names: Sequence[str]) -> int:
    """Return the lowest offset at which a tail file among ``names`` begins, from which on the log may be cut;
    ``MAX_OFFSET`` if there is no tail file. ``names`` are the names of all files in the log's directory."""
    return min((int(found[1]) for name in names if (found := _TAIL.fullmatch(name))), default=MAX_OFFSET)


def drop_tails(disk: Disk, directory: str, names: Sequence[str]) -> None:
    """Delete every tail file, finished or not, durably. Does nothing if there is none among ``names``, the names of
    all files in the directory. Raises ``OSError``."""
    found = [name for name in names if _TAIL.fullmatch(name) or _UNFINISHED.fullmatch(name)]
    for name in found:
        remove(disk, f"{directory}/{name}")
    if found:
        disk.sync_dir(directory)


def tail_of(disk: Disk, directory: str, names: Sequence[str], end: int) -> list[tuple[BatchHeader, Buffer]]:
    """Return the batches to append to a log that ends at offset ``end``, from a tail file in its directory; an empty
    list if no tail file has a batch that begins at ``end``. ``names`` are the names of all files there. Raises
    ``CorruptLog`` if a tail file is damaged, and other ``OSError``s."""
    for name in names:
        found = _TAIL.fullmatch(name)
        if found is not None and int(found[1]) <= end:
            batches = list(_read_tail(disk, f"{directory}/{name}"))
            if any(header.base_offset == end for header, _ in batches):
                return [(header, batch) for header, batch in batches if header.base_offset >= end]
    return []


def _read_tail(disk: Disk, path: str) -> Iterator[tuple[BatchHeader, Buffer]]:
    """Yield header and bytes of each batch in a tail file. Raises ``CorruptLog`` if one is damaged."""
    file = disk.open(path)
    try:
        size, position = file.size(), 0
        window = open_window(file, size, BATCHES_CHUNK_BYTES, path)
        while position < size:
            header = read_header(window.get(position, HEADER_BYTES))
            batch = bytes(window.get(position, header.batch_length))
            yield check_batch(batch), batch
            position += window.stored(header.batch_length)
    except CorruptBatch as error:
        raise CorruptLog(path, f"at byte {position}: {error.message}") from error
    finally:
        file.close()
