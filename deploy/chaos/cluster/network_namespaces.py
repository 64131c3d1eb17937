"""A cluster whose processes run on hosts of their own: network namespaces of this machine that only the cluster and
its clients can reach.

Each host has one address on a bridge that the program itself holds in a namespace of its own; nothing outside can be
reached from there, and nothing outside can reach it. A link is cut by making the sender believe that the other host
has a hardware address that no host has: what it sends from then on is lost without a word, as on a broken cable, and
connections stay open until one end misses an answer. No packet filter is needed; ``ip``, ``unshare`` and ``nsenter``
(Debian's iproute2 and util-linux) and root are.

The program runs in network, mount and process namespaces of its own, too. They end with the program, however it ends,
and every process, host and mount ends with them: nothing is left behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NoReturn

from tidelog.cli.local.local_cluster import LocalCluster, Process

NETWORK = "10.77.0"
"""First three numbers of the addresses of all hosts. The addresses exist in these namespaces only."""
HERE = 1
"""Last number of the program's own address."""
FIRST_HOST = 11
PORT = 9292
COMMAND_S = 60.0
"""Longest time in seconds for a command that makes or changes hosts."""
BRIDGE = "hosts"
NOBODY = "02:00:00:00:00:00"
"""A hardware address that no host has."""
CLIENTS = "clients"
"""Name of the host of all clients, that is, of the program itself, where hosts are named."""
INSIDE = "TIDELOG_OWN_NETWORK"
"""Environment variable that is set in a program that has entered namespaces of its own."""
NAMESPACES = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


def enter_own_network() -> None:
    """Replace this process by one that runs the program again, in new network, mount and process namespaces. Returns
    if the program runs in them already. Exits with 2 if this is not root or ``unshare`` is missing."""
    if INSIDE in os.environ:
        return
    if os.geteuid() != 0:
        _give_up("network namespaces need root")
    sys.stdout.flush()
    command = ["unshare", *NAMESPACES, "--", sys.executable, *sys.orig_argv[1:]]
    try:
        os.execvpe(command[0], command, os.environ | {INSIDE: "1"})
    except FileNotFoundError:
        _give_up("there is no command unshare (apt-get install util-linux)")


def _give_up(why: str) -> NoReturn:
    print(f"hosts of their own cannot be made here: {why}", file=sys.stderr)
    sys.exit(2)


def run(*command: str) -> str:
    """Run a command and return its output. Raises ``RuntimeError`` with the command's error output if it fails,
    ``subprocess.TimeoutExpired`` after ``COMMAND_S``."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMMAND_S)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _ip(*arguments: str, inside: int = 0) -> None:
    """Run the command ``ip`` in the network namespace of the process ``inside``; 0: in the program's own."""
    run(*_entering(inside), "ip", *arguments)


def _entering(holder: int) -> list[str]:
    return ["nsenter", f"--net=/proc/{holder}/ns/net", "--"] if holder else []


class HostCluster(LocalCluster):
    """A local cluster each of whose processes runs in a network namespace of its own, with links that can be cut.
    Call ``enter_own_network`` before ``start``."""

    _holders: dict[str, subprocess.Popen[bytes]]
    _cuts: Counter[tuple[str, str]]

    def url(self, index: int) -> str:
        """Return the URL of the process of this index: one fixed port at the address of its host."""
        return f"ws://{NETWORK}.{FIRST_HOST + index}:{PORT}"

    def address(self, node: str) -> str:
        """Return the address of a process's host, or of ``CLIENTS``."""
        number = HERE if node == CLIENTS else FIRST_HOST + self.processes.index(self.get(node))
        return f"{NETWORK}.{number}"

    def entering(self, node: str) -> list[str]:
        """Return the words to put before a command so that it runs on the host of a process; empty for
        ``CLIENTS``."""
        return [] if node == CLIENTS else _entering(self._holders[node].pid)

    def device(self, node: str) -> str:
        """Return the name of the network device by which a host reaches the others."""
        return BRIDGE if node == CLIENTS else "eth0"

    def command_prefix(self, process: Process) -> list[str]:
        """Return the words before a process's command that start it on its own host."""
        return self.entering(process.id)

    def _config_lines(self, process: Process) -> Iterator[str]:
        yield "insecure = true  # nothing outside reaches these hosts"
        yield from super()._config_lines(process)

    def start(self) -> None:
        """Make the hosts at the first call, then start every process that does not run."""
        if not hasattr(self, "_holders"):
            self._make_hosts()
        super().start()

    def _make_hosts(self) -> None:
        self._holders = {}
        self._cuts = Counter()
        _ip("link", "set", "lo", "up")
        _ip("link", "add", BRIDGE, "type", "bridge")
        _ip("addr", "add", f"{NETWORK}.{HERE}/24", "dev", BRIDGE)
        _ip("link", "set", BRIDGE, "up")
        for process in self.processes:
            holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
            self._holders[process.id] = holder
            _until_own_network(holder.pid)
            _ip("link", "add", process.id, "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
            _ip("link", "set", process.id, "master", BRIDGE, "up")
            _ip("link", "set", "lo", "up", inside=holder.pid)
            _ip("addr", "add", f"{self.address(process.id)}/24", "dev", "eth0", inside=holder.pid)
            _ip("link", "set", "eth0", "up", inside=holder.pid)

    def drop_hosts(self) -> None:
        """Remove the hosts. The cluster must have been stopped."""
        for holder in self._holders.values():
            holder.kill()
            holder.wait()

    def cut(self, senders: Iterable[str], receivers: Iterable[str]) -> None:
        """Lose what the senders send to the receivers, until ``mend``. For both directions call it twice."""
        for sender, receiver in pairs(senders, receivers):
            self._cuts[sender, receiver] += 1
            self._neighbour("replace", sender, receiver, "lladdr", NOBODY, "nud", "permanent")

    def mend(self, senders: Iterable[str], receivers: Iterable[str]) -> None:
        """Undo one ``cut``. A link that was cut twice stays cut until it is mended twice."""
        for sender, receiver in pairs(senders, receivers):
            self._cuts[sender, receiver] -= 1
            if not self._cuts[sender, receiver]:
                self._neighbour("del", sender, receiver)

    def heal(self) -> None:
        """Undo all cuts."""
        for (sender, receiver), count in self._cuts.items():
            if count:
                self._neighbour("del", sender, receiver)
        self._cuts.clear()

    def _neighbour(self, verb: str, sender: str, receiver: str, *what: str) -> None:
        words = ("ip", "neigh", verb, self.address(receiver), *what, "dev", self.device(sender))
        run(*self.entering(sender), *words)


def pairs(senders: Iterable[str], receivers: Iterable[str]) -> list[tuple[str, str]]:
    """Return every (sender, receiver) of two different hosts."""
    receivers = list(receivers)
    return [(sender, receiver) for sender in senders for receiver in receivers if sender != receiver]


def _until_own_network(pid: int) -> None:
    """Wait, without sleeping, until a process that was just started has entered its own network namespace."""
    here = Path("/proc/self/ns/net").readlink()
    while Path(f"/proc/{pid}/ns/net").readlink() == here:
        os.sched_yield()
