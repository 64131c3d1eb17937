"""Batches that leaders here appended while no controller answered, and what the controllers changed meanwhile.

A leader that goes on without controllers (``assignment/leadership.py``) uses the settings that it knows. When the
controllers are back, the first metadata show what has changed on the other side. For each partition that committed
records since the session lapsed this server then logs

    topic_deleted_meanwhile     the topic is deleted, and with it these records, which may have been acknowledged
    settings_changed_meanwhile  the topic has other settings: these records were appended under the former ones

Records that are lost by an unclean election are reported to the controllers by the replica that cuts them
(``assignment/controller_reports.py``).
"""

from __future__ import annotations

from tidelog.types import ClusterImage, TopicPartition, TopicState

from tidelog_replica.context import NodeContext
from tidelog_replica.partition.partition import Partition
from tidelog_replica.registration.session import BrokerSession

CHANGES_S = 30.0
"""For so many seconds after the session was resumed a change in the metadata counts as made before that."""


class Isolation:
    """The part of a node that remembers which partitions took batches while no controller answered, and logs what the
    controllers changed meanwhile. It lives as long as the node."""

    def __init__(self, context: NodeContext, session: BrokerSession) -> None:
        self._session = session
        self._effects = context.effects
        self._taken: dict[TopicPartition, tuple[Partition, int]] = {}
        """Partitions that took batches without a session, and their log ends before the first of these."""

    def on_batch(self, partition: Partition) -> None:
        """Record that a leader here takes a batch while its session has lapsed. Called before the batch is appended;
        the log end at the first such batch is remembered."""
        self._taken.setdefault(partition.key, (partition, partition.log.end))

    def on_metadata(self, before: ClusterImage, after: ClusterImage, now: float) -> None:
        """Log ``topic_deleted_meanwhile`` or ``settings_changed_meanwhile`` for each remembered partition that has
        committed records since, if the new metadata show that. From ``CHANGES_S`` after the session was resumed,
        forget all partitions instead. Does nothing if no partition is remembered."""
        if not self._taken or before is after:
            return
        if self._session.live(now) and now >= self._session.resumed_at + CHANGES_S:
            self._taken.clear()
            return
        old = {topic.topic_id: topic for topic in before.topics}
        new = {topic.topic_id: topic for topic in after.topics}
        for key, (partition, start) in list(self._taken.items()):
            if key.topic_id not in new:
                self._event("topic_deleted_meanwhile", partition, start)
                del self._taken[key]
            elif key.topic_id in old:
                changes = _changes(old[key.topic_id], new[key.topic_id], key.partition)
                if changes:
                    self._event("settings_changed_meanwhile", partition, start, changes=changes)

    def _event(self, event: str, partition: Partition, start: int, **fields: str) -> None:
        """Log an event with the range of offsets that the partition has committed from ``start`` on. Does nothing if
        there are none."""
        if partition.high_watermark <= start:
            return
        where = {"topic_id": partition.key.topic_id, "partition": partition.key.partition}
        self._effects.event(event, **where, start=start, end=partition.high_watermark, **fields)


def _changes(before: TopicState, after: TopicState, number: int) -> str:
    """Return the settings of one partition that differ between two versions of its topic, as text with old and new
    values; "" if none differs."""
    old, new = _settings(before, number), _settings(after, number)
    return ", ".join(f"{name}: {old[name]} -> {new[name]}" for name in new if old[name] != new[name])


def _settings(topic: TopicState, number: int) -> dict[str, str]:
    """Return the settings of a topic, and whether one of its partitions is read-only or paused, as a map from name to
    text."""
    state = topic.partitions[number]
    flags = {"read_only": state.read_only, "paused": state.paused}
    return topic.config.texts() | {name: str(value).lower() for name, value in flags.items()}
