"""One case in a client process of its own: ``run_case.py ORDER``, an ``Order`` as JSON. It runs in the environment of
the product's client.

It prints one JSON object per line: first what the driver waits for (``ready``, ``leader``), then the ``figures``. The
driver answers the first with a line.
"""

from __future__ import annotations

import importlib
import json
import socket
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.peers.measurements import Acks, Order, longest_gap, percentile

RATE = 200.0
"""Records per second while a server is killed."""
WATCH_S = 5.0
"""Least seconds for which the acks are watched after the kill."""
GIVE_UP_S = 120.0
"""Seconds after which a case has failed."""
SHARES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}


def print_line(**said: Any) -> None:
    """Print these values as a line of JSON, for the driver."""
    print(json.dumps(said), flush=True)


def read_answer() -> dict[str, Any]:
    """Read the driver's answer, a line of JSON, from stdin."""
    answer: dict[str, Any] = json.loads(sys.stdin.readline())
    return answer


def delays(seconds: list[float], prefix: str = "") -> dict[str, float]:
    """Return percentiles of these seconds, in ms."""
    return {f"{prefix}{name} ms": percentile(seconds, share) * 1e3 for name, share in SHARES.items()}


def produce(client: ModuleType, order: Order) -> dict[str, float]:
    """Measure sending as many records as the client can take, until all are acknowledged."""
    client.create(order)
    records, seconds = client.produce(order)
    return {
        "MB/s": records * order.size / seconds / 1e6,
        "records/s": records / seconds,
        "written MB": records * order.size / 1e6,
    }


def latency(client: ModuleType, order: Order) -> dict[str, float]:
    """Measure one record at a time, the next when the last is acknowledged. The first tenth is not counted."""
    client.create(order)
    return delays(client.latency(order)[order.records // 10 :])


def consume(client: ModuleType, order: Order) -> dict[str, float]:
    """Measure reading a topic from its beginning, decoded to records, from the first records that came on."""
    size, seconds = client.consume(order)
    return {"MB/s": size / seconds / 1e6}


def fan_out(client: ModuleType, order: Order) -> dict[str, float]:
    """Measure the time from handing a record to the client until a subscriber has it."""
    client.create(order)
    return delays(client.fan_out(order))


def start(client: ModuleType, order: Order) -> dict[str, float]:
    """Measure the time from the start command until a record is acknowledged by a topic with three replicas. Raises
    ``TimeoutError`` or the client's error after ``GIVE_UP_S`` seconds."""
    print_line(ready=True)
    began = float(read_answer()["began"])
    until = began + GIVE_UP_S
    while not all(map(listens, order.addresses)):
        if time.monotonic() > until:
            raise TimeoutError("not all servers listen")
        time.sleep(0.02)
    while True:
        try:
            client.create(order)
            client.latency(order)
            return {"s": time.monotonic() - began}
        except client.NOT_YET:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def listens(address: str) -> bool:
    """Return whether a server accepts connections at this address."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        socket.create_connection((host, int(port)), 1.0).close()
    except OSError:
        return False
    return True


def failover(client: ModuleType, order: Order) -> dict[str, float]:
    """Measure the longest time without an ack while the leader's server is killed under a steady producer."""
    client.create(order)
    acks, stop = Acks(), threading.Event()
    failure: list[BaseException] = []

    def work() -> None:
        try:
            client.steady(order, RATE, acks, stop.is_set)
        except BaseException as error:  # reported below, in the thread that waits
            failure.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    _until(lambda: len(acks.times) > RATE, failure, "no acks before the kill")
    print_line(leader=client.leader(order))
    killed = float(read_answer()["killed"])
    _until(lambda: _goes_on(acks, killed), failure, "no acks after the kill")
    stop.set()
    thread.join(GIVE_UP_S)
    return {"s": longest_gap(acks.times, killed), "failed records": acks.failed}


def _goes_on(acks: Acks, killed: float) -> bool:
    now = time.monotonic()
    return now > killed + WATCH_S and acks.times[-1] > max(killed, now - 0.5)


def _until(holds: Any, failure: list[BaseException], what: str) -> None:
    until = time.monotonic() + GIVE_UP_S
    while not holds():
        if failure:
            raise failure[0]
        if time.monotonic() > until:
            raise TimeoutError(what)
        time.sleep(0.05)


def create(client: ModuleType, order: Order) -> dict[str, float]:
    """Create the topic only, for a tool that does not make its own. Returns no figures."""
    client.create(order)
    return {}


DO = {
    "create": create,
    "produce": produce,
    "latency": latency,
    "consume": consume,
    "fan_out": fan_out,
    "start": start,
    "failover": failover,
}


def main() -> None:
    """Run the order of the command line, and print its figures."""
    order = Order.read(json.loads(sys.argv[1]))
    client = importlib.import_module(f"bench.peers.{order.client}")
    print_line(figures=DO[order.do](client, order))


if __name__ == "__main__":
    main()
