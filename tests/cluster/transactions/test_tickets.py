"""Producer ids of others, attacked at a real gateway of a whole cluster: every attack is refused before anything is
written, and the owner of the id goes on, over other gateways and keys."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import tidelog
import trio
from tidelog.batch.format import NewRecord, encode_batch
from tidelog.errors import TidelogError
from tidelog.net.link import Link, connect_link
from tidelog.wire.link_session import PROTOCOL_VERSION
from tidelog.wire.messages import (
    BeginTransaction,
    EndTransaction,
    Hello,
    InitProducer,
    InitTaskProducer,
    Message,
    Produce,
    ProducePart,
    ProducerId,
    ProducerTicket,
    TaskProducer,
    TransactionBegun,
    TransactionEnded,
    UseProducer,
)

from cluster.harness import Client, Cluster, running

WAIT_S = 15.0


@asynccontextmanager
async def client_of(url: str, cluster: Cluster, token: str = "") -> AsyncIterator[Client]:
    """A client without a library, with a token. The gateway may have yet to hear of the token."""
    clients: list[Client] = []

    def handle(link: Link, id: int | None, message: Message) -> None:
        clients[0].on_message(link, id, message)

    hello = Hello(PROTOCOL_VERSION, "client", "test", token=token)
    async with connect_link(cluster.transport, url, hello, handle) as link:
        clients.append(Client(link))
        yield clients[0]


async def two_tokens(cluster: Cluster) -> tuple[str, str]:
    """Tokens of alice and of mallory, which the gateway knows."""
    async with tidelog.connect(cluster.gateway) as log:
        tokens = await log.access.create_token("alice"), await log.access.create_token("mallory")
    with trio.fail_after(WAIT_S):
        for token in tokens:
            while True:
                try:
                    async with client_of(cluster.gateway, cluster, token):
                        break
                except TidelogError as error:
                    assert error.code == "UNAUTHENTICATED"
    return tokens


def batch(producer_id: int, epoch: int, sequence: int, *values: bytes, transactional: bool = False) -> bytes:
    records = [NewRecord(value, timestamp_ms=1) for value in values]
    return encode_batch(
        records,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )


class Writer:
    """Sends batches under any id to one partition of a topic."""

    def __init__(self, client: Client, topic_id: str) -> None:
        self.client = client
        self._topic_id = topic_id
        self._ids = iter(range(1000, 2000))

    async def write(self, data: bytes, app: str = "") -> str:
        """The code that the batch is refused with; "": it was taken."""
        id = next(self._ids)
        part = ProducePart(id, self._topic_id, 0, 2, 15_000, len(data), transaction=app)
        self.client.link.post(Produce((part,), data))
        ack = await self.client.wait_ack(id)
        if ack.error is not None:
            assert not ack.error.unknown_outcome
        return "" if ack.error is None else ack.error.code

    async def use(self, producer_id: int, epoch: int, ticket: str) -> str:
        """The code that the ticket is refused with; "": it was taken."""
        try:
            answer = await self.client.link.call(UseProducer(producer_id, epoch, ticket), WAIT_S)
        except TidelogError as error:
            return error.code
        assert isinstance(answer, ProducerTicket) and answer.ticket
        return ""

    async def init(self) -> ProducerId:
        answer = await self.client.link.call(InitProducer(), WAIT_S)
        assert isinstance(answer, ProducerId) and answer.ticket
        return answer


async def test_nothing_is_written_under_an_id_of_somebody_else(tmp_path: Path) -> None:
    """A plain batch under another's id, a made-up id, a made-up epoch, another's ticket, a ticket with a bit flipped.
    Each of them is also tried after a batch under an id of the attacker's own, which is taken."""
    async with running(tmp_path, replicas=1) as cluster:
        alices, mallorys = await two_tokens(cluster)
        async with (
            client_of(cluster.gateway, cluster, alices) as alice,
            client_of(cluster.gateway, cluster, mallorys) as mallory,
        ):
            topic_id = await alice.create("orders", replication_factor=1)
            victim, attacker = Writer(alice, topic_id), Writer(mallory, topic_id)
            given, own = await victim.init(), await attacker.init()
            assert await victim.use(given.producer_id, 0, given.ticket) == ""
            assert await victim.write(batch(given.producer_id, 0, 0, b"a")) == ""

            async def attack() -> None:
                for id, epoch in ((given.producer_id, 0), (given.producer_id, 1), (12345, 0), (own.producer_id, 1)):
                    assert await attacker.write(batch(id, epoch, 1, b"forged")) == "INVALID_TICKET", (id, epoch)
                flipped = given.ticket[:-1] + ("0" if given.ticket[-1] != "0" else "1")
                for ticket in (given.ticket, flipped, own.ticket, ""):
                    assert await attacker.use(given.producer_id, 0, ticket) == "INVALID_TICKET"
                    assert await attacker.write(batch(given.producer_id, 0, 1, b"forged")) == "INVALID_TICKET"
                assert await attacker.use(own.producer_id, 1, own.ticket) == "INVALID_TICKET"

            await attack()
            assert await attacker.use(own.producer_id, 0, own.ticket) == ""
            assert await attacker.write(batch(own.producer_id, 0, 0, b"m")) == ""
            await attack()
            assert await victim.write(batch(given.producer_id, 1, 0, b"raised")) == "INVALID_TICKET"
            assert await victim.write(batch(given.producer_id, 0, 1, b"b")) == ""
            assert [record.value for record in await alice.read(topic_id, 3)] == [b"a", b"m", b"b"]


async def test_nobody_else_writes_under_the_id_of_a_transaction_or_a_task(tmp_path: Path) -> None:
    """A plain batch under a transaction's id at a later epoch once fenced the transaction and held back readers for
    ever."""
    async with running(tmp_path, replicas=1) as cluster:
        alices, mallorys = await two_tokens(cluster)
        async with (
            client_of(cluster.gateway, cluster, alices) as alice,
            client_of(cluster.gateway, cluster, mallorys) as mallory,
        ):
            topic_id = await alice.create("orders", replication_factor=1)
            victim, attacker = Writer(alice, topic_id), Writer(mallory, topic_id)
            begun = await alice.link.call(BeginTransaction("bank", "one"), WAIT_S)
            assert isinstance(begun, TransactionBegun) and begun.ticket
            id, epoch = begun.producer_id, begun.producer_epoch
            assert await attacker.use(id, epoch, begun.ticket) == "INVALID_TICKET"
            assert await victim.use(id, epoch, begun.ticket) == ""
            assert await victim.write(batch(id, epoch, 0, b"a", transactional=True), "bank") == ""
            for later in (epoch, epoch + 1):
                assert await attacker.write(batch(id, later, 1, b"forged")) == "INVALID_TICKET"
            assert await victim.write(batch(id, epoch, 1, b"b", transactional=True), "bank") == ""
            ended = await alice.link.call(EndTransaction("bank", id, epoch, True), WAIT_S)
            assert isinstance(ended, TransactionEnded) and ended.committed
            task = await alice.link.call(InitTaskProducer("etl", "query", 7, 2), WAIT_S)
            assert isinstance(task, TaskProducer)
            assert await attacker.use(task.producer_id, task.producer_epoch, task.ticket) == "INVALID_TICKET"
            assert await victim.use(task.producer_id, task.producer_epoch, task.ticket) == ""
            assert await victim.write(batch(task.producer_id, task.producer_epoch, 0, b"c")) == ""
        async with tidelog.connect(cluster.gateway) as log:
            values = [record.value async for record in log.consume("orders", start="earliest", end="latest")]
        assert values == [b"a", b"b", b"c"]


async def test_a_ticket_is_good_at_every_gateway_and_for_one_rotation_of_the_key(tmp_path: Path) -> None:
    async with running(tmp_path, replicas=1) as cluster, tidelog.connect(cluster.gateway) as log:
        async with client_of(cluster.gateway, cluster) as first:
            topic_id = await first.create("orders", replication_factor=1)
            given = await Writer(first, topic_id).init()
        second = await cluster.start("g2")
        async with client_of(second, cluster) as client:
            writer = Writer(client, topic_id)
            assert await writer.write(batch(given.producer_id, 0, 0, b"a")) == "INVALID_TICKET"
            assert await writer.use(given.producer_id, 0, given.ticket) == ""
            assert await writer.write(batch(given.producer_id, 0, 0, b"a")) == ""
            await log.access.rotate_ticket_keys()
            async with client_of(cluster.gateway, cluster) as again:
                assert await Writer(again, topic_id).use(given.producer_id, 0, given.ticket) == ""
            await log.access.rotate_ticket_keys()
            async with client_of(cluster.gateway, cluster) as late:
                other = Writer(late, topic_id)
                assert await other.use(given.producer_id, 0, given.ticket) == "INVALID_TICKET"
                assert await other.write(batch(given.producer_id, 0, 1, b"b")) == "INVALID_TICKET"
            assert await writer.write(batch(given.producer_id, 0, 1, b"b")) == "", "its connection is the same"


@pytest.mark.parametrize("rotations", [1, 2])
async def test_a_producer_that_connects_again_goes_on_whatever_became_of_the_key(
    tmp_path: Path, rotations: int
) -> None:
    """After one rotation under the same id. After two, without a connection in between, under a new one."""
    async with running(tmp_path, replicas=1) as cluster:
        second = await cluster.start("g2")
        async with tidelog.connect([cluster.gateway, second]) as log, tidelog.connect(second) as operator:
            await log.topics.create("orders")
            async with log.producer("orders") as producer:
                await producer.send(b"1")
                before = set(producer._core.producer_ids)
                for _ in range(rotations):
                    await operator.access.rotate_ticket_keys()
                await cluster.stop("g1")
                await log.topics.list()  # at the other gateway
                await producer.send(b"2")
                assert (producer._core.producer_ids == before) == (rotations == 1)
            values = [record.value async for record in operator.consume("orders", start="earliest", end="latest")]
            assert values == [b"1", b"2"]
