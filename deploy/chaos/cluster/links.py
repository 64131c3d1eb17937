"""Links between hosts, and what faults do to them. ``HostLinks`` drop, limit, delay and reset what a host sends, with
iproute2's ``tc`` and ``ss``; ``proxies.py`` has the links of processes that share a host."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol

from chaos.cluster.network_namespaces import NETWORK, HostCluster, run

RANDOM = (1 << 32) - 0x1000 + 56
"""Address at which a classic BPF program reads a random number: ``SKF_AD_OFF + SKF_AD_RANDOM`` (linux/filter.h)."""
OK, SHOT = 0, 2
"""The results ``TC_ACT_OK`` (pass a packet) and ``TC_ACT_SHOT`` (drop it)."""


def lose(cluster: HostCluster, node: str, part: float) -> None:
    """Drop this part (0 to 1) of the packets that a host sends, at random, until ``lose_nothing``."""
    passes = int((1 - part) * (1 << 32))
    program = [(0x20, 0, 0, RANDOM), (0x35, 0, 1, passes), (0x06, 0, 0, SHOT), (0x06, 0, 0, OK)]
    code = ",".join([str(len(program)), *(" ".join(map(str, line)) for line in program)])
    device = cluster.device(node)
    run(*cluster.entering(node), "tc", "qdisc", "add", "dev", device, "clsact")
    run(*cluster.entering(node), "tc", "filter", "add", "dev", device, "egress", "bpf", "da", "bytecode", code)


def lose_nothing(cluster: HostCluster, node: str) -> None:
    """End the loss of packets that ``lose`` began."""
    run(*cluster.entering(node), "tc", "qdisc", "del", "dev", cluster.device(node), "clsact")


class Links(Protocol):
    """The links between the processes of a cluster. All methods are called from a worker thread."""

    def cut(self, senders: Iterable[str], receivers: Iterable[str]) -> None:
        """Let nothing that the senders send to the receivers arrive, until ``mend``. For both directions call it
        twice."""

    def mend(self, senders: Iterable[str], receivers: Iterable[str]) -> None:
        """Undo one ``cut``. A link that was cut twice stays cut until it is mended twice."""

    def reset(self, node: str) -> None:
        """Reset every connection of a host, at both ends. Each may be opened again at once."""

    def narrow(self, node: str) -> None:
        """Limit what a host sends to 400 kbit/s, until ``smooth``."""

    def delay(self, node: str) -> None:
        """Delay what a host sends by 0.05 to 0.15 s, until ``smooth``."""

    def smooth(self, node: str) -> None:
        """End ``narrow`` and ``delay`` of a host."""


class HostLinks:
    """The links between network namespaces."""

    def __init__(self, cluster: HostCluster) -> None:
        self._cluster = cluster
        self.cut = cluster.cut
        self.mend = cluster.mend

    def reset(self, node: str) -> None:
        """Reset every connection of a host with ``ss``; see ``Links.reset``. Gives up after 10 seconds."""
        entering = self._cluster.entering(node)
        command = [*entering, "ss", "--kill", "--tcp", "state", "established", f"dst {NETWORK}.0/24"]
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(command, capture_output=True, check=True, timeout=10)

    def narrow(self, node: str) -> None:
        """Limit what a host sends to 400 kbit/s; packets that wait longer than 0.4 s are dropped."""
        self._shape(node, "tbf", "rate", "400kbit", "burst", "8kb", "latency", "400ms")

    def delay(self, node: str) -> None:
        """Delay what a host sends by 0.05 to 0.15 s. Some packets arrive twice, and out of order."""
        self._shape(node, "netem", "delay", "100ms", "50ms", "duplicate", "2%")

    def _shape(self, node: str, *how: str) -> None:
        """Install a queueing discipline (``tc qdisc``) on the network device of a host."""
        device = self._cluster.device(node)
        run(*self._cluster.entering(node), "tc", "qdisc", "add", "dev", device, "root", *how)

    def smooth(self, node: str) -> None:
        """Remove the queueing discipline of a host, which ends ``narrow`` and ``delay``."""
        run(*self._cluster.entering(node), "tc", "qdisc", "del", "dev", self._cluster.device(node), "root")
