"""A cluster of real processes that speaks TLS on every plane: who gets in, and who does not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tidelog.sync
from running import HEAL_S, until
from tidelog.cli.local_cluster import LocalCluster, free_base_port
from tidelog.errors import TidelogError

pytestmark = pytest.mark.real


class Secured:
    """A running cluster with TLS: a controller, two replica servers, a gateway."""

    def __init__(self, local: LocalCluster) -> None:
        self.local = local
        self.gateway = local.gateways()[0]

    def tidelog(self, *arguments: str, stdin: bytes = b"", **more: str) -> subprocess.CompletedProcess[bytes]:
        """The command as somebody runs it who has the authority's certificate, and what ``more`` says."""
        environment = os.environ | {"TIDELOG_GATEWAY": self.gateway, "TIDELOG_CLIENT_CA": self.local.tls.ca} | more
        command = [sys.executable, "-m", "tidelog.cli", *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, env=environment, timeout=120, check=False)

    def ok(self, *arguments: str, stdin: bytes = b"", **more: str) -> bytes:
        """Run it; it must succeed."""
        done = self.tidelog(*arguments, stdin=stdin, **more)
        assert done.returncode == 0, f"{arguments}: {done.stderr.decode()}"
        return done.stdout

    def refused(self, *arguments: str, **more: str) -> str:
        """Run it; it must not succeed."""
        done = self.tidelog(*arguments, **more)
        assert done.returncode == 1, done.stdout.decode()
        return done.stderr.decode()

    def log(self, node: str) -> str:
        """What a process has logged."""
        return Path(self.local.get(node).log).read_text()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    numbers = ("--controllers", "1", "--replicas", "2", "--gateways", "1", "--base-port", str(free_base_port(5)))
    command = [sys.executable, "-m", "tidelog.cli", "cluster", "up", "--tls", "--detach", "--data", str(folder)]
    subprocess.run([*command, *numbers], check=True, capture_output=True, timeout=HEAL_S)
    local = LocalCluster.load(folder)
    try:
        yield Secured(local)
    finally:
        LocalCluster.load(folder).stop()


def test_records_travel_and_every_plane_speaks_tls(secured: Secured) -> None:
    assert {process.url.partition(":")[0] for process in secured.local.processes} == {"wss"}
    secured.ok("topics", "create", "safe", "--replication-factor", "2")
    secured.ok("produce", "safe", stdin=b"one\ntwo\n")
    assert secured.ok("consume", "safe", "--from", "earliest", "--to-end") == b"one\ntwo\n"
    with tidelog.sync.connect(secured.gateway, tls=secured.local.tls) as log:
        assert [len(p.isr) for p in log.describe("safe").partitions] == [2]


def test_who_does_not_trust_or_is_not_trusted_is_told_why(secured: Secured) -> None:
    assert "the certificate shown is not accepted" in secured.refused("topics", "list", TIDELOG_CLIENT_CA="")
    controller = secured.local.get("c1").url
    with pytest.raises(TidelogError, match="a client certificate is needed"):
        tidelog.sync.connect(controller, tls=tidelog.TlsOptions(secured.local.tls.ca), connect_timeout_s=3)


async def test_a_service_with_the_certificate_of_another_gets_nowhere(secured: Secured) -> None:
    config = secured.local.folder / "r2" / "config.toml"
    own = config.read_text()
    config.write_text(own.replace("replica-r2.", "replica-r1."))
    secured.ok("cluster", "restart", "r2", "--data", str(secured.local.folder))

    async def told() -> bool:
        return "of replica/r1, and cannot speak for replica/r2" in secured.log("r2")

    await until(told)
    config.write_text(own)
    secured.ok("cluster", "restart", "r2", "--data", str(secured.local.folder))

    async def in_sync() -> bool:
        return b"all" in secured.ok("topics", "list")

    await until(in_sync)
