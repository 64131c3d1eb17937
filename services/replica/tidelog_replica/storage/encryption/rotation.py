"""Changing the key-encryption key: finding the key that wraps each segment's data key, and wrapping it by the current
one. If one of the two key pages of a file is damaged, both are written anew.

This happens before any log is opened, so that nothing else uses the files. A segment keeps its data key, and its
batches stay as they are. Only its two key pages are written, one after the other, each synced before the next: a
crash leaves one that is whole, and the next start continues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tidelog.runtime.disk import Disk, File

from tidelog_replica.storage.encryption.files import (
    BATCHES_AT,
    PAGE_BYTES,
    SEGMENT,
    KeyMissing,
    read_pages,
    unwrap,
    wrap,
)
from tidelog_replica.storage.encryption.keyring import Keyring


@dataclass(slots=True)
class KeyUsage:
    """The result of ``rekey``: how many segments of a server need which key-encryption key. ``keys`` counts the
    segments whose data key is wrapped by the current key now, by the id of that key."""

    keys: Counter[str] = field(default_factory=Counter)
    clear: int = 0
    """Segments that are not encrypted; empty files do not count."""
    rewrapped: int = 0
    """How many segments got new key pages."""
    missing: Counter[str] = field(default_factory=Counter)
    """How many segments need a key that is unknown or does not fit, by the id of that key."""
    example: str = ""
    """The error text for one of those segments; empty if there are none."""


def rekey(disk: Disk, data_dir: str, keys: Keyring) -> KeyUsage:
    """Wrap the data keys of all segments in ``data_dir`` by the current key, and write damaged key pages anew; each
    page that is written is synced. Return how many segments use which key. A segment that no known key opens is
    counted and not changed. No log may be open. Raises ``OSError``."""
    census = KeyUsage()
    for path in _segments(disk, data_dir):
        file = disk.open(path)
        try:
            _take(file, path, keys, census)
        except KeyMissing as error:
            census.missing[read_pages(file.pread(BATCHES_AT, 0))[0].key] += 1
            census.example = census.example or str(error)
        finally:
            file.close()
    return census


def _segments(disk: Disk, data_dir: str) -> Iterator[str]:
    """Yield the paths of all segment files in the log directories of ``data_dir``."""
    for directory in disk.listdir(data_dir):
        try:
            names = disk.listdir(f"{data_dir}/{directory}")
        except (NotADirectoryError, FileNotFoundError):
            continue
        for name in names:
            if SEGMENT.search(f"{directory}/{name}"):
                yield f"{data_dir}/{directory}/{name}"


def _take(file: File, path: str, keys: Keyring, census: KeyUsage) -> None:
    """Count one segment in ``census``. If one of its key pages is damaged or not wrapped by the current key, write
    and sync both pages anew. Raises ``KeyMissing`` if no known key opens the segment."""
    pages = read_pages(file.pread(BATCHES_AT, 0))
    if not pages:
        census.clear += file.size() > 0
        return
    data_key = unwrap(keys, path, pages)
    if len(pages) < 2 or any(page.key != keys.current for page in pages):
        page = wrap(keys, path, data_key).to_bytes()
        for position in (0, PAGE_BYTES):
            file.pwritev([page], position)
            file.sync()
        census.rewrapped += 1
    census.keys[keys.current or ""] += 1
