"""Batches that have to wait go on to fill. Tests ``client/core/producer.py`` and ``client/core/batch.py``."""

from __future__ import annotations

from support.producers import Bench
from tidelog.client.core.producer import ProducerCore
from tidelog.client.options import ProducerOptions


def test_a_batch_that_has_to_wait_goes_on_to_fill_and_then_does_not_linger() -> None:
    bench = Bench(ProducerOptions(batch_bytes=400, max_in_flight=4, linger_s=5.0))
    for _ in range(13):
        bench.add(b"x" * 100)
    assert [len(values) for values in bench.send()] == [2, 2, 2, 2]
    bench.ack(0)
    bench.ack(1)
    assert [len(values) for values in bench.send()] == [5]


def test_batches_grow_to_half_of_the_bytes_in_flight_or_to_the_bound_of_the_topic() -> None:
    for topic_bytes, most in ((1 << 20, 3 * 400), (1000, 1000)):
        options = ProducerOptions(batch_bytes=400, max_in_flight=6, idempotent=False)
        core = ProducerCore("t", 1, options, lambda: 1, max_batch_bytes=topic_bytes)
        batches = [core.open(0, (b"", None, 1000, ()), 200, 0.0)]
        while len(batches) < 8:
            batch = core.append(0, (b"", None, 1000, ()), 10) or core.open(0, (b"", None, 1000, ()), 10, 0.0)
            batches += [batch] * (batch is not batches[-1])
        assert all(390 < batch.size <= 400 for batch in batches[:6])
        assert most - 10 < batches[6].size <= most


def test_a_batch_that_grew_takes_the_places_of_several() -> None:
    bench = Bench(ProducerOptions(batch_bytes=400, max_in_flight=5))
    for _ in range(5 * 2 + 3 * 5):
        bench.add(b"x" * 100)
    assert [len(values) for values in bench.send()] == [2, 2, 2, 2, 2]
    for index in range(4):
        bench.ack(index)
    assert [len(values) for values in bench.send()] == [5, 5]
    bench.ack(4)
    assert bench.send() == []
    bench.ack(5)
    assert [len(values) for values in bench.send()] == [5]


def test_a_large_record_takes_one_place() -> None:
    bench = Bench(ProducerOptions(batch_bytes=400, max_in_flight=3))
    for _ in range(3):
        bench.batch(b"x" * 5000)
    assert [len(values) for values in bench.send()] == [1, 1, 1]
