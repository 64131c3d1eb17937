"""The simulated cluster: builds everything from a seed, runs it, ends it, and judges it.

A run: start, create topics, load and faults until ``Options.heal_at`` of the time, heal, then everything must
converge within ``Options.patience`` (R11); at the end fresh reads of all logs go to the history checker.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tidelog.effects import Event
from tidelog.errors import TidelogError
from tidelog.types import Acks, PartitionState, TopicPartition, TopicState
from tidelog.wire.codec import SERVICE, decode, encode, encode_error
from tidelog.wire.messages import CreateTopic
from tidelog_controller.core.controller import ControllerSettings
from tidelog_controller.core.raft import RaftSettings
from tidelog_replica.settings import ReplicaSettings

from simulation.checker import check
from simulation.consumer import Consumer
from simulation.controller_process import ControllerProcess
from simulation.faults import Faults
from simulation.ghost import Violation
from simulation.history import History
from simulation.invariants import Invariants
from simulation.loop import Loop, stream
from simulation.processes import SimProcess
from simulation.producer import Producer, ProducerOptions
from simulation.replica_process import ReplicaProcess
from simulation.sim_network import Frame, Network
from simulation.strikes import Strike, Swarm

CONTROLLER_SETTINGS = ControllerSettings(
    session_timeout_s=1.5,
    leader_report_window_s=2.0,
    request_timeout_s=2.0,
    raft=RaftSettings(heartbeat_s=0.2, election_timeout_min_s=0.6, election_timeout_max_s=1.2),
)
REPLICA_SETTINGS = ReplicaSettings(
    heartbeat_s=0.4,
    controller_timeout_s=1.0,
    replica_max_idle_wait_s=0.5,
    replica_max_leader_timeout_s=0.8,
    leader_report_interval_s=0.4,
    isr_retry_s=0.3,
    checkpoint_interval_s=1.0,
    fetch_max_bytes=64 << 10,
)


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """A topic to create."""

    name: str
    partitions: int = 1
    replication_factor: int = 3
    config: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Options:
    """What to simulate. ``draw`` makes one from a seed; scenarios make their own."""

    seed: int
    replicas: int = 3
    controllers: int = 3
    topics: tuple[TopicOptions, ...] = (TopicOptions("t"),)
    producers: tuple[ProducerOptions, ...] = ()
    consumers: int = 0
    swarm: Swarm = field(default_factory=Swarm)
    duration: float = 10.0
    patience: float = 30.0
    """Longest time after healing until everything is in sync."""
    recode: bool = False
    """Pass every message through the real codec."""
    strikes: tuple[Strike, ...] | None = None
    """Exactly these faults, instead of the swarm's own."""
    only: tuple[str, ...] | None = None
    """Names of the clients that take part; None: all."""

    @classmethod
    def draw(cls, seed: int, duration: float = 7.0) -> Options:
        """The run of this seed."""
        rng = stream(seed, "options")
        flush = rng.choice(("fsync", "fsync", "fsync", "os"))
        config = {
            "flush": flush,
            "replica_max_lag_ms": rng.choice(("1600", "3000")),
            "segment_max_bytes": rng.choice(("2048", "1048576")),
        }
        if rng.random() < 0.25:
            config["min_insync_replicas"] = "1"
        producers = [
            ProducerOptions(window=rng.choice((1, 3, 5)), pace=rng.choice((0.04, 0.15)), conditional=0.0),
            ProducerOptions(window=3, pace=0.1, acks=rng.choice((Acks.ALL, Acks.ALL, Acks.LEADER))),
            ProducerOptions(idempotent=False, pace=0.1, patience=2.0, conditional=rng.choice((0.0, 0.5))),
        ]
        return cls(
            seed,
            replicas=rng.choice((3, 3, 4)),
            topics=(TopicOptions("t", rng.choice((1, 2)), 3, config),),
            producers=tuple(producers),
            consumers=2,
            swarm=Swarm.draw(rng, 0.75 * duration, power_ok=flush == "fsync"),
            duration=duration,
            recode=seed % 10 == 0,
        )


class Cluster:
    """See above. Also the stage for scenarios: ``run_for``, ``until``, and the processes by name."""

    def __init__(self, options: Options, trace: Callable[[str], None] | None = None) -> None:
        self.options = options
        self.name = "sim"
        self.loop = Loop(trace)
        self.client_rng = stream(options.seed, "shells")
        self.network = Network(self.loop, stream(options.seed, "network"), recode if options.recode else None)
        self.controller_settings = CONTROLLER_SETTINGS
        self.replica_settings = REPLICA_SETTINGS
        self.counts: dict[str, int] = {}
        self.history = History()
        self.partitions: list[TopicPartition] = []
        """Keys of all partitions that clients know of."""
        self._names: dict[str, str] = {}
        self._producer_id = 0
        self.controllers = tuple(f"c{i + 1}" for i in range(options.controllers))
        self.replicas = tuple(f"r{i + 1}" for i in range(options.replicas))
        self.clients: list[Producer | Consumer] = []
        self.processes: dict[str, SimProcess] = {}
        self.invariants = Invariants(self)
        self.client_names = tuple(
            name
            for name in (
                *(f"p{index + 1}" for index in range(len(options.producers))),
                *(f"k{index + 1}" for index in range(options.consumers)),
            )
            if options.only is None or name in options.only
        )
        self.faults = Faults(self, options.swarm, stream(options.seed, "faults"), options.strikes)
        for name in self.controllers:
            self.processes[name] = ControllerProcess(self, name)
        for name in self.replicas:
            self.processes[name] = ReplicaProcess(self, name)
        for process in self.processes.values():
            self.loop.after(self.client_rng.uniform(0.0, 0.05), process.start)
        self._admin = Admin(self)
        for name in self.client_names:
            rng = stream(options.seed, name)
            if name.startswith("p"):
                self.clients.append(Producer(self, name, rng, options.producers[int(name[1:]) - 1]))
            else:
                self.clients.append(Consumer(self, name, rng))

    # --- what the parts ask ------------------------------------------------------------------------------

    def core_rng(self, name: str, life: int) -> random.Random:
        """The random numbers of one life of one core."""
        return stream(self.options.seed, f"{name}/{life}")

    def count(self, what: str, by: int = 1) -> None:
        """Statistics of the run: faults must have happened for a green run to mean anything."""
        self.counts[what] = self.counts.get(what, 0) + by

    def new_producer_id(self) -> int:
        """An id of one's own."""
        self._producer_id += 1
        return self._producer_id

    def partition_name(self, key: TopicPartition) -> str:
        """``topic/partition`` for people and histories."""
        return f"{self._names[key.topic_id]}/{key.partition}"

    def on_event(self, process: SimProcess, event: Event) -> None:
        """A core says that something happened."""
        self.count(event.name)
        process.note("event", f"{event.name} {event.fields}")

    def on_topic(self, topic: TopicState) -> None:
        """A topic exists: clients may use it."""
        self._names[topic.topic_id] = topic.name
        self.partitions += [TopicPartition(topic.topic_id, p) for p in range(len(topic.partitions))]

    # --- for scenarios -----------------------------------------------------------------------------------

    def replica(self, name: str) -> ReplicaProcess:
        """A replica server's process."""
        process = self.processes[name]
        assert isinstance(process, ReplicaProcess)
        return process

    def controller(self, name: str) -> ControllerProcess:
        """A controller's process."""
        process = self.processes[name]
        assert isinstance(process, ControllerProcess)
        return process

    def state(self, key: TopicPartition | None = None) -> PartitionState:
        """The newest committed state of a partition (of the first one), whoever knows of it."""
        key = key or self.partitions[0]
        state = self.invariants.metadata.partition(key.topic_id, key.partition)
        assert state is not None
        return state

    def run_for(self, seconds: float) -> None:
        """Let time pass."""
        self.loop.run_until(self.loop.now + seconds)

    def until(self, condition: Callable[[], bool], limit: float = 20.0) -> None:
        """Let time pass until the condition holds; AssertionError when it does not within ``limit`` s."""
        end = self.loop.now + limit
        self.loop.run_until(end, condition)
        assert condition(), f"not within {limit} s (now {self.loop.now:.2f})"

    def ready(self) -> bool:
        """All topics exist and every partition is in full sync with a leader."""
        wanted = sum(topic.partitions for topic in self.options.topics)
        return len(self.partitions) == wanted and self.in_sync()

    def in_sync(self) -> bool:
        """Every partition has a leader and a full ISR, and its replicas hold the same log, all committed."""
        return all(self.invariants.in_sync(key) for key in self.partitions)

    # --- a whole run -------------------------------------------------------------------------------------

    def run(self) -> None:
        """Everything, to the end. Raises ``Violation`` or AssertionError."""
        self.loop.run_until(self.options.duration)
        self.faults.heal()
        healed = self.loop.now
        self.until(self.full_isr, self.options.patience)
        self.count("seconds to full ISR", round(self.loop.now - healed))
        self.run_for(0.5)  # clients' metadata and back-off
        self.history.healthy.append((self.loop.now, self.loop.now + 2.0))
        self.history.patience = 1.0
        self.run_for(2.0)
        for client in self.clients:
            if isinstance(client, Producer):
                client.stopped = True
        self.until(lambda: all(c.idle for c in self.clients if isinstance(c, Producer)), 10.0)
        self.until(self.in_sync, self.options.patience)
        self.until(self.all_read, 10.0)
        self.judge()

    def full_isr(self) -> bool:
        """All topics exist, and every partition has a leader and all replicas in its ISR."""
        wanted = sum(topic.partitions for topic in self.options.topics)
        states = [self.state(key) for key in self.partitions]
        return len(states) == wanted and all(s.leader is not None and len(s.isr) == len(s.replicas) for s in states)

    def all_read(self) -> bool:
        """Every consumer has seen everything."""
        return all(
            consumer.positions.get(key, (0, -1))[0] == self.invariants.committed_end(key)
            for consumer in self.clients
            if isinstance(consumer, Consumer)
            for key in self.partitions
        )

    def judge(self) -> None:
        """The whole comparison at the end."""
        self.invariants.compare_all()
        for key in self.partitions:
            name = self.partition_name(key)
            state = self.state(key)
            assert state.leader is not None
            self.history.final[name] = self.invariants.rows(state.leader, key)
            for node in state.replicas:
                self.history.dumps.setdefault(node, {})[name] = self.invariants.rows(node, key)
        anomalies = check(self.history)
        if anomalies:
            raise Violation("; ".join(f"{a.kind}: {a.text}" for a in anomalies[:5]))


class Admin:
    """Creates the topics, as an operator would: asks the active controller until it is done."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.name = "admin"
        self._todo = list(cluster.options.topics)
        cluster.network.attach(self)
        cluster.loop.after(0.5, self._next)

    def _next(self) -> None:
        cluster = self.cluster
        known = {topic.name: topic for topic in cluster.invariants.metadata.topics.values()}
        while self._todo and self._todo[0].name in known:
            cluster.on_topic(known[self._todo.pop(0).name])
        if not self._todo:
            return
        live = sum(not server.fenced for server in cluster.invariants.metadata.servers.values())
        topic = self._todo[0]
        if live >= topic.replication_factor:
            request = CreateTopic(topic.name, topic.partitions, topic.replication_factor, dict(topic.config))
            for name in cluster.controllers:
                link = cluster.network.connect(self, name)
                link.send(self, Frame("request", 1, request))
        cluster.loop.after(0.5, self._next)

    def on_accept(self, link: object) -> None:
        raise AssertionError("nobody connects to an operator")

    def on_datagram(self, sender: str, message: object) -> None:
        raise AssertionError("an operator takes no datagrams")

    def on_frame(self, link: object, frame: Frame) -> None:
        self.cluster.loop.note(self.name, f"{frame.body}")

    def on_close(self, link: object) -> None:
        pass


def recode(frame: Frame) -> Frame:
    """The message as the other side decodes it."""
    body = frame.body
    if frame.kind == "answer" and isinstance(body, TidelogError):
        data = encode_error(frame.id or 0, body)
    else:
        ids = {"request": {"id": frame.id}, "answer": {"re": frame.id}, "post": {}}[frame.kind]
        head, payload = encode(body, **ids)  # type: ignore[arg-type]
        data = bytes(head) + (b"".join(payload) if isinstance(payload, list) else bytes(payload))
    decoded = decode(data, answers=lambda re: type(body), limits=SERVICE)  # type: ignore[arg-type,return-value]
    received = decoded.message if decoded.error is None else decoded.error
    assert received is not None
    return Frame(frame.kind, frame.id, received)
