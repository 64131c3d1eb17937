"""Copies a topic to another cluster for as long as it runs: every record once, at the offset that it has.

    where it continues  where the target's partition ends: the copy itself is the position, so the two cannot differ
    once                conditional appends (``partition_writer.py``): two mirrors of one topic do no harm
    the same log        before it continues, the target's last batch is compared with the source's at that offset; in
                        a run, the leader epoch of the last batch read shows whether the source was cut (KIP-320)

Conditions that end the run with an error:

    the source has cut off what was copied       an unclean election there, or a topic made anew: the target has
                                                 records that the source has not. Begin again with another target
    the source deleted what was not copied yet   retention was faster; ``skip_lost``: continue behind the gap, which
                                                 empty batches cover
    another client writes to the target

Everything else (leaders that move, gateways that end, a cluster that is down for a while) is waited out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import trio

from tidelog.backup.batches import as_copy, empty_batches, likeness
from tidelog.backup.group_positions import positions_in, set_positions
from tidelog.backup.partition_writer import PartitionWriter, check_target, first_error, passes
from tidelog.batch.format import read_header
from tidelog.client.log import Log
from tidelog.errors import BrokerError, TidelogError, refuse
from tidelog.types import Buffer, Position
from tidelog.wire.messages import TopicInfo

RETRY_S = 1.0
"""Seconds before another try after an error that may pass."""
WAIT_S = 10.0
"""Longest wait in seconds for new records of a partition in one request."""
LOOK_S = 5.0
"""Seconds between two copies of the groups' positions, with a check whether the source has more partitions."""
SOURCE = "the source"
TARGET = "the target"
AHEAD = 1
"""Number of the source's answers, per partition, that may wait to be written."""
READ_BYTES = 1 << 20
"""Most bytes in one answer of the source."""
WRITES_AT_ONCE = 8
"""Number of partitions that are written to at a time: the limit of a gateway for one client."""


@dataclass(slots=True)
class MirrorProgress:
    """The progress of one partition in this run of a mirror; the run updates it. Offsets are exclusive ends."""

    copied: int = 0
    """Number of offsets that this run has copied."""
    bytes: int = 0
    """Number of bytes that this run has copied."""
    end: int = -1
    """Offset at which the target ends; -1: not known yet."""
    source_end: int = -1
    """Offset at which the source ends, as far as this run has seen; -1: not known yet."""
    waits: str = ""
    """The text of the error because of which the partition makes no progress at present; "" if there is none."""

    @property
    def lag(self) -> int:
        """Number of offsets that are committed at the source and not in the target; -1 if an end is not known yet."""
        return -1 if -1 in (self.end, self.source_end) else max(0, self.source_end - self.end)


@dataclass(frozen=True, slots=True)
class MirrorSettings:
    """The settings of a mirror, as the user gives them. ``name`` is that of the target topic. ``replication_factor``
    (0: as in the source) and ``config`` (settings that differ from the source's) apply when the target is created.
    ``to_end``: stop at the source's present end. ``groups``: copy the positions of consumer groups, too.
    ``skip_lost``: continue behind records that the source deleted before they were copied."""

    name: str
    replication_factor: int = 0
    config: Mapping[str, str] = field(default_factory=dict)
    to_end: bool = False
    groups: bool = False
    skip_lost: bool = False


class Mirror:
    """One run that copies a topic from one cluster to another. With ``to_end`` its method ``run`` returns at the
    source's present end, otherwise never. The run may be cancelled at any time, and another run continues at the
    target's end."""

    def __init__(self, source: Log, target: Log, topic: str, settings: MirrorSettings) -> None:
        self._source = source
        self._target = target
        self._topic = topic
        self._settings = settings
        self.partitions: dict[int, MirrorProgress] = {}
        self._writes = trio.CapacityLimiter(WRITES_AT_ONCE)
        self.groups_refused: dict[str, str] = {}
        """Groups whose positions could not be copied the last time, with the reason."""

    async def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Create the target topic if it is missing, and copy all partitions of the source topic, also those that the
        source gets later. ``ready`` is called when the target exists. Waits out failures that may pass. Raises
        ``LOG_TRUNCATED`` if the target is no copy of the source any more (the source was cut, or another client
        writes to the target), ``OFFSET_OUT_OF_RANGE`` if the source deleted records before they were copied, and the
        errors with which a cluster refuses."""
        with errors_of(SOURCE):
            source = await self._source.topics.describe(self._topic)
        with errors_of(TARGET):
            target = await self._prepare(source)
        ends: dict[int, int] = {}
        if self._settings.to_end:
            with errors_of(SOURCE):
                found = await self._source.partitions.list_offsets(source, "latest", range(len(source.partitions)))
            ends = {partition: at.offset for partition, at in found.items()}
        ready()
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as copying:
                self._start(copying, source, target, ends)
                if not self._settings.to_end:
                    nursery.start_soon(self._look, copying, source)
            if self._settings.groups:
                await self._copy_groups(source)
            nursery.cancel_scope.cancel()

    def _start(self, nursery: trio.Nursery, source: TopicInfo, target: TopicInfo, ends: Mapping[int, int]) -> None:
        """Start a task for each partition of the source that has none yet. ``ends``: the offset up to which a
        partition is copied; a partition without one is copied for ever."""
        for partition in range(len(self.partitions), len(source.partitions)):
            self.partitions[partition] = MirrorProgress()
            nursery.start_soon(self._follow, source, target, partition, ends.get(partition))

    async def _prepare(self, source: TopicInfo) -> TopicInfo:
        """Return the target topic, after creating it or giving it more partitions, so that it has as many as the
        source. Raises ``ConfigError`` if its commit rule is ``quorum``, and ``TOPIC_EXISTS`` if it has more
        partitions than the source."""
        settings, count = self._settings, len(source.partitions)
        try:
            target = await self._target.topics.describe(settings.name)
        except BrokerError as error:
            if error.code != "UNKNOWN_TOPIC":
                raise
            factor = settings.replication_factor or max(len(each.replicas) for each in source.partitions)
            config = source.config | dict(settings.config)
            check_target(settings.name, config)
            return await self._target.topics.create(
                settings.name, partitions=count, replication_factor=factor, config=config
            )
        check_target(settings.name, target.config)
        if len(target.partitions) > count:
            text = f"{settings.name} has {len(target.partitions)} partitions, the source {count}: it is no copy of it"
            raise refuse("TOPIC_EXISTS", text)
        if len(target.partitions) < count:
            await self._target.topics.grow(settings.name, count)
            target = await self._target.topics.describe(settings.name)
        return target

    async def _look(self, copying: trio.Nursery, source: TopicInfo) -> None:
        """Every ``LOOK_S`` seconds, for ever, start copying new partitions of the source, and copy the positions of
        its groups if the settings ask for that. Errors that may pass are ignored."""
        while True:
            await trio.sleep(LOOK_S)
            try:
                with errors_of(SOURCE):
                    source = await self._source.topics.describe(self._topic)
                if len(source.partitions) > len(self.partitions):
                    with errors_of(TARGET):
                        target = await self._prepare(source)
                    self._start(copying, source, target, {})
                if self._settings.groups:
                    await self._copy_groups(source)
            except TidelogError as error:
                if not passes(error):
                    raise

    async def _copy_groups(self, source: TopicInfo) -> None:
        """Set the positions of groups in the target to their positions in the source, but at most to the end of what
        has been copied. Refusals are kept in ``groups_refused``."""
        with errors_of(SOURCE):
            positions = await positions_in(self._source, source)
        ends = {partition: max(0, progress.end) for partition, progress in self.partitions.items()}
        with errors_of(TARGET):
            target = await self._target.topics.describe(self._settings.name)
            self.groups_refused = await set_positions(self._target, target, positions, ends)

    # --- one partition -----------------------------------------------------------------------------------

    async def _follow(self, source: TopicInfo, topic: TopicInfo, partition: int, end: int | None) -> None:
        """Copy a partition up to the offset ``end`` (exclusive), or for ever if that is None. After an error that may
        pass, wait ``RETRY_S`` seconds and begin again at the target's end. Raises every other error."""
        target, progress = PartitionWriter(self._target, topic, partition), self.partitions[partition]
        try:
            while True:
                begun = False
                try:
                    at = await self._begin(source, target, partition)
                    begun, progress.waits = True, ""
                    await self._copy(source, target, partition, at, end)
                    return
                except* TidelogError as group:
                    error = first_error(group)
                    if error.code == "LOG_TRUNCATED" and begun:
                        text = f"the source of {target.name} was cut below offset {progress.end}: {_CUT}"
                        raise refuse("LOG_TRUNCATED", text) from error
                    if not passes(error) and not (begun and error.code in _LOOK_AGAIN):
                        raise error from None
                    progress.waits = str(error)
                await trio.sleep(RETRY_S)
        finally:
            target.close()

    async def _begin(self, source: TopicInfo, target: PartitionWriter, partition: int) -> Position:
        """Return the position in the source at which copying continues: the target's end. If the source's log begins
        above it, empty batches are first written up to the log start. Raises ``LOG_TRUNCATED`` if the target is no
        copy of the source's log, and ``OFFSET_OUT_OF_RANGE`` if the source has deleted records behind the target's
        end, unless the target is empty or ``skip_lost`` is set."""
        progress = self.partitions[partition]
        with errors_of(TARGET):
            end = await target.fetch_end()
            await target.read(end, 1)  # raises FORBIDDEN now rather than later
        if progress.end >= 0:  # a write whose outcome was unknown has been appended
            progress.copied += max(0, end - progress.end)
        progress.end = end
        with errors_of(SOURCE):
            first = (await self._source.partitions.list_offsets(source, "earliest", [partition]))[partition].offset
            last = (await self._source.partitions.list_offsets(source, "latest", [partition]))[partition].offset
        progress.source_end = last
        if end > last:
            raise refuse(
                "LOG_TRUNCATED", f"{target.name} ends at {end}, the source at {last}: {_CUT}", end_offset=last
            )
        if end < first:
            if end and not self._settings.skip_lost:
                text = f"{target.name} ends at {end}, the source begins at {first}: what lies between was deleted"
                raise refuse("OFFSET_OUT_OF_RANGE", text, log_start=first)
            with errors_of(TARGET):
                await target.put(empty_batches(end, first))
            progress.end = first
            return Position(-1, first)
        return Position(await self._agree(source, target, partition, end, first), end)

    async def _agree(self, source: TopicInfo, target: PartitionWriter, partition: int, end: int, first: int) -> int:
        """Check that the last batch of the target is a copy of the source's batch at the same offset, and return that
        batch's leader epoch at the source. Returns -1 if there is nothing to compare, because the target has no such
        batch or the source no longer has it. Batches are compared by their ``Likeness``, not byte by byte. Raises
        ``LOG_TRUNCATED`` if they differ."""
        if end <= first:
            return -1
        with errors_of(TARGET):
            copied = (await target.read(end - 1, 1))[0][1]
        base = read_header(copied).base_offset
        if base < first:
            return -1
        with errors_of(SOURCE):
            _, batches = await self._source.read_batches(source.topic_id, partition, Position(-1, base), max_bytes=1)
        header, batch = batches[0]
        if likeness(as_copy(batch)) != likeness(copied):
            text = f"{target.name} has another batch at offset {base} than the source: {_CUT}"
            raise refuse("LOG_TRUNCATED", text, end_offset=base)
        return header.leader_epoch

    async def _copy(
        self, source: TopicInfo, target: PartitionWriter, partition: int, at: Position, end: int | None
    ) -> None:
        """Copy a partition from the position ``at`` up to the offset ``end`` (exclusive), or for ever if that is
        None. One task reads while another one writes. Raises the first error of either."""
        progress = self.partitions[partition]
        send, receive = trio.open_memory_channel[tuple[int, list[Buffer]]](AHEAD)

        async def read(at: Position) -> None:
            async with send:
                while end is None or at.offset < end:
                    with errors_of(SOURCE):
                        answer, batches = await self._source.read_batches(
                            source.topic_id, partition, at, max_bytes=READ_BYTES, wait_s=WAIT_S
                        )
                    progress.source_end = max(progress.source_end, answer.high_watermark)
                    copies: list[Buffer] = []
                    for header, batch in batches:
                        if header.base_offset != at.offset:
                            raise refuse("MALFORMED", f"the source of {target.name} has a gap at {at.offset}")
                        copies.append(as_copy(batch))
                        at = Position(header.leader_epoch, header.end_offset)
                    if copies:
                        await send.send((at.offset, copies))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, at)
            async for reached, copies in receive:
                async with self._writes:
                    with errors_of(TARGET):
                        await target.put(copies)
                progress.copied += reached - progress.end
                progress.bytes += sum(map(len, copies))
                progress.end, progress.waits = reached, ""


_CUT = (
    "it was cut there ('tidelog why' says when), is another topic than the one that was copied, or somebody else"
    " writes to the target. Mirror it to a new topic"
)
_LOOK_AGAIN = ("UNEXPECTED_OFFSET", "OFFSET_OUT_OF_RANGE")
"""Errors after which the partition is begun again, because source or target has changed."""


@contextmanager
def errors_of(side: str) -> Iterator[None]:
    """Put the name of a cluster (``SOURCE`` or ``TARGET``) before the message of every ``TidelogError`` that the
    block raises."""
    try:
        yield
    except TidelogError as error:
        error.message = f"{side}: {error.message}"
        raise
