"""Transactions in the simulation: applications with zombies, drivers that commit what was staged, a reader that sees
what is committed; and what must be so at the end.

T1 a transaction is seen in all the partitions that it wrote to, or in none; one that was told to be committed is
seen, one that was told to be aborted, or was never ended with a commit, is not. T2 nothing is seen twice, and a
position that was read past has nothing new. T3 of the tries of one batch at most one is seen. T4 in the end no
transaction is open anywhere."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidelog.client.core.partitioner import partition_of
from tidelog.errors import TidelogError
from tidelog.records import NewRecord, decode_batch, encode_batch, split
from tidelog.types import TRANSACTIONS, Acks, TopicPartition, TopicState
from tidelog.wire.messages import (
    BeginTransaction,
    CommitStaged,
    EndTransaction,
    Message,
    PrepareTransaction,
    PrepareTransactions,
    Produce,
    ProduceAck,
    ProducePart,
    Read,
    ReadAnswer,
    StagedCommitted,
    TransactionBegun,
    TransactionEnded,
)

from simulation.clients import Client
from simulation.sim_network import Frame, SimLink

if TYPE_CHECKING:
    from simulation.cluster import Cluster

CALL_S = 1.0
PAUSE_S = 0.05
TRIES = 40
TIMEOUT_MS = 2500


@dataclass(eq=False)
class Try:
    """One transaction. ``fate``: ``committed`` or ``aborted``, as it was told; "": nobody was told."""

    label: str
    batch: int = -1
    """Of which staged batch it is a try; -1: of none."""
    staged: str = ""
    begun: TransactionBegun | None = None
    acked: set[int] = field(default_factory=set)
    wanted: bool = False
    """Its commit was asked for."""
    fate: str = ""


class Transactor(Client):
    """One process after the other, as one application: begins, writes to every partition, commits or not."""

    def __init__(self, cluster: Cluster, name: str, rng: random.Random, app: str, *, stages: bool = False) -> None:
        super().__init__(cluster, name, rng)
        self.app = app
        self.tries: list[Try] = []
        self.idle = True
        self._stages = stages
        self._batch = 0
        self._acks: dict[int, Callable[[ProduceAck], None]] = {}
        self._ids = 0
        self.loop.after(rng.uniform(0.5, 1.0), self._act)

    # --- one transaction ---------------------------------------------------------------------------------

    def _act(self) -> None:
        if self.stopped:
            return
        if self.idle and self._partitions():
            label = f"{self.name}.{len(self.tries)}"
            one = Try(label, self._batch if self._stages else -1, label if self._stages else "")
            self.tries.append(one)
            self.idle = False
            self.cluster.count("transactions begun")
            id = self.cluster.new_producer_id()
            begin = BeginTransaction(self.app, label, one.staged, TIMEOUT_MS, id)
            self._ask(begin, TRIES, lambda answer: self._on_begun(one, answer))
        self.loop.after(self.rng.expovariate(1 / 0.1), self._act)

    def _partitions(self) -> list[TopicPartition]:
        return [key for key in self.cluster.partitions if self.partition(key) is not None]

    def _on_begun(self, one: Try, answer: Any) -> None:
        if not isinstance(answer, TransactionBegun):
            self.idle = True
            return
        one.begun = answer
        keys = self._partitions()
        for number, key in enumerate(keys):
            self._write(one, key, number, len(keys), TRIES)

    def _write(self, one: Try, key: TopicPartition, number: int, count: int, tries: int) -> None:
        """The same batch again and again until it is acked, or it makes no sense any more."""
        state = self.partition(key)
        if one.fate or self._is_over(one) or tries == 0:
            self._conclude(one, commit=False)
            return
        again = lambda: self._write(one, key, number, count, tries - 1)  # noqa: E731
        if state is None or state.leader is None:
            self.loop.after(PAUSE_S, again)
            return
        assert one.begun is not None
        batch = encode_batch(
            [NewRecord(one.label.encode())],
            producer_id=one.begun.producer_id,
            producer_epoch=one.begun.producer_epoch,
            transactional=True,
        )
        self._ids += 1
        id, over = self._ids, [False]

        def done(ack: ProduceAck | None) -> None:
            if over[0]:
                return
            over[0] = True
            self._acks.pop(id, None)
            if ack is not None and ack.error is None:
                one.acked.add(number)
                if len(one.acked) == count:
                    self._conclude(one, commit=self._stages or self.rng.random() < 0.7)
            elif ack is not None and ack.error is not None and ack.error.code in FINAL:
                self.cluster.count(f"transaction {ack.error.code}")
                self._conclude(one, commit=False)
            else:
                self.loop.after(PAUSE_S, again)

        self._acks[id] = done
        part = ProducePart(id, *key, Acks.ALL, 1000, len(batch), state.leader_epoch, transaction=self.app)
        self.link_to(state.leader).send(self, Frame("post", None, Produce((part,), batch)))
        self.loop.after(CALL_S, lambda: done(None))

    def _is_over(self, one: Try) -> bool:
        return self.idle or self.tries[-1] is not one

    def _conclude(self, one: Try, commit: bool) -> None:
        if self._is_over(one) or one.wanted:
            return
        assert one.begun is not None
        one.wanted = commit
        identity = self.app, one.begun.producer_id, one.begun.producer_epoch
        if not commit:
            self.idle = True
            if self.rng.random() < 0.5:  # else its time-out ends it
                self._ask(EndTransaction(*identity, False), 3, lambda answer: None)
        elif one.staged:
            self._ask(PrepareTransaction(*identity), TRIES, lambda answer: self._on_prepared(one, answer))
        else:
            self._ask(EndTransaction(*identity, True), TRIES, lambda answer: self._on_ended(one, answer))

    def _on_ended(self, one: Try, answer: Any) -> None:
        if isinstance(answer, TransactionEnded):
            one.fate = "committed"
            self.cluster.count("transactions committed")
        elif isinstance(answer, TidelogError) and answer.code == "TRANSACTION_ABORTED":
            one.fate = "aborted"
            self.cluster.count("transactions aborted")
        self.idle = True

    def _on_prepared(self, one: Try, answer: Any) -> None:
        if isinstance(answer, TidelogError):
            self.idle = True
            return
        request = CommitStaged(self.app, one.batch, (one.staged,))
        self._ask(request, TRIES, lambda answer: self._on_committed(one, answer))

    def _on_committed(self, one: Try, answer: Any) -> None:
        """A driver that hears nothing, or dies, has the batch done again by somebody else."""
        if isinstance(answer, StagedCommitted):
            self.cluster.count("batches repeated" if answer.repeated else "batches committed")
            if self.rng.random() < 0.7:
                self._batch += 1
        self.idle = True

    # --- requests ----------------------------------------------------------------------------------------

    def _ask(self, message: Message, tries: int, done: Callable[[Any], None], last: Any = None) -> None:
        """Ask the coordinator as a gateway does: what may pass is tried again."""
        topic = self.topic(TRANSACTIONS)
        leader = None
        if topic is not None:
            leader = topic.partitions[partition_of(self.app.encode(), len(topic.partitions))].leader
        if tries == 0:
            done(last)
        elif leader is None:
            if topic is None:
                self._prepare()
            self.loop.after(2 * PAUSE_S, lambda: self._ask(message, tries - 1, done, last))
        else:
            self.call(leader, message, CALL_S, lambda answer: self._on_answer(message, tries, done, answer))

    def _on_answer(self, message: Message, tries: int, done: Callable[[Any], None], answer: Any) -> None:
        if isinstance(answer, TidelogError) and answer.retriable:
            self.loop.after(PAUSE_S, lambda: self._ask(message, tries - 1, done, answer))
        else:
            done(answer)

    def topic(self, name: str) -> TopicState | None:
        """A topic by its name."""
        return next((topic for topic in self.image.topics if topic.name == name), None)

    def _prepare(self) -> None:
        for name in self.cluster.controllers:
            link = self.network.connect(self, name)
            link.send(self, Frame("request", 0, PrepareTransactions(self.name, 1)))

    def on_ack(self, link: SimLink, ack: ProduceAck) -> None:
        done = self._acks.get(ack.id)
        if done is not None:
            done(ack)


FINAL = ("FENCED_PRODUCER", "TRANSACTION_ABORTED", "UNKNOWN_TRANSACTION", "INVALID_TRANSACTION")


class CommittedReader(Client):
    """Reads what is committed of every partition, from whichever replica."""

    def __init__(self, cluster: Cluster, name: str, rng: random.Random) -> None:
        super().__init__(cluster, name, rng)
        self.positions: dict[TopicPartition, int] = {}
        self.seen: dict[str, list[TopicPartition]] = {}
        self._busy: dict[TopicPartition, None] = {}
        self.loop.after(0.5, self._act)

    def _act(self) -> None:
        for key in self.cluster.partitions:
            state = self.partition(key)
            if key not in self._busy and state is not None and state.leader is not None:
                self._busy[key] = None
                node = self.rng.choice(state.replicas)
                offset = self.positions.get(key, 0)
                request = Read(*key, offset, max_wait_ms=100, any_replica=True)
                self.call(node, request, 1.0, lambda answer, key=key: self._on_read(key, answer))
        self.loop.after(0.05, self._act)

    def _on_read(self, key: TopicPartition, answer: Any) -> None:
        del self._busy[key]
        if not isinstance(answer, ReadAnswer):
            return
        position = self.positions.get(key, 0)
        payload = answer.payload
        for header, batch in split(b"".join(payload) if isinstance(payload, list) else payload):
            for record in decode_batch(batch):
                if record.offset >= position:
                    assert record.value is not None
                    self.seen.setdefault(record.value.decode(), []).append(key)
            position = header.end_offset
        self.positions[key] = position


def judge(cluster: Cluster, transactors: list[Transactor], reader: CommittedReader) -> None:
    """T1 to T4."""
    whole = sorted(cluster.partitions)
    for transactor in transactors:
        shown: dict[int, list[str]] = {}
        for one in transactor.tries:
            places = sorted(reader.seen.get(one.label, []))
            assert len(places) == len(set(places)), f"T2 {one.label} is seen twice: {places}"
            assert places in ([], whole), f"T1 {one.label} is torn: {places}"
            assert places or one.fate != "committed", f"T1 {one.label} was committed, and is not seen"
            assert not places or (one.wanted and one.fate != "aborted"), f"T1 {one.label} was not committed"
            if places and one.batch >= 0:
                shown.setdefault(one.batch, []).append(one.label)
        assert all(len(labels) == 1 for labels in shown.values()), f"T3 {shown}"
    for name in cluster.replicas:
        for key in cluster.partitions:
            partition = cluster.replica(name).core.partitions.get(key)
            assert partition is None or not partition.log.producers.transactions.open, f"T4 {name} {key}"


def settled(cluster: Cluster, transactors: list[Transactor], reader: CommittedReader) -> bool:
    """Nothing is under way, and the reader has everything."""
    return all(transactor.idle for transactor in transactors) and all(
        reader.positions.get(key, 0) == cluster.invariants.committed_end(key) for key in cluster.partitions
    )
