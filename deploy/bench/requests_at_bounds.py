"""What requests cost that a gateway takes, each at its bound, from one attacker beside a well-behaved client.

    .venv/bin/python deploy/bench/requests_at_bounds.py [--seconds 10] [--topics 200] [--groups 1000] [--only NAME]

A cluster of processes on this machine: a controller, three replica servers and a gateway. The attacker is a process
of its own: it sends each request again and again for so many seconds, many at a time where it is answered. Meanwhile
a client sends 50 records a second, acks ``all``. The row of a request: how many were answered, and how many refused;
the CPU seconds and the highest resident memory of gateway, replica servers (the one that took most) and controller in
that time; and that client's acks: p50, p99 and the slowest, in ms. The first row is without an attack. The last
attacks fill what they can, up to the bounds of one principal.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path

import click
import tidelog
import trio
from tidelog.batch.format import NewRecord, encode_batch
from tidelog.cli.local.local_cluster import LocalCluster
from tidelog.client.log import Log
from tidelog.errors import TidelogError
from tidelog.feature_levels import service_hello
from tidelog.net.link import Link, connect_link
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.wire.messages import (
    BeginTransaction,
    CommitOffsets,
    CreateTopic,
    DescribeGroup,
    DescribeMetrics,
    DescribeQuorum,
    FetchOffsets,
    GroupPosition,
    History,
    JoinGroup,
    ListGroups,
    ListOffset,
    ListTransactions,
    Message,
    Metadata,
    Produce,
    ProducePart,
    Read,
    TopicShare,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench.harness.bystander import Bystander
from bench.harness.cluster import running_cluster
from bench.harness.processes import cpu_s, end_with_sigterm, forget_peak, require_linux, resident_mb

TOPIC = "healthy"
IDLE = "topic-0"
TIMEOUT_S = 60.0
PAUSE_S = 0.01
"""Pause in seconds after a refusal, and after a message that gets no answer."""


@dataclass(slots=True)
class Row:
    """The cost of one kind of request at its bound: answers, refusals, CPU and memory by role, and the bystander's
    acks."""

    attack: str
    requests: int = 0
    refused: int = 0
    cpu_s: dict[str, float] = field(default_factory=dict)
    memory_mb: dict[str, float] = field(default_factory=dict)
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    slowest_ms: float = 0.0


def bombs(topic_id: str, values: list[NewRecord]) -> Produce:
    """Return a produce message with 1,000 copies of a batch that is small and decodes to very much."""
    batch = encode_batch(values, codec="zstd")
    parts = tuple(ProducePart(id, topic_id, 0, 1, 5000, len(batch)) for id in range(1000))
    return Produce(parts, batch * len(parts))


@dataclass(frozen=True, slots=True)
class Attack:
    """One kind of request. ``request`` makes each request from its number; ``links``: connections, each with
    ``at_a_time`` requests in flight."""

    request: Callable[[int], Message]
    links: int = 1
    at_a_time: int = 200


def same(message: Message) -> Attack:
    """Return the attack that repeats one request; a message without an answer is sent by one sender."""
    return Attack(lambda number: message, at_a_time=200 if message.ANSWER is not None else 1)


def attacks(topic_id: str, idle_id: str) -> dict[str, Attack]:
    """Return all attacks by name. ``idle_id``: id of a topic to which nothing is written."""
    tiny = [NewRecord(b"", b"k", timestamp_ms=1, headers=(("", b""),))] * 10_000
    positions = tuple(GroupPosition(topic_id, 0, number) for number in range(1500))
    poll = Read(idle_id, 0, 0, max_wait_ms=30_000)
    first = (GroupPosition(topic_id, 0, 1),)
    return {
        "metadata, one name 8,000 times": same(Metadata((TOPIC,) * 8000)),
        "metadata, one name 8,000 times, offsets": same(Metadata((TOPIC,) * 8000, offsets=True)),
        "metadata, 9,000 names": same(Metadata(tuple(f"t{number}" for number in range(9000)))),
        "metadata, all topics": same(Metadata(all_topics=True)),
        "metadata, all topics, offsets": same(Metadata(all_topics=True, offsets=True)),
        "list_groups": same(ListGroups()),
        "list_transactions": same(ListTransactions()),
        "describe_group": same(DescribeGroup("group-0")),
        "describe_metrics": same(DescribeMetrics("r1")),
        "describe_quorum": same(DescribeQuorum()),
        "history": same(History(topic_id, 0)),
        "list_offset by time": same(ListOffset(topic_id, 0, "timestamp", 1)),
        "read, 4 MiB": same(Read(topic_id, 0, 0, max_bytes=4 << 20)),
        "read, 512 long polls on each of nine connections": Attack(lambda number: poll, links=9, at_a_time=512),
        "commit_offsets, 1,500 positions": same(CommitOffsets("group-0", positions=positions)),
        "fetch_offsets": same(FetchOffsets("group-0", (TopicShare(topic_id, tuple(range(10_000))),))),
        "produce, 1,000 tiny parts": same(
            Produce(tuple(ProducePart(id, "none", 0, 1, 5000, 0) for id in range(1000)), b"")
        ),
        "produce, 1,000 batches of 8 MiB of zeros": same(
            bombs(topic_id, [NewRecord(bytes(8 << 20), timestamp_ms=1)])
        ),
        "produce, 1,000 batches of 10,000 records": same(bombs(topic_id, tiny)),
        "commit_offsets, another group each time": Attack(lambda n: CommitOffsets(f"fresh-{n}", positions=first)),
        "join_group, another group each time": Attack(lambda n: JoinGroup(f"joined-{n}", f"member-{n}", (TOPIC,))),
        "begin_transaction, another application each time": Attack(
            lambda n: BeginTransaction(f"app-{n}", f"owner-{n}")
        ),
        "create_topic, another name each time": Attack(lambda n: CreateTopic(f"fresh-{n}", 1, 3)),
    }


async def attack(url: str, name: str, seconds: float) -> Row:
    """Send the requests of an attack for this many seconds, and return how many were answered and refused."""
    row, numbers = Row(name), count()

    async def ask(link: Link, attack: Attack) -> None:
        while not link.closed:
            message = attack.request(next(numbers))
            try:
                if message.ANSWER is None:
                    await link.send(message)
                    await trio.sleep(PAUSE_S)
                else:
                    await link.call(message, TIMEOUT_S)
                row.requests += 1
            except TidelogError:
                row.refused += 1
                await trio.sleep(PAUSE_S)

    async def connected(attack: Attack) -> None:
        async with attacker(url) as link, trio.open_nursery() as nursery:
            for _ in range(attack.at_a_time):
                nursery.start_soon(ask, link, attack)

    async with attacker(url) as link:
        found = await link.call(Metadata((TOPIC, IDLE)), TIMEOUT_S)
    ids = {topic.name: topic.topic_id for topic in found.topics}
    chosen = attacks(ids[TOPIC], ids[IDLE])[name]
    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            for _ in range(chosen.links):
                nursery.start_soon(connected, chosen)
    return row


@contextlib.asynccontextmanager
async def attacker(url: str) -> AsyncIterator[Link]:
    """Yield the link of a further client, closed at the end of the block."""
    hello = service_hello("client", "attacker")
    async with connect_link(WebSocketTransport(), url, hello, lambda link, id, message: None) as link:
        yield link


async def prepare(log: Log, url: str, topics: int, groups: int) -> None:
    """Create the topics, and groups that each have a position."""
    topic_id = (await log.topics.create(TOPIC, partitions=1, replication_factor=3)).topic_id
    limiter = trio.CapacityLimiter(20)

    async def commit(link: Link, number: int) -> None:
        async with limiter:
            await link.call(CommitOffsets(f"group-{number}", positions=(GroupPosition(topic_id, 0, 1),)), TIMEOUT_S)

    async with attacker(url) as link, trio.open_nursery() as nursery:
        for number in range(topics):
            await log.topics.create(f"topic-{number}", partitions=4, replication_factor=3)
        for number in range(groups):
            nursery.start_soon(commit, link, number)


async def measure(cluster: LocalCluster, seconds: float, topics: int, groups: int, only: str) -> list[Row]:
    """Make every attack whose name contains ``only``, each in a process of its own beside a bystander, and return the
    figures. Prints each as it comes."""
    (url, *_) = cluster.gateways()
    pids = {node: cluster.get(node).pid for node in ("g1", "r1", "r2", "r3", "c1")}
    rows = []
    bystander = Bystander(TOPIC)
    async with tidelog.connect([url]) as log:
        await prepare(log, url, topics, groups)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bystander.produce, log)
            for name in ("none", *attacks("", "")):
                if name != "none" and only not in name:
                    continue
                await trio.sleep(1)
                row = Row(name)
                bystander.take_latencies()
                for pid in pids.values():
                    forget_peak(pid)
                before = {node: cpu_s(pid) for node, pid in pids.items()}
                if name == "none":
                    await trio.sleep(seconds)
                else:
                    command = [sys.executable, __file__, "--attack", url, name, str(seconds)]
                    ran = await trio.run_process(command, capture_stdout=True)
                    row.requests, row.refused = map(int, ran.stdout.split())
                row.cpu_s = _by_role({node: cpu_s(pid) - before[node] for node, pid in pids.items()})
                row.memory_mb = _by_role({node: resident_mb(pid, "VmHWM") for node, pid in pids.items()})
                row.p50_ms, row.p99_ms, row.slowest_ms = bystander.take_latencies()
                rows.append(row)
                print(_line(row), flush=True)
            nursery.cancel_scope.cancel()
    return rows


def _by_role(figures: dict[str, float]) -> dict[str, float]:
    roles: dict[str, Callable[[str], bool]] = {
        "gateway": lambda node: node == "g1",
        "replica": lambda node: node.startswith("r"),
        "controller": lambda node: node == "c1",
    }
    return {role: round(max(f for node, f in figures.items() if of(node)), 1) for role, of in roles.items()}


def _line(row: Row) -> str:
    cpu = " / ".join(f"{value:.1f}" for value in row.cpu_s.values())
    memory = " / ".join(f"{value:.0f}" for value in row.memory_mb.values())
    acks = f"{row.p50_ms:.0f} | {row.p99_ms:.0f} | {row.slowest_ms:.0f}"
    return f"| {row.attack} | {row.requests} | {row.refused} | {cpu} | {memory} | {acks} |"


@click.command(help=__doc__)
@click.option("--seconds", default=10.0, show_default=True, help="Length of each attack.")
@click.option(
    "--topics", default=200, show_default=True, type=click.IntRange(1), help="Topics of 4 partitions to create first."
)
@click.option("--groups", default=1000, show_default=True, help="Groups to create first.")
@click.option("--only", default="", help="Only attacks with this in their names.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures here too.")
def main(seconds: float, topics: int, groups: int, only: str, json_file: Path | None) -> None:
    """Start a cluster, make the attacks, and print a row for each."""
    require_linux()
    end_with_sigterm()
    print("| attack | answered | refused | CPU s: gateway / replica / controller | MB | p50 ms | p99 | slowest |")
    print("|---|---|---|---|---|---|---|---|")
    with running_cluster() as cluster:
        rows = trio.run(measure, cluster, seconds, topics, groups, only)
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--attack"]:
        sent = trio.run(attack, *sys.argv[2:4], float(sys.argv[4]))
        print(sent.requests, sent.refused)
    else:
        main()
