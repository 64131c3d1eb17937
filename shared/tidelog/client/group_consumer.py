"""A member of a consumer group, as an application sees it: an iterator over the records of the partitions it owns."""

from __future__ import annotations

import inspect
import math
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType

from tidelog.client.connection import GatewayConnection
from tidelog.client.core.consumer import Fetched
from tidelog.client.core.group_member import MemberCore, shares
from tidelog.client.group_membership import Keys, Membership
from tidelog.client.loop import LoopEvent
from tidelog.client.options import ConsumerOptions, GroupOptions
from tidelog.client.record_stream import RecordStream
from tidelog.client.topic_reader import Readers, ReaderWakeup
from tidelog.errors import Closed, TidelogError, UnreadableBatch, refuse
from tidelog.types import Position, TopicPartition
from tidelog.wire.messages import FetchOffsets, FetchOffsetsAnswer, JoinGroup, MemberWork

CLOSE_S = 8.0
"""Longest time in seconds that closing takes, for the last commit and the leave request."""

Start = str | int | datetime
"""A place to begin at in a partition without a committed position."""
Share = tuple[str, int]
"""A partition by name: (topic, partition)."""
Hook = Callable[[list[tuple[str, int]]], Awaitable[None] | None]
"""A plain or async callback that gets a list of (topic, partition)."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """The callbacks that an application gives to a ``GroupConsumer``, which calls them when partitions are assigned
    to it or taken from it."""

    on_assigned: Hook | None = None
    """Called with the partitions that are read from now on, before their first record is returned."""
    on_revoked: Hook | None = None
    """Called with partitions that are being given up: the last chance to finish work on them and to ``commit``."""
    on_lost: Hook | None = None
    """Called with partitions that other members may process by now."""


NO_HOOKS = Hooks()


@dataclass(slots=True)
class _HandedOut:
    """The batch whose records the application is processing. ``key``: its partition. ``end``: the position after the
    last record of the batch that is returned before the next batch."""

    key: TopicPartition
    fetched: Fetched
    end: Position
    cut: bool = False
    """Whether no more of the batch may be returned, because its partition was taken away."""
    settled: Position | None = None
    """Position up to which the application has finished the batch, by a commit of its own; None if there was none."""
    stored: Position | None = None
    """Position up to which a commit of the application, or its transaction, covers the batch; None if none does."""


class GroupConsumer(RecordStream):
    """An asynchronous iterator over the records of the partitions that this member of a consumer group owns.
    Partitions come and go; those that stay are not disturbed. Made by ``Log.consume(group=…)``; best used with
    ``async with``.

    Reading of a partition begins at the group's committed position. In a partition without one it begins at
    ``start``, which is committed at once. A record is *finished* when the application asks for the next one. Finished
    positions are committed every ``auto_commit_s`` (``core/group_member.py`` decides when), before a partition is
    given up, and at the end. So each record is processed at least once. A partition that must be given up stays with
    this member until the application asks for the next record or has committed the present one.

    The iterator raises ``OFFSET_OUT_OF_RANGE`` and ``LOG_TRUNCATED`` if the committed position is not in the log: no
    position is reset automatically (``seek`` and ``tidelog groups reset`` do that). It also raises
    ``FENCED_INSTANCE``, ``GROUP_FULL`` and ``INVALID_GROUP``. After ``UnreadableBatch`` the position of the group
    stays before that batch until ``seek``; with ``on_unreadable="skip"`` it moves on behind the batch.
    """

    def __init__(
        self,
        connection: GatewayConnection,
        join: JoinGroup,
        start: Start,
        options: ConsumerOptions,
        group_options: GroupOptions,
        locate: Callable[[TopicPartition, Start], Awaitable[Position]],
        hooks: Hooks,
    ) -> None:
        super().__init__(join.topics[0], options.on_unreadable)
        self.group, self.member, self.instance = join.group, join.member, join.instance
        self._connection = connection
        self._loop = connection.loop
        self._start = start
        self._options = options
        self._auto = group_options.auto_commit_s is not None
        self._locate = locate
        self._hooks = hooks
        self._waits = False
        """Whether the application waits for a batch."""
        self._work: tuple[object, ...] = ()
        """What the application had in hand at the last heartbeat, in a form that changes when it goes on."""
        self._work_since = 0.0
        """Loop time at which ``_work`` was seen first."""
        me = weakref.ref(self)  # the connection keeps the core for as long as the membership lasts

        def describe_work(now: float) -> MemberWork | None:
            consumer = me()
            return None if consumer is None else consumer._describe_work(now)

        core = MemberCore(join, group_options.auto_commit_s or math.inf, group_options.backoff_s, describe_work)
        self._member = core
        self._membership = Membership(connection, core, self, keep=bool(join.instance))
        self._done: dict[TopicPartition, Position] = {}
        """The position after what the application has finished, for each partition that is read or is being given
        up."""
        self._hand: _HandedOut | None = None
        self._put_down = self._loop.event()
        self._tickets: dict[TopicPartition, int] = {}
        """Number of the assignment that each partition came with, for each partition that is owned and not being
        given up."""
        self._ticket = 0
        self._unsettled: set[TopicPartition] = set()
        """Partitions with records that were returned before the present batch, and that no commit by the application
        covers."""
        self._gone: dict[TopicPartition, None] = {}
        """Partitions that were taken away while records of them had been returned that no commit by the application
        covered."""
        self._losses = 0
        """Number of times that all partitions were lost. A partition that was to be given up before a loss is
        gone."""
        self._wakeup = ReaderWakeup(connection.loop)
        self._readers = Readers(connection, self._wakeup, options)
        self._error: TidelogError | None = None
        self._opened = self._closed = False

    # --- for applications ----------------------------------------------------------------------------------

    @property
    def assignment(self) -> list[tuple[str, int]]:
        """The partitions that are owned and not being given up, as (topic, partition)."""
        return self._named(tuple(self._member.kept))

    @property
    def generation(self) -> int:
        """The generation of the group in which this member owns its partitions; -1 before it has joined."""
        return self._member.generation

    @property
    def positions(self) -> dict[tuple[str, int], Position]:
        """The position after the last record that was returned, by (topic, partition). ``commit`` commits these
        positions. Empty if no partition is read."""
        handed = self._handed()
        return dict(zip(self._named(tuple(handed)), handed.values(), strict=True))

    @property
    def paused(self) -> list[tuple[str, int]]:
        """The partitions that are paused, as (topic, partition)."""
        return self._named(tuple(self._readers.paused))

    def hold(self) -> bool:
        """Return whether the application may process more of the present batch; False if the batch's partition was
        taken away or there is no batch. Afterwards the records of the batch no longer count as finished by an earlier
        ``commit``, so that the partition is not given up before the application asks for the next batch."""
        hand = self._hand
        if hand is not None:
            hand.settled = None
        return hand is not None and not hand.cut

    async def next_batch(self) -> Fetched:
        """Return the next batch, not decoded, after waiting for it; ``topic`` is then the name of its topic. The
        batch before it counts as finished. Joins the group at the first call. Raises ``Closed`` after ``aclose``, the
        error that ended the membership or a partition, and ``Unreachable`` if there is no gateway for the request
        timeout."""
        await self._open()
        await self._loop.checkpoint()
        self._finish_hand()
        self._waits = True
        try:
            while True:
                if self._closed:
                    raise Closed(f"the consumer of {self.group} is closed")
                self._membership.tick()
                if self._error is not None:
                    raise self._error
                found = self._take_batch()
                if found is not None:
                    return found
                await self._wakeup.wait(self._connection, self._readers.all)
        finally:
            self._waits = False

    async def commit(self) -> None:
        """Commit the position after the last record that was returned, for every partition, and wait until the
        positions are stored. This finishes the last record, so a partition that must be given up is given up then.
        Raises ``UNKNOWN_MEMBER``, ``FENCED_GENERATION`` or ``FENCED_INSTANCE`` if other members own the partitions by
        now and process the records again."""
        await self._open()
        handed, hand = self._handed(), self._hand
        await self._membership.commit(handed)
        self._unsettled.difference_update(handed)
        if hand is not None and hand is self._hand and hand.key in self._done:
            self._done[hand.key] = hand.settled = hand.stored = handed[hand.key]  # what is committed is finished
            self._put_down.set()
            self._put_down = self._loop.event()

    def _check_kept(self) -> None:
        """Raise ``FENCED_GENERATION`` if a partition was taken away before a commit covered all records of it that
        were returned. Other members process these records again, so a transaction with their output must not be
        committed. The error stays until the consumer is opened again. ``Transaction.commit_offsets`` calls this."""
        if self._gone:
            names = ", ".join(f"{topic}/{partition}" for topic, partition in self._named(tuple(self._gone)))
            text = f"records of {names} were returned, and then other members of {self.group} got them: open it again"
            raise refuse("FENCED_GENERATION", text)

    async def _hear(self) -> None:
        """Send a heartbeat, and wait until its answer has brought the present generation and share, or the membership
        is over."""
        await self._membership.hear()

    def _on_stored(self, positions: Mapping[Share, Position | int]) -> None:
        """Count the records before these positions, by (topic, partition), as covered by a commit, because they were
        added to a transaction. ``Transaction.commit_offsets`` calls this."""
        offsets = {share: at.offset if isinstance(at, Position) else at for share, at in positions.items()}
        handed = self._handed()
        for key, share in zip(handed, self._named(tuple(handed)), strict=True):
            if offsets.get(share, -1) >= handed[key].offset:
                self._unsettled.discard(key)
                if self._hand is not None and self._hand.key == key:
                    self._hand.stored = handed[key]

    async def pause(self, *partitions: Share) -> None:
        """Return no records of these (topic, partition) until they are resumed or move to another member; by default,
        of all that are owned now. The other partitions go on. The rest of the present batch is returned after the
        pause. Raises ``UNKNOWN_TOPIC`` for a partition that is not owned."""
        await self._open()
        chosen = self._chosen(partitions)
        self._readers.pause(chosen)
        current, reached, hand = self.current, self.reached, self._hand
        if hand is not None and hand.key in chosen and current is not None and reached is not None:
            self._readers.put_back(hand.key, current, reached)
            hand.end = reached
            self._begin_batch()

    async def resume(self, *partitions: Share) -> None:
        """Return records of these (topic, partition) again, those that arrived during the pause first; by default, of
        all that are owned. Raises ``UNKNOWN_TOPIC`` for a partition that is not owned."""
        await self._open()
        self._readers.resume(self._chosen(partitions))

    async def seek(self, where: Start | Mapping[Share, int | Position], *partitions: Share) -> None:
        """Continue reading at the place ``where`` in these (topic, partition). By default these are all partitions
        that are owned, or, if ``where`` is a mapping like ``positions``, those that it names. Records that were read
        ahead are dropped, and the new positions are committed next. Use it also to go on after
        ``OFFSET_OUT_OF_RANGE``, ``LOG_TRUNCATED`` and ``UnreadableBatch`` (with its ``next_offset``). Raises
        ``UNKNOWN_TOPIC`` for a partition that is not owned."""
        await self._open()
        if isinstance(where, Mapping):
            places = [at if isinstance(at, Position) else Position(-1, at) for at in where.values()]
            found = dict(zip(self._chosen(tuple(where)), places, strict=True))
        else:
            found = {key: await self._locate(key, where) for key in self._chosen(partitions)}
        for key in self._still(found):
            self._done[key] = found[key]
            self._unsettled.discard(key)
            if self._hand is not None and self._hand.key == key:
                self._hand.end = found[key]
                self._begin_batch()
            self._readers.seek(key, found[key])

    def _chosen(self, partitions: tuple[Share, ...]) -> list[TopicPartition]:
        """Return the keys of these partitions, or of all that are owned if none is named. Raises ``UNKNOWN_TOPIC``
        for a partition that is not owned."""
        kept = list(self._tickets)
        owned = dict(zip(self._named(tuple(kept)), kept, strict=True))
        for share in partitions:
            if share not in owned:
                raise refuse("UNKNOWN_TOPIC", f"this member of {self.group} does not have {share[0]}/{share[1]}")
        return [owned[share] for share in partitions] or kept

    async def aclose(self) -> None:
        """Stop reading, commit finished positions (if commits are automatic), and leave the group. Returns after at
        most ``CLOSE_S`` seconds; does nothing if the consumer is closed. A task that waits for records gets
        ``Closed``."""
        if self._closed:
            return
        self._closed = True
        self._wakeup.ring()
        finished = self._finished()
        self._readers.close()
        if self._opened:
            gone = self._loop.event()
            self._connection.on_close[self._membership] = lambda: gone
            self._connection.start(self._say_goodbye, finished, gone)
            await self._loop.wait(gone, self._loop.now() + CLOSE_S)

    async def _say_goodbye(self, finished: dict[TopicPartition, Position], gone: LoopEvent) -> None:
        """Commit these positions if commits are automatic, leave the group, and set the event ``gone``. This is a
        task of the connection, which waits for it, so it ends even if the task that closes the consumer is
        cancelled."""
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

    def _describe_work(self, now: float) -> MemberWork:
        """Return what the application does at loop time ``now``, for a heartbeat. It is compared with what it did at
        the heartbeat before, so that no record costs anything."""
        hand, last = self._hand, self.last
        offset = -1 if hand is None else hand.fetched.first if last is None else last.offset
        work = (self._waits, id(hand), offset)
        if work != self._work:
            self._work, self._work_since = work, now
        idle_ms = 0 if self._waits else max(1, round(1000 * (now - self._work_since)))
        key = ("", -1) if hand is None else hand.key
        return MemberWork(idle_ms, *key, offset, shares(self._readers.paused))

    def _take_batch(self) -> Fetched | None:
        """Take the next batch from the readers, remember it as the one that the application processes, and return it.
        Returns None if no batch is ready."""
        found = self._readers.take_batch()
        if found is None:
            return None
        key, fetched, reader = found
        self.topic_id, self.topic = key.topic_id, reader.topic
        self._hand = _HandedOut(key, fetched, Position(fetched.header.leader_epoch, fetched.end))
        self._put_down = self._loop.event()
        return fetched

    def _finish_hand(self) -> None:
        """Count the present batch as finished, because the application asks for the next one, and wake the tasks that
        wait to give up the batch's partition. If the application has read only a part of the batch, the position
        after that part is kept."""
        if self._hand is not None:
            if self._holds_work(self._hand.key):
                self._unsettled.add(self._hand.key)
            if self._hand.key in self._done:
                whole = not self._hand.cut and next(self._records, None) is None
                self._done[self._hand.key] = self._hand.end if whole else self._handed()[self._hand.key]
            self._hand = None
        self._begin_batch()
        self._put_down.set()

    def _stop_before(self, fetched: Fetched, error: UnreadableBatch) -> None:
        """Stop the partition of the present batch before that batch, which cannot be decoded, and wake the tasks that
        wait to give up its partition."""
        hand = self._hand
        assert hand is not None and hand.fetched is fetched
        self._readers.fail(hand.key, fetched, error)
        self._hand = None  # no record of it was returned: the position stays at the end of the batch before
        self._put_down.set()

    @property
    def _settled(self) -> bool:
        """Whether the application has committed the position after all records of the present batch that were
        returned to it."""
        hand = self._hand
        return hand is not None and hand.settled == (self.reached or hand.end)

    def _holds_work(self, key: TopicPartition) -> bool:
        """Return whether records of this partition were returned that no commit by the application covers."""
        hand = self._hand
        if hand is not None and hand.key == key and self.current is not None:
            return hand.stored != (self.reached or hand.end) or key in self._unsettled
        return key in self._unsettled

    def _note_gone(self, keys: Keys) -> None:
        """Remember those of these partitions, which are taken away, of which records were returned that no commit by
        the application covers."""
        self._gone.update(dict.fromkeys(key for key in keys if self._holds_work(key)))
        self._unsettled.difference_update(keys)

    def _finished(self) -> dict[TopicPartition, Position]:
        """Return the position after the last record that the application has finished, for each partition. The record
        that it is processing now does not count."""
        finished = dict(self._done)
        last, hand = self.last, self._hand
        if hand is not None and last is not None and hand.key in finished and last.offset > finished[hand.key].offset:
            finished[hand.key] = Position(last.leader_epoch, last.offset)
        return finished

    def _handed(self) -> dict[TopicPartition, Position]:
        """Return the position after the last record that was returned to the application, for each partition."""
        handed = dict(self._done)
        if self._hand is not None and self._hand.key in handed:
            handed[self._hand.key] = self.reached or self._hand.end
        return handed

    # --- what the group decides -------------------------------------------------------------------------------

    def on_assigned(self, keys: Keys) -> None:
        """Begin to read newly assigned partitions, in a task that fetches the group's positions, commits ``start`` in
        partitions without one, calls the ``on_assigned`` hook, and then subscribes. Called by the membership."""
        self._ticket += 1
        self._tickets.update(dict.fromkeys(keys, self._ticket))
        self._connection.start(self._start_reading, keys, self._ticket)

    def _still(self, keys: Iterable[TopicPartition], ticket: int | None = None) -> Keys:
        """Return those of these partitions that are owned and not being given up. If ``ticket`` is given, partitions
        that were assigned at another time are left out."""
        return tuple(key for key in keys if key in self._tickets and ticket in (None, self._tickets[key]))

    async def _start_reading(self, keys: Keys, ticket: int) -> None:
        """Fetch the group's positions in these partitions, commit ``start`` in those without one, call the
        ``on_assigned`` hook, and begin to read at the positions. Retriable errors are repeated; any other error is
        raised to the application by ``next_batch``. Partitions that are taken away meanwhile are left out."""
        while keys := self._still(keys, ticket):
            try:
                committed = await self._committed(keys)
                starts = {key: await self._locate(key, self._start) for key in keys if key not in committed}
                break
            except TidelogError as error:
                if not (error.retriable or error.code == "UNKNOWN_TOPIC"):  # its deletion takes it away soon
                    self._error = error
                    self._wakeup.ring()
                    return
            await self._loop.sleep(self._options.backoff_s)
        else:
            return  # all partitions were taken away
        keys = self._still(keys, ticket)
        for key in keys:
            self._member.on_position_fetched(key, committed.get(key))
            self._done.setdefault(
                key, committed[key] if key in committed else starts[key]
            )  # unless the application has called seek
        await self._commit_surely(starts, keys)
        await self._call_hook(self._hooks.on_assigned, self._still(keys, ticket))
        for key in self._still(keys, ticket):
            self._read(key)

    async def _committed(self, keys: Keys) -> dict[TopicPartition, Position]:
        """Return the positions that the group has committed in these partitions; partitions without one are left out.
        Raises the error of the request."""
        answer = await self._connection.call(FetchOffsets(self.group, shares(keys)))
        assert isinstance(answer, FetchOffsetsAnswer)
        return {
            TopicPartition(at.topic_id, at.partition): Position(at.leader_epoch, at.offset) for at in answer.positions
        }

    def _read(self, key: TopicPartition) -> None:
        if self._closed:
            return
        self._readers.read(key, self._member.names[key.topic_id], self._done[key], len(self._member.owned))

    def on_revoked(self, keys: Keys) -> None:
        """Stop reading the revoked partitions. A task then waits until the application has finished its current batch
        of them, calls the ``on_revoked`` hook, commits if commits are automatic, and releases the partitions.
        ``on_lost`` cancels the steps that are not yet taken. Called by the membership."""
        self._stop(keys)
        self._connection.start(self._give_up, keys, self._losses)

    async def _give_up(self, keys: Keys, losses: int) -> None:
        """Wait until the application has finished its batch of these partitions, call the ``on_revoked`` hook, commit
        if commits are automatic, and release the partitions. ``losses`` is the number of losses when this began: once
        all partitions were lost again, the remaining steps are left out."""
        while self._hand is not None and self._hand.key in keys and losses == self._losses and not self._settled:
            await self._put_down.wait()
        if losses == self._losses:
            await self._call_hook(self._hooks.on_revoked, keys)
        if self._auto and losses == self._losses:
            await self._commit_surely(self._done, keys)
        if losses == self._losses:
            self._note_gone(keys)
            for key in keys:
                self._done.pop(key, None)
            self._membership.release(keys)
            self._readers.share_credit(len(self._member.owned))

    def on_lost(self, keys: Keys) -> None:
        """Stop reading partitions that are no longer owned: drop the present batch and all positions, and call the
        ``on_lost`` hook in a task. Called by the membership."""
        self._losses += 1
        self._note_gone(keys)
        self._stop(keys)
        self._done.clear()
        self._hand = None
        self._records = iter(())
        self._put_down.set()
        self._connection.start(self._call_hook, self._hooks.on_lost, keys)

    def _stop(self, keys: Keys) -> None:
        """Unsubscribe these partitions and return no more of their records, not even the rest of the present batch.
        Wakes a task that waits for records."""
        for key in keys:
            self._tickets.pop(key, None)
            self._readers.stop(key)
            if self._hand is not None and self._hand.key == key and self.last is not None:
                self._hand.cut = True
                self._records = iter(())
        self._wakeup.ring()

    def on_commit_due(self) -> None:
        """Commit the finished positions in a task, because the commit interval is over. Called by the membership."""
        self._connection.start(self._commit_surely, self._finished())

    def on_over(self) -> None:
        """Make ``next_batch`` raise the error that ended the membership, or ``Closed`` if the member left, and wake a
        task that waits for records. Called by the membership."""
        self._error = self._member.error or self._error or Closed(f"the member of {self.group} has left")
        self._wakeup.ring()

    async def _commit_surely(
        self, positions: Mapping[TopicPartition, Position], keys: Iterable[TopicPartition] | None = None
    ) -> None:
        """Commit the positions of these partitions, by default of all in ``positions``. A retriable error is repeated
        as long as the partitions are not lost; any other error is ignored, because then other members own the
        partitions and process the records again."""
        wanted = {key: positions[key] for key in (positions if keys is None else keys) if key in positions}
        losses = self._losses
        while wanted and losses == self._losses:
            try:
                await self._membership.commit(wanted)
                return
            except TidelogError as error:
                if not error.retriable:
                    return

    async def _call_hook(self, hook: Hook | None, keys: Keys) -> None:
        """Call ``hook`` with these partitions as (topic, partition), and wait for it if it is async. Does nothing if
        the hook is None or no partitions are given."""
        if hook is not None and keys:
            result = hook(self._named(keys))
            if inspect.isawaitable(result):
                await result

    def _named(self, keys: Keys) -> list[tuple[str, int]]:
        return [(self._member.names.get(key.topic_id, key.topic_id), key.partition) for key in keys]
