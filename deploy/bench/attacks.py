"""What hostile peers cost each service: CPU, memory, and what a well-behaved client beside them notices.

    .venv/bin/python deploy/bench/attacks.py [--rounds 10] [--node g1] [--only flood] [--json FILE]

A cluster of processes on this machine. Each attack of tests/support/hostile_wire.py is begun so many times, one after
the other, after a good hello; those at the end of the list are many peers at once. Meanwhile a client sends 50
records a second, acks ``all``. ``requests_at_bounds.py`` attacks with requests that a gateway takes.

CPU is that of the attacked process beyond what it needs for this client, in ms for one attack; memory is the highest
that it was resident, above what it was before, in MB for all of them; "ack" is the client's slowest ack, in ms.
"""

from __future__ import annotations

import contextlib
import json
import math
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import tidelog
import trio
from tidelog.cli.local.local_cluster import LocalCluster
from tidelog.feature_levels import service_hello
from tidelog.net.transport import MAX_MESSAGE_BYTES
from tidelog.wire import codec

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from support.hostile_wire import HANDSHAKES, MESSAGES, frame, frames_for, opening, slow_peers

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench.harness.bystander import Bystander
from bench.harness.cluster import new_cluster
from bench.harness.processes import cpu_s, end_with_sigterm, forget_peak, require_linux, resident_mb

ROLES = {"g1": "client", "c1": "gateway", "r1": "replica"}
"""Attacked process -> the role with which a peer says hello to it."""
TOPIC = "attacks"
MANY = 500
"""Number of peers of a flood."""
FEW = 50
"""Number of peers that each send nearly 16 MiB: 800 MiB in all."""
PATIENCE_S = 60.0
"""Seconds after which a peer gives up."""
QUIET_S = 3.0
"""Seconds for which a process is measured without an attack."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one attack for a service (CPU ms per attack, MB of memory), and the slowest ack of a bystander in
    ms."""

    attack: str
    node: str
    cpu_ms: float
    memory_mb: float
    ack_ms: float


def connect(port: int, wire: bytes) -> socket.socket:
    """Connect to the port, send these bytes, and return the socket. It has a small receive buffer and reads
    nothing."""
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.settimeout(PATIENCE_S)
    peer.connect(("127.0.0.1", port))
    with contextlib.suppress(ConnectionError):
        peer.sendall(wire)
    return peer


def hang_up(peer: socket.socket) -> None:
    """Read from the peer's socket until the server has closed it, then close it."""
    with contextlib.suppress(ConnectionError):
        while peer.recv(1 << 20):
            continue
    peer.close()


def one_by_one(port: int, wire: bytes, rounds: int) -> int:
    """Make this attack ``rounds`` times, one after the other, and return how often."""
    for _ in range(rounds):
        hang_up(connect(port, wire))
    return rounds


def together(port: int, wire: bytes, peers: int, seconds: float) -> int:
    """Connect this many peers at once, let them do nothing for some seconds, close them, and return their number."""
    crowd = [connect(port, wire) for _ in range(peers)]
    time.sleep(seconds)
    for peer in crowd:
        peer.close()
    return peers


Attack = Callable[[int], int]
"""A function that attacks a port and returns how often it has."""


def attacks_on(node: str, rounds: int) -> Iterator[tuple[str, Attack]]:
    """Yield every attack on a process, as (name, function)."""
    hello = codec.encode(service_hello(ROLES[node], "bench"), id=0)[0]
    opened = opening() + frame(2, hello)
    wires = {name: opened + frame(2, data) for name, (data, _) in MESSAGES.items() if node == "g1" or name != "raft"}
    wires |= {name: opened + data for name, (data, _) in frames_for(MAX_MESSAGE_BYTES).items()}
    wires |= {f"handshake: {name}": wire for name, (wire, _) in HANDSHAKES.items()}
    if node != "g1":
        wires.pop("one-way op of another plane")  # these peers may send it
    for name, wire in wires.items():
        yield name, lambda port, wire=wire: one_by_one(port, wire, rounds)
    slow = slow_peers(hello)
    half = opened + frame(2, bytes(1 << 20))[:65536]
    yield "flood: requests, no answer is read", lambda port: one_by_one(port, slow["requests without end"][0], 1)
    if node == "g1":
        yield "flood: 4,100 that say nothing", lambda port: together(port, b"", 4100, 6)
    yield f"flood: {MANY} that say nothing", lambda port: together(port, b"", MANY, 6)
    yield f"flood: {MANY} without hello", lambda port: together(port, opening(), MANY, 6)
    yield f"flood: {MANY} that do not answer pings", lambda port: together(port, opened, MANY, 16)
    yield f"flood: {MANY} with 64 KiB of a message", lambda port: together(port, half, MANY, 16)
    nearly = opened + frame(2, bytes(MAX_MESSAGE_BYTES))[:-1]
    yield f"flood: {FEW} with all but a byte of the longest message", lambda port: together(port, nearly, FEW, 16)


async def measure(cluster: LocalCluster, nodes: list[str], rounds: int, only: str) -> list[Cost]:
    """Make every attack whose name contains ``only`` on each of these processes, beside a bystander, and return the
    costs. Prints each as it comes."""
    costs = []
    async with tidelog.connect(cluster.gateways()) as log, trio.open_nursery() as nursery:
        await log.topics.create(TOPIC, partitions=1, replication_factor=3)
        bystander = Bystander(TOPIC)
        nursery.start_soon(bystander.produce, log)
        for node in nodes:
            process = cluster.get(node)
            pid, port = process.pid, int(process.url.rpartition(":")[2])
            await trio.sleep(1)
            before = cpu_s(pid)
            await trio.sleep(QUIET_S)
            idle = (cpu_s(pid) - before) / QUIET_S
            for name, attack in attacks_on(node, rounds):
                if only not in name:
                    continue
                await trio.sleep(0.5)
                forget_peak(pid)
                bystander.take_latencies()
                memory, cpu, began = resident_mb(pid, "VmRSS"), cpu_s(pid), trio.current_time()
                times = await trio.to_thread.run_sync(attack, port)
                _, _, slowest_ms = bystander.take_latencies()
                spent = cpu_s(pid) - cpu - idle * (trio.current_time() - began)
                cost = Cost(
                    name,
                    node,
                    round(1e3 * max(spent, 0.0) / times, 2),
                    round(resident_mb(pid, "VmHWM") - memory, 1),
                    round(slowest_ms),
                )
                costs.append(cost)
                print(f"{node} {name}: {cost.cpu_ms} ms, {cost.memory_mb} MB, ack {cost.ack_ms:.0f} ms", flush=True)
        nursery.cancel_scope.cancel()
    return costs


def table(costs: list[Cost]) -> str:
    """Return a Markdown table with a row for each attack, and columns for the costs of each service."""
    nodes = [node for node in ROLES if any(cost.node == node for cost in costs)]
    found = {(cost.attack, cost.node): cost for cost in costs}
    heads = [f"{node} {what}" for node in nodes for what in ("CPU ms", "MB", "ack ms")]
    lines = [" | ".join(("| attack", *heads)) + " |", "|---" * (len(heads) + 1) + "|"]
    none = Cost("", "", math.nan, math.nan, math.nan)
    for attack in dict.fromkeys(cost.attack for cost in costs):
        row = (found.get((attack, node), none) for node in nodes)
        figures = (text for c in row for text in (f"{c.cpu_ms:.2f}", f"{c.memory_mb:.1f}", f"{c.ack_ms:.0f}"))
        lines.append(f"| {attack} | " + " | ".join("" if text == "nan" else text for text in figures) + " |")
    return "\n".join(lines)


@click.command(help=__doc__)
@click.option(
    "--rounds",
    default=10,
    show_default=True,
    type=click.IntRange(1),
    help="Number of times that each single attack is made.",
)
@click.option("--node", "nodes", multiple=True, type=click.Choice(list(ROLES)), help="Only these; default: all.")
@click.option("--only", default="", help="Only attacks with this in their names.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures here too.")
def main(rounds: int, nodes: tuple[str, ...], only: str, json_file: Path | None) -> None:
    """Start a cluster, run the attacks, and print what they cost."""
    require_linux()
    end_with_sigterm()
    with new_cluster() as cluster:
        cluster.forget_secret()  # some attacks are those of a compromised service
        cluster.start()
        trio.run(cluster.wait_ready)
        costs = trio.run(measure, cluster, list(nodes or ROLES), rounds, only)
    print(table(costs))
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(cost) for cost in costs], indent=1))


if __name__ == "__main__":
    main()
