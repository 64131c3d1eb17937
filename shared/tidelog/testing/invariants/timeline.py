"""The timeline at the end of a run: every event once and in order, and replaying it gives the present state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog_controller.active.timeline_records import keyframe_records
from tidelog_replica.partition.partition import Partition

from tidelog.batch.format import decode_batch
from tidelog.testing.invariants.ghost import Violation
from tidelog.timeline.records import Document, decode, is_repeat
from tidelog.timeline.replay import past_after
from tidelog.types import TIMELINE, TopicPartition

if TYPE_CHECKING:
    from tidelog.testing.cluster import Cluster


def leading(cluster: Cluster) -> Partition | None:
    """Return the partition of the timeline at its leader; None if it does not exist or has no running leader."""
    topic_id = cluster.invariants.metadata.names.get(TIMELINE)
    if topic_id is None:
        return None
    key = TopicPartition(topic_id, 0)
    leader = cluster.state(key).leader
    if leader is None or not cluster.processes[leader].running:
        return None
    partition = cluster.replica(leader).core.partitions.get(key)
    return None if partition is None or partition.leading is None else partition


def records(cluster: Cluster, partition: Partition) -> list[Document]:
    """The committed records of the timeline's partition, read from its leader's disk."""
    documents, log = list[Document | None](), partition.log
    leader = cluster.state(partition.key).leader
    assert leader is not None
    at = log.start
    with cluster.replica(leader).disk.watched():
        while batches := log.read(at, 1 << 20, partition.high_watermark):
            found = [record for batch in batches for record in decode_batch(batch) if record.offset >= at]
            documents += [decode(record.value) for record in found]
            at = found[-1].offset + 1
    assert all(document is not None for document in documents)
    return [document for document in documents if document is not None]


def may_be_written(cluster: Cluster) -> bool:
    """Return whether the timeline can still be written. Like any topic it cannot if all disks that held its committed
    records were lost."""
    topic_id = cluster.invariants.metadata.names.get(TIMELINE)
    if topic_id is None or cluster.may_be_led(TopicPartition(topic_id, 0)):
        return True
    cluster.count("timelines lost")
    return False


def is_complete(cluster: Cluster) -> bool:
    """Return whether the timeline has every event."""
    partition = leading(cluster)
    written = [] if partition is None else records(cluster, partition)
    return bool(written) and written[-1]["event"] == cluster.invariants.metadata.timeline.last


def check_timeline(cluster: Cluster) -> None:
    """Check that each event is there once and in order, and that a replay from the beginning or any keyframe gives
    the present state. Raises ``Violation``. The timeline may begin later if a clock that jumped ahead let retention
    delete records. Where the topic may have lost records, a gap record must name the lost events; what is before it
    is not replayed. An event may stand there twice, which readers skip, where another replica has deleted what the
    present leader still has."""
    partition, state = leading(cluster), cluster.invariants.metadata
    assert partition is not None
    written: list[dict[str, Any]] = []
    for record in records(cluster, partition):
        if is_repeat(record, written[-1]["event"] if written else 0):
            cluster.count("timeline events repeated")
            if cluster.invariants._of(partition.key).start <= partition.log.start:
                raise Violation(f"timeline: event {record['event']} twice, and no replica has deleted it")
        else:
            written.append(record)
    numbers = [record["event"] for record in written if record["type"] == "event"]
    cluster.count("timeline events", len(numbers))
    cluster.count("timeline keyframes", sum(r["type"] == "keyframe" and r["part"] == 1 for r in written))
    gaps, lost = [at for at, record in enumerate(written) if record["type"] == "gap"], set[int]()
    if gaps and any(loss.partition == cluster.partition_name(partition.key) for loss in cluster.history.losses):
        cluster.count("timelines with a gap")
        lost = {number for at in gaps for number in range(written[at]["from"], written[at]["event"] + 1)}
        written = written[gaps[-1] + 1 :]
    first = 1 if not partition.log.start else state.timeline.last + 1 - len(numbers) - len(lost)
    if numbers != [number for number in range(first, state.timeline.last + 1) if number not in lost]:
        raise Violation(f"timeline: {state.timeline.last} events, and it has {numbers}")
    present = past_after(keyframe_records(state)).image()
    starts = [at for at, record in enumerate(written) if record["type"] == "keyframe" and record["part"] == 1]
    for start in starts if partition.log.start or gaps else (0, *starts):
        if start and written[start]["event"] < state.timeline.last - 200:
            continue
        found = past_after(written[start:])
        if not found.complete or found.image() != present:
            raise Violation(f"timeline: from record {start} on it leads to {found.image()}, not to {present}")
