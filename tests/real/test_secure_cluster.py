"""A cluster of real processes with TLS on every plane, authentication, authorization and encryption at rest: who gets
in, and who not; and it loses nothing when it is killed."""

from __future__ import annotations

import base64
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tidelog
import tidelog.sync
import trio
from running import HEAL_S, until
from tidelog.cli.local.local_cluster import LocalCluster, free_base_port
from tidelog.errors import TidelogError

pytestmark = pytest.mark.real


STRICT = """
authentication = true
authorization = true
superusers = ["admin"]
"""


class Secured:
    """A running cluster: a controller, two replica servers that encrypt, a gateway that takes no strangers."""

    def __init__(self, local: LocalCluster) -> None:
        self.local = local
        self.gateway = local.gateways()[0]

    def tidelog(self, *arguments: str, stdin: bytes = b"", **more: str) -> subprocess.CompletedProcess[bytes]:
        """The command as the administrator runs it, or whoever has what ``more`` says."""
        files = self.local.tls
        shown = {"TIDELOG_CLIENT_CA": files.ca, "TIDELOG_CLIENT_CERT": files.cert, "TIDELOG_CLIENT_KEY": files.key}
        environment = os.environ | {"TIDELOG_GATEWAY": self.gateway} | shown | more
        command = [sys.executable, "-m", "tidelog.cli", *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, env=environment, timeout=120, check=False)

    def ok(self, *arguments: str, stdin: bytes = b"", **more: str) -> bytes:
        """Run it; it must succeed."""
        done = self.tidelog(*arguments, stdin=stdin, **more)
        assert done.returncode == 0, f"{arguments}: {done.stderr.decode()}"
        return done.stdout

    def refused(self, *arguments: str, **more: str) -> str:
        """Run it; it must not succeed."""
        done = self.tidelog(*arguments, stdin=b"one\n", **more)
        assert done.returncode == 1, done.stdout.decode()
        return done.stderr.decode()

    def log(self, node: str) -> str:
        """What a process has logged."""
        return Path(self.local.get(node).log).read_text()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    local = LocalCluster.create(folder, controllers=1, replicas=2, gateways=1, base_port=free_base_port(5), tls=True)
    with (folder / "g1" / "config.toml").open("a") as config:
        config.write(STRICT)
    for server in local.of_role("replica"):
        key = folder / server.id / "key"
        key.write_text(f"k-{server.id}:{base64.b64encode(os.urandom(32)).decode()}")
        with (folder / server.id / "config.toml").open("a") as config:
            config.write(f'encryption_key_file = "{key}"\n')
    command = [sys.executable, "-m", "tidelog.cli", "cluster", "up", "--tls", "--detach", "--data", str(folder)]
    subprocess.run(command, check=True, capture_output=True, timeout=HEAL_S)
    local = LocalCluster.load(folder)
    try:
        yield Secured(local)
    finally:
        local.stop()


def test_records_travel_and_every_plane_speaks_tls(secured: Secured) -> None:
    assert {process.url.partition(":")[0] for process in secured.local.processes} == {"wss"}
    secured.ok("topics", "create", "safe", "--replication-factor", "2")
    secured.ok("produce", "safe", stdin=b"one\ntwo\n")
    assert secured.ok("consume", "safe", "--from", "earliest", "--to-end") == b"one\ntwo\n"
    with tidelog.sync.connect(secured.gateway, tls=secured.local.tls) as log:
        assert [len(p.isr) for p in log.topics.describe("safe").partitions] == [2]


def test_a_client_without_trust_on_either_side_gets_the_reason(secured: Secured) -> None:
    assert "the certificate shown is not accepted" in secured.refused("topics", "list", TIDELOG_CLIENT_CA="")
    stranger = {"TIDELOG_CLIENT_CERT": "", "TIDELOG_CLIENT_KEY": ""}
    assert "takes no strangers" in secured.refused("topics", "list", **stranger)
    controller = secured.local.get("c1").url
    with pytest.raises(TidelogError, match="a client certificate is needed"):
        tidelog.sync.connect(controller, tls=tidelog.TlsOptions(secured.local.tls.ca), connect_timeout_s=3)


async def test_a_token_opens_what_the_rules_allow_until_it_is_revoked(secured: Secured, tmp_path: Path) -> None:
    token = secured.ok("tokens", "create", "alice", "--expires", "1d").decode().strip()
    file = tmp_path / "token"
    file.write_text(token + "\n")
    alice = {"TIDELOG_CLIENT_CERT": "", "TIDELOG_CLIENT_KEY": "", "TIDELOG_CLIENT_TOKEN_FILE": str(file)}
    secured.ok("topics", "create", "open")
    secured.ok("topics", "create", "hidden")
    secured.ok("acls", "add", "alice", "read", "topic:open")
    listed = secured.ok("topics", "list", **alice)
    assert b"open" in listed and b"hidden" not in listed
    assert "there is no topic hidden" in secured.refused("topics", "describe", "hidden", **alice)
    assert "may not write topic:open" in secured.refused("produce", "open", **alice)
    assert "may not delete topic:hidden" in secured.refused("topics", "delete", "hidden", "--yes", **alice)
    assert "may not delete topic:none" in secured.refused("topics", "delete", "none", "--yes", **alice)
    assert "may not administer cluster" in secured.refused("tokens", "list", **alice)

    files = tidelog.TlsOptions(secured.local.tls.ca)
    async with (
        tidelog.connect(secured.gateway, tls=files, token=token) as log,
        log.consume("open", start="earliest") as consumer,
    ):
        secured.ok("produce", "open", stdin=b"one\n")
        with trio.fail_after(HEAL_S):
            assert [record.value for record in await consumer.next_records()] == [b"one"]
            link = log._connection.link
            assert link is not None
            secured.ok("tokens", "revoke", token.split("_")[1])
            await link.wait_closed()
        assert "was revoked" in str(link.error)
        with pytest.raises(TidelogError, match="UNAUTHENTICATED"):
            await log.topics.list()
    secret = token.split("_", 2)[2]
    for process in secured.local.processes:
        assert secret not in secured.log(process.id), f"{process.id} logs secrets"
    assert "authentication_failed" in secured.log("g1")


async def test_nothing_acked_is_lost_when_servers_that_encrypt_are_killed(secured: Secured) -> None:
    """All of them at once, while records come in; twice, so that what a killed server wrote was read by its next life
    and written on."""
    local, acked, enough = secured.local, dict[int, bytes](), 50
    async with tidelog.connect(secured.gateway, tls=local.tls, connect_timeout_s=HEAL_S) as log:
        await log.topics.create("sealed", replication_factor=2, config={"segment_max_bytes": "4000"})
        news, stopping = [trio.Event()], False
        numbers = itertools.count()

        async def send(producer: tidelog.Producer) -> None:
            while not stopping:
                value = b"secret %d" % next(numbers) + bytes(200)  # 150 records fill more than ten segments
                acked[(await producer.send(value)).offset] = value
                news[0].set()

        async def more() -> None:
            wanted = len(acked) + enough
            with trio.fail_after(HEAL_S):
                while len(acked) < wanted:
                    news[0] = trio.Event()
                    await news[0].wait()

        options = tidelog.ProducerOptions(delivery_timeout_s=2 * HEAL_S, linger_s=0)
        async with log.producer("sealed", options) as producer, trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(send, producer)
            for _ in range(2):
                await more()
                local.kill("r1", "r2")
                local.start()
            await more()
            stopping = True
        with trio.fail_after(HEAL_S):
            read = [record.value async for record in log.consume("sealed", start="earliest", end="latest")]
    assert [read[offset] for offset in sorted(acked)] == [acked[offset] for offset in sorted(acked)]
    assert read == list(dict.fromkeys(read)), "nothing is there twice"
    logs = [path for path in local.folder.rglob("*.log") if "data" in path.parts]
    assert len(logs) > 10 and all(path.read_bytes()[:4] in (b"TLK1", b"") for path in logs)
    assert not [path for path in logs if b"secret" in path.read_bytes()]


async def test_a_service_with_the_certificate_of_another_gets_nowhere(secured: Secured) -> None:
    config = secured.local.folder / "r2" / "config.toml"
    own = config.read_text()
    config.write_text(own.replace("replica-r2.", "replica-r1."))
    secured.local.restart("r2")  # the command would wait until it is live

    async def told() -> bool:
        return "of replica/r1, and cannot speak for replica/r2" in secured.log("r2")

    await until(told)
    config.write_text(own)
    secured.local.restart("r2")

    async def in_sync() -> bool:
        return b"all" in secured.ok("topics", "list")

    await until(in_sync)
