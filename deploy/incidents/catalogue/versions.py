"""Incidents of upgrades: one server was forgotten; its twin is an upgrade whose last step was forgotten."""

from __future__ import annotations

from collections.abc import Iterable

from incidents.incident import ClusterPlan, Incident
from incidents.stage import Stage


async def _upgrade(stage: Stage, nodes: Iterable[str]) -> None:
    """Restart these processes with the present release, one by one, as docs/upgrade.md says."""
    for node in nodes:
        stage.cluster.upgraded |= {node}
        await stage.do(stage.cluster.terminate, node)
        await stage.start(node)
        await stage.cluster.wait_ready()
    await stage.in_sync()


async def forget_a_server(stage: Stage) -> None:
    """Upgrade all processes but one replica server."""
    forgotten = stage.facts["versions.forgotten"] = stage.random.choice(stage.servers())
    await _upgrade(stage, [process.id for process in stage.cluster.processes if process.id != forgotten])


async def upgrade_it(stage: Stage) -> None:
    """Upgrade it, too, and end the upgrade."""
    await _upgrade(stage, [stage.facts["versions.forgotten"]])
    await end_upgrade(stage)


async def forget_to_raise(stage: Stage) -> None:
    """Upgrade all processes, and do not raise the feature level."""
    await _upgrade(stage, [process.id for process in stage.cluster.processes])


async def end_upgrade(stage: Stage) -> None:
    """Raise the feature level, as the doctor says."""
    done = await stage.tidelog("features", "raise")
    assert done.returncode == 0, done.stderr.decode()


SYMPTOM = "What the new release can do is refused, though the upgrade is said to be done."
PLAN = ClusterPlan(controllers=1, earlier=True)
INCIDENTS = (
    Incident(
        name="version-mismatch",
        symptom=SYMPTOM,
        cause="versions-mixed",
        plant=forget_a_server,
        mend=upgrade_it,
        twin="upgrade-not-ended",
        plan=PLAN,
        strikes=frozenset({"servers", "controllers", "versions"}),
        alert="TidelogVersionsMixed",
    ),
    Incident(
        name="upgrade-not-ended",
        symptom=SYMPTOM,
        cause="feature-level-not-raised",
        plant=forget_to_raise,
        mend=end_upgrade,
        plan=PLAN,
        strikes=frozenset({"servers", "controllers", "versions"}),
    ),
)
