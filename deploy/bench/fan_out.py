"""How late each of very many subscribers has a record: one partition, one gateway, each subscriber on a connection of
its own.

    .venv/bin/python deploy/bench/fan_out.py [--subscribers 100] [--subscribers 10000] [--processes 2] [--json FILE]

The subscribers are spread over ``--processes`` processes. A subscriber is as cheap as Python allows, so that the
delays are those of the gateway as far as possible: after ``hello`` and ``subscribe`` it reads its socket, takes the
time, and searches what it read for the stamp of the record; it parses no frame and grants no credit. ``tidelog bench
fanout`` measures subscribers of the Python client.

A delay is that from handing a record to the producer to the moment at which a subscriber has read it. The records
come at a steady rate, ten a second or as many as all subscribers together can be expected to read.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import resource
import select
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import cbor2
import click
import tidelog
import trio
from rich.table import Table
from tidelog.cli.local.local_cluster import LocalCluster
from websockets.client import ClientProtocol
from websockets.uri import parse_uri

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench.harness.cluster import running_cluster
from bench.harness.processes import cpu_s, require_linux
from bench.harness.rows import CONSOLE, machine, percentile

TOPIC = "fan-out"
MARK = b"stamped at "
STAMP_BYTES = 20
"""Digits after ``MARK``: when the record was handed to the producer (nanoseconds, ``time.monotonic_ns``)."""
_STAMPS = re.compile(MARK + rb"([0-9]{%d})" % STAMP_BYTES)
RECORD_BYTES = 100
CREDIT = 8 << 20
"""Bytes that a subscriber may be sent: enough for a whole measurement."""
DELIVERIES_PER_S = 10_000
"""Most deliveries a second that the rate of records aims at, all subscribers together."""
PING = b"\x89\x00"
"""A gateway's frame."""
BOUNDS = ("CLIENT", "PRINCIPAL", "ADDRESS")
"""Bounds on the connections of a gateway: of all clients, of one principal, from one address."""


class Subscriber:
    """A connection to a gateway that has subscribed to the topic's only partition."""

    def __init__(self, url: str, topic_id: str, offset: int) -> None:
        """Connect and subscribe from ``offset`` on. Blocks until the gateway has answered. Raises ``OSError``."""
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None
        self.socket = socket.create_connection((parts.hostname, parts.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._protocol = ClientProtocol(parse_uri(url), subprotocols=["tidelog.v1"])  # type: ignore[list-item]
        self._protocol.send_request(self._protocol.connect())
        self._exchange()
        self._ask(op="hello", id=1, version=1, role="client", node="fan-out")
        self._ask(op="subscribe", id=2, sub=1, topic_id=topic_id, partition=0, offset=offset, credit=CREDIT)

    def read(self) -> list[float]:
        """Read what has arrived, and return the delay in seconds of each record in it. A ping is answered."""
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the gateway closed the connection of a subscriber")
        if PING in data:  # or two bytes that look like one: a pong that nobody asked for does no harm
            self._protocol.send_pong(b"")
            self._send()
        return delays_of(data)

    def _ask(self, **header: object) -> None:
        self._protocol.send_binary(cbor2.dumps(header))
        self._exchange()

    def _exchange(self) -> None:
        """Send what the protocol has to send, and wait for the answer to it."""
        self._send()
        while not self._protocol.events_received():
            self._protocol.receive_data(self.socket.recv(1 << 16))
            self._send()

    def _send(self) -> None:
        for data in self._protocol.data_to_send():
            self.socket.sendall(data)


class AnySubscriber(Protocol):
    """A subscriber over a WebSocket or, in ``over_http.py``, over HTTP."""

    socket: socket.socket

    def read(self) -> list[float]:
        """Read what has arrived, and return the delay in seconds of each record in it."""


def delays_of(data: bytes) -> list[float]:
    """Return the delay in seconds of each record in bytes that were received just now."""
    now_ns = time.monotonic_ns()
    return [(now_ns - int(stamp)) / 1e9 for stamp in _STAMPS.findall(data)]


def stamped_record() -> bytes:
    """Return a record that says when it was made."""
    return (MARK + b"%0*d" % (STAMP_BYTES, time.monotonic_ns())).ljust(RECORD_BYTES, b".")


def run_subscribers(subscribe: Callable[[], AnySubscriber], count: int, records: int, pipe: Connection) -> None:
    """Open ``count`` subscribers and report on ``pipe`` when all are open; then wait until each has had ``records``
    records, and send the delays through ``pipe``. Runs in a process of its own."""
    poll, subscribers = select.epoll(), dict[int, AnySubscriber]()
    delays: list[float] = []

    def read(wait_s: float) -> None:
        """Let every subscriber read for which something has arrived; wait for that if nothing has."""
        for descriptor, _event in poll.poll(wait_s, count):
            delays.extend(subscribers[descriptor].read())

    for _ in range(count):
        subscriber = subscribe()
        subscribers[subscriber.socket.fileno()] = subscriber
        poll.register(subscriber.socket, select.EPOLLIN)
        read(0.0)  # those that are open have to answer pings
    pipe.send(count)
    while len(delays) < count * records:
        read(-1.0)
    pipe.send(delays)


async def send_records(url: str, rate: float, count: int) -> None:
    """Send ``count`` stamped records at ``rate`` per second, and wait for their acks."""
    async with tidelog.connect(url) as log, log.producer(TOPIC) as producer:
        began = time.monotonic() + 0.5
        for number in range(count):
            await trio.sleep(max(0.0, began + number / rate - time.monotonic()))
            await producer.submit(stamped_record())
        await producer.flush()


async def create_topic(url: str) -> str:
    """Create the topic and write one record, so that its leader and the route to it are known."""
    async with tidelog.connect(url) as log:
        await log.topics.create(TOPIC, partitions=1, replication_factor=3, config={"flush": "os"})
        async with log.producer(TOPIC) as producer:
            await producer.send(b"first")
        return (await log.topics.describe(TOPIC)).topic_id


def measure(
    url: str, gateway: int, subscribe: Callable[[], AnySubscriber], subscribers: int, processes: int, records: int
) -> dict[str, float]:
    """Measure one number of subscribers, which ``subscribe`` opens, at the gateway with this process number. Return
    the figures: delays in ms, CPU of the gateway for each delivery in microseconds."""
    processes = min(processes, subscribers)
    rate = min(10.0, DELIVERIES_PER_S / subscribers)
    started = []
    for number in range(processes):
        ours, theirs = multiprocessing.Pipe()
        count = subscribers // processes + (number < subscribers % processes)
        run = (subscribe, count, records, theirs)
        process = multiprocessing.Process(target=run_subscribers, args=run, daemon=True)
        process.start()
        theirs.close()
        started.append((process, ours))
    for _, pipe in started:
        pipe.recv()
    before = cpu_s(gateway)
    trio.run(send_records, url, rate, records)
    delays = [1e3 * delay for _, pipe in started for delay in pipe.recv()]
    cpu_us = 1e6 * (cpu_s(gateway) - before) / len(delays)
    for process, _ in started:
        process.join()
    return {
        "subscribers": subscribers,
        "records_per_s": rate,
        "p50_ms": percentile(delays, 0.5),
        "p99_ms": percentile(delays, 0.99),
        "max_ms": max(delays),
        "gateway_us": cpu_us,
    }


def gateway_of(cluster: LocalCluster) -> tuple[str, int]:
    """Return URL and process number of the only gateway."""
    pid = next(process.pid for process in cluster.processes if process.id.startswith("g"))
    assert pid is not None
    return cluster.gateways()[0], pid


def allow_connections() -> None:
    """Let this process open as many files as it may, and gateways that it starts have as many clients."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    os.environ.update({f"TIDELOG_{name}_MAX_CONNECTIONS": "20000" for name in BOUNDS})


def _measure_alone(subscribers: int, processes: int, records: int) -> dict[str, float]:
    """Measure one number of subscribers on a cluster of its own, and return the figures."""
    CONSOLE.print(f"  {subscribers:,} subscribers in {processes} processes")
    with running_cluster() as cluster:
        url, gateway = gateway_of(cluster)
        subscribe = partial(Subscriber, url, trio.run(create_topic, url), 1)
        return measure(url, gateway, subscribe, subscribers, processes, records)


@click.command(help=(__doc__ or "").partition("\n\n")[0] + "\n\n\b" + (__doc__ or "").partition("\n\n")[2])
@click.option("--subscribers", type=click.IntRange(1), multiple=True, default=(100, 1000, 10_000), show_default=True)
@click.option("--processes", type=click.IntRange(1), default=2, show_default=True, help="Of subscribers.")
@click.option("--records", type=click.IntRange(1), default=20, show_default=True)
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures here too.")
def main(subscribers: tuple[int, ...], processes: int, records: int, path: Path | None) -> None:
    """Measure each number of subscribers and print a table."""
    require_linux()
    allow_connections()
    rows = [_measure_alone(number, processes, records) for number in subscribers]
    table = Table(box=None)
    for heading in ("subscribers", "records/s", "p50 ms", "p99 ms", "max ms", "gateway CPU, us each"):
        table.add_column(heading, justify="right")
    for row in rows:
        number, *figures = row.values()
        table.add_row(f"{number:,}", *(f"{figure:,.1f}" for figure in figures))
    CONSOLE.print(table)
    CONSOLE.print(f"{records} records of {RECORD_BYTES} B, flush os; {machine()}")
    if path is not None:
        path.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
