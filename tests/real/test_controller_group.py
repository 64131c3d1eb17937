"""The group of controllers as real processes: orderly stop, growth to five and back, a disk that is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from test_controller_process import START_S, Cluster
from tidelog.errors import BrokerError
from tidelog.wire.messages import (
    AddController,
    CreateTopic,
    DescribeQuorum,
    QuorumAnswer,
    Register,
    RemoveController,
)

pytestmark = pytest.mark.real


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with trio.open_nursery() as nursery:
        cluster = Cluster(tmp_path, nursery)
        try:
            await cluster.start("c1", "c2", "c3")
            yield cluster
        finally:
            with trio.CancelScope(shield=True):
                for process in cluster.nodes.values():
                    await process.kill()
            nursery.cancel_scope.cancel()


async def quorum(cluster: Cluster, node: str) -> QuorumAnswer:
    async with cluster.link(node) as link:
        answer = await link.call(DescribeQuorum(), START_S)
        assert isinstance(answer, QuorumAnswer)
        return answer


async def wait_votes(cluster: Cluster, node: str, voters: set[str]) -> None:
    """Until ``node`` says that exactly these vote, each with the store that it has."""
    with trio.fail_after(START_S):
        while True:
            told = (await quorum(cluster, node)).controllers
            if {one.node for one in told if one.voter and not one.lost} == voters:
                return


async def test_the_active_controller_that_is_stopped_hands_over_first(cluster: Cluster) -> None:
    first = await cluster.wait_active(["c1", "c2", "c3"], {})
    others = [node for node in cluster.nodes if node != first]
    term = (await quorum(cluster, first)).term
    after = {node: len(cluster.nodes[node].events) for node in others}
    assert await cluster.nodes[first].stop() == 0
    second = await cluster.wait_active(others, after)
    assert (await quorum(cluster, second)).term == term + 1
    roles = [e["role"] for e in cluster.nodes[second].events[after[second] :] if e["event"] == "raft_role_changed"]
    assert roles == ["candidate", "leader"], "told to stand: no time-out ended, no pre-vote was needed"


async def test_three_controllers_become_five_and_three_again(cluster: Cluster) -> None:
    first = await cluster.wait_active(["c1", "c2", "c3"], {})
    cluster.lay_out("c4", "c5", join=True)
    await cluster.start("c4", "c5")
    async with cluster.link(first, "replica", "r1") as link:
        await link.call(Register("r1", "ws://r1"), START_S)
    voters = {"c1", "c2", "c3"}
    for new in ("c4", "c5"):
        voters = voters | {new}
        async with cluster.link(first) as link:
            await link.call(AddController(new, cluster.urls[new]), START_S)
        await wait_votes(cluster, first, voters)
    async with cluster.link(first) as link:
        await link.call(CreateTopic("grown"), START_S)
        for old in [node for node in ("c1", "c2", "c3") if node != first][:2]:
            await link.call(RemoveController(old), START_S)
            voters = voters - {old}
            await cluster.nodes[old].kill()
        with pytest.raises(BrokerError, match="UNKNOWN_CONTROLLER"):
            await link.call(RemoveController("c9"), START_S)
    left = sorted(voters - {first})
    assert left == ["c4", "c5"]
    after = {node: len(cluster.nodes[node].events) for node in left}
    await cluster.nodes[first].kill()
    active = await cluster.wait_active(left, after)
    async with cluster.link(active) as link:
        with pytest.raises(BrokerError, match="TOPIC_EXISTS"):
            await link.call(CreateTopic("grown"), START_S)


@pytest.mark.parametrize("damage", ["missing", "garbage"])
async def test_a_controller_that_lost_its_disk_has_no_vote_until_it_is_added_again(
    cluster: Cluster, damage: str
) -> None:
    first = await cluster.wait_active(["c1", "c2", "c3"], {})
    lost, other = (node for node in cluster.nodes if node != first)
    await cluster.nodes[lost].kill()
    for path in (cluster.folder / lost).glob("raft.db*"):
        path.unlink() if damage == "missing" else path.write_bytes(b"garbage " * 1000)
    await cluster.start(lost)
    await cluster.nodes[lost].wait_event("raft_store_lost" if damage == "missing" else "raft_store_damaged")
    assert len(list((cluster.folder / lost).glob("raft.db.damaged-1"))) == (damage == "garbage")
    await cluster.nodes[first].wait_event("controller_store_lost")
    assert [one.node for one in (await quorum(cluster, first)).controllers if one.lost] == [lost]

    await cluster.nodes[other].kill()
    after = len(cluster.nodes[first].events)
    await cluster.nodes[first].wait_event("controller_stepped_down", after)
    await cluster.start(other)
    again = await cluster.wait_active([first, other], {first: after, other: len(cluster.nodes[other].events)})
    async with cluster.link(again) as link:
        await link.call(AddController(lost, cluster.urls[lost]), START_S)
    await wait_votes(cluster, again, {"c1", "c2", "c3"})
