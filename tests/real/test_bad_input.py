"""Bad input at the real ports of all three services, by command, client and bare messages: a clear error each time,
nothing changed, and a well-behaved client goes on being served."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import cbor2
import pytest
import tidelog
import trio
from bare import Bare, bare
from running import HEAL_S, Cluster
from tidelog.batch.format import NewRecord, encode_batch
from tidelog.errors import BrokerError, TidelogError
from tidelog.feature_levels import service_hello
from tidelog.net.link import PROTOCOL_VERSION, Link, connect_link
from tidelog.net.transport import MAX_MESSAGE_BYTES
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.types import Acks
from tidelog.wire import codec
from tidelog.wire.messages import (
    AlterIsr,
    AppendEntries,
    CreateTopic,
    Fetch,
    FetchPart,
    Heartbeat,
    Hello,
    IsrMember,
    Message,
    Notify,
    NotifyPart,
    Produce,
    ProduceAck,
    Produced,
    ProducePart,
    Register,
    Watch,
)

pytestmark = pytest.mark.real

SERVICES = ("g1", "c1", "r1")
ROLES = {"g1": "client", "c1": "gateway", "r1": "gateway"}
"""As whom a peer may say hello there."""
KIBIBYTE = 1 << 10
SMALL = 64 * KIBIBYTE
"""``max_batch_bytes`` of the topic."""


@pytest.fixture(scope="module")
def topic_id(cluster: Cluster) -> str:
    """Topic ``kept`` with three records, and topic ``healthy`` for the well-behaved client."""

    async def make() -> str:
        async with cluster.connect() as log:
            await log.topics.create("healthy", replication_factor=3)
            config = {"max_batch_bytes": SMALL}
            made = await log.topics.create("kept", partitions=2, replication_factor=3, config=config)
            async with log.producer("kept") as producer:
                for number in range(3):
                    await producer.send(b"%d" % number, partition=0)
            return made.topic_id

    return trio.run(make)


async def picture(cluster: Cluster) -> Any:
    """All that must not change: servers and their lives, topics, leaders, ISRs, where the logs end."""
    async with cluster.connect() as log:
        status = await log.cluster.status()
        return (
            status.servers,
            sorted(topic.name for topic in status.topics),
            await log.topics.describe("kept", offsets=True),
        )


@pytest.fixture
async def unchanged(cluster: Cluster, topic_id: str) -> AsyncIterator[None]:
    """Whatever the test does changes nothing, and stops nobody."""
    before = await picture(cluster)
    yield
    assert await picture(cluster) == before
    with trio.fail_after(HEAL_S):
        async with cluster.connect() as log, log.producer("healthy") as producer:
            ack = await producer.send(b"served")
            record = await anext(aiter(log.consume("healthy", start=ack.offset)))
            assert (record.offset, record.value) == (ack.offset, b"served")


def url(cluster: Cluster, node: str) -> str:
    return cluster.local.get(node).url


def link_to(cluster: Cluster, node: str, role: str, name: str = "stranger", **handler: Any) -> Any:
    """A link whose hello says ``role``."""
    hello = service_hello(role, name)
    return connect_link(WebSocketTransport(), url(cluster, node), hello, handler.get("on_message"))


# --- commands --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["produce", "nosuch", "--file", "-"], 1, "UNKNOWN_TOPIC"),
        (["consume", "nosuch", "--to-end"], 1, "UNKNOWN_TOPIC"),
        (["topics", "describe", "nosuch"], 1, "UNKNOWN_TOPIC"),
        (["topics", "delete", "nosuch", "--yes"], 1, "UNKNOWN_TOPIC"),
        (["topics", "create", "no/slash"], 1, "INVALID_TOPIC"),
        (["topics", "create", "kept"], 1, "TOPIC_EXISTS"),
        (["topics", "create", "wide", "--replication-factor", "4"], 1, "INVALID_REPLICATION_FACTOR"),
        (["topics", "create", "odd", "--config", "flsh=os", "--config", "min_insync_replicas=x"], 1, "flsh"),
        (["produce", "kept", "--file", "/nonexistent/file"], 2, "/nonexistent/file"),
        (["produce", "kept", "--file", "/"], 2, "'/' is a directory"),
        (["consume", "kept", "--partition", "2", "--to-end"], 1, "partitions 0 to 1"),
        (["consume", "kept", "--from", "99", "--partition", "0", "--max", "1"], 1, "OFFSET_OUT_OF_RANGE"),
        (["why", "kept/2"], 1, "partitions 0 to 1"),
        (["why", "kept"], 2, "TOPIC/PARTITION"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
async def test_command(cluster: Cluster, unchanged: None, arguments: list[str], code: int, words: str) -> None:
    done = await trio.to_thread.run_sync(partial(cluster.tidelog, *arguments, stdin=b"line\n"))
    assert done.returncode == code, done.stderr
    assert words in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()


async def test_record_too_large_for_the_command(cluster: Cluster, unchanged: None) -> None:
    big = b"x" * (SMALL + 1)
    done = await trio.to_thread.run_sync(partial(cluster.tidelog, "produce", "kept", stdin=b"%b\n" % big))
    assert done.returncode == 1
    assert "BATCH_TOO_LARGE" in done.stderr.decode() and f"max_batch_bytes {SMALL}" in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()


async def test_record_too_large_for_the_client(cluster: Cluster, unchanged: None) -> None:
    async with cluster.connect() as log, log.producer("kept") as producer:
        with pytest.raises(BrokerError, match="max_batch_bytes") as refused:
            await producer.send(b"x" * (SMALL + 1))
        assert (refused.value.code, refused.value.unknown_outcome) == ("BATCH_TOO_LARGE", False)


# --- batches ---------------------------------------------------------------------------------------------


def good_batch(size: int = 10) -> bytes:
    return encode_batch([NewRecord(b"x" * size, None, 0)])


def broken_crc() -> bytes:
    batch = bytearray(good_batch())
    batch[-1] ^= 1
    return bytes(batch)


BATCHES = {
    "broken CRC": (broken_crc(), "CORRUPT_BATCH"),
    "cut short": (good_batch()[:-1], "CORRUPT_BATCH"),
    "no batch at all": (b"hello", "CORRUPT_BATCH"),
    "nothing": (b"", "CORRUPT_BATCH"),
    "too large": (good_batch(SMALL), "BATCH_TOO_LARGE"),
}


@pytest.mark.parametrize("node", ["g1", "leader"])
async def test_bad_batches(cluster: Cluster, unchanged: None, topic_id: str, node: str) -> None:
    """Each is refused in its ack, by the gateway and by the leader itself."""
    async with cluster.connect() as log:
        leader = (await log.topics.describe("kept")).partitions[0]
    acks: dict[int, ProduceAck] = {}
    news = trio.Event()

    def on_message(_link: Link, _id: int | None, message: Message) -> None:
        assert isinstance(message, Produced)
        acks.update({ack.id: ack for ack in message.acks})
        if len(acks) == len(BATCHES) + 1:
            news.set()

    target, role = (node, "client") if node == "g1" else (leader.leader, "gateway")
    epoch = -1 if node == "g1" else leader.leader_epoch
    async with link_to(cluster, target, role, on_message=on_message) as link:
        for number, (batch, _code) in enumerate(BATCHES.values()):
            part = ProducePart(number, topic_id, 0, int(Acks.ALL), 5_000, len(batch), epoch)
            link.post(Produce((part,), batch))
        gone = ProducePart(99, "nosuch", 0, int(Acks.ALL), 5_000, len(good_batch()), epoch)
        link.post(Produce((gone,), good_batch()))
        with trio.fail_after(HEAL_S):
            await news.wait()
    assert acks.pop(99).error is not None
    found = {name: acks[number].error for number, name in enumerate(BATCHES)}
    assert {name: error and error.code for name, error in found.items()} == {n: c for n, (_, c) in BATCHES.items()}
    assert all(error and error.message and not error.unknown_outcome for error in found.values())


# --- messages --------------------------------------------------------------------------------------------


async def say_hello(socket: Bare, role: str) -> None:
    await socket.send(codec.encode(service_hello(role, "bare"), id=0)[0])
    assert "error" not in cbor2.loads(await socket.receive())


@pytest.mark.parametrize("node", SERVICES)
async def test_messages_outside_the_protocol(cluster: Cluster, unchanged: None, node: str) -> None:
    for data, code in (
        (b"\xff\xfe not CBOR", 1007),
        (b"", 1007),
        (cbor2.dumps([1, 2, 3]), 1002),
        (cbor2.dumps({"op": "watch", "id": "seven"}), 1002),
        (cbor2.dumps({"op": 7, "id": 1}), 1002),
        ("text", 1003),
        (b"\0" * (MAX_MESSAGE_BYTES + 1), 1009),
    ):
        with trio.fail_after(HEAL_S):
            async with bare(url(cluster, node)) as socket, trio.open_nursery() as nursery:
                await say_hello(socket, ROLES[node])
                nursery.start_soon(socket.send, data)
                said, reason = await socket.closed_with()
        assert (said, reason != "") == (code, True), data[:20]


@pytest.mark.parametrize("node", SERVICES)
async def test_nothing_is_served_before_a_proper_hello(cluster: Cluster, unchanged: None, node: str) -> None:
    for first, code in (
        (codec.encode(Watch(), id=1)[0], 1002),
        (codec.encode(Hello(99, ROLES[node], "bare"), id=0)[0], 1008),
        (codec.encode(Hello(PROTOCOL_VERSION, "king", "bare"), id=0)[0], 1008),
        (codec.encode(Hello(PROTOCOL_VERSION, ROLES[node], "bare", "another-cluster"), id=0)[0], 1008),
    ):
        with trio.fail_after(HEAL_S):
            async with bare(url(cluster, node)) as socket:
                await socket.send(first)
                assert (await socket.closed_with())[0] == code


# --- messages of others ----------------------------------------------------------------------------------


def fetch(topic_id: str, node: str = "r1") -> Fetch:
    return Fetch(node, 10**9, 1 << 20, (FetchPart(topic_id, 0, 1, 0, durable=10**6),))


async def test_services_messages_are_forbidden_to_others(cluster: Cluster, unchanged: None, topic_id: str) -> None:
    alter = AlterIsr("r1", 1, topic_id, 0, 1, 1, (IsrMember("r1", 1),), "because I say so")
    for node, role, request in (
        ("g1", "client", fetch(topic_id)),
        ("g1", "client", Register("r9", "ws://127.0.0.1:1")),
        ("g1", "client", alter),
        ("g1", "client", Watch()),
        ("c1", "client", CreateTopic("mine")),
        ("c1", "client", Watch()),
        ("c1", "gateway", alter),
        ("c1", "gateway", Register("r1", "ws://127.0.0.1:1")),
        ("c1", "replica", CreateTopic("mine")),
        ("c1", "replica", alter),
        ("c1", "replica", Register("r1", "ws://127.0.0.1:1")),
        ("c1", "replica", Heartbeat("r1", 1)),
        ("r1", "gateway", fetch(topic_id)),
        ("r1", "replica", fetch(topic_id, "r2")),
        ("r1", "controller", fetch(topic_id)),
    ):
        async with link_to(cluster, node, role) as link:
            try:
                answer: object = await link.call(request, HEAL_S)
            except BrokerError as error:
                answer = error.code
            assert answer == "FORBIDDEN", (node, role, request)


async def test_roles_without_a_place_are_refused(cluster: Cluster, unchanged: None) -> None:
    for node, role in (("g1", "replica"), ("g1", "controller"), ("r1", "client")):
        with pytest.raises(TidelogError, match="FORBIDDEN"):
            async with link_to(cluster, node, role):
                pass
    with pytest.raises(TidelogError, match="FORBIDDEN"):
        async with link_to(cluster, "c1", "controller", "c1"):
            pass


async def test_one_way_messages_of_others_end_the_connection(
    cluster: Cluster, unchanged: None, topic_id: str
) -> None:
    for node, role, message in (
        ("g1", "client", AppendEntries(99, 0, 0, 0)),
        ("g1", "client", Notify((NotifyPart(topic_id, 0, 1),))),
        ("c1", "replica", AppendEntries(99, 0, 0, 0)),
        ("r1", "gateway", Notify((NotifyPart(topic_id, 0, 1),))),
    ):
        async with link_to(cluster, node, role) as link:
            link.post(message)
            with trio.fail_after(HEAL_S):
                await link.wait_closed()
            assert link.error is not None


async def test_a_client_gets_an_error_for_an_unknown_or_invalid_topic(cluster: Cluster, unchanged: None) -> None:
    async with tidelog.connect(cluster.gateways) as log:
        with pytest.raises(BrokerError, match="UNKNOWN_TOPIC"):
            await log.partitions.history("nosuch", 0)
        with pytest.raises(BrokerError, match="UNKNOWN_TOPIC"):
            async with log.producer("nosuch"):
                pass
        with pytest.raises(BrokerError, match="INVALID_REPLICATION_FACTOR"):
            await log.topics.create("wide", replication_factor=4)
        with pytest.raises(BrokerError, match="INVALID_TOPIC"):
            await log.topics.create("..", replication_factor=1)
