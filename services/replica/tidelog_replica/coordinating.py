"""The consumer groups whose partition of ``__groups`` this server leads: ``core/groups`` on ``coordinated.py``."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any, ClassVar

from tidelog.client.core.partitioner import partition_of
from tidelog.types import GROUPS
from tidelog.wire.messages import ListGroups, Message

from tidelog_replica.coordinated import Coordinated, Led
from tidelog_replica.core.groups.coordinator import KINDS as KINDS
from tidelog_replica.core.groups.coordinator import POSTPONED_S, READS, Coordinator
from tidelog_replica.core.groups.group import Group, Topic, Topics
from tidelog_replica.core.groups.records import Stored

TIMER = "groups"
TOPICS_PAUSE_S = 0.05
"""The topics are looked through when the metadata has been still for so long, at least."""


class Groups(Coordinated[Coordinator, Stored]):
    """See the module."""

    TOPIC: ClassVar[str] = GROUPS
    TIMER: ClassVar[str] = TIMER
    ABOUT: ClassVar[str] = "groups"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._topics = Topics()
        self._look_at = inf
        self._topics_due = False

    @property
    def groups(self) -> Iterator[Group]:
        """All that are coordinated here."""
        for led in self._led.values():
            if led.core is not None and led.is_led:
                yield from led.core.groups.values()

    def _store(self) -> Stored:
        return Stored()

    def _make(self, led: Led[Coordinator, Stored], now: float) -> Coordinator:
        self._look_at_topics()
        core = Coordinator(self._node, self._settings.groups, self._topics, self._outbox.counts)
        core.begin(led.stored, now)
        return core

    def _number(self, message: Message) -> int:
        if isinstance(message, ListGroups):
            return message.partition
        return partition_of(getattr(message, "group", "").encode(), self.partitions)

    def _changes(self, message: Message) -> bool:
        return not isinstance(message, READS)

    # --- topics ------------------------------------------------------------------------------------------

    def on_metadata(self, now: float) -> None:
        """The metadata is another."""
        super().on_metadata(now)
        if self._led and self._look_at == inf:
            self._look_at = now + TOPICS_PAUSE_S
            self._set_timer(now)

    def on_tick(self, now: float) -> None:
        """Everything that is due."""
        self._topics_due = now >= self._look_at
        if self._topics_due:
            self._look_at = inf
            self._look_at_topics()
            if any(led.core is not None and self._refusal(led) is not None for led in self._led.values()):
                self._look_at = now + POSTPONED_S
        super().on_tick(now)

    def _on_due(self, led: Led[Coordinator, Stored], core: Coordinator, now: float) -> None:
        if self._topics_due:
            core.on_topics(self._topics, now)
        super()._on_due(led, core, now)

    def _due(self) -> float | None:
        return None if self._look_at == inf else self._look_at

    def _look_at_topics(self) -> None:
        topics = (Topic(topic.topic_id, topic.name, len(topic.partitions)) for topic in self._assignment.topics)
        self._topics = Topics(topics)
