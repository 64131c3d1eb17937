"""``make images-check``: the images that were built are run, and lose containers.

The cluster of ``deploy/docker/compose.yaml`` runs in containers of podman, without a daemon. It takes records all the
time, while containers are lost one after the other: the first process of each is ended by SIGKILL, and the container
comes back as the composition says. At the end every acked record is on every replica, once, in the same bytes, and a
consumer has seen each once. The image for a trial takes a record, loses its container, and has the record.

Everything runs in network, mount and process namespaces of its own, which end with the program; root is needed.
Exit code 0: all held."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "deploy"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "real"))
from chaos.cluster.network_namespaces import enter_own_network, run
from composition import Composition, Podman, limits
from images.build import ROOT, TARGETS, VERSION, name_of, storage_flags
from load import Load, flowing
from running import HEAL_S, until
from tidelog.cli.local.readiness import wait_ready

NEEDED = {
    **{name: name for name in ("podman", "runc", "aardvark-dns", "netavark", "iptables", "catatonit")},
    "ip": "iproute2",
}
"""Commands, and the packages of Debian that have them."""
PATH = "/usr/sbin:/usr/lib/podman:/usr/libexec/podman"
"""Where those of podman's own are."""
TRIAL_PORT = 9494
USER = "10001"
OWN = ("/run", "/dev/shm", "/var/cache/containers", "/etc/containers/networks")
"""Folders in which podman writes besides its storage. Here they are empty ones that nobody else sees."""


def missing() -> list[str]:
    """Return the packages that are needed and not installed."""
    return [package for name, package in NEEDED.items() if not (shutil.which(name) or shutil.which(name, path=PATH))]


def show(text: str) -> None:
    """Print a line of the report at once."""
    print(f"  {text}", flush=True)


def check_images(podman: Podman) -> None:
    """Compare every image with its name and version, and see what its process may do."""
    for target in TARGETS:
        (image,) = json.loads(podman.run("image", "inspect", f"{name_of(target)}:{VERSION}"))
        labels = image["Labels"]
        assert labels["org.opencontainers.image.title"] == name_of(target)
        assert labels["org.opencontainers.image.version"] == VERSION
        assert labels["org.opencontainers.image.revision"] or not (ROOT / ".git").exists()
        assert f"localhost/{name_of(target)}:latest" in image["RepoTags"]
        show(f"{name_of(target)}:{VERSION}  {image['Size'] / 1e6:.0f} MB")


def check_confined(podman: Podman, name: str) -> None:
    """A service has no rights, and can write nowhere but to its volume."""
    lines = podman.run("exec", name, "cat", "/proc/1/status").splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    assert status["Uid"].split() == [USER] * 4
    assert int(status["CapEff"], 16) == 0 and status["NoNewPrivs"] == "1"
    for folder in ("/", "/opt/tidelog"):
        written = subprocess.run(
            [*podman.command, "exec", name, "touch", f"{folder}/x"], capture_output=True, text=True, check=False
        )
        assert "Read-only file system" in written.stderr, written.stderr


async def answers(podman: Podman, name: str, url: str) -> None:
    """Wait until the gateway in a container sees three replica servers. Fails with the container's log if it ends."""

    def ended() -> None:
        assert podman.state(name)["Running"], podman.run("logs", name)

    with trio.fail_after(HEAL_S):
        await wait_ready(url, 3, check=ended)


async def lose(load: Load, podman: Podman, name: str, what: str) -> None:
    """End a container by SIGKILL, and wait until it is back and everything is in sync."""
    load.begin_fault()
    ended = podman.kill(name)
    await podman.comes_back(name, ended)
    await podman.wait_ready(name)
    await load.heal()
    show(f"{name} ({what}) was lost by SIGKILL and is back; longest wait for an ack {load.longest_gap():.1f} s")


async def check_cluster(composition: Composition) -> None:
    """The cluster loses containers, and no record."""
    podman = composition.podman
    for name, url in zip(composition.of_role("gateway"), composition.gateways, strict=True):
        await answers(podman, name, url)
    for name in composition.services:
        await podman.wait_ready(name)
        podman.run("healthcheck", "run", name)
        check_confined(podman, name)
    show(f"{len(composition.services)} containers are ready, with no rights")
    async with flowing(composition, "kept") as load:  # type: ignore[arg-type]
        await lose(load, podman, await load.leader(), "a leader")
        await lose(load, podman, (await load.log.cluster.quorum()).active, "the active controller")
        await lose(load, podman, composition.of_role("gateway")[0], "a gateway")
    show(f"{len(load.acked)} records were acked; all are on every replica and were consumed, once")
    for name in composition.services:
        began = time.monotonic()
        podman.run("stop", name)
        code = podman.state(name)["ExitCode"]
        assert code == 0, f"{name} ended with exit code {code}"
        show(f"{name} stopped in order in {time.monotonic() - began:.1f} s")


async def check_trial(podman: Podman) -> None:
    """The image for a trial: as docs/deployment.md runs it, but with other ports."""
    image = f"{name_of('tidelog')}:{VERSION}"
    assert podman.run("run", "--rm", *limits(), "--network", "none", image, "--version").split()[-1] == VERSION
    publish = ("--publish", f"127.0.0.1:{TRIAL_PORT}:9292", "--volume", "trial:/var/lib/tidelog")
    podman.run("run", "--detach", "--name", "trial", *limits(), "--read-only", "--tmpfs", "/tmp", *publish, image)
    await answers(podman, "trial", f"ws://127.0.0.1:{TRIAL_PORT}")
    podman.run("exec", "trial", "tidelog", "topics", "create", "hello")
    podman.run("exec", "--interactive", "trial", "tidelog", "produce", "hello", stdin=b"from nothing\n")
    podman.kill("trial")

    async def ended() -> bool:
        return not (await trio.to_thread.run_sync(podman.state, "trial"))["Running"]

    await until(ended)
    podman.run("start", "trial")
    await answers(podman, "trial", f"ws://127.0.0.1:{TRIAL_PORT}")
    said = podman.run("exec", "trial", "tidelog", "consume", "hello", "--from", "earliest", "--to-end")
    assert said == "from nothing\n", said
    podman.run("stop", "trial")
    assert podman.state("trial")["ExitCode"] == 0
    show("the image for a trial has its record after SIGKILL, and stops in order")


def main() -> int:
    """Exit code 0: all held; 2: something that is needed is not here."""
    parser = argparse.ArgumentParser(prog="make images-check", description=__doc__)
    parser.add_argument("--storage", type=Path, required=True, help="folder in which the images were built")
    storage = parser.parse_args().storage.resolve()
    if missing():
        print(f"images cannot be run here: apt-get install {' '.join(missing())}", file=sys.stderr)
        return 2
    enter_own_network()
    run("mount", "--make-rprivate", "/")
    for folder in OWN:
        Path(folder).mkdir(parents=True, exist_ok=True)
        run("mount", "-t", "tmpfs", "tmpfs", folder)
    run("ip", "link", "set", "lo", "up")
    podman = Podman(storage_flags(storage))
    began = time.monotonic()
    podman.drop_all()
    try:
        check_images(podman)
        composition = Composition(podman)
        composition.up()
        trio.run(check_cluster, composition)
        trio.run(check_trial, podman)
    finally:
        podman.drop_all()
    print(f"nothing was lost; {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
