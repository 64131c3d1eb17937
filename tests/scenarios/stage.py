"""A simulated cluster to direct by hand: one partition, no faults but those that the scenario asks for.

Beside starting, killing and cutting off processes a scenario may hold back, lose, double or forge single messages
(``hold``, ``ask``), stall flushes, damage or swap disks, and look at everything after every step (``always``).
A power loss here is the worst one: nothing survives that was not synced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from simulation.clients.client import Client
from simulation.clients.consumer import Consumer
from simulation.clients.producer import Batch, Producer, ProducerOptions
from simulation.cluster import Cluster, Options, TopicOptions
from simulation.invariants.views import view
from simulation.processes.process import SimProcess
from simulation.processes.replica_server import DATA
from simulation.world.disk import SimDisk
from simulation.world.loop import stream
from simulation.world.network import Frame, SimLink, frozen
from tidelog.feature_levels import ALL, Levels
from tidelog.sansio.effects import Event
from tidelog.types import Acks, PartitionState, TopicPartition
from tidelog.verify.history import OK
from tidelog.wire.messages import AlterIsr, HistoryEntry, Message
from tidelog_replica.node import StartFlush

FOREVER = 1e6

Wanted = Callable[[str, str, Any], bool]
"""Whether a message (sender, receiver, body) is meant."""


class NothingUnsyncedSurvives(Random):
    """The dice of the worst power loss."""

    def random(self) -> float:
        return 1.0

    def choice(self, seq: Any) -> Any:
        return seq[0]

    def randrange(self, *arguments: Any) -> int:  # type: ignore[override]
        return 0


@dataclass(slots=True)
class Held:
    """Messages kept from going on their way, and how they may go on."""

    wanted: Wanted
    messages: list[Any] = field(default_factory=list)
    holding: bool = True
    _go: list[Callable[[], None]] = field(default_factory=list)

    def take(self, message: Any, go: Callable[[], None]) -> None:
        self.messages.append(message)
        self._go.append(go)

    def deliver(self, *, again: bool = False) -> None:
        """What was held goes on its way now (``again``: and once more later); what comes next is held too."""
        waiting = list(self._go)
        if not again:
            self._go.clear()
        for go in waiting:
            go()

    def release(self) -> None:
        """Deliver, and hold nothing more."""
        self.holding = False
        self.deliver()

    def lose(self) -> None:
        """What was held will never arrive; what comes next is held too."""
        self._go.clear()


class Stage(Cluster):
    """Begins in full sync; ``servers``, where they are more than the replicas. ``levels``: the
    feature levels that the processes understand in their first life. ``first`` is the leader then, ``others`` its
    followers in the order of the replicas.

    New leaders are elected in replica order, as most scenarios script it: the controllers forget what would rank the
    servers, unless ``ranked``."""

    def __init__(
        self,
        *,
        replicas: int = 3,
        servers: int = 0,
        partitions: int = 1,
        cluster: str = "sim",
        reserve_bytes: int = 0,
        levels: Levels = ALL,
        ranked: bool = False,
        trace: Callable[[str], None] | None = None,
        **config: str,
    ) -> None:
        topic = TopicOptions("t", partitions, replicas, {"replica_max_lag_ms": "2000", **config})
        super().__init__(Options(1, replicas=servers or replicas, topics=(topic,)), trace)
        self.name = cluster
        self._ranked = ranked
        for process in self.processes.values():
            process.levels = levels
        self.replica_settings = replace(self.replica_settings, reserve_bytes=reserve_bytes)
        self.events: list[tuple[str, Event]] = []
        """All that any core said, with its name."""
        self._producers: dict[str, Producer] = {}
        self._asker: Client | None = None
        self._holds: list[Held] = []
        self._stalled: dict[str, list[tuple[int, Any]]] = {}
        self._always: list[Callable[[], None]] = []
        self._direct()
        self.until(self.ready)
        self.first = self.leader
        self.others = tuple(node for node in self.now.replicas if node != self.first)

    def _direct(self) -> None:
        """Stand between the processes and their network, disks and judges."""
        carry, after_step = self.network.carry, self.invariants.after_step

        def hold_or_carry(link: SimLink, sender: Any, frame: Frame, lossy: bool = False) -> None:
            receiver = link.other(sender.name)
            held = next((h for h in self._holds if h.holding and h.wanted(sender.name, receiver, frame.body)), None)
            if held is None:
                carry(link, sender, frame, lossy)
            else:
                copy = frozen(frame)
                held.take(copy.body, lambda: carry(link, sender, copy, lossy))

        def check_and_look(process: SimProcess, effects: Any) -> None:
            after_step(process, effects)
            if not self._ranked and process.name in self.controllers and process.core is not None:
                process.core.ranking.clear()
            for look in self._always:
                look()

        self.network.carry = hold_or_carry  # type: ignore[method-assign]
        self.invariants.after_step = check_and_look  # type: ignore[method-assign]
        for name in self.replicas:
            self._direct_flushes(self.replica(name))

    def _direct_flushes(self, process: Any) -> None:
        perform = process.perform

        def stall_or_perform(effect: Any) -> None:
            if isinstance(effect, StartFlush) and process.name in self._stalled:
                self._stalled[process.name].append((process.life, lambda: perform(effect)))
            else:
                perform(effect)

        process.perform = stall_or_perform

    # --- what is -----------------------------------------------------------------------------------------

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
    def changes(self) -> tuple[HistoryEntry, ...]:
        """Its history: every change of its state, and why."""
        return self.invariants.metadata.history[self.key.topic_id][self.key.partition]

    @property
    def active(self) -> str:
        """The active controller."""
        return next(
            name for name in self.controllers if self.processes[name].running and self.processes[name].core.active
        )

    def partition(self, node: str) -> Any:
        """The partition on a server; None while it is not open there, or the server does not run."""
        core = self.replica(node).core
        return None if core is None else core.partitions.get(self.key)

    def leads(self, node: str) -> bool:
        """Whether the server itself acts as the leader."""
        partition = self.partition(node)
        return partition is not None and partition.leading is not None

    def follows(self, node: str, leader: str) -> bool:
        """Whether the server itself acts as a follower of that leader."""
        partition = self.partition(node)
        return partition is not None and partition.following is not None and partition.following.core.leader == leader

    def hw(self, node: str) -> int:
        """The high watermark as that server knows it; -1 where the partition is not open."""
        partition = self.partition(node)
        return -1 if partition is None else view(partition).high_watermark

    def end(self, node: str) -> int:
        """Where its log ends; -1 where it is not open."""
        partition = self.partition(node)
        return -1 if partition is None else view(partition).log.end

    def durable(self, node: str) -> int:
        """How far it is flushed; -1 where it is not open."""
        partition = self.partition(node)
        return -1 if partition is None else view(partition).log.durable

    def values(self, node: str) -> list[bytes]:
        """All records in a replica's log."""
        return [] if self.partition(node) is None else [v for _, v in self.invariants.rows(node, self.key)]

    def on_event(self, process: SimProcess, event: Event) -> None:
        self.events.append((process.name, event))
        super().on_event(process, event)

    def happened(self, name: str, by: str = "") -> list[Event]:
        """Events of that name so far."""
        return [event for node, event in self.events if event.name == name and by in ("", node)]

    def always(self, look: Callable[[], None]) -> None:
        """Look at everything after every step from now on; a failed assertion there fails the scenario."""
        self._always.append(look)

    # --- clients -----------------------------------------------------------------------------------------

    def send(
        self,
        *values: bytes,
        acks: Acks = Acks.ALL,
        by: str = "hand",
        patience: float = 8.0,
        window: int = 3,
        expected: int = -1,
        first_id: int = 0,
    ) -> Batch:
        """Begin a send; ``expected``: the only offset at which it may be appended. ``first_id``: where a new producer
        counts its ids from."""
        producer = self._producers.get(by)
        if producer is None:
            options = ProducerOptions(acks=acks, pace=0.0, patience=patience, window=window, first_id=first_id)
            producer = self._producers[by] = Producer(self, by, stream(1, by), options)
            self.clients.append(producer)
            self.until(lambda: producer.partition(self.key) is not None)
        batch = producer.produce(self.key, *values, expected=expected)
        assert batch is not None
        return batch

    def put(self, *values: bytes, by: str = "hand") -> Batch:
        """A send that succeeds."""
        batch = self.send(*values, by=by)
        self.until(lambda: batch.result != "")
        assert batch.result == OK, batch
        return batch

    def give_up(self, batch: Batch, *, by: str = "hand") -> None:
        """Its sender waits no longer."""
        self._producers[by].give_up(batch.id)

    def ask(self, node: str, message: Message, timeout_s: float = 2.0) -> Any:
        """A request of a client, forged or not, and its answer or error."""
        if self._asker is None:
            self._asker = Client(self, "asker", stream(1, "asker"))
        answers: list[Any] = []
        self._asker.call(node, message, timeout_s, answers.append)
        self.until(lambda: bool(answers), timeout_s + 1.0)
        return answers[0]

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

    # --- the network -------------------------------------------------------------------------------------

    def hold(self, wanted: Wanted) -> Held:
        """Keep every such message back from now on."""
        held = Held(wanted)
        self._holds.append(held)
        return held

    def proposals(self, node: str, look: Callable[[], Any] = lambda: None) -> list[Any]:
        """What is seen by ``look`` whenever, from now on, the leader proposes an ISR with that node."""
        found: list[Any] = []

        def watch(sender: str, receiver: str, message: Any) -> bool:
            if isinstance(message, AlterIsr) and node in [member.node for member in message.isr]:
                found.append(look())
            return False

        self.hold(watch)
        return found

    def cut(self, one: str, *others: str, until: float = FOREVER) -> None:
        """Nothing passes between ``one`` and the others, in either direction."""
        for other in others:
            self.network.block(one, other, until)
            self.network.block(other, one, until)

    def isolate(self, node: str, *, clients: bool = False) -> None:
        """Cut a server off from all controllers and servers; from its clients only if asked to."""
        others = [*self.controllers, *self.replicas, *([c.name for c in self.clients] if clients else [])]
        self.cut(node, *(other for other in others if other != node))

    # --- processes ---------------------------------------------------------------------------------------

    def kill(self, *nodes: str) -> None:
        """The processes die, all at the same moment."""
        for node in nodes:
            self.processes[node].stop(power=False)

    def lose_power(self, *nodes: str) -> None:
        """The machines die, all at the same moment: what was not flushed is gone."""
        for node in nodes:
            self.replica(node).disk.crash(NothingUnsyncedSurvives())
            self.processes[node].stop(power=True)

    def restart(self, *nodes: str) -> None:
        """Dead processes begin a new life."""
        for node in nodes:
            self.processes[node].start()

    def settle(self) -> None:
        """Heal everything and wait for full sync; then everything is compared."""
        for held in self._holds:
            held.holding = False
        self.resume_flushes()
        self.network.heal()
        self.restart(*(name for name, process in self.processes.items() if not process.running))
        self.until(self.in_sync, 30.0)
        self.judge()

    # --- disks -------------------------------------------------------------------------------------------

    def stall_flushes(self, *nodes: str) -> None:
        """Flushes of these servers do not come back."""
        for node in nodes:
            self._stalled.setdefault(node, [])

    def resume_flushes(self) -> None:
        """Those that still matter are done now."""
        stalled, self._stalled = self._stalled, {}
        for node, flushes in stalled.items():
            process = self.processes[node]
            for life, flush in flushes:
                if process.running and process.life == life:
                    flush()

    def directory(self, key: TopicPartition | None = None) -> str:
        """Where a server keeps the partition."""
        topic_id, partition = key or self.key
        return f"{DATA}/{topic_id}-{partition}"

    def files(self, node: str, name: str = "", key: TopicPartition | None = None) -> list[str]:
        """Paths of the partition's files in whose names this stands, in order."""
        disk, directory = self.replica(node).disk, self.directory(key)
        return [f"{directory}/{found}" for found in disk.listdir(directory) if name in found]

    def write_back(self, node: str) -> None:
        """The operating system writes the partition's pages to the disk of its own accord."""
        disk = self.replica(node).disk
        for path in self.files(node):
            file = disk.open(path)
            file.sync()
            file.close()
        disk.sync_dir(self.directory())

    def replace_disk(self, node: str, disk: SimDisk | None = None) -> None:
        """A dead server gets another disk: a new one, another's, or an old copy of its own."""
        self.replica(node).change_disk(disk or SimDisk())

    def flip(self, node: str, path: str, position: int) -> None:
        """One bit of a server's file is another now, and nobody noticed."""
        self.replica(node).disk.flip(path, position, 3)
