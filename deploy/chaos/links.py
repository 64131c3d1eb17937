"""Links that lose, narrow, delay and reset what one host sends: iproute2's ``tc`` and ``ss``."""

from __future__ import annotations

import subprocess
from contextlib import suppress

from chaos.hosts import NETWORK, HostCluster, run

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
    """End ``lose``."""
    run(*cluster.entering(node), "tc", "qdisc", "del", "dev", cluster.device(node), "clsact")


def shape(cluster: HostCluster, node: str, *how: str) -> None:
    """Put a queueing discipline (``tbf``, ``netem``, with its options) before what this host sends."""
    run(*cluster.entering(node), "tc", "qdisc", "add", "dev", cluster.device(node), "root", *how)


def unshape(cluster: HostCluster, node: str) -> None:
    """End ``shape``."""
    run(*cluster.entering(node), "tc", "qdisc", "del", "dev", cluster.device(node), "root")


def reset(cluster: HostCluster, node: str) -> None:
    """Every TCP connection of this host with another is reset, on both ends. They may connect again at once."""
    command = [*cluster.entering(node), "ss", "--kill", "--tcp", "state", "established", f"dst {NETWORK}.0/24"]
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(command, capture_output=True, check=True, timeout=10)
