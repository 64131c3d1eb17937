"""Three servers with a topic of two partitions and the one partition of ``__transactions``, for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tidelog.batch.format import decode_batch, split
from tidelog.feature_levels import NEWEST
from tidelog.types import GROUPS, MAX_TASKS, TRANSACTIONS, PartitionState, TopicConfig, TopicPartition, TopicState
from tidelog.wire.messages import (
    BeginTransaction,
    Done,
    EndTransaction,
    InitTaskProducer,
    ListOffset,
    PrepareTransaction,
    Read,
    ReadAnswer,
    TaskProducer,
    TransactionBegun,
)
from tidelog_replica.config import ReplicaSettings, TransactionSettings

from support.fake_controller import KEY
from support.replica_network import Net, code

LOG = TopicPartition("id-transactions", 0)
GROUP_LOG = TopicPartition("id-groups", 0)
APP = "app"


class TransactionNet(Net):
    """r1 leads ``KEY``/0 and r2 ``KEY``/1; r3 coordinates transactions, r2 groups."""

    def __init__(self, level: int = NEWEST, settings: TransactionSettings | None = None) -> None:
        own = ReplicaSettings(reserve_bytes=0, transactions=settings or TransactionSettings())
        super().__init__(3, TopicConfig(min_insync_replicas=2), own, level=level)
        self.wall_ms = 1000
        self.start()
        all = ("r1", "r2", "r3")
        data = (PartitionState(all, all, "r1", 0, 0), PartitionState(all, all, "r2", 0, 0))
        log = PartitionState(all, all, "r3", 0, 0)
        self.topics = {
            KEY.topic_id: TopicState(KEY.topic_id, "orders", self.config, data),
            GROUP_LOG.topic_id: TopicState(GROUP_LOG.topic_id, GROUPS, self.config, (replace(log, leader="r2"),)),
            LOG.topic_id: TopicState(LOG.topic_id, TRANSACTIONS, self.config, (log,)),
        }
        self.broadcast()
        self.run()
        self.advance(0.1)
        self.coordinator = "r3"
        self.leaders = ["r1", "r2"]
        self._ids = 1000
        self._blocks = 10
        """The number of blocks of producer ids given out."""
        self.sequences: dict[tuple[int, int, int], int] = {}

    def move(self, key: TopicPartition, leader: str) -> None:
        """Give a partition another leader, and deliver everything that follows."""
        topic = self.topics[key.topic_id]
        states = list(topic.partitions)
        old = states[key.partition]
        states[key.partition] = replace(old, leader=leader, leader_epoch=old.leader_epoch + 1, epoch=old.epoch + 1)
        self.topics[key.topic_id] = replace(topic, partitions=tuple(states))
        if key == LOG:
            self.coordinator = leader
        elif key.topic_id == KEY.topic_id:
            self.leaders[key.partition] = leader
        self.broadcast()
        self.run()
        self.advance(0.2)

    def tell(self, message: Any, name: str = "") -> Any:
        """Send a request to the coordinator and return its answer; None if it waits."""
        return self.answers.get(self.ask(name or self.coordinator, message))

    def begin(self, owner: str = "", app: str = APP, staged: str = "", **fields: Any) -> TransactionBegun:
        """Begin a transaction and return the answer."""
        self._ids += 1
        message = BeginTransaction(app, owner or f"owner {self._ids}", staged, producer_id=self._ids, **fields)
        answer = self.tell(message)
        assert isinstance(answer, TransactionBegun), answer
        return answer

    def init_task(self, batch: int, task: int = 0, app: str = APP, owner: str = "query") -> Any:
        """Ask for the producer of a task as a gateway does; None if there is no answer yet."""
        asked = InitTaskProducer(app, owner, batch, task)
        answer = self._patient(asked)
        if answer == TaskProducer(0, 0, 0):
            self._blocks += 1
            answer = self._patient(replace(asked, first_id=self._blocks * MAX_TASKS))
        return answer

    def _patient(self, message: Any) -> Any:
        """Return the coordinator's answer, after the time that it may need to confirm its leadership."""
        id = self.ask(self.coordinator, message)
        if id not in self.answers:
            self.advance(0.5)
        return self.answers.get(id)

    def write_task(self, producer: TaskProducer, *values: bytes, sequence: int = 0, partition: int = 0) -> str:
        """Send a batch of a task and return the code of its refusal, "" for none."""
        id = self.send(
            self.leaders[partition],
            *values,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=sequence,
            partition=partition,
        )
        return code(self.acks[id])

    def write(
        self, begun: TransactionBegun, *values: bytes, partition: int = 0, app: str = APP, run: bool = True
    ) -> int:
        """Send a batch of a transaction and return the id of its ack."""
        place = (begun.producer_id, begun.producer_epoch, partition)
        sequence = self.sequences.get(place, 0)
        self.sequences[place] = sequence + len(values)
        return self.send(
            self.leaders[partition],
            *values,
            run=run,
            producer_id=begun.producer_id,
            producer_epoch=begun.producer_epoch,
            base_sequence=sequence,
            transactional=True,
            partition=partition,
            transaction=app,
        )

    def stage(self, name: str, *values: bytes, partition: int = 0, app: str = APP) -> TransactionBegun:
        """Begin a staged transaction, write these values and prepare it; returns the transaction."""
        begun = self.begin(app=app, staged=name)
        self.write(begun, *values, partition=partition, app=app)
        assert self.tell(PrepareTransaction(app, begun.producer_id, begun.producer_epoch)) == Done()
        return begun

    def end(self, begun: TransactionBegun, commit: bool = True, app: str = APP) -> Any:
        """Ask the coordinator to commit or abort a transaction, and return the answer."""
        return self.tell(EndTransaction(app, begun.producer_id, begun.producer_epoch, commit))

    def seen(self, partition: int = 0, name: str = "", **how: Any) -> list[bytes | None]:
        """Return the values that a reader gets from the beginning on."""
        found: list[bytes | None] = []
        offset = 0
        while True:
            ask = Read(KEY.topic_id, partition, offset, **how)
            answer = self.answers[self.ask(name or self.leaders[partition], ask)]
            assert isinstance(answer, ReadAnswer), answer
            payload = b"".join(answer.payload)  # type: ignore[arg-type]
            if not payload:
                return found
            for header, batch in split(payload):
                found += [record.value for record in decode_batch(batch) if record.offset >= offset]
                offset = header.end_offset

    def stable(self, partition: int = 0) -> int:
        """Return the last stable offset, as a leader answers it."""
        id = self.ask(self.leaders[partition], ListOffset(KEY.topic_id, partition, "latest"))
        self.advance(0.5)
        return int(self.answers[id].offset)
