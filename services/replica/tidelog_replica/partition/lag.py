"""How far the followers of the partitions that this server leads are behind, for the metrics and the controllers."""

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
    """The lag of one follower, added up over all partitions that this server leads."""

    records: int = 0
    """Records that it lacks, in all partitions together."""
    largest: int = 0
    """Records that it lacks in the partition where it lacks most."""
    seconds: float = 0.0
    """The longest time since it last had every record of a partition; 0 if it has every record of all."""

    def add(self, records: int, seconds: float) -> None:
        """Add the follower's lag in one more partition: its ``records`` to the sum, and its records and ``seconds``
        to the largest values if they exceed them."""
        self.records += records
        self.largest = max(self.largest, records)
        self.seconds = max(self.seconds, seconds)


def lag_of(core: LeaderState, progress: FollowerProgress, end: int, now: float) -> tuple[int, float]:
    """Return how far a follower is behind in one partition, as records that it lacks and seconds since it last had
    every record. ``end`` is the leader's log end. For a follower that has not fetched in this leader epoch only the
    records of this epoch are counted. Both are 0 if it lacks nothing."""
    records = max(0, end - (progress.reached if progress.reached >= 0 else core.epoch_start))
    return records, 0.0 if progress.level or not records else now - progress.caught_up_at


def follower_lags(partitions: Iterable[Partition], now: float) -> tuple[FollowerLag, ...]:
    """Return the lag of each follower, added up over those of the given partitions that this server leads. Heartbeats
    report the result to the controllers. Learners are left out, since their lag does not matter."""
    lags: dict[NodeId, Lag] = {}
    for partition in partitions:
        leading = partition.leading
        if leading is not None:
            core, end = leading.core, partition.log.end
            for node, progress in core.followers.items():
                if node in core.replicas:
                    lags.setdefault(node, Lag()).add(*lag_of(core, progress, end, now))
    return tuple(FollowerLag(node, lag.records, round(lag.seconds * 1000)) for node, lag in lags.items())
