"""The cluster that faults strike: each process on a host, a disk, a boot and a clock of its own, as far as the
machine allows."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import trio
from chaos.cluster import capabilities, clocks, versions
from chaos.cluster.disks import PowerDisk, share_mounts
from chaos.cluster.links import HostLinks, Links
from chaos.cluster.network_namespaces import HostCluster
from chaos.cluster.proxies import INSIDE, ProxyLinks
from tidelog.cli.local.local_cluster import HOST, LocalCluster, Process, free_base_port

SESSION_S = 3.0
"""Silence after which the controllers fence a replica server: the default."""
PROCESSES = 8
BOOT_ID = "/proc/sys/kernel/random/boot_id"
SETTINGS = {
    "replica": """
max_open_files = 150  # less than a soak's segments, so that a leak shows and their number does not
[settings]
scrub_interval_s = 15  # damage is to be found within the run
retention_check_interval_s = 5
reserve_bytes = 8388608
[settings.groups]
session_min_ms = 1000
"""
}


class ChaosCluster(LocalCluster):
    """What faults need besides hosts. ``prepare`` goes before ``start``, ``clear`` after ``stop``."""

    disks: dict[str, PowerDisk]
    links: Links
    tree: Path | None = None
    """The source of an earlier version,"""
    earlier: frozenset[str] = frozenset()
    """and those that run from it."""

    @classmethod
    def make(cls, folder: Path) -> Self:
        """Lay out a new one."""
        made = cls.create(folder, controllers=3, replicas=3, gateways=2, base_port=cls._base_port())
        assert isinstance(made, cls)
        return made

    @classmethod
    def _base_port(cls) -> int | None:
        return None

    @contextmanager
    def linked(self) -> Iterator[None]:
        """Meanwhile its processes reach each other."""
        yield

    def prepare(self, lacking: Collection[str]) -> None:
        """Make disks and clocks, as far as they can be had."""
        self._clock = None if capabilities.CLOCK in lacking else clocks.build(self.folder)
        self.disks = {}
        for process in self.processes:
            clocks.set_clock(self.clock_file(process.id), 0)
            self.boot(process.id)
        if capabilities.DISKS not in lacking:
            share_mounts()
            for process in (*self.of_role("controller"), *self.of_role("replica")):
                disk = self.disks[process.id] = PowerDisk(self.data(process.id))
                disk.make()

    def begin_earlier(self, tree: Path) -> None:
        """All of its processes are to run from that source. Goes before ``start``."""
        self.forget_secret()
        self.tree, self.earlier = tree, frozenset(process.id for process in self.processes)

    async def upgrade_half(self) -> None:
        """Every second process changes to the present source, one after the other. Raises ``ConfigError``."""
        for process in self.processes[::2]:
            await trio.to_thread.run_sync(self.terminate, process.id)
            self.change_version(process.id)
            await trio.to_thread.run_sync(self.restart, process.id)
            await self.wait_ready()

    def change_version(self, node: str) -> None:
        """That process is of the other version when it starts again."""
        self.earlier ^= {node}

    def clear(self) -> None:
        """Take the disks away."""
        for disk in self.disks.values():
            disk.unmount()
        self.disks = {}

    def data(self, node: str) -> Path:
        """The data directory of a process: the top of its disk."""
        return self.folder / node / "data"

    def is_registered(self, node: str) -> bool:
        """The replica server has said that its present life has begun."""
        return self._is_registered(self.get(node))

    def clock_file(self, node: str) -> Path:
        """Return the file with which ``set_clock`` moves a node's clock."""
        return self.folder / node / "clock"

    def boot(self, node: str) -> None:
        """The host of that process comes up anew: what it had in memory is gone."""
        (self.folder / node / "boot-id").write_text(f"{uuid.uuid4()}\n")

    def lose_power(self, *nodes: str) -> None:
        """Of these hosts, at once. They stay down until ``regain_power``."""
        for node in nodes:
            self.disks[node].lose_power()
        self.kill(*nodes)

    def regain_power(self, *nodes: str) -> None:
        """Mount the disks of these hosts again and give each host a new boot id. Their processes do not run yet."""
        for node in nodes:
            self.disks[node].regain_power()
            self.boot(node)

    def command_prefix(self, process: Process) -> list[str]:
        """Enter its host, take its boot id, load its clock."""
        prefix = super().command_prefix(process)
        if self.disks:
            script = f'mount --bind "$0" {BOOT_ID} && exec "$@"'
            prefix += ["unshare", "--mount", "--propagation", "slave", "--"]
            prefix += ["sh", "-c", script, str(self.folder / process.id / "boot-id")]
        variables: dict[str, str] = {}
        if self._clock:
            variables = {"LD_PRELOAD": str(self._clock), clocks.VARIABLE: str(self.clock_file(process.id))}
        if self.tree:
            variables |= versions.environment(self.tree, earlier=process.id in self.earlier)
        return [*prefix, "env", *(f"{name}={value}" for name, value in variables.items())]

    def _config_lines(self, process: Process) -> Iterator[str]:
        yield from super()._config_lines(process)
        yield SETTINGS.get(process.role, "")


class OwnHosts(ChaosCluster, HostCluster):
    """Each process on a host of its own."""

    @property
    def links(self) -> Links:
        """Bridge and namespaces."""
        return HostLinks(self)


class OneHost(ChaosCluster):
    """All of them on this one, where nothing else can be had: a proxy stands before each, and they know no other
    address of each other."""

    @classmethod
    def _base_port(cls) -> int:
        return free_base_port(PROCESSES)

    @contextmanager
    def linked(self) -> Iterator[None]:
        """Serve the proxies between the processes; see ``ChaosCluster``."""
        self.links = ProxyLinks(lambda: self.processes)
        with self.links.serving():
            yield

    def _config_lines(self, process: Process) -> Iterator[str]:
        if process.role == "replica":
            yield f'advertised_url = "{process.url}"'
        for line in super()._config_lines(process):
            yield line.replace(f'host = "{HOST}"', f'host = "{INSIDE}"')
