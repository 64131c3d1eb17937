"""What the cases work with: the library of the client under test, and the producers, consumers and members that it
opens. Methods return what the client answered, and raise ``Refused`` and ``Failed`` (``client``)."""

from __future__ import annotations

import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from typing import Any

from tidelog.cli.conformance.client import COMMAND_TIMEOUT_S, MOST_SHOWN, Client, Failed, Json, Refused
from tidelog.cli.local.local_cluster import LocalCluster

Value = bytes | None


def b64(data: Value) -> str | None:
    """Return bytes as base64, None as None."""
    return None if data is None else b64encode(data).decode()


def unb64(text: str | None) -> Value:
    """Return the bytes of base64, None for None."""
    return None if text is None else b64decode(text)


def record(value: Value, key: Value = None, **more: Any) -> Json:
    """Return a record to send as JSON; ``headers`` are pairs of text and bytes."""
    headers: Sequence[tuple[str, bytes]] = more.pop("headers", ())
    made: Json = {"value": b64(value), **more}
    if key is not None:
        made["key"] = b64(key)
    if headers:
        made["headers"] = [[name, b64(content)] for name, content in headers]
    return made


def numbered(first: int, end: int, **more: Any) -> list[Json]:
    """Return records whose values are the numbers from ``first`` to ``end`` - 1."""
    return [record(b"%d" % number, **more) for number in range(first, end)]


def expect(what: str, found: object, wanted: object) -> None:
    """Raise ``Failed`` unless both are equal; ``what`` names them."""
    if found != wanted:
        raise Failed(f"{what}: expected {_short(wanted)}, got {_short(found)}")


def refusal(code: str, call: Callable[[], object]) -> Refused:
    """Return the error that the call raises. Raises ``Failed`` if it raises none, or one with another code."""
    try:
        result = call()
    except Refused as error:
        expect("the code of the error", error.code, code)
        return error
    raise Failed(f"expected the error {code}, got {_short(result)}")


def until(what: str, holds: Callable[[], bool]) -> None:
    """Call ``holds`` until it returns True. Raises ``Failed`` after ``COMMAND_TIMEOUT_S``."""
    deadline = time.monotonic() + COMMAND_TIMEOUT_S
    while not holds():
        if time.monotonic() > deadline:
            raise Failed(f"not within {COMMAND_TIMEOUT_S:g} s: {what}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}… ({len(text)} characters)"


class Library:
    """The library with a connection to the cluster. ``urls`` are those of the gateways, ``local`` the processes."""

    def __init__(self, client: Client, log: str, urls: Sequence[str], local: LocalCluster) -> None:
        """Connect. ``log`` is the name of the connection, and the prefix of all topics that it creates."""
        self.client = client
        self.log = log
        self.urls = urls
        self.local = local
        self._opened = 0
        client.do("connect", log=log, urls=urls, connect_timeout_s=COMMAND_TIMEOUT_S)

    def close(self) -> None:
        """Close the connection."""
        self.do("close")

    def do(self, what: str, **fields: Any) -> Json:
        """Send a command for this connection and return its answer."""
        return self.client.do(what, log=self.log, **fields)

    def new_name(self) -> str:
        """Return a name that was not used before."""
        self._opened += 1
        return f"{self.log}.{self._opened}"

    def topic(self, partitions: int = 1, replication_factor: int = 1, **config: object) -> str:
        """Create a topic and return its name."""
        name = self.new_name()
        texts = {key: str(value) for key, value in config.items()}
        self.do(
            "create_topic", topic=name, partitions=partitions, replication_factor=replication_factor, config=texts
        )
        return name

    def leader(self, topic: str, partition: int = 0) -> str:
        """Return the leader of a partition."""
        return str(self.do("describe", topic=topic)["partitions"][partition]["leader"])

    def producer(self, topic: str, **options: object) -> Producer:
        """Open a producer."""
        name = self.new_name()
        self.do("open_producer", producer=name, topic=topic, options=options)
        return Producer(self.client, name)

    def consumer(self, topic: str, start: Any = "earliest", end: Any = None, **more: Any) -> Consumer:
        """Open a consumer."""
        name = self.new_name()
        self.do("open_consumer", consumer=name, topic=topic, start=start, end=end, **more)
        return Consumer(self.client, name)

    def member(self, group: str, *topics: str, **options: object) -> Member:
        """Open a member of a group, which reads from the earliest record if the group has no position."""
        name = self.new_name()
        self.do("open_member", consumer=name, group=group, topics=topics, start="earliest", options=options)
        return Member(self.client, name)

    def write(self, topic: str, *records: Json) -> list[Json]:
        """Send records by a producer of their own and return their acks."""
        producer = self.producer(topic)
        acks = producer.send_all(*records)
        producer.close()
        return acks

    def read(self, topic: str, start: Any = "earliest", end: Any = "latest", **more: Any) -> list[Json]:
        """Return all records from one place to another."""
        consumer = self.consumer(topic, start, end, **more)
        records, ended = consumer.next(1_000_000)
        expect("the end of the consumer is reached", ended, True)
        consumer.close()
        return records

    def values(self, topic: str, **more: Any) -> list[Value]:
        """Return the values of all records from one place to another."""
        return [unb64(found["value"]) for found in self.read(topic, **more)]


class Producer:
    """An open producer of the library."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name

    def send(self, sent: Json) -> Json:
        """Send a record and return its ack."""
        return self._client.do("send", producer=self._name, record=sent)

    def submit(self, *records: Json) -> None:
        """Send records without waiting for their acks."""
        self._client.do("submit", producer=self._name, records=records)

    def flush(self) -> list[Json]:
        """Return the outcomes of all submitted records."""
        return list(self._client.do("flush", producer=self._name)["outcomes"])

    def send_all(self, *records: Json) -> list[Json]:
        """Send records, all of which must be acked, and return their acks."""
        self.submit(*records)
        outcomes = self.flush()
        expect("records that were not acked", [outcome for outcome in outcomes if "ack" not in outcome], [])
        return [outcome["ack"] for outcome in outcomes]

    def close(self) -> None:
        """Close the producer."""
        self._client.do("close_producer", producer=self._name)


class Consumer:
    """An open consumer of the library."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = name

    def next(self, count: int = 1) -> tuple[list[Json], bool]:
        """Return up to so many records, and whether the end was reached."""
        answer = self._client.do("next", consumer=self.name, count=count)
        return answer["records"], answer["end"]

    def values(self, count: int) -> list[Value]:
        """Return the values of so many records."""
        return [unb64(found["value"]) for found in self.next(count)[0]]

    def positions(self) -> Json:
        """Return the positions at which another consumer would continue."""
        return {"positions": self._client.do("positions", consumer=self.name)["positions"]}

    def close(self) -> None:
        """Close the consumer."""
        self._client.do("close_consumer", consumer=self.name)


class Member(Consumer):
    """An open consumer that is a member of a group."""

    def commit(self) -> None:
        """Commit the positions after all records that this member has returned."""
        self._client.do("commit", consumer=self.name)

    def partitions(self) -> set[int]:
        """Return the numbers of the partitions that are assigned to this member now."""
        return {partition for _, partition in self._client.do("assignment", consumer=self.name)["assignment"]}

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Pause these (topic, partition) pairs: ``read`` returns none of their records."""
        self._client.do("pause", consumer=self.name, partitions=partitions)

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Resume these paused (topic, partition) pairs, or all if none is given."""
        self._client.do("resume", consumer=self.name, partitions=partitions)

    def seek(self, **where: object) -> None:
        """Move the position in some or all partitions, without a commit. The arguments are those of the command
        ``seek``."""
        self._client.do("seek", consumer=self.name, **where)

    def read(self, count: int) -> list[tuple[int, Value]]:
        """Wait for ``count`` records, and return partition and value of each."""
        return [(found["partition"], unb64(found["value"])) for found in self.next(count)[0]]
