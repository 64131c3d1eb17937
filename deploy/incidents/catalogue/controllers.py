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


async def lose_stores(stage: Stage) -> None:
    """Kill two of the three controllers, and start them without what they had stored."""
    stage.facts["controllers"] = lost = _two(stage)
    await stage.kill(*lost)
    for node in lost:
        stage.cluster.data(node).rename(stage.cluster.folder / node / "data.lost")
    await stage.start(*lost)


async def return_stores(stage: Stage) -> None:
    """Start them with what they had stored."""
    lost = stage.facts["controllers"]
    await stage.kill(*lost)
    for node in lost:
        shutil.rmtree(stage.cluster.data(node))
        (stage.cluster.folder / node / "data.lost").rename(stage.cluster.data(node))
    await stage.start(*lost)


SYMPTOM = "'tidelog topics create' does not answer, while records still come and go."
INCIDENTS = (
    Incident(
        name="controllers-lost",
        symptom=SYMPTOM,
        cause="controllers-without-majority",
        plant=kill_majority,
        mend=start_majority,
        twin="controller-disks-lost",
        strikes=frozenset({"controllers"}),
        metric="tidelog_replica_session_lapsed_seconds",
        alert="TidelogNoActiveController",
    ),
    Incident(
        name="controller-disks-lost",
        symptom=SYMPTOM,
        cause="controller-disks-needed",
        plant=lose_stores,
        mend=return_stores,
        strikes=frozenset({"controllers"}),
    ),
)
