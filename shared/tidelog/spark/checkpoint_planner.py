"""The streaming source, one micro-batch at a time.

Spark keeps one reader per query, in a process of its own, and asks it for the end of the next batch. The end is in
the checkpoint before anything is read. A batch that is run again therefore reads exactly the same records, or reports
which of them are gone (``read/checkpoint_offset.py``, ``read/task.py``).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
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

from tidelog.errors import TidelogError
from tidelog.spark.errors import SourceError, translated
from tidelog.spark.options import ReadOptions
from tidelog.spark.read import planner
from tidelog.spark.read import ranges as offsets
from tidelog.spark.read.checkpoint_offset import CheckpointOffset, Key, key_of, share
from tidelog.spark.read.data_loss import PartitionExtent, lost
from tidelog.spark.read.ranges import Range
from tidelog.types import Position

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.sync import Log

WAIT_S = 0.5
"""Time that a query without new records waits for some: Spark's default trigger asks again at once."""
LOOK_S = 0.1
"""Pause between two checks for new records."""

log = logging.getLogger("tidelog.spark")


class TidelogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Plans batches on the driver; a task reads one range."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self._client: Log | None = None
        self._initial: CheckpointOffset | None = None
        self._target: dict[Key, Position] | None = None
        """With Trigger.AvailableNow: where the query ends."""
        self._reported: CheckpointOffset | None = None
        self._seen: tuple[CheckpointOffset, Sequence[PartitionExtent]] = (CheckpointOffset(), ())
        self._lost = 0
        self._planned_at = float("-inf")

    # --- where to begin ------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Return where a query without a checkpoint begins. The answer does not change. With a ``groupId`` it is
        stored as the group's position, so that it stays the same after a restart."""
        if self._initial is None:
            found = self._look()
            options = self.options
            place = planner.offsets_at(
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
        """Return the group's stored positions."""
        kept = {}
        with planner.translated_errors():
            for topic in sorted({key.topic for key in begin}):
                for partition, position in self._log.groups.fetch_offsets(self.options.group, topic).items():
                    kept.update({key: position for key in begin if (key.topic, key.partition) == (topic, partition)})
        return kept

    # --- where the next batch ends ---------------------------------------------------------------------------

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a batch that the options set."""
        if self.options.max_offsets:
            return ReadMaxRows(self.options.max_offsets)
        return ReadMinRows(self.options.min_offsets) if self.options.min_offsets else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """End the query at the present ends of the logs."""
        self._target = {key_of(extent): Position(extent.end_epoch, extent.end) for extent in self._look()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch; ``start`` if there is nothing to read. Everything below ``start`` is
        done, so that is committed to the group."""
        checkpoint = CheckpointOffset.from_json(start)
        self._report(checkpoint)
        until = monotonic() + WAIT_S
        while True:
            found = self._look()
            self._seen = checkpoint, found
            end = self._next(checkpoint, found, limit)
            if end is not None:
                self._planned_at = monotonic()
                return end.to_json()
            if self._target is not None or monotonic() >= until:
                return start
            threading.Event().wait(LOOK_S)

    def _next(
        self, checkpoint: CheckpointOffset, found: Sequence[PartitionExtent], limit: ReadLimit
    ) -> CheckpointOffset | None:
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
                at[key] = end  # in the second case nothing is left of it to read
        if at == dict(checkpoint.at):
            return None
        return CheckpointOffset(at, since=replace(checkpoint, first=False) if checkpoint.first else None)

    def _end_of(self, checkpoint: CheckpointOffset, extent: PartitionExtent) -> Position | None:
        """Return up to which position a partition may be read; None for a partition that was created after the
        query's end was fixed."""
        start = checkpoint.start_of(key_of(extent)).offset
        if start > extent.end:
            self._judge(lost(extent, extent.end, start, seen=True), 0)
        end = Position(extent.end_epoch, extent.end)
        if self._target is None:
            return end
        target = self._target.get(key_of(extent))
        return None if target is None else min(target, end, key=lambda position: position.offset)

    def _is_to_wait(self, waiting: int, limit: ReadLimit) -> bool:
        if self._target is not None or isinstance(limit, ReadAllAvailable):
            return False
        waited_ms = 1000 * (monotonic() - self._planned_at)
        return waiting < self.options.min_offsets and waited_ms < self.options.max_delay_ms

    def _epochs_before(self, cut: dict[Key, int]) -> dict[Key, int]:
        """Look up the leader epochs of the last records of a batch that ends within the logs."""
        epochs = {}
        for topic in sorted({key.topic for key in cut}):
            keys = {key.partition: key for key in cut if key.topic == topic}
            starts = {partition: cut[key] - 1 for partition, key in keys.items()}
            ends = {partition: cut[key] for partition, key in keys.items()}
            try:
                with self._log.consume(topic, start=starts, end=ends, partitions=list(keys)) as consumer:
                    while (batch := consumer.next_batch(planner.PLAN_TIMEOUT_S)) is not None:
                        epochs[keys[batch.partition]] = batch.header.leader_epoch
            except TidelogError as error:
                if error.code != "OFFSET_OUT_OF_RANGE":  # retention was faster: planning the batch says so
                    raise translated(error) from error
        return epochs

    # --- a batch -----------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the ranges of a batch. Raises ``SourceError`` if part of it is no longer in the log."""
        from tidelog.spark.source import RangePartition

        upto = CheckpointOffset.from_json(end)
        since = upto.since or CheckpointOffset.from_json(start)
        found = self._look()
        self._check_topics(upto, found)
        ranges = []
        for extent in found:
            key = key_of(extent)
            if key in upto.at:
                ranges += self._range(extent, since.start_of(key), upto.at[key])
        return [
            RangePartition(each)
            for each in offsets.cut(ranges, self.options.min_partitions, self.options.max_per_partition)
        ]

    def _range(self, extent: PartitionExtent, start: Position, end: Position) -> list[Range]:
        if start.offset > end.offset:
            self._judge(lost(extent, end.offset, start.offset, seen=True, cut_at=end.offset), 0)
            return []
        gone = min(end.offset, extent.start) - start.offset
        self._judge(lost(extent, start.offset, end.offset, seen=True), max(0, gone))
        first, after = max(start.offset, extent.start), min(end.offset, extent.end)
        if first >= after:
            return []
        epoch = start.leader_epoch if first == start.offset else -1
        return [
            Range(extent.topic, extent.topic_id, extent.partition, first, after, epoch, end_epoch=end.leader_epoch)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the records of one range, as Arrow record batches."""
        from tidelog.spark.read import task as reading

        yield from reading.read(self.options, partition.range)

    # --- what others see ---------------------------------------------------------------------------------------

    def reportLatestOffset(self) -> dict[str, Any]:
        """Report the query's progress: the ends of the logs, the number of offsets above the last batch, and how many
        were passed over because they are gone (``failOnDataLoss=false``)."""
        checkpoint, found = self._seen
        ends = CheckpointOffset({key_of(extent): Position(extent.end_epoch, extent.end) for extent in found})
        return {"behind": checkpoint.behind(found), "lost": self._lost} | ends.to_json()

    def _report(self, checkpoint: CheckpointOffset) -> None:
        """Commit the positions to the group. A commit that fails does not end the query, unless it is forbidden."""
        if not self.options.group or (self._reported is not None and self._reported.at == checkpoint.at):
            return
        try:
            for topic in sorted({key.topic for key in checkpoint.at}):
                positions = {key.partition: at for key, at in checkpoint.at.items() if key.topic == topic}
                self._log.groups.reset(self.options.group, topic, positions)
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
        """Close the connection."""
        if self._client is not None:
            self._client.close()

    # --- how -----------------------------------------------------------------------------------------------------

    @property
    def _log(self) -> Log:
        if self._client is None:
            self._client = planner.connect(self.options)
        return self._client

    def _look(self) -> list[PartitionExtent]:
        return planner.extents(self._log, self.options)

    def _check_topics(self, checkpoint: CheckpointOffset, found: Sequence[PartitionExtent]) -> None:
        """Check that the topics of the checkpoint were not deleted and created again."""
        from tidelog.spark.read.task import topic_changed

        ids = {extent.topic: extent.topic_id for extent in found}
        for key in checkpoint.at:
            if ids.get(key.topic, key.topic_id) != key.topic_id:
                raise topic_changed(key.topic)
            if key.topic not in ids:
                gone = SourceError("TIDELOG_UNKNOWN_TOPIC", f"{key.topic} was read, and is gone")
                self._judge(gone, 0)

    def _judge(self, loss: SourceError | None, records: int) -> None:
        if loss is None:
            return
        if self.options.fail_on_data_loss:
            raise loss
        self._lost += records
        log.warning("%s", loss)
