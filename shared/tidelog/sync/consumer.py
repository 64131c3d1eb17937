"""The blocking face of consumers: what ``tidelog.sync`` gives."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Generic, Self, TypeVar

import trio

from tidelog.batch.format import Record
from tidelog.client import backward_consumer as backward
from tidelog.client import consumer
from tidelog.client import group_consumer as group
from tidelog.client.core.consumer import Fetched
from tidelog.client.group_consumer import Share, Start
from tidelog.client.lookups import Where
from tidelog.client.rebalance_listener import Hook, Hooks
from tidelog.client.record_stream import RecordStream
from tidelog.errors import TimedOut
from tidelog.sync.portal import Portal
from tidelog.types import Position

S = TypeVar("S", bound=RecordStream)


class Records(Generic[S]):
    """Iterate over it for records; one thread at a time; see ``tidelog.client.record_stream.RecordStream``."""

    def __init__(self, portal: Portal, inner: S) -> None:
        self.topic = inner.topic
        self._portal = portal
        self._inner = inner
        self._records: Iterator[Record] = iter(())
        self._last: Record | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        record = next(self._records, None)
        if record is None:
            self._records = iter(self.next_records())
            record = next(self._records)  # StopIteration at the end
        self._last = record
        return record

    def next_records(self) -> list[Record]:
        """The records of the next batch; empty at the end."""
        self._last = None
        return self._portal.run(self._inner.next_records)

    def next_batch(self, timeout_s: float = math.inf) -> Fetched | None:
        """The next batch, not decoded; None at the end. Raises ``TimedOut``."""
        self._last = None

        async def next_batch() -> Fetched | None:
            try:
                with trio.fail_after(timeout_s):
                    return await self._inner.next_batch()
            except trio.TooSlowError:
                raise TimedOut(f"{self.topic}: no records within {timeout_s:g} s") from None

        return self._portal.run(next_batch)

    @property
    def topic_id(self) -> str:
        """Which topic of that name it is; known inside ``with``."""
        return self._inner.topic_id

    @property
    def skipped_batches(self) -> int:
        """Batches that were passed over since they cannot be decoded (``on_unreadable="skip"``)."""
        return self._inner.skipped_batches

    @property
    def skipped_offsets(self) -> int:
        """Offsets of these batches that were to be read."""
        return self._inner.skipped_offsets

    def _tell(self) -> S:
        """The consumer itself, when it knows what was handed out here."""
        self._inner.last = self._last
        return self._inner

    def _heed(self) -> None:
        """Hand out no more of the batch where the consumer has given it up."""
        if self._inner.last is None:
            self._records, self._last = iter(()), None

    def close(self) -> None:
        """Stop reading for good."""
        if not self._portal.is_foreign:
            self._portal.run(self._inner.aclose)

    def __enter__(self) -> Self:
        self._portal.run(self._inner.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Consumer(Records[consumer.Consumer]):
    """Made by ``Log.consume``; see ``tidelog.Consumer``."""

    @property
    def positions(self) -> dict[int, Position]:
        """Per partition: where a later consumer goes on after what was handed out."""
        return self._tell().positions

    @property
    def buffered_bytes(self) -> int:
        """What has arrived and was not handed out."""
        return self._inner.buffered_bytes

    @property
    def paused(self) -> list[int]:
        """Partitions of which nothing is handed out now."""
        return self._inner.paused

    def pause(self, *partitions: int) -> None:
        """Hand nothing of these partitions out until they are resumed, none named: of any."""
        self._portal.run(self._tell().pause, *partitions)
        self._heed()

    def resume(self, *partitions: int) -> None:
        """Hand these partitions out again, none named: all."""
        self._portal.run(self._inner.resume, *partitions)

    def seek(self, where: Where, *partitions: int) -> None:
        """Go on there: with these partitions; none named: with those that ``where`` names, or all."""
        self._portal.run(self._tell().seek, where, *partitions)
        self._heed()


class BackwardConsumer(Records[backward.BackwardConsumer]):
    """Made by ``Log.consume(reverse=True)``; the newest records first."""

    @property
    def positions(self) -> dict[int, Position]:
        """Per partition: where a later consumer goes on after what was handed out."""
        return self._tell().positions


class GroupConsumer(Records[group.GroupConsumer]):
    """Made by ``Log.consume(group=…)``; see ``tidelog.client.group_consumer.GroupConsumer``."""

    @property
    def assignment(self) -> list[tuple[str, int]]:
        """(topic, partition) of all that this member owns."""
        return self._inner.assignment

    @property
    def positions(self) -> dict[tuple[str, int], Position]:
        """Per (topic, partition): where what was handed out ends, which is what ``commit`` commits."""
        return self._tell().positions

    def __next__(self) -> Record:
        """The next record, of a partition that this member still owns."""
        if not self._inner.hold():
            self._records = iter(())
        record = super().__next__()
        self.topic = record.topic
        self._inner.last = record
        return record

    def commit(self) -> None:
        """Commit all that was handed out, the last record included."""
        self._portal.run(self._tell().commit)

    @property
    def generation(self) -> int:
        """The member's generation; -1 before it has joined."""
        return self._inner.generation

    @property
    def paused(self) -> list[tuple[str, int]]:
        """(topic, partition) of what is owned and not handed out now."""
        return self._inner.paused

    def pause(self, *partitions: Share) -> None:
        """Hand nothing of these out until they are resumed or go to another member; none named: of all that is
        owned now."""
        self._portal.run(self._tell().pause, *partitions)
        self._heed()

    def resume(self, *partitions: Share) -> None:
        """Hand these out again, none named: all."""
        self._portal.run(self._inner.resume, *partitions)

    def seek(self, where: Start | Mapping[Share, int | Position], *partitions: Share) -> None:
        """Go on there: with these partitions; none named: with those that ``where`` names, or all."""
        self._portal.run(self._tell().seek, where, *partitions)
        self._heed()


def in_threads(hooks: Hooks) -> Hooks:
    """Return the hooks so that each call runs in a thread, where it may use the blocking client."""

    def of(hook: Hook | None) -> Hook | None:
        if hook is None:
            return None

        async def call(partitions: list[tuple[str, int]]) -> None:
            await trio.to_thread.run_sync(hook, partitions)

        return call

    return Hooks(of(hooks.on_assigned), of(hooks.on_revoked), of(hooks.on_lost))
