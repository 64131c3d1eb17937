"""The cluster in which an incident is planted: real processes on this machine, topics and a group under load. Names,
numbers and the parts that are struck come from a seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import urlopen

import tidelog
import trio
from chaos.cluster.proxies import INSIDE, ProxyLinks
from incidents import hardware, releases
from incidents.load import Load
from tidelog.cli.local.local_cluster import HOST, LocalCluster, Process, free_base_port
from tidelog.client.log import Log
from tidelog.client.options import ProducerOptions
from tidelog.errors import TidelogError
from tidelog.wire.messages import MetadataAnswer, PartitionInfo

if TYPE_CHECKING:
    from incidents.incident import ClusterPlan

LOOK_S = 0.2
"""Pause in seconds between two looks at a condition."""
WAIT_S = 120.0
"""Seconds that anything may take on a busy machine that is only waited for."""
DOCTOR_S = 180.0
"""Seconds after which a run of ``tidelog doctor`` is given up."""
REPLICAS = 3
WORDS = (
    *("orders", "payments", "clicks", "sensors", "invoices", "shipments", "logins", "quotes"),
    *("readings", "refunds", "sessions", "trades", "visits", "tickets", "prices", "alarms"),
)
READERS = ("billing", "search", "archive", "reports", "mailer", "fraud", "ledger", "stock")
CONFIG = {"min_insync_replicas": 2, "retention_ms": 86_400_000, "segment_max_bytes": 1 << 16}
"""Settings of the topics under load. They have retention, so that their growth is no finding."""
SETTINGS = {
    "replica": """
[settings]
scrub_interval_s = 4
retention_check_interval_s = 5
reserve_bytes = 8388608
[settings.groups]
session_min_ms = 1000
"""
}
"""Settings of every cluster: what is looked for once a day is looked for within seconds."""
GUARD = """
import pathlib, sys
sys.stdin.read()  # ends with the process that holds the other end
import subprocess
from tidelog.cli.local.local_cluster import LocalCluster
folder = pathlib.Path(sys.argv[1])
LocalCluster.load(folder).stop()
for data in folder.glob("*/data"):
    if data.is_mount():
        subprocess.run(["umount", data])
"""


class IncidentCluster(LocalCluster):
    """A local cluster with the settings of a plan."""

    plan: ClusterPlan
    libraries = ""
    """The value of ``LD_PRELOAD`` with which processes start; "" without a plan for that."""
    upgraded: frozenset[str] = frozenset()
    """Ids of the processes that run the present release, if the plan begins with an earlier one."""

    @classmethod
    def make(cls, folder: Path, plan: ClusterPlan) -> IncidentCluster:
        """Create the cluster of a plan in ``folder``, without starting it."""

        class Planned(cls):  # type: ignore[valid-type,misc]
            pass

        Planned.plan = plan  # ``create`` writes the configuration
        count = plan.controllers + plan.gateways + REPLICAS
        made = Planned.create(
            folder,
            controllers=plan.controllers,
            replicas=REPLICAS,
            gateways=plan.gateways,
            base_port=free_base_port(count),
            tls=plan.tls,
        )
        assert isinstance(made, cls)
        return made

    def is_registered(self, node: str) -> bool:
        """Return whether the running replica server has logged that the controllers have registered it."""
        return self._is_registered(self.get(node))

    def data(self, node: str) -> Path:
        """Return the data directory of a process."""
        return self.folder / node / "data"

    def prepare(self) -> None:
        """Build what the plan needs below the processes. Call it before ``start``, and ``clear`` after ``stop``."""
        if self.plan.hardware:
            self.libraries = hardware.build(self.folder)
            for process in self.processes:
                hardware.prepare(self.folder / process.id)
        if self.plan.earlier:
            releases.make_earlier(self.folder)
        if self.plan.disk_mib:
            for process in self.of_role("replica"):
                hardware.mount_disk(self.data(process.id), self.plan.disk_mib)

    def clear(self) -> None:
        """Unmount the disks that ``prepare`` has mounted."""
        for process in self.of_role("replica"):
            hardware.unmount_disk(self.data(process.id))

    def command_prefix(self, process: Process) -> list[str]:
        """Return the command line that starts a process on its hardware and in its release, as the plan says."""
        variables: dict[str, str] = {}
        if self.libraries:
            variables |= hardware.variables(self.libraries, self.folder / process.id)
        if self.plan.earlier and process.id not in self.upgraded:
            variables |= releases.variables(self.folder)
        return ["env", *(f"{name}={value}" for name, value in variables.items())] if variables else []

    def _config_lines(self, process: Process) -> Iterator[str]:
        own = settings_of(self.plan.settings.get(process.role, ""), SETTINGS.get(process.role, ""))
        yield from own.pop("")
        if self.plan.links and process.role == "replica":
            yield f'advertised_url = "{process.url}"'
        for line in super()._config_lines(process):
            yield line.replace(f'host = "{HOST}"', f'host = "{INSIDE}"') if self.plan.links else line
        for header, lines in own.items():
            yield from (header, *lines)


def settings_of(*texts: str) -> dict[str, list[str]]:
    """Return the settings of several texts of TOML: the header of each table -> its lines. "" are settings outside of
    tables. A setting counts where it stands first."""
    tables: dict[str, list[str]] = {"": []}
    for text in texts:
        table = ""
        for line in text.splitlines():
            if line.startswith("["):
                table = line
                tables.setdefault(table, [])
            elif line and line.split("=")[0] not in {known.split("=")[0] for known in tables[table]}:
                tables[table].append(line)
    return tables


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What one run of ``tidelog doctor`` said: its findings, as in its JSON output."""

    findings: tuple[Mapping[str, Any], ...]

    def causes(self) -> list[Mapping[str, Any]]:
        """Return the problems and warnings that are called causes."""
        return [one for one in self.findings if not one["because_of"] and one["level"] != "note"]

    def named(self, cause: str) -> Mapping[str, Any] | None:
        """Return the finding that names this cause as a cause; None if there is none."""
        return next((one for one in self.findings if one["cause"] == cause and not one["because_of"]), None)


@dataclass
class Stage:
    """The running cluster of one run, with what its incident and its load know."""

    cluster: IncidentCluster
    log: Log
    random: Random
    load: Load
    nursery: trio.Nursery
    facts: dict[str, Any] = field(default_factory=dict)
    """What ``plant`` leaves for ``mend``, by a name with that of the incident, such as "flapping"."""
    _made: list[str] = field(default_factory=list)
    _background: dict[str, tuple[trio.CancelScope, trio.Event]] = field(default_factory=dict)
    links: ProxyLinks | None = None
    """The links between processes, if the plan has them; its methods are called with ``do``."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables of the command ``tidelog``, beside those of this process: the machine of the user."""

    @property
    def topic(self) -> str:
        """The topic that incidents strike: the first of those under load."""
        return self.load.topics[0]

    @property
    def other_topic(self) -> str:
        """The second topic under load: for the second of two incidents."""
        return self.load.topics[1]

    @property
    def group(self) -> str:
        """The consumer group that reads the first topic."""
        return self.load.group

    @property
    def gateway(self) -> str:
        """The URL of the first gateway."""
        return self.cluster.gateways()[0]

    def connect(self, **options: Any) -> Any:
        """Return a client of its own of the cluster, as a context manager."""
        return connect(self.cluster, **options)

    # --- looking -----------------------------------------------------------------------------------------

    async def status(self) -> MetadataAnswer:
        """Return the metadata of the cluster."""
        return await self.log.cluster.status()

    async def partition(self, topic: str, number: int = 0) -> PartitionInfo:
        """Return the state of one partition."""
        return (await self.log.topics.describe(topic)).partitions[number]

    async def until(self, holds: Callable[[], Awaitable[bool]], what: str) -> None:
        """Wait until ``holds`` returns True. Errors of the cluster are ignored meanwhile. Raises ``TimeoutError``
        with ``what`` after ``WAIT_S`` seconds."""
        with trio.move_on_after(WAIT_S):
            while True:
                with suppress(TidelogError):  # the cluster cannot say now; it is asked again
                    if await holds():
                        return
                await trio.sleep(LOOK_S)
        raise TimeoutError(f"{what}: not within {WAIT_S:g} s")

    async def doctor(self) -> Diagnosis:
        """Run ``tidelog doctor`` as a user does, and return what it says."""
        done = await self.tidelog("doctor", "-o", "json")
        return Diagnosis(tuple(json.loads(done.stdout)["findings"]))

    async def tidelog(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        """Run the command ``tidelog`` against this cluster, with the rights of its administrator. A status other than
        0 is no error. Raises ``trio.TooSlowError`` after ``DOCTOR_S`` seconds."""
        command = [sys.executable, "-m", "tidelog.cli", *arguments]
        variables = {"TIDELOG_GATEWAY": ",".join(self.cluster.gateways()[:1])} | _tls_variables(self.cluster)
        with trio.fail_after(DOCTOR_S):
            return await trio.run_process(
                command,
                env=os.environ | variables | self.environment,
                capture_stdout=True,
                capture_stderr=True,
                check=False,
            )

    async def metric(self, name: str) -> float:
        """Return the highest value of a metric over all processes that answer, and all its labels; 0 if none has
        it."""
        found = [0.0]
        status = await self.status()
        nodes = ["", *(server.node for server in status.servers if not server.fenced)]
        with suppress(TidelogError):  # nobody leads the controllers: the others are asked
            nodes.append((await self.log.cluster.quorum()).active)
        for node in dict.fromkeys(nodes):
            with suppress(TidelogError):  # it does not answer, which may be the incident
                page = (await self.log.cluster.metrics(node)).page
                found += [
                    float(line.split()[-1]) for line in page.splitlines() if line.split("{")[0].split(" ")[0] == name
                ]
        return max(found)

    def folder(self, node: str) -> Path:
        """Return the folder of a process, with its configuration and its data."""
        return self.cluster.folder / node

    def servers(self) -> list[str]:
        """Return the ids of all replica servers."""
        return [process.id for process in self.cluster.of_role("replica")]

    async def in_sync(self) -> None:
        """Wait until every partition has a leader, and every replica is in sync."""

        async def whole() -> bool:
            partitions = [one for topic in (await self.status()).topics for one in topic.partitions]
            return all(one.leader and len(one.isr) == len(one.replicas) for one in partitions)

        await self.until(whole, "all replicas are in sync")

    async def unready(self, role: str) -> list[str]:
        """Return the reasons that running processes of a role give in ``/readyz`` for not being ready."""
        reasons: list[str] = []
        for process in self.cluster.of_role(role):
            if process.is_going():
                reasons += await self.do(_reasons, process.url)
        return reasons

    # --- doing -------------------------------------------------------------------------------------------

    async def do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function that changes the cluster's processes or files, in a thread, and return its result."""
        return await trio.to_thread.run_sync(function, *arguments)

    async def kill(self, *nodes: str) -> None:
        """Kill these processes with SIGKILL."""
        await self.do(self.cluster.kill, *nodes)

    async def start(self, *nodes: str) -> None:
        """Start these processes again on their own data."""
        for node in nodes:
            await self.do(self.cluster.restart, node)

    async def leader(self, topic: str, number: int = 0) -> str:
        """Wait until a partition has a leader, and return its name."""

        async def led() -> bool:
            return bool((await self.partition(topic, number)).leader)

        await self.until(led, f"{topic}/{number} has a leader")
        return (await self.partition(topic, number)).leader

    async def make_topic(self, *, replicas: int = REPLICAS, partitions: int = 1, **config: object) -> str:
        """Create another topic, under a name that the seed draws, and return its name. ``config`` are settings beside
        those of ``CONFIG``; with fewer than three replicas one in sync suffices."""
        name: str = self.random.choice([word for word in WORDS if word not in (*self.load.topics, *self._made)])
        self._made.append(name)
        chosen = CONFIG | ({"min_insync_replicas": 1} if replicas < REPLICAS else {}) | config
        await self.log.topics.create(name, partitions=partitions, replication_factor=replicas, config=chosen)
        return name

    async def send(self, topic: str, count: int, size: int = 100, partition: int = 0) -> None:
        """Send so many records of ``size`` bytes, each in a batch of its own, and wait for their acks."""
        async with self.log.producer(topic, ProducerOptions(linger_s=0, max_in_flight=1)) as producer:
            for number in range(count):
                await producer.send(b"%d" % number + b"." * size, partition=partition)

    def folder_of(self, node: str, topic_id: str, partition: int = 0) -> Path:
        """Return the folder in which a replica server has its copy of a partition."""
        return self.cluster.data(node) / f"{topic_id}-{partition}"

    def begin(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run ``work`` in the background until ``end`` is called with the same name."""
        scope, ended = self._background[name] = trio.CancelScope(), trio.Event()

        async def inside() -> None:
            try:
                with scope:
                    await work()
            finally:
                ended.set()

        self.nursery.start_soon(inside)

    async def end(self, name: str) -> None:
        """Cancel what ``begin`` started under this name, and wait until it has ended: what it does in a thread, such
        as the start of a process, is finished first."""
        scope, ended = self._background.pop(name)
        scope.cancel()
        await ended.wait()


def _reasons(url: str) -> list[str]:
    """Return the lines of ``/readyz`` of the process at this URL if it is not ready; an empty list if it is."""
    try:
        with urlopen(f"{url.replace('ws:', 'http:', 1)}/readyz", timeout=10):
            return []
    except HTTPError as error:
        return error.read().decode().splitlines()


def connect(cluster: IncidentCluster, **options: Any) -> Any:
    """Return a client of the cluster, as a context manager."""
    chosen = {"connect_timeout_s": WAIT_S, "request_timeout_s": 20.0} | options
    if cluster.plan.tls:
        chosen.setdefault("tls", cluster.tls)
    return tidelog.connect(cluster.gateways(), **chosen)


def _tls_variables(cluster: IncidentCluster) -> dict[str, str]:
    """Return the environment variables by which the command presents the administrator's certificate."""
    if not cluster.plan.tls:
        return {}
    files = cluster.tls
    return {"TIDELOG_CLIENT_CA": files.ca, "TIDELOG_CLIENT_CERT": files.cert, "TIDELOG_CLIENT_KEY": files.key}


def _guard(folder: Path) -> subprocess.Popen[bytes]:
    """Start a process that stops the cluster in ``folder`` when this process ends, however it ends."""
    return subprocess.Popen([sys.executable, "-c", GUARD, folder], stdin=subprocess.PIPE, start_new_session=True)


@asynccontextmanager
async def staged(plan: ClusterPlan, seed: int, folder: Path) -> AsyncIterator[Stage]:
    """Start the cluster of a plan in ``folder``, with topics and load, and yield it. Everything is ended afterwards,
    also if this process is killed."""
    random = Random(seed)
    cluster = IncidentCluster.make(folder, plan)
    guard = _guard(folder)
    links = ProxyLinks(lambda: cluster.processes) if plan.links else None
    proxies = ExitStack()
    try:
        await trio.to_thread.run_sync(cluster.prepare)
        await trio.to_thread.run_sync(cluster.start)
        if links:  # the start takes care that nobody listens where they do
            proxies.enter_context(links.serving())
        await cluster.wait_ready()
        async with connect(cluster) as log, trio.open_nursery() as nursery:
            names = random.sample(WORDS, 3)
            load = Load(tuple(names), random.choice(READERS), lambda: connect(cluster))
            for name in names:
                await log.topics.create(
                    name, partitions=random.choice((1, 2, 3)), replication_factor=REPLICAS, config=CONFIG
                )
            nursery.start_soon(load.run)
            await load.running()
            yield Stage(cluster, log, random, load, nursery, links=links)
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(cluster.stop)
            await trio.to_thread.run_sync(cluster.clear)
            proxies.close()
            guard.kill()
            await trio.to_thread.run_sync(guard.communicate)
