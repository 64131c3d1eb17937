"""What a connection may have in flight. Tests ``client/core/produce_window.py`` and its use by the producers of a
connection."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tidelog
import trio
from support.fake_gateway import FakeCluster
from tidelog.batch.format import NewRecord, encode_batch
from tidelog.client.core.produce_window import ProduceWindow
from tidelog.errors import BrokerError
from tidelog.wire.capabilities import OF_GATEWAYS
from tidelog.wire.messages import Produce, ProduceAck, ProducePart

PART = ProducePart(1, "t", 0, 2, -1, 100)


def window(**limits: int) -> ProduceWindow:
    made = ProduceWindow()
    made.begin(limits)
    return made


def test_there_is_room_for_so_many_bytes_and_batches() -> None:
    bounded = window(produce_bytes=300, produce_batches=3)
    assert bounded.has_room(10**9), "one batch may always be sent"
    bounded.add((PART, replace(PART, id=2)))
    assert bounded.has_room(100) and not bounded.has_room(101)
    assert bounded.has_room(50, 1) and not bounded.has_room(50, 2)
    bounded.remove((ProduceAck(1), ProduceAck(1), ProduceAck(99)))
    assert bounded.has_room(200) and not bounded.has_room(201)


def test_a_gateway_that_announces_nothing_sets_no_bound() -> None:
    free = window()
    free.add([replace(PART, id=n, size=10**9) for n in range(1000)])
    assert free.has_room(10**9)


def test_whoever_waits_is_woken_once_by_an_ack_and_by_a_new_link() -> None:
    bounded = window(produce_batches=1)
    bounded.add((PART,))
    woken: list[str] = []
    bounded.wait(lambda: woken.append("ack"))
    bounded.remove((ProduceAck(1),))
    bounded.remove((ProduceAck(2),))
    bounded.wait(lambda: woken.append("link"))
    bounded.begin({})
    assert woken == ["ack", "link"]


@pytest.mark.parametrize("limits", [{"produce_bytes": 4000}, {"produce_batches": 2}, {"produce_bytes": 0}])
async def test_two_producers_of_a_connection_keep_to_what_the_gateway_has_announced(limits: dict[str, int]) -> None:
    """All records arrive, and at no time is more in flight: the gateway counts."""
    cluster = Bounded()
    cluster.limits = limits
    names = ("one", "other")
    for name in names:
        cluster.add_topic(name, partitions=4)
    async with cluster.gateways() as urls, tidelog.connect(urls) as log, trio.open_nursery() as nursery:

        async def write(name: str) -> None:
            options = tidelog.ProducerOptions(batch_bytes=1000, linger_s=0)
            async with log.producer(name, options) as producer:
                for number in range(200):
                    await producer.submit(b"x" * 100, partition=number % 4)

        nursery.start_soon(cluster.run)
        with trio.fail_after(60):
            async with trio.open_nursery() as writers:
                for name in names:
                    writers.start_soon(write, name)
        nursery.cancel_scope.cancel()
    assert [sum(len(cluster.log(name, p).records()) for p in range(4)) for name in names] == [200, 200]
    assert cluster.most_in_flight > 1 or limits["produce_bytes"] == 0
    assert cluster.is_within_limits


class Bounded(FakeCluster):
    """A cluster whose gateway answers one batch in each turn, and watches how much is in flight."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[tuple[object, Produce]] = []
        self.most_in_flight = 0
        self.is_within_limits = True

    def produce(self, link: object, message: Produce) -> None:  # type: ignore[override]
        payload, position = memoryview(message.payload), 0  # type: ignore[arg-type]
        for part in message.parts:
            alone = Produce((part,), bytes(payload[position : position + part.size]))
            position += part.size
            self.waiting.append((link, alone))
        held = sum(len(one.payload) for _, one in self.waiting)
        self.most_in_flight = max(self.most_in_flight, len(self.waiting))
        self.is_within_limits &= len(self.waiting) == 1 or (
            held <= self.limits.get("produce_bytes", held)
            and len(self.waiting) <= self.limits.get("produce_batches", len(self.waiting))
        )

    async def run(self) -> None:
        """Answer what waits, one batch in each turn."""
        while True:
            await trio.lowlevel.checkpoint()
            if self.waiting:
                link, message = self.waiting.pop(0)
                super().produce(link, message)  # type: ignore[arg-type]


async def test_a_conditional_append_that_waits_fails_when_the_next_gateway_is_of_an_earlier_release() -> None:
    """It was sent to one that heeds the condition, so it may be in the log."""
    cluster = FakeCluster()
    cluster.add_topic("orders")
    cluster.lose_acks = 1
    async with cluster.gateways() as urls, tidelog.connect(urls) as log, log.producer("orders") as producer:
        pending = await producer.submit(b"x", partition=0, expected_offset=0)
        await cluster.produced.wait()
        cluster.capabilities = ()
        cluster.cut()
        with pytest.raises(BrokerError, match="conditional_append") as refused:
            await pending.wait()
        assert refused.value.code == "UNSUPPORTED" and refused.value.unknown_outcome
        cluster.capabilities = OF_GATEWAYS
        cluster.cut()
        assert (await producer.send(b"y", partition=0)).offset == 1


async def test_batches_at_their_own_offsets_are_not_sent_to_a_gateway_of_an_earlier_release() -> None:
    cluster = FakeCluster()
    topic = cluster.add_topic("orders")
    cluster.capabilities = ()
    async with cluster.gateways() as urls, tidelog.connect(urls) as log:
        appender = log.appender(topic.topic_id, 0)
        with pytest.raises(BrokerError, match="conditional_append"):
            await appender.append([encode_batch([NewRecord(b"x", None, 1)])])
        appender.close()
    assert not any(isinstance(message, Produce) for message in cluster.seen)
