"""A broker of Kafka for tests, from the jars of ``make kafka``: one process that is broker and controller."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from tidelog.cli.local.local_cluster import HOST, free_base_port
from tidelog.net.dev_certificates import open_authority

JARS = Path(__file__).resolve().parents[3] / "build" / "peers" / "kafka"
JAVA = ["java", "-cp", str(JARS / "*"), "-XX:TieredStopAtLevel=1", "-Xmx512m"]
PASSWORD = "of-the-test"
CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
GUARD = """
import subprocess, sys
broker = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
sys.stdin.read()  # ends with the process that holds the other end
broker.kill()
broker.wait()
"""
"""A program that runs the broker, and kills it when the test's process closes the pipe or ends in any way."""

MISSING = (
    "" if (JARS / "fetched").exists() and shutil.which("java") else "no Kafka: make kafka (Maven and Java are needed)"
)
"""Why no broker can be started here; "" if one can."""


WAIT_S = 60.0
"""How long anything may take on a busy machine that is only waited for."""


class Kafka:
    """A running broker, and what a test does with it. ``address``: where clients connect. ``guarded``: where they
    need TLS with the authority ``ca``, and the user ``tidelog`` with ``PASSWORD``."""

    def __init__(self, address: str, guarded: str, ca: Path) -> None:
        self.address = address
        self.guarded = guarded
        self.ca = ca
        self._config = {"bootstrap.servers": address, "log_level": 0}
        self.admin = AdminClient(self._config)

    def wait_ready(self) -> None:
        """Wait until it answers. Raises ``KafkaException`` if it does not within ``WAIT_S`` seconds."""
        until = time.monotonic() + WAIT_S
        while True:
            try:
                self.admin.list_topics(timeout=1)
                return
            except KafkaException:
                if time.monotonic() > until:
                    raise

    def create(self, topic: str, partitions: int = 1, **config: object) -> None:
        """Create a topic. ``config``: its settings, with ``_`` for ``.``."""
        settings = {name.replace("_", "."): str(value) for name, value in config.items()}
        for answer in self.admin.create_topics([NewTopic(topic, partitions, 1, config=settings)]).values():
            answer.result(WAIT_S)

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        self.admin.delete_topics([topic])[topic].result(WAIT_S)

    def grow(self, topic: str, partitions: int) -> None:
        """Give a topic so many partitions."""
        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(WAIT_S)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete all records of a partition below an offset, as retention does."""
        for answer in self.admin.delete_records([TopicPartition(topic, partition, before)]).values():
            answer.result(WAIT_S)

    def produce(self, topic: str, partition: int, records: Iterable[Mapping[str, Any]]) -> None:
        """Append records, each with the arguments of ``Producer.produce``, and wait until they are there."""
        producer = Producer(self._config | {"linger.ms": 5})
        for number, record in enumerate(records):
            producer.produce(topic, partition=partition, **record)
            if number % 1000 == 0:
                producer.flush(WAIT_S)
        assert producer.flush(WAIT_S) == 0

    def transaction(self, name: str) -> Producer:
        """Return a producer for transactions."""
        producer = Producer(self._config | {"transactional.id": name})
        producer.init_transactions(WAIT_S)
        return producer

    def commit(self, group: str, topic: str, positions: Mapping[int, int]) -> None:
        """Commit positions of a consumer group."""
        consumer = Consumer(self._config | {"group.id": group})
        parts = [TopicPartition(topic, partition, offset) for partition, offset in positions.items()]
        consumer.commit(offsets=parts, asynchronous=False)
        consumer.close()

    def offsets(self, topic: str, partition: int, until: Callable[[list[int]], bool] = lambda _: True) -> list[int]:
        """Return the offsets of all committed records of a partition. Reads again until ``until`` accepts them.
        Raises ``TimeoutError`` if it does not within ``WAIT_S`` seconds."""
        give_up = time.monotonic() + WAIT_S
        while time.monotonic() < give_up:
            consumer = Consumer(self._config | {"group.id": "test", "enable.partition.eof": True})
            consumer.assign([TopicPartition(topic, partition, 0)])
            found: list[int] = []
            while (message := consumer.poll(WAIT_S)) is not None and message.error() is None:
                found.append(int(message.offset() or 0))
            consumer.close()
            if until(found):
                return found
        raise TimeoutError(f"{topic}/{partition} has {found}")


@contextmanager
def running_broker(folder: Path, port: int = 0) -> Iterator[Kafka]:
    """Run a broker with its data in ``folder``, and yield it when it answers. At the end it is killed. ``port``: the
    first of its three ports; 0: any. A broker in a folder where one ran before has the data of that one."""
    port = port or free_base_port(3)
    address, guarded = f"{HOST}:{port}", f"{HOST}:{port + 2}"
    login = "org.apache.kafka.common.security.plain.PlainLoginModule"
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{HOST}:{port + 1}",
        "listeners": f"PLAINTEXT://{address},CONTROLLER://{HOST}:{port + 1},SASL_SSL://{guarded}",
        "advertised.listeners": f"PLAINTEXT://{address},SASL_SSL://{guarded}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": folder / "keystore.pem",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f'{login} required user_tidelog="{PASSWORD}";',
        "log.dirs": folder / "data",
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        "log.cleaner.backoff.ms": 100,
    }
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "server.properties"
    if not file.exists():
        authority = open_authority(folder, datetime.now(UTC), timedelta(days=1))
        certificate = authority.issue("kafka", [], [HOST], datetime.now(UTC), timedelta(days=1))
        keystore = Path(certificate.key).read_text() + Path(certificate.cert).read_text()
        (folder / "keystore.pem").write_text(keystore)
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        tool = [*JAVA, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(file)]
        subprocess.run(tool, check=True, capture_output=True)
    with (folder / "log").open("wb") as log:
        command = [sys.executable, "-c", GUARD, *JAVA, "kafka.Kafka", str(file)]
        guard = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True)
    try:
        running = Kafka(address, guarded, folder / "ca.pem")
        running.wait_ready()
        yield running
    finally:
        guard.communicate()
