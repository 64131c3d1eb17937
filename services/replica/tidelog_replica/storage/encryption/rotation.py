"""Changing the key-encryption key: what every segment's data key is wrapped by, and wrapping it by the current key.
Where one of the two key pages is damaged both are written anew.

Done before any log is opened, so that nothing else uses the files. A segment keeps its data key, and its batches stay
as they are; only its two key pages are written, one after the other, each synced before the next: a crash leaves one
that is whole. The next start goes on where this one ended.
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
    """The segments of a server by the id of the key that they need."""

    keys: Counter[str] = field(default_factory=Counter)
    clear: int = 0
    """Segments that are not encrypted; empty files do not count."""
    rewrapped: int = 0
    missing: Counter[str] = field(default_factory=Counter)
    """Of the keys that are not known, or do not fit."""
    example: str = ""
    """What is wrong with one of those."""


def rekey(disk: Disk, data_dir: str, keys: Keyring) -> KeyUsage:
    """Wrap all data keys in ``data_dir`` by the current key. No file is touched that no known key opens. Raises
    ``OSError``."""
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
    for directory in disk.listdir(data_dir):
        try:
            names = disk.listdir(f"{data_dir}/{directory}")
        except (NotADirectoryError, FileNotFoundError):
            continue
        for name in names:
            if SEGMENT.search(f"{directory}/{name}"):
                yield f"{data_dir}/{directory}/{name}"


def _take(file: File, path: str, keys: Keyring, census: KeyUsage) -> None:
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
