"""A simulated cluster that a scenario directs by hand: one partition, no faults but those that the scenario causes.

A scenario starts, kills and cuts off processes. It may also hold back, lose, double or forge single messages
(``hold``, ``ask``), stall flushes, damage or replace disks, and check everything after every step (``always``). A
power loss here is the worst one: nothing survives that was not synced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from tidelog.feature_levels import ALL, Levels
from tidelog.sansio.effects import Event
from tidelog.testing.clients.client import Client
from tidelog.testing.clients.consumer import Consumer
from tidelog.testing.clients.producer import Batch, Producer, ProducerOptions
from tidelog.testing.cluster import Cluster, Options, TopicOptions
from tidelog.testing.hardware.disk import SimDisk
from tidelog.testing.hardware.loop import stream
from tidelog.testing.hardware.network import Frame, SimLink, frozen
from tidelog.testing.invariants.views import view
from tidelog.testing.processes.process import SimProcess
from tidelog.testing.processes.replica_server import DATA
from tidelog.types import Acks, PartitionState, TopicPartition
from tidelog.verify.history import OK
from tidelog.wire.messages import AlterIsr, HistoryEntry, Message
from tidelog_replica.node import StartFlush

FOREVER = 1e6

Wanted = Callable[[str, str, Any], bool]
"""Returns whether a message (sender, receiver, body) is to be held back."""


class NothingUnsyncedSurvives(Random):
    """Random numbers for the worst power loss, which keeps no unsynced change."""

    def random(self) -> float:
        return 1.0

    def choice(self, seq: Any) -> Any:
        return seq[0]

    def randrange(self, *arguments: Any) -> int:  # type: ignore[override]
        return 0


@dataclass(slots=True)
class Held:
    """Messages that are held back, and the ways to let them go."""

    wanted: Wanted
    messages: list[Any] = field(default_factory=list)
    holding: bool = True
    _go: list[Callable[[], None]] = field(default_factory=list)

    def take(self, message: Any, go: Callable[[], None]) -> None:
        self.messages.append(message)
        self._go.append(go)

    def deliver(self, *, again: bool = False) -> None:
        """Send the held messages now, with ``again`` also once more later; later messages are held too."""
        waiting = list(self._go)
        if not again:
            self._go.clear()
        for go in waiting:
            go()

    def release(self) -> None:
        """Send the held messages and hold no more."""
        self.holding = False
        self.deliver()

    def lose(self) -> None:
        """Drop the held messages; later messages are held too."""
        self._go.clear()


class Stage(Cluster):
    """A cluster in full sync at first. ``servers``: their number if it is more than the replicas. ``levels``: the
    feature levels of the processes in their first run. ``first`` is the first leader, ``others`` are its followers in
    replica order.

    New leaders are elected in replica order, as most scenarios expect it: the controllers forget the evidence for
    ranks, unless ``ranked``.
    """

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
        """All events of the cores, with the names of their servers."""
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
        """Put the stage between the processes and their network, disks and checks."""
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
        """The only partition."""
        return self.partitions[0]

    @property
    def now(self) -> PartitionState:
        """The committed state of the partition."""
        return self.state(self.key)

    @property
    def leader(self) -> str:
        """The leader in the committed state; "" if there is none."""
        return self.now.leader or ""

    @property
    def changes(self) -> tuple[HistoryEntry, ...]:
        """The history of the partition: every change of its state with its cause."""
        return self.invariants.metadata.history[self.key.topic_id][self.key.partition]

    @property
    def active(self) -> str:
        """The active controller."""
        return next(
            name for name in self.controllers if self.processes[name].running and self.processes[name].core.active
        )

    def partition(self, node: str) -> Any:
        """Return the partition on a server; None while it is not open there or the server does not run."""
        core = self.replica(node).core
        return None if core is None else core.partitions.get(self.key)

    def leads(self, node: str) -> bool:
        """Return whether the server itself acts as the leader."""
        partition = self.partition(node)
        return partition is not None and partition.leading is not None

    def follows(self, node: str, leader: str) -> bool:
        """Return whether the server itself acts as a follower of that leader."""
        partition = self.partition(node)
        return partition is not None and partition.following is not None and partition.following.core.leader == leader

    def hw(self, node: str) -> int:
        """Return the high watermark that a server knows; -1 if the partition is not open there."""
        partition = self.partition(node)
        return -1 if partition is None else view(partition).high_watermark

    def end(self, node: str) -> int:
        """Return the log end offset on a server; -1 if the partition is not open there."""
        partition = self.partition(node)
        return -1 if partition is None else view(partition).log.end

    def durable(self, node: str) -> int:
        """Return the durable offset on a server; -1 if the partition is not open there."""
        partition = self.partition(node)
        return -1 if partition is None else view(partition).log.durable

    def values(self, node: str) -> list[bytes]:
        """Return all record values in a replica's log; [] if it is not open."""
        return [] if self.partition(node) is None else [v for _, v in self.invariants.rows(node, self.key)]

    def on_event(self, process: SimProcess, event: Event) -> None:
        self.events.append((process.name, event))
        super().on_event(process, event)

    def happened(self, name: str, by: str = "") -> list[Event]:
        """Return the events of a name; ``by``: only those of this server."""
        return [event for node, event in self.events if event.name == name and by in ("", node)]

    def always(self, look: Callable[[], None]) -> None:
        """Call ``look`` after every step from now on; a failed assertion there fails the scenario."""
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
        """Begin a send and return it. ``expected``: the only offset at which it may be appended. ``first_id``: the
        first producer id of a new producer."""
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
        """Send a batch, wait for its ack and return it. Raises AssertionError if it fails."""
        batch = self.send(*values, by=by)
        self.until(lambda: batch.result != "")
        assert batch.result == OK, batch
        return batch

    def give_up(self, batch: Batch, *, by: str = "hand") -> None:
        """End a send as if its deadline had passed."""
        self._producers[by].give_up(batch.id)

    def ask(self, node: str, message: Message, timeout_s: float = 2.0) -> Any:
        """Send a request of a client, forged or not, and return its answer or error."""
        if self._asker is None:
            self._asker = Client(self, "asker", stream(1, "asker"))
        answers: list[Any] = []
        self._asker.call(node, message, timeout_s, answers.append)
        self.until(lambda: bool(answers), timeout_s + 1.0)
        return answers[0]

    def read_all(self) -> list[bytes]:
        """Return the records that a new consumer reads until it has seen everything committed."""
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
        """Hold every wanted message back from now on, and return them."""
        held = Held(wanted)
        self._holds.append(held)
        return held

    def proposals(self, node: str, look: Callable[[], Any] = lambda: None) -> list[Any]:
        """Call ``look`` whenever, from now on, the leader proposes an ISR with that server; returns the list that
        gets the results."""
        found: list[Any] = []

        def watch(sender: str, receiver: str, message: Any) -> bool:
            if isinstance(message, AlterIsr) and node in [member.node for member in message.isr]:
                found.append(look())
            return False

        self.hold(watch)
        return found

    def cut(self, one: str, *others: str, until: float = FOREVER) -> None:
        """Block everything between a process and the others, in both directions."""
        for other in others:
            self.network.block(one, other, until)
            self.network.block(other, one, until)

    def isolate(self, node: str, *, clients: bool = False) -> None:
        """Cut a server off from all controllers and servers; with ``clients`` also from all clients."""
        others = [*self.controllers, *self.replicas, *([c.name for c in self.clients] if clients else [])]
        self.cut(node, *(other for other in others if other != node))

    # --- processes ---------------------------------------------------------------------------------------

    def kill(self, *nodes: str) -> None:
        """Kill processes, all at the same moment."""
        for node in nodes:
            self.processes[node].stop(power=False)

    def lose_power(self, *nodes: str) -> None:
        """Cut the power of machines, all at the same moment: everything unsynced is lost."""
        for node in nodes:
            self.replica(node).disk.crash(NothingUnsyncedSurvives())
            self.processes[node].stop(power=True)

    def restart(self, *nodes: str) -> None:
        """Start processes that are down."""
        for node in nodes:
            self.processes[node].start()

    def settle(self) -> None:
        """End all faults, wait for full sync, and compare all logs."""
        for held in self._holds:
            held.holding = False
        self.resume_flushes()
        self.network.heal()
        self.restart(*(name for name, process in self.processes.items() if not process.running))
        self.until(self.in_sync, 30.0)
        self.judge()

    # --- disks -------------------------------------------------------------------------------------------

    def stall_flushes(self, *nodes: str) -> None:
        """Let the flushes of these servers not return."""
        for node in nodes:
            self._stalled.setdefault(node, [])

    def resume_flushes(self) -> None:
        """Complete the stalled flushes of servers that have not restarted."""
        stalled, self._stalled = self._stalled, {}
        for node, flushes in stalled.items():
            process = self.processes[node]
            for life, flush in flushes:
                if process.running and process.life == life:
                    flush()

    def directory(self, key: TopicPartition | None = None) -> str:
        """Return the directory of a partition on a server's disk."""
        topic_id, partition = key or self.key
        return f"{DATA}/{topic_id}-{partition}"

    def files(self, node: str, name: str = "", key: TopicPartition | None = None) -> list[str]:
        """Return the paths of the partition's files whose names contain a text, in order."""
        disk, directory = self.replica(node).disk, self.directory(key)
        return [f"{directory}/{found}" for found in disk.listdir(directory) if name in found]

    def write_back(self, node: str) -> None:
        """Sync the partition's files, as the operating system may do by itself."""
        disk = self.replica(node).disk
        for path in self.files(node):
            file = disk.open(path)
            file.sync()
            file.close()
        disk.sync_dir(self.directory())

    def replace_disk(self, node: str, disk: SimDisk | None = None) -> None:
        """Give a server that is down another disk: by default an empty one."""
        self.replica(node).change_disk(disk or SimDisk())

    def flip(self, node: str, path: str, position: int) -> None:
        """Invert one bit of a file on a server's disk."""
        self.replica(node).disk.flip(path, position, 3)
