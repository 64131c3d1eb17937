"""A cluster of real processes on this machine: start, watch, kill, pause, restart, stop.

The folder holds one sub-folder per process (configuration, data, log), ``certs`` if it speaks TLS (with a certificate
for each process, and ``client-admin`` for clients with access to the folder), ``secret``, by which the services know
each other, and ``cluster.json``, which always describes the running processes: ``{"cluster", "base_port",
"processes": [{"role", "id", "pid", "url", "log", "started"}]}``. ``pid`` is 0 for a process that was stopped.
``started`` is the start time of the process, as the system tells it (``operating_system.process_state``), so that no
other process that was given the same number is ever signalled."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import trio

from tidelog.cli.admin.certs import LOCAL, issue, open_authority
from tidelog.cli.local.readiness import LOOK_S, NO_FILES, live_servers, wait_ready
from tidelog.errors import ConfigError
from tidelog.net.tls import CLIENT, NodeIdentity, TlsOptions
from tidelog.private import DIRECTORY_MODE, make_file, own_directory, write_file
from tidelog.runtime.operating_system import process_state, wait_until_ended
from tidelog.runtime.prefork import ProcessSpec, can_fork, fork_all

HOST = "127.0.0.1"
MODULES = {"controller": "tidelog_controller", "replica": "tidelog_replica", "gateway": "tidelog_gateway"}
DEFAULTS = {"gateway": 1, "controller": 3, "replica": 3}
"""Numbers of processes of a new cluster, by role."""
BASE_PORT = 9292
PORTS = 100
"""Ports that ``free_base_port`` reserves together. The last is the reservation: it is bound, and nothing listens."""
CERTS = "certs"
SECRET = "secret"
"""Name of the file with the secret of the cluster's services."""
ADMIN = "admin"
REGISTERED = b"registered"
"""Text in the log of a replica server whose registration has succeeded."""
CERT_DAYS = 365
"""Days for which the certificates of a new cluster are valid."""
START_TIMEOUT_S = 60.0
"""Seconds within which a cluster has to accept writes."""
_reserved: dict[int, int] = {}
"""By base port, the descriptor of the bound socket of each reservation of this process. It is open until the process
ends."""


def free_base_port(count: int) -> int:
    """Return a port from which ``count`` ports in a row, at most 99, are free now. No other process that calls this
    function gets one of them until this process ends. Different processes begin their search at different ports. The
    ports are below those that the kernel gives to outgoing connections. Raises ``ConfigError`` if there are none."""
    bases = range(10_000, 32_000, PORTS)
    for turn in range(len(bases)):
        base = bases[(os.getpid() + turn) % len(bases)]
        if _reserve(base) and all(_port_is_free(base + i) for i in range(count)):
            return base
    raise ConfigError(f"no {count} free ports in a row on {HOST}")


def _reserve(base: int) -> bool:
    """Return whether this process may use the ports from this one on. It may if it can bind the last of them, which
    stays bound."""
    if base in _reserved:
        return True
    kept = socket.socket()
    try:
        kept.bind((HOST, base + PORTS - 1))
    except OSError:
        kept.close()
        return False
    _reserved[base] = kept.detach()
    return True


def _port_is_free(port: int) -> bool:
    """Return whether a process could listen on this port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _is_taken(url: str) -> bool:
    """Return whether some process listens at this URL; always False for a URL of another host."""
    parts = urlsplit(url)
    return parts.hostname == HOST and not _port_is_free(parts.port or 0)


@contextmanager
def _signals_held() -> Iterator[None]:
    """Hold SIGINT and SIGTERM back during the ``with`` block, so that no process is started without being recorded.
    The first that came is raised at the end. Does nothing in another thread than the main one, which gets no
    signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a local cluster, as stored in ``cluster.json``. ``pid`` is 0 if it was stopped. ``started`` is
    its start time in the kernel, which distinguishes it from a later process with the same pid."""

    role: str
    id: str
    pid: int
    url: str
    log: str
    started: int = 0

    def is_alive(self) -> bool:
        """Return whether the process runs: a process with this pid and start time exists and has not ended. A zombie
        does not run."""
        state, started = process_state(self.pid)
        return started == self.started and state not in ("Z", "X")

    def is_going(self) -> bool:
        """Return whether the process runs and is not paused."""
        return self.is_alive() and process_state(self.pid)[0] != "T"

    def is_there(self) -> bool:
        """Return whether the process runs or has ended only in part: while any of its threads is left, it holds its
        ports and locks."""
        return process_state(self.pid)[1] == self.started


class LocalCluster:
    """A cluster of processes on this machine that have their data in one folder. Objects of several commands may
    manage the same cluster, since each writes its changes to ``cluster.json``."""

    def __init__(self, folder: Path, cluster: str, base_port: int, processes: list[Process]) -> None:
        self.folder = folder
        self.cluster = cluster
        self.base_port = base_port
        self.processes = processes
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._log_starts: dict[str, int] = {}

    @classmethod
    def create(
        cls,
        folder: Path,
        *,
        controllers: int | None = None,
        replicas: int | None = None,
        gateways: int | None = None,
        base_port: int | None = None,
        tls: bool = False,
    ) -> LocalCluster:
        """Return the cluster in a folder, or create one there, without starting it; numbers of processes that are
        None are those of ``DEFAULTS``. Gateways get the ports from ``base_port`` on, then controllers, then replica
        servers; with ``tls`` a new cluster gets certificates of its own. Raises ``ConfigError`` if the folder's
        cluster has other numbers of processes or no TLS, or runs on other ports."""
        folder = folder.resolve()
        counts = {"gateway": gateways, "controller": controllers, "replica": replicas}
        if (folder / "cluster.json").exists():
            made = cls.load(folder)
            for role, count in counts.items():
                if count not in (None, len(made.of_role(role))):
                    raise ConfigError(
                        f"{folder} holds a cluster with {len(made.of_role(role))} processes of role {role}, "
                        f"not {count}; choose another folder with --data"
                    )
            if tls and made.tls == NO_FILES:
                raise ConfigError(f"{folder} holds a cluster without TLS; choose another folder with --data")
            if base_port not in (None, made.base_port):
                made._move(base_port)
            return made
        folder.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        processes = []
        for role, count in counts.items():
            for i in range(DEFAULTS[role] if count is None else count):
                node = f"{role[0]}{i + 1}"
                processes.append(Process(role, node, 0, "", str(folder / node / "log")))
        if tls:
            authority = open_authority(folder / CERTS, CERT_DAYS)
            for process in processes:
                issue(authority, NodeIdentity(process.role, process.id), LOCAL, CERT_DAYS)
            issue(authority, NodeIdentity(CLIENT, ADMIN), (), CERT_DAYS)
            own_directory(folder / CERTS)
        write_file(folder / SECRET, secrets.token_hex(32).encode())
        made = cls(folder, f"local-{os.urandom(4).hex()}", 0, processes)
        made._move(BASE_PORT if base_port is None else base_port)
        return made

    def _move(self, base_port: int) -> None:
        """Assign the ports from ``base_port`` on to the processes, and write their configuration files and
        ``cluster.json``. Raises ``ConfigError`` if a process runs."""
        if any(process.is_alive() for process in self.processes):
            raise ConfigError(f"{self.folder} runs on the ports from {self.base_port} on: end it first")
        self.base_port = base_port
        self.processes = [replace(process, url=self.url(i)) for i, process in enumerate(self.processes)]
        for process in self.processes:
            own_directory(self.folder / process.id)
            write_file(self.folder / process.id / "config.toml", self._config(process).encode())
        self.save()

    def forget_secret(self) -> None:
        """Delete the secret of the services, and write their configuration without it, so that they do not
        authenticate each other, as in earlier releases. Raises ``ConfigError`` if a process runs."""
        (self.folder / SECRET).unlink(missing_ok=True)
        self._move(self.base_port)

    def url(self, index: int) -> str:
        """Return the URL of the process with this index in ``processes``; its port is ``base_port`` plus the
        index."""
        return f"{'ws' if self.tls == NO_FILES else 'wss'}://{HOST}:{self.base_port + index}"

    @property
    def tls(self) -> TlsOptions:
        """TLS files for clients that have access to the folder; ``NO_FILES`` for a cluster without TLS."""
        return self._files(CLIENT, ADMIN)

    def _files(self, role: str, node: str) -> TlsOptions:
        """Return the TLS files of a process or client; ``NO_FILES`` for a cluster without TLS."""
        certs = self.folder / CERTS
        if not certs.exists():
            return NO_FILES
        name = certs / f"{role}-{node}"
        return TlsOptions(str(certs / "ca.pem"), f"{name}.pem", f"{name}.key")

    def command_prefix(self, process: Process) -> list[str]:
        """Return the words that precede the command of this process, such as those of a wrapper. With an empty list,
        which this class returns, the process is forked from one that has loaded the code, where the system allows
        that. Sub-classes override this."""
        return []

    @classmethod
    def load(cls, folder: Path) -> LocalCluster:
        """Read ``cluster.json`` in a folder, and return the cluster that it describes. Raises ``ConfigError`` if
        there is no such file."""
        path = folder.resolve() / "cluster.json"
        try:
            stored = json.loads(path.read_text())
        except FileNotFoundError as error:
            raise ConfigError(f"{folder} holds no cluster: start one with 'tidelog cluster up'") from error
        processes = [Process(**entry) for entry in stored["processes"]]
        return cls(path.parent, stored["cluster"], stored["base_port"], processes)

    def save(self) -> None:
        """Write the present state to ``cluster.json``, which is replaced atomically."""
        stored = {
            "cluster": self.cluster,
            "base_port": self.base_port,
            "processes": [asdict(process) for process in self.processes],
        }
        temporary = self.folder / "cluster.json.new"
        write_file(temporary, (json.dumps(stored, indent=2) + "\n").encode())
        temporary.replace(self.folder / "cluster.json")

    def of_role(self, role: str) -> list[Process]:
        """Return all processes of a role (``gateway``, ``controller`` or ``replica``), whether they run or not."""
        return [process for process in self.processes if process.role == role]

    def gateways(self) -> list[str]:
        """Return the URLs of all gateways, whether they run or not."""
        return [process.url for process in self.of_role("gateway")]

    def get(self, node: str) -> Process:
        """Return the process with that id. Raises ``ConfigError`` if there is none."""
        for process in self.processes:
            if process.id == node:
                return process
        known = ", ".join(process.id for process in self.processes)
        raise ConfigError(f"no process {node!r} in {self.folder}: there are {known}")

    def start(self) -> None:
        """Start every process that does not run, and record the pids. Does not wait until they accept requests
        (``wait_ready`` does). Raises ``ConfigError`` if one of their ports is in use, or a process cannot be
        started."""
        idle = [process for process in self.processes if not process.is_alive()]
        taken = [p.url for p in idle if _is_taken(p.url)]
        if taken:
            raise ConfigError(f"in use: {', '.join(taken)}; choose other ports with --base-port")
        self._launch(idle)

    def restart(self, node: str) -> None:
        """Start a process again on its own data, and record its pid. A process that runs is killed first. Raises
        ``ConfigError`` for an unknown id, or if the process cannot be started."""
        if self.get(node).is_alive():
            self.kill(node)
        self._launch([self.get(node)])

    def kill(self, *nodes: str) -> None:
        """Send SIGKILL to these processes, all at once, wait until they are gone, for at most 10 s, and record in
        ``cluster.json`` that they do not run."""
        processes = [self.get(node) for node in nodes]
        for process in processes:
            self._signal(process.id, signal.SIGKILL)
        self._wait_gone(processes, 10.0)
        for process in processes:
            self._put(replace(process, pid=0, started=0))
        self.save()

    def pause(self, node: str) -> None:
        """Send SIGSTOP to a process: it hangs, and its connections stay open. Does nothing if it does not run."""
        self._signal(node, signal.SIGSTOP)

    def resume(self, node: str) -> None:
        """Send SIGCONT to a paused process. Does nothing if it does not run."""
        self._signal(node, signal.SIGCONT)

    def terminate(self, *nodes: str) -> None:
        """Send SIGTERM to these processes, and SIGKILL to those that still run after 5 s. Waits until they are gone,
        and records that in ``cluster.json``."""
        self._stop([self.get(node) for node in nodes])

    def stop(self) -> None:
        """Send SIGTERM to every process of this cluster, and SIGKILL to those that still run after 5 s. Waits until
        they are gone, and records that in ``cluster.json``."""
        self._stop(self.processes)

    def stop_started(self) -> None:
        """Stop the processes that this object has started, in the way of ``stop``; others run on."""
        self._stop([process for process in self.processes if process.id in self._log_starts])

    def _stop(self, processes: list[Process]) -> None:
        """Send SIGTERM to these processes, after waking paused ones, and SIGKILL to those that still run after 5 s.
        Waits until they are gone, and records that in ``cluster.json``."""
        for process in processes:
            self._signal(process.id, signal.SIGCONT)
            self._signal(process.id, signal.SIGTERM)
        for process in self._wait_gone(processes, 5.0):
            self._signal(process.id, signal.SIGKILL)
        self._wait_gone(processes, 10.0)
        for process in processes:
            self._put(replace(process, pid=0, started=0))
        self.save()

    async def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until the cluster accepts writes: the started replica servers have logged their registration, and
        every gateway answers and sees as many live replica servers as run. (The log counts, since the metadata may
        still show former incarnations as live.) Raises ``ConfigError`` after ``timeout_s`` seconds, or, with the end
        of its log, if a process has ended."""
        wanted = sum(process.is_alive() for process in self.of_role("replica"))
        try:
            with trio.fail_after(timeout_s):
                while not all(self._is_registered(process) for process in self.of_role("replica")):
                    self._check_alive()
                    await trio.sleep(LOOK_S)
                for url in self.gateways():
                    await wait_ready(url, wanted, self._check_alive, self.tls)
                self._check_alive()
        except trio.TooSlowError as error:
            raise ConfigError(
                f"the cluster did not start within {timeout_s:.0f} s: see {self.folder}/*/log"
            ) from error

    async def wait_live(self, node: str, timeout_s: float) -> bool:
        """Wait until a process that this object has started is live, and return True; False after ``timeout_s``
        seconds. A replica server is live when it has registered and every running gateway sees it as live, any other
        process when it listens. Raises ``ConfigError`` if the process ends."""
        with trio.move_on_after(timeout_s):
            while not await self._is_live(node):
                self._check_alive(node)
                await trio.sleep(LOOK_S)
            return True
        return False

    async def _is_live(self, node: str) -> bool:
        """Return whether a process is live, in the sense of ``wait_live``. Asks the running gateways about a replica
        server."""
        process = self.get(node)
        if process.role != "replica":
            return _is_taken(process.url)
        gateways = [gateway.url for gateway in self.of_role("gateway") if gateway.is_going()]
        return self._is_registered(process) and all([node in await live_servers(url, self.tls) for url in gateways])

    def _is_registered(self, process: Process) -> bool:
        """Return whether a replica server's log shows that it has registered since this object started it; True if
        this object did not start it."""
        start = self._log_starts.get(process.id)
        if start is None:
            return True
        with Path(process.log).open("rb") as log:
            log.seek(start)
            return REGISTERED in log.read()

    def _check_alive(self, *nodes: str) -> None:
        """Raise ``ConfigError``, with the end of its log, if one of these processes has ended by itself. Without
        arguments all processes are checked."""
        for process in self.processes:
            if (not nodes or process.id in nodes) and process.pid and not process.is_alive():
                raise self._ended(process)

    def _ended(self, process: Process) -> ConfigError:
        """Return the ``ConfigError`` for a process that has ended by itself, with the last eight lines of its log."""
        end = Path(process.log).read_text(errors="replace").splitlines()[-8:]
        return ConfigError(f"{process.id} ended while starting:\n" + "\n".join(end))

    def _launch(self, processes: list[Process]) -> None:
        """Start these processes, controllers first and gateways last, and write their pids to ``cluster.json``.
        Raises ``ConfigError`` if one of them cannot be started."""
        ordered = sorted(processes, key=lambda process: list(MODULES).index(process.role))
        for process in ordered:
            log = Path(process.log)
            own_directory(log.parent)
            make_file(log)
            self._log_starts[process.id] = log.stat().st_size if log.exists() else 0
            self._put(replace(process, pid=0, started=0))
        alone = [process for process in ordered if self.command_prefix(process) or not can_fork()]
        try:
            self._fork([process for process in ordered if process not in alone])
            for process in alone:
                with _signals_held():
                    self._run(process)
        finally:
            self.save()

    def _fork(self, processes: list[Process]) -> None:
        """Start processes by forking them from a process that has loaded their code, and record their pids in memory.
        Raises ``ConfigError`` if one of them has ended at once."""

        def record_pid(number: int, pid: int, started: int) -> None:
            self._put(replace(processes[number], pid=pid, started=started))

        fork_all(
            [ProcessSpec(f"tidelog {p.id}", MODULES[p.role], self._arguments(p), p.log) for p in processes],
            record_pid,
        )
        for process in processes:
            if not self.get(process.id).pid:
                raise self._ended(process)

    def _run(self, process: Process) -> None:
        """Start a process by a command of its own, with its ``command_prefix``, and record its pid in memory."""
        command = [*self.command_prefix(process), sys.executable, "-m", MODULES[process.role]]
        command += self._arguments(process)
        with Path(process.log).open("ab") as log:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._children[child.pid] = child
        self._put(replace(process, pid=child.pid, started=process_state(child.pid)[1]))

    def _arguments(self, process: Process) -> list[str]:
        return ["--config", str(self.folder / process.id / "config.toml")]

    def _put(self, process: Process) -> None:
        """Replace the entry of a process in ``processes``. Nothing is written to disk."""
        self.processes = [process if p.id == process.id else p for p in self.processes]

    def _signal(self, node: str, number: signal.Signals) -> None:
        """Send a signal to a process. Does nothing if the process does not run. Raises ``ConfigError`` for an unknown
        id."""
        process = self.get(node)
        if process.is_alive():
            os.kill(process.pid, number)

    def _wait_gone(self, processes: list[Process], timeout_s: float) -> list[Process]:
        """Wait until these processes have ended, all together for at most ``timeout_s`` seconds. Returns the
        processes that still run."""
        deadline = time.monotonic() + timeout_s
        for process in processes:
            if process.is_there():
                wait_until_ended(process.pid, max(0.0, deadline - time.monotonic()))
            self._reap(process.pid)
        return [process for process in processes if process.is_alive()]

    def _reap(self, pid: int) -> None:
        """Collect the exit status of a child of this process, if it has ended, so that no zombie is left. Does
        nothing for a process that is no child."""
        if pid in self._children:
            self._children[pid].poll()
        elif pid:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    def _config(self, process: Process) -> str:
        return "\n".join(self._config_lines(process)) + "\n"

    def _config_lines(self, process: Process) -> Iterator[str]:
        """Yield the lines of the configuration file of a process: names, address, TLS files and secret if there are
        any, data directory, and the controllers."""
        at = urlsplit(process.url)
        yield f'node = "{process.id}"'
        yield f'cluster = "{self.cluster}"'
        yield f'host = "{at.hostname}"'
        yield f"port = {at.port}"
        files = self._files(process.role, process.id)
        for name in ("ca", "cert", "key") if files != NO_FILES else ():
            yield f'tls_{name} = "{getattr(files, name)}"'
        if (self.folder / SECRET).exists():  # missing in a cluster that an earlier release made
            yield f'cluster_secret_file = "{self.folder / SECRET}"'
        if process.role != "gateway":
            yield f'data_dir = "{self.folder / process.id / "data"}"'
        controllers = self.of_role("controller")
        if process.role == "controller":
            yield "[peers]"
            for peer in controllers:
                yield f'{peer.id} = "{peer.url}"'
        else:
            yield f"controllers = {json.dumps([peer.url for peer in controllers])}"
