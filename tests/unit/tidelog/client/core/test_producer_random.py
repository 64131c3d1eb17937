"""The producer core behind a link that breaks and a leader that refuses, at random. Tests
``client/core/producer.py``."""

from __future__ import annotations

import random
from collections import deque
from itertools import count

import pytest
from support.producers import GAP, LATER, NEVER, UNKNOWN, Bench
from tidelog.client.core.batch import Batch
from tidelog.client.options import ProducerOptions
from tidelog.errors import TidelogError, refuse
from tidelog.wire.messages import ProduceAck

RECORDS = 150
UNKNOWN_GAP = refuse("OUT_OF_ORDER_SEQUENCE", "gap, after a try without an answer", unknown_outcome=True)


class World:
    """A leader that keeps the sequence rule, at the end of a link that delays and breaks. A batch that was sent
    before a break may still be written; its answer never comes."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        options = ProducerOptions(
            batch_bytes=self.rng.choice((200, 2000)), delivery_timeout_s=8, max_in_flight=self.rng.choice((1, 2, 5))
        )
        self.bench = Bench(options)
        self.log: list[bytes | None] = []
        self.ends: dict[int, int] = {}
        self.wire: deque[int] = deque()
        self.acks: deque[ProduceAck] = deque()
        self.fresh = count(8)
        self.healthy = False
        self.break_rate = self.rng.choice((0.03, 0.002))  # the rarer, the more delivery timeouts
        self.stuck = False

    def step(self) -> None:
        bench, rng = self.bench, self.rng
        bench.now += rng.random() * 0.05
        before = len(bench.sent)
        bench.core.on_tick(bench.now)
        bench.send()
        self.check_deadline()
        self.wire.extend(range(before, len(bench.sent)))
        if bench.core.wants_producer_id and rng.random() < 0.7:
            bench.core.on_producer_id(next(self.fresh))
        for _ in range(rng.randrange(4)):
            if self.wire:
                self.lead(self.wire.popleft())
        ready = 0 if self.stuck and not self.healthy else rng.randrange(4)
        acks = [self.acks.popleft() for _ in range(min(ready, len(self.acks)))]
        bench.core.on_produced(acks, bench.now)
        if not self.healthy:
            self.stuck = self.stuck != (rng.random() < 0.01)
            if rng.random() < self.break_rate:
                self.break_link()

    def check_deadline(self) -> None:
        """Check that a shell that sleeps until the deadline misses nothing that a visit of every queue would find."""
        core = self.bench.core
        times = []
        for queue in core._active.values():
            oldest, head = queue.oldest(), queue.closed[0] if queue.closed else queue.open
            assert oldest is not None
            times.append(oldest.deadline)
            lingers = not queue.closed and queue.in_flight and queue.open is not None
            if queue.draining or core._is_full(queue) or head is None:
                continue
            if lingers:
                times.append(max(queue.not_before, core._due_at(queue, head)))
            elif head.base_sequence is not None or (queue.producer_id and not queue.spoiled):
                times.append(queue.not_before)
        deadline = core.deadline()
        assert (deadline is None) == (not times)
        assert deadline is None or self.bench.now < deadline <= min(times)

    def break_link(self) -> None:
        for _ in range(self.rng.randrange(len(self.wire) + 1)):
            self.lead(self.wire.popleft())
        self.wire.clear()
        self.acks.clear()
        self.bench.core.on_link_down(self.bench.now)
        self.bench.core.on_link_up()
        self.stuck = False

    def lead(self, index: int) -> None:
        """Append a batch as the leader, or refuse it."""
        number, producer_id, sequence, values = self.bench.sent[index]
        fate = 1.0 if self.healthy else self.rng.random()
        error: TidelogError | None = None
        if fate < 0.05:
            error = LATER
        elif fate < 0.08:
            error = NEVER
        elif sequence > self.ends.get(producer_id, 0):
            error = GAP
        else:
            if sequence == self.ends.get(producer_id, 0):
                self.log += values
                self.ends[producer_id] = sequence + len(values)
            error = UNKNOWN if fate < 0.15 else UNKNOWN_GAP if fate < 0.2 else None
        self.acks.append(ProduceAck(number, 0, 1, "all/os", error=error.to_info() if error else None))


@pytest.mark.parametrize("seed", range(60))
def test_order_holds_and_nothing_is_lost_or_doubled(seed: int) -> None:
    world = World(seed)
    batches: dict[bytes, Batch] = {}
    todo = deque(b"%d" % n for n in range(RECORDS))
    for step in range(20_000):
        world.healthy = step > 2000
        for _ in range(world.rng.randrange(3)):
            if todo and world.rng.random() < 0.3:
                value = todo.popleft()
                batches[value] = world.bench.add(value)
        world.step()
        if not todo and world.bench.core.is_idle:
            break
    assert world.bench.core.is_idle
    assert world.bench.core.buffered == 0
    assert len(set(world.log)) == len(world.log), "doubled"
    written = [value for value in world.log if value is not None]
    acked = [value for value, batch in batches.items() if batch.error is None]
    assert [value for value in written if value in set(acked)] == acked, "lost or out of order"
    for value, batch in batches.items():
        if batch.error is not None and not batch.error.unknown_outcome:
            assert value not in written, "said to have failed for certain"
