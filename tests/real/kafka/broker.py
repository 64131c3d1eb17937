"""A broker of Kafka for tests, from the jars that ``make kafka`` fetches: one process that is broker and controller."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidelog.cli.local.local_cluster import HOST, free_base_port

JARS = Path(__file__).resolve().parents[3] / "build" / "peers" / "kafka"
JAVA = ["java", "-cp", str(JARS / "*"), "-XX:TieredStopAtLevel=1", "-Xmx512m"]
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


@contextmanager
def running_broker(folder: Path, **more: object) -> Iterator[str]:
    """Run a broker with its data in ``folder``, and yield its address. ``more``: further settings, with ``_`` for
    ``.``."""
    port = free_base_port(2)
    address = f"{HOST}:{port}"
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{HOST}:{port + 1}",
        "listeners": f"PLAINTEXT://{address},CONTROLLER://{HOST}:{port + 1}",
        "advertised.listeners": f"PLAINTEXT://{address}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": folder / "data",
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        "log.cleaner.backoff.ms": 100,
    } | {name.replace("_", "."): value for name, value in more.items()}
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "server.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    tool = [*JAVA, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(file)]
    subprocess.run(tool, check=True, capture_output=True)
    with (folder / "log").open("wb") as log:
        command = [sys.executable, "-c", GUARD, *JAVA, "kafka.Kafka", str(file)]
        guard = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True)
    try:
        yield address
    finally:
        guard.communicate()
