"""What a library does when processes end and hang: nothing acked is lost or doubled, and it tells of all else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from drivers import Library, Refused, record
from tidelog.cli.local.local_cluster import LocalCluster

pytestmark = pytest.mark.real


def numbered(first: int, end: int) -> list[dict[str, Any]]:
    return [record(b"%d" % number) for number in range(first, end)]


def values(end: int) -> list[bytes]:
    return [b"%d" % number for number in range(end)]


def test_every_record_is_there_once_and_in_order_when_the_leader_is_killed(
    library: Library, local: LocalCluster
) -> None:
    topic = library.topic(replication_factor=3)
    consumer = library.consumer(topic)
    producer = library.producer(topic, batch_bytes=300, linger_s=0)
    producer.send_all(*numbered(0, 50))
    leader = library.leader(topic)
    local.pause(leader)  # from now on its acks do not come
    producer.submit(*numbered(50, 150))
    local.kill(leader)
    producer.submit(*numbered(150, 300))
    outcomes = producer.flush()
    assert [outcome.get("ack", {}).get("offset") for outcome in outcomes] == list(range(50, 300))
    assert consumer.values(300) == values(300)
    assert library.leader(topic) != leader
    producer.close()
    consumer.close()
    assert library.values(topic) == values(300)


def test_the_loss_of_a_gateway_loses_and_repeats_nothing(library: Library, local: LocalCluster) -> None:
    topic = library.topic(replication_factor=3)
    consumer = library.consumer(topic)
    producer = library.producer(topic, batch_bytes=300, linger_s=0)
    producer.send_all(*numbered(0, 50))
    assert consumer.values(20) == values(20)
    local.pause("g1")  # the one that the library uses
    producer.submit(*numbered(50, 150))
    local.kill("g1")
    outcomes = producer.flush()
    assert [outcome.get("ack", {}).get("offset") for outcome in outcomes] == list(range(50, 150))
    assert consumer.values(130) == values(150)[20:]
    producer.close()
    consumer.close()
    assert library.values(topic) == values(150)


def test_closing_a_producer_reports_every_record_without_an_ack(library: Library, local: LocalCluster) -> None:
    topic = library.topic()
    producer = library.producer(topic, delivery_timeout_s=0.5)
    producer.send_all(*numbered(0, 3))
    local.pause(library.leader(topic))
    producer.submit(*numbered(3, 10))
    with pytest.raises(Refused) as caught:
        producer.close()
    error = caught.value
    assert (error.code, error.failed, error.unknown_outcome) == ("REQUEST_TIMED_OUT", 7, True)


def test_closing_does_not_report_again_an_error_that_the_application_got(
    library: Library, local: LocalCluster
) -> None:
    topic = library.topic()
    producer = library.producer(topic, delivery_timeout_s=0.5)
    producer.send_all(*numbered(0, 3))
    local.pause(library.leader(topic))
    producer.submit(*numbered(3, 10))
    outcomes = producer.flush()
    assert [outcome["error"]["code"] for outcome in outcomes] == ["REQUEST_TIMED_OUT"] * 7
    producer.close()


def test_one_of_two_writers_wins(library: Library, needs: Callable[[str], None]) -> None:
    needs("expected_offset")
    topic = library.topic(replication_factor=3)
    first, second = library.producer(topic), library.producer(topic)
    assert first.send(record(b"a", partition=0, expected_offset=0))["offset"] == 0
    with pytest.raises(Refused) as caught:
        second.send(record(b"b", partition=0, expected_offset=0))
    error = caught.value
    assert (error.code, error.retriable, error.unknown_outcome) == ("UNEXPECTED_OFFSET", False, False)
    assert error.detail["end_offset"] == 1
    assert second.send(record(b"b", partition=0, expected_offset=1))["offset"] == 1
    assert second.send(record(b"c"))["offset"] == 2
    first.close()
    second.close()
    assert library.values(topic) == [b"a", b"b", b"c"]
