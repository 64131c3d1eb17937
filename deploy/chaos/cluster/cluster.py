"""The cluster that faults strike: each process has a host, a disk, a boot id and a clock of its own, as far as the
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
"""Seconds without a heartbeat after which the controllers fence a replica server: the default."""
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
    """A local cluster to which faults can be done: it adds disks, boot ids, clocks, links and versions. Call
    ``prepare`` before ``start``, and ``clear`` after ``stop``."""

    disks: dict[str, PowerDisk]
    links: Links
    tree: Path | None = None
    """The folder with the source of an earlier version; None if all processes run the present source."""
    earlier: frozenset[str] = frozenset()
    """Ids of the processes that run from the earlier source."""

    @classmethod
    def make(cls, folder: Path) -> Self:
        """Create a cluster of three controllers, three replica servers and two gateways in ``folder``, without
        starting it."""
        made = cls.create(folder, controllers=3, replicas=3, gateways=2, base_port=cls._base_port())
        assert isinstance(made, cls)
        return made

    @classmethod
    def _base_port(cls) -> int | None:
        return None

    @contextmanager
    def linked(self) -> Iterator[None]:
        """Return a context manager inside which the processes can reach each other."""
        yield

    def prepare(self, lacking: Collection[str]) -> None:
        """Build the clock library, and give every process a clock, a boot id and (controllers and replica servers) a
        mounted disk. Capabilities in ``lacking`` are left out."""
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
        """Make all processes run from the source in ``tree`` when they start. Call it before ``start``."""
        self.forget_secret()
        self.tree, self.earlier = tree, frozenset(process.id for process in self.processes)

    async def upgrade_half(self) -> None:
        """Stop every second process and start it with the present source, one after the other, each when the cluster
        is ready again. Raises ``ConfigError`` if it does not get ready."""
        for process in self.processes[::2]:
            await trio.to_thread.run_sync(self.terminate, process.id)
            self.change_version(process.id)
            await trio.to_thread.run_sync(self.restart, process.id)
            await self.wait_ready()

    def change_version(self, node: str) -> None:
        """Make a process run the other of the two versions when it is started next."""
        self.earlier ^= {node}

    def clear(self) -> None:
        """Unmount all disks and delete their images."""
        for disk in self.disks.values():
            disk.unmount()
        self.disks = {}

    def data(self, node: str) -> Path:
        """Return the data directory of a process, which is the mount point of its disk."""
        return self.folder / node / "data"

    def is_registered(self, node: str) -> bool:
        """Return whether the running replica server has logged that the controllers have registered it."""
        return self._is_registered(self.get(node))

    def clock_file(self, node: str) -> Path:
        """Return the file with which ``set_clock`` sets the clock of a process."""
        return self.folder / node / "clock"

    def boot(self, node: str) -> None:
        """Give the host of a process a new boot id, as after a restart of the host that lost its memory."""
        (self.folder / node / "boot-id").write_text(f"{uuid.uuid4()}\n")

    def lose_power(self, *nodes: str) -> None:
        """Cut the power of these hosts at once: their disks drop all writes that were not synced, and their processes
        are killed. They stay down until ``regain_power``."""
        for node in nodes:
            self.disks[node].lose_power()
        self.kill(*nodes)

    def regain_power(self, *nodes: str) -> None:
        """Mount the disks of these hosts again and give each host a new boot id. Their processes do not run yet."""
        for node in nodes:
            self.disks[node].regain_power()
            self.boot(node)

    def command_prefix(self, process: Process) -> list[str]:
        """Return the command line that starts a process on its host: in its network namespace, with its boot id, its
        clock and its version, as far as these exist."""
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
    """A cluster each of whose processes runs on a host (network namespace) of its own."""

    @property
    def links(self) -> Links:
        """The links between the hosts, over a bridge."""
        return HostLinks(self)


class OneHost(ChaosCluster):
    """A cluster whose processes all run on this host, for machines that allow nothing else. A proxy stands before
    each process, and the processes know each other only by the addresses of the proxies."""

    @classmethod
    def _base_port(cls) -> int:
        return free_base_port(PROCESSES)

    @contextmanager
    def linked(self) -> Iterator[None]:
        """Run the proxies between the processes during the block."""
        self.links = ProxyLinks(lambda: self.processes)
        with self.links.serving():
            yield

    def _config_lines(self, process: Process) -> Iterator[str]:
        if process.role == "replica":
            yield f'advertised_url = "{process.url}"'
        for line in super()._config_lines(process):
            yield line.replace(f'host = "{HOST}"', f'host = "{INSIDE}"')
