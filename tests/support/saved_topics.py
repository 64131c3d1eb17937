"""A topic in memory that answers like a cluster, for tests of backups and mirrors; and batches for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import trio
from tidelog.batch.format import (
    NO_CHAIN,
    BatchHeader,
    NewRecord,
    chain_after,
    check_batch,
    decode_batch,
    decode_columns,
    encode_batch,
    encode_marker,
    read_header,
    stamp_prefix,
)
from tidelog.batch.sparse import emptied, thin_batch
from tidelog.errors import Unreachable, refuse
from tidelog.types import Buffer, Position
from tidelog.wire.messages import (
    DigestAnswer,
    DigestEntry,
    GroupInfo,
    OffsetAnswer,
    PartitionInfo,
    ReadAnswer,
    TopicInfo,
)


def batch(*values: bytes | None, key: bytes | None = b"k", **fields: Any) -> bytes:
    """Return a batch as a producer sends it."""
    records = [NewRecord(value, key, 1000 + number, (("h", b"1"),)) for number, value in enumerate(values)]
    return encode_batch(records, **fields)


def compacted(data: bytes, *keep: int) -> bytes:
    """Return a batch as compaction leaves it, with the records at these positions."""
    return thin_batch(decode_columns(data), data, keep, 2000)


class SavedTopic:
    """The logs of one topic. It has the interface of ``tidelog.Log`` and of its administration."""

    def __init__(self, partitions: int = 1, topic_id: str = "id1") -> None:
        self.topic_id = topic_id
        self.logs: list[list[bytes]] = [[] for _ in range(partitions)]
        self.starts = [0] * partitions
        self.groups_at: dict[str, dict[int, int]] = {}
        self.reads: list[tuple[int, Position]] = []
        self.fail_at: int | None = None
        """Reads from this offset on fail; None: none do."""
        self.chain_is_wrong = False
        self.topics = self.partitions = self.groups = self.cluster = self
        """The object itself: it also stands for its administration."""

    def append(self, data: bytes, partition: int = 0, epoch: int = 3) -> bytes:
        """Append a batch as the leader does, and return the stored bytes."""
        header = read_header(data)
        stamped = stamp_prefix(self.end(partition), epoch, header.crc32c) + data[16:]
        self.logs[partition].append(stamped)
        return stamped

    def end(self, partition: int = 0) -> int:
        """Return the log end offset of a partition."""
        log = self.logs[partition]
        return read_header(log[-1]).end_offset if log else 0

    def replace(self, number: int, data: bytes, partition: int = 0) -> None:
        """Replace a stored batch by another at the same offsets, as compaction does."""
        self.logs[partition][number] = data

    async def describe(self, topic: str, *, offsets: bool = False) -> TopicInfo:
        """Return the topic's description."""
        info = [PartitionInfo(p, ("r1", "r2"), ("r1", "r2"), "r1", 3, 3) for p in range(len(self.logs))]
        return TopicInfo(self.topic_id, topic, {"cleanup": "compact", "retention_ms": "5"}, tuple(info))

    async def status(self) -> Any:
        """Return the status of the cluster, with its name only."""
        return SimpleNamespace(cluster="old")

    async def list_offsets(
        self, topic: TopicInfo, at: str, partitions: Iterable[int], isolation: str = "committed"
    ) -> dict[int, OffsetAnswer]:
        """Return the log start or log end of partitions."""
        return {p: OffsetAnswer(self.starts[p] if at == "earliest" else self.end(p)) for p in partitions}

    async def read_batches(
        self,
        topic_id: str,
        partition: int,
        at: Position,
        *,
        max_bytes: int = 0,
        wait_s: float = 0,
        isolation: str = "",
    ) -> tuple[ReadAnswer, list[tuple[BatchHeader, memoryview]]]:
        """Return batches from a position on. Raises ``OFFSET_OUT_OF_RANGE``, or an error from ``fail_at`` on."""
        self.reads.append((partition, at))
        if self.fail_at is not None and at.offset >= self.fail_at:
            raise refuse("REQUEST_TIMED_OUT", "nobody answers")
        if at.offset < self.starts[partition]:
            raise refuse("OFFSET_OUT_OF_RANGE", f"{at.offset} is below the log start {self.starts[partition]}")
        found = [(read_header(data), memoryview(data)) for data in self.logs[partition]]
        one = [each for each in found if each[0].end_offset > at.offset][:1]
        if not one:
            await trio.sleep(wait_s)
        return ReadAnswer(3, self.end(partition)), one

    async def digest(self, topic_id: str, partition: int, node: str, offsets: Iterable[int]) -> DigestAnswer:
        """Return the hash chain at an offset; r1 does not answer."""
        if node == "r1":
            raise refuse("OFFLINE", "r1 does not answer")  # another replica knows as well
        chain = NO_CHAIN if not self.chain_is_wrong else b"x" * 16
        [asked] = offsets
        boundary = max(asked, self.starts[partition])
        for data in self.logs[partition]:
            if read_header(data).end_offset <= boundary:
                chain = chain_after(chain, data)
        entry = DigestEntry(asked, boundary, chain)
        return DigestAnswer(self.starts[partition], self.end(partition), self.end(partition), entries=(entry,))

    async def list(self) -> tuple[GroupInfo, ...]:
        """Return the consumer groups."""
        return tuple(GroupInfo(group, "empty") for group in sorted(self.groups_at))

    async def fetch_offsets(self, group: str, topic: str) -> dict[int, Position]:
        """Return the positions of a group."""
        return {p: Position(3, at) for p, at in self.groups_at[group].items()}


def with_everything() -> SavedTopic:
    """Return a topic whose log begins at 3 and has compacted and transactional batches."""
    topic = SavedTopic()
    topic.append(batch(b"a", b"b", b"c"))  # deleted by retention
    topic.append(batch(b"d", b"e", producer_id=7, base_sequence=3))
    whole = topic.append(batch(b"f", b"g", b"h", producer_id=7, base_sequence=5))
    topic.replace(2, compacted(whole, 1))
    topic.append(batch(b"i", producer_id=9, transactional=True))
    topic.append(encode_marker(9, 0, commit=True, timestamp_ms=1500))
    aborted = topic.append(batch(b"never", producer_id=9, producer_epoch=1, transactional=True))
    topic.replace(5, emptied(aborted))  # as readers of what is committed get it
    topic.append(encode_marker(9, 1, commit=False, timestamp_ms=1501))
    topic.append(batch(b"j", None), epoch=5)
    del topic.logs[0][0]
    topic.starts[0] = 3
    return topic


class CopiedTopic(SavedTopic):
    """A topic of another cluster that takes conditional appends and loses acks: ``unlucky`` is called before and
    after each batch; if it returns True the append fails there with an unknown outcome."""

    def __init__(self, unlucky: Callable[[], bool] = lambda: False) -> None:
        super().__init__(0, "copy")
        self.unlucky = unlucky
        self.exists = False
        self.config: dict[str, str] = {}
        self.configured: list[dict[str, str]] = []

    async def describe(self, topic: str, *, offsets: bool = False) -> TopicInfo:
        """Return the topic's description. Raises ``UNKNOWN_TOPIC`` if it does not exist."""
        if not self.exists:
            raise refuse("UNKNOWN_TOPIC", f"there is no topic {topic}")
        return replace(await super().describe(topic), config=self.config)

    async def create(
        self, name: str, *, partitions: int, replication_factor: int, config: dict[str, str]
    ) -> TopicInfo:
        """Create the topic and return its description."""
        self.exists, self.config = True, config
        await self.grow(name, partitions)
        return await self.describe(name)

    async def grow(self, name: str, partitions: int) -> None:
        """Add partitions up to this number."""
        self.logs += [[] for _ in range(partitions - len(self.logs))]
        self.starts += [0] * (partitions - len(self.starts))

    async def alter(self, name: str, config: dict[str, str]) -> None:
        """Record a change of settings."""
        self.configured.append(config)

    async def reset(self, group: str, topic: str, positions: dict[int, int]) -> None:
        """Set positions of a group."""
        self.groups_at.setdefault(group, {}).update(positions)

    async def fetch_offsets(self, group: str, topic: str) -> dict[int, Position]:
        return {p: Position(-1, at) for p, at in self.groups_at.get(group, {}).items()}

    def appender(self, topic_id: str, partition: int) -> Any:
        """Return an object that appends batches to a partition."""
        return SimpleNamespace(append=partial(self._append, partition), close=lambda: None)

    async def _append(self, partition: int, batches: Iterable[Buffer]) -> None:
        for data in batches:
            await trio.lowlevel.checkpoint()
            header = check_batch(data)
            assert not (header.is_control or header.is_transactional or header.producer_id)
            if self.unlucky():
                raise Unreachable("the gateway was lost", unknown_outcome=True)
            if header.base_offset != self.end(partition):
                raise refuse("UNEXPECTED_OFFSET", f"the log ends at {self.end(partition)}")
            self.append(bytes(data), partition, epoch=0)
            if self.unlucky():
                raise Unreachable("the gateway was lost", unknown_outcome=True)


def records_of(topic: SavedTopic) -> list[tuple[int, int, bytes | None]]:
    """Return partition, offset and value of every record."""
    return [
        (partition, r.offset, r.value)
        for partition, log in enumerate(topic.logs)
        for data in log
        for r in decode_batch(data)
    ]
