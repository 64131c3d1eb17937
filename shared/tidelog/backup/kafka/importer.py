"""Copies topics of Kafka into topics of Tidelog: every record once, at the offset that it has.

    where it continues  where the partition ends in Tidelog: the copy itself is the position, so the two cannot differ
    once                conditional appends (``partition_writer.py``): two imports of one topic do no harm
    the same log        before it continues, the last record in Tidelog is compared with Kafka's at that offset

After an error that may pass, the run begins again from where the partitions end: it does the same as a run that was
killed and started again. Conditions that end it (``IMPORT_FAILED``): the copy has something that Kafka does not have
(the topic was made anew, Kafka lost records, or another client writes to the copy), Kafka deleted what was not copied
yet (unless ``skip_lost``), or a record does not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import trio
from trio.to_thread import run_sync as in_thread

from tidelog.backup.batches import empty_batches
from tidelog.backup.group_positions import Positions, set_positions
from tidelog.backup.kafka.batches import ImportFailed, RecordTooLarge, Row, pack
from tidelog.backup.kafka.cluster import KafkaCluster, KafkaTopic, Wanted
from tidelog.backup.kafka.reader import Chunk, KafkaReader, Key
from tidelog.backup.kafka.topic_settings import MappedSettings, as_tidelog
from tidelog.backup.partition_writer import PartitionWriter, check_target, first_error, passes
from tidelog.batch.format import Codec, decode_columns
from tidelog.batch.sparse import MOST_BYTES
from tidelog.client.log import Log
from tidelog.client.loop import wall_ms
from tidelog.errors import BrokerError, TidelogError
from tidelog.wire.messages import TopicInfo

T = TypeVar("T")
RETRY_S = 1.0
"""Seconds before the run begins again after an error that may pass."""
LOOK_S = 5.0
"""Seconds between two looks at Kafka's ends, topics and groups while the run follows."""
WRITES_AT_ONCE = 8
"""Number of partitions that are written to at a time: the limit of a gateway for one client."""
ASKED_AT_ONCE = 16
"""Number of partitions whose ends are requested at a time."""
BEGIN_AGAIN = ("UNEXPECTED_OFFSET", "OFFSET_OUT_OF_RANGE")
"""Errors after which the run looks at both sides anew, because one of them has changed."""


@dataclass(frozen=True, slots=True)
class ImportSettings:
    """The settings of an import, as the user gives them. ``replication_factor`` (0: Kafka's) and ``config`` (settings
    other than the mapped ones) apply to topics that are created. ``follow``: go on for ever. ``groups``: copy the
    positions of consumer groups, those of ``group_names`` or, if there are none, of all. ``skip_lost``: continue
    after records that Kafka deleted before they were copied."""

    topics: Wanted
    replication_factor: int = 0
    config: Mapping[str, str] = field(default_factory=dict)
    follow: bool = False
    groups: bool = True
    group_names: Sequence[str] = ()
    compression: Codec = "none"
    skip_lost: bool = False


@dataclass(slots=True)
class PartitionImport:
    """The progress of one partition in a run. Offsets are exclusive ends; -1: not known yet."""

    key: Key
    records: int = 0
    """Number of records that this run has copied."""
    bytes: int = 0
    """Number of bytes of their keys and values."""
    start: int = -1
    """Offset of Kafka's first record."""
    end: int = -1
    """Offset at which the copy ends."""
    kafka_end: int = -1
    """Offset at which Kafka's log ends, as far as this run has seen: behind the last committed record."""
    stop: int | None = None
    """Offset up to which the run copies; None: it has no end."""
    last: Row | None = None
    """The last record of the copy, until it has been compared with Kafka's."""
    most: int = MOST_BYTES
    """The topic's ``max_batch_bytes``."""
    writer: PartitionWriter | None = None

    @property
    def name(self) -> str:
        """Topic and partition, as TOPIC/PARTITION."""
        return f"{self.key[0]}/{self.key[1]}"

    @property
    def lag(self) -> int:
        """Number of offsets that Kafka has and the copy has not; -1 if an end is not known yet."""
        return -1 if -1 in (self.end, self.kafka_end) else max(0, self.kafka_end - self.end)

    @property
    def is_done(self) -> bool:
        """Whether everything up to ``stop`` is copied, and the last record was compared."""
        return self.stop is not None and self.end >= self.stop and self.last is None


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """What an import would do with one topic: the number of partitions and offsets, and the settings of the topic
    that it would create. ``exists``: the topic is there, and keeps its settings. ``groups``: those that have
    positions."""

    topic: KafkaTopic
    offsets: int
    exists: bool
    replication_factor: int
    settings: MappedSettings
    groups: Sequence[str]


class KafkaImport:
    """One run that copies topics from Kafka. It may be cancelled or killed at any time, and another run continues
    where the copies end."""

    def __init__(self, kafka: KafkaCluster, log: Log, settings: ImportSettings) -> None:
        self.kafka = kafka
        self._log = log
        self.settings = settings
        self.partitions: dict[Key, PartitionImport] = {}
        self.topics: dict[str, TopicInfo] = {}
        """The topics in Tidelog, by name."""
        self.groups: dict[str, dict[str, str]] = {}
        """By topic and group that has a position in it: "", or why its position could not be set."""
        self._waits = ""
        self._writes = trio.CapacityLimiter(WRITES_AT_ONCE)

    @property
    def waits(self) -> str:
        """The text of the error because of which the run makes no progress at present; "" if there is none."""
        return self._waits or next(map(str, self._log.waits), "")

    # --- what would be done --------------------------------------------------------------------------------

    async def plan(self) -> list[TopicPlan]:
        """Return what the run would do, by topic, and change nothing. Raises the errors of both clusters."""
        await _ask(self.kafka.connect)
        topics = await _ask(self.kafka.topics, self.settings.topics)
        keys = [key for topic in topics for key in topic.keys]
        starts = await _ask(self.kafka.offsets, keys, "earliest")
        ends = await _ask(partial(self.kafka.offsets, stable=True), keys, "latest")
        groups = await self._positions(topics)
        found = {topic.name: await self._find(topic.name) for topic in topics}
        new = await self._mapped([topic for topic in topics if found[topic.name] is None])
        plans = []
        for topic in topics:
            offsets = sum(max(0, ends[key] - starts[key]) for key in topic.keys)
            there = found[topic.name]
            factor = self._factor(topic) if there is None else max(len(p.replicas) for p in there.partitions)
            settings = new[topic.name] if there is None else MappedSettings()
            names = sorted(groups.get(topic.name, {}))
            plans.append(TopicPlan(topic, offsets, there is not None, factor, settings, names))
        return plans

    async def _find(self, name: str) -> TopicInfo | None:
        """Return a topic of Tidelog; None if there is none of that name."""
        try:
            return await self._log.topics.describe(name)
        except BrokerError as error:
            if error.code != "UNKNOWN_TOPIC":
                raise
            return None

    def _factor(self, topic: KafkaTopic) -> int:
        return self.settings.replication_factor or topic.replicas

    async def _mapped(self, topics: Sequence[KafkaTopic]) -> dict[str, MappedSettings]:
        """Return the settings that these topics are created with, by name: Kafka's as far as they have a counterpart,
        and over them those of the user."""
        found = await _ask(self.kafka.settings, [topic.name for topic in topics])
        mapped = {topic.name: as_tidelog(found[topic.name], self._factor(topic)) for topic in topics}
        for settings in mapped.values():
            settings.config |= self.settings.config
        return mapped

    # --- the run --------------------------------------------------------------------------------------------

    async def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Create the topics that are missing, and copy all partitions, up to Kafka's present end, or for ever with
        ``follow``; then set the positions of groups. ``ready`` is called once, when the partitions are known.
        Failures that may pass are waited out. Raises ``ImportFailed``, and the errors with which a cluster
        refuses."""
        await _ask(self.kafka.connect)
        again = True
        while again:
            try:
                again = await self._attempt(ready)
            except* TidelogError as group:
                error = first_error(group)
                if not passes(error) and error.code not in BEGIN_AGAIN:
                    raise error from None
                self._waits = str(error)
                await trio.sleep(RETRY_S)

    async def _attempt(self, ready: Callable[[], None]) -> bool:
        """Look at both sides and copy from where the partitions end. Returns True if the run is to begin again,
        because Kafka has more topics or partitions, and False if all is copied."""
        topics = await _ask(self.kafka.topics, self.settings.topics)
        await self._prepare(topics)
        is_first = not self.partitions
        try:
            await self._begin(topics)
            if is_first:
                ready()
            again = await self._copy(topics)
        finally:
            for each in self.partitions.values():
                if each.writer is not None:
                    each.writer.close()
                    each.writer = None
        if not again:
            await self._copy_groups(topics)
        return again

    async def _prepare(self, topics: Iterable[KafkaTopic]) -> None:
        """Create the topics that are missing, and give others as many partitions as Kafka has. Raises ``ConfigError``
        and ``ImportFailed`` for a topic that cannot take the copy."""
        found = {topic: await self._find(topic.name) for topic in topics}
        new = await self._mapped([topic for topic, there in found.items() if there is None])
        for topic, there in found.items():
            if there is None:
                there = await self._create(topic, new[topic.name].config)
            check_target(topic.name, there.config)
            if len(there.partitions) > topic.partitions:
                raise ImportFailed(
                    f"{topic.name} has {len(there.partitions)} partitions in Tidelog, {topic.partitions} in Kafka:"
                    " it is no copy of it. Delete it, or give Kafka's as many"
                )
            if len(there.partitions) < topic.partitions:
                await self._log.topics.grow(topic.name, topic.partitions)
                there = await self._log.topics.describe(topic.name)
            self.topics[topic.name] = there

    async def _create(self, topic: KafkaTopic, config: Mapping[str, str]) -> TopicInfo:
        check_target(topic.name, config)
        factor = self._factor(topic)
        try:
            return await self._log.topics.create(
                topic.name, partitions=topic.partitions, replication_factor=factor, config=dict(config)
            )
        except BrokerError as error:
            if error.code == "INVALID_REPLICATION_FACTOR":
                error.message += f" ({topic.name} has {factor} in Kafka; --replication-factor sets another number)"
            raise

    async def _begin(self, topics: Iterable[KafkaTopic]) -> None:
        """Find out where each partition begins and ends on both sides, and cover what lies below Kafka's first
        record. Raises ``ImportFailed`` for a partition that cannot be continued."""
        keys = [key for topic in topics for key in topic.keys]
        starts = await _ask(self.kafka.offsets, keys, "earliest")
        tops = await _ask(self.kafka.offsets, keys, "latest")
        ends = await _ask(partial(self.kafka.offsets, stable=True), keys, "latest")
        limit = trio.CapacityLimiter(ASKED_AT_ONCE)

        async def one(each: PartitionImport) -> None:
            async with limit:
                await self._locate(each, tops[each.key])

        async with trio.open_nursery() as nursery:
            for key in keys:
                each = self.partitions.setdefault(key, PartitionImport(key))
                each.start, each.kafka_end = starts[key], ends[key]
                if each.stop is None and not self.settings.follow:
                    each.stop = ends[key]
                nursery.start_soon(one, each)

    async def _locate(self, each: PartitionImport, top: int) -> None:
        """Request where a partition ends in Tidelog, and read its last record. ``top`` is the end of Kafka's log.
        Raises ``ImportFailed`` if the copy ends behind Kafka's log, or before its beginning."""
        topic = self.topics[each.key[0]]
        each.most = int(topic.config.get("max_batch_bytes", MOST_BYTES))
        each.writer = PartitionWriter(self._log, topic, each.key[1])
        each.end = end = await each.writer.fetch_end()
        each.last = None
        if end > top:
            raise ImportFailed(f"{each.name} ends at offset {end} in Tidelog and at {top} in Kafka: {_OTHER_LOG}")
        if end < each.start:
            if end and not self.settings.skip_lost:
                raise ImportFailed(
                    f"{each.name} ends at offset {end} in Tidelog, and Kafka's begins at {each.start}: Kafka deleted"
                    " what lies between before it was copied. --skip-lost continues after it"
                )
            await each.writer.put(empty_batches(end, each.start))
            each.end = each.start
        elif end > each.start:
            each.last = await self._last_record(each.writer, end)
            if each.last is not None and not each.start <= each.last[0] < (top if each.stop is None else each.stop):
                each.last = None

    async def _last_record(self, writer: PartitionWriter, end: int) -> Row | None:
        """Return the last record of the copy's last batch; None if that batch has no records, or was deleted."""
        try:
            found = await writer.read(end - 1, 1)
        except BrokerError as error:
            if error.code != "OFFSET_OUT_OF_RANGE":
                raise
            return None
        return rows_in(found[-1][1])[-1] if found and rows_in(found[-1][1]) else None

    # --- copying --------------------------------------------------------------------------------------------

    async def _copy(self, topics: Sequence[KafkaTopic]) -> bool:
        """Copy all partitions from where they end. Returns as ``_attempt`` does. One task reads while another one
        writes."""
        left = {key: each for key, each in self.partitions.items() if each.writer is not None and not each.is_done}
        if not left and not self.settings.follow:
            return False
        starts = {key: each.end if each.last is None else each.last[0] for key, each in left.items()}
        reader = await in_thread(self.kafka.reader, starts)
        again = False
        try:
            send, receive = trio.open_memory_channel[dict[Key, Chunk]](0)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read, reader, left, send)
                if self.settings.follow:

                    async def look() -> None:
                        nonlocal again
                        again = await self._look(topics)
                        nursery.cancel_scope.cancel()

                    nursery.start_soon(look)
                async for chunks in receive:
                    self._waits = ""
                    async with trio.open_nursery() as writing:
                        for key, chunk in chunks.items():
                            writing.start_soon(self._write, self.partitions[key], chunk)
        finally:
            with trio.CancelScope(shield=True):
                await in_thread(reader.close)
        return again

    async def _read(
        self, reader: KafkaReader, left: dict[Key, PartitionImport], send: trio.MemorySendChannel[dict[Key, Chunk]]
    ) -> None:
        """Read rounds and send them, until every partition in ``left`` has reached its ``stop``; for ever if they
        have none."""
        async with send:
            while left or self.settings.follow:
                chunks = await in_thread(reader.read)
                chunks = {key: chunk for key, chunk in chunks.items() if key in left}
                done = [key for key, chunk in chunks.items() if _cut(chunk, left[key].stop)]
                for key in done:
                    del left[key]
                if done:
                    await in_thread(reader.pause, done)
                if chunks:
                    await send.send(chunks)
                elif self.kafka.trouble:
                    self._waits, self.kafka.trouble = f"Kafka: {self.kafka.trouble}", ""

    async def _write(self, each: PartitionImport, chunk: Chunk) -> None:
        """Append the records of a chunk to the copy, after comparing its last record with Kafka's, if that was not
        done yet. Raises ``ImportFailed`` if these differ, or if a record does not fit."""
        if each.last is not None:
            self._compare_last(each, chunk.rows)
        rows = chunk.rows
        if rows and rows[0][0] < each.end:
            rows = [row for row in rows if row[0] >= each.end]
        each.kafka_end = chunk.reached if chunk.at_end else max(each.kafka_end, chunk.reached)
        if chunk.reached <= each.end:
            return
        try:
            batches = await in_thread(
                lambda: list(pack(rows, each.end, chunk.reached, each.most, self.settings.compression, wall_ms()))
            )
        except RecordTooLarge as error:
            raise ImportFailed(_too_large(each, error)) from error
        assert each.writer is not None
        async with self._writes:
            await each.writer.put(batches)
        each.records += len(rows)
        each.bytes += chunk.bytes
        each.end = chunk.reached

    def _compare_last(self, each: PartitionImport, rows: Sequence[Row]) -> None:
        """Compare the last record of the copy with the first that Kafka returned from that offset on. There is
        nothing to compare if Kafka has no record there any more. Raises ``ImportFailed`` if they differ."""
        last, each.last = each.last, None
        if last is not None and rows and rows[0][0] == last[0] and rows[0] != last:
            raise ImportFailed(f"{each.name} has another record at offset {last[0]} than Kafka: {_OTHER_LOG}")

    async def _look(self, topics: Sequence[KafkaTopic]) -> bool:
        """Every ``LOOK_S`` seconds, look where Kafka's logs end, and copy the positions of groups. Returns True when
        Kafka has other topics or partitions than ``topics``. Errors that may pass are ignored."""
        while True:
            await trio.sleep(LOOK_S)
            try:
                if await _ask(self.kafka.topics, self.settings.topics) != topics:
                    return True
                keys = [key for topic in topics for key in topic.keys]
                for key, end in (await _ask(partial(self.kafka.offsets, stable=True), keys, "latest")).items():
                    self.partitions[key].kafka_end = max(self.partitions[key].kafka_end, end)
                await self._copy_groups(topics)
                self._waits = ""
            except TidelogError as error:
                if not passes(error):
                    raise

    # --- groups ---------------------------------------------------------------------------------------------

    async def _positions(self, topics: Sequence[KafkaTopic]) -> dict[str, Positions]:
        if not self.settings.groups:
            return {}
        return await _ask(self.kafka.groups, topics, self.settings.group_names)

    async def _copy_groups(self, topics: Sequence[KafkaTopic]) -> None:
        """Set the positions of groups in Tidelog to those in Kafka, but at most to the end of what has been copied.
        The outcome is kept in ``groups``."""
        for name, positions in (await self._positions(topics)).items():
            ends = {key[1]: max(0, each.end) for key, each in self.partitions.items() if key[0] == name}
            refused = await set_positions(self._log, self.topics[name], positions, ends)
            self.groups[name] = {group: refused.get(group, "") for group in positions}


_OTHER_LOG = (
    "Kafka's topic was made anew or has lost records, or another client writes to the topic in Tidelog. To import it"
    " from the beginning, delete the one in Tidelog: 'tidelog topics delete'"
)


def _cut(chunk: Chunk, stop: int | None) -> bool:
    """Cut the offsets from ``stop`` on off the chunk, and return whether it reaches up to there. None: no offset is
    too high."""
    if stop is None or chunk.reached < stop:
        return False
    while chunk.rows and chunk.rows[-1][0] >= stop:
        chunk.rows.pop()
    chunk.reached, chunk.at_end = stop, False
    return True


def _too_large(each: PartitionImport, error: RecordTooLarge) -> str:
    """Return the message about a record that does not fit into the topic."""
    text = f"{each.name}, offset {error.offset}: the record"
    if not 0 < error.size <= MOST_BYTES:
        return f"{text} is larger than any topic of Tidelog takes (max_batch_bytes is at most {MOST_BYTES})"
    return (
        f"{text} takes {error.size} bytes, and max_batch_bytes of {each.key[0]} is {each.most}: 'tidelog topics"
        f" configure {each.key[0]} max_batch_bytes={error.size}', then run the import again; or --compression zstd"
    )


def rows_in(batch: memoryview) -> list[Row]:
    """Return the records of a batch of Tidelog with their offsets. Raises ``CorruptBatch``."""
    found = decode_columns(batch)
    fields = zip(found.values, found.keys, found.timestamps_ms, found.headers, strict=True)
    return list(zip(found.offsets, fields, strict=True))


async def _ask(call: Callable[..., T], *arguments: object) -> T:
    """Return what a request to Kafka returns, which runs in a thread. A caller that is cancelled does not wait for
    the answer."""
    return await in_thread(call, *arguments, abandon_on_cancel=True)
