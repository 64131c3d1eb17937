"""What the producer core costs a producer with many partitions, in calls of functions. Tests
``client/core/producer.py``."""

from __future__ import annotations

import sys

from support.producers import Bench
from tidelog.client.options import ProducerOptions


def calls_per_ack(partitions: int) -> int:
    """Return how many functions are called for the ack of a batch and for the batch that is sent then, beside this
    many other partitions with batches in flight and records that linger."""
    bench = Bench(ProducerOptions(max_in_flight=1), partitions=partitions)
    for value in (b"first", b"second"):
        for partition in range(partitions):
            bench.add(value, partition)
        bench.send()
    calls: list[str] = []
    sys.setprofile(lambda frame, event, arg: calls.append(event))
    try:
        bench.core.on_tick(bench.now)
        bench.ack(0)
        message = bench.core.take_message(bench.now)
        nothing = bench.core.take_message(bench.now)
        bench.core.deadline()
    finally:
        sys.setprofile(None)
    assert message is not None
    assert nothing is None
    return len(calls)


def test_the_cost_of_an_ack_does_not_depend_on_the_number_of_busy_partitions() -> None:
    assert calls_per_ack(1000) == calls_per_ack(10)
