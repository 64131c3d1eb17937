"""How far the followers of the partitions led here are behind: for the metrics, and for the controllers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidelog.types import NodeId
from tidelog.wire.messages import FollowerLag

from tidelog_replica.partition.partition import Partition
from tidelog_replica.replication.leader_state import LeaderState
from tidelog_replica.replication.progress import FollowerProgress


@dataclass(slots=True)
class Lag:
    """Of one follower, over all partitions led here."""

    records: int = 0
    """All together."""
    largest: int = 0
    """Of the worst partition."""
    seconds: float = 0.0
    """Since it had everything of the worst partition; 0: it has everything of all."""

    def add(self, records: int, seconds: float) -> None:
        """One more partition."""
        self.records += records
        self.largest = max(self.largest, records)
        self.seconds = max(self.seconds, seconds)


def lag_of(core: LeaderState, progress: FollowerProgress, end: int, now: float) -> tuple[int, float]:
    """One follower's lag in one partition, whose log ends at ``end``, in records and seconds. Of one that has not
    asked in this leader epoch only what came since is known."""
    records = max(0, end - (progress.reached if progress.reached >= 0 else core.epoch_start))
    return records, 0.0 if progress.level or not records else now - progress.caught_up_at


def follower_lags(partitions: Iterable[Partition], now: float) -> tuple[FollowerLag, ...]:
    """The lags that are reported to the controllers: of replicas only, since a learner is behind by its nature."""
    lags: dict[NodeId, Lag] = {}
    for partition in partitions:
        leading = partition.leading
        if leading is not None:
            core, end = leading.core, partition.log.end
            for node, progress in core.followers.items():
                if node in core.replicas:
                    lags.setdefault(node, Lag()).add(*lag_of(core, progress, end, now))
    return tuple(FollowerLag(node, lag.records, round(lag.seconds * 1000)) for node, lag in lags.items())
