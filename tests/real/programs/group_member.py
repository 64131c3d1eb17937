"""A member of a consumer group as a process of its own: ``python group_member.py FILE GROUP TOPIC GATEWAY...``

It writes what it does to the file, a line each, before it asks for the next record: ``record PARTITION OFFSET``, and
``commit GENERATION PARTITION OFFSET`` after a commit that was taken.
"""

from __future__ import annotations

import sys
from io import RawIOBase
from pathlib import Path

import tidelog
import trio
from tidelog.errors import TidelogError

COMMIT_EVERY = 10
BY_HAND = tidelog.GroupOptions(session_timeout_s=6.0, auto_commit_s=None)


async def commit(consumer: tidelog.GroupConsumer, out: RawIOBase) -> None:
    """What is refused is others' by now."""
    positions, generation = consumer.positions, consumer.generation
    try:
        await consumer.commit()
    except TidelogError as error:
        out.write(f"refused {error.code}\n".encode())
        return
    if consumer.generation == generation:  # else it is not known under which of them
        for (_, partition), at in positions.items():
            out.write(f"commit {generation} {partition} {at.offset}\n".encode())


async def main(out: RawIOBase, group: str, topic: str, gateways: list[str]) -> None:
    async with (
        tidelog.connect(gateways, connect_timeout_s=60, request_timeout_s=60) as log,
        log.consume(topic, group=group, group_options=BY_HAND) as consumer,
    ):
        count = 0
        async for record in consumer:
            out.write(f"record {record.partition} {record.offset}\n".encode())
            count += 1
            if count % COMMIT_EVERY == 0:
                await commit(consumer, out)


if __name__ == "__main__":
    with Path(sys.argv[1]).open("ab", buffering=0) as out:
        trio.run(main, out, *sys.argv[2:4], sys.argv[4:])
