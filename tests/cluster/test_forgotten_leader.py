"""A controller that is told of a time before the present leader was in the group still answers that leader."""

from __future__ import annotations

import shutil
from pathlib import Path

import tidelog
import trio
from tidelog.client.log import Log
from tidelog_controller.config import ControllerSettings
from tidelog_controller.raft.settings import RaftSettings

from cluster.harness import running

SNAPSHOT_THRESHOLD = 30
QUICK = {"settings": ControllerSettings(raft=RaftSettings(snapshot_threshold=SNAPSHOT_THRESHOLD))}


async def wait_voters(log: Log, wanted: set[str]) -> str:
    """Until these have a vote; who is active then."""
    with trio.fail_after(30):
        while True:
            quorum = await log.cluster.quorum()
            if {one.node for one in quorum.controllers if one.voter and not one.lost} == wanted:
                return quorum.active


async def test_a_new_store_catches_up_from_a_leader_that_its_snapshot_does_not_know(tmp_path: Path) -> None:
    nodes = {"c1", "c2", "c3"}
    async with (
        running(tmp_path, controllers=3, replicas=1, settings=dict.fromkeys(nodes, QUICK)) as cluster,
        tidelog.connect(cluster.gateway) as log,
    ):
        first = await wait_voters(log, nodes)
        returned, wiped = sorted(nodes - {first})
        await cluster.stop(returned)
        await log.cluster.remove_controller(returned)
        for number in range(SNAPSHOT_THRESHOLD):
            await log.topics.create(
                f"t{number}", partitions=1, replication_factor=1, config={"min_insync_replicas": "1"}
            )

        shutil.rmtree(tmp_path / returned)
        await cluster.start(returned)
        await log.cluster.add_controller(returned, cluster.controllers[returned])
        await wait_voters(log, nodes)
        await cluster.stop(wiped)
        while (active := (await log.cluster.quorum()).active) != returned:
            await cluster.stop(active)
            await cluster.start(active)

        shutil.rmtree(tmp_path / wiped)
        await cluster.start(wiped)
        await wait_voters(log, nodes - {wiped})
        await log.cluster.add_controller(wiped, cluster.controllers[wiped])
        assert await wait_voters(log, nodes) == returned
