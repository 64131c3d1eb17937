"""What a library does when processes end and hang: no acked record is lost or doubled, and all else is reported."""

from __future__ import annotations

import tidelog
from tidelog.cli.conformance.cases import Chapter
from tidelog.cli.conformance.client import Json
from tidelog.cli.conformance.library import Library, expect, numbered, refusal, until

FAULTS = Chapter("faults")


def _offsets(outcomes: list[Json]) -> list[int]:
    """Return the offsets of acks; -1 for a record that has none."""
    return [outcome["ack"]["offset"] if "ack" in outcome else -1 for outcome in outcomes]


def _values(end: int) -> list[bytes]:
    return [b"%d" % number for number in range(end)]


@FAULTS.case("Every record is there once and in order when the leader is killed.", disturbs=True)
def the_leader_is_killed(library: Library) -> None:
    topic = library.topic(replication_factor=3)
    consumer = library.consumer(topic)
    producer = library.producer(topic, batch_bytes=300, linger_s=0)
    producer.send_all(*numbered(0, 50))
    leader = library.leader(topic)
    library.local.pause(leader)  # from now on its acks do not come
    producer.submit(*numbered(50, 150))
    library.local.kill(leader)
    producer.submit(*numbered(150, 300))
    expect("the offsets of the acks", _offsets(producer.flush()), list(range(50, 300)))
    expect("the records of a consumer that was open", consumer.values(300), _values(300))
    expect("the killed server leads", library.leader(topic) == leader, False)
    producer.close()
    consumer.close()
    expect("all records", library.values(topic), _values(300))


@FAULTS.case("The loss of a gateway loses and repeats nothing.", disturbs=True)
def the_gateway_is_killed(library: Library) -> None:
    topic = library.topic(replication_factor=3)
    consumer = library.consumer(topic)
    producer = library.producer(topic, batch_bytes=300, linger_s=0)
    producer.send_all(*numbered(0, 50))
    expect("the first records", consumer.values(20), _values(20))
    library.local.pause("g1")  # the first of the URLs that the library has
    producer.submit(*numbered(50, 150))
    library.local.kill("g1")
    expect("the offsets of the acks", _offsets(producer.flush()), list(range(50, 150)))
    expect("the records of a consumer that was open", consumer.values(130), _values(150)[20:])
    producer.close()
    consumer.close()
    expect("all records", library.values(topic), _values(150))


@FAULTS.case(
    "A library that was given one gateway goes on at another that was named.", needs="discover", disturbs=True
)
def the_only_given_gateway_is_killed(library: Library) -> None:
    with tidelog.sync.connect(library.local.gateways()[0]) as log:
        until("the gateway names both gateways", lambda: len(log.cluster.status().gateways) == 2)
    alone = Library(library.client, f"{library.log}-alone", library.urls[:1], library.local)
    topic = alone.topic(replication_factor=3)
    consumer = alone.consumer(topic)
    producer = alone.producer(topic, batch_bytes=300, linger_s=0)
    producer.send_all(*numbered(0, 50))
    expect("the first records", consumer.values(20), _values(20))
    library.local.kill("g1")
    producer.submit(*numbered(50, 150))
    expect("the offsets of the acks", _offsets(producer.flush()), list(range(50, 150)))
    expect("the records of a consumer that was open", consumer.values(130), _values(150)[20:])
    producer.close()
    consumer.close()
    alone.close()


@FAULTS.case("Closing a producer reports every record without an ack.", disturbs=True)
def closing_reports_records_without_an_ack(library: Library) -> None:
    topic = library.topic()
    producer = library.producer(topic, delivery_timeout_s=2.0)
    producer.send_all(*numbered(0, 3))
    library.local.pause(library.leader(topic))
    producer.submit(*numbered(3, 10))
    error = refusal("REQUEST_TIMED_OUT", producer.close)
    expect("failed records, unknown_outcome", (error.failed, error.unknown_outcome), (7, True))


@FAULTS.case("Closing a producer does not report an error again that the program got.", disturbs=True)
def closing_reports_no_error_again(library: Library) -> None:
    topic = library.topic()
    producer = library.producer(topic, delivery_timeout_s=2.0)
    producer.send_all(*numbered(0, 3))
    library.local.pause(library.leader(topic))
    producer.submit(*numbered(3, 10))
    codes = [outcome.get("error", {}).get("code") for outcome in producer.flush()]
    expect("the codes of the errors", codes, ["REQUEST_TIMED_OUT"] * 7)
    producer.close()
