"""Incidents of replica servers that come and go, so that leaders change again and again."""

from __future__ import annotations

import trio
from incidents.incident import ClusterPlan, Incident
from incidents.stage import Stage

QUICK_BALANCE = """
[settings.balance]
leader_imbalance_check_interval_s = 1
leader_min_term_s = 1
leader_imbalance_percentage = 0
"""
"""Settings of the controllers with which leaderships return to a server within a second or two."""
LEAD_S = 2.5
"""Most seconds for which a server that is killed again and again may run until it leads again."""
PLAN = ClusterPlan(settings={"controller": QUICK_BALANCE})


async def crash_again_and_again(stage: Stage) -> None:
    """Kill a server that leads, start it again, and so on, as when its memory does not suffice."""
    node = stage.facts["flapping"] = await stage.leader(stage.topic)

    async def loop() -> None:
        while True:
            await stage.kill(node)
            await trio.sleep(stage.random.uniform(0.8, 1.2))
            await stage.start(node)
            await stage.until(lambda: _serves(stage, node), f"{node} is live")
            with trio.move_on_after(LEAD_S):
                await stage.until(lambda: _leads(stage, node), f"{node} leads")

    stage.begin("flapping", loop)


async def run_on(stage: Stage) -> None:
    """Let the server run."""
    await stage.end("flapping")
    await stage.start(stage.facts["flapping"])


async def freeze_leader(stage: Stage) -> None:
    """Freeze a server that leads again and again."""
    _freeze(stage, await stage.leader(stage.topic))


async def freeze_follower(stage: Stage) -> None:
    """Have the topic need all of its replicas in sync, and freeze the server of a follower again and again."""
    await stage.log.topics.alter(stage.topic, {"min_insync_replicas": 3})
    partition = await stage.partition(stage.topic)
    _freeze(stage, stage.random.choice([node for node in partition.replicas if node != partition.leader]))


def _freeze(stage: Stage, node: str) -> None:
    """Stop the process of a server for some seconds, let it go on, and so on, as on a host that swaps."""
    stage.facts["flapping"] = node

    async def loop() -> None:
        while True:
            await stage.do(stage.cluster.pause, node)
            await trio.sleep(stage.random.uniform(3.6, 4.4))
            await stage.do(stage.cluster.resume, node)
            await stage.until(lambda: _serves(stage, node), f"{node} is live")
            await trio.sleep(stage.random.uniform(1.0, 2.0))

    stage.begin("flapping", loop)


async def thaw(stage: Stage) -> None:
    """Let the server run."""
    await stage.end("flapping")
    await stage.do(stage.cluster.resume, stage.facts["flapping"])


async def thaw_follower(stage: Stage) -> None:
    """Let the server run, and have the topic need two replicas in sync."""
    await thaw(stage)
    await stage.log.topics.alter(stage.topic, {"min_insync_replicas": 2})


async def _leads(stage: Stage, node: str) -> bool:
    """Return whether a server leads the first partition of the topic."""
    return (await stage.partition(stage.topic)).leader == node


async def _serves(stage: Stage, node: str) -> bool:
    """Return whether the metadata show a server as live, and the log of its present process its registration."""
    live = {server.node for server in (await stage.status()).servers if not server.fenced}
    return node in live and await stage.do(stage.cluster.is_registered, node)


SYMPTOM = "The leader of a partition changes every few seconds, and sends wait each time."
INCIDENTS = (
    Incident(
        name="leader-flapping",
        symptom=SYMPTOM,
        cause="server-restarting",
        plant=crash_again_and_again,
        mend=run_on,
        twin="leader-freezing",
        plan=PLAN,
        strikes=frozenset({"servers"}),
        metric="tidelog_fences_total",
        alert="TidelogServersUnsteady",
    ),
    Incident(
        name="leader-freezing",
        symptom=SYMPTOM,
        cause="server-unsteady",
        plant=freeze_leader,
        mend=thaw,
        plan=PLAN,
        strikes=frozenset({"servers"}),
        metric="tidelog_fences_total",
        alert="TidelogServersUnsteady",
    ),
    Incident(
        name="min-in-sync-unsteady",
        symptom="Sends to one topic are refused with NOT_ENOUGH_REPLICAS, while all its partitions have leaders.",
        cause="server-unsteady",
        plant=freeze_follower,
        mend=thaw_follower,
        strikes=frozenset({"topic", "servers"}),
        alert="TidelogServersUnsteady",
    ),
)
