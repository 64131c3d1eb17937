"""``tidelog cluster`` and ``tidelog dev`` as a user handles them: up again, down twice, Ctrl-C, a failing start."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import click
import pytest
import trio
from running import HEAL_S, Cluster, run_tidelog, until
from tidelog.cli.local.local_cluster import LocalCluster, Process, free_base_port

pytestmark = pytest.mark.real


class Folder:
    """A folder for a cluster of one process per role."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.port = free_base_port(20)

    def ok(self, *arguments: str, stdin: bytes | None = None) -> bytes:
        done = run_tidelog(*arguments, gateway=f"ws://127.0.0.1:{self.port}", stdin=stdin)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    def up(self, *arguments: str) -> dict[str, Any]:
        said = self.ok("cluster", "up", "--data", str(self.path), "--detach", "--json", *arguments)
        described: dict[str, Any] = json.loads(said)
        return described

    def new(self) -> dict[str, Any]:
        numbers = ("--controllers", "1", "--replicas", "1", "--gateways", "1")
        return self.up(*numbers, "--base-port", str(self.port))

    def down(self) -> None:
        self.ok("cluster", "down", "--data", str(self.path))

    def refused(self, *arguments: str) -> str:
        done = run_tidelog("cluster", *arguments, "--data", str(self.path))
        assert done.returncode == 2, done.stdout.decode()
        assert b"Traceback" not in done.stderr
        return done.stderr.decode()

    def alive(self) -> list[str]:
        return [process.id for process in LocalCluster.load(self.path).processes if process.is_alive()]

    def logging(self) -> list[Path]:
        """The logs that any process has open, whether the folder knows it or not."""
        found = []
        for handle in Path("/proc").glob("[0-9]*/fd/1"):
            with suppress(FileNotFoundError, ProcessLookupError, PermissionError):  # gone, or somebody else's
                found.append(handle.readlink())
        return [log for log in found if log.is_relative_to(self.path.resolve())]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path / "cluster")
    yield made
    if (made.path / "cluster.json").exists():
        LocalCluster.load(made.path).stop()


@asynccontextmanager
async def foreground(*arguments: str) -> AsyncIterator[trio.Process]:
    """The command, running; killed at the end of the block if it still does."""
    command = [sys.executable, "-m", "tidelog.cli", *arguments]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        with trio.fail_after(HEAL_S):
            yield process
    finally:
        process.kill()
        await process.wait()
        assert process.stdout is not None
        await process.stdout.aclose()


def paste(*commands: str) -> list[bytes]:
    """The lines that a shell prints when the commands are pasted; each of them must succeed."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith("TIDELOG_")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    text = "\n".join(commands).encode()
    done = subprocess.run(["sh", "-e"], input=text, stdout=subprocess.PIPE, env=environment, timeout=120, check=True)
    return done.stdout.splitlines()


def commands_in(banner: bytes) -> list[str]:
    """The commands that a banner suggests."""
    return [line for line in banner.decode().splitlines() if line.startswith(("  ", "export "))]


async def wait_said(process: trio.Process, words: bytes) -> bytes:
    """All it has printed when the words are there."""
    assert process.stdout is not None
    said = b""
    while words not in said:
        more = await process.stdout.receive_some()
        assert more, said.decode()
        said += more
    return said


def test_cluster_comes_up_again_with_its_data(folder: Folder) -> None:
    assert [p["id"] for p in folder.new()["processes"]] == ["g1", "c1", "r1"]
    folder.ok("topics", "create", "kept")
    folder.ok("produce", "kept", stdin=b"one\ntwo\n")
    folder.down()
    assert folder.alive() == []
    folder.down()
    first = folder.up()
    assert folder.up() == first, "it runs: nothing to do"
    assert "1 processes of role replica, not 2" in folder.refused("up", "--replicas", "2", "--detach")
    assert "end it first" in folder.refused("up", "--base-port", "50000", "--detach")
    assert folder.alive() == ["g1", "c1", "r1"]

    folder.down()
    folder.port += 10
    folder.up("--base-port", str(folder.port))
    assert folder.ok("consume", "kept", "--from", "earliest", "--to-end") == b"one\ntwo\n"


def test_each_command_says_what_it_did_and_restart_returns_when_it_is_live(folder: Folder) -> None:
    folder.new()
    folder.ok("topics", "create", "kept")
    at = ("--data", str(folder.path))
    assert folder.ok("cluster", "kill", "r1", *at).startswith(b"killed r1 (pid ")
    again = run_tidelog("cluster", "kill", "r1", *at)
    assert again.returncode == 0 and b"r1 does not run" in again.stderr
    gone = run_tidelog("cluster", "pause", "r1", *at)
    assert gone.returncode == 1 and b"'tidelog cluster restart r1'" in gone.stderr
    assert folder.ok("cluster", "restart", "r1", *at).splitlines()[-1] == b"r1 is live"
    servers = json.loads(folder.ok("servers", "list", "--json"))
    assert [server["state"] for server in servers] == ["live"], "at once"
    folder.ok("cluster", "pause", "c1", *at)
    slow = run_tidelog("cluster", "restart", "r1", *at, "--timeout", "0.5")
    assert slow.returncode == 1 and b"not live after 0.5 s" in slow.stderr, "nobody can register it"
    assert folder.ok("cluster", "resume", "c1", *at).startswith(b"resumed c1")
    assert folder.ok("cluster", "down", *at) == b"ended g1, c1, r1\n"
    assert folder.ok("cluster", "down", *at) == b"nothing was running\n"


def test_process_that_dies_at_the_start_is_named_and_nothing_is_left(folder: Folder) -> None:
    folder.new()
    folder.down()
    for name in ("meta", "meta-copy"):
        (folder.path / "r1" / "data" / name).write_bytes(b"{")
    told = folder.refused("up", "--detach")
    assert "r1 ended while starting" in told
    assert "meta is damaged" in told
    assert folder.alive() == []


def test_a_service_that_cannot_be_loaded_is_reported_and_no_process_is_left(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "broken" / "tidelog_gateway"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import nosuch\n")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    told = folder.refused("up", "--controllers", "1", "--replicas", "1", "--base-port", str(folder.port), "--detach")
    assert "g1 ended while starting" in told
    assert "No module named 'nosuch'" in told
    assert folder.logging() == [] and folder.alive() == []


async def test_ctrl_c_while_it_starts_leaves_nothing(folder: Folder) -> None:
    async with foreground("cluster", "up", "--data", str(folder.path), "--base-port", str(folder.port)) as process:
        await until(trio.Path(folder.path / "c2" / "log").exists)
        process.send_signal(signal.SIGINT)
        assert await process.wait() != 0
    assert folder.logging() == [] and folder.alive() == []


class Alone(LocalCluster):
    """A cluster whose processes are each started by a command, as on systems without ``fork_all``."""

    def command_prefix(self, process: Process) -> list[str]:
        return ["env"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_no_process_is_started_unnoticed(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """The signal comes when the process runs, and the cluster does not know it yet."""
    cluster = Alone.create(folder.path, controllers=1, replicas=1, gateways=1, base_port=folder.port)
    popen = subprocess.Popen
    started = []

    def interrupted(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(command, **options))
        signal.raise_signal(number)
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            cluster.start()
        assert signal.getsignal(signal.SIGTERM) is signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert folder.alive() == ["c1"]
        cluster.stop_started()
        assert folder.logging() == [] and folder.alive() == []
    finally:
        signal.signal(signal.SIGTERM, before)
        for child in started:
            child.kill()
            child.wait()


def test_processes_have_names_sessions_and_logs_of_their_own(folder: Folder) -> None:
    pids = {p["id"]: p["pid"] for p in folder.new()["processes"]}
    for node, pid in pids.items():
        process = Path(f"/proc/{pid}")
        assert (process / "comm").read_text() == f"tidelog {node}\n"
        assert os.getsid(pid) == pid
        log = folder.path / node / "log"
        assert [(process / "fd" / str(number)).readlink() for number in range(3)] == [Path(os.devnull), log, log]
        assert {json.loads(line).get("node", node) for line in log.read_text().splitlines()} == {node}


def test_commands_report_unknown_names(folder: Folder) -> None:
    assert "holds no cluster" in folder.refused("status")
    assert "holds no cluster" in folder.refused("down")
    LocalCluster.create(folder.path, base_port=folder.port)
    assert "no process 'r9'" in folder.refused("kill", "r9")


async def test_ctrl_c_ends_the_whole_cluster(folder: Folder) -> None:
    numbers = ("--controllers", "1", "--replicas", "1", "--gateways", "1", "--base-port", str(folder.port))
    async with foreground("cluster", "up", "--data", str(folder.path), *numbers) as process:
        await wait_said(process, b"Ctrl-C ends it")
        folder.ok("cluster", "restart", "r1", "--data", str(folder.path))
        assert folder.alive() == ["g1", "c1", "r1"]
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
    assert folder.alive() == []


async def test_dev_serves_keeps_its_data_and_ends_at_ctrl_c(folder: Folder) -> None:
    command = ("dev", "--data", str(folder.path), "--port", str(folder.port))
    async with foreground(*command) as process:
        await wait_said(process, b"Ctrl-C ends it")
        folder.ok("topics", "create", "kept", "--replication-factor", "3")  # at once: it said that it is ready
        folder.ok("produce", "kept", stdin=b"one\ntwo\n")
        other = run_tidelog(*command)
        assert other.returncode == 2 and b"in use" in other.stderr, other.stderr
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
    async with foreground(*command) as process:
        await wait_said(process, b"Ctrl-C ends it")
        assert folder.ok("consume", "kept", "--from", "earliest", "--to-end") == b"one\ntwo\n"
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


@pytest.mark.parametrize(
    "start", [("dev", "--port"), ("cluster", "up", "--controllers", "1", "--replicas", "1", "--base-port")]
)
async def test_commands_of_the_banner_can_be_pasted_and_show_a_record(folder: Folder, start: tuple[str, ...]) -> None:
    async with foreground(*start, str(folder.port), "--data", str(folder.path)) as process:
        banner = await wait_said(process, b"Ctrl-C ends it")
        shown = await trio.to_thread.run_sync(lambda: paste(*commands_in(banner)))
        assert shown[-1] == b"hello", banner.decode()
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0


def test_the_banner_of_a_cluster_that_runs_on_can_be_pasted_too(folder: Folder) -> None:
    """Its last command ends the cluster. With TLS variables of the environment stand before the commands."""
    numbers = ("--controllers", "1", "--replicas", "1", "--gateways", "1", "--base-port", str(folder.port))
    banner = folder.ok("cluster", "up", "--data", str(folder.path), "--detach", "--tls", *numbers)
    *commands, down = commands_in(banner)
    assert paste(*commands)[-1] == b"hello", banner.decode()
    assert folder.alive() == ["g1", "c1", "r1"]
    paste(down)
    assert folder.alive() == []


async def test_dev_listens_on_the_address_that_it_is_told(folder: Folder) -> None:
    """Its image needs that: from outside a container 127.0.0.1 cannot be reached."""
    command = ("dev", "--data", str(folder.path), "--port", str(folder.port), "--replicas", "1", "--host", "0.0.0.0")
    async with foreground(*command) as process:
        said = await wait_said(process, b"Ctrl-C ends it")
        assert f"gateway  ws://127.0.0.1:{folder.port}\n".encode() in said
        folder.ok("topics", "create", "reached", "--gateway", f"ws://127.0.0.2:{folder.port}")
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
@pytest.mark.parametrize("line", ["starting 3 controllers", "topic demo"])
def test_a_demo_that_is_ended_leaves_no_process_and_no_data_behind(
    tmp_path: Path, line: str, number: signal.Signals
) -> None:
    """While its processes start, and while records flow."""
    command = [sys.executable, "-m", "tidelog.cli", "demo", "--out", str(tmp_path), "--seconds", "600", "--no-spark"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as demo:
        assert demo.stdout is not None
        while line.encode() not in (said := demo.stdout.readline()):
            assert said, "it has ended by itself"
        demo.send_signal(number)
        assert demo.wait(60) == 128 + number
    assert not Folder(tmp_path).logging()
    assert not list(tmp_path.glob("cluster-*")), "nor its data"


def on_terminal(columns: int, *arguments: str, gateway: str) -> list[str]:
    """The lines that a command prints on a terminal of this width, without styles."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: text for name, text in os.environ.items() if name not in ("COLUMNS", "LINES")}
    command = [sys.executable, "-m", "tidelog.cli", *arguments, "--gateway", gateway]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, env=environment)
    os.close(theirs)
    said = b""
    with suppress(OSError):  # EIO: no process has the terminal open any more
        while more := os.read(ours, 65536):
            said += more
    os.close(ours)
    assert process.wait() == 0, said.decode()
    return [click.unstyle(line).rstrip() for line in said.decode().splitlines()]


LISTS = (
    ("topics", "list", "-o", "wide"),
    ("partitions", "list", "{name}"),
    ("topics", "describe", "{name}"),
    ("servers", "list"),
    ("status",),
)


def test_no_cell_is_cut_in_a_pipe_and_on_a_narrow_terminal(cluster: Cluster) -> None:
    name = "a-topic-whose-name-is-wider-than-a-terminal-of-only-sixty-columns"
    settings = ("--replication-factor", "3", "--config", "retention_ms=7d")
    made = json.loads(cluster.ok("topics", "create", name, *settings, "-o", "json"))
    assert made["config"]["retention_ms"] == 604_800_000
    for arguments in LISTS:
        given = [argument.format(name=name) for argument in arguments]
        whole = cluster.ok(*given).decode().splitlines()
        narrow = on_terminal(60, *given, gateway=cluster.gateways[0])
        assert max(len(line) for line in narrow if line != name) <= 60, arguments
        assert "…" not in "".join([*whole, *narrow]), arguments
        if arguments[1:2] == ("list",) and name in "".join(whole):
            assert any(len(line) > 60 and name in line for line in whole), arguments
            assert name in "".join(line.split()[0] for line in narrow if line[:1].strip()), arguments
        if "wide" in arguments:
            assert any(made["topic_id"] in line for line in whole)
            assert made["topic_id"] in "".join(line.split()[-1] for line in narrow if line)
