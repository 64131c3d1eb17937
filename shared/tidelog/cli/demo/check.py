"""Checks that every acknowledged record is on every replica, in the segment files themselves."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from tidelog.batch.format import decode_batch, split


def digest(key: bytes | None, value: bytes | None) -> bytes:
    """Return 16 bytes that identify the key and the value of a record, to compare records without keeping them."""
    return hashlib.blake2b((key or b"") + b"\0" + (value or b""), digest_size=16).digest()


@dataclass(slots=True)
class Verdict:
    """The result of the demo's check of the logs: the counts, and the faults that were found."""

    acked: int = 0
    unknown: int = 0
    """Number of records that were sent, and neither acknowledged nor refused: they may or may not be in the log."""
    stored: int = 0
    """Number of records in the logs of one replica (they are equal), over all partitions."""
    replicas: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether no fault was found."""
        return not self.faults

    def fault(self, text: str) -> None:
        """Add the text of a fault to the list. After twenty faults further ones are dropped."""
        if len(self.faults) < 20:
            self.faults.append(text)


def read_replica(directory: Path) -> dict[int, bytes]:
    """Read the segment files of one replica of a partition, and return offset -> digest of the record. Nothing may be
    written meanwhile. Raises ``ValueError`` for an offset that occurs twice, and ``CorruptBatch`` for a torn
    batch."""
    found: dict[int, bytes] = {}
    for segment in sorted(directory.glob("*.log")):
        data = memoryview(segment.read_bytes())
        for _header, batch in split(data):
            for record in decode_batch(batch):
                if record.offset in found:
                    raise ValueError(f"{segment}: offset {record.offset} twice")
                found[record.offset] = digest(record.key, record.value)
    return found


def check(
    acked: dict[tuple[int, int], bytes],
    directories: dict[str, dict[int, Path]],
    consumed: dict[tuple[int, int], bytes],
) -> Verdict:
    """Compare the acknowledged records, and the records that the consumer read, with the segment files of every
    replica. ``acked`` and ``consumed`` are (partition, offset) -> digest; ``directories`` is server -> partition ->
    folder of the log. Returns the verdict, with every difference as a fault. Raises the errors of
    ``read_replica``."""
    verdict = Verdict(acked=len(acked), replicas=len(directories))
    reference: dict[int, dict[int, bytes]] = {}
    for server, partitions in directories.items():
        for partition, directory in partitions.items():
            stored = read_replica(directory)
            if sorted(stored) != list(range(len(stored))):
                verdict.fault(f"{server}: partition {partition} has gaps in its offsets")
            first = reference.setdefault(partition, stored)
            if stored != first:
                differing = sum(stored.get(o) != first.get(o) for o in stored.keys() | first.keys())
                verdict.fault(
                    f"{server}: partition {partition} differs from the first replica in {differing} offsets"
                )
    verdict.stored = sum(len(stored) for stored in reference.values())
    for (partition, offset), wanted in acked.items():
        found = reference.get(partition, {}).get(offset)
        if found is None:
            verdict.fault(f"lost: acked record at partition {partition}, offset {offset}")
        elif found != wanted:
            verdict.fault(f"changed: acked record at partition {partition}, offset {offset} holds other bytes")
    for (partition, offset), seen in consumed.items():
        if reference.get(partition, {}).get(offset) != seen:
            verdict.fault(f"consumer saw a record at partition {partition}, offset {offset} that is not in the log")
    return verdict
