"""What HTTP costs beside the WebSocket of the Python client: one record a request, and many subscribers of events.

    .venv/bin/python deploy/bench/over_http.py [--subscribers 1000] [--rounds 3] [--seconds 3] [--json FILE]

One cluster of processes on this machine serves all rounds: a controller, three replica servers and a gateway. Each
round measures both in turn. The table has the medians, and the ratio of HTTP to WebSocket: the median of the rounds'
ratios, with the least and the most. "gateway us/record" is the gateway's CPU for each record that is sent or
delivered. On a machine that is busy only the ratios mean anything.

    one at a time           a record of 100 B, acks all; the next is sent when the ack has come. Over HTTP each is a
                            request on a connection that stays open
    subscribers             each on a connection of its own, as deploy/bench/fan_out.py has them: a delay is that from
                            handing a record to the producer to the moment at which a subscriber has read it
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import click
import tidelog
import trio
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench.fan_out import TOPIC, Subscriber, allow_connections, create_topic, delays_of, gateway_of, measure
from bench.harness.cluster import running_cluster
from bench.harness.processes import cpu_s, require_linux
from bench.harness.rows import CONSOLE, machine, percentile

Figures = dict[str, float]
UNITS = {
    "records_per_s": "records/s",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "gateway_us": "gateway us/record",
}
RECORD = b"." * 100


class EventSubscriber:
    """A connection to a gateway that follows the topic's only partition with server-sent events."""

    def __init__(self, url: str) -> None:
        """Connect and follow from the end. Blocks until the stream has begun. Raises ``OSError``."""
        self.socket = _connected(url)
        self.socket.sendall(
            f"GET /v1/topics/{TOPIC}/partitions/0/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
        )
        data = b""
        while b"retry:" not in data:
            data += self._receive()
        assert data.startswith(b"HTTP/1.1 200 "), data

    def read(self) -> list[float]:
        """Read what has arrived, and return the delay in seconds of each record in it."""
        return delays_of(self._receive())

    def _receive(self) -> bytes:
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the gateway closed the connection of a subscriber")
        return data


def send_requests(url: str, seconds: float) -> list[float]:
    """Append one record a request for so many seconds, and return how long each took, in ms."""
    head = f"POST /v1/topics/{TOPIC}/records HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(RECORD)}\r\n\r\n"
    request = head.encode() + RECORD
    taken: list[float] = []
    with _connected(url) as connection:
        end = time.monotonic() + seconds
        while (began := time.monotonic()) < end:
            connection.sendall(request)
            answer = connection.recv(1 << 16)
            while not answer.endswith(b"}\n"):
                answer += connection.recv(1 << 16)
            assert answer.startswith(b"HTTP/1.1 200 "), answer
            taken.append(1e3 * (time.monotonic() - began))
    return taken


async def send_records(url: str, seconds: float) -> list[float]:
    """Append one record at a time with the Python client for so many seconds, and return how long each took, in
    ms."""
    taken: list[float] = []
    async with tidelog.connect(url) as log, log.producer(TOPIC) as producer:
        await producer.send(RECORD)
        end = time.monotonic() + seconds
        while (began := time.monotonic()) < end:
            await producer.send(RECORD)
            taken.append(1e3 * (time.monotonic() - began))
    return taken


async def end_of(url: str) -> int:
    """Append a record, and return the offset behind it."""
    async with tidelog.connect(url) as log, log.producer(TOPIC) as producer:
        return (await producer.send(RECORD)).offset + 1


def one_at_a_time(gateway: int, send: Callable[[], list[float]], seconds: float) -> Figures:
    """Measure one way of sending one record at a time, and return its figures."""
    before = cpu_s(gateway)
    taken = send()
    return {
        "records_per_s": len(taken) / seconds,
        "p50_ms": percentile(taken, 0.5),
        "p99_ms": percentile(taken, 0.99),
        "gateway_us": 1e6 * (cpu_s(gateway) - before) / len(taken),
    }


def compare(case: str, rounds: int, ways: tuple[Callable[[], Figures], Callable[[], Figures]]) -> dict[str, object]:
    """Measure the two ways, WebSocket and HTTP, in turn, and return the figures of all rounds."""
    found: list[tuple[Figures, Figures]] = []
    for number in range(rounds):
        CONSOLE.print(f"  {case}: round {number + 1} of {rounds}")
        found.append((ways[0](), ways[1]()))
    return {"case": case, "websocket": [both[0] for both in found], "http": [both[1] for both in found]}


def table(rows: list[dict[str, object]]) -> Table:
    """Return the medians of each case and figure, and the ratio of HTTP to WebSocket."""
    made = Table(box=None)
    for heading in ("case", "figure"):
        made.add_column(heading, no_wrap=True)
    for heading in ("WebSocket", "HTTP", "ratio", "least", "most"):
        made.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        websocket, http = row["websocket"], row["http"]
        assert isinstance(websocket, list) and isinstance(http, list)
        for figure, unit in UNITS.items():
            before, after = [one[figure] for one in websocket], [one[figure] for one in http]
            ratios = [b / a for a, b in zip(before, after, strict=True)]
            shown = f"{median(ratios):.2f}", f"{min(ratios):.2f}", f"{max(ratios):.2f}"
            made.add_row(str(row["case"]), unit, f"{median(before):,.1f}", f"{median(after):,.1f}", *shown)
    return made


def _connected(url: str) -> socket.socket:
    parts = urlsplit(url)
    assert parts.hostname is not None and parts.port is not None
    made = socket.create_connection((parts.hostname, parts.port))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def _load() -> str:
    return "load " + ", ".join(f"{one:.1f}" for one in os.getloadavg())


@click.command(help=(__doc__ or "").partition("\n\n")[0] + "\n\n\b" + (__doc__ or "").partition("\n\n")[2])
@click.option("--subscribers", type=click.IntRange(1), multiple=True, default=(1000,), show_default=True)
@click.option("--processes", type=click.IntRange(1), default=2, show_default=True, help="Of subscribers.")
@click.option("--records", type=click.IntRange(1), default=20, show_default=True, help="For each subscriber.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--seconds", type=click.FloatRange(0.1), default=3.0, show_default=True, help="One record at a time.")
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures here too.")
def main(
    subscribers: tuple[int, ...], processes: int, records: int, rounds: int, seconds: float, path: Path | None
) -> None:
    """Measure HTTP beside WebSocket and print a table."""
    require_linux()
    allow_connections()
    load = _load()
    with running_cluster() as cluster:
        url, gateway = gateway_of(cluster)
        topic_id = trio.run(create_topic, url)
        single = (
            lambda: one_at_a_time(gateway, partial(trio.run, send_records, url, seconds), seconds),
            lambda: one_at_a_time(gateway, partial(send_requests, url, seconds), seconds),
        )
        rows = [compare("one at a time", rounds, single)]
        for number in subscribers:
            many = partial(measure, url, gateway, subscribers=number, processes=processes, records=records)
            ways = (
                lambda many=many: many(partial(Subscriber, url, topic_id, trio.run(end_of, url))),
                lambda many=many: many(partial(EventSubscriber, url)),
            )
            rows.append(compare(f"{number:,} subscribers", rounds, ways))
    CONSOLE.print(table(rows))
    CONSOLE.print(f"records of {len(RECORD)} B, flush os; {machine()}; {load} before, {_load()} after")
    if path is not None:
        path.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
