"""``make upgrade-check``: a cluster of an earlier revision is upgraded to the present source under load, forth,
partly back and forth again, and raised. Fails if a produce fails, if what was acked is not on every replica, the same
on all, or if a process of the earlier revision is let in afterwards.

A client of the earlier revision writes before and after the level is raised. Before, every way of writing succeeds.
Afterwards plain batches do, and the errors of the others say that the client must be upgraded."""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import trio
from load import flowing
from running import Cluster, until
from tidelog.cli.local.local_cluster import LocalCluster, Process, free_base_port
from tidelog.client.log import Log
from tidelog.errors import TidelogError
from tidelog.feature_levels import NEWEST, TICKETS

ROOT = Path(__file__).parents[2]
FIRST = "shared/tidelog/levels.py"
"""The last revision without this file knew of no levels."""
SOURCES = ("shared", "services/controller", "services/replica", "services/gateway")


class Mixed(LocalCluster):
    """Processes of two revisions."""

    tree = Path()
    old: frozenset[str] = frozenset()
    """Those that are started from ``tree``."""

    def command_prefix(self, process: Process) -> list[str]:
        """Run processes of the old release with its sources; see ``LocalCluster``."""
        folders = ":".join(str(self.tree / source) for source in SOURCES)
        return ["env", f"PYTHONPATH={folders}"] if process.id in self.old else []


def git(*arguments: str) -> bytes:
    """What git says. Raises ``CalledProcessError``."""
    return subprocess.run(["git", "-C", ROOT, *arguments], check=True, capture_output=True).stdout


def revision(wanted: str) -> str:
    """The earlier revision; by default the last without levels."""
    if not wanted:
        added = git("log", "--diff-filter=A", "--format=%H", "--", FIRST).split()
        wanted = f"{added[-1].decode()}~1" if added else ""
    return git("rev-parse", "--short", f"{wanted}^{{commit}}").decode().strip() if wanted else ""


async def restart(cluster: Cluster, node: str, *, old: bool = False) -> None:
    """End a process in order, and start it from one of the two sources."""
    local = cluster.local
    assert isinstance(local, Mixed)
    await trio.to_thread.run_sync(local.terminate, node)
    local.old = local.old | {node} if old else local.old - {node}
    local.restart(node)
    assert await local.wait_live(node, 60.0), f"{node} is not live: see {local.get(node).log}"
    print(f"  {node} {'back to the earlier' if old else 'to the present'} revision", flush=True)


async def level(log: Log) -> int:
    """At which the cluster is."""
    try:
        return (await log.cluster.features()).level
    except TidelogError as error:
        assert error.code == "UNSUPPORTED", error
        return 1


async def write_by_earlier_client(cluster: Cluster) -> dict[str, str]:
    """What became of each way of writing: ``acked``, or the error (see ``earlier_client.py``)."""
    local = cluster.local
    assert isinstance(local, Mixed)
    program = Path(__file__).parent / "programs" / "earlier_client.py"
    folders = os.pathsep.join(str(local.tree / source) for source in SOURCES)
    done = await trio.run_process(
        [sys.executable, str(program), "earlier", *cluster.gateways],
        env={**os.environ, "PYTHONPATH": folders},
        capture_stdout=True,
    )
    outcomes: dict[str, str] = json.loads(done.stdout)
    print(f"  a client of the earlier revision: {outcomes}", flush=True)
    return outcomes


async def upgrade(cluster: Cluster) -> None:
    """The whole course."""
    order = [process.id for role in ("controller", "replica", "gateway") for process in cluster.local.of_role(role)]
    async with flowing(cluster, "upgraded") as load:
        for node in ("c1", "c2", "r1", "g1"):
            await restart(cluster, node)
            await load.heal()
        for node in ("g1", "r1", "c2", "c1"):
            await restart(cluster, node, old=True)
            await load.heal()
        for node in order:
            await restart(cluster, node)
            await load.heal()
        async with cluster.connect() as log:
            await log.topics.create("earlier", partitions=1, replication_factor=3)
            outcomes = await write_by_earlier_client(cluster)
            assert set(outcomes.values()) == {"acked"}, outcomes
            before = await level(log)

            async def raised() -> bool:
                try:
                    await log.cluster.raise_level(NEWEST)
                except TidelogError as error:
                    print(f"  not yet: {error}", flush=True)  # links to the active controller come up one by one
                return await level(log) == NEWEST

            await until(raised)
            print(f"  feature level {before} -> {NEWEST}", flush=True)
        outcomes = await write_by_earlier_client(cluster)
        assert outcomes.pop("plain") == "acked", outcomes
        if before < TICKETS:
            assert all("must be upgraded" in error for error in outcomes.values()), outcomes
        await load.more()
    print(f"  {len(load.acked)} records acked, all on every replica; longest wait {load.longest_gap():.2f} s")


async def check_refused(local: Mixed, node: str) -> None:
    """A process of the earlier revision does not come in any more."""
    size = Path(local.get(node).log).stat().st_size  # noqa: ASYNC240
    await trio.to_thread.run_sync(local.terminate, node)
    local.old |= {node}
    local.restart(node)

    async def said() -> bool:
        text = (await trio.Path(local.get(node).log).read_bytes())[size:]
        return b"upgrade" in text or b"later version" in text or b"newer version" in text

    await until(said)
    print(f"  {node} of the earlier revision is refused", flush=True)


def main() -> int:
    """Exit code 0 when all held, or where there is no history."""
    parser = argparse.ArgumentParser(prog="make upgrade-check", description=__doc__)
    parser.add_argument("--base", default="", metavar="REVISION", help="default: the last without feature levels")
    try:
        base = revision(parser.parse_args().base)
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        told = getattr(error, "stderr", b"") or str(error).encode()
        print(f"nothing is checked: git does not tell of an earlier revision: {told.decode().strip()}")
        return 0 if not (ROOT / ".git").exists() else 2
    if not base:
        print(f"nothing is checked: the history of this tree does not tell when {FIRST} came; name a BASE")
        return 0
    with tempfile.TemporaryDirectory(prefix="tidelog-upgrade-") as folder:
        tree = Path(folder) / "earlier"
        with tarfile.open(fileobj=io.BytesIO(git("archive", base))) as archive:
            archive.extractall(tree, filter="data")
        local = Mixed.create(Path(folder) / "cluster", gateways=2, base_port=free_base_port(8))
        assert isinstance(local, Mixed)
        local.forget_secret()  # the earlier revision may know no such setting
        local.tree, local.old = tree, frozenset(process.id for process in local.processes)
        print(f"from revision {base} to the present source", flush=True)
        began = time.monotonic()
        try:
            local.start()
            trio.run(local.wait_ready)
            trio.run(upgrade, Cluster(local))
            for node in ("r3", "c3"):
                trio.run(check_refused, local, node)
        finally:
            local.stop()
        print(f"upgraded without a loss, in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
