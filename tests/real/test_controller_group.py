"""The group of controllers as real processes: orderly stop, growth to five and back, a disk that is lost."""

from __future__ import annotations

import pytest
import trio
from controller_processes import START_S, Controllers
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


async def quorum(controllers: Controllers, node: str) -> QuorumAnswer:
    async with controllers.link(node) as link:
        answer = await link.call(DescribeQuorum(), START_S)
        assert isinstance(answer, QuorumAnswer)
        return answer


async def wait_votes(controllers: Controllers, node: str, voters: set[str]) -> None:
    """Until ``node`` says that exactly these vote, each with the store that it has."""
    with trio.fail_after(START_S):
        while True:
            told = (await quorum(controllers, node)).controllers
            if {one.node for one in told if one.voter and not one.lost} == voters:
                return


async def test_the_active_controller_that_is_stopped_hands_over_first(controllers: Controllers) -> None:
    first = await controllers.wait_active(["c1", "c2", "c3"], {})
    others = [node for node in controllers.nodes if node != first]
    term = (await quorum(controllers, first)).term
    after = {node: len(controllers.nodes[node].events) for node in others}
    assert await controllers.nodes[first].stop() == 0
    second = await controllers.wait_active(others, after)
    assert (await quorum(controllers, second)).term == term + 1
    roles = [
        e["role"] for e in controllers.nodes[second].events[after[second] :] if e["event"] == "raft_role_changed"
    ]
    assert roles == ["candidate", "leader"], "told to stand: no time-out ended, no pre-vote was needed"


async def test_three_controllers_become_five_and_three_again(controllers: Controllers) -> None:
    first = await controllers.wait_active(["c1", "c2", "c3"], {})
    controllers.lay_out("c4", "c5", join=True)
    await controllers.start("c4", "c5")
    async with controllers.link(first, "replica", "r1") as link:
        await link.call(Register("r1", "ws://r1"), START_S)
    voters = {"c1", "c2", "c3"}
    for new in ("c4", "c5"):
        voters = voters | {new}
        async with controllers.link(first) as link:
            await link.call(AddController(new, controllers.urls[new]), START_S)
        await wait_votes(controllers, first, voters)
    async with controllers.link(first) as link:
        await link.call(CreateTopic("grown"), START_S)
        for old in [node for node in ("c1", "c2", "c3") if node != first][:2]:
            await link.call(RemoveController(old), START_S)
            voters = voters - {old}
            await controllers.nodes[old].kill()
        with pytest.raises(BrokerError, match="UNKNOWN_CONTROLLER"):
            await link.call(RemoveController("c9"), START_S)
    left = sorted(voters - {first})
    assert left == ["c4", "c5"]
    after = {node: len(controllers.nodes[node].events) for node in left}
    await controllers.nodes[first].kill()
    active = await controllers.wait_active(left, after)
    async with controllers.link(active) as link:
        with pytest.raises(BrokerError, match="TOPIC_EXISTS"):
            await link.call(CreateTopic("grown"), START_S)


@pytest.mark.parametrize("damage", ["missing", "garbage"])
async def test_a_controller_that_lost_its_disk_has_no_vote_until_it_is_added_again(
    controllers: Controllers, damage: str
) -> None:
    first = await controllers.wait_active(["c1", "c2", "c3"], {})
    lost, other = (node for node in controllers.nodes if node != first)
    await controllers.nodes[lost].kill()
    for path in (controllers.folder / lost).glob("raft.db*"):
        path.unlink() if damage == "missing" else path.write_bytes(b"garbage " * 1000)
    await controllers.start(lost)
    await controllers.nodes[lost].wait_event("raft_store_lost" if damage == "missing" else "raft_store_damaged")
    assert len(list((controllers.folder / lost).glob("raft.db.damaged-1"))) == (damage == "garbage")
    await controllers.nodes[first].wait_event("controller_store_lost")
    assert [one.node for one in (await quorum(controllers, first)).controllers if one.lost] == [lost]

    await controllers.nodes[other].kill()
    after = len(controllers.nodes[first].events)
    await controllers.nodes[first].wait_event("controller_stepped_down", after)
    await controllers.start(other)
    again = await controllers.wait_active([first, other], {first: after, other: len(controllers.nodes[other].events)})
    async with controllers.link(again) as link:
        await link.call(AddController(lost, controllers.urls[lost]), START_S)
    await wait_votes(controllers, again, {"c1", "c2", "c3"})
