"""The group of controllers as real processes: orderly stop, growth to five and back, a disk that is lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import trio
from controller_processes import START_S, Controllers
from tidelog.errors import BrokerError
from tidelog.net.controller_link import ControllerLink
from tidelog.net.link import Link
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
        return await told_by(link)


async def told_by(controller: Link | ControllerLink) -> QuorumAnswer:
    answer = await controller.call(DescribeQuorum(), START_S)
    assert isinstance(answer, QuorumAnswer)
    return answer


def who_votes(told: QuorumAnswer) -> set[str]:
    """Each with the store that it has."""
    return {one.node for one in told.controllers if one.voter and not one.lost}


async def wait_votes(controller: ControllerLink, voters: set[str]) -> None:
    """Until the active controller says that exactly these vote."""
    with trio.fail_after(START_S):
        while who_votes(await told_by(controller)) != voters:
            pass


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
    """Asked as a gateway asks: a change that a loaded machine has not committed yet is waited for
    (``CHANGE_IN_PROGRESS``: who votes is told from the moment on at which it is in the log), and another controller
    may be the active one at any time."""
    await controllers.wait_active(["c1", "c2", "c3"], {})
    controllers.lay_out("c4", "c5", join=True)
    await controllers.start("c4", "c5")
    voters = {"c1", "c2", "c3"}
    async with controllers.active("replica", "r1") as controller:
        await controller.call(Register("r1", "ws://r1"), START_S)
    async with controllers.active() as controller:
        for new in ("c4", "c5"):
            voters |= {new}
            await controller.call(AddController(new, controllers.urls[new]), START_S)
            await wait_votes(controller, voters)
        await controller.call(CreateTopic("grown"), START_S)
        for _ in range(2):
            active = (await told_by(controller)).active
            old = min(voters - {active})
            await controller.call(RemoveController(old), START_S)
            voters -= {old}
            await controllers.nodes[old].kill()
        with pytest.raises(BrokerError, match="UNKNOWN_CONTROLLER"):
            await controller.call(RemoveController("c9"), START_S)
        told = await told_by(controller)
        assert who_votes(told) == voters and len(voters) == 3
        await controllers.nodes[told.active].kill()
        with pytest.raises(BrokerError, match="TOPIC_EXISTS"):
            await controller.call(CreateTopic("grown"), START_S)


def spoil(folder: Path, damage: str) -> None:
    """Harm the store of a controller that was killed."""
    if damage == "one bit":
        with (folder / "raft.db-wal").open("r+b") as wal:
            wal.seek(40)
            byte = wal.read(1)[0]
            wal.seek(40)
            wal.write(bytes([byte ^ 1]))
        return
    for path in folder.glob("raft.db*"):
        path.unlink() if damage == "missing" else path.write_bytes(b"garbage " * 1000)


@pytest.mark.parametrize("damage", ["missing", "garbage", "one bit"])
async def test_a_controller_that_lost_its_disk_has_no_vote_until_it_is_added_again(
    controllers: Controllers, damage: str
) -> None:
    """It is filled anew by the others when it is added, and all that was acknowledged is there with its vote. One
    bit: the WAL's first frame is then the first bad one, behind which SQLite finds nothing."""
    first = await controllers.wait_active(["c1", "c2", "c3"], {})
    topics = [f"t{number}" for number in range(5)]
    async with controllers.active("replica", "r1") as controller:
        await controller.call(Register("r1", "ws://r1"), START_S)
    async with controllers.active() as controller:
        for topic in topics:
            await controller.call(CreateTopic(topic), START_S)
        first = (await told_by(controller)).active
    lost = next(node for node in controllers.nodes if node != first)
    await controllers.nodes[lost].kill()
    spoil(controllers.folder / lost, damage)
    await controllers.start(lost)
    await controllers.nodes[lost].wait_event("raft_store_lost" if damage == "missing" else "raft_store_damaged")
    assert len(list((controllers.folder / lost).glob("raft.db.damaged-1"))) == (damage != "missing")
    await controllers.nodes[first].wait_event("controller_store_lost")
    async with controllers.active() as controller:
        with trio.fail_after(START_S):  # one that has become active since has to hear from it first
            told = await told_by(controller)
            while [one.node for one in told.controllers if one.lost] != [lost]:
                told = await told_by(controller)
    first = told.active
    (other,) = controllers.nodes.keys() - {first, lost}
    after = len(controllers.nodes[first].events)
    await controllers.nodes[other].kill()
    await controllers.nodes[first].wait_event("controller_stepped_down", after)
    await controllers.start(other)
    async with controllers.active() as controller:
        await controller.call(AddController(lost, controllers.urls[lost]), START_S)
        await wait_votes(controller, {"c1", "c2", "c3"})
    await controllers.nodes[first].kill()
    async with controllers.active() as controller:
        for topic in topics:
            with pytest.raises(BrokerError, match="TOPIC_EXISTS"):
                await controller.call(CreateTopic(topic), START_S)


async def with_an_old_disk(controllers: Controllers) -> tuple[str, str, str, Path]:
    """The active controller, one that is dead, and the third; a copy of the dead one's directory from before the last
    topics, which stands in its place."""
    first = await controllers.wait_active(["c1", "c2", "c3"], {})
    old, third = (node for node in controllers.nodes if node != first)
    await controllers.nodes[old].kill()
    folder, copy = controllers.folder / old, controllers.folder / f"{old}-copy"
    shutil.copytree(folder, copy)
    await controllers.start(old)
    async with controllers.active("replica", "r1") as controller:
        await controller.call(Register("r1", "ws://r1"), START_S)
    async with controllers.active() as controller:
        for number in range(5):
            await controller.call(CreateTopic(f"t{number}"), START_S)
        last = (await told_by(controller)).commit_index
        with trio.fail_after(START_S):
            while {one.node: one.match for one in (await told_by(controller)).controllers}[old] < last:
                pass
    await controllers.nodes[old].kill()
    shutil.rmtree(folder)
    copy.rename(folder)
    return first, old, third, folder


async def test_a_controller_with_an_old_disk_is_refilled_and_then_two_of_three_go_on(
    controllers: Controllers,
) -> None:
    first, old, third, _ = await with_an_old_disk(controllers)
    await controllers.start(old)
    await controllers.nodes[old].wait_event("raft_store_rolled_back")
    await controllers.nodes[old].wait_event("raft_store_refilled")
    await controllers.nodes[first].wait_event("controller_refilled")
    await controllers.nodes[third].kill()
    async with controllers.active() as controller:
        await controller.call(CreateTopic("without-the-third"), START_S)
        told = await told_by(controller)
    assert not any(one.rolled_back for one in told.controllers)


async def test_where_too_few_are_left_to_refill_an_old_disk_the_one_that_is_needed_is_named(
    controllers: Controllers,
) -> None:
    first, old, third, _ = await with_an_old_disk(controllers)
    await controllers.nodes[third].kill()
    await controllers.nodes[first].wait_event("controller_stepped_down")
    await controllers.start(old)
    event = await controllers.nodes[first].wait_event("raft_disk_needed")
    assert (event["rolled_back"], event["needed"]) == ([old], [third])
    told = await quorum(controllers, first)
    assert told.disks_needed == (third,) and [one.node for one in told.controllers if one.rolled_back] == [old]
    assert [one.node for one in (await quorum(controllers, old)).controllers if one.rolled_back] == [old]
    await controllers.start(third)
    await controllers.nodes[old].wait_event("raft_store_refilled")
    async with controllers.active() as controller:
        await controller.call(CreateTopic("with-the-third"), START_S)
