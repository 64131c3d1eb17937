"""Replica servers on a toy network with a toy controller: messages arrive at once and in order unless a test says
otherwise."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from tidelog.batch.format import NewRecord, decode_batch, encode_batch, split
from tidelog.errors import TidelogError, TimedOut, Unreachable, from_info
from tidelog.sansio.effects import CONTROLLER, Answer, Call, Event, Post, Send
from tidelog.testing.hardware.disk import SimDisk
from tidelog.types import Acks, TopicConfig, TopicPartition
from tidelog.wire.messages import (
    Message,
    MetadataUpdate,
    Produce,
    Produced,
    ProducePart,
    Read,
)
from tidelog_replica.config import ReplicaSettings
from tidelog_replica.effects import Stop
from tidelog_replica.jobs import Job, run_job
from tidelog_replica.node import ReplicaNode, StartFlush, StartJob
from tidelog_replica.partition.partition import Partition

from support.fake_controller import KEY, ToyController

CLIENT = 900
"""The link number of the test's own requests."""


class Net(ToyController):
    """Nodes r1..rn, their disks, and a controller that can be reached unless ``controller_up`` is False."""

    def __init__(
        self,
        nodes: int = 3,
        config: TopicConfig | None = None,
        settings: ReplicaSettings | None = None,
        boot: str = "",
        level: int = 1,
    ):
        names = [f"r{i + 1}" for i in range(nodes)]
        super().__init__(names, config or TopicConfig(min_insync_replicas=min(2, nodes)))
        self.level = level
        self.now = 100.0
        self.settings = settings or ReplicaSettings(reserve_bytes=0)
        self.disks = {name: SimDisk() for name in self.names}
        self.nodes: dict[str, ReplicaNode] = {}
        self.cut: set[tuple[str, str]] = set()
        """Pairs (from, to): calls between them fail."""
        self.silent: set[str] = set()
        """Nodes that answer no call: it times out at once."""
        self.slow_flush: dict[str, list[StartFlush]] = {}
        """Flushes that are held back, for each node that is a key."""
        self.slow_job: dict[str, list[StartJob]] = {}
        """Jobs that are held back, for each node that is a key."""
        self.hold: Callable[[str, Call], bool] = lambda name, call: False
        """Returns whether a call is kept in ``held`` instead of being delivered."""
        self.held: list[tuple[str, Call]] = []
        self.drop_notify = False
        self.controller_up = True
        self.boot = boot
        """The id of the boot of the operating system, of every machine."""
        self.wall_ms = 0
        """The wall clock of every machine in ms."""
        self.stopped: list[str] = []
        """Nodes that asked for the end of their process; the net lets them run on."""
        self.events: list[tuple[str, Event]] = []
        self.sent: list[tuple[str, Any]] = []
        self.acks: dict[int, Any] = {}
        self.answers: dict[int, Any] = {}
        self.jobs: list[tuple[str, Job]] = []
        """All jobs that were run, by node."""
        self._queue: deque[Callable[[], None]] = deque()
        self._waiting: dict[tuple[int, int], str] = {}
        """The node that waits for the answer to a call, by link number and id."""
        self._next_id = 0

    # --- life --------------------------------------------------------------------------------------------

    def start(self, *names: str, directory: str = "/data") -> None:
        """Start nodes, by default all, and let them register."""
        for name in names or self.names:
            rng = random.Random(f"{name} {self.index}")
            node = ReplicaNode(
                name,
                f"sim://{name}",
                self.disks[name],
                directory,
                self.settings,
                rng,
                "c",
                boot=self.boot,
                wall_ms=lambda: self.wall_ms,
            )
            self.nodes[name] = node
            self._take(name, node.start(self.now))
        self.run()

    def stop(self, name: str, *, power: bool = False) -> None:
        """Kill a node: its links break; ``power``: unsynced data may be lost."""
        del self.nodes[name]
        self.watchers = [w for w in self.watchers if w != name]
        if power:
            self.disks[name].crash(random.Random(0))
        for other, node in self.nodes.items():
            self._take(other, node.on_link_closed(self.names.index(name), self.now))
            self._take(other, node.on_peer_down(name, self.now))
        self.run()

    def close(self, name: str) -> bool:
        """Stop a node in order, and return whether its next incarnation may rely on all of its data."""
        clean = self.nodes[name].close()
        self.stop(name)
        return clean

    def run(self, limit: int = 20_000) -> None:
        """Deliver all messages and perform all effects until none is left. Raises AssertionError after ``limit``
        steps."""
        while self._queue:
            limit -= 1
            assert limit, "the network never comes to rest"
            self._queue.popleft()()

    def advance(self, seconds: float) -> None:
        """Let time pass, tick by tick."""
        until = self.now + seconds
        while True:
            due = [(node.deadline(), name) for name, node in self.nodes.items()]
            ticks = sorted((when, name) for when, name in due if when is not None and when <= until)
            if not ticks:
                break
            when, name = ticks[0]
            self.now = max(self.now, when)
            effects = self.nodes[name].on_tick(self.now)
            left = self.nodes[name].deadline()
            assert left is None or left > self.now, f"{name} spins"
            self._take(name, effects)
            self.run()
        self.now = until

    def reconnect_controller(self) -> None:
        """Let every server find an active controller, as after an election among controllers."""
        for name, node in self.nodes.items():
            self._take(name, node.on_controller_up(self.now))
        self.run()

    # --- effects -----------------------------------------------------------------------------------------

    def _take(self, name: str, effects: Iterable[Any]) -> None:
        for effect in effects:
            self._queue.append(lambda e=effect: self._perform(name, e))  # type: ignore[misc]

    def _perform(self, name: str, effect: Any) -> None:
        if name not in self.nodes:
            return
        match effect:
            case Call():
                self.sent.append((name, effect.message))
                if self.hold(name, effect):
                    self.held.append((name, effect))
                else:
                    self.deliver(name, effect)
            case Send(to, message):
                self.sent.append((name, message))
                if to in self.nodes and (name, to) not in self.cut and to not in self.silent:
                    self._take(to, self.nodes[to].on_request(self.names.index(name), None, message, self.now))
            case Answer(source, id, message):
                self._reply(name, source, id, message)
            case Post(source, message):
                self._post(source, message)
            case StartFlush():
                if name in self.slow_flush:
                    self.slow_flush[name].append(effect)
                else:
                    self.flush(name, effect)
            case StartJob():
                if name in self.slow_job:
                    self.slow_job[name].append(effect)
                else:
                    self.work(name, effect)
            case Event():
                self.events.append((name, effect))
            case Stop():
                self.stopped.append(name)

    def flush(self, name: str, effect: StartFlush) -> None:
        """Perform a flush now and report the result to the node."""
        error = None
        try:
            effect.flush.run()
        except OSError as failed:
            error = failed
        self._take(name, self.nodes[name].on_flushed(effect.key, effect.flush, error, self.now))

    def work(self, name: str, effect: StartJob) -> None:
        """Run a job now and report the result to the node."""
        self.jobs.append((name, effect.job))
        result = run_job(effect.job)
        self._take(name, self.nodes[name].on_job(effect.key, effect.job, result, self.now))

    def deliver(self, name: str, call: Call) -> None:
        """Deliver a call to the controller or to a node; calls to unreachable nodes fail."""
        if call.to == CONTROLLER:
            answer = self.control(name, call.message) if self.controller_up else Unreachable("no controller")
            self._answer(name, call.token, answer)
        elif call.to not in self.nodes or (name, call.to) in self.cut:
            self._answer(name, call.token, Unreachable("cut"))
        elif call.to in self.silent:
            self._answer(name, call.token, TimedOut("silent"))
        else:
            source = self.names.index(name)
            self._waiting[source, call.token] = name
            self._take(call.to, self.nodes[call.to].on_request(source, call.token, call.message, self.now))

    def _reply(self, name: str, source: int, id: int, message: Any) -> None:
        if isinstance(message, TidelogError):
            message = from_info(message.to_info())
        if source >= CLIENT:
            assert id not in self.answers, "answered twice"
            self.answers[id] = message
        elif (caller := self._waiting.pop((source, id), None)) is not None:
            self._answer(caller, id, message)

    def _answer(self, name: str, token: int, answer: Any) -> None:
        def arrive() -> None:
            if name in self.nodes:
                self._take(name, self.nodes[name].on_answer(token, answer, self.now))

        self._queue.append(arrive)

    def _post(self, source: int, message: Message) -> None:
        if isinstance(message, Produced):
            for ack in message.acks:
                assert ack.id not in self.acks, "acked twice"
                self.acks[ack.id] = ack
        elif not self.drop_notify and (name := self.names[source]) in self.nodes:
            self._take(name, self.nodes[name].on_request(0, None, message, self.now))

    def _tell(self, name: str, update: MetadataUpdate) -> None:
        def arrive() -> None:
            if name in self.nodes:
                self._take(name, self.nodes[name].on_metadata(update, self.now))

        self._queue.append(arrive)

    # --- clients -----------------------------------------------------------------------------------------

    def send(self, name: str, *values: bytes, acks: int = Acks.ALL, run: bool = True, **fields: Any) -> int:
        """Produce one batch of these values, deliver everything that follows, and return its id."""
        batch_fields = ("producer_id", "producer_epoch", "base_sequence", "transactional")
        batch = encode_batch(
            [NewRecord(v, timestamp_ms=1000) for v in values],
            **{k: fields.pop(k) for k in batch_fields if k in fields},
        )
        return self.send_batch(name, batch, acks=acks, run=run, **fields)

    def send_batch(self, name: str, batch: bytes, *, acks: int = Acks.ALL, run: bool = True, **fields: Any) -> int:
        """Produce a batch with these bytes, and return its id."""
        self._next_id += 1
        values = {"topic_id": KEY.topic_id, "partition": 0, "timeout_ms": 0, **fields}
        part = ProducePart(self._next_id, acks=acks, size=len(batch), **values)
        self._take(name, self.nodes[name].on_request(CLIENT, None, Produce((part,), batch), self.now))
        if run:
            self.run()
        return part.id

    def ask(self, name: str, message: Message, source: int = CLIENT) -> int:
        """Send a request to a node, deliver everything that follows, and return its id."""
        self._next_id += 1
        self._take(name, self.nodes[name].on_request(source, self._next_id, message, self.now))
        self.run()
        return self._next_id

    def read(self, name: str, offset: int, **fields: Any) -> int:
        """Send a read, and return its id."""
        return self.ask(name, Read(KEY.topic_id, 0, offset, **fields))

    # --- what is there -----------------------------------------------------------------------------------

    def partition(self, name: str, partition: int = 0) -> Partition:
        """Return a partition of the topic on a node."""
        return self.nodes[name].partitions[TopicPartition(KEY.topic_id, partition)]

    def values(self, name: str, partition: int = 0) -> list[bytes | None]:
        """Return all record values in a node's log."""
        log = self.partition(name, partition).log
        values: list[bytes | None] = []
        offset = log.start
        while offset < log.end:
            for buffer in log.read(offset, 1 << 20):
                for header, batch in split(buffer):
                    values += [record.value for record in decode_batch(batch)]
                    offset = header.end_offset
        return values

    def messages(self, kind: type[Message], name: str | None = None) -> list[Any]:
        """Return the sent calls and one-way messages of a kind; ``name``: only those of this node."""
        return [m for sender, m in self.sent if isinstance(m, kind) and name in (None, sender)]

    def happened(self, event: str) -> list[tuple[str, Event]]:
        """Return the events of a name, with their nodes."""
        return [(name, e) for name, e in self.events if e.name == event]


def code(thing: object) -> str:
    """Return the error code of an ack or answer; "" without an error."""
    if isinstance(thing, TidelogError):
        return thing.code
    error = getattr(thing, "error", None)
    return "" if error is None else error.code


def outcome(ack: Any) -> tuple[str, bool]:
    """Return an ack's error code, and whether its outcome is unknown."""
    return code(ack), ack.error is not None and ack.error.unknown_outcome


def cluster(nodes: int = 3, *, partitions: int = 1, **options: Any) -> Net:
    """Return a running cluster with its topic, led by r1."""
    net = Net(nodes, **options)
    net.start()
    net.create(partitions)
    return net
