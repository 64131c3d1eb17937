"""The settings of a topic as people write them: names and texts in, a ``TopicConfig`` or every fault out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from tidelog.types import TopicConfig

FLUSH_POLICIES = ("fsync", "interval", "os")
RANGES = {
    "min_insync_replicas": (1, 100),
    "flush_interval_ms": (1, 3_600_000),
    "segment_max_bytes": (1 << 10, 1 << 30),
    "max_batch_bytes": (1 << 10, 8 << 20),
    "replica_max_lag_ms": (1, 3_600_000),
}
"""Least and most of every setting that is a number. ``max_batch_bytes`` stays well below the largest message."""


def parse_topic_config(texts: Mapping[str, str], replication_factor: int) -> tuple[TopicConfig, list[str]]:
    """The settings, defaults filled in, and the faults, one text each; with faults the settings mean nothing.

    ``min_insync_replicas`` that is not given is 2 with three replicas or more, else 1: one failure may be
    tolerated without losing either acked records or the ability to write.
    """
    values: dict[str, int | str] = {"min_insync_replicas": 2 if replication_factor >= 3 else 1}
    faults = []
    for name, text in texts.items():
        if name == "flush":
            values[name] = text
            if text not in FLUSH_POLICIES:
                faults.append(f"flush is {text!r}; it must be one of {', '.join(FLUSH_POLICIES)}")
        elif name in RANGES:
            least, most = RANGES[name]
            if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
                faults.append(f"{name} is {text!r}; it must be a number from {least} to {most}")
            else:
                values[name] = int(text)
        else:
            known = ", ".join(f.name for f in fields(TopicConfig))
            faults.append(f"there is no setting {name!r}; there are {known}")
    config = TopicConfig(**values)  # type: ignore[arg-type]
    if config.min_insync_replicas > replication_factor:
        faults.append(
            f"min_insync_replicas is {config.min_insync_replicas}, more than replication_factor {replication_factor}"
        )
    return config, faults
