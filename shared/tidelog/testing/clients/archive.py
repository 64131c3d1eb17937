"""An archive: a consumer group that retention of topics waits for, and the check that no server deletes what the
archive has not read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.client.core.partitioner import partition_of
from tidelog.sansio.effects import Event
from tidelog.testing.clients.client import Client
from tidelog.testing.hardware.loop import stream
from tidelog.testing.hardware.network import Frame
from tidelog.testing.invariants.ghost import Violation
from tidelog.types import GROUPS, TopicPartition
from tidelog.wire.messages import CommitOffsets, GroupPosition, PrepareGroups

if TYPE_CHECKING:
    from tidelog.testing.cluster import Cluster

GROUP = "archive"
"""The consumer group; topics name it in ``retention_waits_for``."""
CALL_S, PACE_S = 1.0, 0.5


class Archive(Client):
    """Reads nothing: every ``PACE_S`` it commits a position in each partition, somewhere between its last one and the
    end of what is committed."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, "archive", stream(cluster.options.seed, "archive"))
        self._read: dict[TopicPartition, int] = {}
        """The highest position that was sent to a coordinator, by partition."""
        self.loop.after(self.rng.uniform(0.3, 0.6), self._act)

    def _act(self) -> None:
        for key in self.cluster.partitions:
            self._commit(key)
        self.loop.after(self.rng.expovariate(1 / PACE_S), self._act)

    def _commit(self, key: TopicPartition) -> None:
        """Commit the next position in a partition. If there is no topic of groups yet, ask for it."""
        topic = next((topic for topic in self.image.topics if topic.name == GROUPS), None)
        if topic is None:
            for name in self.cluster.controllers:
                prepare = PrepareGroups(client=self.name, sequence=1)
                self.network.connect(self, name).send(self, Frame("request", 0, prepare))
            return
        coordinator = topic.partitions[partition_of(GROUP.encode(), len(topic.partitions))].leader
        if coordinator is None:
            return
        before = self._read.get(key, 0)
        offset = self.rng.randint(before, max(before, self.cluster.invariants.committed_end(key)))
        self._read[key] = offset
        request = CommitOffsets(GROUP, (GroupPosition(*key, offset),))
        self.call(coordinator, request, CALL_S, lambda answer: None)

    def on_event(self, name: str, event: Event) -> None:
        """Check a ``log_start_moved`` of server ``name``: retention has deleted nothing at or above the highest
        position that the archive has ever sent. Raises ``Violation``."""
        fields = event.fields
        key = TopicPartition(fields["topic_id"], fields["partition"])
        if fields["cause"] != "retention" or key not in self.cluster.partitions:
            return
        self.cluster.count("deleted after the archive had read it")
        if fields["start"] > self._read.get(key, 0):
            text = f"{fields['start']}, and the archive has read up to {self._read.get(key, 0)}"
            raise Violation(f"RETENTION {name} {key.partition}: retention has moved the log start to {text}")
