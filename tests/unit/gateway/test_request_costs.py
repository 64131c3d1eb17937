"""What requests cost: batches that unfold to much, the quota, and the line in the log. Tests
``produce/router.py``, ``limits/quota_enforcer.py`` and ``limits/heavy_requests.py``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from tidelog.batch.format import MAX_RECORDS, NewRecord, check_body, check_fields, encode_batch, read_header
from tidelog.errors import CorruptBatch
from tidelog.feature_levels import TICKETS, service_hello
from tidelog.sansio.effects import Post, Send
from tidelog.tickets import sign
from tidelog.types import ClusterImage, PartitionState, Quota, TicketKey, TopicState
from tidelog.wire.messages import (
    FetchOffsets,
    ListGroups,
    Metadata,
    Produce,
    Produced,
    ProducePart,
    TopicShare,
    UseProducer,
)
from tidelog_gateway.cluster_view import ClusterView
from tidelog_gateway.limits.heavy_requests import HeavyRequests, cost_of
from tidelog_gateway.limits.quota_enforcer import QuotaEnforcer
from tidelog_gateway.produce.router import Router
from tidelog_gateway.requests import metadata_answers as describing
from tidelog_gateway.settings import RouterSettings, SubscriptionSettings
from tidelog_gateway.shell import GatewayShell


def image() -> ClusterImage:
    states = (PartitionState(("r1",), ("r1",), "r1", 1, 1),) * 2
    return ClusterImage(1, "c", (), (TopicState("id-0", "topic-0", partitions=states),))


def new_router() -> Router:
    cluster = ClusterView()
    cluster.update(image())
    router = Router(cluster, RouterSettings())
    router.on_link_opened(1, "alice", named=True)
    return router


def test_names_are_taken_once() -> None:
    assert describing.names_of(Metadata(("b", "a", "b") * 2000)).topics == ("b", "a")
    assert describing.names_of(Metadata(("b",), all_topics=True)).topics == ()


def test_batches_that_unfold_to_very_much_are_looked_at_one_by_one() -> None:
    router = new_router()
    batch = encode_batch([NewRecord(bytes(8 << 20), timestamp_ms=1)], codec="zstd")
    parts = tuple(ProducePart(id, "id-0", 0, 2, 5000, len(batch)) for id in range(12))
    router.on_produce(1, Produce(parts, batch * 12), 0.0)
    turns = 1
    while router.has_unchecked(1):
        assert router.held[1] == 12 * len(batch), "the bytes of all of them count from their arrival"
        router.check(1)
        turns += 1
    assert turns == 13, "the last time nothing is left"
    assert router.held[1] == 12 * len(batch), "all of them are taken"


def test_a_small_batch_does_not_keep_the_large_message_that_it_came_in() -> None:
    """The rest of the message is refused, or acked, and counts no more."""
    router = new_router()
    for id in range(0, 20, 2):
        payload = SMALL + bytes(1 << 20)
        refused = ProducePart(id + 1, "nowhere", 0, 2, 5000, 1 << 20)
        router.on_produce(1, Produce((*one(id, SMALL).parts, refused), payload), 0.0)
    held = [memoryview(queued.batch).obj for queue in router._queues[1].values() for queued in queue.waiting]
    assert len(held) == 10 and router.held_bytes == 10 * len(SMALL)
    assert sum(map(len, held)) <= 2 * router.held_bytes  # type: ignore[arg-type]


def test_batches_that_compress_well_are_looked_at_together() -> None:
    router = new_router()
    lines = [NewRecord(b"GET /orders/%d 200" % n, timestamp_ms=1) for n in range(2000)]
    batch = encode_batch(lines, codec="zstd")
    parts = tuple(ProducePart(id, "id-0", 0, 2, 5000, len(batch)) for id in range(50))
    router.on_produce(1, Produce(parts, batch * 50), 0.0)
    assert not router.has_unchecked(1)


BOMB = encode_batch([NewRecord(bytes(8 << 20), timestamp_ms=1)], codec="zstd")
SMALL = encode_batch([NewRecord(b"x", timestamp_ms=1)])


def one(id: int, batch: bytes, partition: int = 0, timeout_ms: int = 5000) -> Produce:
    return Produce((ProducePart(id, "id-0", partition, 2, timeout_ms, len(batch)),), batch)


def put_off(partition: int = 0, timeout_ms: int = 5000) -> Router:
    """Three batches of client 1, the last two of which are not looked at yet."""
    router = new_router()
    router.on_peer_up("r1")
    for id in range(3):
        router.on_produce(1, one(id, BOMB, partition, timeout_ms), 0.0)
    router.flush(0.0)
    return router


def sent(router: Router, now: float = 0.0) -> list[int]:
    """Sizes of the batches that go out now."""
    messages = (effect.message for effect in router.flush(now) if isinstance(effect, Send))
    return [part.size for message in messages if isinstance(message, Produce) for part in message.parts]


def acked(router: Router, now: float = 0.0) -> dict[int, str]:
    """What the client is told of its batches, by their ids."""
    posts = (effect.message for effect in router.flush(now) if isinstance(effect, Post))
    told = (ack for message in posts if isinstance(message, Produced) for ack in message.acks)
    return {ack.id: ack.error.code if ack.error else "" for ack in told}


def test_a_batch_that_waits_to_be_looked_at_ends_with_its_time() -> None:
    router = put_off(timeout_ms=2000)
    router.on_tick(2.1)
    assert acked(router, 2.1) == dict.fromkeys(range(3), "REQUEST_TIMED_OUT")
    assert not router._unchecked[1] and not router.held_bytes


def test_unchecked_batches_count_for_the_bound_of_all() -> None:
    router = put_off()
    assert router.held_bytes == 3 * len(BOMB)
    router.on_link_closed(1)
    assert router.held_bytes == len(BOMB), "what is sent is in flight"
    assert not router.has_unchecked(1)


def test_no_batch_overtakes_an_unchecked_one_of_its_partition() -> None:
    router = put_off()
    router.on_produce(1, one(3, SMALL), 0.0)
    router.on_produce(1, one(4, SMALL, partition=1), 0.0)
    assert sent(router) == [len(SMALL)], "that of the other partition"
    router.check(1)
    assert sent(router) == [len(BOMB)]
    router.check(1)
    assert sent(router) == [len(BOMB), len(SMALL)]


def test_batches_behind_a_bad_batch_are_sent_when_it_is_refused() -> None:
    router = put_off()
    bad = bytearray(BOMB)
    bad[len(bad) // 2] ^= 0xFF
    router.on_produce(1, one(3, bytes(bad)), 0.0)
    router.on_produce(1, one(4, SMALL), 0.0)
    for _ in range(2):
        router.check(1)
    sent(router)
    router.check(1)
    assert router.held[1] == 3 * len(BOMB) + len(SMALL) and not router._unchecked[1]
    assert acked(router) == {3: "CORRUPT_BATCH"} and router.in_flight == 4


def test_a_ticket_that_comes_behind_a_batch_says_nothing_of_it() -> None:
    """The client gives its id up, or begins the next epoch, behind batches that are not looked at yet."""
    router = new_router()
    keys = (TicketKey(1, "ab" * 32),)
    router._cluster.update(replace(image(), index=2, level=TICKETS, ticket_keys=keys))
    own = encode_batch([NewRecord(bytes(8 << 20), timestamp_ms=1)], codec="zstd", producer_id=7)
    router.tickets.use(1, "alice", UseProducer(7, 0, sign(keys, 7, 1, 0, "alice")))
    for id in range(3):
        router.on_produce(1, one(id, own), 0.0)
    router.tickets.release(1, 7)
    while router.has_unchecked(1):
        router.check(1)
    assert acked(router) == {} and router.held[1] == 3 * len(own)


@asynccontextmanager
async def shell_of(**costs: float) -> AsyncIterator[tuple[GatewayShell, dict[str, Any]]]:
    """A gateway with a client of each principal. To look at a batch of it takes so many seconds of the clock."""
    late = 0.0
    links: dict[str, Any] = {
        who: SimpleNamespace(source=source, remote="r", post=None) for source, who in enumerate(costs, 1)
    }
    async with trio.open_nursery() as nursery:
        settings = RouterSettings(), SubscriptionSettings()
        hello = service_hello("gateway", "g1")
        clock = lambda: trio.current_time() + late  # noqa: E731
        shell = GatewayShell(object(), hello, (), *settings, clock, nursery)  # type: ignore[arg-type]
        shell.cluster.update(image())
        produced, check = shell.router.on_produce, shell.router.check

        def on_produce(source: int, message: Produce, now: float, **how: bool) -> None:
            nonlocal late
            late += list(costs.values())[source - 1]
            produced(source, message, now, **how)

        def look(source: int) -> None:
            nonlocal late
            late += list(costs.values())[source - 1]
            check(source)

        shell.router.on_produce, shell.router.check = on_produce, look  # type: ignore[method-assign]
        for who, link in links.items():
            shell.on_open(link, who)
        yield shell, links
        nursery.cancel_scope.cancel()


def left(shell: GatewayShell, link: Any) -> int:
    """Batches of the client that are not looked at yet."""
    return len(shell.router._unchecked.get(link.source, ()))


async def test_a_client_whose_batches_expand_greatly_gets_a_tenth_of_the_time(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Each takes half a second to look at, so the next one has its turn 4.5 s after it. Nothing is refused."""
    async with shell_of(mallory=0.5, bob=0.0) as (shell, links):
        parts = tuple(ProducePart(id, "id-0", 0, 2, 60_000, len(BOMB)) for id in range(4))
        shell.on_message(links["mallory"], None, Produce(parts, BOMB * 4))
        waiting = []
        for _ in range(60):
            await trio.testing.wait_all_tasks_blocked()
            waiting.append(left(shell, links["mallory"]))
            mock_clock.jump(0.25)
        assert all(17 <= waiting.count(each) <= 20 for each in (1, 2)) and waiting[-1] == 0
        shell.on_message(links["bob"], None, one(9, SMALL))
        assert shell.router.held[2] == len(SMALL), "others do not wait"


async def test_the_rest_of_one_principal_delays_no_other(mock_clock: trio.testing.MockClock) -> None:
    """One looks for long, and rests for long; another, whose batches are quick to look at, is done meanwhile."""
    async with shell_of(mallory=1.0, bob=0.01) as (shell, links):
        for who in ("mallory", "bob"):
            parts = tuple(ProducePart(id, "id-0", 0, 2, 60_000, len(BOMB)) for id in range(6))
            shell.on_message(links[who], None, Produce(parts, BOMB * 6))
        for _ in range(60):
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(0.1)
        assert left(shell, links["bob"]) == 0 and left(shell, links["mallory"]) == 5


async def test_a_new_connection_does_not_reset_the_costs_of_its_principal(mock_clock: trio.testing.MockClock) -> None:
    """Each connection would have its first batches looked at at once."""
    async with shell_of(a=1.0, b=1.0, bob=0.0) as (shell, links):
        for who in ("a", "b"):
            shell._tenants[links[who].source] = ("mallory", 0)
        shell.on_message(links["a"], None, one(1, BOMB))
        shell.on_close(links["a"])
        await trio.testing.wait_all_tasks_blocked()
        shell.on_message(links["b"], None, one(1, BOMB))
        shell.on_message(links["bob"], None, one(1, BOMB))
        assert left(shell, links["b"]) == 1 and left(shell, links["bob"]) == 0
        for _ in range(300):
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(0.1)
        assert left(shell, links["b"]) == 0 and shell.router.held[links["b"].source]


async def test_connections_of_one_principal_rest_together(mock_clock: trio.testing.MockClock) -> None:
    async with shell_of(a=1.0, b=1.0) as (shell, links):
        for link in links.values():
            shell._tenants[link.source] = ("mallory", 0)
            parts = tuple(ProducePart(id, "id-0", 0, 2, 60_000, len(BOMB)) for id in range(6))
            shell.on_message(link, None, Produce(parts, BOMB * 6))
        for _ in range(300):
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(0.1)
        assert sum(left(shell, link) for link in links.values()) >= 10 - 3, "three in thirty seconds"


@pytest.mark.parametrize("count", [MAX_RECORDS, MAX_RECORDS + 1, 10_000_000])
def test_a_small_batch_that_declares_very_many_records_is_refused_by_what_it_holds(count: int) -> None:
    """Only the one value that is there is looked at."""
    batch = encode_batch([NewRecord(bytes(1000), timestamp_ms=1)], codec="zstd")
    header = read_header(batch)._replace(record_count=count)
    with pytest.raises(CorruptBatch):
        check_fields(header)
        check_body(header, batch)


def test_a_quota_counts_what_a_request_costs() -> None:
    assert cost_of(Metadata(("a",)), 5000) == 1
    assert cost_of(Metadata(("a",) * 8000), 5000) == 81
    assert cost_of(Metadata(all_topics=True), 5000) == 51
    assert cost_of(Metadata(all_topics=True, offsets=True), 5000) == 501
    assert cost_of(Produce(tuple(ProducePart(id, "t", 0, 2, 5000, 0) for id in range(1000)), b""), 5000) == 11
    assert cost_of(FetchOffsets("g", (TopicShare("t", tuple(range(5000))),))) == 51
    assert cost_of(ListGroups(), 5000) == 1
    clock = SimpleNamespace(now=0.0)
    metering = QuotaEnforcer(lambda: clock.now, lambda link, credit: None)
    client: Any = type("Client", (), {"sent_bytes": 0})()
    metering.on_open(client, "alice")
    metering.update((Quota("alice", requests_s=100),))
    assert metering.refuse_over_quota(client, Metadata(("a",) * 30_000), 1) is None
    clock.now = 1.0
    refusal = metering.refuse_over_quota(client, Metadata(("a",)), 1)
    assert refusal is not None and refusal.code == "QUOTA_EXCEEDED", "three seconds' worth at once"
    clock.now = 3.5
    assert metering.refuse_over_quota(client, Metadata(("a",)), 1) is None


def test_the_log_names_a_principal_with_heavy_requests_once_a_minute() -> None:
    asking = HeavyRequests()
    lines = []
    for tenth in range(1200):
        asking.count("bob", "b", "metadata", 1, tenth / 10)
        for _ in range(10):
            if (line := asking.count("mallory", "m", "metadata", 50, tenth / 10)) is not None:
                lines.append(line)
    assert [line.name for line in lines] == ["client_asks_for_much"] * 2, "two minutes"
    assert lines[0].fields["principal"] == "mallory" and lines[0].fields["op"] == "metadata"
