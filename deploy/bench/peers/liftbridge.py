"""The Liftbridge client of the cases, through gRPC, with the code that ``make peers`` generates from its published
API. The package on PyPI, python-liftbridge, is of 2020: it needs a protobuf that has no compiled form any more, knows
text only, and has one record in flight."""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from bench.peers.measurements import (
    GROUP,
    Acks,
    Audience,
    Order,
    moments,
    pauses,
    stamped,
    stamped_values,
    value_of,
    wait,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "build" / "peers" / "liftbridge"))
import api_pb2
import api_pb2_grpc

NOT_YET = (grpc.RpcError, TimeoutError)
"""Errors of a cluster that is not ready yet."""
CALL_S = 30.0
"""Longest time in seconds for one call."""
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]
"""Option of a channel: it has a connection of its own, which channels to one address would share otherwise."""
IN_FLIGHT = 4000
"""Most records without an ack: as many as nats-py lets a JetStream producer have."""


@contextmanager
def _server(address: str) -> Iterator[Any]:
    """Yield the API of a server, on a connection of its own."""
    with grpc.insecure_channel(address, options=OWN_CONNECTION) as channel:
        yield api_pb2_grpc.APIStub(channel)


def create(order: Order) -> None:
    """Create the stream of an order with three replicas, if there is none, and wait until every partition has a
    leader."""
    stream = api_pb2.CreateStreamRequest(
        subject=order.topic, name=order.topic, replicationFactor=3, partitions=order.partitions
    )
    with _server(order.addresses[0]) as server:
        if order.topic not in _leaders(server):
            server.CreateStream(stream, timeout=CALL_S)
        wait(lambda: len(_leaders(server).get(order.topic, {})) == order.partitions, "a leader for every partition")


def _leaders(server: Any) -> dict[str, dict[int, str]]:
    """Return the address of the leader of each partition, by stream and partition; partitions without one are left
    out."""
    metadata = server.FetchMetadata(api_pb2.FetchMetadataRequest(), timeout=CALL_S)
    brokers = {broker.id: f"{broker.host}:{broker.port}" for broker in metadata.brokers}
    return {
        stream.name: {
            number: brokers[part.leader] for number, part in stream.partitions.items() if part.leader in brokers
        }
        for stream in metadata.streamMetadata
    }


def _leaders_of(order: Order) -> dict[int, str]:
    with _server(order.addresses[0]) as server:
        return _leaders(server)[order.topic]


def _request(order: Order, value: bytes, number: int) -> Any:
    return api_pb2.PublishRequest(
        stream=order.topic,
        partition=number % order.partitions,
        value=value,
        correlationId=str(number),
        ackPolicy=api_pb2.ALL,
    )


class _Publisher:
    """A producer that sends records over one stream of requests. A thread counts the acks, which come over
    another."""

    def __init__(self, server: Any, acks: Acks) -> None:
        self.acks = acks
        self.sent = 0
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._answers = server.PublishAsync(iter(self._requests.get, None))
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def send(self, request: Any) -> None:
        self.sent += 1
        self._requests.put(request)

    def close(self) -> None:
        self._requests.put(None)
        self._answers.cancel()
        self._thread.join()

    def _listen(self) -> None:
        for answer in _until_cancelled(self._answers):
            self.acks.add(answer.asyncError.message if answer.HasField("asyncError") else None)


def _until_cancelled(call: Any) -> Iterator[Any]:
    """Yield the answers of a call until this side cancels it. Raises other errors of the call."""
    try:
        yield from call
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.CANCELLED:
            raise


def produce(order: Order) -> tuple[int, float]:
    """Send records for ``order.seconds``, and return the number acknowledged and the seconds. Raises ``RuntimeError``
    if some failed."""
    acks, value = Acks(), value_of(order.size)
    with _server(order.addresses[0]) as server:
        for number in range(order.partitions):  # in a new stream the first acks can take ten seconds
            server.Publish(_request(order, value, number), timeout=CALL_S)
        publisher = _Publisher(server, acks)
        began = time.monotonic()
        while time.monotonic() < began + order.seconds:
            for _ in range(GROUP):
                publisher.send(_request(order, value, publisher.sent))
            wait(lambda: publisher.sent - acks.settled <= IN_FLIGHT - GROUP, "acks")
        wait(lambda: acks.settled >= publisher.sent, "all acks")
        seconds = time.monotonic() - began
        publisher.close()
    if acks.failed:
        raise RuntimeError(f"{acks.failed} records failed: {acks.first_error}")
    return len(acks.times), seconds


def latency(order: Order) -> list[float]:
    """Send records one at a time, and return the seconds that each took."""
    value, taken = value_of(order.size), []
    with _server(order.addresses[0]) as server:
        for number in range(order.records):
            began = time.monotonic()
            server.Publish(_request(order, value, number), timeout=CALL_S)
            taken.append(time.monotonic() - began)
    return taken


def _records(server: Any, order: Order, partition: int, start: int) -> Any:
    """Return the messages of a partition from a start position on, without the empty message that opens the
    subscription."""
    call = server.Subscribe(api_pb2.SubscribeRequest(stream=order.topic, partition=partition, startPosition=start))
    next(call)
    return call


def consume(order: Order) -> tuple[int, float]:
    """Read every partition from its leader, in a thread of its own, and return the bytes of values and the
    seconds."""
    taken: list[tuple[int, float, float]] = []
    threads = [
        threading.Thread(target=lambda at=at, number=number: taken.append(_read(order, at, number)))
        for number, at in _leaders_of(order).items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(size for size, _, _ in taken), max(end for *_, end in taken) - min(begin for _, begin, _ in taken)


def _read(order: Order, address: str, partition: int) -> tuple[int, float, float]:
    """Read all that a partition has now, and return the bytes and the times of the first and the last message."""
    size, began = 0, 0.0
    with _server(address) as server:
        newest = _records(server, order, partition, api_pb2.LATEST)
        last = next(newest).offset
        newest.cancel()
        for message in _records(server, order, partition, api_pb2.EARLIEST):
            began = began or time.monotonic()
            size += len(message.value)
            if message.offset >= last:
                break
    return size, began, time.monotonic()


def fan_out(order: Order) -> list[float]:
    """Send records at a steady rate, and return for each subscriber and record the seconds until the subscriber has
    it. Each subscriber is a thread of its own, connected to the leader."""
    audience = Audience(order.subscribers, order.records)
    address = _leaders_of(order)[0]

    def subscribe() -> None:
        with _server(address) as server:
            call = _records(server, order, 0, api_pb2.EARLIEST)
            calls.append(call)
            for message in _until_cancelled(call):
                audience.add(message.value)

    calls: list[Any] = []
    threads = [threading.Thread(target=subscribe, daemon=True) for _ in range(order.subscribers)]
    for thread in threads:
        thread.start()
    with _server(order.addresses[0]) as server:
        publisher = _Publisher(server, Acks())
        publisher.send(_request(order, stamped(order.size, 0.0), 0))
        wait(audience.is_awake, "the first record at every subscriber")
        for at in moments(order.rate, order.records):
            time.sleep(max(0.0, at - time.monotonic()))
            publisher.send(_request(order, stamped(order.size, time.monotonic()), 0))
        wait(audience.is_done, "every record at every subscriber")
        publisher.close()
    for call in calls:
        call.cancel()
    for thread in threads:
        thread.join()
    return audience.delays


def subscribe(order: Order, audience: Audience) -> None:
    """Open the subscribers, and keep them open until the process ends. Each is a task with a channel of its own to
    the leader: some thousand threads of Python would wait for each other."""
    asyncio.run(_subscribe(order, _leaders_of(order)[0], audience))


async def _subscribe(order: Order, address: str, audience: Audience) -> None:
    async with asyncio.TaskGroup() as tasks:
        for opened in range(order.subscribers):
            for _ in pauses(lambda opened=opened: audience.may_open(opened), "the first record"):
                await asyncio.sleep(0.005)
            tasks.create_task(_listen(order, address, audience))


async def _listen(order: Order, address: str, audience: Audience) -> None:
    """Be one subscriber, until the process ends."""
    request = api_pb2.SubscribeRequest(stream=order.topic, partition=0, startPosition=api_pb2.EARLIEST)
    async with grpc.aio.insecure_channel(address, options=OWN_CONNECTION) as channel:
        call = api_pb2_grpc.APIStub(channel).Subscribe(request)
        await call.read()  # the empty message that opens the subscription
        while (message := await call.read()) is not grpc.aio.EOF:
            audience.add(message.value)


def publish(order: Order, wait_for_turn: Callable[[], bool]) -> None:
    """Send a record whenever ``wait_for_turn`` has returned True, until it returns False, and wait for each ack. The
    first record is to wake the subscribers."""
    values = stamped_values(order.size)
    with _server(order.addresses[0]) as server:
        while wait_for_turn():
            server.Publish(_request(order, next(values), 0), timeout=CALL_S)


def steady(order: Order, rate: float, acks: Acks, is_over: Callable[[], bool]) -> None:
    """Send records at this rate until ``is_over`` returns True, and count the acks. They go through a server that
    does not lead, since a connection is to one server and would be lost with it. A record that fails is not sent
    again."""
    value, led_by = value_of(order.size), _leaders_of(order)[0]

    def settle(future: Any) -> None:
        acks.add(future.exception())

    with _server(next(each for each in order.addresses if each != led_by)) as server:
        for number, at in enumerate(moments(rate)):
            if is_over():
                break
            time.sleep(max(0.0, at - time.monotonic()))
            server.Publish.future(_request(order, value, number), timeout=CALL_S).add_done_callback(settle)


def leader(order: Order) -> str:
    """Return the address of the server that leads the stream's only partition."""
    return _leaders_of(order)[0]
