"""The majority of the controllers is lost for good: the one that is left goes on, and becomes three again."""

from __future__ import annotations

import shutil

import pytest
import trio
from click.testing import CliRunner
from controller_processes import START_S, Controllers
from tidelog.cli.main import main
from tidelog.errors import BrokerError
from tidelog.net.controller_link import ControllerLink
from tidelog.wire.messages import AddController, CreateTopic, DescribeQuorum, QuorumAnswer, Register

pytestmark = pytest.mark.real


def rescue(controllers: Controllers, node: str, code: int = 2) -> str:
    """All that was said; that must be the exit code."""
    command = ["controllers", "rescue", "--config", str(controllers.nodes[node].config), "--yes"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == code, done.output
    return done.output


async def quorum(controller: ControllerLink) -> QuorumAnswer:
    told = await controller.call(DescribeQuorum(), START_S)
    assert isinstance(told, QuorumAnswer)
    return told


async def wait_votes(controller: ControllerLink, voters: set[str]) -> None:
    with trio.fail_after(START_S):
        while {one.node for one in (await quorum(controller)).controllers if one.voter and not one.lost} != voters:
            pass


async def test_a_rescued_controller_keeps_its_metadata_and_the_group_grows_again(controllers: Controllers) -> None:
    async with controllers.active("replica", "r1") as controller:
        await controller.call(Register("r1", "ws://r1"), START_S)
    async with controllers.active() as controller:
        await controller.call(CreateTopic("kept"), START_S)
        left = (await quorum(controller)).active  # which has everything that is committed
    lost = sorted(controllers.nodes.keys() - {left})
    assert "in use by another process" in rescue(controllers, left), "one that runs is left alone"
    for process in controllers.nodes.values():
        await process.kill()
    for gone in lost:
        shutil.rmtree(controllers.folder / gone)
    assert "holds no store" in rescue(controllers, lost[0])
    assert f"with it were {', '.join(lost)}" in rescue(controllers, left, code=0)

    await controllers.start(left)
    async with controllers.active() as controller:
        with pytest.raises(BrokerError, match="TOPIC_EXISTS"):
            await controller.call(CreateTopic("kept"), START_S)
        await wait_votes(controller, {left})
        await controllers.start(*lost)  # configured as ever, and empty
        for new in lost:
            await controller.call(AddController(new, controllers.urls[new]), START_S)
            await wait_votes(controller, {left, *lost[: lost.index(new) + 1]})
    await controllers.nodes[left].kill()
    async with controllers.active() as controller:
        with pytest.raises(BrokerError, match="TOPIC_EXISTS"):
            await controller.call(CreateTopic("kept"), START_S)
