"""Incidents of the controllers: a majority of them is lost."""

from __future__ import annotations

import shutil

from incidents.incident import Incident
from incidents.stage import Stage


def _two(stage: Stage) -> list[str]:
    """Draw a majority of the three controllers."""
    return stage.random.sample([process.id for process in stage.cluster.of_role("controller")], 2)


async def kill_majority(stage: Stage) -> None:
    """Kill two of the three controllers."""
    stage.facts["controllers"] = lost = _two(stage)
    await stage.kill(*lost)


async def start_majority(stage: Stage) -> None:
    """Start them again."""
    await stage.start(*stage.facts["controllers"])


async def restore_old_disk(stage: Stage) -> None:
    """Put an old copy of its disk into one controller, as a snapshot of its machine that is restored does, while
    another one is down. The third has no majority without what the one that is down has acknowledged."""
    active = (await stage.log.cluster.quorum()).active
    others = [process.id for process in stage.cluster.of_role("controller") if process.id != active]
    stage.random.shuffle(others)
    old, gone = others
    data = stage.cluster.data(old)
    copy = data.with_name("data.copy")
    await stage.kill(old)
    await stage.do(shutil.copytree, data, copy)
    await stage.start(old)
    for _ in range(3):
        name = await stage.make_topic()

    async def follows() -> bool:
        quorum = await stage.log.cluster.quorum()
        return {one.node: one.match for one in quorum.controllers}[old] >= quorum.commit_index

    await stage.until(follows, f"{old} has acknowledged {name}")
    await stage.kill(old)
    await stage.do(shutil.rmtree, data)
    copy.rename(data)
    stage.facts["controller"] = gone
    await stage.kill(gone)
    await stage.start(old)


async def return_disk(stage: Stage) -> None:
    """Start the controller that was down."""
    await stage.start(stage.facts["controller"])


SYMPTOM = "'tidelog topics create' does not answer, while records still come and go."
INCIDENTS = (
    Incident(
        name="controllers-lost",
        symptom=SYMPTOM,
        cause="controllers-without-majority",
        plant=kill_majority,
        mend=start_majority,
        twin="controller-disk-restored",
        strikes=frozenset({"controllers"}),
        metric="tidelog_replica_session_lapsed_seconds",
        alert="TidelogNoActiveController",
        unready="gateway",
    ),
    Incident(
        name="controller-disk-restored",
        symptom=SYMPTOM,
        cause="controller-disks-needed",
        plant=restore_old_disk,
        mend=return_disk,
        strikes=frozenset({"controllers"}),
        alert="TidelogControllerRolledBack",
        unready="controller",
    ),
)
