"""Clusters of three servers on loopback: how each product is started, killed and stopped, and its own tool for load.

``make peers`` fetches what they need into ``build/peers``. Settings are the products' defaults but for where they
listen and keep their data, and for what makes an ack mean the same: two of three replicas must be in sync.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar, Protocol

from tidelog.cli.local.local_cluster import HOST, LocalCluster, free_base_port

PEERS = Path(__file__).resolve().parents[3] / "build" / "peers"
SERVERS = 3
STOP_S = 20.0
"""Seconds that servers may take to stop before they are killed."""
WARM_UP_SHARE = 3
"""Before the records that count, Kafka's tool sends one for each so many of them, which do not count: code that the
JVM has not compiled yet is slow."""
CONNECTIONS = 20_000
"""Connections that a gateway of Tidelog accepts here (the default is 4,000, of one address 3,000), and consumers that
a stream of JetStream may have (the default is 1,000). The others have no such bound."""


class Product(Protocol):
    """A cluster of three servers of one product, with its data in ``folder``. Making it writes the configuration;
    ``start`` starts the servers. The defaults here are for products with one process per server."""

    client: ClassVar[str]
    """The module of this package that drives the product's client."""
    python: Path = PEERS / "venv" / "bin" / "python"
    """The Python in which that client is installed."""
    needs: ClassVar[tuple[Path, ...]] = (PEERS / "venv" / "installed",)
    """The files that ``make peers`` fetches for the product."""
    settings: ClassVar[dict[str, Any]] = {}
    """Settings of a topic."""
    delivers_like: ClassVar[str] = ""
    """The product that differs from this one only until a record is acknowledged, so that very many subscribers are
    measured with that one; "" if there is none."""
    makes_topics: ClassVar[bool] = True
    """Whether the product's own tool creates its topic; otherwise the client does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        base = free_base_port(3 * SERVERS)
        self.ports = [list(range(base + SERVERS * kind, base + SERVERS * (kind + 1))) for kind in range(3)]
        """Three ports of each of three kinds; the first kind is for clients."""
        self._processes: list[subprocess.Popen[bytes]] = []
        self.prepare()

    def prepare(self) -> None:
        """Write the configuration that the servers read. This does not count as their start."""

    def command(self, number: int) -> list[str]:
        """Return the command that starts server number 0, 1 or 2."""

    def server(self, leader: str) -> int:
        """Return the number of the server that the client's module calls ``leader``."""
        return self.addresses.index(leader)

    def tool(self, topic: str, size: int, records: int, tuned: bool) -> list[str]:
        """Return the command of the product's own tool for load that writes this many records to a topic. ``tuned``:
        with larger batches than the tool's defaults."""

    @staticmethod
    def records_per_s(printed: str) -> float:
        """Return the records per second that the tool has printed. Raises ``ValueError`` if there is no such
        figure."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the addresses that clients connect to."""
        return tuple(f"{HOST}:{port}" for port in self.ports[0])

    def start(self) -> None:
        """Start the servers, and return without waiting until they are ready."""
        for number in range(SERVERS):
            with (self.folder / f"log-{number}").open("wb") as log:
                self._processes.append(
                    subprocess.Popen(
                        self.command(number), cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                    )
                )

    def pids(self) -> list[int]:
        """Return the ids of the processes that run."""
        return [process.pid for process in self._processes if process.poll() is None]

    def kill(self, leader: str) -> None:
        """Kill the server that leads, with SIGKILL, and wait for its end."""
        process = self._processes[self.server(leader)]
        process.kill()
        process.wait()

    def stop(self) -> None:
        """Stop all servers with SIGTERM, and kill those that run after ``STOP_S`` seconds."""
        until = time.monotonic() + STOP_S
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Tidelog(Product):
    """A cluster of three controllers, three replica servers and a gateway: seven processes, where the others have
    three."""

    client = "tidelog_client"
    python = Path(sys.executable)
    needs = ()
    settings: ClassVar[dict[str, Any]] = {"flush": "os"}

    def prepare(self) -> None:
        bounds = ("CLIENT", "PRINCIPAL", "ADDRESS")
        os.environ.update({f"TIDELOG_{bound}_MAX_CONNECTIONS": str(CONNECTIONS) for bound in bounds})
        self._cluster = LocalCluster.create(
            self.folder, controllers=3, replicas=3, gateways=1, base_port=self.ports[0][0]
        )

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(self._cluster.gateways())

    def start(self) -> None:
        self._cluster.start()

    def pids(self) -> list[int]:
        return [process.pid for process in self._cluster.processes if process.is_alive()]

    def kill(self, leader: str) -> None:
        self._cluster.kill(leader)

    def stop(self) -> None:
        self._cluster.stop()

    def tool(self, topic: str, size: int, records: int, tuned: bool) -> list[str]:
        del topic  # it makes its own
        given = [f"--config=flush={self.settings['flush']}", f"--record-bytes={size}", f"--records={records}"]
        bench = [sys.executable, "-m", "tidelog.cli", "bench", "produce", "--gateway", self.addresses[0], "--json"]
        batches = [f"--batch-bytes={1 << 20}"] if tuned else []
        return [*bench, "--partitions=3", "--warm-up=0", *given, *batches]

    @staticmethod
    def records_per_s(printed: str) -> float:
        return float(json.loads(printed[printed.index("{") :])["rows"][0]["records_per_s"])


class TidelogFsync(Tidelog):
    """A cluster of Tidelog with ``flush=fsync``, where an ack means three disks: none of the others does that by
    default."""

    settings: ClassVar[dict[str, Any]] = {"flush": "fsync"}
    delivers_like = "tidelog"


class Kafka(Product):
    """A cluster of Kafka with KRaft: three processes that are broker and controller, with the heap and the collector
    of Kafka's start script."""

    client = "kafka"
    needs = (*Product.needs, PEERS / "kafka" / "fetched")
    settings: ClassVar[dict[str, Any]] = {"min.insync.replicas": "2"}
    makes_topics = False
    java: ClassVar[list[str]] = ["java", "-cp", str(PEERS / "kafka" / "*")]
    heap: ClassVar[list[str]] = ["-Xmx1G", "-Xms1G"]
    collector: ClassVar[list[str]] = [
        *("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35"),
        *("-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true"),
    ]
    cluster_id = "AAAAAAAAAAAAAAAAAAAAAQ"

    def prepare(self) -> None:
        voters = ",".join(f"{number}@{HOST}:{port}" for number, port in enumerate(self.ports[1]))
        for number in range(SERVERS):
            settings = {
                "process.roles": "broker,controller",
                "node.id": number,
                "controller.quorum.voters": voters,
                "listeners": f"PLAINTEXT://{self.addresses[number]},CONTROLLER://{HOST}:{self.ports[1][number]}",
                "advertised.listeners": f"PLAINTEXT://{self.addresses[number]}",
                "controller.listener.names": "CONTROLLER",
                "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
                "log.dirs": self.folder / f"data-{number}",
                "auto.create.topics.enable": "false",
            }
            file = self._config(number)
            file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
            tool = [*self.java, "kafka.tools.StorageTool", "format", "-t", self.cluster_id, "-c", str(file)]
            subprocess.run(tool, check=True, capture_output=True)

    def _config(self, number: int) -> Path:
        return self.folder / f"server-{number}.properties"

    def command(self, number: int) -> list[str]:
        return [self.java[0], *self.heap, *self.collector, *self.java[1:], "kafka.Kafka", str(self._config(number))]

    def tool(self, topic: str, size: int, records: int, tuned: bool) -> list[str]:
        warm_up = max(1, records // WARM_UP_SHARE)
        counts = ["--num-records", str(warm_up + records), "--warmup-records", str(warm_up)]
        to = ["--bootstrap-server", ",".join(self.addresses), "--topic", topic]
        load = [*to, *counts, "--record-size", str(size), "--throughput", "-1"]
        batches = [f"batch.size={1 << 20}", "linger.ms=20", f"buffer.memory={64 << 20}"] if tuned else []
        settings = ["--command-property", "acks=all", *batches]
        return [*self.java, "org.apache.kafka.tools.ProducerPerformance", *load, *settings]

    @staticmethod
    def records_per_s(printed: str) -> float:
        """Return the rate in the last line that the tool prints, with percentiles, which is of the records after the
        warm-up. Raises ``ValueError`` if there is none."""
        return _number(r"steady state records sent, ([\d.]+) records/sec .* 99th", printed)


class JetStream(Product):
    """A cluster of three NATS servers. Streams are in files, which are synced every two minutes, the default of
    ``sync_interval``."""

    client = "jetstream"
    needs = (*Product.needs, PEERS / "bin" / "nats-server", PEERS / "bin" / "nats")

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(f"nats://{HOST}:{port}" for port in self.ports[0])

    def prepare(self) -> None:
        routes = json.dumps([f"nats://{HOST}:{port}" for port in self.ports[1]])
        limits = f"limits {{ default_max_consumers: {CONNECTIONS} }}"
        for number in range(SERVERS):
            (self.folder / f"server-{number}.conf").write_text(
                f'server_name: "{number}"\n'
                f'listen: "{HOST}:{self.ports[0][number]}"\n'
                f'jetstream {{ store_dir: "{self.folder / f"data-{number}"}", {limits} }}\n'
                f'cluster {{ name: "bench", listen: "{HOST}:{self.ports[1][number]}", routes: {routes} }}\n'
            )

    def command(self, number: int) -> list[str]:
        return [str(PEERS / "bin" / "nats-server"), "-c", str(self.folder / f"server-{number}.conf")]

    def server(self, leader: str) -> int:
        return int(leader)

    def tool(self, topic: str, size: int, records: int, tuned: bool) -> list[str]:
        to = ["--server", ",".join(self.addresses), "--stream", topic, "--create", "--replicas", "3"]
        counts = ["--msgs", str(records), "--size", f"{size}B", "--storage", "file", "--no-progress"]
        way = "batch" if tuned else "async"
        return [str(PEERS / "bin" / "nats"), "bench", "js", "pub", way, topic, *to, *counts]

    @staticmethod
    def records_per_s(printed: str) -> float:
        return _number(r"stats: ([\d,]+) msgs/sec", printed)


class Liftbridge(Product):
    """A cluster of three servers with an embedded NATS server each. Liftbridge has no setting for a flush."""

    client = "liftbridge"
    needs = (*Product.needs, PEERS / "bin" / "liftbridge", PEERS / "liftbridge" / "api_pb2.py")

    def prepare(self) -> None:
        routes = json.dumps([f"nats://{HOST}:{port}" for port in self.ports[2]])
        for number in range(SERVERS):
            nats = self.folder / f"nats-{number}.conf"
            nats.write_text(
                f'listen: "{HOST}:{self.ports[1][number]}"\n'
                f'cluster {{ name: "bench", listen: "{HOST}:{self.ports[2][number]}", routes: {routes} }}\n'
            )
            settings = {
                "listen": self.addresses[number],
                "host": HOST,
                "port": self.ports[0][number],
                "data.dir": str(self.folder / f"data-{number}"),
                "nats.embedded.config": str(nats),
                "nats.servers": [f"nats://{HOST}:{self.ports[1][number]}"],
                "clustering.server.id": f"s{number}",
                "clustering.raft.bootstrap.peers": [f"s{each}" for each in range(SERVERS)],
                "clustering.min.insync.replicas": 2,
            }
            file = self.folder / f"server-{number}.yaml"
            file.write_text("".join(f"{name}: {json.dumps(value)}\n" for name, value in settings.items()))

    def command(self, number: int) -> list[str]:
        return [str(PEERS / "bin" / "liftbridge"), "--config", str(self.folder / f"server-{number}.yaml")]


PRODUCTS: dict[str, type[Product]] = {
    "tidelog": Tidelog,
    "tidelog-fsync": TidelogFsync,
    "kafka": Kafka,
    "jetstream": JetStream,
    "liftbridge": Liftbridge,
}


def _number(pattern: str, printed: str) -> float:
    found = re.findall(pattern, printed)
    if not found:
        raise ValueError(f"no figure in {printed[-500:]!r}")
    return float(found[-1].replace(",", ""))


def memory_mb(pid: int) -> float:
    """Return the memory of a process in MB; memory that it shares with others is divided among them (PSS)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1e6


def disk_bytes(folder: Path) -> int:
    """Return the bytes that the files of a folder take on the disk."""
    return sum(file.lstat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())
