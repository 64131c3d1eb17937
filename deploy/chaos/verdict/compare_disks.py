"""The comparison of the logs of all replicas of a topic, batch by batch, as they are on the disks of servers that
have ended."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from tidelog.batch.format import split
from tidelog.errors import CorruptBatch


@dataclass(slots=True)
class Comparison:
    """The number of partitions, batches and bytes that were compared, and the differences in words."""

    partitions: int = 0
    batches: int = 0
    bytes: int = 0
    """Bytes of one replica of each partition."""
    faults: list[str] = field(default_factory=list)


def batches(folder: Path) -> dict[int, tuple[int, bytes]]:
    """Return (size, digest) of every batch of a replica's log, by base offset. Raises ``CorruptBatch``,
    ``OSError``."""
    found = {}
    for segment in sorted(folder.glob("*.log")):
        for header, batch in split(memoryview(segment.read_bytes())):
            found[header.base_offset] = (len(batch), hashlib.blake2b(batch, digest_size=16).digest())
    return found


def compare(name: str, folders: dict[str, Path], comparison: Comparison) -> None:
    """Compare the log of every replica of one partition with that of the first, and add the counts and differences to
    ``comparison``. Retention may have removed more on one server than on another: the logs are compared from the
    greatest log start on, and must end at one offset. A log that cannot be read counts as a difference."""
    try:
        logs = {server: batches(folder) for server, folder in folders.items()}
    except (CorruptBatch, OSError) as error:
        comparison.faults.append(f"{name}: {error}")
        return
    start = max(min(log, default=0) for log in logs.values())
    (first, wanted), *others = ((s, {o: b for o, b in log.items() if o >= start}) for s, log in logs.items())
    comparison.partitions += 1
    comparison.batches += len(wanted)
    comparison.bytes += sum(size for size, _ in wanted.values())
    for server, log in others:
        differing = sorted(offset for offset in log.keys() | wanted.keys() if log.get(offset) != wanted.get(offset))
        if differing:
            comparison.faults.append(
                f"{name}: {server} and {first} differ in {len(differing)} batches, the first at offset {differing[0]}"
            )
