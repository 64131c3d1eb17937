"""The blocking client: the same behaviour from any thread, and across a fork. Tests ``sync`` and
``sync/portal.py``."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Iterator

import pytest
import tidelog.sync
from support.gateway_thread import served
from tidelog.batch.format import NewRecord, encode_batch
from tidelog.errors import Closed, TidelogError, TimedOut, Unreachable, refuse
from tidelog.sync import faces
from tidelog.sync.face import CLOSING
from tidelog.types import Position


def test_send_and_consume() -> None:
    with served() as (_, url), tidelog.sync.connect(url) as log:
        with log.producer("orders") as producer:
            assert producer.send(b"a", key=b"k", headers={"h": b"1"})[:2] == (0, 0)
        [record] = log.consume("orders", start="earliest", end="latest")
        assert (record.value, record.key, record.headers) == (b"a", b"k", (("h", b"1"),))


def test_submit_keeps_the_order_and_close_waits_for_all() -> None:
    with served() as (cluster, url), tidelog.sync.connect(url) as log:
        with log.producer("orders") as producer:
            pending = [producer.submit(b"%d" % n) for n in range(20_000)]
        assert [p.wait().offset for p in pending] == list(range(20_000))
        assert [r.value for r in cluster.log("orders").records()] == [b"%d" % n for n in range(20_000)]


def test_many_threads_share_a_producer() -> None:
    with served() as (cluster, url), tidelog.sync.connect(url) as log:
        with log.producer("orders") as producer:

            def work(n: int) -> None:
                for i in range(50):
                    producer.send(b"%d" % (100 * n + i))

            threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert len({r.value for r in cluster.log("orders").records()}) == 400


def test_failures_are_raised_by_wait_or_at_the_end() -> None:
    with served() as (cluster, url), tidelog.sync.connect(url) as log:
        cluster.refusals = [refuse("CORRUPT_BATCH", "bad")]
        with pytest.raises(tidelog.DeliveryFailed, match="bad"), log.producer("orders") as producer:
            producer.submit(b"a")
        with log.producer("orders") as producer, pytest.raises(TidelogError, match="BATCH_TOO_LARGE"):
            producer.send(b"x" * (2 << 20))
        with pytest.raises(tidelog.DeliveryFailed, match="does not fit"), log.producer("orders") as p:
            p.submit(b"x" * (2 << 20))
        with pytest.raises(tidelog.DeliveryFailed, match="not str"), log.producer("orders") as producer:
            producer.submit("text")  # type: ignore[arg-type]


def test_an_unknown_topic_is_an_error_at_once() -> None:
    with served() as (_, url), tidelog.sync.connect(url) as log:
        with pytest.raises(TidelogError, match="UNKNOWN_TOPIC"):
            log.producer("nothing")
        with pytest.raises(TidelogError, match="UNKNOWN_TOPIC"):
            next(log.consume("nothing"))


def test_topics_and_offsets() -> None:
    with served() as (_, url), tidelog.sync.connect(url) as log:
        topic = log.topics.create("new", partitions=2)
        assert log.topics.describe("new") == topic
        assert len(log.topics.list()) == 2
        assert log.partitions.list_offset("new", 1).offset == 0
        found = log.partitions.list_offsets(topic, "earliest", [0, 1])
        assert {p: a.offset for p, a in found.items()} == {0: 0, 1: 0}
        log.topics.delete("new")
        assert len(log.cluster.status().topics) == 1


def test_a_generator_is_used_up_in_the_thread_of_the_caller() -> None:
    threads: list[threading.Thread] = []

    def numbers() -> Iterator[int]:
        threads.append(threading.current_thread())
        yield from (0, 1)

    with served(partitions=2) as (_, url), tidelog.sync.connect(url) as log:
        topic = log.topics.describe("orders")
        assert set(log.partitions.list_offsets(topic, "latest", numbers())) == {0, 1}
    assert threads == [threading.current_thread()]


@pytest.mark.parametrize("name", [*faces.CONSUMERS, *faces.ADMINISTRATION])
def test_a_blocking_face_has_the_methods_of_the_asynchronous_one(name: str) -> None:
    ours = getattr(faces, name)
    for each, theirs in vars(ours._face).items():
        if each.startswith("_") or each == CLOSING or not inspect.iscoroutinefunction(theirs):
            continue
        assert not inspect.iscoroutinefunction(getattr(ours, each))
        if each in vars(ours):
            assert inspect.signature(getattr(ours, each)) == inspect.signature(theirs)
            assert getattr(ours, each).__doc__ == theirs.__doc__


def test_positions_and_batches() -> None:
    with served() as (_, url), tidelog.sync.connect(url) as log:
        with log.producer("orders") as producer:
            for n in range(10):
                producer.submit(b"%d" % n)
        with log.consume("orders", start="earliest", end="latest") as consumer:
            assert [next(consumer).offset for _ in range(3)] == [0, 1, 2]
            assert consumer.positions == {0: Position(4, 3)}
        with log.consume("orders", start=3, end=5) as consumer:
            fetched = consumer.next_batch()
            assert fetched is not None
            assert (fetched.first, fetched.end) == (3, 5)
            assert consumer.next_batch() is None


def test_batches_are_taken_together_up_to_the_end() -> None:
    with served() as (cluster, url), tidelog.sync.connect(url) as log:
        for text in ("abc", "def", "gh"):
            cluster.log("orders").append(encode_batch([NewRecord(letter.encode()) for letter in text]), 4)
        with log.consume("orders", start=0, end="latest") as consumer:
            found: list[tuple[int, int]] = []
            assert next(consumer).value == b"a"  # the rest of its batch is dropped
            while batches := consumer.next_batches(60.0):
                found += [(batch.first, batch.end) for batch in batches]
        assert found == [(3, 6), (6, 8)]
        with log.consume("orders", start="latest") as consumer, pytest.raises(TimedOut):
            consumer.next_batches(0.01)


def test_a_backward_consumer_takes_one_batch_at_a_time() -> None:
    with served() as (cluster, url), tidelog.sync.connect(url) as log:
        for text in ("abc", "def"):
            cluster.log("orders").append(encode_batch([NewRecord(letter.encode()) for letter in text]), 4)
        with log.consume("orders", start="latest", reverse=True) as consumer:
            assert [[batch.first for batch in consumer.next_batches()] for _ in range(3)] == [[3], [0], []]


@pytest.mark.parametrize("whole", ["next_records", "next_batch"])
def test_a_batch_asked_for_as_a_whole_drops_the_rest_of_the_one_before(whole: str) -> None:
    with served() as (cluster, url), tidelog.sync.connect(url) as log:
        for text in ("abc", "def", "gh"):
            values = [NewRecord(letter.encode()) for letter in text]
            cluster.log("orders").append(encode_batch(values), 4)
        with log.consume("orders", start="earliest", end="latest") as consumer:
            assert next(consumer).value == b"a"
            assert getattr(consumer, whole)()
            assert [record.value for record in consumer] == [b"g", b"h"]


def test_reverse_pause_and_seek() -> None:
    with served(partitions=2) as (_, url), tidelog.sync.connect(url) as log:
        with log.producer("orders") as producer:
            for n in range(20):
                producer.submit(b"%d" % n, partition=n % 2)
        with log.consume("orders", partitions=[1], reverse=True) as backwards:
            assert [next(backwards).offset for _ in range(4)] == [9, 8, 7, 6]
            assert backwards.positions == {1: Position(-1, 6)}
            assert [r.offset for r in backwards] == [5, 4, 3, 2, 1, 0]
        with log.consume("orders", start=0, end="latest") as consumer:
            first = next(consumer)
            consumer.pause(first.partition)
            others = [next(consumer) for _ in range(10)]
            assert {r.partition for r in others} == {1 - first.partition}
            assert consumer.positions == {first.partition: Position(4, 1), 1 - first.partition: Position(4, 10)}
            consumer.resume()
            assert [next(consumer).offset for _ in range(3)] == [1, 2, 3]
            consumer.seek(8, first.partition)
            assert [(r.partition, r.offset) for r in consumer] == [(first.partition, 8), (first.partition, 9)]
            assert (consumer.paused, consumer.buffered_bytes) == ([], 0)


def test_after_close_everything_says_closed() -> None:
    with served() as (_, url):
        with tidelog.sync.connect(url) as log:
            consumer = log.consume("orders", start="earliest")
        with pytest.raises(Closed):
            log.topics.list()
        with pytest.raises(Closed):
            next(consumer)
        log.close()


def test_connect_says_when_nobody_answers() -> None:
    with pytest.raises(Unreachable, match="no gateway can be reached"):
        tidelog.sync.connect("ws://127.0.0.1:1", connect_timeout_s=0.1)


def test_a_fork_connects_anew_and_leaves_the_parent_alone() -> None:
    with served() as (cluster, url), tidelog.sync.connect(url) as log, log.producer("orders") as producer:
        producer.send(b"parent")
        child = os.fork()
        if child == 0:  # no pytest in here: only the exit status counts
            status = 1
            try:
                try:
                    log.topics.list()
                except Closed as error:
                    assert "connect again after a fork" in str(error)
                    log.close()
                    producer.close()
                    with tidelog.sync.connect(url) as mine, mine.producer("orders") as again:
                        status = 0 if again.send(b"child").offset == 1 else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert producer.send(b"parent again").offset == 2
        assert len(cluster.log("orders").records()) == 3
