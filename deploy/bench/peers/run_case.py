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
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.peers.measurements import Acks, Audience, Order, longest_gap, percentile

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


def subscribe(client: ModuleType, order: Order) -> dict[str, float]:
    """Hold subscribers, while another process publishes. Print once a second how many have had the first record, then
    for each record that all of them have it, then the delays. Returns no figures."""
    audience = Audience(order.subscribers, order.records)
    _, failure = _in_background(lambda: client.subscribe(order, audience))
    while not audience.is_awake():
        time.sleep(1.0)
        print_line(opened=audience.awake)
        if failure:
            raise failure[0]
    for count in range(1, order.records + 1):
        _until(lambda count=count: audience.has(count), failure, f"record {count} was not at every subscriber")
        print_line(received=count)
    print_line(delays=audience.delays)
    return {}


def publish(client: ModuleType, order: Order) -> dict[str, float]:
    """Send a record for each line of the driver, and print a line when the client is ready for the next. Returns no
    figures."""
    client.create(order)

    def wait_for_turn() -> bool:
        print_line(ready=True)
        return bool(read_answer()["more"])

    client.publish(order, wait_for_turn)
    return {}


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
    thread, failure = _in_background(lambda: client.steady(order, RATE, acks, stop.is_set))
    _until(lambda: len(acks.times) > RATE, failure, "no acks before the kill")
    print_line(leader=client.leader(order))
    killed = float(read_answer()["killed"])
    _until(lambda: _goes_on(acks, killed), failure, "no acks after the kill")
    stop.set()
    thread.join(GIVE_UP_S)
    return {"s": longest_gap(acks.times, killed), "failed records": acks.failed}


def _in_background(work: Callable[[], None]) -> tuple[threading.Thread, list[BaseException]]:
    """Run ``work`` in a thread, and return the thread and a list, which gets its error if it fails."""
    failure: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # reported in the thread that waits
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, failure


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
    "subscribe": subscribe,
    "publish": publish,
    "start": start,
    "failover": failover,
}


def cause(error: BaseException) -> BaseException:
    """Return the first error in a group of errors; the error itself if it is no group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def main() -> None:
    """Run the order of the command line, and print its figures. If the case fails, the last line of the error output
    is the error."""
    order = Order.read(json.loads(sys.argv[1]))
    client = importlib.import_module(f"bench.peers.{order.client}")
    try:
        print_line(figures=DO[order.do](client, order))
    except BaseExceptionGroup as group:
        raise cause(group) from None


if __name__ == "__main__":
    main()
