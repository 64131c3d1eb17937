"""The simulated cluster: builds everything from the options, runs it, ends it, and checks the outcome.

A run: start, create topics, load and faults until ``Options.duration``, heal, then everything must converge within
``Options.patience`` (R11). At the end the records of all logs go to the history checker.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from tidelog_controller.metadata.rules.leader_election import copies_needed, is_recovering
from tidelog_controller.raft.log import RaftLog
from tidelog_replica.storage.log import Log

from tidelog.batch.format import decode_batch
from tidelog.errors import TidelogError
from tidelog.sansio.effects import Event
from tidelog.testing.clients import applications, streams
from tidelog.testing.clients.admin import Admin
from tidelog.testing.clients.applications import Applications
from tidelog.testing.clients.archive import Archive
from tidelog.testing.clients.client import Client
from tidelog.testing.clients.consumer import Consumer
from tidelog.testing.clients.foreign import NAME as FOREIGN
from tidelog.testing.clients.foreign import Foreign
from tidelog.testing.clients.mover import Mover
from tidelog.testing.clients.producer import Producer
from tidelog.testing.clients.rescuer import Rescuer
from tidelog.testing.clients.streams import Streams
from tidelog.testing.clients.suspender import Suspender
from tidelog.testing.clients.upgrader import Upgrader
from tidelog.testing.faults.schedule import Faults
from tidelog.testing.hardware.loop import Loop, stream
from tidelog.testing.hardware.network import Frame, Network
from tidelog.testing.invariants.ghost import Violation
from tidelog.testing.invariants.replication import Invariants
from tidelog.testing.invariants.timeline import check_timeline, is_complete, may_be_written
from tidelog.testing.options import (
    BALANCED,
    CONTROLLER_SETTINGS,
    REPLICA_SETTINGS,
    RESERVE_BYTES,
    TIMELINE,
    TRANSACTED,
    Options,
    TopicOptions,
    transacted_topic,
)
from tidelog.testing.processes.controller import ControllerProcess
from tidelog.testing.processes.process import SimProcess
from tidelog.testing.processes.replica_server import ReplicaProcess
from tidelog.types import INTERNAL_PREFIX, PartitionState, TopicPartition, TopicState
from tidelog.verify.checker import check
from tidelog.verify.history import OperationHistory
from tidelog.wire.codec import ANSWERS, SERVICE, decode, encode, encode_error
from tidelog.wire.messages import ScrubServer

__all__ = ["Cluster", "Options", "TopicOptions"]


class Cluster:
    """One run of a simulated cluster: its processes, clients, network, faults and invariants. Scenarios drive it with
    ``run_for`` and ``until`` and reach the processes by name."""

    def __init__(self, options: Options, trace: Callable[[str], None] | None = None) -> None:
        self.options = options
        self.name = "sim"
        self.loop = Loop(trace)
        self.client_rng = stream(options.seed, "shells")
        self.network = Network(self.loop, stream(options.seed, "network"), recode if options.recode else None)
        self.controller_settings = BALANCED if options.moves else CONTROLLER_SETTINGS
        if options.timeline:
            self.controller_settings = replace(self.controller_settings, timeline=TIMELINE)
        reserve_bytes = RESERVE_BYTES if "disk_full" in options.swarm.rates and options.seed % 2 else 0
        self.replica_settings = replace(REPLICA_SETTINGS, reserve_bytes=reserve_bytes)
        self.racks: dict[str, str] = {}
        """The rack of a replica server by name; a server that is missing has a rack of its own."""
        self.counts: dict[str, int] = {}
        self.history = OperationHistory()
        self.partitions: list[TopicPartition] = []
        """The keys of all partitions that clients use, without those of the applications."""
        self.transacted: list[TopicPartition] = []
        """The keys of the partitions of the topic that transactions write to."""
        self._names: dict[str, str] = {}
        self._rows: dict[bytes, list[tuple[int, bytes | None]]] = {}
        self.last_producer_id = 0
        """The largest producer id given to a client of the run."""
        self.controllers = tuple(f"c{i + 1}" for i in range(options.controllers + options.spares))
        self.replicas = tuple(f"r{i + 1}" for i in range(options.replicas))
        self.clients: list[Producer | Consumer | Foreign] = []
        self.processes: dict[str, SimProcess] = {}
        self.invariants = Invariants(self)
        self.client_names = tuple(
            name
            for name in (
                *(f"p{index + 1}" for index in range(len(options.producers))),
                *(f"k{index + 1}" for index in range(options.consumers)),
                *((FOREIGN,) if options.foreign else ()),
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
        transacts = options.transactions and (options.only is None or applications.NAME in options.only)
        self.admin = Admin(self, (*options.topics, transacted_topic()) if transacts else options.topics)
        if options.moves:
            Mover(self, stream(options.seed, "mover"))
        self.upgrader = Upgrader(self, stream(options.seed, "upgrader")) if options.upgrade else None
        self.rescuer = Rescuer(self, stream(options.seed, "rescuer")) if options.rescue else None
        self.suspender: Mover | None = Suspender(self, stream(options.seed, "suspender")) if options.pauses else None
        for name in self.client_names:
            rng = stream(options.seed, name)
            if name.startswith("p"):
                self.clients.append(Producer(self, name, rng, options.producers[int(name[1:]) - 1]))
            elif name == FOREIGN:
                self.clients.append(Foreign(self, name, rng))
            else:
                self.clients.append(Consumer(self, name, rng, any_replica=name != "k1"))
        self.applications = Applications(self) if transacts else None
        has_streams = options.streams and (options.only is None or streams.NAME in options.only)
        self.streams = Streams(self) if has_streams else None
        self.archive = Archive(self) if options.archive else None

    # --- what the parts ask ------------------------------------------------------------------------------

    def core_rng(self, name: str, life: int) -> random.Random:
        """Return the random numbers for the core of one run of a process."""
        return stream(self.options.seed, f"{name}/{life}")

    def count(self, what: str, by: int = 1) -> None:
        """Add to a statistic of the run. A run without faults proves little, so tests look at these counts."""
        self.counts[what] = self.counts.get(what, 0) + by

    def new_producer_id(self) -> int:
        """Return a producer id that no other client has."""
        self.last_producer_id += 1
        return self.last_producer_id

    def partition_name(self, key: TopicPartition) -> str:
        """Return ``topic/partition``, the name of a partition in texts and histories."""
        return f"{self._names[key.topic_id]}/{key.partition}"

    def rows(self, batch: memoryview) -> Sequence[tuple[int, bytes | None]]:
        """Return the offsets and values of a batch as a client decodes them; cached by the bytes of the batch. Raises
        ``CorruptBatch``."""
        data = bytes(batch)
        rows = self._rows.get(data)
        if rows is None:
            rows = self._rows[data] = [(record.offset, record.value) for record in decode_batch(data)]
        return rows

    def on_event(self, process: SimProcess, event: Event) -> None:
        """Count and trace an event that a core reports; ``producers_forgotten`` and ``log_start_moved`` are also
        checked."""
        self.count(event.name)
        if event.name == "log_start_moved" and self.archive is not None:
            self.archive.on_event(process.name, event)
        if event.name == "producers_forgotten":
            key = TopicPartition(event.fields["topic_id"], event.fields["partition"])
            self.invariants.on_producers_forgotten(process.name, key)
        if self.loop.tracing:
            process.note("event", f"{event.name} {event.fields}")

    def on_topic(self, topic: TopicState) -> None:
        """Make a new topic known to the clients. A topic whose name was used before gets a number in histories."""
        before = sum(name.partition("~")[0] == topic.name for name in self._names.values())
        self._names[topic.topic_id] = f"{topic.name}~{before + 1}" if before else topic.name
        if not topic.name.startswith(INTERNAL_PREFIX):
            self._partitions_of(topic).extend(TopicPartition(topic.topic_id, p) for p in range(len(topic.partitions)))

    def on_topic_grown(self, topic: TopicState, first: int) -> None:
        """Make the new partitions of a topic known to the clients, from number ``first`` on."""
        self.count("topics grown")
        new = range(first, len(topic.partitions))
        self._partitions_of(topic).extend(TopicPartition(topic.topic_id, number) for number in new)

    def _partitions_of(self, topic: TopicState) -> list[TopicPartition]:
        return self.transacted if topic.name == TRANSACTED else self.partitions

    def on_topic_deleted(self, topic: TopicState) -> None:
        """Take a deleted topic from the clients, and mark its partitions as deleted in the history."""
        self.count("topics deleted")
        for key in [key for key in self.partitions if key.topic_id == topic.topic_id]:
            self.partitions.remove(key)
            self.history.deleted.add(self.partition_name(key))

    # --- for scenarios -----------------------------------------------------------------------------------

    def replica(self, name: str) -> ReplicaProcess:
        """Return the process of a replica server."""
        process = self.processes[name]
        assert isinstance(process, ReplicaProcess)
        return process

    def controller(self, name: str) -> ControllerProcess:
        """Return the process of a controller."""
        process = self.processes[name]
        assert isinstance(process, ControllerProcess)
        return process

    def can_lose(self, name: str) -> bool:
        """Return whether every configuration of the Raft group that is in force anywhere still has a majority of
        sound stores without the one of that controller."""
        stores = {other: self.controller(other).store.stored for other in self.controllers}
        sound = [other for other in self.controllers if not self.controller(other).runs_on_an_old_copy]
        left = {other: stores[other].store for other in sound if other != name}
        groups = [RaftLog(stored.entries, stored.base).members for stored in stores.values()]
        groups.append(self.invariants.members)
        known = groups[-1].find(name)
        return known is not None and all(group.wins(left) or not group.all for group in groups)

    def controllers_agree(self) -> bool:
        """Return whether all members of the Raft group have applied the same index and none knows that its store is
        an old copy."""
        cores = [self.controller(member.node).core for member in self.invariants.members.all]
        agree = len({core.state.index if core is not None else -1 for core in cores}) == 1
        return agree and not any(core is not None and core.metadata_log.raft.rolled_back for core in cores)

    def state(self, key: TopicPartition | None = None) -> PartitionState:
        """Return the newest committed state of a partition; by default that of the first one."""
        key = key or self.partitions[0]
        state = self.invariants.metadata.partition(key.topic_id, key.partition)
        assert state is not None
        return state

    def run_for(self, seconds: float) -> None:
        """Run the simulation for some virtual seconds."""
        self.loop.run_until(self.loop.now + seconds)

    def until(self, condition: Callable[[], bool], limit: float = 20.0) -> None:
        """Run until the condition holds. Raises AssertionError if it does not within ``limit`` virtual seconds."""
        end = self.loop.now + limit
        self.loop.run_until(end, condition)
        assert condition(), f"not within {limit} s (now {self.loop.now:.2f})"

    @property
    def living(self) -> list[TopicPartition]:
        """The partitions that may still get a leader."""
        return [key for key in self.partitions if self.may_be_led(key)]

    def may_be_led(self, key: TopicPartition) -> bool:
        """Return whether a partition has or may still get a leader. It may not if the last replicas that held
        everything committed have lost data and no unclean election is allowed."""
        state, config = self.state(key), self.invariants.metadata.topics[key.topic_id].config
        if is_recovering(state, config):
            return bool(state.isr) and len(state.isr + state.elr) >= copies_needed(state, config)
        members = 2 * len(state.isr) > len(state.replicas) if config.commit_rule == "quorum" else state.isr
        return bool(state.leader or members or state.elr or config.unclean_election)

    def ready(self) -> bool:
        """Return whether all topics exist and every partition is fully in sync."""
        return self.admin.done and self.in_sync()

    def in_sync(self) -> bool:
        """Return whether every partition that may be led has a leader and a full ISR, and its replicas hold the same
        log, all of it committed."""
        return all(self.invariants.in_sync(key) for key in self.living)

    # --- a whole run -------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run load and faults, heal, wait until everything has converged, and check the outcome. Raises ``Violation``
        or AssertionError."""
        self.loop.run_until(self.options.duration)
        self.faults.heal()
        healed = self.loop.now
        self.until(lambda: self.full_isr() and self.all_noticed(), self.options.patience)
        self.count("seconds to full ISR", round(self.loop.now - healed))
        self.run_for(0.5)  # clients' metadata and back-off
        self.history.healthy.append((self.loop.now, self.loop.now + 2.0))
        self.history.patience = 1.0
        self.run_for(2.0)
        for client in self.clients:
            if isinstance(client, Producer | Foreign):
                client.stopped = True
        self.until(lambda: all(c.idle for c in self.clients if isinstance(c, Producer | Foreign)), 10.0)
        self.until(self.in_sync, self.options.patience)
        self._scrub_where_written_segments_rot()
        self.until(self.no_rot, 6 * self.options.patience)  # one damaged segment of a log is found at a time
        self.until(self.in_sync, self.options.patience)
        self.until(self.all_read, 10.0)
        self.until(self.controllers_agree, self.options.patience)
        self.until(self.all_reported, self.options.patience)
        if (upgrader := self.upgrader) is not None:
            self.until(lambda: upgrader.done, self.options.patience)
        if self.options.timeline and may_be_written(self):
            self.until(lambda: is_complete(self), self.options.patience)
            check_timeline(self)
        if self.applications is not None:
            self.applications.end()
        if self.streams is not None:
            self.streams.end()
        self.judge()

    def full_isr(self) -> bool:
        """Return whether all requests of the operator are done, all replica servers are registered, and every
        partition has a leader and a full ISR. Registration counts because an ISR stays full while no controller can
        change it."""
        states = [self.state(key) for key in self.living]
        asked = self.admin.done and (self.suspender is None or self.suspender.done)
        registered = all(process.broker_epoch_known() for process in map(self.replica, self.replicas))
        return asked and registered and all(s.leader is not None and len(s.isr) == len(s.replicas) for s in states)

    def all_noticed(self) -> bool:
        """Return whether every process knows of its broken links and every client knows the leaders."""
        known = [(client.partition(key), self.state(key)) for client in self.clients for key in self.living]
        return not self.network.unnoticed and all(
            one is not None and (one.leader, one.leader_epoch) == (state.leader, state.leader_epoch)
            for one, state in known
        )

    def no_rot(self) -> bool:
        """Return whether every damaged segment of a log in use was found and replaced."""
        for name in self.faults.rotten:
            for path in self.replica(name).disk.rotten:
                topic_id, _, number = path.split("/")[-2].rpartition("-")
                if path.endswith(".log") and (topic_id, int(number)) in self.living:
                    return False
        return True

    def _scrub_where_written_segments_rot(self) -> None:
        """Have damage in the last, open segments found. Reads of them come from memory, so an operator asks the
        server for a scrub round. The scrubber skips what the flush policy leaves unsynced; such a server is
        restarted."""
        for name in self.faults.rotten:
            disk = self.replica(name).disk
            logs = [path for path in disk.files() if path.endswith(".log")]
            written = set({path.rpartition("/")[0]: path for path in logs}.values()) & set(disk.rotten)
            if not written:
                continue
            self.count("rounds of scrubbers asked for")
            operator = Client(self, "operator", stream(self.options.seed, "operator"))
            operator.call(name, ScrubServer(name, begin=True), 2.0, lambda answer: None)
            if any(log.synced < log.end for log in self._logs_of(name, written)):
                self.replica(name).stop(power=False)
                self.replica(name).start()
                self.run_for(0.1)
                self.until(self.full_isr, self.options.patience)

    def _logs_of(self, name: str, paths: set[str]) -> list[Log]:
        """Return the open logs of a server that have one of these segments."""
        partitions = self.replica(name).core.partitions.values()
        return [one.log for one in partitions if any(segment.path in paths for segment in one.log.segments)]

    def all_read(self) -> bool:
        """Return whether every consumer has read all committed records of every partition that may be led."""
        return all(
            consumer.positions.get(key, (0, -1))[0] == self.invariants.committed_end(key)
            for consumer in self.clients
            if isinstance(consumer, Consumer)
            for key in self.living
        )

    def all_reported(self) -> bool:
        """Return whether the controllers have confirmed all loss reports."""
        return not any(
            self.replica(node).core.partitions[key].log.pending_losses.ranges
            for key in self.living
            for node in self.state(key).replicas
        )

    def judge(self) -> None:
        """Compare all logs with the checks' own record of them, and check the history of the clients. Raises
        ``Violation`` with the first anomalies."""
        self.invariants.compare_all()
        living = self.living
        for key in self.partitions:
            name = self.partition_name(key)
            if key not in living:
                self.count("partitions that nobody may lead")
                self.history.deleted.add(name)
                continue
            state = self.state(key)
            assert state.leader is not None
            self.history.retained_from[name] = self.replica(state.leader).core.partitions[key].log.start
            self.history.final[name] = self.invariants.rows(state.leader, key)
            for node in state.replicas:
                self.history.dumps.setdefault(node, {})[name] = self.invariants.rows(node, key)
        anomalies = check(self.history)
        if anomalies:
            raise Violation("; ".join(f"{a.kind}: {a.text}" for a in anomalies[:5]))


def recode(frame: Frame) -> Frame:
    """Return a message as the receiver decodes it: encoded and decoded by the real codec."""
    body = frame.body
    if frame.kind == "answer" and isinstance(body, TidelogError):
        data = encode_error(frame.id or 0, body)
    else:
        ids = {"request": {"id": frame.id}, "answer": {"re": frame.id}, "post": {}}[frame.kind]
        head, payload = encode(body, **ids)  # type: ignore[arg-type]
        data = bytes(head) + (b"".join(payload) if isinstance(payload, list) else bytes(payload))
    limits = SERVICE if frame.kind == "request" else ANSWERS
    decoded = decode(data, answers=lambda re: type(body), limits=limits)  # type: ignore[arg-type,return-value]
    received = decoded.message if decoded.error is None else decoded.error
    assert received is not None
    return Frame(frame.kind, frame.id, received)
