"""The face of a consumer that is a member of a group: records of the partitions that it owns."""

from __future__ import annotations

import inspect
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType

from tidelog.client.connection import Connection
from tidelog.client.core.consumer import Fetched
from tidelog.client.core.member import MemberCore, shares
from tidelog.client.loop import Event
from tidelog.client.membership import Keys, Membership
from tidelog.client.options import ConsumerOptions, GroupOptions
from tidelog.client.reader import Bell, TopicReader
from tidelog.client.stream import RecordStream
from tidelog.errors import Closed, TidelogError
from tidelog.records import Record
from tidelog.types import Position, TopicPartition
from tidelog.wire.messages import FetchOffsets, FetchOffsetsAnswer, JoinGroup

CLOSE_S = 8.0
"""Longest that closing takes: the last commit, and leaving."""

Start = str | int | datetime
"""Where to begin in a partition where the group has committed nothing."""
Hook = Callable[[list[tuple[str, int]]], Awaitable[None] | None]
"""Is told of partitions: (topic, partition)."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """Called with the partitions that come and go; plain or async."""

    on_assigned: Hook | None = None
    """These are read from now on."""
    on_revoked: Hook | None = None
    """These are given up: the last chance to bring something to an end and to ``commit``."""
    on_lost: Hook | None = None
    """These are gone already; others may process them by now."""


NO_HOOKS = Hooks()


@dataclass(slots=True)
class _Hand:
    """The batch that the application has in hand."""

    key: TopicPartition
    fetched: Fetched
    end: Position
    cut: bool = False
    """No more of it is handed out."""


class GroupConsumer(RecordStream):
    """Iterate over it for records of the partitions that this member of the group owns; they come and go, those that
    stay are not disturbed. Made by ``Log.consume(group=…)``; best used with ``async with``.

    A partition begins where the group has come to; one that has no position yet at ``start``, which is committed at
    once. What the application has *finished*, that is asked for the next record after, is committed every
    ``auto_commit_s``, before a partition is given up, and at the end. So each record is processed at least once. A
    partition is given up when the application asks for the next record: until then the one in hand is its own.

    The iterator raises ``OFFSET_OUT_OF_RANGE`` and ``LOG_TRUNCATED`` where the committed position is not in the log:
    nothing is reset (``tidelog groups reset`` does); and ``FENCED_INSTANCE``, ``GROUP_FULL``, ``INVALID_GROUP``.
    """

    def __init__(
        self,
        connection: Connection,
        join: JoinGroup,
        start: Start,
        options: ConsumerOptions,
        group_options: GroupOptions,
        locate: Callable[[TopicPartition, Start], Awaitable[Position]],
        hooks: Hooks,
    ) -> None:
        super().__init__(join.topics[0])
        self.group = join.group
        self.instance = join.instance
        self._connection = connection
        self._loop = connection.loop
        self._start = start
        self._options = options
        self._auto = group_options.auto_commit_s is not None
        self._locate = locate
        self._hooks = hooks
        core = MemberCore(join, group_options.auto_commit_s or math.inf, group_options.backoff_s)
        self._member = core
        self._membership = Membership(connection, core, self, keep=bool(join.instance))
        self._readers: dict[str, TopicReader] = {}
        self._turns: deque[str] = deque()
        self._done: dict[TopicPartition, Position] = {}
        """Of each partition that is read, or was and is being given up: how far the application has finished."""
        self._hand: _Hand | None = None
        self._put_down = self._loop.event()
        self._tickets: dict[TopicPartition, int] = {}
        """Of each partition that is owned and not given up: which assignment it came with."""
        self._ticket = 0
        self._life = 0
        """Counts how often everything was lost: what was to be given up before is gone."""
        self._bell = Bell(connection.loop)
        self._error: TidelogError | None = None
        self._opened = self._closed = False

    # --- for applications ----------------------------------------------------------------------------------

    @property
    def assignment(self) -> list[tuple[str, int]]:
        """(topic, partition) of all that is owned and not being given up."""
        return self._named(tuple(self._member.kept))

    @property
    def generation(self) -> int:
        """The member's generation; -1 before it has joined."""
        return self._member.generation

    @property
    def positions(self) -> dict[tuple[str, int], Position]:
        """Per (topic, partition): where what was handed out ends, which is what ``commit`` commits."""
        handed = self._handed()
        return dict(zip(self._named(tuple(handed)), handed.values(), strict=True))

    @property
    def is_cut(self) -> bool:
        """The batch in hand was taken away: no more of it is to be handed out."""
        return self._hand is None or self._hand.cut

    async def next_records(self) -> list[Record]:
        """The records of the next batch, all of one partition."""
        while True:
            fetched = await self.next_batch()
            assert self._hand is not None
            records = fetched.records(self._member.names[self._hand.key.topic_id])
            if records:
                self.current = fetched
                return records

    async def next_batch(self) -> Fetched:
        """The next batch as it came, not decoded. Which topic it is of, ``topic`` tells."""
        await self._open()
        await self._loop.checkpoint()
        self._finish_hand()
        while True:
            if self._closed:
                raise Closed(f"the consumer of {self.group} is closed")
            self._membership.tick()
            if self._error is not None:
                raise self._error
            found = self._take()
            if found is not None:
                return found
            await self._bell.wait(self._connection, self._readers.values())

    async def commit(self) -> None:
        """Commit all that was handed out, the last record included. Raises ``UNKNOWN_MEMBER``, ``FENCED_GENERATION``
        or ``FENCED_INSTANCE`` where others own the partitions by now, and process the records again."""
        await self._open()
        handed, hand = self._handed(), self._hand
        await self._membership.commit(handed)
        if hand is not None and hand is self._hand and hand.key in self._done:
            self._done[hand.key] = handed[hand.key]  # what is committed is finished

    async def aclose(self) -> None:
        """Stop reading, commit what is finished (where that is done by itself), and leave the group."""
        if self._closed:
            return
        self._closed = True
        self._bell.ring()
        finished = self._finished()
        for reader in self._readers.values():
            reader.close()
        if self._opened:
            gone = self._loop.event()
            self._connection.start(self._say_goodbye, finished, gone)
            await self._loop.wait(gone, self._loop.now() + CLOSE_S)

    async def _say_goodbye(self, finished: dict[TopicPartition, Position], gone: Event) -> None:
        """It is said also when who closes is cancelled meanwhile."""
        if self._auto:
            await self._commit_surely(finished)
        await self._membership.go().wait()
        gone.set()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # --- reading ---------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        if self._closed:
            raise Closed(f"the consumer of {self.group} is closed")
        if not self._opened:
            self._opened = True
            self._connection.start(self._membership.run)

    def _take(self) -> Fetched | None:
        """The next batch, each topic in turn."""
        for _ in range(len(self._turns)):
            topic_id = self._turns[0]
            self._turns.rotate(-1)
            reader = self._readers[topic_id]
            fetched = self._take_from(reader)
            if fetched is not None:
                key = TopicPartition(topic_id, fetched.partition)
                self.topic_id, self.topic = topic_id, reader.topic
                self._hand = _Hand(key, fetched, Position(fetched.header.leader_epoch, fetched.end))
                self._put_down = self._loop.event()
                reader.perform(reader.core.on_taken(fetched.partition))
                return fetched
        return None

    @staticmethod
    def _take_from(reader: TopicReader) -> Fetched | None:
        try:
            return reader.core.take()
        except TidelogError as error:
            if error.code == "UNKNOWN_TOPIC":  # deleted: its partitions are about to be taken away
                return None
            raise

    def _finish_hand(self) -> None:
        """The application asks for more: it is done with what it has."""
        if self._hand is not None:
            if self._hand.key in self._done:
                whole = not self._hand.cut and next(self._records, None) is None
                self._done[self._hand.key] = self._hand.end if whole else self._handed()[self._hand.key]
            self._hand = None
        self._begin_batch()
        self._put_down.set()

    def _finished(self) -> dict[TopicPartition, Position]:
        """How far the application has finished each partition: not yet with the record in hand."""
        finished = dict(self._done)
        last, hand = self.last, self._hand
        if hand is not None and last is not None and hand.key in finished and last.offset > finished[hand.key].offset:
            finished[hand.key] = Position(last.leader_epoch, last.offset)
        return finished

    def _handed(self) -> dict[TopicPartition, Position]:
        """How far each partition was handed out."""
        handed = dict(self._done)
        if self._hand is not None and self._hand.key in handed:
            handed[self._hand.key] = self.reached or self._hand.end
        return handed

    # --- what the group decides -------------------------------------------------------------------------------

    def on_assigned(self, keys: Keys) -> None:
        """Read these (called by the membership)."""
        self._ticket += 1
        self._tickets.update(dict.fromkeys(keys, self._ticket))
        self._connection.start(self._begin, keys, self._ticket)

    def _still(self, keys: Iterable[TopicPartition], ticket: int) -> Keys:
        """Those of an assignment that were not taken away since."""
        return tuple(key for key in keys if self._tickets.get(key) == ticket)

    async def _begin(self, keys: Keys, ticket: int) -> None:
        """Find out where the group has come to, and read on from there."""
        while keys := self._still(keys, ticket):
            try:
                committed = await self._committed(keys)
                starts = {key: await self._locate(key, self._start) for key in keys if key not in committed}
                break
            except TidelogError as error:
                if not (error.retriable or error.code == "UNKNOWN_TOPIC"):  # its deletion takes it away soon
                    self._error = error
                    self._bell.ring()
                    return
            await self._loop.sleep(self._options.backoff_s)
        else:
            return  # all were taken away before
        keys = self._still(keys, ticket)
        for key in keys:
            self._member.begin(key, committed.get(key))
            self._done[key] = committed[key] if key in committed else starts[key]
        await self._commit_surely(starts, keys)
        await self._tell(self._hooks.on_assigned, self._still(keys, ticket))
        for key in self._still(keys, ticket):
            self._read(key)

    async def _committed(self, keys: Keys) -> dict[TopicPartition, Position]:
        answer = await self._connection.call(FetchOffsets(self.group, shares(keys)))
        assert isinstance(answer, FetchOffsetsAnswer)
        return {
            TopicPartition(at.topic_id, at.partition): Position(at.leader_epoch, at.offset) for at in answer.positions
        }

    def _read(self, key: TopicPartition) -> None:
        if self._closed:
            return
        reader = self._readers.get(key.topic_id)
        if reader is None:
            name = self._member.names[key.topic_id]
            reader = TopicReader(self._connection, self._bell, name, key.topic_id, self._options, {}, {})
            self._readers[key.topic_id] = reader
            self._turns.append(key.topic_id)
        self._share_credit()
        reader.perform(reader.core.add(key.partition, self._done[key], self._loop.now()))
        self._bell.ring()

    def _share_credit(self) -> None:
        credit = self._options.credit(len(self._member.owned))
        for reader in self._readers.values():
            reader.perform(reader.core.set_credit(credit))

    def on_revoked(self, keys: Keys) -> None:
        """Give these up (called by the membership)."""
        self._stop(keys)
        self._connection.start(self._give_up, keys, self._life)

    async def _give_up(self, keys: Keys, life: int) -> None:
        """When the application has put down what it has in hand: commit, and let others have them."""
        while self._hand is not None and self._hand.key in keys and life == self._life:
            await self._put_down.wait()
        if life == self._life:
            await self._tell(self._hooks.on_revoked, keys)
        if self._auto and life == self._life:
            await self._commit_surely(self._done, keys)
        if life == self._life:
            for key in keys:
                self._done.pop(key, None)
            self._membership.release(keys)
            self._share_credit()

    def on_lost(self, keys: Keys) -> None:
        """These are not owned any more (called by the membership)."""
        self._life += 1
        self._stop(keys)
        self._done.clear()
        self._hand = None
        self._records = iter(())
        self._put_down.set()
        self._connection.start(self._tell, self._hooks.on_lost, keys)

    def _stop(self, keys: Keys) -> None:
        """Hand nothing of these out any more."""
        for key in keys:
            self._tickets.pop(key, None)
            reader = self._readers.get(key.topic_id)
            if reader is not None and key.partition in reader.core.partitions:
                reader.perform(reader.core.remove(key.partition))
            if self._hand is not None and self._hand.key == key and self.last is not None:
                self._hand.cut = True
                self._records = iter(())
        self._bell.ring()

    def on_commit_due(self) -> None:
        """The interval is over (called by the membership)."""
        self._connection.start(self._commit_surely, self._finished())

    def on_over(self) -> None:
        """The member is no more (called by the membership)."""
        self._error = self._member.error or self._error or Closed(f"the member of {self.group} has left")
        self._bell.ring()

    async def _commit_surely(
        self, positions: Mapping[TopicPartition, Position], keys: Iterable[TopicPartition] | None = None
    ) -> None:
        """Commit the positions of these partitions, or all. What may pass is tried again as long as they are owned;
        where others own them already, they process it again."""
        wanted = {key: positions[key] for key in (positions if keys is None else keys) if key in positions}
        life = self._life
        while wanted and life == self._life:
            try:
                await self._membership.commit(wanted)
                return
            except TidelogError as error:
                if not error.retriable:
                    return

    async def _tell(self, hook: Hook | None, keys: Keys) -> None:
        if hook is not None and keys:
            result = hook(self._named(keys))
            if inspect.isawaitable(result):
                await result

    def _named(self, keys: Keys) -> list[tuple[str, int]]:
        return [(self._member.names.get(key.topic_id, key.topic_id), key.partition) for key in keys]
