"""Writes batches into a partition at their own offsets, each exactly once.

The writer does not remember what it sent. After any error it asks for the end of the partition, and everything below
that end has been written (``client/conditional_appender.py``). A batch that is still in flight can only be appended
at its own offset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

import trio

from tidelog.backup.batches import chunks
from tidelog.batch.format import BatchHeader, read_header
from tidelog.client.log import Log
from tidelog.errors import ConfigError, TidelogError, refuse
from tidelog.types import Buffer, Position
from tidelog.wire.messages import TopicInfo

CHUNK_BYTES = 4 << 20
"""Most bytes that are appended at a time."""
CHUNK_BATCHES = 1000
"""Most batches that are appended at a time: the limit of gateway and leader for one client."""
PAUSE_S = 0.1
"""Seconds before another try."""


def check_target(name: str, config: Mapping[str, str]) -> None:
    """Raise ``ConfigError`` if a topic with these settings cannot have the offsets of another topic, which is so with
    commit rule ``quorum``: there each leader appends a record of its own. ``name`` is the topic's name, for the
    error."""
    if config.get("commit_rule") == "quorum":
        raise ConfigError(
            f"{name}: with commit_rule quorum each leader begins with a record of its own, so a copy cannot have the"
            " offsets of its source: make it with --config commit_rule=isr"
        )


def passes(error: TidelogError) -> bool:
    """Return whether the call that raised this error may succeed later: the error is retriable, its outcome is
    unknown, or no gateway answered."""
    return error.retriable or error.unknown_outcome or error.code in ("UNREACHABLE", "REQUEST_TIMED_OUT")


def first_error(group: BaseExceptionGroup[TidelogError]) -> TidelogError:
    """Return the first single error in an exception group, which may contain groups."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, TidelogError)
    return error


class PartitionWriter:
    """A writer of copied batches to one partition, each at its own offset. It gives up when it has made no progress
    for ``patience_s`` seconds. The caller closes it."""

    def __init__(self, log: Log, topic: TopicInfo, partition: int, patience_s: float = inf) -> None:
        self.name = f"{topic.name}/{partition}"
        self._log = log
        self._topic = topic
        self._partition = partition
        self._patience_s = patience_s
        self._appender = log.appender(topic.topic_id, partition)

    def close(self) -> None:
        """End the appender: no more batches can be written."""
        self._appender.close()

    async def fetch_end(self) -> int:
        """Request the high watermark of the partition from its leader and return it. Offsets below it are committed,
        also those of open transactions."""
        found = await self._log.partitions.list_offsets(self._topic, "latest", [self._partition], "uncommitted")
        return found[self._partition].offset

    async def put(self, batches: Iterable[Buffer]) -> None:
        """Append batches that continue the partition, and return when all are committed. Errors that may pass are
        waited out, until ``patience_s`` seconds bring no progress. Raises ``UNEXPECTED_OFFSET`` if another client
        writes to the partition or the partition lost committed records, and every error with which the batches are
        refused for good."""
        for chunk in chunks(batches, CHUNK_BYTES, CHUNK_BATCHES):
            await self._put(chunk)

    async def _put(self, chunk: list[Buffer]) -> None:
        """Append one chunk of batches. After an error, request the partition's end and append the batches that are
        missing. Raises what ``put`` raises, and the last error after ``patience_s`` seconds without progress."""
        last = read_header(chunk[-1]).end_offset
        give_up = trio.current_time() + self._patience_s
        while True:
            try:
                await self._appender.append(chunk)
                return
            except TidelogError as error:
                if not passes(error) and error.code != "UNEXPECTED_OFFSET":
                    raise
                end = await self.fetch_end()
                left = [batch for batch in chunk if read_header(batch).base_offset >= end]
                if end == last:
                    return
                if not left or not read_header(chunk[0]).base_offset <= end == read_header(left[0]).base_offset:
                    text = f"{self.name} ends at {end}: somebody else writes to it, or it has lost records"
                    raise refuse("UNEXPECTED_OFFSET", text, end_offset=end) from error
                if len(left) < len(chunk):
                    give_up = trio.current_time() + self._patience_s
                elif trio.current_time() >= give_up:
                    raise
                chunk = left
                await trio.sleep(PAUSE_S)

    async def read(self, offset: int, max_bytes: int) -> list[tuple[BatchHeader, memoryview]]:
        """Read batches of the partition, about ``max_bytes`` bytes, from the batch that holds ``offset`` on. Returns
        pairs of header and bytes; an empty list at the end of the log."""
        at = Position(-1, offset)
        return (await self._log.read_batches(self._topic.topic_id, self._partition, at, max_bytes=max_bytes))[1]
