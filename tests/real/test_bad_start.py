"""Services that refuse to start, next to a running cluster: each says why, and leaves everything as it was."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import trio
from running import HEAL_S, Cluster
from tidelog_controller.storage import RaftStorage

pytestmark = pytest.mark.real

MODULES = {"controller": "tidelog_controller", "replica": "tidelog_replica", "gateway": "tidelog_gateway"}
CONFIG = {
    "controller": 'prot = 1\nnode = 5\nport = 70000\n[settings]\nsession_timeout = 1.0\n[peers]\nc2 = "ws://x:1"\n',
    "replica": "prot = 1\nflush_threads = 0\ncontroller = []\n[settings]\nheartbeat_s = 'soon'\n",
    "gateway": "prot = 1\ntotal_max_bytes = 'much'\ncontroler = []\nclient_max_subscriptions = 0\n",
}
FAULTS = {
    "controller": [
        "prot is unknown; did you mean port?",
        "node = 5: must be a text",
        "port = 70000: must be from 0 to 65535",
        "settings.session_timeout is unknown; did you mean settings.session_timeout_s?",
    ],
    "replica": [
        "prot is unknown; did you mean port?",
        "flush_threads = 0: must be from 1 to 64",
        "controller is unknown; did you mean controllers?",
        "settings.heartbeat_s = 'soon': must be a number",
    ],
    "gateway": [
        "prot is unknown; did you mean port?",
        "total_max_bytes = 'much': must be a whole number of bytes, or a size such as 64KiB",
        "controler is unknown; did you mean controllers?",
        "client_max_subscriptions = 0: must be at least 1",
    ],
}


def refused(service: str, *arguments: str | Path) -> str:
    """What a service prints that refuses to start."""
    command = [sys.executable, "-m", MODULES[service], *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, timeout=HEAL_S, check=False)
    said = done.stderr.decode()
    assert done.returncode == 2, said
    assert "Traceback" not in said
    return said


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but the lock."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}


@pytest.mark.parametrize("service", MODULES)
def test_all_faults_of_a_configuration_are_reported_at_once(service: str, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG[service])
    told = refused(service, "--config", config)
    for fault in FAULTS[service]:
        assert fault in told


def test_configuration_that_cannot_be_read(tmp_path: Path) -> None:
    assert "nosuch.toml: cannot be read" in refused("replica", "--config", tmp_path / "nosuch.toml")
    (tmp_path / "broken.toml").write_text("port = = 1\n")
    assert "broken.toml: is not TOML" in refused("gateway", "--config", tmp_path / "broken.toml")


@pytest.mark.parametrize("service", MODULES)
def test_port_in_use(cluster: Cluster, tmp_path: Path, service: str) -> None:
    """Told before anything is registered: the running cluster does not notice."""
    port = cluster.local.base_port
    controllers = [process.url for process in cluster.local.of_role("controller")]
    config = [f"port = {port}", f'cluster = "{cluster.local.cluster}"', 'node = "new"']
    if service != "gateway":
        config.append(f'data_dir = "{tmp_path / "data"}"')
    if service != "controller":
        config.append(f"controllers = {controllers}")
    (tmp_path / "config.toml").write_text("\n".join(config))
    assert f"127.0.0.1:{port} is in use" in refused(service, "--config", tmp_path / "config.toml")


def test_port_of_a_cluster_in_use(cluster: Cluster, tmp_path: Path) -> None:
    port = str(cluster.local.base_port)
    done = cluster.tidelog("cluster", "up", "--data", str(tmp_path), "--base-port", port, "--detach")
    assert done.returncode == 2
    assert f"127.0.0.1:{port}" in done.stderr.decode() and "--base-port" in done.stderr.decode()


@pytest.mark.parametrize("node", ["c1", "r1"])
def test_data_directory_in_use(cluster: Cluster, node: str) -> None:
    process = cluster.local.get(node)
    config = cluster.folder / node / "config.toml"
    told = refused(process.role, "--config", config, "--port", "0")
    assert "another process" in told
    assert str(cluster.folder / node / "data") in told
    assert process.is_alive()


@pytest.mark.parametrize("node", ["c1", "r1"])
def test_data_directory_of_another(cluster: Cluster, node: str, tmp_path: Path) -> None:
    """A copied disk is refused to another node and to another cluster, and left as it is."""
    process = cluster.local.get(node)
    data = tmp_path / "data"
    shutil.copytree(cluster.folder / node / "data", data)
    if process.role == "controller":
        RaftStorage(data, cluster.local.cluster, node, "s").close()  # SQLite joins the copied files into one
    before = contents(data)
    others = ["--config", cluster.folder / node / "config.toml", "--port", "0", "--data-dir", data]
    peers = ["--peers", f"other={process.url}"] if process.role == "controller" else []
    told = refused(process.role, *others, "--node", "other", *peers)
    assert f"{data}" in told and "belongs to node" in told and node in told
    told = refused(process.role, *others, "--cluster", "another")
    assert f"{data}" in told and "belongs to" in told and cluster.local.cluster in told
    assert contents(data) == before


@pytest.mark.parametrize("service", ["replica", "gateway"])
async def test_controllers_of_another_cluster(cluster: Cluster, tmp_path: Path, service: str) -> None:
    """It goes on asking, since they may be put right; its log says what is wrong."""
    urls = ",".join(process.url for process in cluster.local.of_role("controller"))
    command = [sys.executable, "-m", MODULES[service], "--port", "0", "--cluster", "another", "--controllers", urls]
    if service == "replica":
        command += ["--node", "r9", "--data-dir", str(tmp_path / "data")]
    async with trio.open_nursery() as nursery:
        start = partial(trio.run_process, command, stderr=subprocess.PIPE, check=False)
        process: trio.Process = await nursery.start(start)
        assert process.stderr is not None
        said = b""
        with trio.fail_after(HEAL_S):
            while b"WRONG_CLUSTER" not in said:
                more = await process.stderr.receive_some()
                assert more, said.decode()
                said += more
        nursery.cancel_scope.cancel()
    assert b"controller_failed" in said and cluster.local.cluster.encode() in said
    async with cluster.connect() as log:
        assert sorted(server.node for server in (await log.cluster.status()).servers) == ["r1", "r2", "r3"]
