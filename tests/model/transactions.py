"""The coordinator of transactions and the leaders, over a network that loses, doubles and delays: the real cores, and
logs that are lists. Explored are the order in which messages arrive and the moments at which faults come.

Two processes of one application write to two partitions, one of them the zombie of the other. The coordinator's log
is committed a step after it is written. A crash keeps the committed part, and of the rest all or nothing. Messages of
an earlier coordinator still arrive.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tidelog.batch.format import NewRecord, encode_batch, encode_marker, read_header
from tidelog.errors import TidelogError
from tidelog.types import Acks, TopicPartition
from tidelog.wire.messages import (
    BeginTransaction,
    EndTransaction,
    EnrolPartition,
    Message,
    ProduceAck,
    ProducePart,
    TransactionBegun,
    TransactionEnded,
)
from tidelog_replica.config import TransactionSettings
from tidelog_replica.coordinators.groups.records import Entry
from tidelog_replica.coordinators.transactions.coordinator import TransactionCoordinator
from tidelog_replica.coordinators.transactions.records import StoredTransactions
from tidelog_replica.coordinators.transactions.transaction import Marker
from tidelog_replica.partition.transaction_gate import Question, TransactionGate
from tidelog_replica.replication.producer_state import ProducerState, SequenceRefusal
from tidelog_replica.replication.transaction_index import is_aborted

APP = "app"
TIMEOUT_MS = 1000
PARTITIONS = (TopicPartition("t", 0), TopicPartition("t", 1))
FAULTS = ("crash", "crash_lossy", "double", "drop", "expire", "stranger")
Batch = tuple[bytes, bytes]
"""Header of a batch in a log, and its value."""


class Acks_:
    """Takes the acks that a ``TransactionGate`` sends to its producers."""

    def __init__(self, process_of: dict[int, Process]) -> None:
        self._process_of = process_of

    def ack(self, source: int, ack: ProduceAck) -> None:
        self._process_of[source].on_ack(ack)


class Leader:
    """A partition whose log is a list; everything in it is committed at once."""

    def __init__(self, key: TopicPartition, processes: dict[int, Process]) -> None:
        self.key = key
        self.log: list[Any] = []
        self.producers = ProducerState()
        self._processes = processes
        self.transaction_gate = TransactionGate(self.producers, Acks_(processes), self._take)  # type: ignore[arg-type]
        self.shown: list[tuple[int, int]] = []
        """(producer, epoch) of the records that a reader has seen."""
        self.stable = 0

    def produce(self, source: int, part: ProducePart, batch: bytes) -> None:
        try:
            if not self.transaction_gate.holds(source, part, batch, read_header(batch)):
                self._take(source, part, batch, 0.0)
        except TidelogError as error:
            self._processes[source].on_ack(ProduceAck(part.id, error=error.to_info()))

    def _take(self, source: int, part: ProducePart, batch: Any, now: float) -> None:
        header = read_header(batch)
        found = self.producers.check(header)
        if isinstance(found, SequenceRefusal):
            info = TidelogError(found.message, code=found.code).to_info()
            self._processes[source].on_ack(ProduceAck(part.id, error=info))
            return
        if found is None:
            self.producers.record(header, len(self.log))
            self.log.append(header)
        self._processes[source].on_ack(ProduceAck(part.id))

    def mark(self, marker: Marker) -> None:
        if self.producers.needs_marker(marker.producer_id, marker.epoch):
            self.transaction_gate.on_marker(marker.producer_id)
            header = read_header(encode_marker(marker.producer_id, marker.epoch, commit=marker.commit))
            self.producers.record(header, len(self.log))
            self.log.append(header)

    def look(self) -> None:
        """Let a reader of committed records read as far as it can."""
        transactions = self.producers.transactions
        end = transactions.last_stable_offset(len(self.log))
        assert end >= self.stable, "the last stable offset goes back"
        aborted = transactions.aborted_from(self.stable)
        for offset in range(self.stable, end):
            header = self.log[offset]._replace(base_offset=offset)
            if not header.is_control and not is_aborted(header, aborted):
                self.shown.append((header.producer_id, header.producer_epoch))
        self.stable = end


@dataclass(eq=False)
class Process:
    """A process that begins, writes one record to each partition, and commits. It repeats unanswered requests."""

    name: str
    number: int
    begun: TransactionBegun | None = None
    acked: set[int] = field(default_factory=set)
    told: str = ""
    """The outcome as the coordinator reported it; "" while it is unknown."""
    waits: int = 0
    """The number of answers that it still expects; some may never come."""

    def wants(self) -> list[Any]:
        """Return the messages that it would send next."""
        if self.told:
            return []
        if self.begun is None:
            return [BeginTransaction(APP, self.name, "", TIMEOUT_MS, 100 + self.number)]
        missing = [number for number in range(len(PARTITIONS)) if number not in self.acked]
        return missing or [EndTransaction(APP, self.begun.producer_id, self.begun.producer_epoch, True)]

    def on_ack(self, ack: ProduceAck) -> None:
        self.waits = max(0, self.waits - 1)
        if ack.error is None:
            self.acked.add(ack.id)
        elif ack.error.code not in ("OFFLINE",):
            self.told = self.told or ack.error.code

    def on_answer(self, answer: Message | TidelogError) -> None:
        self.waits = max(0, self.waits - 1)
        if isinstance(answer, TransactionBegun) and self.begun is None:
            self.begun = answer
        elif isinstance(answer, TransactionEnded):
            self.told = "committed"
        elif isinstance(answer, TidelogError) and not answer.retriable:
            self.told = self.told or answer.code


class World:
    """The coordinator, the leaders and the network between them. ``steps`` are the events that can happen next."""

    def __init__(self) -> None:
        self.now, self.wall_ms = 0.0, 0
        self.processes = {1: Process("one", 1), 2: Process("two", 2)}
        self.leaders = {key: Leader(key, self.processes) for key in PARTITIONS}
        self.log: list[Entry] = []
        self.committed = 0
        self.flying: list[tuple[Any, ...]] = []
        self.answers: list[tuple[int, Any, Message | TidelogError]] = []
        """The answers that wait for the log: the offset, the receiver and the answer."""
        self.decided: dict[tuple[int, int], bool] = {}
        """The outcome of each transaction, by the first marker."""
        self._start(0)

    def _start(self, end: int) -> None:
        stored = StoredTransactions()
        del self.log[end:]
        for key, value in self.log:
            stored.add_record(key, value)
        self.core = TransactionCoordinator(TransactionSettings())
        self.core.load_records(stored, len(self.log), self.now, self.wall_ms)
        self._forget_answers()

    def _forget_answers(self) -> None:
        """Drop the answers that wait at the coordinator; their receivers ask again."""
        for _, back, _ in self.answers:
            self._lose((*back, None))
        self.answers.clear()

    # --- what happens ------------------------------------------------------------------------------------

    def step(self, dice: random.Random) -> None:
        """Let one random event happen."""
        number = dice.randrange(len(self.flying) + 2)
        if number < len(self.flying):
            self._arrive(self.flying.pop(number))
        elif number == len(self.flying):
            self._commit_log()
        else:
            self._send(dice)
        self._look()

    def fault(self, kind: str, dice: random.Random) -> None:
        """Let one of ``FAULTS`` happen."""
        match kind:
            case "crash":
                self._start(len(self.log))
            case "crash_lossy":
                self._start(self.committed)
            case "double" if self.flying:
                self.flying.append(dice.choice(self.flying))
            case "drop" if self.flying:
                self._lose(self.flying.pop(dice.randrange(len(self.flying))))
            case "expire":
                self._pass(TIMEOUT_MS / 1000)
            case "stranger":
                self._ask(None, EndTransaction(APP, 100 + dice.choice((1, 2)), dice.choice((0, 1)), False))
        self._look()

    def _pass(self, seconds: float) -> None:
        self.now += seconds
        self.wall_ms += round(seconds * 1000)
        self.core.on_tick(self.now, self.wall_ms)
        self._write()

    def _send(self, dice: random.Random) -> None:
        process = self.processes[dice.choice((1, 2))]
        for wish in process.wants() if not process.waits else ():
            process.waits += 1
            if not isinstance(wish, int):
                self.flying.append(("ask", process, wish))
                continue
            assert process.begun is not None
            batch = encode_batch(
                [NewRecord(process.name.encode())],
                producer_id=process.begun.producer_id,
                producer_epoch=process.begun.producer_epoch,
                transactional=True,
            )
            part = ProducePart(wish, *PARTITIONS[wish], Acks.ALL, 0, len(batch), transaction=APP)
            self.flying.append(("write", process, part, batch))

    def _arrive(self, message: tuple[Any, ...]) -> None:
        match message:
            case "ask", process, request:
                self._ask(("answer", process), request)
            case "answer", process, answer:
                process.on_answer(answer)
            case "write", process, part, batch:
                leader = self.leaders[TopicPartition(part.topic_id, part.partition)]
                leader.produce(process.number, part, batch)
                for question in leader.transaction_gate.unsent:
                    self.flying.append(("enrol", leader, question))
                leader.transaction_gate.unsent = []
            case "enrol", leader, question:
                request = EnrolPartition("r", APP, question.producer_id, question.epoch, *leader.key)
                self._ask(("enrolled", leader, question), request)
            case "enrolled", _, Question() as question, answer:
                question.done(answer, self.now)
            case "marker", marker:
                known = self.decided.setdefault((marker.producer_id, marker.epoch), marker.commit)
                assert known == marker.commit, "a transaction ends in two ways"
                self.leaders[marker.partition].mark(marker)
                self.flying.append(("marked", self.core, marker))
            case "marked", core, marker:
                if core is self.core:
                    core.on_marker(marker, True, self.now)
                    self._pass(0.002)

    def _lose(self, message: tuple[Any, ...]) -> None:
        """Report to the caller of a lost message that it gets no answer."""
        match message:
            case ("ask", process, _) | ("answer", process, _) | ("write", process, _, _):
                process.waits = 0
            case ("enrol", _, question) | ("enrolled", _, question, _):
                question.done(TidelogError("lost", code="UNREACHABLE"), self.now)
            case "marker", marker:
                self.core.on_marker(marker, False, self.now)
            case "marked", core, marker:
                core.on_marker(marker, False, self.now)

    def _ask(self, back: Any, request: Message) -> None:
        answer = self.core.handle(request, self.now, self.wall_ms)
        self._write()
        if back is not None:
            self.answers.append((len(self.log), back, answer))

    def _write(self) -> None:
        self.log += self.core.take_entries()
        self.core.on_written(len(self.log))

    def _commit_log(self) -> None:
        """Commit everything that is written: send the answers that waited for it, and the markers of decisions."""
        self.committed = len(self.log)
        for _, back, answer in self.answers:
            self.flying.append((*back, answer))
        self.answers.clear()
        self.core.on_committed(self.committed)
        self.flying += [("marker", marker) for marker in self.core.take_markers(self.now)]

    def _look(self) -> None:
        for leader in self.leaders.values():
            leader.look()

    # --- the end -----------------------------------------------------------------------------------------

    def settle(self, dice: random.Random) -> None:
        """Stop the faults, run until nothing is left to do, and check that readers see what the processes were
        answered."""
        for _ in range(400):
            self._commit_log()
            for message in self._taken():
                self._arrive(message)
            if self._is_over():
                break
            self._send(dice)
            self._pass(0.02)
            self._look()
        assert self._is_over(), "it never ends"
        self._pass(TIMEOUT_MS / 1000)
        for _ in range(40):
            self._commit_log()
            for message in self._taken():
                self._arrive(message)
            self._pass(0.2)
        self._look()
        assert all(slot.state in ("committed", "aborted") for slot in self.core.slots.values())
        self._judge()

    def _taken(self) -> Iterator[tuple[Any, ...]]:
        taken, self.flying = self.flying, []
        yield from taken

    def _is_over(self) -> bool:
        return not self.flying and not self.answers and all(process.told for process in self.processes.values())

    def _judge(self) -> None:
        for leader in self.leaders.values():
            assert leader.stable == len(leader.log), "a transaction hangs"
            assert len(leader.shown) == len(set(leader.shown)), "something is there twice"
            committed = {id for id in leader.shown}
            assert all(self.decided.get(id) for id in committed), "an aborted record was seen"
        first, second = (set(leader.shown) for leader in self.leaders.values())
        assert first == second, "a transaction was seen in part"
        for process in self.processes.values():
            id = None if process.begun is None else (process.begun.producer_id, process.begun.producer_epoch)
            if process.told == "committed":
                assert id in first, "what was committed is not there"
            elif process.told in ("TRANSACTION_ABORTED", "INVALID_TRANSACTION"):
                assert id not in first, "what was aborted is there"


def walk(seed: int, steps: int = 60, faults: int = 6) -> World:
    """Run a random schedule with faults."""
    dice = random.Random(seed)
    world = World()
    when = {dice.randrange(steps) for _ in range(dice.randrange(faults + 1))}
    for step in range(steps):
        if step in when:
            world.fault(dice.choice(FAULTS), dice)
        world.step(dice)
    world.settle(dice)
    return world


def placed(seed: int, faults: dict[int, str], steps: int = 40) -> World:
    """Run one schedule, with these faults at these steps."""
    dice, world = random.Random(seed), World()
    for step in range(steps):
        if step in faults:
            world.fault(faults[step], random.Random(step))
        world.step(dice)
    world.settle(dice)
    return world
