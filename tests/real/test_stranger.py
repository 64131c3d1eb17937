"""A client that was written from the documentation alone works, beside ours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio
from running import HEAL_S, Cluster
from stranger import Refused, Stranger, batch_of, stranger_at

pytestmark = pytest.mark.real

HERS = [
    (b"key", b"value", [("trace", b"\x01"), ("trace", b"")]),
    (None, b"only a value", []),
    (b"tombstone", None, []),
]


@pytest.fixture
def stranger(cluster: Cluster) -> Iterator[Stranger]:
    with stranger_at(cluster.gateways[0]) as stranger:
        yield stranger


def test_a_client_written_from_the_specification_reads_its_records_and_so_does_ours(
    cluster: Cluster, stranger: Stranger
) -> None:
    topic_id = stranger.create("strange", partitions=2)
    assert stranger.topic_id("strange") == topic_id
    for number in range(20):
        ack = stranger.produce(topic_id, 1, batch_of(HERS), acks=1 + number % 2)
        assert ack["offset"] == 3 * number and ack["durability"].startswith(("leader/", "all/"))
    expected = [(n, *HERS[n % 3]) for n in range(60)]
    assert stranger.consume(topic_id, 1, count=60) == expected

    async def read_as_we_do() -> list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes]]]]:
        with trio.fail_after(HEAL_S):
            async with cluster.connect() as log:
                found = log.consume("strange", start="earliest", end="latest")
                return [(one.offset, one.key, one.value, list(one.headers)) async for one in found]

    assert trio.run(read_as_we_do) == expected


def test_a_client_written_from_the_specification_gets_an_error_for_each_mistake(stranger: Stranger) -> None:
    assert stranger.topic_id("not-there") is None
    topic_id = stranger.create("strange-errors", partitions=1)
    with pytest.raises(Refused, match="TOPIC_EXISTS"):
        stranger.create("strange-errors", partitions=1)
    with pytest.raises(Refused, match="CORRUPT_BATCH"):
        stranger.produce(topic_id, 0, batch_of(HERS)[:-1])
    with pytest.raises(Refused, match="UNKNOWN_TOPIC"):
        stranger.produce("another", 0, batch_of(HERS))
    with pytest.raises(Refused, match="FORBIDDEN"):
        stranger.ask("watch")
    with pytest.raises(Refused, match="UNSUPPORTED"):
        stranger.ask("levitate")
    assert stranger.produce(topic_id, 0, batch_of(HERS))["offset"] == 0
