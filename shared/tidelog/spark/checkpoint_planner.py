"""Plans the offsets of Spark's checkpoint: where each micro-batch of a stream begins and ends.

Spark keeps one reader per query, in a process of its own, and asks it for the end of the next batch. Spark writes
that end into the checkpoint before anything is read. A batch that is run again therefore reads exactly the same
records, or reports which of them are gone (``read/checkpoint_json.py``, ``read/task.py``)."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from socket import gethostname
from time import monotonic
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from tidelog.client.core.query_note import QueryNote
from tidelog.errors import TidelogError
from tidelog.spark.errors import SourceError, translated, translated_errors
from tidelog.spark.options import ReadOptions
from tidelog.spark.read import extents
from tidelog.spark.read import ranges as offsets
from tidelog.spark.read.checkpoint_json import CheckpointOffset, Key, key_of, share
from tidelog.spark.read.data_loss import PartitionExtent, find_loss
from tidelog.spark.read.ranges import Range
from tidelog.types import Position

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.sync import Log

WAIT_S = 0.5
"""Seconds that ``latestOffset`` waits for new records if there are none: Spark's default trigger asks again at
once."""
LOOK_S = 0.1
"""Seconds between two checks for new records."""
COMMITS = 5
"""Number of latest batches by whose times others are told how often the query commits."""

log = logging.getLogger("tidelog.spark")


class TidelogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """The reader of one streaming query, which Spark creates and calls. On the driver it plans the offsets of each
    micro-batch and divides them into ranges; in a task it reads one range. The methods with names in camel case are
    those of PySpark's interface."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self._client: Log | None = None
        self._initial: CheckpointOffset | None = None
        self._target: dict[Key, Position] | None = None
        """With ``Trigger.AvailableNow``: the position at which the query ends in each partition; None with any other
        trigger."""
        self._reported: CheckpointOffset | None = None
        self._report_times: deque[float] = deque(maxlen=COMMITS)
        """When the latest batches ended, whether there was a position to commit or not, in seconds of the monotonic
        clock."""
        self._seen: tuple[CheckpointOffset, Sequence[PartitionExtent]] = (CheckpointOffset(), ())
        self._lost: Counter[Key] = Counter()
        self._planned_at = float("-inf")

    # --- where to begin ------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Return where a query without a checkpoint begins, as the JSON of a ``CheckpointOffset``: the place of the
        option ``startingOffsets``, or of the starting times. Later calls return the first answer. With a ``groupId``,
        a partition for which that group has a committed position begins there instead. The start is then also
        committed to the group, so that a restarted query gets the same answer. Raises ``SourceError``, such as
        ``TIDELOG_OPTION`` if the starting offsets do not name exactly the partitions that are read."""
        if self._initial is None:
            found = self._look_up_extents()
            options = self.options
            place = extents.offsets_at(
                self._log, found, options.starting_offsets, "a starting time", options.beyond_time
            )
            offsets.check_named("startingOffsets", place, found)
            begin = {}
            for extent in found:
                at = offsets.resolve(place, extent)
                begin[key_of(extent)] = Position(extent.end_epoch if at == extent.end else -1, at)
            if options.group:
                begin |= self._kept(begin)
            self._initial = CheckpointOffset(begin, first=True)
            self._report(self._initial)
        return self._initial.to_json()

    def _kept(self, begin: dict[Key, Position]) -> dict[Key, Position]:
        """Ask the cluster for the committed positions of the query's consumer group, and return those of the
        partitions in ``begin``. Partitions for which the group has none are left out. Raises ``SourceError``."""
        kept = {}
        with translated_errors():
            for topic in sorted({key.topic for key in begin}):
                for partition, position in self._log.groups.fetch_offsets(self.options.group, topic).items():
                    kept.update({key: position for key in begin if (key.topic, key.partition) == (topic, partition)})
        return kept

    # --- where the next batch ends ---------------------------------------------------------------------------

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return how many records Spark is to request for a micro-batch: at most ``maxOffsetsPerTrigger``, or else at
        least ``minOffsetsPerTrigger``, or else everything that is available."""
        if self.options.max_offsets:
            return ReadMaxRows(self.options.max_offsets)
        return ReadMinRows(self.options.min_offsets) if self.options.min_offsets else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Look up the present ends of the logs, and fix them as the end of the query: later records, and partitions
        created later, are not read. Spark calls this before the first batch with ``Trigger.AvailableNow``. Raises
        ``SourceError``."""
        self._target = {key_of(extent): Position(extent.end_epoch, extent.end) for extent in self._look_up_extents()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch, which begins at ``start`` and takes at most what ``limit`` allows;
        both offsets are the JSON of a ``CheckpointOffset``. Blocks for up to ``WAIT_S`` until there are new records.
        Returns ``start`` if there is nothing to read, or less than ``minOffsetsPerTrigger`` and ``maxTriggerDelay``
        has not passed. Also commits ``start`` to the query's consumer group, since everything below it has been
        processed. Raises ``SourceError``, such as ``TIDELOG_DATA_LOSS`` if records are gone and ``failOnDataLoss`` is
        set."""
        checkpoint = CheckpointOffset.from_json(start)
        self._report(checkpoint)
        until = monotonic() + WAIT_S
        while True:
            found = self._look_up_extents()
            end = self._next(checkpoint, found, limit)
            self._seen = end or checkpoint, found
            if end is not None:
                self._planned_at = monotonic()
                return end.to_json()
            if self._target is not None or monotonic() >= until:
                return start
            threading.Event().wait(LOOK_S)

    def _next(
        self, checkpoint: CheckpointOffset, found: Sequence[PartitionExtent], limit: ReadLimit
    ) -> CheckpointOffset | None:
        """Return the end of the micro-batch that begins at ``checkpoint``, or None if nothing can be read or the
        batch waits for more records. A batch of limited size takes a share of every partition (``share``). Raises
        ``SourceError`` for a topic that was created again, and for a data loss with ``failOnDataLoss``."""
        self._check_topics(checkpoint, found)
        ends = {}
        for extent in found:
            end = self._end_of(checkpoint, extent)
            if end is not None:
                ends[key_of(extent)] = end
        starts = {key_of(extent): max(checkpoint.start_of(key_of(extent)).offset, extent.start) for extent in found}
        sizes = {key: end.offset - starts[key] for key, end in ends.items()}
        if self._is_to_wait(sum(max(0, size) for size in sizes.values()), limit):
            return None
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else max(1, sum(map(abs, sizes.values())))
        taken = share(sizes, most)
        cut = {key: starts[key] + count for key, count in taken.items() if count < sizes[key]}
        epochs = self._epochs_before(cut)
        at = dict(checkpoint.at)
        for key, end in ends.items():
            if key in cut:
                at[key] = Position(epochs.get(key, -1), cut[key])
            elif key in taken or (sizes[key] <= 0 and end.offset != checkpoint.start_of(key).offset):
                at[key] = end  # in the second case nothing of the partition is left to read
        if at == dict(checkpoint.at):
            return None
        return CheckpointOffset(at, since=replace(checkpoint, first=False) if checkpoint.first else None)

    def _end_of(self, checkpoint: CheckpointOffset, extent: PartitionExtent) -> Position | None:
        """Return the position up to which a partition may be read: the end of its log, or the query's end
        (``_target``) if that is lower. Returns None for a partition that was created after the query's end was fixed.
        If the log ends below the checkpoint, raises or logs the loss (``_handle_loss``)."""
        start = checkpoint.start_of(key_of(extent)).offset
        if start > extent.end:
            self._handle_loss(find_loss(extent, extent.end, start, seen=True))
        end = Position(extent.end_epoch, extent.end)
        if self._target is None:
            return end
        target = self._target.get(key_of(extent))
        return None if target is None else min(target, end, key=lambda position: position.offset)

    def _is_to_wait(self, waiting: int, limit: ReadLimit) -> bool:
        """Return whether a batch of ``waiting`` records is not planned yet, because it has fewer than
        ``minOffsetsPerTrigger`` and the last batch was planned less than ``maxTriggerDelay`` ago. Always False with
        ``Trigger.AvailableNow``, and for a limit that reads everything available."""
        if self._target is not None or isinstance(limit, ReadAllAvailable):
            return False
        waited_ms = 1000 * (monotonic() - self._planned_at)
        return waiting < self.options.min_offsets and waited_ms < self.options.max_delay_ms

    def _epochs_before(self, cut: dict[Key, int]) -> dict[Key, int]:
        """Return, by partition, the leader epoch of the last record below each offset of ``cut``. These are the
        offsets at which a batch of limited size ends within a log. Reads those records from the cluster. If retention
        has deleted one of them meanwhile, partitions of its topic may be missing in the answer; any other failure
        raises ``SourceError``."""
        epochs = {}
        for topic in sorted({key.topic for key in cut}):
            keys = {key.partition: key for key in cut if key.topic == topic}
            starts = {partition: cut[key] - 1 for partition, key in keys.items()}
            ends = {partition: cut[key] for partition, key in keys.items()}
            try:
                with self._log.consume(topic, start=starts, end=ends, partitions=list(keys)) as consumer:
                    while (batch := consumer.next_batch(extents.PLAN_TIMEOUT_S)) is not None:
                        epochs[keys[batch.partition]] = batch.header.leader_epoch
            except TidelogError as error:
                if error.code != "OFFSET_OUT_OF_RANGE":  # deleted by retention meanwhile: ``partitions`` reports that
                    raise translated(error) from error
        return epochs

    # --- a batch -----------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the ranges of the micro-batch from ``start`` to ``end`` (the JSON of a ``CheckpointOffset``), each
        the work of one task. Offsets that are no longer in the log are left out with a warning, or raise
        ``TIDELOG_DATA_LOSS`` with ``failOnDataLoss``. A topic that was deleted and created again always raises
        ``TIDELOG_TOPIC_CHANGED``. The first batch begins at the start that its end holds (``since``), not at
        ``start``."""
        return self._divide(self._ranges(start, end))

    def _ranges(self, start: dict[str, Any], end: dict[str, Any]) -> list[Range]:
        """Return the range of each partition in the micro-batch from ``start`` to ``end``; see ``partitions``."""
        upto = CheckpointOffset.from_json(end)
        since = upto.since or CheckpointOffset.from_json(start)
        found = self._look_up_extents()
        self._check_topics(upto, found)
        ranges = []
        for extent in found:
            key = key_of(extent)
            if key in upto.at:
                ranges += self._range(extent, since.start_of(key), upto.at[key])
        return ranges

    def _divide(self, ranges: list[Range]) -> list[InputPartition]:
        """Divide ranges among tasks, and return the work of each."""
        from tidelog.spark.source import RangePartition

        return [
            RangePartition(each)
            for each in offsets.cut(ranges, self.options.min_partitions, self.options.max_per_partition)
        ]

    def _range(self, extent: PartitionExtent, start: Position, end: Position) -> list[Range]:
        """Return the range of one partition between two positions, cut to what its log still holds: a list of one
        ``Range``, or an empty list if the log holds nothing of it. Raises or logs a loss (``_handle_loss``) for the
        offsets that are gone, also if ``end`` is below ``start`` because the log was truncated."""
        if start.offset > end.offset:
            self._handle_loss(find_loss(extent, end.offset, start.offset, seen=True, cut_at=end.offset))
            return []
        self._handle_loss(find_loss(extent, start.offset, end.offset, seen=True))
        self._lost[key_of(extent)] += max(0, min(end.offset, extent.start) - start.offset)
        first, after = max(start.offset, extent.start), min(end.offset, extent.end)
        if first >= after:
            return []
        epoch = start.leader_epoch if first == start.offset else -1
        return [
            Range(extent.topic, extent.topic_id, extent.partition, first, after, epoch, end_epoch=end.leader_epoch)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one planned range as Arrow record batches. Spark calls this in a task. Raises
        ``SourceError``, such as ``TIDELOG_DATA_LOSS`` if records are gone and ``failOnDataLoss`` is set."""
        from tidelog.spark.read import task as reading

        yield from reading.read(self.options, partition.range)

    # --- what others see ---------------------------------------------------------------------------------------

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the query's progress, which Spark shows in its reports, as of the last ``latestOffset``: the ends of
        the logs as a ``CheckpointOffset`` has them, and beside the offset of each partition ``behind`` (the number of
        offsets between the end of the batch that was planned last and the end of the log) and ``lost`` (the number of
        offsets that were passed over because they are gone, with ``failOnDataLoss=false``). ``behind`` and ``lost``
        are also there for all partitions together. ``tidelog.spark.progress.lag`` reads it."""
        planned, found = self._seen
        ends = {key_of(extent): Position(extent.end_epoch, extent.end) for extent in found}
        report = CheckpointOffset(ends).to_json()
        behind = {key: planned.behind(key, end.offset) for key, end in ends.items()}
        for key in ends:
            partition = report["topics"][key.topic]["partitions"][str(key.partition)]
            partition |= {"behind": behind[key], "lost": self._lost[key]}
        return {"behind": sum(behind.values()), "lost": self._lost.total()} | report

    def _report(self, checkpoint: CheckpointOffset) -> None:
        """Commit the positions of ``checkpoint`` to the consumer group that ``groupId`` names, unless the last commit
        had the same positions. The ``QueryNote`` with them says how often this query comes here. Does nothing without
        ``groupId``. A failure that can be retried is only logged, and the next call tries again; any other failure
        raises ``TIDELOG_GROUP``."""
        if not self.options.group:
            return
        self._report_times.append(monotonic())
        if self._reported is not None and self._reported.at == checkpoint.at:
            return
        every_s = max((after - before for before, after in pairwise(self._report_times)), default=0.0)
        note = QueryNote(gethostname(), every_s).to_metadata()
        try:
            for topic in sorted({key.topic for key in checkpoint.at}):
                positions = {key.partition: at for key, at in checkpoint.at.items() if key.topic == topic}
                self._log.groups.reset(self.options.group, topic, positions, metadata=note)
        except TidelogError as error:
            if not error.retriable:
                raise SourceError(
                    "TIDELOG_GROUP",
                    f"groupId {self.options.group}: {error.message}; a query needs a group of its own",
                ) from error
            log.warning("the position cannot be committed to group %s: %s", self.options.group, error)
            return
        self._reported = checkpoint

    def stop(self) -> None:
        """Close the connection to the gateway, if there is one. Spark calls this when the query ends."""
        if self._client is not None:
            self._client.close()

    # --- how -----------------------------------------------------------------------------------------------------

    @property
    def _log(self) -> Log:
        if self._client is None:
            self._client = extents.connect(self.options)
        return self._client

    def _look_up_extents(self) -> list[PartitionExtent]:
        return extents.look_up(self._log, self.options)

    def _check_topics(self, checkpoint: CheckpointOffset, found: Sequence[PartitionExtent]) -> None:
        """Raise ``TIDELOG_TOPIC_CHANGED`` if a topic of the checkpoint was deleted and created again. A topic that no
        longer exists counts as a data loss: that raises ``TIDELOG_UNKNOWN_TOPIC`` with ``failOnDataLoss``, and is
        logged otherwise."""
        from tidelog.spark.read.task import topic_changed

        ids = {extent.topic: extent.topic_id for extent in found}
        for key in checkpoint.at:
            if ids.get(key.topic, key.topic_id) != key.topic_id:
                raise topic_changed(key.topic)
            if key.topic not in ids:
                gone = SourceError("TIDELOG_UNKNOWN_TOPIC", f"{key.topic} was read, and is gone")
                self._handle_loss(gone)

    def _handle_loss(self, loss: SourceError | None) -> None:
        """Raise ``loss`` if ``failOnDataLoss`` is set, otherwise log it as a warning. Does nothing if ``loss`` is
        None."""
        if loss is None:
            return
        if self.options.fail_on_data_loss:
            raise loss
        log.warning("%s", loss)
