"""Checks that the files of a backup match its manifest; no cluster is needed. Calls block: run them in threads."""

from __future__ import annotations

from hashlib import sha256

from tidelog.backup.manifest import BadBackup, Manifest, SavedPartition, SavedSegment
from tidelog.backup.store import BackupStore
from tidelog.batch.format import chain_after, check_batch, split
from tidelog.errors import CorruptBatch


def load_segment(store: BackupStore, segment: SavedSegment, chain: bytes) -> list[memoryview]:
    """Read the file of a segment and return its batches, after checking the file's size and SHA-256, the CRC of each
    batch, that the offsets have no gap, and the hash chain. ``chain`` is the hash chain of the log before the
    segment. Raises ``BadBackup`` if the file is missing or does not match the manifest."""
    data = store.read(segment.file)
    if len(data) != segment.bytes:
        raise BadBackup(f"{segment.file} has {len(data)} bytes; the manifest says {segment.bytes}")
    batches: list[memoryview] = []
    end = segment.start
    try:
        for header, batch in split(data):
            check_batch(batch)
            if header.base_offset != end:
                raise BadBackup(f"{segment.file} goes on at offset {header.base_offset} where {end} is to be")
            end, chain = header.end_offset, chain_after(chain, batch)
            batches.append(batch)
    except CorruptBatch as error:
        raise BadBackup(f"{segment.file} is damaged at offset {end}: {error.message}") from error
    if end != segment.end or len(batches) != segment.batches:
        raise BadBackup(f"{segment.file} ends at offset {end}; the manifest says {segment.end}")
    if sha256(data).hexdigest() != segment.sha256 or chain.hex() != segment.chain:
        raise BadBackup(f"{segment.file} was changed: its digest is not that of the manifest")
    return batches


def chains_before(saved: SavedPartition) -> list[bytes]:
    """Return the hash chain of the log before each segment of a partition, in the order of its segments."""
    return [bytes.fromhex(chain) for chain in (saved.chain, *(each.chain for each in saved.segments[:-1]))]


def check_partition(store: BackupStore, saved: SavedPartition) -> list[str]:
    """Read and check all segments of a partition. Returns a text for each segment that is missing, damaged or
    changed; an empty list if all are as the manifest says."""
    faults = []
    for segment, chain in zip(saved.segments, chains_before(saved), strict=False):
        try:
            load_segment(store, segment, chain)
        except BadBackup as error:
            faults.append(error.message)
    return faults


def summary(manifest: Manifest) -> dict[str, object]:
    """Return the contents of a backup as an object for JSON: topic, settings, positions of groups, and the offsets
    and sizes of each partition."""
    return {
        "topic": manifest.topic,
        "topic_id": manifest.topic_id,
        "cluster": manifest.cluster,
        "saved": manifest.saved,
        "bytes": manifest.size,
        "offsets": manifest.offsets,
        "config": manifest.config,
        "replication_factor": manifest.replication_factor,
        "groups": {group: {str(p): at for p, at in found.items()} for group, found in manifest.groups.items()},
        "partitions": [
            {
                "partition": each.partition,
                "start": each.start,
                "end": each.end_offset,
                "bytes": sum(segment.bytes for segment in each.segments),
                "segments": len(each.segments),
                "chain": each.end_chain,
                "leader_epoch": each.end_epoch,
                "max_timestamp_ms": max((segment.max_timestamp_ms for segment in each.segments), default=-1),
            }
            for each in manifest.partitions
        ],
    }
