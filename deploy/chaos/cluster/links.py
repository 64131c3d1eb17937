"""Links between hosts, and what faults do with them: ``HostLinks`` lose, narrow, delay and reset what a host sends
with iproute2's ``tc`` and ``ss``; ``proxies.py`` has those of processes that share a host."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol

from chaos.cluster.network_namespaces import NETWORK, HostCluster, run

RANDOM = (1 << 32) - 0x1000 + 56
"""Where a classic BPF program reads a random number: ``SKF_AD_OFF + SKF_AD_RANDOM`` (linux/filter.h)."""
OK, SHOT = 0, 2
"""``TC_ACT_OK``, ``TC_ACT_SHOT``."""


def lose(cluster: HostCluster, node: str, part: float) -> None:
    """Of the packets that this host sends so large a part is lost."""
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
    """What every kind of links can do. All of it is called from a worker thread."""

    def cut(self, senders: Iterable[str], receivers: Iterable[str]) -> None:
        """What these send to those does not arrive. For both directions call it both ways round."""

    def mend(self, senders: Iterable[str], receivers: Iterable[str]) -> None:
        """Take one cut back. A link that was cut twice stays cut until both are."""

    def reset(self, node: str) -> None:
        """Every connection of this host is reset, on both ends. They may connect again at once."""

    def narrow(self, node: str) -> None:
        """This host sends no more than 400 kbit/s."""

    def delay(self, node: str) -> None:
        """What this host sends arrives later: 0.05 to 0.15 s."""

    def smooth(self, node: str) -> None:
        """End ``narrow`` and ``delay``."""


class HostLinks:
    """Those of hosts of their own."""

    def __init__(self, cluster: HostCluster) -> None:
        self._cluster = cluster
        self.cut = cluster.cut
        self.mend = cluster.mend

    def reset(self, node: str) -> None:
        """Reset every connection of a host; see ``Links``."""
        entering = self._cluster.entering(node)
        command = [*entering, "ss", "--kill", "--tcp", "state", "established", f"dst {NETWORK}.0/24"]
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(command, capture_output=True, check=True, timeout=10)

    def narrow(self, node: str) -> None:
        """Limit what a host sends; see ``Links``. What waits longer than 0.4 s is lost."""
        self._shape(node, "tbf", "rate", "400kbit", "burst", "8kb", "latency", "400ms")

    def delay(self, node: str) -> None:
        """Delay what a host sends; see ``Links``. Some of it arrives twice, and out of order."""
        self._shape(node, "netem", "delay", "100ms", "50ms", "duplicate", "2%")

    def _shape(self, node: str, *how: str) -> None:
        """Put a queueing discipline before what this host sends."""
        device = self._cluster.device(node)
        run(*self._cluster.entering(node), "tc", "qdisc", "add", "dev", device, "root", *how)

    def smooth(self, node: str) -> None:
        """End ``narrow`` and ``delay`` on a host; see ``Links``."""
        run(*self._cluster.entering(node), "tc", "qdisc", "del", "dev", self._cluster.device(node), "root")
