"""The end of a history: fresh consumers read every log from start to end, and the group reports its positions."""

from __future__ import annotations

from chaos.workload.clients import GROUP, PARTITIONS, RECORDS
from tidelog.batch.format import Record
from tidelog.client.log import Log
from tidelog.verify import Recorder, identity


async def drain(log: Log, recorder: Recorder) -> None:
    """Read every partition of the workload's topics to its end, at both isolation levels, and record what was read,
    and the group's positions, in the history. Raises ``TidelogError`` if a log cannot be read."""
    for topic, partitions in PARTITIONS.items():
        for partition in range(partitions):
            for isolation in ("committed", "uncommitted"):
                await _drain(log, recorder, topic, partition, isolation)
    for partition, position in (await log.groups.fetch_offsets(GROUP, RECORDS)).items():
        recorder.group_at(GROUP, f"{RECORDS}/{partition}", position.offset)


async def _drain(log: Log, recorder: Recorder, topic: str, partition: int, isolation: str) -> None:
    start = (await log.partitions.list_offset(topic, partition, "earliest")).offset
    process, place = f"drain {isolation}", f"{topic}/{partition}"
    rows: list[Record] = []
    control: list[int] = []
    reader = log.consume(topic, start="earliest", end="latest", partitions=[partition], isolation=isolation)
    async with reader:
        while (fetched := await reader.next_batch()) is not None:
            if fetched.header.is_control:
                control += range(fetched.header.base_offset, fetched.header.end_offset)
            else:
                rows += fetched.records(topic)
    rows_read = [(record.offset, identity(record.value, record.key, record.headers)) for record in rows]
    recorder.drain(process, place, rows_read, control)
    recorder.drained(process, place, start, isolation)
