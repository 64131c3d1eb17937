"""The end of a history: fresh consumers read every log from start to end, and the group says where it stands."""

from __future__ import annotations

from chaos.workload.clients import GROUP, PARTITIONS, RECORDS
from tidelog.batch.format import Record
from tidelog.client.log import Log
from tidelog.verify import Recorder, identity


async def drain(log: Log, recorder: Recorder) -> None:
    """Tell the recorder all of it."""
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
    told = [(record.offset, identity(record.value, record.key, record.headers)) for record in rows]
    recorder.drain(process, place, told, control)
    recorder.drained(process, place, start, isolation)
