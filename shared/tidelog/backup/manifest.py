"""The manifest of a backup: the file ``manifest.json``, written last.

A backup is a folder with the backup of one topic: ``manifest.json``, and the segments that it names. Each segment is
a file of consecutive whole batches, byte for byte as in the log. A file that the manifest does not name is not part
of the backup. During a run ``unfinished.json`` describes what the folder has already, so that the next run continues
from there; ``manifest.json`` does not change until the run has ended."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from tidelog.errors import TidelogError

FORMAT = 1
"""Version of manifest and segments. Other versions are refused."""
MANIFEST = "manifest.json"
UNFINISHED = "unfinished.json"


def segment_name(partition: int, start: int, end: int) -> str:
    """Return the name of the file for a partition's offsets from ``start`` up to ``end`` (exclusive):
    ``PARTITION/START-END.segment``. Runs never use one name for different contents."""
    return f"{partition}/{start:020d}-{end:020d}.segment"


class BadBackup(TidelogError):
    """Raised if a backup cannot be used or written; the message gives the reason."""

    code = "BAD_BACKUP"


@dataclass(frozen=True, slots=True)
class SavedSegment:
    """One file of consecutive batches of a partition, as the manifest describes it. It covers the offsets from
    ``start`` up to ``end`` (exclusive) and begins where the previous segment ends."""

    file: str
    """Path of the file in the folder of the backup."""
    start: int
    end: int
    bytes: int
    batches: int
    sha256: str
    chain: str
    """Hash chain of the log after the last batch of the segment, hexadecimal."""
    epochs: tuple[int, int]
    """Leader epochs of the first and the last batch."""
    max_timestamp_ms: int
    largest_batch: int
    """Size of the largest batch in bytes."""


@dataclass(slots=True)
class SavedPartition:
    """The saved part of one partition: the offsets from ``start`` up to ``end_offset`` (exclusive), without a gap."""

    partition: int
    start: int
    chain: str
    """Hash chain of the log up to ``start``, hexadecimal."""
    segments: list[SavedSegment] = field(default_factory=list)

    @property
    def end_offset(self) -> int:
        """The offset after the last saved one; ``start`` if no segment is saved."""
        return self.segments[-1].end if self.segments else self.start

    @property
    def end_chain(self) -> str:
        """Hash chain of the log up to ``end_offset``, hexadecimal."""
        return self.segments[-1].chain if self.segments else self.chain

    @property
    def end_epoch(self) -> int:
        """Leader epoch of the last saved batch; -1 if no segment is saved."""
        return self.segments[-1].epochs[1] if self.segments else -1


@dataclass(slots=True)
class Manifest:
    """The content of ``manifest.json``: the topic with its settings, the saved offsets of each partition with their
    files, and the positions of consumer groups."""

    cluster: str
    topic: str
    topic_id: str
    config: dict[str, str]
    replication_factor: int
    saved: str = ""
    """Time at which the run that wrote the manifest ended (UTC, ISO 8601); "" if no run has ended yet."""
    partitions: list[SavedPartition] = field(default_factory=list)
    groups: dict[str, dict[int, int]] = field(default_factory=dict)
    """Positions of consumer groups: group -> partition -> offset of the next record."""

    @property
    def size(self) -> int:
        """Size of all segments in bytes."""
        return sum(segment.bytes for each in self.partitions for segment in each.segments)

    @property
    def offsets(self) -> int:
        """Number of log offsets that the backup covers, from start to end, over all partitions."""
        return sum(each.end_offset - each.start for each in self.partitions)

    def to_bytes(self) -> bytes:
        """Return the contents of the manifest's file, as JSON."""
        groups = {group: {str(p): at for p, at in found.items()} for group, found in self.groups.items()}
        return json.dumps({"format": FORMAT} | asdict(self) | {"groups": groups}, indent=1).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> Manifest:
        """Return the manifest that the contents of a file describe. ``name`` is the file's name, for errors. Raises
        ``BadBackup`` if the contents are no valid manifest, or of another format."""
        try:
            fields: dict[str, Any] = json.loads(data)
            found = fields.pop("format")
            if found != FORMAT:
                raise BadBackup(f"{name} has format {found}; this program knows {FORMAT}")
            partitions = [
                SavedPartition(
                    **each
                    | {"segments": [SavedSegment(**s | {"epochs": tuple(s["epochs"])}) for s in each["segments"]]}
                )
                for each in fields.pop("partitions")
            ]
            groups = {group: {int(p): int(at) for p, at in of.items()} for group, of in fields.pop("groups").items()}
            manifest = cls(**fields, partitions=partitions, groups=groups)
            manifest._check(name)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadBackup(f"{name} is not the manifest of a backup: {error!r}") from error
        return manifest

    def _check(self, name: str) -> None:
        """Raise ``BadBackup`` unless the partitions are numbered from 0, and the segments of each are consecutive and
        have names that ``segment_name`` makes, so that no file outside of the folder is named."""
        for number, each in enumerate(self.partitions):
            if each.partition != number:
                raise BadBackup(f"{name} has partition {each.partition} in place of {number}")
            end = each.start
            for segment in each.segments:
                if segment.file != segment_name(number, segment.start, segment.end):
                    raise BadBackup(f"{name}: {str(segment.file)[:100]!r} is not the name of a segment")
                if segment.start != end or segment.end <= end:
                    raise BadBackup(f"{name}: {segment.file} begins at {segment.start}, and is to begin at {end}")
                end = segment.end
