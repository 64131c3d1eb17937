"""Kafka's topic settings, and the settings of Tidelog that mean the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tidelog.batch.sparse import MOST_BYTES

LONGEST_MS = 3_153_600_000_000
"""The longest time that a setting takes: 100 years. Kafka's "never" is 292 million years."""
MOST_RETAINED_BYTES = 1 << 60
BATCH_ROOM = 64 << 10
"""Bytes that are added to Kafka's largest batch, because the same records take a little more or less here."""
LEAST_BATCH_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class KafkaSetting:
    """A setting of a topic in Kafka. ``is_default``: neither the topic nor the brokers' configuration sets it."""

    value: str
    is_default: bool


@dataclass(slots=True)
class MappedSettings:
    """The settings of a topic of ours that take the place of Kafka's."""

    config: dict[str, str] = field(default_factory=dict)
    without_counterpart: dict[str, str] = field(default_factory=dict)
    """Kafka's settings, with their values, that were set there and that Tidelog does not have."""


def _never_beyond(most: int) -> Callable[[str], str]:
    """Return a function that passes a number on, and makes -1 (never) of a number above ``most``."""
    return lambda value: value if int(value) <= most else "-1"


def _within(least: int, most: int) -> Callable[[str], str]:
    """Return a function that passes a number on, or the nearest one from ``least`` to ``most``."""
    return lambda value: str(max(least, min(int(value), most)))


def _cleanup(value: str) -> str:
    """Return the value of ``cleanup`` for one of ``cleanup.policy``. Its parts may come in any order."""
    parts = {part.strip() for part in value.split(",")}
    return ",".join(part for part in ("compact", "delete") if part in parts) or "delete"


def _batch_bytes(value: str) -> str:
    return str(min(MOST_BYTES, max(LEAST_BATCH_BYTES, int(value)) + BATCH_ROOM))


def _lag(value: str) -> str:
    """Return the value of ``max_compaction_lag_ms``, where 0 means no bound."""
    return value if int(value) <= LONGEST_MS else "0"


COUNTERPARTS: dict[str, tuple[str, Callable[[str], str]]] = {
    "cleanup.policy": ("cleanup", _cleanup),
    "retention.ms": ("retention_ms", _never_beyond(LONGEST_MS)),
    "retention.bytes": ("retention_bytes", _never_beyond(MOST_RETAINED_BYTES)),
    "max.message.bytes": ("max_batch_bytes", _batch_bytes),
    "min.insync.replicas": ("min_insync_replicas", str),
    "unclean.leader.election.enable": ("unclean_election", str),
    "segment.bytes": ("segment_max_bytes", _within(1 << 10, 1 << 30)),
    "segment.ms": ("segment_max_age_ms", _within(1000, LONGEST_MS)),
    "min.compaction.lag.ms": ("compaction_min_lag_ms", _within(0, LONGEST_MS)),
    "max.compaction.lag.ms": ("max_compaction_lag_ms", _lag),
    "delete.retention.ms": ("tombstone_retention_ms", _within(0, LONGEST_MS)),
}
"""Kafka's setting -> ours, and the function that makes our value of Kafka's."""
ALWAYS = ("cleanup.policy", "retention.ms", "retention.bytes", "max.message.bytes")
"""Settings that are taken over even if nobody has set them, since our defaults are others: they decide which records
a topic keeps and takes."""


def as_tidelog(settings: Mapping[str, KafkaSetting], replication_factor: int) -> MappedSettings:
    """Return the settings that a topic of ours gets for a topic of Kafka with these settings. Settings that have
    Kafka's default are left to our defaults, except those in ``ALWAYS``. ``min_insync_replicas`` is at most
    ``replication_factor``, the number of replicas that the topic of ours will have."""
    mapped = MappedSettings()
    for name, setting in sorted(settings.items()):
        if name in COUNTERPARTS:
            if name in ALWAYS or not setting.is_default:
                ours, convert = COUNTERPARTS[name]
                mapped.config[ours] = convert(setting.value)
        elif not setting.is_default:
            mapped.without_counterpart[name] = setting.value
    if "min_insync_replicas" in mapped.config:
        mapped.config["min_insync_replicas"] = str(min(int(mapped.config["min_insync_replicas"]), replication_factor))
    return mapped
