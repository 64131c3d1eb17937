"""Gateways and their clients, between two steps of the protocol."""

from __future__ import annotations

from pathlib import Path

import pytest
import tidelog
import trio
from running import HEAL_S, Cluster, until
from tidelog.client.log import Log
from tidelog.net.link import PROTOCOL_VERSION
from tidelog.net.transport import Connection
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.wire import codec
from tidelog.wire.messages import Hello, Subscribe

pytestmark = pytest.mark.real

RECORD_BYTES = 100_000
RECORDS = 1000


class Wire:
    """Carries one client's bytes to a gateway, and what comes back until it is told to hold that."""

    def __init__(self, url: str) -> None:
        self._port = int(url.rpartition(":")[2])
        self._back = trio.Event()
        self._back.set()
        self._scope = trio.CancelScope()

    async def run(self, task_status: trio.TaskStatus[str]) -> None:
        """Reports its own URL; until ``cut``."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        with self._scope:
            port = listeners[0].socket.getsockname()[1]
            task_status.started(f"ws://127.0.0.1:{port}")
            await trio.serve_listeners(self._carry, listeners)

    def hold(self) -> None:
        """From now on the client hears nothing."""
        self._back = trio.Event()

    def cut(self) -> None:
        """It carries nothing any more, and nobody can come."""
        self._scope.cancel()

    async def _carry(self, client: trio.SocketStream) -> None:
        async with await trio.open_tcp_stream("127.0.0.1", self._port) as gateway, trio.open_nursery() as nursery:
            nursery.start_soon(self._forth, client, gateway)
            async for data in gateway:
                await self._back.wait()
                await client.send_all(data)
            nursery.cancel_scope.cancel()

    async def _forth(self, client: trio.SocketStream, gateway: trio.SocketStream) -> None:
        async for data in client:
            await gateway.send_all(data)
        await gateway.send_eof()


async def test_E8_a_gateway_dies_between_the_replicas_ack_and_the_clients(failing_cluster: Cluster) -> None:
    """The record is committed when the client, which has no ack, sends it again by another gateway: it gets the ack
    of the first try, and the log holds it once."""
    first_url, second_url = failing_cluster.gateways
    wire = Wire(first_url)
    with trio.fail_after(HEAL_S):
        async with failing_cluster.connect() as other, trio.open_nursery() as nursery:
            await other.topics.create("ack-lost", replication_factor=3)
            urls = [await nursery.start(wire.run), second_url]
            async with tidelog.connect(urls) as log, log.producer("ack-lost") as producer:
                assert (await producer.send(b"a")).offset == 0
                wire.hold()
                pending = await producer.submit(b"b")
                async with tidelog.connect(second_url) as witness:
                    await until(lambda: _ends_at(witness, 2))
                failing_cluster.local.kill("g1")
                wire.cut()
                assert (await pending.wait()).offset == 1
                assert (await producer.send(b"c")).offset == 2
            async with tidelog.connect(second_url) as reader:
                records = reader.consume("ack-lost", start="earliest", end="latest")
                assert [record.value async for record in records] == [b"a", b"b", b"c"]
    failing_cluster.local.restart("g1")
    await failing_cluster.local.wait_ready()


async def test_E7_a_consumer_that_does_not_read_costs_bounded_memory_and_delays_nobody(
    failing_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives credit for its subscriptions, and then reads nothing. Another consumer of the gateway gets all that is
    written meanwhile, which is far more than the gateway's memory grows by."""
    monkeypatch.setenv("TIDELOG_TAIL_CACHE_BYTES", str(4 << 20))
    failing_cluster.local.restart("g1")
    await failing_cluster.local.wait_ready()
    gateway = failing_cluster.local.get("g1")
    with trio.fail_after(2 * HEAL_S):
        async with tidelog.connect(failing_cluster.gateways[1]) as log, tidelog.connect(gateway.url) as reader:
            topic = await log.topics.create("unread", replication_factor=3, config={"flush": "os"})
            slow = await _subscribe_and_stop_reading(gateway.url, topic.topic_id)
            before = _peak_bytes(gateway.pid)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_write, log)
                async with reader.consume("unread", start="earliest") as consumer:
                    for number in range(RECORDS):
                        record = await consumer.__anext__()
                        assert (record.offset, len(record.value or b"")) == (number, RECORD_BYTES)
            grown = _peak_bytes(gateway.pid) - before
            await slow.aclose()
    assert grown < RECORDS * RECORD_BYTES / 2, f"{grown >> 20} MiB"


async def _write(log: Log) -> None:
    async with log.producer("unread", tidelog.ProducerOptions(batch_bytes=RECORD_BYTES)) as producer:
        for number in range(RECORDS):
            await producer.submit(number.to_bytes(4) + bytes(RECORD_BYTES - 4))


async def _subscribe_and_stop_reading(url: str, topic_id: str) -> Connection:
    connection = await WebSocketTransport().connect(url)
    await connection.send(*codec.encode(Hello(PROTOCOL_VERSION, "client", "slow"), id=0))
    await connection.receive()
    for sub in range(1, 9):
        await connection.send(*codec.encode(Subscribe(sub, topic_id, 0, 0, 1 << 20), id=sub))
    return connection


def _peak_bytes(pid: int) -> int:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) << 10


async def _ends_at(log: Log, offset: int) -> bool:
    return (await log.partitions.list_offset("ack-lost", 0, "latest")).offset == offset
