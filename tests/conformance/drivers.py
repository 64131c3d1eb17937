"""The drivers of all libraries, and the client of the suite for one of them; README.md describes the lines."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from support.js_tools import CHROMIUM, NODE, NODE_20

HERE = Path(__file__).resolve().parent
DRIVERS: dict[str, list[str]] = {
    "trio": [sys.executable, str(HERE / "trio_driver.py")],
    "aio": [sys.executable, str(HERE / "aio_driver.py")],
    "sync": [sys.executable, str(HERE / "sync_driver.py")],
    "node": [NODE or "node", str(HERE / "node_driver.js")],
    "node20": [NODE_20 or "node20", str(HERE / "node_driver.js")],
    "chromium": [sys.executable, str(HERE / "chromium_driver.py"), CHROMIUM or "chromium"],
}
"""The command that starts the driver, by name of the library."""
PROGRAMS = {"node": NODE or "node", "node20": NODE_20 or "node20", "chromium": CHROMIUM or "chromium"}
"""The program of a driver that a machine may lack."""
COMMAND_TIMEOUT_S = 60.0
"""The seconds after which a command counts as hanging: the driver is killed, and the test fails."""

Json = dict[str, Any]


class Refused(Exception):
    """The error of a library, as its driver reports it."""

    def __init__(self, error: Json) -> None:
        super().__init__(f"[{error['code']}] {error.get('message', '')}")
        self.code: str = error["code"]
        self.retriable: bool = error.get("retriable", False)
        self.unknown_outcome: bool = error.get("unknown_outcome", False)
        self.detail: Json = error.get("detail", {})
        self.failed: int = error.get("failed", 0)


class Driver:
    """One running driver."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._next_id = 0
        self._process = subprocess.Popen(
            DRIVERS[name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )
        self.features: frozenset[str] = frozenset(self.do("hello")["features"])

    @staticmethod
    def missing(name: str) -> str:
        """Return the program that this machine lacks for a driver; "" if none."""
        program = PROGRAMS.get(name, DRIVERS[name][0])
        return "" if shutil.which(program) else program

    def do(self, what: str, **fields: Any) -> Json:
        """Send a command and return its answer. Raises ``Refused``."""
        return self.end(self.begin(what, **fields))

    def begin(self, what: str, **fields: Any) -> int:
        """Send a command and return its id, without waiting; the next call must be ``end``."""
        self._next_id += 1
        assert self._process.stdin is not None
        given = {name: value for name, value in fields.items() if value is not None}
        self._process.stdin.write(json.dumps({"id": self._next_id, "do": what, **given}) + "\n")
        self._process.stdin.flush()
        return self._next_id

    def end(self, id: int) -> Json:
        """Return the answer to a command. Raises ``Refused``."""
        assert self._process.stdout is not None
        watchdog = threading.Timer(COMMAND_TIMEOUT_S, self._process.kill)
        watchdog.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        assert line, f"the driver {self.name} ended, or took more than {COMMAND_TIMEOUT_S:g} s"
        answer = json.loads(line)
        assert answer["id"] == id, f"{self.name} answered {answer['id']} instead of {id}"
        if "error" in answer:
            raise Refused(answer["error"])
        return dict(answer["ok"])

    def stop(self) -> int:
        """End the input of the driver and return its exit code."""
        self._process.communicate(timeout=COMMAND_TIMEOUT_S)
        return self._process.returncode


def b64(data: bytes | None) -> str | None:
    """Return bytes as base64, None as None."""
    return None if data is None else b64encode(data).decode()


def unb64(text: str | None) -> bytes | None:
    """Return the bytes of base64, None for None."""
    return None if text is None else b64decode(text)


def record(value: bytes | None, key: bytes | None = None, **more: Any) -> Json:
    """Return a record to send as JSON; ``headers`` are pairs of text and bytes."""
    headers: Sequence[tuple[str, bytes]] = more.pop("headers", ())
    made: Json = {"value": b64(value), **more}
    if key is not None:
        made["key"] = b64(key)
    if headers:
        made["headers"] = [[name, b64(content)] for name, content in headers]
    return made


def until(holds: Callable[[], bool]) -> None:
    """Call ``holds`` until it returns True. Raises AssertionError after ``COMMAND_TIMEOUT_S``."""
    deadline = time.monotonic() + COMMAND_TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline


class Library:
    """A library with a connection to the cluster."""

    def __init__(self, driver: Driver, log: str, prefix: str) -> None:
        self.driver = driver
        self.log = log
        self._prefix = prefix
        self._opened = 0

    def do(self, what: str, **fields: Any) -> Json:
        """Send a command for this connection and return its answer."""
        return self.driver.do(what, log=self.log, **fields)

    def topic(self, partitions: int = 1, replication_factor: int = 1, **config: object) -> str:
        """Create a topic of the test and return its name."""
        self._opened += 1
        name = f"{self._prefix}.{self._opened}"
        self.do(
            "create_topic",
            topic=name,
            partitions=partitions,
            replication_factor=replication_factor,
            config={key: str(value) for key, value in config.items()},
        )
        return name

    def leader(self, topic: str, partition: int = 0) -> str:
        """Return the leader of a partition."""
        return str(self.do("describe", topic=topic)["partitions"][partition]["leader"])

    def producer(self, topic: str, **options: object) -> Producer:
        """Open a producer."""
        self._opened += 1
        name = f"{self.log}.p{self._opened}"
        self.do("open_producer", producer=name, topic=topic, options=options)
        return Producer(self.driver, name)

    def consumer(self, topic: str, start: Any = "earliest", end: Any = None, **more: Any) -> Consumer:
        """Open a consumer."""
        self._opened += 1
        name = f"{self.log}.c{self._opened}"
        self.do("open_consumer", consumer=name, topic=topic, start=start, end=end, **more)
        return Consumer(self.driver, name)

    def write(self, topic: str, *records: Json) -> list[Json]:
        """Send records by a producer of their own and return their acks."""
        producer = self.producer(topic)
        acks = producer.send_all(*records)
        producer.close()
        return acks

    def read(self, topic: str, start: Any = "earliest", end: Any = "latest", **more: Any) -> list[Json]:
        """Return all records from one position to another."""
        consumer = self.consumer(topic, start, end, **more)
        records, ended = consumer.next(1_000_000)
        assert ended
        consumer.close()
        return records

    def values(self, topic: str, **more: Any) -> list[bytes | None]:
        """Return the values of all records from one place to another."""
        return [unb64(found["value"]) for found in self.read(topic, **more)]


class Producer:
    """An open producer of the library."""

    def __init__(self, driver: Driver, name: str) -> None:
        self._driver = driver
        self._name = name

    def send(self, sent: Json) -> Json:
        """Send a record and return its ack."""
        return self._driver.do("send", producer=self._name, record=sent)

    def submit(self, *records: Json) -> None:
        """Send records without waiting for their acks."""
        self._driver.do("submit", producer=self._name, records=records)

    def flush(self) -> list[Json]:
        """Return the outcomes of all submitted records."""
        return list(self._driver.do("flush", producer=self._name)["outcomes"])

    def send_all(self, *records: Json) -> list[Json]:
        """Send records, all of which must be acked, and return their acks."""
        self.submit(*records)
        outcomes = self.flush()
        assert [outcome for outcome in outcomes if "ack" not in outcome] == []
        return [outcome["ack"] for outcome in outcomes]

    def close(self) -> None:
        """Close the producer."""
        self._driver.do("close_producer", producer=self._name)


class Consumer:
    """An open consumer of the library."""

    def __init__(self, driver: Driver, name: str) -> None:
        self._driver = driver
        self._name = name

    def next(self, count: int = 1) -> tuple[list[Json], bool]:
        """Return up to so many records, and whether the end was reached."""
        answer = self._driver.do("next", consumer=self._name, count=count)
        return answer["records"], answer["end"]

    def values(self, count: int) -> list[bytes | None]:
        """Return the values of so many records."""
        return [unb64(found["value"]) for found in self.next(count)[0]]

    def positions(self) -> Json:
        """Return the positions at which another consumer would continue."""
        return {"positions": self._driver.do("positions", consumer=self._name)["positions"]}

    def close(self) -> None:
        """Close the consumer."""
        self._driver.do("close_consumer", consumer=self._name)
