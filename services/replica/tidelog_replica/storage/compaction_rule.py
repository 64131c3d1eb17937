"""Compaction: of all records with a key only the last one stays.

Theory. A log under ``compact`` is a table that tells its own history: for each key the last record is its value, one
without a value (a *tombstone*) deletes it. A pass looks at the part that was not compacted yet, remembers the last
offset of every key there, and then goes over the whole closed log: a record goes when its key has a later one. What a
reader who begins at any offset knows at the end is the same as before.

    never touched    the segment that is written, what is not committed, what is younger than
                     ``compaction_min_lag_ms`` (but see the maximal lag below)
    kept for ever    records without a key (a broker that refused them would have to decode every batch), control
                     batches, batches whose body is not what the format says
    tombstones       go ``tombstone_retention_ms`` after their batch was first compacted, if an earlier pass over this
                     log has covered them: from then on nothing older of their key is there. A reader that is slower
                     than that may miss a deletion, none sooner; a replica misses none (``storage/tombstones.py``)

The map of keys is bounded: a pass ends where it is full, at the end of a batch, and the next one begins there. Keys
are remembered by their BLAKE2b-128. Segments are rewritten oldest first: when a tombstone is marked as compacted,
what it deletes is gone, also after a crash in between. A batch that is left without records takes about 95 bytes.

A pass begins when the dirty part of the log is large enough (``dirty_part``), or when one of its records has waited
for ``max_compaction_lag_ms`` (KIP-354). The active segment is closed early enough for that (``roll_age_ms``). The age
of a segment counts from when this server first saw a record in it, not from the producers' timestamps: a producer
with a wrong clock delays no deletion. After a restart the closed segments that were not compacted count as overdue at
once; records that are younger than ``compaction_min_lag_ms`` by their timestamps still wait, unless the timestamps
lie in the future. So a record is gone at most ``max_compaction_lag_ms`` after it was replaced, plus two intervals
between checks (``retention_check_interval_s``) and the time of a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from tidelog.records import Columns
from tidelog.types import TopicConfig

from tidelog_replica.storage.retention_rule import Extent

KEYS_AT_ONCE = 1 << 18
"""Most keys that one pass remembers: about 40 MB."""


def compactable_end(segments: Sequence[Extent], high_watermark: int, config: TopicConfig, now_ms: int) -> int:
    """Where the part of the log ends that may be compacted; the last segment is the one that is written."""
    end = segments[0].base
    for segment in segments[:-1]:
        young = config.compaction_min_lag_ms > 0 and now_ms - segment.max_timestamp < config.compaction_min_lag_ms
        if segment.end > high_watermark or (young and not _overrides_youth(segment, config, now_ms)):
            break
        end = segment.end
    return end


def _overrides_youth(segment: Extent, config: TopicConfig, now_ms: int) -> bool:
    """Whether ``max_compaction_lag_ms`` has the segment compacted although its timestamps say that it is young: its
    age is known and overdue, or not known and its timestamps lie in the future."""
    if segment.since_ms is None:
        return config.max_compaction_lag_ms > 0 and segment.max_timestamp > now_ms
    return _is_overdue(segment, config, now_ms)


def dirty_part(segments: Sequence[Extent], compacted_to: int, end: int) -> float:
    """Which part of the bytes below ``end`` lies in segments that were not compacted as a whole, 0 to 1."""
    whole = sum(segment.bytes for segment in segments if segment.end <= end)
    dirty = sum(segment.bytes for segment in segments if compacted_to < segment.end <= end)
    return dirty / whole if whole else 0.0


def has_overdue(segments: Sequence[Extent], compacted_to: int, end: int, config: TopicConfig, now_ms: int) -> bool:
    """Whether a record between ``compacted_to`` and ``end`` has waited for ``max_compaction_lag_ms``."""
    return any(
        compacted_to < segment.end <= end and _is_overdue(segment, config, now_ms) for segment in segments[:-1]
    )


def _is_overdue(segment: Extent, config: TopicConfig, now_ms: int) -> bool:
    if not config.max_compaction_lag_ms:
        return False
    return segment.since_ms is None or now_ms - segment.since_ms >= config.max_compaction_lag_ms


def roll_age_ms(config: TopicConfig) -> int:
    """How long after its first record was appended the active segment is closed, in ms. With a maximal compaction lag
    its last record is then ``compaction_min_lag_ms`` old when the first one has to be compacted."""
    if "compact" not in config.cleanup or not config.max_compaction_lag_ms:
        return config.segment_max_age_ms
    return min(config.segment_max_age_ms, max(0, config.max_compaction_lag_ms - config.compaction_min_lag_ms))


class LatestOffsets:
    """The last offset of each key in a stretch of the log."""

    def __init__(self, limit: int = KEYS_AT_ONCE) -> None:
        self._limit = limit
        self._offsets: dict[bytes, int] = {}

    @property
    def is_full(self) -> bool:
        """The next batch must wait for another pass."""
        return len(self._offsets) >= self._limit

    def learn(self, columns: Columns) -> None:
        """The next batch of the stretch."""
        for offset, key in zip(columns.offsets, columns.keys, strict=True):
            if key is not None:
                self._offsets[_digest(key)] = offset

    def survivors(self, columns: Columns) -> list[int]:
        """The places of the records that no later one replaces, of a batch before the end of the stretch."""
        offsets, kept = self._offsets, []
        for place, (offset, key) in enumerate(zip(columns.offsets, columns.keys, strict=True)):
            if key is None or offsets.get(_digest(key), -1) <= offset:
                kept.append(place)
        return kept


def tombstones(columns: Columns, places: Sequence[int]) -> list[int]:
    """Those of the records at ``places`` that have a key and no value."""
    return [place for place in places if columns.values[place] is None and columns.keys[place] is not None]


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=16).digest()
