"""Every attack at the real ports of all three services, before hello and after it: the close code that it earns, and
beside it a well-behaved client whose records are all taken and read in order."""

from __future__ import annotations

from contextlib import suppress

import cbor2
import pytest
import trio
from attacks import MESSAGES, frame, frames_for
from bare import Bare, bare
from running import HEAL_S, Cluster
from tidelog.link import PROTOCOL_VERSION
from tidelog.transport import MAX_MESSAGE_BYTES
from tidelog.wire import codec
from tidelog.wire.messages import Hello

pytestmark = pytest.mark.real

PLACES = (("g1", "client"), ("c1", "gateway"), ("c1", "replica"), ("r1", "gateway"), ("r1", "replica"))
"""Each service, and each role as which it takes a connection."""
OF_A_CLIENT = frozenset({"raft", "one-way op of another plane"})
"""Allowed to some other role."""
OF_SERVICES = {"a million empty arrays": 1002}
"""A service may send more items than a stranger; this header then has neither ``op`` nor ``re``."""


@pytest.mark.parametrize(("node", "role"), PLACES)
async def test_attacks_after_hello(cluster: Cluster, node: str, role: str) -> None:
    attacks = {name: (frame(2, data), code) for name, (data, code) in MESSAGES.items()}
    if role != "client":
        attacks = {name: (data, OF_SERVICES.get(name, code)) for name, (data, code) in attacks.items()}
        attacks = {name: attack for name, attack in attacks.items() if name not in OF_A_CLIENT}
    await attack_beside_a_client(cluster, node, role, attacks | frames_for(MAX_MESSAGE_BYTES))


@pytest.mark.parametrize("node", ["g1", "c1", "r1"])
async def test_attacks_before_hello(cluster: Cluster, node: str) -> None:
    """Then every message that can be read is one too many: 1002."""
    attacks = {name: (frame(2, data), 1007 if code == 1007 else 1002) for name, (data, code) in MESSAGES.items()}
    await attack_beside_a_client(cluster, node, "", attacks | frames_for(MAX_MESSAGE_BYTES))


async def attack_beside_a_client(
    cluster: Cluster, node: str, role: str, attacks: dict[str, tuple[bytes, int]]
) -> None:
    """One connection for each attack; ``role``: as whom it says hello before ("": it does not)."""
    topic = f"beside-{node}-{role or 'nobody'}"
    codes: dict[str, int] = {}
    url = cluster.local.get(node).url
    async with cluster.connect() as log:
        await log.create_topic(topic, replication_factor=3)
        async with log.producer(topic) as producer:
            for number, (name, (wire, _)) in enumerate(attacks.items()):
                with trio.fail_after(HEAL_S):
                    async with bare(url) as socket, trio.open_nursery() as nursery:
                        if role:
                            await say_hello(socket, role)
                        nursery.start_soon(socket.send_raw, wire)
                        assert (await producer.send(b"%d" % number)).offset == number
                        codes[name], reason = await socket.closed_with()
                        assert reason, name
        with trio.fail_after(HEAL_S):
            read = [record.value async for record in log.consume(topic, start="earliest", end="latest")]
    assert codes == {name: code for name, (_, code) in attacks.items()}
    assert read == [b"%d" % number for number in range(len(attacks))]


async def say_hello(socket: Bare, role: str) -> None:
    await socket.send(codec.encode(Hello(PROTOCOL_VERSION, role, "bare"), id=0)[0])
    with suppress(KeyError):
        raise AssertionError(cbor2.loads(await socket.receive())["error"])
