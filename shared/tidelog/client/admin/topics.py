"""Administration of topics: ``Log.topics``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidelog.client.admin.old_names import keep_old_call
from tidelog.client.connection import GatewayConnection
from tidelog.client.lookups import ask_topics, describe_topic
from tidelog.errors import TidelogError, TimedOut
from tidelog.wire import messages
from tidelog.wire.messages import Done, Metadata, MetadataAnswer, TopicInfo

_POLL_S, _POLL_MAX_S = 0.01, 0.2
"""First and longest pause in seconds between two checks whether a new topic's partitions have leaders; it doubles."""


@keep_old_call("topics")
class TopicAdmin:
    """The methods that create, describe, change and delete topics; each ``Log`` has them as ``log.topics``."""

    def __init__(self, connection: GatewayConnection) -> None:
        self._connection = connection

    async def create(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int = 1,
        config: Mapping[str, object] | None = None,
        exist_ok: bool = False,
    ) -> TopicInfo:
        """Create a topic, wait until all its partitions have leaders, and return its metadata. ``config``: fields of
        ``TopicConfig``.

        With ``exist_ok``, if a topic of that name exists, return its metadata and change nothing, also if it has
        other partitions, replicas or settings than those that are given: compare them where it matters. Programs that
        start at the same time may all call this.

        Raises ``TOPIC_EXISTS`` without ``exist_ok``, ``INVALID_TOPIC``, ``INVALID_CONFIG`` or
        ``INVALID_REPLICATION_FACTOR`` if the topic was not created, and ``TimedOut`` if it was created and a
        partition has no leader yet."""
        request = messages.CreateTopic(name, partitions, replication_factor, _texts(config or {}))
        topic_id, problem = "", "was created, but not all of its partitions have a leader yet"
        try:
            topic_id = (await self._connection.ask(request, messages.TopicCreated, again=exist_ok)).topic_id
        except TidelogError as error:
            if not exist_ok or error.code != "TOPIC_EXISTS":
                raise
            problem = "exists, but the gateway does not know it yet"
        pause = _POLL_S
        deadline = self._connection.loop.now() + self._connection.request_timeout_s
        while True:
            for topic in await ask_topics(self._connection, name):
                if not topic_id or (topic.topic_id == topic_id and all(p.leader for p in topic.partitions)):
                    return topic
            if self._connection.loop.now() > deadline:
                raise TimedOut(f"{name} {problem}")
            await self._connection.loop.sleep(pause)
            pause = min(2 * pause, _POLL_MAX_S)

    async def delete(self, name: str) -> None:
        """Delete a topic and all its records. Raises ``UNKNOWN_TOPIC``."""
        await self._connection.call(messages.DeleteTopic(name), again=False)

    async def alter(self, name: str, config: Mapping[str, object]) -> None:
        """Change these settings of a topic (fields of ``TopicConfig``); its other settings stay. Raises
        ``UNKNOWN_TOPIC``, and ``INVALID_CONFIG``, also for a setting that is fixed when a topic is created."""
        await self._connection.call(messages.AlterTopic(name, _texts(config)))

    async def grow(self, name: str, partitions: int) -> None:
        """Add partitions to a topic until it has ``partitions`` in total. Raises ``UNKNOWN_TOPIC``,
        ``INVALID_CONFIG`` (topics do not shrink), ``INVALID_REPLICATION_FACTOR``."""
        await self._connection.ask(messages.GrowTopic(name, partitions), Done, again=False)

    async def list(self) -> tuple[TopicInfo, ...]:
        """Return the metadata of every topic, as the gateway knows them."""
        return (await self._connection.ask(Metadata(all_topics=True), MetadataAnswer)).topics

    async def describe(self, topic: str, *, offsets: bool = False) -> TopicInfo:
        """Return the metadata of one topic; with ``offsets`` also the log start and high watermark of each partition,
        requested from the leaders. Raises ``UNKNOWN_TOPIC``."""
        return await describe_topic(self._connection, topic, offsets=offsets)

    async def find(
        self, topic_ids: Iterable[str], *, offsets: bool = False, consistency: str = "linearizable"
    ) -> tuple[TopicInfo, ...]:
        """Return the metadata of the topics with these ids; those that are deleted or hidden are left out. With
        ``offsets`` also the log start and high watermark of each partition. With ``consistency`` "linearizable" each
        leader proves that these are not older than the request. With "eventual" they are what the leaders know, which
        takes one request to each server, so it is much faster for many partitions."""
        ids = tuple(dict.fromkeys(topic_ids))
        if not ids:
            return ()
        asked = Metadata(offsets=offsets, consistency=consistency, topic_ids=ids)
        found = (await self._connection.ask(asked, MetadataAnswer)).topics
        if found:
            return found
        # a gateway of an earlier release ignores ids; this answer has no topics, too, if all of them are deleted
        names = tuple(topic.name for topic in await self.list() if topic.topic_id in ids)
        if not names:
            return ()
        return (await self._connection.ask(Metadata(names, offsets=offsets), MetadataAnswer)).topics


def _texts(config: Mapping[str, object]) -> dict[str, str]:
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in config.items()}
