"""What requests cost: batches that unfold to much, the quota, and the line in the log."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from tidelog.errors import CorruptBatch
from tidelog.levels import service_hello
from tidelog.records import MAX_RECORDS, NewRecord, check_body, check_fields, encode_batch, read_header
from tidelog.types import ClusterImage, PartitionState, Quota, TopicState
from tidelog.wire.messages import FetchOffsets, ListGroups, Metadata, Produce, ProducePart, TopicShare
from tidelog_gateway import describing
from tidelog_gateway.core.asking import Asking, cost_of
from tidelog_gateway.core.cluster import ClusterMap
from tidelog_gateway.core.router import Router
from tidelog_gateway.core.settings import RouterSettings, SubscriptionSettings
from tidelog_gateway.metering import Metering
from tidelog_gateway.shell import Shell


def image() -> ClusterImage:
    states = (PartitionState(("r1",), ("r1",), "r1", 1, 1),)
    return ClusterImage(1, "c", (), (TopicState("id-0", "topic-0", partitions=states),))


def new_router() -> Router:
    cluster = ClusterMap()
    cluster.update(image())
    router = Router(cluster, RouterSettings())
    router.on_link_opened(1, "alice", named=True)
    return router


def test_names_are_taken_once() -> None:
    assert describing.names_of(Metadata(("b", "a", "b") * 2000)) == ("b", "a")
    assert describing.names_of(Metadata(("b",), all_topics=True)) == ()


def test_batches_that_unfold_to_very_much_are_looked_at_one_by_one() -> None:
    router = new_router()
    batch = encode_batch([NewRecord(bytes(8 << 20), timestamp_ms=1)], codec="zstd")
    parts = tuple(ProducePart(id, "id-0", 0, 2, 5000, len(batch)) for id in range(12))
    rest: Produce | None = Produce(parts, batch * 12)
    turns = 0
    while rest is not None:
        rest = router.on_produce(1, rest, 0.0)
        turns += 1
    assert turns == 12
    assert router.held[1] == 12 * len(batch), "all of them are taken"


def test_batches_that_compress_well_are_looked_at_together() -> None:
    router = new_router()
    lines = [NewRecord(b"GET /orders/%d 200" % n, timestamp_ms=1) for n in range(2000)]
    batch = encode_batch(lines, codec="zstd")
    parts = tuple(ProducePart(id, "id-0", 0, 2, 5000, len(batch)) for id in range(50))
    assert router.on_produce(1, Produce(parts, batch * 50), 0.0) is None


async def test_who_sends_batches_that_unfold_to_much_gets_a_tenth_of_the_time(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Each takes half a second to look at, and comes in a message of its own; so the next one has its turn 4.5 s
    later. Nothing is refused."""
    looks = itertools.count()
    links: list[Any] = [SimpleNamespace(source=source, remote="r", post=None) for source in (1, 2)]
    batch = encode_batch([NewRecord(bytes(8 << 20), timestamp_ms=1)], codec="zstd")
    async with trio.open_nursery() as nursery:
        settings = RouterSettings(), SubscriptionSettings()
        clock = lambda: next(looks) / 2  # noqa: E731
        hello = service_hello("gateway", "g1")
        shell = Shell(object(), hello, (), *settings, clock, nursery)  # type: ignore[arg-type]
        shell.cluster.update(image())
        for link, who in zip(links, ("mallory", "bob"), strict=True):
            shell.on_open(link, who)
        for id in range(4):
            shell.on_message(links[0], None, Produce((ProducePart(id, "id-0", 0, 2, 5000, len(batch)),), batch))
        taken = []
        for _ in range(16):
            await trio.testing.wait_all_tasks_blocked()
            taken.append(shell.router.held[1] // len(batch))
            mock_clock.jump(1)
        assert taken == [1] * 5 + [2] * 5 + [3] * 5 + [4]
        small = encode_batch([NewRecord(b"x", timestamp_ms=1)])
        shell.on_message(links[1], None, Produce((ProducePart(9, "id-0", 0, 2, 5000, len(small)),), small))
        assert shell.router.held[2] == len(small), "others do not wait"
        nursery.cancel_scope.cancel()


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
    metering = Metering(lambda: clock.now, lambda link, credit: None)
    client: Any = type("Client", (), {"sent_bytes": 0})()
    metering.on_open(client, "alice")
    metering.update((Quota("alice", requests_s=100),))
    assert metering.judge(client, Metadata(("a",) * 30_000), 1) is None
    clock.now = 1.0
    refusal = metering.judge(client, Metadata(("a",)), 1)
    assert refusal is not None and refusal.code == "QUOTA_EXCEEDED", "three seconds' worth at once"
    clock.now = 3.5
    assert metering.judge(client, Metadata(("a",)), 1) is None


def test_the_log_names_who_asks_for_much_once_a_minute() -> None:
    asking = Asking()
    lines = []
    for tenth in range(1200):
        asking.count("bob", "b", "metadata", 1, tenth / 10)
        for _ in range(10):
            if (line := asking.count("mallory", "m", "metadata", 50, tenth / 10)) is not None:
                lines.append(line)
    assert [line.name for line in lines] == ["client_asks_for_much"] * 2, "two minutes"
    assert lines[0].fields["principal"] == "mallory" and lines[0].fields["op"] == "metadata"
