"""The product where Python lacks what it lacks on macOS (``patched/sitecustomize.py``). This is Linux all the same:
it shows that no call is made that macOS does not have, and not how macOS behaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trio
from running import HEAL_S, until
from tidelog.cli.local.local_cluster import free_base_port
from tidelog.runtime.operating_system import process_state

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(sys.platform != "linux", reason="takes away what only Linux has"),
]
ROOT = Path(__file__).resolve().parents[3]
PATCHED = Path(__file__).parent / "patched"
LACKING = """
import ctypes, errno, os, resource, socket, sys
from pathlib import Path
print(sys.platform, Path("/proc/self/stat").exists(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
for module, name in (os, "fdatasync"), (os, "pidfd_open"), (socket, "TCP_USER_TIMEOUT"), (errno, "EUCLEAN"):
    print(hasattr(module, name))
print(hasattr(ctypes.CDLL(None), "prctl"))
"""
CLIENTS = """
import asyncio, sys, tidelog, tidelog.aio, tidelog.sync, trio
url = sys.argv[1]
with tidelog.sync.connect(url) as log, log.producer("kept") as producer:
    producer.send(b"from a thread")
async def read(module):
    async with module.connect(url) as log:
        print(*sorted([r.value.decode() async for r in log.consume("kept", start="earliest", end="latest")]), sep=",")
asyncio.run(read(tidelog.aio))
trio.run(read, tidelog)
"""


class Mac:
    """A folder for a cluster, and programs that run as on macOS."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path / "cluster"
        self.port = free_base_port(20)
        self.url = f"ws://127.0.0.1:{self.port}"
        self.environ = os.environ | {
            "PYTHONPATH": str(PATCHED),
            "SYNCS": str(path / "syncs"),
            "TIDELOG_GATEWAY": self.url,
        }

    def run(self, *command: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        """Run a program of Python to its end. No traceback may be among what it says."""
        done = subprocess.run(
            [sys.executable, *command],
            cwd=ROOT / "tests",
            input=stdin,
            capture_output=True,
            env=self.environ,
            timeout=120,
            check=False,
        )
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return done

    def tidelog(self, *arguments: str, stdin: bytes | None = None) -> str:
        """Run the command, which must succeed, and return what it says."""
        if arguments[0] == "cluster":
            arguments = (*arguments, "--data", str(self.data))
        done = self.run("-m", "tidelog.cli", *arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr.decode()
        return (done.stdout + done.stderr).decode()

    def up(self, *numbers: str) -> None:
        self.tidelog("cluster", "up", "--base-port", str(self.port), "--detach", *numbers)

    def processes(self) -> dict[str, dict[str, Any]]:
        """The processes by id, as ``cluster status`` shows them."""
        shown = json.loads(self.tidelog("cluster", "status", "--json"))
        return {process["id"]: process for process in shown["processes"]}

    def alive(self) -> list[str]:
        return [node for node, process in self.processes().items() if process["alive"]]

    def begin(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start the command, and return when it runs."""
        command = [sys.executable, "-m", "tidelog.cli", *arguments]
        pipe = subprocess.PIPE
        begun = subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, env=self.environ)
        assert begun.stdout is not None
        said = b""
        while b"Ctrl-C ends it" not in said:
            line = begun.stdout.readline()
            assert line, said.decode()
            said += line
        return begun


@pytest.fixture
def mac(tmp_path: Path) -> Iterator[Mac]:
    made = Mac(tmp_path)
    yield made
    if (made.data / "cluster.json").exists():
        made.tidelog("cluster", "down")


def end(process: subprocess.Popen[bytes]) -> int:
    """Press Ctrl-C, and return the exit code."""
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    process.stdout.read()
    process.stdout.close()
    return process.wait(HEAL_S)


def open_files(pid: int) -> int:
    """How many files this process may open."""
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("Max open files")]
    return int(line.split()[3])


def test_python_lacks_what_it_lacks_on_macos(mac: Mac) -> None:
    said = mac.run("-c", LACKING).stdout.decode().split()
    assert said == ["darwin", "False", "256", *["False"] * 5]


def test_a_cluster_survives_the_kill_of_a_server_and_every_sync_is_a_full_one(mac: Mac) -> None:
    mac.up()
    mac.tidelog("topics", "create", "kept", "--replication-factor", "3")
    mac.tidelog("produce", "kept", stdin=b"one\ntwo\n")
    assert {open_files(mac.processes()[node]["pid"]) for node in ("r1", "g1")} == {8_192}, "the kernel refuses more"
    assert mac.tidelog("cluster", "kill", "r1").startswith("killed r1")
    assert mac.alive() == ["g1", "c1", "c2", "c3", "r2", "r3"]
    mac.tidelog("produce", "kept", stdin=b"three\n")
    assert mac.tidelog("cluster", "restart", "r1").splitlines()[-1] == "r1 is live"
    mac.tidelog("cluster", "pause", "r2")
    mac.tidelog("cluster", "resume", "r2")
    assert mac.tidelog("consume", "kept", "--from", "earliest", "--to-end").splitlines() == ["one", "two", "three"]
    assert "no difference" in mac.tidelog("verify", "replicas")
    pids = [process["pid"] for process in mac.processes().values()]
    assert mac.tidelog("cluster", "down") == "ended g1, c1, c2, c3, r1, r2, r3\n"
    assert {process_state(pid)[0] for pid in pids} <= {"", "Z"}

    syncs = [line.split(" ", 1) for line in (mac.path / "syncs").read_text().splitlines()]
    assert {call for call, _ in syncs} == {"F_FULLFSYNC"}
    synced = {Path(path) for _, path in syncs}
    for node in ("r1", "r2", "r3"):
        data = mac.data / node / "data"
        assert synced & set(data.glob("*-0/*.log")), "what is acknowledged"
        assert {data, data / "meta.new"} <= synced, "a small file before it is renamed, then its name"
    for node in ("c1", "c2", "c3"):
        assert {mac.data / node / "data" / name for name in ("", "raft.db-commits")} <= synced


def test_dev_serves_all_clients_and_keeps_its_data(mac: Mac) -> None:
    command = ("dev", "--data", str(mac.path / "dev"), "--port", str(mac.port))
    running = mac.begin(*command)
    mac.tidelog("topics", "create", "kept", "--replication-factor", "3")
    mac.tidelog("produce", "kept", stdin=b"from a command\n")
    read = mac.run("-c", CLIENTS, mac.url)
    assert read.stdout.decode().splitlines() == ["from a command,from a thread"] * 2, read.stderr.decode()
    assert end(running) == 0
    running = mac.begin(*command)
    said = mac.tidelog("consume", "kept", "--from", "earliest", "--to-end")
    assert sorted(said.splitlines()) == ["from a command", "from a thread"]
    assert end(running) == 0


def test_ctrl_c_ends_the_whole_cluster(mac: Mac) -> None:
    numbers = ("--controllers", "1", "--replicas", "1", "--gateways", "1", "--base-port", str(mac.port))
    running = mac.begin("cluster", "up", "--data", str(mac.data), *numbers)
    assert mac.alive() == ["g1", "c1", "r1"]
    assert end(running) == 0
    assert mac.alive() == []


def test_ctrl_c_while_it_starts_leaves_nothing(mac: Mac) -> None:
    command = [sys.executable, "-m", "tidelog.cli", "cluster", "up", "--data", str(mac.data)]
    with subprocess.Popen([*command, "--base-port", str(mac.port)], env=mac.environ, stderr=subprocess.PIPE) as up:
        trio.run(until, trio.Path(mac.data / "c2" / "log").exists)
        up.send_signal(signal.SIGINT)
        up.communicate()
    assert up.returncode != 0
    assert mac.alive() == []
    commands = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(mac.data) not in commands


def test_only_processes_that_were_started_are_ended(mac: Mac) -> None:
    """A pid may be given to another process. The start time tells them apart."""
    mac.up("--controllers", "1", "--replicas", "1")
    mac.tidelog("cluster", "kill", "r1")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        shown = subprocess.run(
            ["ps", "-o", "lstart=", "-p", str(stranger.pid)],
            env=os.environ | {"LC_ALL": "C", "TZ": "UTC0"},
            capture_output=True,
            text=True,
            check=True,
        )
        began = datetime.strptime(shown.stdout.strip(), "%a %b %d %H:%M:%S %Y").replace(tzinfo=UTC)

        def say_that_r1_is(pid: int, started: int) -> None:
            stored = json.loads((mac.data / "cluster.json").read_text())
            (entry,) = [entry for entry in stored["processes"] if entry["id"] == "r1"]
            entry |= {"pid": pid, "started": started}
            (mac.data / "cluster.json").write_text(json.dumps(stored))

        say_that_r1_is(stranger.pid, int(began.timestamp()) - 1)
        assert mac.alive() == ["g1", "c1"]
        assert "r1 does not run" in mac.tidelog("cluster", "kill", "r1")
        assert mac.tidelog("cluster", "down") == "ended g1, c1\n"
        assert stranger.poll() is None
        say_that_r1_is(stranger.pid, int(began.timestamp()))
        assert mac.tidelog("cluster", "down") == "ended r1\n"
        assert stranger.wait(HEAL_S) == -signal.SIGTERM


def test_a_setting_that_takes_linux_is_refused(mac: Mac) -> None:
    done = mac.run("-m", "tidelog.cli", "replica", "--node", "r1", "--cached-bytes-per-file", "1000000")
    assert done.returncode == 2
    assert done.stderr.decode().splitlines() == [
        "cached_bytes_per_file: only Linux can bound its page cache for a file: leave it at 0"
    ]


@pytest.mark.parametrize(
    "program",
    [
        ("../deploy/chaos", "--list"),
        ("../deploy/bench/peers",),
        ("../deploy/bench/throughput.py",),
        ("../deploy/bench/regression/check.py",),
        ("../deploy/bench/profile/memory.py", "cluster"),
        ("-m", "crash_points"),
        ("-m", "crash_points.store"),
    ],
    ids=lambda program: program[-1],
)
def test_what_takes_linux_says_so(mac: Mac, program: tuple[str, ...]) -> None:
    done = mac.run(*program)
    (line,) = (done.stdout + done.stderr).decode().splitlines()
    assert "Linux only" in line
    assert done.returncode != 0
