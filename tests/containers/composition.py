"""The cluster of ``deploy/docker/compose.yaml`` in containers of podman, which needs no daemon.

Each service of the composition becomes one container, with everything that the composition says of it: image,
environment, volume, networks, ports, user, capabilities, the file system that is read only, and what happens when it
ends."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import tidelog
import trio
import yaml
from running import HEAL_S, until
from tidelog.client.log import Log

COMPOSE = Path(__file__).resolve().parents[2] / "deploy" / "docker" / "compose.yaml"
KNOWN = {
    *("build", "cap_drop", "environment", "image", "init", "networks", "ports", "read_only", "restart"),
    *("security_opt", "stop_grace_period", "tmpfs", "ulimits", "volumes"),
}
"""What a service of the composition may say. Anything else would be overlooked."""
MOST_PROCESSES = 4096


def limits(files: int | None = None) -> list[str]:
    """Return the flags that bound a container to so many open files, at most to as many as this process may open:
    podman's own bounds may be more than this process may grant."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = hard if files is None else min(hard, files)
    return ["--ulimit", f"nofile={most}:{most}", "--ulimit", f"nproc={MOST_PROCESSES}:{MOST_PROCESSES}"]


def run_flags(name: str, service: dict[str, Any], project: str) -> list[str]:
    """Return the flags with which podman runs a service of a composition. Fails if the service has a key that is not
    known here."""
    assert service.keys() <= KNOWN, f"{name}: nothing is made of {service.keys() - KNOWN}"
    flags = ["--name", name, "--hostname", name, "--restart", service["restart"]]
    flags += ["--stop-timeout", service["stop_grace_period"].removesuffix("s")]
    flags += limits(service.get("ulimits", {}).get("nofile", {}).get("hard"))
    flags += ["--init"] if service["init"] else []
    flags += ["--read-only"] if service["read_only"] else []
    for flag, values in {
        "--tmpfs": service["tmpfs"],
        "--cap-drop": service["cap_drop"],
        "--security-opt": [option.removesuffix(":true") for option in service["security_opt"]],
        "--network": [f"{project}_{network}" for network in service["networks"]],
        "--env": [f"{variable}={value}" for variable, value in service["environment"].items()],
        "--volume": [f"{project}_{volume}" for volume in service.get("volumes", [])],
        "--publish": service.get("ports", []),
    }.items():
        flags += [word for value in values for word in (flag, value)]
    return [*flags, service["image"]]


class Podman:
    """Podman with images and containers below one folder."""

    def __init__(self, flags: list[str]) -> None:
        self.command = ["podman", *flags, "--runtime", "runc"]

    def run(self, *arguments: str, stdin: bytes | None = None) -> str:
        """Run podman and return its output. Raises ``RuntimeError`` with what it complains about if it fails."""
        done = subprocess.run([*self.command, *arguments], input=stdin, capture_output=True, check=False)
        if done.returncode:
            raise RuntimeError(f"podman {' '.join(arguments)}: {done.stderr.decode().strip()}")
        return (done.stderr if arguments[0] == "logs" else b"").decode() + done.stdout.decode()

    def state(self, name: str) -> dict[str, Any]:
        """Return what podman knows of the state of a container."""
        (found,) = json.loads(self.run("inspect", name))
        state: dict[str, Any] = found["State"]
        return state

    def kill(self, name: str) -> int:
        """End the first process of a container by SIGKILL, and with it all others, and return its pid."""
        pid = int(self.state(name)["Pid"])
        os.kill(pid, signal.SIGKILL)
        return pid

    async def comes_back(self, name: str, ended: int) -> None:
        """Wait until a container runs whose first process was ``ended``."""

        async def runs() -> bool:
            state = await trio.to_thread.run_sync(self.state, name)
            return bool(state["Running"]) and state["Pid"] not in (0, ended)

        await until(runs)

    def is_ready(self, name: str) -> bool:
        """Return whether the service in a container is ready, as its image can ask."""
        asking = [*self.command, "exec", name, "python", "-m", "tidelog.probe", "--ready"]
        return subprocess.run(asking, capture_output=True, check=False).returncode == 0

    async def wait_ready(self, name: str) -> None:
        """Wait until the service in a container is ready."""
        await until(partial(trio.to_thread.run_sync, self.is_ready, name))

    def drop_all(self) -> None:
        """Remove all containers, with their volumes and networks."""
        self.run("rm", "--all", "--force", "--time", "0")
        self.run("volume", "prune", "--force")
        self.run("network", "prune", "--force")


class Composition:
    """The cluster of the composition. ``gateways``: the URLs at which this machine reaches its gateways."""

    def __init__(self, podman: Podman) -> None:
        document = yaml.safe_load(COMPOSE.read_text())
        self.podman = podman
        self.project: str = document["name"]
        self.networks: dict[str, dict[str, Any]] = document["networks"]
        self.services: dict[str, dict[str, Any]] = document["services"]
        ports = [port.split(":") for service in self.services.values() for port in service.get("ports", [])]
        self.gateways = [f"ws://{host}:{port}" for host, port, _ in ports]

    def up(self) -> None:
        """Make the networks, and start a container of each service. Volumes are made as they are named."""
        for network, options in self.networks.items():
            internal = ["--internal"] if options.get("internal") else []
            self.podman.run("network", "create", *internal, f"{self.project}_{network}")
        for name, service in self.services.items():
            self.podman.run("run", "--detach", *run_flags(name, service, self.project))

    def of_role(self, role: str) -> list[str]:
        """Return the names of the containers of a role: ``controller``, ``replica`` or ``gateway``."""
        return [name for name, one in self.services.items() if one["image"].startswith(f"tidelog/{role}:")]

    def replica_folders(self) -> dict[str, Path]:
        """The folder of each replica server's records: that of its volume."""
        inspect = ("volume", "inspect", "--format", "{{.Mountpoint}}")
        return {
            name: Path(self.podman.run(*inspect, f"{self.project}_{name}").strip())
            for name in self.of_role("replica")
        }

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Log]:
        """A client that knows all gateways."""
        async with tidelog.connect(self.gateways, connect_timeout_s=HEAL_S, request_timeout_s=HEAL_S) as log:
            yield log
