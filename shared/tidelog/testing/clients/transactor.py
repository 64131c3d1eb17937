"""Transactions in the simulation: applications with zombies that consume, transform and produce, drivers that commit
staged transactions, and a reader of committed records."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.batch.format import NewRecord, encode_batch, split
from tidelog.client.core.partitioner import partition_of
from tidelog.errors import CorruptBatch, TidelogError
from tidelog.testing.clients.client import Client
from tidelog.testing.hardware.network import Frame, SimLink
from tidelog.testing.invariants.ghost import Violation
from tidelog.types import GROUPS, TRANSACTIONS, Acks, TopicPartition, TopicState
from tidelog.verify.check_transactions import Story, Try
from tidelog.verify.history import ABORTED, COMMITTED
from tidelog.wire.messages import (
    AbortStaged,
    BeginTransaction,
    CommitOffsets,
    CommitStaged,
    Done,
    EndTransaction,
    FetchOffsets,
    FetchOffsetsAnswer,
    GroupPosition,
    ListOffset,
    Message,
    OffsetAnswer,
    PrepareGroups,
    PrepareTransaction,
    PrepareTransactions,
    Produce,
    ProduceAck,
    ProducePart,
    Read,
    ReadAnswer,
    StagedCommitted,
    TopicShare,
    TransactionBegun,
    TransactionEnded,
)

if TYPE_CHECKING:
    from tidelog.testing.cluster import Cluster

PACE_S = 0.4
CALL_S = 1.0
PAUSE_S = 0.05
TRIES = 40
TIMEOUT_MS = 2500


class Transactor(Client):
    """The successive processes of one application: each begins a transaction, writes to every partition, and commits
    or not. ``stages``: it commits staged transactions, as a driver does. ``moves``: the application has a group,
    which every transaction moves on by one."""

    def __init__(
        self, cluster: Cluster, name: str, rng: random.Random, app: str, *, stages: bool = False, moves: bool = False
    ) -> None:
        super().__init__(cluster, name, rng)
        self.app = app
        self.moves = moves
        self.tries: list[Try] = []
        self.idle = True
        self._begun = TransactionBegun(0, 0)
        self._acked: dict[TopicPartition, None] = {}
        self.stages = stages
        self._batch = 0
        self._acks: dict[int, Callable[[ProduceAck], None]] = {}
        self._ids = 0
        self.loop.after(rng.uniform(0.5, 1.0), self._act)

    # --- one transaction ---------------------------------------------------------------------------------

    def _act(self) -> None:
        """Begin the next transaction if none is in progress."""
        if self.stopped:
            return
        if self.idle and self._partitions():
            one = Try(f"{self.name}.{len(self.tries)}", self.app, batch=self._batch if self.stages else -1)
            self.tries.append(one)
            self.idle = False
            self.cluster.count("transactions begun")
            staged, id = one.label if self.stages else "", self.cluster.new_producer_id()
            begin = BeginTransaction(self.app, one.label, staged, TIMEOUT_MS, id)
            self._ask(begin, TRIES, lambda answer: self._on_begun(one, answer))
        self.loop.after(self.rng.expovariate(1 / PACE_S), self._act)

    def _partitions(self) -> list[TopicPartition]:
        return [key for key in self.cluster.transacted if self.partition(key) is not None]

    @property
    def _identity(self) -> tuple[str, int, int]:
        return self.app, self._begun.producer_id, self._begun.producer_epoch

    def _on_begun(self, one: Try, answer: Any) -> None:
        if not isinstance(answer, TransactionBegun):
            self.idle = True
            return
        self._begun = answer
        if self.moves:
            self.find_position(lambda position: self._on_position(one, position))
        else:
            self._write_all(one)

    def _on_position(self, one: Try, position: int | None) -> None:
        if position is None:
            self._conclude(one, commit=False)
            return
        one.position = position
        self._write_all(one)

    def _write_all(self, one: Try) -> None:
        self._acked = {}
        keys = self._partitions()
        one.places = frozenset(map(self.cluster.partition_name, keys))
        for key in keys:
            self._write(one, key, len(keys), TRIES)

    def _write(self, one: Try, key: TopicPartition, count: int, tries: int) -> None:
        """Write one batch, with retries, until it is acked, refused for good or superseded."""
        if self._is_over(one) or tries == 0:
            self._conclude(one, commit=False)
            return
        state, again = self.partition(key), lambda: self._write(one, key, count, tries - 1)
        if state is None or state.leader is None:
            self.loop.after(PAUSE_S, again)
            return
        _, id, epoch = self._identity
        records = [NewRecord(one.label.encode())]
        batch = encode_batch(records, producer_id=id, producer_epoch=epoch, transactional=True)
        self._ids += 1
        number, over = self._ids, [False]

        def done(ack: ProduceAck | None) -> None:
            if over[0]:
                return
            over[0] = True
            self._acks.pop(number, None)
            if self._is_over(one):
                return
            if ack is not None and ack.error is None:
                self._acked[key] = None
                if len(self._acked) == count:
                    self._on_written(one)
            elif ack is not None and ack.error is not None and ack.error.code in FINAL:
                self.cluster.count(f"transaction {ack.error.code}")
                self._conclude(one, commit=False)
            else:
                self.loop.after(PAUSE_S, again)

        self._acks[number] = done
        part = ProducePart(number, *key, Acks.ALL, 1000, len(batch), state.leader_epoch, transaction=self.app)
        self.link_to(state.leader).send(self, Frame("post", None, Produce((part,), batch)))
        self.loop.after(CALL_S, lambda: done(None))

    def _is_over(self, one: Try) -> bool:
        """Return whether a transaction has ended or another one has begun."""
        return self.idle or self.tries[-1] is not one

    def _on_written(self, one: Try) -> None:
        """Commit or abort after all batches were acked; first move the group if there is one."""
        commit = self.stages or self.rng.random() < 0.7
        if not self.moves:
            self._conclude(one, commit)
            return
        place = GroupPosition(*self.cluster.transacted[0], one.position + 1)
        request = CommitOffsets(self.app, (place,), "", -1, "", *self._identity)
        self._ask(request, TRIES, lambda answer: self._conclude(one, commit and isinstance(answer, Done)))

    def _conclude(self, one: Try, commit: bool) -> None:
        """End a transaction: abort it (half of the time by its time-out), stage it or commit it."""
        if self._is_over(one) or one.asked:
            return
        one.asked = commit
        if not commit:
            self.idle = True
            if self.rng.random() < 0.5:  # else its time-out ends it
                self._ask(EndTransaction(*self._identity, False), 3, lambda answer: None)
        elif self.stages:
            self._ask(PrepareTransaction(*self._identity), TRIES, lambda answer: self._on_prepared(one, answer))
        else:
            self._ask(EndTransaction(*self._identity, True), TRIES, lambda answer: self._on_ended(one, answer))

    def _on_ended(self, one: Try, answer: Any) -> None:
        if isinstance(answer, TransactionEnded):
            one.fate = COMMITTED
            self.cluster.count("transactions committed")
            self._check_visible(answer)
        elif isinstance(answer, TidelogError) and answer.code == "TRANSACTION_ABORTED":
            one.fate = ABORTED
            self.cluster.count("transactions aborted")
        self.idle = True

    def _on_prepared(self, one: Try, answer: Any) -> None:
        if isinstance(answer, TidelogError):
            self.idle = True
            return
        request = CommitStaged(self.app, one.batch, (one.label,), alone=True)  # as Spark's driver does
        self._ask(request, TRIES, lambda answer: self._on_committed(one, answer))

    def _on_committed(self, one: Try, answer: Any) -> None:
        """Record the answer to a commit of staged transactions. A driver without an answer, or one that dies, has its
        batch done again by another, which aborts what was staged before; otherwise it would stay prepared for an
        hour, and readers wait for it."""
        if isinstance(answer, StagedCommitted):
            one.fate = "" if answer.repeated else COMMITTED
            self.cluster.count("batches repeated" if answer.repeated else "batches committed")
            if not answer.repeated:
                self._check_visible(answer)
            if self.rng.random() < 0.7:
                self._batch += 1
        self.idle = True

    def _check_visible(self, answer: TransactionEnded | StagedCommitted) -> None:
        """Check that a committed transaction is closed at the leader of every partition that the answer does not name
        as pending. Raises ``Violation``."""
        pending = {TopicPartition(share.topic_id, number) for share in answer.pending for number in share.partitions}
        self.cluster.count("commits pending" if pending else "commits visible")
        for key in self._acked:
            leader = self.cluster.state(key).leader
            if key in pending or leader is None or not self.cluster.processes[leader].running:
                continue
            partition = self.cluster.replica(leader).core.partitions.get(key)
            if partition is None or partition.leading is None:
                continue
            if partition.producers.transactions.is_open(*self._identity[1:]):
                raise Violation(
                    f"T5 {leader} {key}: {self._identity} is open, and its commit was answered as visible"
                )

    def drop_staged(self, done: Callable[[bool], None]) -> None:
        """Abort everything that the driver staged and did not commit. ``done`` gets whether that succeeded."""
        names = tuple(one.label for one in self.tries)
        self._ask(AbortStaged(self.app, names), TRIES, lambda answer: done(isinstance(answer, Done)))

    # --- requests ----------------------------------------------------------------------------------------

    def find_position(self, done: Callable[[int | None], None]) -> None:
        """Look up the committed position of the application's group. ``done`` gets it, or None if no coordinator
        answers."""
        topic_id, number = self.cluster.transacted[0]

        def on_offsets(answer: Any) -> None:
            known = isinstance(answer, FetchOffsetsAnswer)
            done(sum(place.offset for place in answer.positions) if known else None)

        self._ask(FetchOffsets(self.app, (TopicShare(topic_id, (number,)),)), TRIES, on_offsets)

    def _ask(self, message: Message, tries: int, done: Callable[[Any], None], last: Any = None) -> None:
        """Send a request to the coordinator, with retries as a gateway makes them. ``done`` gets the answer or the
        last error."""
        of_group = isinstance(message, FetchOffsets | CommitOffsets)
        topic = self.topic(GROUPS if of_group else TRANSACTIONS)
        leader = None
        if topic is not None:
            leader = topic.partitions[partition_of(self.app.encode(), len(topic.partitions))].leader
        if tries == 0:
            done(last)
        elif leader is None:
            if topic is None:
                kind, sequence = (PrepareGroups, 2) if of_group else (PrepareTransactions, 1)
                self._prepare(kind(client=self.name, sequence=sequence))
            self.loop.after(2 * PAUSE_S, lambda: self._ask(message, tries - 1, done, last))
        else:
            self.call(leader, message, CALL_S, lambda answer: self._on_answer(message, tries, done, answer))

    def _on_answer(self, message: Message, tries: int, done: Callable[[Any], None], answer: Any) -> None:
        if isinstance(answer, TidelogError) and answer.retriable:
            self.loop.after(PAUSE_S, lambda: self._ask(message, tries - 1, done, answer))
        else:
            done(answer)

    def topic(self, name: str) -> TopicState | None:
        """Return a topic by name from its metadata; None if it is unknown."""
        return next((topic for topic in self.image.topics if topic.name == name), None)

    def _prepare(self, request: Message) -> None:
        for name in self.cluster.controllers:
            link = self.network.connect(self, name)
            link.send(self, Frame("request", 0, request))

    def on_ack(self, link: SimLink, ack: ProduceAck) -> None:
        done = self._acks.get(ack.id)
        if done is not None:
            done(ack)


FINAL = ("FENCED_PRODUCER", "TRANSACTION_ABORTED", "UNKNOWN_TRANSACTION", "INVALID_TRANSACTION")


class CommittedReader(Client):
    """Reads the committed records of every partition from any replica, and sometimes asks leaders for the latest
    offset."""

    def __init__(self, cluster: Cluster, name: str, rng: random.Random, story: Story) -> None:
        super().__init__(cluster, name, rng)
        self.positions: dict[TopicPartition, int] = {}
        self._seen = story.seen.setdefault(name, [])
        self._stable = story.stable.setdefault(name, [])
        self._busy: dict[TopicPartition, None] = {}
        self.loop.after(0.5, self._act)

    def _act(self) -> None:
        for key in self.cluster.transacted:
            state = self.partition(key)
            if key not in self._busy and state is not None and state.leader is not None:
                self._busy[key] = None
                if self.rng.random() < 0.1:
                    ask = ListOffset(*key, "latest")
                    self.call(state.leader, ask, 1.0, partial(self._on_end, key))
                    continue
                node = self.rng.choice(state.replicas)
                read = Read(*key, self.positions.get(key, 0), max_wait_ms=100, any_replica=True)
                self.call(node, read, 1.0, partial(self._on_read, key, node))
        self.loop.after(0.05, self._act)

    def _on_end(self, key: TopicPartition, answer: Any) -> None:
        del self._busy[key]
        if isinstance(answer, OffsetAnswer):
            self.cluster.count("last stable offsets")
            self._stable.append((self.cluster.partition_name(key), answer.offset))

    def _on_read(self, key: TopicPartition, node: str, answer: Any) -> None:
        del self._busy[key]
        if not isinstance(answer, ReadAnswer):
            return
        payload, name = answer.payload, self.cluster.partition_name(key)
        assert not isinstance(payload, list)
        try:
            batches = [(header, self.cluster.rows(batch)) for header, batch in split(payload)]
        except CorruptBatch:
            self.cluster.invariants.on_corrupt_batch(self, key, node)
            return
        position = self.positions.get(key, 0)
        for header, rows in batches:
            for offset, value in rows:
                if offset >= position:
                    assert value is not None
                    self._seen.append((name, offset, value.decode()))
            self.positions[key] = header.end_offset
