"""The Kafka client of the cases, through confluent-kafka (librdkafka). Kafka's own tool for load is in Java: see
products.py."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from bench.peers.measurements import GROUP, Acks, Audience, Order, moments, stamped, stamped_values, value_of, wait
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

NOT_YET = (KafkaException, TimeoutError)
"""Errors of a cluster that is not ready yet."""
FETCHED = 10_000
"""Most records that are taken from librdkafka's buffer at a time."""


def _config(order: Order, **more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": ",".join(order.addresses), **more}


def _producer(order: Order, **more: Any) -> Producer:
    return Producer(_config(order, acks="all", **order.options, **more))


def _consumer(order: Order) -> Consumer:
    """Return a consumer of all partitions from their beginning, without a group, so that no rebalance delays it."""
    consumer = Consumer(_config(order, **{"group.id": "none", "enable.auto.commit": False}))
    consumer.assign([TopicPartition(order.topic, number, OFFSET_BEGINNING) for number in range(order.partitions)])
    return consumer


def _admin(order: Order) -> AdminClient:
    return AdminClient(_config(order, **{"reconnect.backoff.max.ms": 100}))


def create(order: Order) -> None:
    """Create the topic of an order with three replicas, if there is none, and wait until every partition has a
    leader."""
    topic = NewTopic(order.topic, order.partitions, 3, config=order.settings)
    admin = _admin(order)
    if order.topic not in admin.list_topics(timeout=10).topics:
        admin.create_topics([topic], request_timeout=10)[order.topic].result()
    wait(lambda: _is_led(admin, order), "a leader for every partition")


def _is_led(admin: AdminClient, order: Order) -> bool:
    partitions = admin.list_topics(order.topic, timeout=10).topics[order.topic].partitions.values()
    return len(partitions) == order.partitions and all(partition.leader >= 0 for partition in partitions)


def produce(order: Order) -> tuple[int, float]:
    """Send records for ``order.seconds``, and return the number acknowledged and the seconds. Raises ``RuntimeError``
    if some failed."""
    producer, acks, value = _producer(order), Acks(), value_of(order.size)

    def on_delivery(error: object, _: Any) -> None:
        acks.add(error)

    producer.produce(order.topic, value)
    producer.flush()
    began = time.monotonic()
    while time.monotonic() < began + order.seconds:
        for _ in range(GROUP):
            _hand_over(producer, order.topic, value, on_delivery)
        producer.poll(0)
    producer.flush()
    seconds = time.monotonic() - began
    if acks.failed:
        raise RuntimeError(f"{acks.failed} records failed: {acks.first_error}")
    return len(acks.times), seconds


def _hand_over(producer: Producer, topic: str, value: bytes, on_delivery: Any) -> None:
    while True:
        try:
            producer.produce(topic, value, on_delivery=on_delivery)
            return
        except BufferError:  # its queue is full
            producer.poll(0.05)


def latency(order: Order) -> list[float]:
    """Send records one at a time, and return the seconds that each took. Raises ``TimeoutError`` if one fails."""
    producer, value, taken = _producer(order), value_of(order.size), []
    for _ in range(order.records):
        acks = Acks()
        began = time.monotonic()
        producer.produce(order.topic, value, on_delivery=lambda error, _, acks=acks: acks.add(error))
        while not acks.settled:
            producer.poll(10.0)
        taken.append(time.monotonic() - began)
        if acks.failed:
            raise TimeoutError(acks.first_error)
    return taken


def consume(order: Order) -> tuple[int, float]:
    """Read the topic to its end, and return the bytes of values and the seconds."""
    consumer = _consumer(order)
    parts = [TopicPartition(order.topic, number) for number in range(order.partitions)]
    left = sum(consumer.get_watermark_offsets(part, timeout=10)[1] for part in parts)
    size, began = 0, 0.0
    while left:
        messages = consumer.consume(FETCHED, timeout=0.1)
        left -= len(messages)
        if not began and messages:
            began = time.monotonic()
            continue
        size += sum(len(message.value()) for message in messages)
    seconds = time.monotonic() - began
    consumer.close()
    return size, seconds


def fan_out(order: Order) -> list[float]:
    """Send records at a steady rate, and return for each subscriber and record the seconds until the subscriber has
    it. Each subscriber is a consumer in a thread of its own."""
    audience, over = Audience(order.subscribers, order.records), threading.Event()
    run = (order, audience, over.is_set)
    threads = [threading.Thread(target=_listen, args=run, daemon=True) for _ in range(order.subscribers)]
    for thread in threads:
        thread.start()
    producer = _producer(order)
    producer.produce(order.topic, stamped(order.size, 0.0))
    producer.flush()
    wait(audience.is_awake, "the first record at every subscriber")
    for at in moments(order.rate, order.records):
        time.sleep(max(0.0, at - time.monotonic()))
        producer.produce(order.topic, stamped(order.size, time.monotonic()))
        producer.poll(0)
    wait(audience.is_done, "every record at every subscriber")
    over.set()
    for thread in threads:
        thread.join()
    return audience.delays


def _listen(order: Order, audience: Audience, is_over: Callable[[], bool]) -> None:
    """Be one subscriber, until ``is_over`` returns True."""
    consumer = _consumer(order)
    while not is_over():
        message = consumer.poll(0.2)
        if message is not None and not message.error():
            audience.add(message.value())
    consumer.close()


def subscribe(order: Order, audience: Audience) -> None:
    """Open the subscribers, and keep them open until the process ends. Each is a consumer in a thread of its
    own."""
    run = (order, audience, lambda: False)
    threads = [threading.Thread(target=_listen, args=run, daemon=True) for _ in range(order.subscribers)]
    for opened, thread in enumerate(threads):
        wait(lambda opened=opened: audience.may_open(opened), "the first record")
        thread.start()
    for thread in threads:
        thread.join()


def publish(order: Order, wait_for_turn: Callable[[], bool]) -> None:
    """Send a record whenever ``wait_for_turn`` has returned True, until it returns False, and wait for each ack. The
    first record is to wake the subscribers."""
    producer, values = _producer(order), stamped_values(order.size)
    while wait_for_turn():
        producer.produce(order.topic, next(values))
        producer.flush()


def steady(order: Order, rate: float, acks: Acks, is_over: Callable[[], bool]) -> None:
    """Send records at this rate until ``is_over`` returns True, and count the acks."""
    producer, value = _producer(order), value_of(order.size)
    for at in moments(rate):
        if is_over():
            break
        while (left := at - time.monotonic()) > 0:
            producer.poll(left)
        producer.produce(order.topic, value, on_delivery=lambda error, _: acks.add(error))
    producer.flush(10)


def leader(order: Order) -> str:
    """Return the address of the broker that leads the topic's only partition."""
    metadata = _admin(order).list_topics(order.topic, timeout=10)
    broker = metadata.brokers[metadata.topics[order.topic].partitions[0].leader]
    return f"{broker.host}:{broker.port}"
