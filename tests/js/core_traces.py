"""Traces of the Python client's cores under random inputs: each event with the effects that it has. The JavaScript
cores must have identical ones. ``now`` moves in eighths of a second, which both languages represent exactly."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tidelog.batch.format import NewRecord, encode_batch, encode_control, read_header, stamp_prefix
from tidelog.client.core.backward_consumer import BackwardCore, WindowRead
from tidelog.client.core.batch import Batch, record_size
from tidelog.client.core.consumer import ConsumerCore, Effect, Fetched, Grant, Open, StopSubscription
from tidelog.client.core.gateway_addresses import GatewayAddresses
from tidelog.client.core.produce_window import ProduceWindow
from tidelog.client.core.producer import ProducerCore
from tidelog.client.options import ProducerOptions
from tidelog.errors import TidelogError, TimedOut, refuse
from tidelog.types import Position
from tidelog.wire.codec import to_map
from tidelog.wire.messages import Delivery, ProduceAck

PRODUCERS = 60
CONSUMERS = 60
BACKWARDS = 60
STEPS = 120
PARTITIONS = 2
PRODUCER_ERRORS: tuple[tuple[str, bool, dict[str, str]], ...] = (
    ("NOT_LEADER", False, {}),
    ("NOT_ENOUGH_REPLICAS", True, {}),
    ("REQUEST_TIMED_OUT", True, {}),
    ("OUT_OF_ORDER_SEQUENCE", False, {}),
    ("OUT_OF_ORDER_SEQUENCE", True, {}),
    ("OUT_OF_ORDER_SEQUENCE", False, {"lossy": "1"}),
    ("OUT_OF_ORDER_SEQUENCE", True, {"lossy": "1"}),
    ("SEQUENCE_CONFLICT", False, {}),
    ("UNVERIFIED_SEQUENCE", True, {}),
    ("DUPLICATE_SEQUENCE", False, {}),
    ("QUOTA_EXCEEDED", False, {"pause_ms": "1500"}),
    ("CORRUPT_BATCH", False, {}),
    ("UNEXPECTED_OFFSET", False, {"end_offset": "9"}),
    ("FENCED_PRODUCER", False, {}),
    ("INVALID_TICKET", False, {}),
    ("INVALID_TICKET", False, {}),
    ("UNKNOWN_TICKET_KEY", False, {}),
)
READER_ERRORS = ("NOT_LEADER", "OFFSET_OUT_OF_RANGE", "LOG_TRUNCATED", "QUOTA_EXCEEDED")


def backward_traces() -> list[dict[str, Any]]:
    return [_Backward(random.Random(seed)).run() for seed in range(BACKWARDS)]


def producer_traces() -> list[dict[str, Any]]:
    return [_Producer(random.Random(seed)).run() for seed in range(PRODUCERS)]


def consumer_traces() -> list[dict[str, Any]]:
    return [_Consumer(random.Random(seed)).run() for seed in range(CONSUMERS)]


ADDRESSES = 60
GATEWAYS = (
    *("ws://a:9292", "ws://A:9292/", "ws://b", "ws://b:80/", "wss://b:443", "wss://b/x", "WSS://c", "ws://[::1]:1"),
    *("ws://127.0.0.1:9292", "ws://127.0.0.1:9293", "wss://localhost:9292", "ws://10.0.0.7:1", "wss://d.example"),
)
"""Addresses that a user may give."""
NO_GATEWAYS = ("", "http://b", "ws://", "ws://u:p@b", "ws://b?q", "ws://0.0.0.0:1", "wss://[::]", "ws://" + 251 * "b")


def address_traces() -> list[dict[str, Any]]:
    """Random lives of the addresses of a client; what is found is put into the opposite order."""
    lives = []
    for seed in range(ADDRESSES):
        rng = random.Random(seed)
        given = rng.sample(GATEWAYS, rng.randint(1, 3))
        known = GatewayAddresses(given, list.reverse)
        url = known.next()
        steps: list[dict[str, Any]] = []
        for _ in range(STEPS // 4):
            named = rng.choices((*GATEWAYS, *NO_GATEWAYS), k=rng.choice((0, 3, 8)))
            lost = rng.random() < 0.3
            if lost:
                known.learn(named, url)
                known.on_lost(url)
            steps.append({"over": url, "named": named, "lost": lost, "found": list(known.found)})
            url = known.next()
            steps[-1] |= {"next": url, "round_over": known.round_over}
        lives.append({"given": given, "steps": steps})
    return lives


class _Producer:
    """One random run of a producer core, against a gateway that gives any answer."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now = 1.0
        self.ids = iter(range(1, 100_000))
        self.sent: list[int] = []
        self.in_flight: dict[int, int] = {}
        """Bytes of each batch that was sent on this link and not acked."""
        self.bytes: dict[tuple[int, int, int], str] = {}
        """Batches that were sent, by partition, producer id and base sequence."""
        self.steps: list[dict[str, Any]] = []
        self.options = {
            "acks": rng.choice(("all", "leader", "none")),
            "linger_s": rng.choice((0.0, 0.25)),
            "batch_bytes": rng.choice((100, 200, 500, 1 << 17)),
            "delivery_timeout_s": rng.choice((2.0, 8.0)),
            "max_in_flight": rng.choice((1, 2, 5, 9)),
            "backoff_s": 0.25,
        }
        options = ProducerOptions(**self.options, buffer_bytes=1 << 20)  # type: ignore[arg-type]
        self.limits = rng.choice(({}, {"produce_bytes": 300}, {"produce_batches": 3}, {"produce_bytes": 1000}))
        self.window = ProduceWindow()
        ids = lambda: next(self.ids)  # noqa: E731
        self.core = ProducerCore("5f", PARTITIONS, options, ids, max_batch_bytes=1 << 17, window=self.window)

    def run(self) -> dict[str, Any]:
        events = (
            *((self.add, 8), (self.take, 6), (self.ack, 5), (self.time, 3)),
            *((self.up, 2), (self.down, 1), (self.producer_id, 2), (self.seal, 1)),
        )
        self.up()
        for _ in range(STEPS):
            self.rng.choices([event for event, _ in events], [weight for _, weight in events])[0]()
        self.note("failAll", [], settled(self.core.fail_all(TidelogError("over", code="CLOSED"))))
        return {"options": self.options, "steps": self.steps}

    def note(self, event: str, given: list[Any], came: Any) -> None:
        core = self.core
        throttled = [core.throttled_acks, core.throttled_s]
        state = [core.deadline(), core.buffered, core.wants_producer_id, core.is_idle, throttled, core.is_blocked]
        self.steps.append({"event": event, "given": given, "came": came, "state": state})

    def add(self) -> None:
        partition = self.rng.randrange(PARTITIONS)
        value = self.rng.randbytes(self.rng.randrange(120))
        record = NewRecord(value, None, 5)
        size = record_size(value, None, ())
        expected = self.rng.randrange(1000) if self.rng.random() < 0.1 else -1
        if expected >= 0 or self.core.append(partition, record, size) is None:
            self.core.open(partition, record, size, self.now, expected)
        self.note("add", [partition, value.hex(), self.now, expected], None)

    def take(self) -> None:
        message = self.core.take_message(self.now)
        came = None
        if message is not None:
            self.sent += [part.id for part in message.parts]
            self.in_flight |= {part.id: part.size for part in message.parts}
            most = self.limits.get("produce_bytes", 1 << 30), self.limits.get("produce_batches", 1 << 30)
            held = sum(self.in_flight.values()), len(self.in_flight)
            assert len(self.in_flight) == 1 or (held[0] <= most[0] and held[1] <= most[1]), "more than was announced"
            payload = [bytes(data).hex() for data in message.payload]
            for part, data in zip(message.parts, payload, strict=True):
                header = read_header(bytes.fromhex(data))
                place = part.partition, header.producer_id, header.base_sequence
                assert not header.producer_id or self.bytes.setdefault(place, data) == data, (
                    "a retry sends other bytes"
                )
            came = {"parts": [to_map(part) for part in message.parts], "payload": payload}
        self.note("take", [self.now], came)

    def ack(self) -> None:
        chosen = self.rng.sample(self.sent, min(len(self.sent), self.rng.randrange(3)))
        acks = []
        for id in chosen:
            self.sent.remove(id)
            if self.rng.random() < 0.6:
                throttle_ms = self.rng.choice((0, 0, 0, 125, 1500, 10**6))
                acks.append(ProduceAck(id, self.rng.randrange(1000), 3, "all/os", throttle_ms=throttle_ms))
            else:
                code, unknown, detail = self.rng.choice(PRODUCER_ERRORS)
                acks.append(ProduceAck(id, error=refuse(code, "no", unknown_outcome=unknown, **detail).to_info()))
            self.in_flight.pop(id, None)
        self.window.remove(acks)
        came = settled(self.core.on_produced(acks, self.now))
        self.note("produced", [[to_map(ack) for ack in acks], self.now], came)

    def time(self) -> None:
        self.now += self.rng.choice((0.125, 0.25, 1.0))
        self.note("tick", [self.now], settled(self.core.on_tick(self.now)))

    def up(self) -> None:
        """A new link, sometimes to a gateway of an earlier release."""
        self.in_flight.clear()
        self.window.begin(self.limits)
        failed = None
        if self.rng.random() < 0.3:
            failed = settled(self.core.fail_conditional(TidelogError("no", code="UNSUPPORTED")))
        self.core.on_link_up()
        self.note("up", [self.limits, failed is not None], failed)

    def down(self) -> None:
        self.in_flight.clear()
        self.window.begin({})
        self.note("down", [self.now], settled(self.core.on_link_down(self.now)))

    def producer_id(self) -> None:
        if self.core.wants_producer_id:
            id = self.rng.randrange(1, 2**40)
            window = self.rng.choice((0, 3, 5, 7))
            self.note("producerId", [id, window], self.core.on_producer_id(id, window))

    def seal(self) -> None:
        self.core.close_open_batches()
        self.note("seal", [], None)


def settled(batches: list[Batch]) -> list[Any]:
    return [
        [b.partition, b.count, b.offset, None if b.error is None else [b.error.code, b.error.unknown_outcome]]
        for b in batches
    ]


def batches(rng: random.Random) -> Iterator[bytes]:
    """Return a log in which leaders change, with control batches among the others."""
    offset, epoch = 0, 1
    while offset < 40:
        count = rng.randrange(1, 5)
        epoch += rng.random() < 0.2
        data = encode_control("epoch") if rng.random() < 0.1 else b""
        data = data or encode_batch([NewRecord(rng.randbytes(20), None, 5)] * count)
        header = read_header(data)
        yield stamp_prefix(offset, epoch, header.crc32c) + data[16:]
        offset += header.record_count


def rows(fetched: Fetched) -> list[Any]:
    return [[r.offset, r.leader_epoch, (r.value or b"").hex()] for r in fetched.records("t")]


class _Consumer:
    """One random run of a consumer core, against gateways that serve one log per partition and sometimes a wrong
    one."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now = 1.0
        self.subs = iter(range(1, 100_000))
        self.steps: list[dict[str, Any]] = []
        self.open: dict[int, tuple[int, int]] = {}
        self.log = {partition: list(batches(rng)) for partition in range(PARTITIONS)}
        starts = {partition: Position(-1, rng.randrange(8)) for partition in range(PARTITIONS)}
        ends = {partition: rng.randrange(30) for partition in range(PARTITIONS) if rng.random() < 0.5}
        self.credit = rng.choice((300, 2000))
        self.plan = {"starts": starts, "ends": ends, "credit": self.credit}
        self.core = ConsumerCore("t", starts, ends, self.credit, 0.25, lambda: next(self.subs))

    def run(self) -> dict[str, Any]:
        events = (
            *((self.deliver, 10), (self.take, 8), (self.up, 3), (self.tick, 3)),
            *((self.down, 1), (self.refuse, 1), (self.error, 1), (self.wrong, 1)),
            *((self.pause, 1), (self.resume, 2), (self.seek, 1)),
        )
        self.up()
        for _ in range(STEPS):
            self.rng.choices([event for event, _ in events], [weight for _, weight in events])[0]()
        self.note("close", [], self.effects(self.core.close()))
        return {"plan": self.plan, "steps": self.steps}

    def note(self, event: str, given: list[Any], came: Any) -> None:
        core = self.core
        state = [core.deadline(), core.is_finished, sorted(core.positions.items()), core.paused, core.waiting]
        self.steps.append({"event": event, "given": given, "came": came, "state": state})

    def effects(self, effects: list[Effect]) -> list[Any]:
        told: list[Any] = []
        for effect in effects:
            match effect:
                case Open(sub, partition, position, credit):
                    self.open[sub] = partition, position.offset
                    told.append({"open": sub, "partition": partition, "position": position, "credit": credit})
                case Grant(sub, size):
                    told.append({"grant": sub, "bytes": size})
                case StopSubscription(sub):
                    self.open.pop(sub, None)
                    told.append({"stop": sub})
        return told

    def deliver(self) -> None:
        if not self.open:
            return
        sub = self.rng.choice(sorted(self.open))
        partition, offset = self.open[sub]
        wanted = [data for data in self.log[partition] if read_header(data).end_offset > offset]
        batches = wanted[: self.rng.randrange(1, 4)]
        if batches:
            self.open[sub] = partition, read_header(batches[-1]).end_offset
        if batches and self.rng.random() < 0.03:  # a leader epoch that goes back
            batches[-1] = stamp_prefix(read_header(batches[-1]).base_offset, 0, 0) + batches[-1][16:]
        self.receive(sub, b"".join(batches))

    def wrong(self) -> None:
        """Deliver a random batch to a random subscription, so that there may be a gap, an epoch that goes back, a
        batch that is cut short, or a subscription that is over."""
        sub = self.rng.randrange(1, 8)
        data = self.rng.choice(self.log[self.rng.randrange(PARTITIONS)])
        self.receive(sub, data[: self.rng.choice((len(data), len(data) - 1))])

    def receive(self, sub: int, payload: bytes) -> None:
        effects = self.core.on_delivery(Delivery(sub, 100, payload=payload), self.now)
        self.note("delivery", [sub, payload.hex(), self.now], self.effects(effects))

    def error(self) -> None:
        if self.open:
            sub = self.rng.choice(sorted(self.open))
            del self.open[sub]
            info = refuse(self.rng.choice(READER_ERRORS), "no", log_start=4, pause_ms=1500).to_info()
            effects = self.core.on_delivery(Delivery(sub, error=info), self.now)
            self.note("deliveryError", [sub, to_map(info), self.now], self.effects(effects))

    def refuse(self) -> None:
        if self.open:
            sub = self.rng.choice(sorted(self.open))
            del self.open[sub]
            code = self.rng.choice(("REQUEST_TIMED_OUT", "UNKNOWN_TOPIC"))
            error = TimedOut("no") if code == "REQUEST_TIMED_OUT" else refuse(code, "no")
            self.core.on_subscribed(sub, error, self.now)
            self.note("refused", [sub, code, self.now], None)

    def take(self) -> None:
        try:
            fetched = self.core.take_batch()
        except TidelogError as error:
            self.note("take", [], {"error": [error.code, error.message, error.detail]})
            return
        if fetched is None:
            self.note("take", [], None)
            return
        effects = self.effects(self.core.on_taken(fetched.partition))
        self.note("take", [], {"partition": fetched.partition, "records": rows(fetched), "effects": effects})
        if self.rng.random() < 0.2:
            offset = self.rng.randrange(fetched.first, fetched.end + 1)
            self.core.put_back(fetched, Position(fetched.header.leader_epoch, offset))
            self.note("putBack", [fetched.header.leader_epoch, offset], None)

    def chosen(self) -> list[int]:
        return self.rng.sample(range(PARTITIONS), self.rng.randrange(1, PARTITIONS + 1))

    def pause(self) -> None:
        chosen = self.chosen()
        self.core.pause(chosen)
        self.note("pause", [chosen], None)

    def resume(self) -> None:
        chosen = self.chosen()
        self.core.resume(chosen)
        self.note("resume", [chosen], None)

    def seek(self) -> None:
        partition, offset = self.rng.randrange(PARTITIONS), self.rng.randrange(20)
        effects = self.core.seek(partition, Position(-1, offset), self.now)
        self.note("seek", [partition, offset, self.now], self.effects(effects))

    def up(self) -> None:
        limits = self.rng.choice(({}, {"credit_bytes": 500}))
        self.note("up", [limits, self.now], self.effects(self.core.on_link_up(limits, self.now)))

    def tick(self) -> None:
        self.now += self.rng.choice((0.125, 0.25))
        self.note("tick", [self.now], self.effects(self.core.on_tick(self.now)))

    def down(self) -> None:
        self.open.clear()
        self.core.on_link_down()
        self.note("down", [], None)


class _Backward:
    """One random run of a core that reads backwards, over logs whose starts move up and whose ends were cut."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.steps: list[dict[str, Any]] = []
        self.log = {partition: list(batches(rng)) for partition in range(PARTITIONS)}
        self.log_start = dict.fromkeys(self.log, 0)
        exact = rng.random() < 0.5
        starts = {p: Position(rng.choice((-1, -1, 1, 9)), rng.randrange(42)) for p in self.log}
        bounds = {p: rng.randrange(10) for p in self.log}
        room = rng.choice((100, 400, 5000))
        self.plan = {"starts": starts, "bounds": bounds, "exact": exact, "windowBytes": room}
        self.core = BackwardCore("t", starts, bounds, exact, room)

    def run(self) -> dict[str, Any]:
        for _ in range(STEPS):
            looks = self.core.next_reads()
            asked = [[look.partition, look.offset, look.max_bytes, look.last_epoch] for look in looks]
            self.note("looks", [], asked)
            for look in looks:
                self.answer(look)
            if not self.take():
                break
        return {"plan": self.plan, "steps": self.steps}

    def note(self, event: str, given: list[Any], came: Any) -> None:
        state = [self.core.is_finished, sorted(self.core.positions.items())]
        self.steps.append({"event": event, "given": given, "came": came, "state": state})

    def answer(self, look: WindowRead) -> None:
        if self.rng.random() < 0.1:
            self.log_start[look.partition] += self.rng.randrange(8)
        start = self.log_start[look.partition]
        asked = [look.partition, look.offset, look.max_bytes, look.last_epoch]
        if look.offset < start:
            self.fail(look, asked, "OFFSET_OUT_OF_RANGE", log_start=start)
        elif self.rng.random() < 0.02:
            self.fail(look, asked, "LOG_TRUNCATED", end_offset=3)
        else:
            payload = b""
            for data in self.log[look.partition]:
                if read_header(data).end_offset > look.offset and (not payload or len(payload) < look.max_bytes):
                    payload += data
            self.core.on_batches(look, payload)
            self.note("batches", [*asked, payload.hex()], None)

    def fail(self, look: WindowRead, asked: list[Any], code: str, **detail: int) -> None:
        error = refuse(code, "no", **detail)
        self.core.on_error(look, error)
        self.note("error", [*asked, to_map(error.to_info())], None)

    def take(self) -> bool:
        """Take batches and record each, until none is ready. Returns whether more may come: False at the end, or
        after an error."""
        while True:
            try:
                fetched = self.core.take_batch()
            except TidelogError as error:
                self.note("take", [], {"error": [error.code, error.message, error.detail]})
                return False
            self.note(
                "take", [], None if fetched is None else {"partition": fetched.partition, "records": rows(fetched)}
            )
            if fetched is None:
                return not self.core.is_finished
