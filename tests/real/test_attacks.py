"""Every attack at the real ports of all three services, before hello and after it: how the server ends it, and beside
it a well-behaved client whose records are all taken and read in order.

What takes its time (peers that are slow, silent, or read nothing) is begun before the first of the tests and looked
at in the last one, so that it goes on beside all the others.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import cbor2
import pytest
import trio
from bare import Bare, bare
from running import HEAL_S, Cluster
from support.hostile_wire import HANDSHAKES, MESSAGES, REFUSED, ending, frame, frames_for, slow_peers
from tidelog.batch.format import NewRecord, encode_batch
from tidelog.feature_levels import service_hello
from tidelog.net.transport import MAX_MESSAGE_BYTES
from tidelog.net.websocket.transport import HELLO_BYTES
from tidelog.wire import codec
from tidelog.wire.messages import Message, Read, Subscribe, Welcome

pytestmark = pytest.mark.real

PLACES = (("g1", "client"), ("c1", "gateway"), ("r1", "replica"))
"""Each service, and as whom it is spoken to."""
OF_A_CLIENT = frozenset({"raft", "one-way op of another plane"})
"""Allowed to some other role."""
CROWD = 200
"""So many connect to each port and say nothing."""


@pytest.fixture(scope="module", autouse=True)
def slow(cluster: Cluster) -> Iterator[dict[tuple[str, str], tuple[socket.socket, set[int]]]]:
    """Slow peers of every service by node and name, and how they must end. Nobody has read from them yet."""
    peers = {}
    for node, role in PLACES:
        wires = slow_peers(hello_of(role)) | {f"one of a crowd, {n}": (b"", {408}) for n in range(CROWD)}
        for name, (wire, endings) in wires.items():
            peers[node, name] = begin(cluster, node, wire), endings
    yield peers
    for peer, _ in peers.values():
        peer.close()


def begin(cluster: Cluster, node: str, wire: bytes) -> socket.socket:
    """Connect, with little room for what the server says, and say this."""
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.settimeout(HEAL_S)
    peer.connect(("127.0.0.1", port_of(cluster, node)))
    with suppress(ConnectionError):  # it had enough before it heard all
        peer.sendall(wire)
    return peer


@pytest.mark.parametrize("node", ["g1", "c1", "r1"])
def test_handshakes_that_are_none(cluster: Cluster, node: str) -> None:
    for name, (wire, status) in HANDSHAKES.items():
        with closing(begin(cluster, node, wire)) as peer:
            assert (name, ending(all_of(peer))) == (name, status)


@pytest.mark.parametrize(("node", "role"), PLACES)
async def test_attacks_after_hello(cluster: Cluster, node: str, role: str) -> None:
    attacks = {name: (frame(2, data), code) for name, (data, code) in MESSAGES.items()}
    if role != "client":
        attacks = {name: attack for name, attack in attacks.items() if name not in OF_A_CLIENT}
    await attack_beside_a_client(cluster, node, role, attacks | frames_for(MAX_MESSAGE_BYTES))


@pytest.mark.parametrize("node", ["g1", "c1", "r1"])
async def test_attacks_before_hello(cluster: Cluster, node: str) -> None:
    """Then every message that can be read is one too many: 1002; and a long one is not even taken: 1009."""
    attacks = {
        name: (frame(2, data), 1009 if len(data) > HELLO_BYTES else 1007 if code == 1007 else 1002)
        for name, (data, code) in MESSAGES.items()
    }
    await attack_beside_a_client(cluster, node, "", attacks | frames_for(MAX_MESSAGE_BYTES))


async def test_requests_that_cannot_be_read_are_refused_one_by_one(cluster: Cluster) -> None:
    """On one connection, which goes on: also the batches of a message of which one cannot be read."""
    async with cluster.connect() as log, bare(cluster.local.get("g1").url) as peer:
        topic = await log.topics.create("half-read", replication_factor=3)
        await say_hello(peer, "client")
        with trio.fail_after(HEAL_S):
            for name, (data, words) in REFUSED.items():
                await peer.send(data)
                refused = await answer(peer)
                assert (name, refused["re"], refused["error"]["code"]) == (name, 1, "MALFORMED")
                assert words in refused["error"]["message"]
            batch = encode_batch([NewRecord(b"read", None, 1)])
            part = {"topic_id": topic.topic_id, "partition": 0, "acks": 2, "timeout_ms": 30_000, "size": len(batch)}
            parts = [{**part, "id": 1}, {**part, "id": 2, "acks": "all"}, {**part, "id": 3}]
            await peer.send(cbor2.dumps({"op": "produce", "parts": parts}) + cbor2.dumps(batch * 3))
            acks = {}
            while len(acks) < len(parts):
                acks |= {ack["id"]: ack for ack in cbor2.loads(await peer.receive())["acks"]}
            assert [acks[id].get("offset") for id in (1, 2, 3)] == [0, None, 1]
            assert acks[2]["error"]["code"] == "MALFORMED"


async def attack_beside_a_client(
    cluster: Cluster, node: str, role: str, attacks: dict[str, tuple[bytes, int]]
) -> None:
    """One connection for each attack; ``role``: as whom it says hello before ("": it does not)."""
    topic = f"beside-{node}-{role or 'nobody'}"
    codes: dict[str, int] = {}
    url = cluster.local.get(node).url
    async with cluster.connect() as log:
        await log.topics.create(topic, replication_factor=3)
        async with log.producer(topic) as producer:
            for number, (name, (wire, _)) in enumerate(attacks.items()):
                with trio.fail_after(HEAL_S):
                    async with bare(url) as peer, trio.open_nursery() as nursery:
                        if role:
                            await say_hello(peer, role)
                        nursery.start_soon(peer.send_raw, wire)
                        assert (await producer.send(b"%d" % number)).offset == number
                        codes[name], reason = await peer.closed_with()
                        assert reason, name
        with trio.fail_after(HEAL_S):
            read = [record.value async for record in log.consume(topic, start="earliest", end="latest")]
    assert codes == {name: code for name, (_, code) in attacks.items()}
    assert read == [b"%d" % number for number in range(len(attacks))]


async def test_more_subscriptions_than_a_client_may_have(cluster: Cluster) -> None:
    """The one too many is refused; those that are there go on, and give room when they end."""
    limit = 1000  # client_max_subscriptions
    async with cluster.connect() as log, bare(cluster.local.get("g1").url) as peer:
        topic = (await log.topics.create("much-subscribed", replication_factor=3)).topic_id
        await say_hello(peer, "client")
        with trio.fail_after(HEAL_S):
            for sub in range(limit + 1):
                await ask(peer, sub, Subscribe(sub, topic, 0, 0, credit=1 << 20 if sub == limit - 1 else 0))
            codes = [(await answer(peer)).get("error", {}).get("code") for _ in range(limit + 1)]
            assert codes == [None] * limit + ["OVERLOADED"]
            async with log.producer("much-subscribed") as producer:
                await producer.send(b"served")
            while (said := cbor2.loads(await peer.receive())).get("sub") != limit - 1 or "high_watermark" not in said:
                continue


async def test_more_requests_than_a_client_may_have_in_flight(cluster: Cluster) -> None:
    """What is too much is refused; the others wait, and are answered."""
    async with cluster.connect() as log, bare(cluster.local.get("g1").url) as peer:
        topic = await log.topics.create("much-read", replication_factor=3)
        async with log.producer("much-read") as producer:
            await producer.send(b"its log is open")
            count = (await say_hello(peer, "client")).max_in_flight + 1
            with trio.fail_after(HEAL_S):
                for id in range(count):
                    await ask(peer, id, Read(topic.topic_id, 0, 1, max_wait_ms=60_000))
                first = await answer(peer)
                await producer.send(b"served")
                answers = [first, *[await answer(peer) for _ in range(count - 1)]]
    assert first["error"]["code"] == "OVERLOADED" and sorted(one["re"] for one in answers) == list(range(count))
    assert first["error"]["detail"] == {"limit": "requests", "most": str(count - 1)}
    assert [one["re"] for one in answers if "error" in one] == [count - 1], "as many as announced are in force"


@pytest.mark.parametrize("limit", ["produce_bytes", "produce_batches"])
async def test_more_batches_than_a_client_may_have_in_flight(cluster: Cluster, limit: str) -> None:
    """Exactly what the welcome has announced is taken while the leader stands still, and acked when it goes on."""
    async with cluster.connect() as log, bare(cluster.local.get("g1").url) as peer:
        topic = await log.topics.create(
            f"much-written-{limit}", replication_factor=1, config={"max_batch_bytes": 11 << 20}
        )
        async with log.producer(topic.name) as producer:
            await producer.send(b"its log is open")
        most = (await say_hello(peer, "client")).limits
        batch = encode_batch([NewRecord(bytes(4 << 20 if limit == "produce_bytes" else 1), None, 1)])
        count = most[limit] // len(batch) if limit == "produce_bytes" else most[limit]
        leader = (await log.topics.describe(topic.name)).partitions[0].leader
        cluster.local.pause(leader)
        try:
            part = {"topic_id": topic.topic_id, "partition": 0, "acks": 1, "timeout_ms": 60_000, "size": len(batch)}
            at_once = 1 if limit == "produce_bytes" else 1000
            with trio.fail_after(HEAL_S):
                for first in range(0, count + 1, at_once):
                    ids = range(first, min(first + at_once, count + 1))
                    parts = [{**part, "id": id} for id in ids]
                    await peer.send(cbor2.dumps({"op": "produce", "parts": parts}) + cbor2.dumps(batch * len(ids)))
                (refused,) = cbor2.loads(await peer.receive())["acks"]
                assert refused["id"] == count and refused["error"]["code"] == "OVERLOADED"
                assert refused["error"]["detail"] == {"limit": limit, "most": str(most[limit])}
        finally:
            cluster.local.resume(leader)
        acked = 0
        with trio.fail_after(HEAL_S):
            while acked < count:
                acks = cbor2.loads(await peer.receive())["acks"]
                assert not any("error" in ack for ack in acks)
                acked += len(acks)


def test_slow_peers_are_let_go(slow: dict[tuple[str, str], tuple[socket.socket, set[int]]]) -> None:
    found = {name: ending(all_of(peer)) for name, (peer, _) in slow.items()}
    assert {name: code for name, code in found.items() if code not in slow[name][1]} == {}


def port_of(cluster: Cluster, node: str) -> int:
    return int(cluster.local.get(node).url.rpartition(":")[2])


def all_of(peer: socket.socket) -> bytes:
    """What the server said until it hung up."""
    data = b""
    with suppress(ConnectionError):
        while more := peer.recv(1 << 20):
            data += more
    return data


def hello_of(role: str) -> bytes:
    return codec.encode(service_hello(role, "bare"), id=0)[0]


async def say_hello(peer: Bare, role: str) -> Welcome:
    await peer.send(hello_of(role))
    welcome = codec.decode(await peer.receive(), answers=lambda _: Welcome).message
    assert isinstance(welcome, Welcome)
    return welcome


async def ask(peer: Bare, id: int, request: Message) -> None:
    await peer.send(codec.encode(request, id=id)[0])


async def answer(peer: Bare) -> dict[str, Any]:
    """The header of the next answer; what else comes is skipped."""
    while "re" not in (header := cbor2.loads(await peer.receive())):
        continue
    return dict(header)
