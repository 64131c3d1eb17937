"""What a member of a group reads: partitions of several topics, which come and go, with one reader for each topic."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from tidelog.client.connection import Connection
from tidelog.client.core.consumer import Fetched
from tidelog.client.options import ConsumerOptions
from tidelog.client.topic_reader import TopicReader, Wakeup
from tidelog.errors import TidelogError
from tidelog.types import Position, TopicPartition


class Readers:
    """The readers of a group's member, one for each topic. ``bell`` is rung when there is news."""

    def __init__(self, connection: Connection, bell: Wakeup, options: ConsumerOptions) -> None:
        self._connection = connection
        self._bell = bell
        self._options = options
        self._readers: dict[str, TopicReader] = {}
        self._turns: deque[str] = deque()
        self._paused: dict[TopicPartition, None] = {}

    @property
    def all(self) -> Collection[TopicReader]:
        """The readers, one for each topic."""
        return self._readers.values()

    def take(self) -> tuple[TopicPartition, Fetched, TopicReader] | None:
        """The next batch, each topic in turn; it counts as handed out when ``on_taken`` says so."""
        for _ in range(len(self._turns)):
            topic_id = self._turns[0]
            self._turns.rotate(-1)
            reader = self._readers[topic_id]
            try:
                fetched = reader.core.take()
            except TidelogError as error:
                if error.code != "UNKNOWN_TOPIC":  # deleted: its partitions are about to be taken away
                    raise
                continue
            if fetched is not None:
                reader.perform(reader.core.on_taken(fetched.partition))
                return TopicPartition(topic_id, fetched.partition), fetched, reader
        return None

    def put_back(self, key: TopicPartition, fetched: Fetched, position: Position) -> None:
        """The rest of what was taken last is wanted later."""
        self._readers[key.topic_id].core.put_back(fetched, position)

    def fail(self, key: TopicPartition, fetched: Fetched, error: TidelogError) -> None:
        """What was taken last of it cannot be used: it is read no further until ``seek``."""
        reader = self._readers[key.topic_id]
        reader.perform(reader.core.fail(fetched, error))

    def read(self, key: TopicPartition, topic: str, position: Position, shared_by: int) -> None:
        """Read this partition from there on; so many partitions share the bytes that may wait here."""
        reader = self._readers.get(key.topic_id)
        if reader is None:
            reader = TopicReader(self._connection, self._bell, topic, key.topic_id, self._options, {}, {})
            self._readers[key.topic_id] = reader
            self._turns.append(key.topic_id)
        self.share_credit(shared_by)
        reader.perform(reader.core.add(key.partition, position, self._connection.loop.now()))
        if key in self._paused:
            reader.core.pause([key.partition])
        self._bell.ring()

    def stop(self, key: TopicPartition) -> None:
        """Hand nothing of it out, and forget that it was paused."""
        self._paused.pop(key, None)
        reader = self._reading(key)
        if reader is not None:
            reader.perform(reader.core.remove(key.partition))

    def share_credit(self, partitions: int) -> None:
        """So many share the bytes that may wait here."""
        credit = self._options.credit(partitions)
        for reader in self.all:
            reader.perform(reader.core.set_credit(credit))

    def close(self) -> None:
        """Stop all readers for good."""
        for reader in self.all:
            reader.close()

    # --- what the application changes ------------------------------------------------------------------------

    @property
    def paused(self) -> list[TopicPartition]:
        """Those of which nothing is handed out now."""
        return list(self._paused)

    def pause(self, keys: Iterable[TopicPartition]) -> None:
        """Hand nothing of these out until they are resumed; they may not be read yet."""
        for key in keys:
            self._paused[key] = None
            if (reader := self._reading(key)) is not None:
                reader.core.pause([key.partition])

    def resume(self, keys: Iterable[TopicPartition]) -> None:
        """Hand them out again."""
        for key in keys:
            self._paused.pop(key, None)
            if (reader := self._reading(key)) is not None:
                reader.core.resume([key.partition])
        self._bell.ring()

    def seek(self, key: TopicPartition, position: Position) -> None:
        """Go on there, if it is read yet."""
        if (reader := self._reading(key)) is not None:
            reader.perform(reader.core.seek(key.partition, position, self._connection.loop.now()))
        self._bell.ring()

    def _reading(self, key: TopicPartition) -> TopicReader | None:
        reader = self._readers.get(key.topic_id)
        return reader if reader is not None and key.partition in reader.core.partitions else None
