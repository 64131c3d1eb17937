"""Who is on the same machine and does not have the cluster's secret is no service of it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tidelog
import trio
from support.services_in_process import two_services
from tidelog.batch.format import NewRecord, encode_batch
from tidelog.cli.local.local_cluster import LocalCluster, free_base_port
from tidelog.errors import ConfigError, TidelogError
from tidelog.feature_levels import NEWEST
from tidelog.net.link import Link, connect_link
from tidelog.net.transport import Transport
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.types import TIMELINE
from tidelog.wire import codec
from tidelog.wire.link_session import CloseLink, Denied, Effect, Session, SessionOpened, Transmit
from tidelog.wire.messages import (
    CreateTopic,
    DescribeQuorum,
    Hello,
    Message,
    Produce,
    Produced,
    ProducePart,
    Prove,
    Welcome,
)
from tidelog.wire.proof import NONCE_BYTES, Prover
from tidelog_controller.config import ControllerConfig

from unit.tidelog.net.test_origins import handshake

KEY, OTHER = b"k" * 32, b"o" * 32
URL = "ws://127.0.0.1:9093"
HELLO = Hello(1, "gateway", "g1", "c")
WELCOME = Welcome(1, "c", "r1", "replica", 1 << 24, 1000)
ALLOWED = {"gateway": frozenset({"fetch"}), "replica": frozenset({"fetch"})}


class Chance:
    """Nonces that differ."""

    def __init__(self) -> None:
        self.given = 0

    def nonce(self) -> bytes:
        self.given += 1
        return self.given.to_bytes(NONCE_BYTES, "big")


CHANCE = Chance()


def connecting(secret: bytes = KEY, url: str = URL) -> Session:
    return Session(0.0, prover=Prover(secret, CHANCE.nonce(), (url,)) if secret else None)


def accepting(secret: bytes = KEY, url: str = URL, welcome: Welcome = WELCOME) -> Session:
    prover = Prover(secret, CHANCE.nonce(), (url,)) if secret else None
    return Session(0.0, welcome=lambda hello: welcome, allowed=ALLOWED, prover=prover)


def sent(effects: list[Effect]) -> list[bytes]:
    return [e.head + codec.payload_view(e.payload) for e in effects if isinstance(e, Transmit)]


def give(effects: list[Effect], to: Session) -> list[Effect]:
    done: list[Effect] = []
    for data in sent(effects):
        done += to.on_data(data)
    return done


def shake(one: Session, other: Session, hello: Hello = HELLO) -> tuple[list[Effect], list[Effect]]:
    """A whole handshake: the effects of the end that connects, then of the one that accepts."""
    greeted = give(one.greet(hello), other)
    answered = give(greeted, one)
    return answered, [*greeted, *give(answered, other)]


def is_open(effects: list[Effect]) -> bool:
    return any(isinstance(effect, SessionOpened) for effect in effects)


def reason(effects: list[Effect]) -> str:
    (found,) = [effect for effect in effects if isinstance(effect, CloseLink)]
    return found.reason


# --- the handshake ---------------------------------------------------------------------------------------------


def test_a_peer_with_the_secret_is_accepted() -> None:
    one, other = connecting(), accepting()
    answered, accepted = shake(one, other)
    assert is_open(answered) and is_open(accepted)
    assert isinstance(other.peer, Hello) and other.peer.node == "g1"


def test_without_a_secret_all_is_as_before() -> None:
    one, other = connecting(b""), accepting(b"")
    answered, accepted = shake(one, other)
    assert is_open(answered) and is_open(accepted)
    assert b"nonce" not in b"".join(sent(connecting(b"").greet(HELLO)))


@pytest.mark.parametrize(("mine", "theirs"), [(b"", KEY), (OTHER, KEY)])
def test_a_peer_without_the_right_secret_is_refused_and_gets_no_proof(mine: bytes, theirs: bytes) -> None:
    one, other = connecting(mine), accepting(theirs)
    greeted = give(one.greet(HELLO), other)
    assert not is_open(greeted)
    if not mine:
        assert "cluster_secret_file" in reason(greeted)
        assert any(isinstance(effect, Denied) for effect in greeted)
        return
    answered = give(greeted, one)
    assert not is_open(answered) and not sent(answered)
    assert "another cluster secret" in reason(answered)


def test_a_server_that_cannot_prove_it_is_no_server() -> None:
    answered, _ = shake(connecting(), accepting(b""))
    assert not is_open(answered) and "does not prove" in reason(answered)


def test_nothing_is_heard_before_the_proof() -> None:
    for message in (DescribeQuorum(), Prove(b""), Prove(b"x" * 32), HELLO):
        other = accepting()
        give(connecting().greet(HELLO), other)
        effects = other.on_data(sent([Transmit(*codec.encode(message, id=3 if message.ANSWER else None))])[0])
        assert not is_open(effects) and [type(e) for e in effects] == [Denied, CloseLink]


def test_a_hello_of_another_service_is_not_covered_by_a_proof() -> None:
    """Somebody in between changes who connects, or who answers."""
    for change in ({"node": "g2"}, {"role": "replica"}, {"cluster": "d"}):
        one, other = connecting(), accepting()
        forged = one._prover.greeting(HELLO)  # type: ignore[union-attr]
        one.greet(HELLO)
        answered = give(other.on_data(codec.encode(replace(forged, **change), id=0)[0]), one)  # type: ignore[arg-type]
        assert not is_open(answered), change
    for change in ({"node": "r2"}, {"role": "controller"}, {"cluster": "d"}):
        one, other = connecting(), accepting()
        (told,) = sent(give(one.greet(HELLO), other))
        welcome = codec.decode(told, answers=lambda re: Welcome).message
        changed = replace(welcome, **change)  # type: ignore[arg-type, type-var]
        assert not is_open(one.on_data(codec.encode(changed, re=0)[0])), change  # type: ignore[arg-type]


def test_a_replayed_proof_is_refused() -> None:
    one, other = connecting(), accepting()
    hello = one.greet(HELLO)
    (prove,) = sent(give(give(hello, other), one))
    again = accepting()
    give(hello, again)
    assert not is_open(again.on_data(prove))


def test_a_proof_is_not_reflected() -> None:
    """Who listens gives back what it is told, and who connects what it is answered."""
    one, other = connecting(), accepting()
    (told,) = sent(give(one.greet(HELLO), other))
    welcome = codec.decode(told, answers=lambda re: Welcome).message
    assert isinstance(welcome, Welcome)
    assert not is_open(other.on_data(codec.encode(Prove(welcome.proof))[0]))
    # the same service at both ends, as controllers are to each other
    prover = Prover(KEY, CHANCE.nonce(), (URL,))
    hello = prover.greeting(Hello(1, "controller", "c1", "c"))
    same = Welcome(1, "c", "c1", "controller", 1 << 24, 1000, nonce=prover.nonce)
    assert prover.prove(hello, same).proof != prover.answer(hello, same).proof


def test_a_handshake_cannot_be_passed_on_to_a_service_elsewhere() -> None:
    """A program listens where a server was before, and asks a server that has another address."""
    gateway, server = connecting(url="ws://127.0.0.1:9094"), accepting(url=URL)
    greeted = give(gateway.greet(HELLO), server)
    assert not is_open(greeted) and "'ws://127.0.0.1:9094' was dialed" in reason(greeted)
    server = Session(0.0, welcome=lambda hello: WELCOME, prover=Prover(KEY, CHANCE.nonce(), (URL, "")))
    assert "was dialed" in reason(
        give(connecting(url="").greet(HELLO), server)
    )  # nothing is configured, nothing was dialed
    # or changes the URL on the way
    gateway, server = connecting(url="ws://127.0.0.1:9094"), accepting(url=URL)
    forged = replace(gateway._prover.greeting(HELLO), url=URL)  # type: ignore[union-attr]
    gateway.greet(HELLO)
    answered = give(server.on_data(codec.encode(forged, id=0)[0]), gateway)
    assert not is_open(answered) and not sent(answered)


# --- services ----------------------------------------------------------------------------------------------------


class Relay:
    """A local program at a port that a server had; passes everything on to another server."""

    def __init__(self, to: int) -> None:
        self.to = to
        self.heard = b""

    async def serve(self, stream: trio.SocketStream) -> None:
        onward = await trio.open_tcp_stream("127.0.0.1", self.to)
        async with onward, trio.open_nursery() as nursery:

            async def copy(source: trio.SocketStream, sink: trio.SocketStream) -> None:
                async for data in source:
                    self.heard += data
                    await sink.send_all(data)
                nursery.cancel_scope.cancel()

            nursery.start_soon(copy, stream, onward)
            nursery.start_soon(copy, onward, stream)


async def refusal(transport: Transport, url: str, hello: Hello) -> str:
    with trio.fail_after(30):
        try:
            async with connect_link(transport, url, hello) as link:
                await link.wait_closed()
        except TidelogError as error:
            return f"{error.code}: {error.message}"
    return str(link.error)


@pytest.mark.parametrize("role", ["gateway", "replica", "controller", "client"])
async def test_a_local_program_without_the_secret_is_refused_by_every_service(role: str, tmp_path: Path) -> None:
    async with two_services(tmp_path, KEY) as urls:
        for url in urls:
            if role == "client" and url == urls[1]:
                continue  # replica servers take none
            hello = Hello(1, role, "x9", level_max=NEWEST)
            told = await refusal(WebSocketTransport(), url, hello)
            assert told.startswith("UNAUTHENTICATED"), told
            if role != "client":
                told = await refusal(WebSocketTransport(secret=OTHER), url, hello)
                assert "another cluster secret" in told, told
                async with connect_link(
                    WebSocketTransport(secret=KEY), url, Hello(1, role, "x9", level_max=NEWEST)
                ) as link:
                    assert link.peer.role in ("controller", "replica")


async def test_a_program_at_a_port_that_was_given_back_cannot_relay(tmp_path: Path) -> None:
    async with two_services(tmp_path, KEY) as (_, replica), trio.open_nursery() as nursery:
        relay = Relay(int(replica.rpartition(":")[2]))
        (listener,) = await nursery.start(partial(trio.serve_tcp, relay.serve, 0, host="127.0.0.1"))
        there = f"ws://127.0.0.1:{listener.socket.getsockname()[1]}"
        told = await refusal(WebSocketTransport(secret=KEY), there, HELLO_OF_ANY)
        assert "was dialed" in told
        assert relay.heard and b"prove" not in relay.heard
        nursery.cancel_scope.cancel()


HELLO_OF_ANY = Hello(1, "gateway", "g1")


@pytest.mark.parametrize("secret", [b"", KEY])
async def test_services_take_no_browser_at_all(secret: bytes, tmp_path: Path) -> None:
    async with two_services(tmp_path, secret) as urls:
        for url in urls:
            host = url.removeprefix("ws://")
            for origin in (f"http://{host}", "http://localhost:3000", "null", "http://evil.example"):
                refused = await handshake(url, f"Origin: {origin}")
                assert refused.startswith("HTTP/1.1 403") and "web pages connect to gateways" in refused
            assert (await handshake(url)).startswith("HTTP/1.1 101")


# --- a cluster ---------------------------------------------------------------------------------------------------


async def forge(cluster: LocalCluster) -> Message | TidelogError:
    """A program of this machine, as a gateway, writes a record into the timeline."""
    async with tidelog.connect(cluster.gateways()) as log:
        found: list[Any] = []
        with trio.fail_after(60):
            while not found or not found[0].partitions[0].leader:
                found = [topic for topic in (await log.cluster.status()).topics if topic.name == TIMELINE]
        await log.partitions.find_positions(TIMELINE, "latest")  # it serves
    acks: list[Message] = []
    acked = trio.Event()

    def handle(_link: Link, _id: int | None, message: Message) -> None:
        acks.append(message)
        acked.set()

    batch = encode_batch([NewRecord(b'{"event": "forged"}', b"x", 1)])
    part = ProducePart(1, found[0].topic_id, 0, 1, 5000, len(batch), found[0].partitions[0].leader_epoch)
    (replica,) = cluster.of_role("replica")
    try:
        async with connect_link(WebSocketTransport(), replica.url, Hello(1, "gateway", "g1"), handle) as link:
            link.post(Produce((part,), batch))
            with trio.fail_after(30):
                await acked.wait()
            return acks[0]
    except TidelogError as error:
        return error


@pytest.mark.parametrize("secret", [False, True], ids=["of an earlier release", "with a secret"])
def test_a_local_program_forges_a_record_of_the_timeline_only_where_there_is_no_secret(
    secret: bool, tmp_path: Path
) -> None:
    cluster = LocalCluster.create(tmp_path, controllers=1, replicas=1, gateways=1, base_port=free_base_port(3))
    if not secret:
        cluster.forget_secret()
    cluster.start()
    try:
        trio.run(cluster.wait_ready)
        result = trio.run(forge, cluster)
        if secret:
            assert isinstance(result, TidelogError) and result.code == "UNAUTHENTICATED", result
        else:
            assert isinstance(result, Produced) and result.acks[0].error is None, result
    finally:
        cluster.stop()


def test_no_topic_is_deleted_past_the_gateway(tmp_path: Path) -> None:
    async def attack() -> None:
        async with two_services(tmp_path, KEY) as (controller, _):
            for request in (CreateTopic("x"), DescribeQuorum()):
                with pytest.raises(TidelogError, match="cluster_secret_file"):
                    async with connect_link(WebSocketTransport(), controller, Hello(1, "gateway", "g9")) as link:
                        await link.call(request, 5)

    trio.run(attack)


# --- the setting ---------------------------------------------------------------------------------------------------


def test_a_secret_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    assert ControllerConfig().secret == b""
    with pytest.raises(ConfigError, match="cannot be read"):
        _ = ControllerConfig(cluster_secret_file=str(file)).secret
    file.write_bytes(b"short\n")
    with pytest.raises(ConfigError, match="32 characters"):
        _ = ControllerConfig(cluster_secret_file=str(file)).secret
    file.write_bytes(KEY + b"\n")
    assert ControllerConfig(cluster_secret_file=str(file)).secret == KEY
