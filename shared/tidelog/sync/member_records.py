"""The part of a blocking consumer that only a member of a consumer group has."""

from __future__ import annotations

import trio

from tidelog.batch.format import Record
from tidelog.client.group_consumer import GroupConsumer, Hook, Hooks
from tidelog.sync.records import Records


class MemberRecords(Records[GroupConsumer]):
    """A blocking iterator over the records of the partitions that a member of a consumer group owns."""

    def __next__(self) -> Record:
        """Return the next record of a partition that this member still owns, after waiting for it. The rest of a
        batch whose partition was taken away is dropped. Raises what ``GroupConsumer.next_batch`` raises."""
        if not self._inner.hold():
            self._records = iter(())
        record = super().__next__()
        self.topic = record.topic
        self._inner.last = record
        return record


def in_threads(hooks: Hooks) -> Hooks:
    """Return hooks that run each call of these hooks, which are plain functions, in a worker thread. There a hook may
    use the blocking client."""

    def of(hook: Hook | None) -> Hook | None:
        if hook is None:
            return None

        async def call(partitions: list[tuple[str, int]]) -> None:
            await trio.to_thread.run_sync(hook, partitions)

        return call

    return Hooks(of(hooks.on_assigned), of(hooks.on_revoked), of(hooks.on_lost))
