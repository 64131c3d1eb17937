"""The settings of Raft. The metadata of each field state its meaning and range; relations between fields are checked
here."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.errors import ConfigError
from tidelog.runtime.config import setting


@dataclass(frozen=True, slots=True)
class RaftSettings:
    """The times and bounds of Raft, the same on all controllers. The constructor raises ``ConfigError`` if the values
    do not fit together."""

    heartbeat_s: float = setting(0.1, "time between two heartbeats of the active controller", 0.001, 60.0)
    election_timeout_min_s: float = setting(
        0.75, "silence after which a controller may stand for election, and an active one steps down", 0.002, 300.0
    )
    election_timeout_max_s: float = setting(1.5, "upper end of the random election timeout", 0.003, 600.0)
    append_max_bytes: int = setting(
        256 << 10, "command bytes in one AppendEntries; a larger one goes alone", 1, 8 << 20
    )
    append_window: int = setting(16, "unanswered AppendEntries with entries per follower", 1, 1024)
    snapshot_threshold: int = setting(
        8192,
        "entries after which a snapshot of the metadata is written; half as many entries stay in the log",
        2,
        1 << 20,
    )
    snapshot_threshold_bytes: int = setting(
        64 << 20, "bytes of commands after which a snapshot is written, too; half as many stay in the log", 1, 1 << 30
    )
    snapshot_chunk_bytes: int = setting(256 << 10, "bytes of a snapshot in one message", 1, 8 << 20)

    def __post_init__(self) -> None:
        if not 0 < 2 * self.heartbeat_s <= self.election_timeout_min_s < self.election_timeout_max_s:
            raise ConfigError("needed: 2 * heartbeat_s <= election_timeout_min_s < election_timeout_max_s")
        if self.append_max_bytes < 1 or self.append_window < 1:
            raise ConfigError("append_max_bytes and append_window must be at least 1")
        if self.snapshot_threshold < 2 or self.snapshot_chunk_bytes < 1:
            raise ConfigError("snapshot_threshold must be at least 2, snapshot_chunk_bytes at least 1")
