"""The streams of a run: writers that append each number once, readers that follow, and the check of them at its end.

A writer is an idempotent producer: it sends an append again until it is answered. So its stream has its numbers,
all of them, once and in order, whatever fails. A reader that goes on at its position never sees anything else. Only
where the run has allowed a loss of records, as when the one copy that is left has rotted, the stream is not judged
any more.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidelog.client.core.partitioner import partition_of
from tidelog.errors import TidelogError
from tidelog.feature_levels import STREAMS as STREAMS_LEVEL
from tidelog.testing.clients.client import Client
from tidelog.testing.hardware.loop import stream
from tidelog.testing.invariants.ghost import Violation
from tidelog.types import STREAMS, TopicPartition, TopicState
from tidelog.wire.codec import payload_buffers
from tidelog.wire.messages import (
    AppendStream,
    CreateStream,
    Message,
    PrepareStreams,
    ReadStream,
    StreamData,
    StreamInfo,
)

if TYPE_CHECKING:
    from tidelog.testing.cluster import Cluster

NAME = "streams"
"""The name of all writers and readers together, where clients of a run are chosen."""
WRITERS = ("w1", "w2", "w3")
TEXT = "text/plain"
CALL_S, PAUSE_S, PACE_S = 1.5, 0.1, 0.1
WAIT_MS = 300


class StreamClient(Client):
    """A client of one stream."""

    def __init__(self, cluster: Cluster, name: str, rng: random.Random, path: str) -> None:
        super().__init__(cluster, name, rng)
        self.path = path

    def key(self) -> TopicPartition | None:
        """Return the partition that the stream belongs to; None if it is not known yet."""
        topic = self._topic()
        if topic is None:
            return None
        return TopicPartition(topic.topic_id, partition_of(self.path.encode(), len(topic.partitions)))

    def demand(self, is_right: bool, text: str) -> bool:
        """Return ``is_right``. If it is False, stop this client where records of its stream may be lost, and raise
        ``Violation`` with the text anywhere else."""
        if not is_right:
            key = self.key()
            assert key is not None
            if all(loss.partition != self.cluster.partition_name(key) for loss in self.cluster.history.losses):
                raise Violation(f"{self.path}: {text}")
            self.stopped = True
        return is_right

    def _topic(self) -> TopicState | None:
        return next((topic for topic in self.image.topics if topic.name == STREAMS), None)

    def ask(self, message: Message, done: Callable[[Any], None]) -> None:
        """Send a request to the coordinator, again and again until it is answered. ``done`` gets the answer, or an
        error that is not retriable."""

        def again() -> None:
            self.ask(message, done)

        def on_answer(answer: Any) -> None:
            if isinstance(answer, TidelogError) and answer.retriable:
                self.loop.after(PAUSE_S, again)
            else:
                done(answer)

        key = self.key()
        state = None if key is None else self.partition(key)
        if state is None or state.leader is None:
            if key is None:
                for name in self.cluster.controllers:
                    self._call_over(self.network.connect(self, name), PrepareStreams(), CALL_S, lambda _: None)
            self.loop.after(2 * PAUSE_S, again)
        else:
            self.call(state.leader, message, CALL_S, on_answer)


class StreamWriter(StreamClient):
    """Creates its stream, and appends number after number to it."""

    def __init__(self, cluster: Cluster, name: str, rng: random.Random) -> None:
        super().__init__(cluster, name, rng, f"{NAME}/{name}")
        self.idle = True
        self.written = b""
        """Everything that was acknowledged, in order."""
        self.sent = b""
        """The append that is not acknowledged yet."""
        self._seq = -1
        self.loop.after(rng.uniform(0.5, 1.0), self._act)

    def _act(self) -> None:
        if self.stopped:
            return
        if self.idle:
            self.idle = False
            self.sent = b"%d," % self._seq if self._seq >= 0 else b""
            create = CreateStream(self.path, TEXT)
            append = AppendStream(self.path, TEXT, "", self.name, 0, self._seq, payload=self.sent)
            self.ask(create if self._seq < 0 else append, self._on_answer)
        self.loop.after(self.rng.expovariate(1 / PACE_S), self._act)

    def _on_answer(self, answer: Any) -> None:
        if not self.demand(isinstance(answer, StreamInfo), f"number {self._seq} is answered with {answer!r}"):
            return
        self.written, self.sent = self.written + self.sent, b""
        self._seq += 1
        self.idle = True
        self.cluster.count("appends to streams")


class StreamReader(StreamClient):
    """Follows the stream of a writer."""

    def __init__(self, cluster: Cluster, name: str, rng: random.Random, writer: StreamWriter) -> None:
        super().__init__(cluster, name, rng, writer.path)
        self.seen = b""
        self._writer = writer
        self._stream_id = ""
        self.loop.after(1.0, self._read)

    def _read(self) -> None:
        if not self.stopped:
            self.ask(ReadStream(self.path, len(self.seen), self._stream_id, max_wait_ms=WAIT_MS), self._on_answer)

    def _on_answer(self, answer: Any) -> None:
        if isinstance(answer, StreamData):
            self._stream_id = answer.stream_id
            self.seen += b"".join(map(bytes, payload_buffers(answer.payload)))
            possible = self._writer.written + self._writer.sent
            if self.demand(possible.startswith(self.seen), f"{self.seen!r} was read, {possible!r} was written"):
                self._read()
        elif self.demand(not self._stream_id, f"a read at {len(self.seen)} is answered with {answer!r}"):
            self.loop.after(PAUSE_S, self._read)  # it is not created yet


class Streams:
    """The writers and readers of a run, and their check at its end."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        seed = cluster.options.seed
        self._writers = [StreamWriter(cluster, name, stream(seed, name)) for name in WRITERS]
        self._readers = [
            StreamReader(cluster, f"follows-{writer.name}", stream(seed, f"follows-{writer.name}"), writer)
            for writer in self._writers
        ]

    def end(self) -> None:
        """Stop the writers, and wait until each reader has read all of its stream. Streams are left out if their
        partition has no possible leader any more, or if there are none since the cluster's feature level was never
        raised so far. Raises ``Violation`` or AssertionError."""
        cluster = self._cluster
        for writer in self._writers:
            writer.stopped = True
        pairs = [pair for pair in zip(self._writers, self._readers, strict=True) if self._may_be_led(pair[0])]
        cluster.count("streams that cannot be read to the end", len(self._writers) - len(pairs))
        cluster.until(
            lambda: all(_is_read(writer, reader) for writer, reader in pairs),
            cluster.options.patience,
        )
        for reader in self._readers:
            reader.stopped = True

    def _may_be_led(self, writer: StreamWriter) -> bool:
        metadata = self._cluster.invariants.metadata
        if metadata.level < STREAMS_LEVEL:
            return False
        topics = metadata.topics.values()
        topic = next((topic for topic in topics if topic.name == STREAMS), None)
        if topic is None:
            return True
        number = partition_of(writer.path.encode(), len(topic.partitions))
        return self._cluster.may_be_led(TopicPartition(topic.topic_id, number))


def _is_read(writer: StreamWriter, reader: StreamReader) -> bool:
    """Return whether a reader has everything that the stopped writer has written, or the stream is judged no more."""
    return reader.stopped or (writer.idle and reader.seen == writer.written)
