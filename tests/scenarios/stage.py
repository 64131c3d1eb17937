"""A simulated cluster to direct by hand: one partition, no faults but those that the scenario asks for."""

from __future__ import annotations

from collections.abc import Callable

from simulation.cluster import Cluster, Options, TopicOptions
from simulation.consumer import Consumer
from simulation.history import OK
from simulation.loop import stream
from simulation.producer import Batch, Producer, ProducerOptions
from tidelog.types import Acks, PartitionState, TopicPartition

FOREVER = 1e6


class Stage(Cluster):
    """Begins in full sync. ``first`` is the leader then, ``others`` its followers."""

    def __init__(self, *, replicas: int = 3, trace: Callable[[str], None] | None = None, **config: str) -> None:
        topic = TopicOptions("t", 1, replicas, {"replica_max_lag_ms": "2000", **config})
        super().__init__(Options(1, replicas=replicas, topics=(topic,)), trace)
        self.until(self.ready)
        self.first = self.leader
        self.others = tuple(node for node in self.replicas if node != self.first)
        self._producers: dict[str, Producer] = {}

    @property
    def key(self) -> TopicPartition:
        """The one partition."""
        return self.partitions[0]

    @property
    def now(self) -> PartitionState:
        """Its committed state."""
        return self.state(self.key)

    @property
    def leader(self) -> str:
        """Its leader; "" when there is none."""
        return self.now.leader or ""

    @property
    def active(self) -> str:
        """The active controller."""
        return next(
            name for name in self.controllers if self.processes[name].running and self.processes[name].core.active
        )

    def leads(self, node: str) -> bool:
        """Whether the server itself acts as the leader."""
        partition = self.replica(node).core.partitions.get(self.key)
        return partition is not None and partition.leading is not None

    def send(self, *values: bytes, acks: Acks = Acks.ALL, by: str = "hand", patience: float = 8.0) -> Batch:
        """Begin a send."""
        producer = self._producers.get(by)
        if producer is None:
            options = ProducerOptions(acks=acks, pace=0.0, patience=patience)
            producer = self._producers[by] = Producer(self, by, stream(1, by), options)
            self.clients.append(producer)
            self.until(lambda: producer.partition(self.key) is not None)
        batch = producer.produce(self.key, *values)
        assert batch is not None
        return batch

    def put(self, *values: bytes, by: str = "hand") -> Batch:
        """A send that succeeds."""
        batch = self.send(*values, by=by)
        self.until(lambda: batch.result != "")
        assert batch.result == OK, batch
        return batch

    def values(self, node: str) -> list[bytes]:
        """All records in a replica's log."""
        return [value for _, value in self.invariants.rows(node, self.key)]

    def cut(self, one: str, *others: str, until: float = FOREVER) -> None:
        """Nothing passes between ``one`` and the others, in either direction."""
        for other in others:
            self.network.block(one, other, until)
            self.network.block(other, one, until)

    def isolate(self, node: str, *, clients: bool = False) -> None:
        """Cut a server off from all controllers and servers; from its clients only if asked to."""
        others = [*self.controllers, *self.replicas, *([c.name for c in self.clients] if clients else [])]
        self.cut(node, *(other for other in others if other != node))

    def kill(self, *nodes: str) -> None:
        """The processes die, all at the same moment."""
        for node in nodes:
            self.processes[node].stop(power=False)

    def lose_power(self, *nodes: str) -> None:
        """The machines die: what was not flushed is gone."""
        for node in nodes:
            self.processes[node].stop(power=True)

    def restart(self, *nodes: str) -> None:
        """Dead processes begin a new life."""
        for node in nodes:
            self.processes[node].start()

    def settle(self) -> None:
        """Heal everything and wait for full sync; then everything is compared."""
        self.network.heal()
        self.restart(*(name for name, process in self.processes.items() if not process.running))
        self.until(self.in_sync, 30.0)
        self.judge()

    def read_all(self) -> list[bytes]:
        """What a new consumer reads, until it has seen everything committed."""
        name = f"reader{len(self.clients)}"
        consumer = Consumer(self, name, stream(1, name))
        self.clients.append(consumer)
        end = self.invariants.committed_end(self.key)
        self.until(lambda: consumer.positions.get(self.key, (0, -1))[0] >= end)
        consumer.stopped = True
        return [
            value
            for op in self.history.operations
            if getattr(op, "rows", None) and op.process == name
            for _, value in op.rows  # type: ignore[union-attr]
        ]
