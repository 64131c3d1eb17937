"""Limits of slow replica servers: when there is one, how it is shared, what clients are told, and when it ends."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import trio
from structlog.testing import capture_logs
from support.producers import Bench as ProducerBench
from tidelog.client.batch_sender import BatchSender
from tidelog.net.link import PROTOCOL_VERSION
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.sansio.effects import Event, Send
from tidelog.types import Acks, TopicConfig
from tidelog.wire.messages import Hello, Produce, ProduceAck, Produced
from tidelog_gateway.limits.server_limits import INTERVAL_S, PATIENCE, ServerLimit, fair_share
from tidelog_gateway.settings import RouterSettings, SubscriptionSettings
from tidelog_gateway.shell import GatewayShell

from unit.gateway.produce.test_router import Bench as RouterBench
from unit.gateway.produce.test_router import batch, produce

STEP_S = 0.01
MIB = 1 << 20
DATA = batch(producer_id=0, size=32_000)
SETTINGS = RouterSettings(throttle_target_s=1.0, throttle_least_bytes_s=1 << 16)


@dataclass
class Client:
    """Has ``window`` batches in flight, or sends ``bytes_s``; pauses when it is told, if it ``obeys``."""

    source: int
    principal: str
    window: int = 64
    bytes_s: float = math.inf
    obeys: bool = True
    in_flight: dict[int, float] = field(default_factory=dict)
    acked: int = 0
    throttles: int = 0
    paused_until: float = 0.0
    due: float = 0.0
    slowest_s: float = 0.0
    """Longest wait for an ack since ``Model.watch``."""


class Model:
    """A gateway's router, clients, and the disk of one server: a queue that takes ``capacity`` bytes a second. Whole
    batches are acked, at the end of each step."""

    def __init__(self, *clients: Client, capacity: float, settings: RouterSettings = SETTINGS) -> None:
        bench = RouterBench(settings=settings, config=TopicConfig(validate_batches=False))
        self.router, self.now = bench.router, bench.now
        self.clients: dict[int, Client] = {}
        for client in clients:
            self.open(client)
        self.capacity = capacity
        self.queue: deque[tuple[int, int]] = deque()
        self.done = 0.0
        self.ids = 0
        self.events: list[Event] = []

    def open(self, client: Client) -> None:
        self.clients[client.source] = client
        self.router.on_link_opened(client.source, client.principal, named=client.principal != "anonymous")

    def close(self, client: Client) -> None:
        del self.clients[client.source]
        self.router.on_link_closed(client.source)

    @property
    def limit(self) -> float | None:
        return self.router.limits["r1"].bytes_s

    def watch(self) -> None:
        for client in self.clients.values():
            client.acked = client.throttles = 0
            client.slowest_s = 0.0

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.step()

    def step(self) -> None:
        self.now += STEP_S
        for client in self.clients.values():
            self.send(client)
        self.work()
        if (deadline := self.router.deadline()) is not None and deadline <= self.now:
            self.router.on_tick(self.now)
        self.flush()

    def send(self, client: Client) -> None:
        client.due += client.bytes_s * STEP_S
        while len(client.in_flight) < client.window and client.due >= len(DATA):
            if client.obeys and self.now < client.paused_until:
                return
            client.due -= len(DATA)
            self.ids += 1
            client.in_flight[self.ids] = self.now
            self.router.on_produce(client.source, produce(DATA, first_id=self.ids, timeout_ms=60_000), self.now)
        self.flush()

    def work(self) -> None:
        self.done += self.capacity * STEP_S
        acks = []
        while self.queue and self.done >= self.queue[0][1]:
            id, size = self.queue.popleft()
            self.done -= size
            acks.append(ProduceAck(id, 0, 1, "all/os"))
        if not self.queue:
            self.done = 0.0
        if acks:
            self.router.on_produced("r1", Produced(tuple(acks)), self.now)

    def flush(self) -> None:
        for effect in self.router.flush(self.now):
            if isinstance(effect, Send):
                assert isinstance(effect.message, Produce)
                self.queue += [(part.id, part.size) for part in effect.message.parts]
            elif isinstance(effect, Event):
                self.events.append(effect)
            else:
                assert isinstance(effect.message, Produced)
                for ack in effect.message.acks:
                    self.on_ack(self.clients[effect.source], ack)

    def on_ack(self, client: Client, ack: ProduceAck) -> None:
        assert ack.error is None
        client.slowest_s = max(client.slowest_s, self.now - client.in_flight.pop(ack.id))
        client.acked += len(DATA)
        client.throttles += ack.throttle_ms > 0
        client.paused_until = max(client.paused_until, self.now + ack.throttle_ms / 1000)


class FlushingModel(Model):
    """The server acks all that it has done every 100 ms."""

    saved = steps = 0

    def work(self) -> None:
        self.steps += 1
        if self.steps % 10:
            self.saved += self.capacity * STEP_S
        else:
            self.done, self.saved = self.done + self.saved, 0
            super().work()


def greedy(source: int, principal: str, *, obeys: bool = True) -> Client:
    return Client(source, principal, window=400, obeys=obeys)


def test_a_server_that_keeps_up_has_no_limit_however_much_it_is_sent() -> None:
    model = Model(greedy(1, "alice"), greedy(2, "bob"), capacity=40 * MIB)
    for _ in range(30):
        model.run(0.3)
        assert model.limit is None
    assert model.router.counts.holds == model.router.counts.throttles == {}


@pytest.mark.parametrize("obeys", [True, False])
def test_the_queue_of_a_slow_server_shrinks_and_most_of_its_capacity_is_used(obeys: bool) -> None:
    model = Model(greedy(1, "alice", obeys=obeys), greedy(2, "bob", obeys=obeys), capacity=40 * MIB)
    model.run(3)
    model.capacity = 2 * MIB
    model.run(4)
    assert model.limit is not None and model.limit < 2 * MIB
    model.run(10)
    model.watch()
    delays = []
    for _ in range(60):
        model.run(1)
        delays.append(sum(size for _, size in model.queue) / model.capacity)
    assert sorted(delays)[len(delays) // 2] < 0.5 and max(delays) < 1.5
    assert sum(client.acked for client in model.clients.values()) / 60 > 0.75 * model.capacity


def test_the_limit_ends_when_the_server_is_quick_again() -> None:
    alice, bob = greedy(1, "alice"), greedy(2, "bob")
    model = Model(alice, bob, capacity=2 * MIB)
    model.run(10)
    assert model.limit is not None and alice.throttles and bob.throttles
    model.capacity = 40 * MIB
    model.run(PATIENCE + 15)
    assert model.limit is None
    model.watch()
    model.run(2)
    assert alice.throttles == bob.throttles == 0
    assert alice.acked + bob.acked > 0.9 * 2 * model.capacity


def test_a_limit_rises_and_ends_also_when_nothing_is_sent() -> None:
    model = Model(alice := greedy(1, "alice"), capacity=MIB)
    model.run(6)
    limit = model.limit
    assert limit is not None
    alice.window = 0
    model.run(16)
    assert model.limit is not None and model.limit > limit
    model.run(PATIENCE)
    assert model.limit is None and model.router.deadline() is None


def test_a_principal_below_its_fair_share_does_not_wait_for_a_greedy_one() -> None:
    bob = Client(2, "bob", bytes_s=0.1 * MIB)
    model = Model(greedy(1, "alice", obeys=False), bob, capacity=2 * MIB)
    model.run(10)
    model.watch()
    model.run(30)
    assert model.router.counts.holds["alice"] and "bob" not in model.router.counts.holds
    assert bob.throttles == 0
    assert bob.acked / 30 == pytest.approx(0.1 * MIB, rel=0.1)


def test_principals_share_equally_however_many_connections_they_have() -> None:
    alice = [greedy(source, "alice") for source in (1, 2, 3, 4)]
    bob = greedy(5, "bob", obeys=False)
    model = Model(*alice, bob, capacity=2 * MIB)
    model.run(10)
    model.watch()
    model.run(60)
    of_alice = sum(client.acked for client in alice)
    assert 0.7 < of_alice / bob.acked < 1.4


def test_connections_without_a_name_share_as_if_each_had_one() -> None:
    clients = [greedy(1, "anonymous"), greedy(2, "anonymous"), Client(3, "anonymous", bytes_s=0.1 * MIB)]
    model = Model(*clients, capacity=2 * MIB)
    model.run(10)
    model.watch()
    model.run(30)
    assert clients[2].throttles == 0 < clients[0].throttles
    assert 0.7 < clients[0].acked / clients[1].acked < 1.4


def test_partitions_of_one_principal_try_ten_times_a_second_and_take_turns() -> None:
    clients = [Client(source, "alice", window=1, obeys=False) for source in range(1, 101)]
    model = Model(*clients, capacity=2 * MIB)
    model.run(10)
    model.watch()
    before = model.router.counts.holds["alice"]
    model.run(30)
    assert model.limit is not None
    looks = model.router.counts.holds["alice"] - before
    assert looks < 10 * 30 * len(clients)
    batches = [client.acked // len(DATA) for client in clients]
    assert min(batches) > 0.7 * max(batches)


def test_connections_without_a_name_have_together_as_much_as_a_principal() -> None:
    bob = Client(1000, "bob", window=400, bytes_s=MIB)
    strangers = [Client(source, "anonymous", window=40, obeys=False) for source in range(1, 21)]
    model = Model(bob, *strangers, capacity=2 * MIB)
    model.run(10)
    model.watch()
    model.run(30)
    assert 0.7 < bob.acked / sum(client.acked for client in strangers) < 1.4


def test_a_connection_without_a_name_that_comes_again_and_again_takes_nothing_of_a_principal() -> None:
    bob, stranger = Client(1, "bob", window=400, bytes_s=MIB), Client(2, "anonymous", window=100, obeys=False)
    model = Model(bob, stranger, capacity=2 * MIB)
    model.run(5)
    for turn in range(400):
        if turn == 100:
            model.watch()
        model.run(0.1)
        model.close(stranger)
        stranger = Client(stranger.source + 1, "anonymous", window=100, obeys=False)
        model.open(stranger)
    assert bob.acked / 30 > 0.4 * model.capacity


def test_a_client_that_obeys_waits_at_home_and_not_at_the_gateway() -> None:
    alice, bob = Client(1, "alice", window=128), Client(2, "bob", window=128, obeys=False)
    model = Model(alice, bob, capacity=MIB)
    model.run(10)
    assert model.limit is not None
    model.run(30)
    holds = model.router.counts.holds
    assert holds.get("alice", 0) < holds["bob"]


def test_one_pause_is_no_slow_server() -> None:
    model = Model(greedy(1, "alice"), capacity=40 * MIB)
    model.run(3.3)
    model.capacity = 0
    model.run(2.5)
    model.capacity = 40 * MIB
    for _ in range(50):
        model.run(0.1)
        assert model.limit is None


def test_a_pause_that_begins_with_an_interval_is_no_slow_server() -> None:
    for phase_s in (0.04, 0.28, 0.52, 0.76):
        model = FlushingModel(greedy(1, "alice"), capacity=20 * MIB)
        model.run(1 + phase_s)
        model.capacity = 0
        model.run(2)
        model.capacity = 20 * MIB
        for _ in range(30):
            model.run(0.1)
            assert model.limit is None, phase_s


def test_an_interval_counts_from_its_first_ack() -> None:
    limit = ServerLimit(1.0, 1)
    limit.on_empty(0.0)
    limit.on_ack(100, 0.1, 0.1)
    assert limit.is_due(1.1)
    limit.end_interval(100, 1.1)
    assert not limit.is_due(3.0)
    limit.on_ack(100, 1.9, 3.0)
    assert not limit.is_due(3.0)
    limit.on_ack(100, 0.3, 3.5)
    assert limit.is_due(4.0)
    limit.end_interval(100, 4.0)
    assert limit.bytes_s is None


def test_an_interval_in_which_a_batch_finds_no_queue_is_not_slow() -> None:
    limit = ServerLimit(1.0, 1)
    limit.on_empty(0.0)
    limit.on_ack(100, 1.5, 1.5)
    limit.on_ack(100, 2.9, 3.0)
    assert limit.is_due(3.0)
    limit.end_interval(100, 3.0)
    assert limit.bytes_s is None


def test_a_disk_that_is_slow_with_one_batch_at_a_time_is_not_limited() -> None:
    model = Model(Client(1, "alice", window=1), capacity=len(DATA) / 1.5)
    for _ in range(20):
        model.run(1)
        assert model.limit is None


def test_the_setting_turns_it_off() -> None:
    off = RouterSettings(throttle_target_s=0.0)
    model = Model(greedy(1, "alice"), capacity=MIB, settings=off)
    for _ in range(10):
        model.run(1)
        assert model.limit is None


def test_a_limit_is_never_below_the_least_rate() -> None:
    settings = RouterSettings(throttle_least_bytes_s=MIB)
    model = Model(greedy(1, "alice"), capacity=MIB / 10, settings=settings)
    model.run(20)
    assert model.limit is not None and model.limit >= MIB


def test_a_server_that_comes_back_has_no_limit() -> None:
    model = Model(greedy(1, "alice"), capacity=MIB)
    model.run(5)
    assert model.limit is not None
    model.router.on_peer_down("r1", model.now)
    assert model.limit is None


def test_the_log_has_one_line_when_a_limit_begins_and_one_when_it_ends() -> None:
    model = Model(greedy(1, "alice"), greedy(2, "bob"), capacity=2 * MIB)
    model.run(10)
    assert [event.name for event in model.events] == ["server_limited"]
    assert model.events[0].fields["server"] == "r1" and model.events[0].fields["bytes_per_s"] < 2 * MIB
    model.capacity = 40 * MIB
    model.run(PATIENCE + 15)
    assert [event.name for event in model.events] == ["server_limited", "server_limit_ended"]
    ended = model.events[1].fields
    assert ended["server"] == "r1" and PATIENCE < ended["seconds"] < PATIENCE + 25
    assert ended["reason"] == "no producer has to wait for it"
    model.run(2)
    assert len(model.events) == 2


def test_the_log_says_that_a_limit_ended_with_the_connection() -> None:
    model = Model(greedy(1, "alice"), capacity=MIB)
    model.run(5)
    assert [event.name for event in model.events] == ["server_limited"]
    model.router.on_peer_down("r1", model.now)
    model.router.on_peer_down("r1", model.now)
    assert model.router.pending()
    events = [effect for effect in model.router.flush(model.now) if isinstance(effect, Event)]
    assert [event.name for event in events] == ["server_limit_ended"]
    assert events[0].fields["reason"] == "the connection to it broke"


def test_an_ack_that_waits_for_nothing_does_not_measure_the_queue() -> None:
    limit = ServerLimit(1.0, 1)
    limit.on_empty(0.0)
    limit.end_interval(0, 1.0)
    limit.on_ack(100, math.inf, 1.0)
    assert limit.is_due(1.0 + INTERVAL_S)
    limit.end_interval(0, 1.0 + INTERVAL_S)
    assert limit.bytes_s is None
    limit.on_ack(100, 1.5, 2.0)
    limit.on_ack(100, math.inf, 2.0)
    limit.end_interval(0, 1.0 + 2 * INTERVAL_S)
    assert limit.bytes_s == pytest.approx(100)


def test_an_interval_without_acks_changes_nothing() -> None:
    limit = ServerLimit(1.0, 1)
    limit.on_empty(0.0)
    limit.end_interval(0, 1.0)
    limit.on_ack(100, 1.5, 2.0)
    limit.end_interval(0, 2.0)
    before = limit.bytes_s
    limit.end_interval(0, 5.0)
    assert limit.bytes_s == before


@pytest.mark.parametrize(
    ("wanted", "share"),
    [
        ([], 12),
        ([5], 12),
        ([math.inf], 12),
        ([math.inf] * 3, 4),
        ([2, math.inf], 10),
        ([2, 3, 4], 7),
        ([1, 6, 9], 5.5),
    ],
)
def test_tenants_that_want_less_leave_the_rest_to_the_others(wanted: list[float], share: float) -> None:
    assert fair_share(12, wanted) == share


def test_a_producer_pauses_the_partition_that_an_ack_throttles_and_counts_it() -> None:
    bench = ProducerBench(partitions=2)
    bench.batch(b"a")
    bench.send()
    bench.core.on_produced([ProduceAck(bench.sent[0][0], 0, 3, "all/os", throttle_ms=2500)], bench.now)
    bench.batch(b"b")
    bench.batch(b"c", partition=1)
    assert bench.send() == [[b"c"]], "the other partition may have another leader"
    assert bench.core.deadline() == pytest.approx(bench.now + 2.5)
    bench.now += 2.4
    assert bench.send() == []
    bench.now += 0.1
    assert bench.send() == [[b"b"]]
    assert (bench.core.throttled_acks, bench.core.throttled_s) == (1, pytest.approx(2.5))


def test_pauses_that_overlap_count_once_and_none_is_endless() -> None:
    bench = ProducerBench()
    for value in (b"a", b"b"):
        bench.batch(value)
    bench.send()
    first, second = (sent[0] for sent in bench.sent)
    bench.core.on_produced([ProduceAck(first, 0, 3, "all/os", throttle_ms=2000)], bench.now)
    bench.core.on_produced([ProduceAck(second, 1, 3, "all/os", throttle_ms=10**9)], bench.now)
    assert (bench.core.throttled_acks, bench.core.throttled_s) == (2, pytest.approx(60))


class Gateway:
    """Connection, loop and link of a ``BatchSender``: each batch is acked at once, and asks for a pause of two
    seconds."""

    def __init__(self) -> None:
        self.loop = self
        self.time = 100.0
        self.slept: list[float] = []
        self.sender: BatchSender

    def now(self) -> float:
        return self.time

    def event(self) -> trio.Event:
        return trio.Event()

    async def wait(self, event: trio.Event, _until: float) -> None:
        await event.wait()

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds

    def add_producer(self, _sender: object) -> tuple[int, Callable[[], int]]:
        return 1, lambda: 7

    async def wait_up(self, _deadline: float) -> Gateway:
        return self

    async def send_batches(self, _link: object, message: Produce, _deadline: float) -> None:
        self.sender.on_acks([ProduceAck(message.parts[0].id, 0, 1, "all/os", throttle_ms=2000)])


async def test_a_sender_pauses_before_its_next_batch_for_the_partition() -> None:
    gateway = Gateway()
    gateway.sender = BatchSender(gateway, Acks.ALL, "")  # type: ignore[arg-type]
    await gateway.sender.send("t", 0, DATA, 30.0)
    await gateway.sender.send("t", 1, DATA, 30.0)
    assert gateway.slept == [], "the other partition may have another leader"
    await gateway.sender.send("t", 0, DATA, 30.0)
    assert gateway.slept == [2.0]
    await gateway.sender.send("t", 0, DATA, 5.0)
    assert gateway.slept == [2.0], "there is no time for a pause"


async def test_the_gateway_writes_a_line_for_an_event_of_its_router(monkeypatch: pytest.MonkeyPatch) -> None:
    hello = Hello(PROTOCOL_VERSION, "gateway", "g1")
    async with trio.open_nursery() as nursery:
        shell = GatewayShell(
            WebSocketTransport(),
            hello,
            ["ws://127.0.0.1:1"],
            SETTINGS,
            SubscriptionSettings(),
            trio.current_time,
            nursery,
        )
        event = Event("server_limited", {"server": "r1", "bytes_per_s": 7})
        monkeypatch.setattr(shell.router, "flush", lambda now: [event])
        with capture_logs() as lines:
            shell.produce(Produce(()))
    assert lines == [{"event": "server_limited", "log_level": "warning", "server": "r1", "bytes_per_s": 7}]
