"""Subscribers that share reads, at random against a model: each gets the log from its position. Tests
``consume/subscriptions.py`` and ``consume/tail_cache.py``."""

from __future__ import annotations

import random

import pytest
from support.gateway_subscribers import NODES, Bench, stored
from tidelog.errors import TidelogError, refuse
from tidelog.sansio.effects import Call
from tidelog.wire.messages import Credit, Read, ReadAnswer


class World:
    """A log of committed batches and readers who come, stop, go on and are refused in any order."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.bench = Bench(tail_cache_bytes=self.random.choice([0, 600, 3000, 1 << 20]))
        self.batches: list[bytes] = []
        self.ends = [0]
        self.epochs: list[int] = []
        self.starts: dict[int, int] = {}
        self.credit: dict[int, int] = {}
        self.seen: dict[int, int] = {}
        self.truncated: set[int] = set()
        self.now = 0.0

    def append(self) -> None:
        count = self.random.randint(1, 3)
        value = b"%d" % self.random.getrandbits(100)
        self.batches.append(stored(self.ends[-1], count, self.bench.epoch, value))
        self.ends.append(self.ends[-1] + count)
        self.epochs.append(self.bench.epoch)

    def subscribe(self) -> None:
        client = len(self.starts)
        first = self.random.randint(0, len(self.batches))
        self.starts[client] = first
        self.credit[client] = self.random.choice([1, 100, 400, 10_000])
        bound = self.random.choice([{}, {}, {}, {"consistency": "bounded", "max_staleness_ms": 500}])
        epoch = self.epochs[first - 1] if first and self.random.random() < 0.7 else -1
        self.bench.subscribe(
            client,
            self.ends[first],
            self.credit[client],
            self.now,
            last_epoch=epoch,
            read_from=self.random.choice(["leader", "any"]),
            **bound,
        )

    def reply(self) -> None:
        if not self.bench.calls:
            return
        token = self.random.choice(list(self.bench.calls))
        call = self.bench.calls.pop(token)
        self.bench.take(self.bench.core.on_answer(token, self.judge(call), self.now))

    def judge(self, call: Call) -> ReadAnswer | TidelogError:
        read = call.message
        assert isinstance(read, Read)
        if self.random.random() < 0.1:
            return refuse(self.random.choice(["NOT_LEADER", "UNREACHABLE", "OFFSET_NOT_AVAILABLE"]), "no")
        if read.offset not in self.ends or (
            read.last_epoch >= 0 and read.offset and self.epochs[self.ends.index(read.offset) - 1] != read.last_epoch
        ):
            return refuse("LOG_TRUNCATED", "another line")
        known = len(self.batches) - self.random.randint(0, 2) if read.any_replica else len(self.batches)
        first = self.ends.index(read.offset)
        payload = b""
        for batch in self.batches[first:known]:
            if payload and len(payload) + len(batch) > read.max_bytes:
                break
            payload += batch
        return ReadAnswer(self.bench.epoch, self.ends[max(known, first)], 0, payload)

    def give(self) -> None:
        if self.starts:
            client = self.random.randrange(len(self.starts))
            more = self.random.choice([1, 100, 1000])
            self.credit[client] += more
            self.bench.take(self.bench.core.on_credit(client, Credit(client, more), self.now))

    def elect(self) -> None:
        if self.batches and self.random.random() < 0.2:  # unclean: committed records are lost
            keep = self.random.randint(len(self.batches) - 1, len(self.batches))
            del self.batches[keep:], self.epochs[keep:], self.ends[keep + 1 :]
        self.bench.calls.clear()
        self.bench.lead(self.random.choice([*NODES, None]), self.now)

    def check(self) -> None:
        """What was delivered since the last look is the log as it is now; nobody got more than he gave credit for,
        but for one batch."""
        for client, deliveries in self.bench.got.items():
            at = self.seen.setdefault(client, self.starts[client])
            told = -1
            for delivery in deliveries:
                if delivery.error is not None:
                    self.truncated.add(client)
                    continue
                assert delivery.high_watermark >= told
                told = delivery.high_watermark
                payload = bytes(delivery.payload)  # type: ignore[arg-type]
                assert self.credit[client] > 0
                while payload:
                    batch = self.batches[at]
                    assert payload.startswith(batch), f"{client} did not get batch {at}"
                    payload = payload[len(batch) :]
                    self.credit[client] -= len(batch)
                    at += 1
                assert told >= self.ends[at], "a batch beyond the HW"
            self.seen[client] = at
        self.bench.got.clear()
        assert self.bench.core.tails.bytes <= self.bench.settings.tail_cache_bytes

    def finish(self) -> None:
        """The leader is there to stay, and all want all."""
        self.bench.calls.clear()
        self.bench.lead("r1", self.now)
        for client in self.starts:
            self.credit[client] += 1 << 20
            self.bench.take(self.bench.core.on_credit(client, Credit(client, 1 << 20), self.now))
        for _ in range(10_000):
            self.check()
            if all(self.seen.get(c, s) >= len(self.batches) or c in self.truncated for c, s in self.starts.items()):
                return
            self.now += 0.1
            self.bench.take(self.bench.core.on_tick(self.now))
            self.reply()
        raise AssertionError("somebody does not get the log to its end")


@pytest.mark.parametrize("seed", range(100))
def test_at_random_every_subscriber_gets_the_log_from_its_position(seed: int) -> None:
    world = World(seed)
    for _ in range(150):
        act = world.random.choices(
            [world.append, world.subscribe, world.reply, world.give, world.elect], [30, 8, 40, 20, 2]
        )[0]
        act()
        world.now += world.random.choice([0.0, 0.01, 0.3])
        world.bench.take(world.bench.core.on_tick(world.now))
        world.check()
    world.finish()
