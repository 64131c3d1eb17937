"""Incidents of the network: two servers of which one cannot connect to the other; its twin is a cut both ways."""

from __future__ import annotations

from functools import partial

from chaos.cluster.proxies import ProxyLinks
from incidents.incident import ClusterPlan, Incident
from incidents.stage import Stage


def _links(stage: Stage) -> ProxyLinks:
    assert stage.links is not None, "the plan has links"
    return stage.links


async def _follower_and_leader(stage: Stage) -> tuple[str, str]:
    """Draw a partition, and return one of its followers and its leader: the follower has a reason to connect."""
    leader = await stage.leader(stage.topic)
    follower = stage.random.choice([node for node in stage.servers() if node != leader])
    return follower, leader


async def _reach_each_other(stage: Stage, follower: str, leader: str) -> None:
    """Let the follower lead a partition that the leader follows: each has a reason to connect to the other."""
    topic = f"{stage.topic}-back"
    await stage.log.topics.create(topic, replication_factor=3, config={"retention_ms": 86_400_000})
    await stage.log.partitions.transfer(topic, 0, follower)
    async with stage.log.producer(topic) as producer:
        await producer.send(b"{}")
    await stage.in_sync()


async def cut_one_way(stage: Stage) -> None:
    """Let a firewall reset what a follower opens towards a leader; the leader may connect to the follower."""
    follower, leader = await _follower_and_leader(stage)
    await _reach_each_other(stage, follower, leader)
    stage.facts["network.ways"] = [([follower], [leader])]
    await stage.do(_links(stage).refuse, [follower], [leader])


async def cut_both_ways(stage: Stage) -> None:
    """Let a firewall reset what the two open towards each other."""
    follower, leader = await _follower_and_leader(stage)
    await _reach_each_other(stage, follower, leader)
    stage.facts["network.ways"] = [([follower], [leader]), ([leader], [follower])]
    for ways in stage.facts["network.ways"]:
        await stage.do(partial(_links(stage).refuse, *ways))


async def mend(stage: Stage) -> None:
    """Let the firewall pass everything again."""
    for ways in stage.facts["network.ways"]:
        await stage.do(partial(_links(stage).admit, *ways))


SYMPTOM = "A replica of some partitions stays out of sync, though every server runs and is registered."
PLAN = ClusterPlan(controllers=1, links=True)
INCIDENTS = (
    Incident(
        name="network-one-way",
        symptom=SYMPTOM,
        cause="network-cut-one-way",
        plant=cut_one_way,
        mend=mend,
        twin="network-both-ways",
        plan=PLAN,
        strikes=frozenset({"network", "servers"}),
        metric="tidelog_replica_peer_unreachable_seconds",
        alert="TidelogServerUnreachable",
    ),
    Incident(
        name="network-both-ways",
        symptom=SYMPTOM,
        cause="network-cut",
        plant=cut_both_ways,
        mend=mend,
        plan=PLAN,
        strikes=frozenset({"network", "servers"}),
        metric="tidelog_replica_peer_unreachable_seconds",
        alert="TidelogServerUnreachable",
    ),
)
