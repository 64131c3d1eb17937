"""``tidelog controllers …``: shows and changes the group that holds the metadata."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import click
import trio

from tidelog.cli.command_group import CommandGroup
from tidelog.cli.exit_status import FAILED
from tidelog.cli.explain.sentences import refill_in_words
from tidelog.cli.main import connect, gateway_option, run
from tidelog.cli.option_types import Quantity
from tidelog.cli.output import Table, list_output, say, show
from tidelog.quantities import SECONDS
from tidelog.runtime.config import load
from tidelog.wire.messages import ControllerInfo, QuorumAnswer

if TYPE_CHECKING:
    from tidelog.client.log import Log

LOOK_S = 0.2
"""Seconds between two checks whether a new controller has caught up."""


@click.group(cls=CommandGroup)
def controllers() -> None:
    """List, add, remove and rescue controllers."""


@controllers.command("list")
@list_output
@gateway_option
def list_controllers(output: str, gateways: tuple[str, ...]) -> None:
    """List the controllers as the active one sees them: state, number of log entries behind, URL."""

    async def task() -> QuorumAnswer:
        async with connect(gateways) as log:
            return await log.cluster.quorum()

    quorum = run(task)
    table = Table("id", "state", "behind", "url")
    for one in quorum.controllers:
        behind = None if one.match < 0 else max(quorum.commit_index - one.match, 0)
        table.add(one.node, state_in_words(one, quorum.active), behind, one.url)
    document = {"active": quorum.active, "term": quorum.term, "commit_index": quorum.commit_index}
    show(output, table, document | {"controllers": [asdict(one) for one in quorum.controllers]})


def state_in_words(one: ControllerInfo, active: str) -> str:
    """Return the state of a controller as a text: active, votes, learns (it has no vote), silent (the active one does
    not hear it), rolled back, or lost its disk. ``active`` is the id of the active controller; "": none is known."""
    if one.lost:
        return "lost its disk: add it again"
    if one.rolled_back:
        return f"rolled back: {refill_in_words(one)}"
    if active and one.role == "unknown":
        return "silent"
    return "active" if one.node == active else "votes" if one.voter else "learns"


@controllers.command()
@click.argument("node")
@click.argument("url")
@click.option(
    "--timeout", "timeout_s", type=Quantity(SECONDS, least=0), default="1m", show_default=True, help="Wait so long."
)
@gateway_option
def add(node: str, url: str, timeout_s: float, gateways: tuple[str, ...]) -> None:
    """Add the controller NODE at URL to the group; returns when it votes. Exit code 1 if it does not vote in time.

    It must run already: a new one with 'join = true' and the others in its peers, or one that lost its disk. It gets
    the metadata first, without a vote."""

    async def task() -> bool:
        async with connect(gateways) as log:
            await log.cluster.add_controller(node, url)
            with trio.move_on_after(timeout_s):
                await _wait_vote(log, node)
                return True
            return False

    if run(task):
        say(f"{node} votes")
    else:
        say(f"{node} is in the group and has not caught up yet: does it run at {url}?", err=True)
        raise SystemExit(FAILED)


async def _wait_vote(log: Log, node: str) -> None:
    """Ask the cluster every ``LOOK_S`` seconds until the controller votes, with its disk intact. Has no time-out of
    its own: it waits for ever if the controller does not get a vote."""
    while True:
        for one in (await log.cluster.quorum()).controllers:
            if one.node == node and one.voter and not one.lost and not one.rolled_back:
                return
        await trio.sleep(LOOK_S)


@controllers.command()
@click.argument("node")
@gateway_option
def remove(node: str, gateways: tuple[str, ...]) -> None:
    """Remove a controller from the group. It has no vote any more, and its process may be stopped."""

    async def task() -> None:
        async with connect(gateways) as log:
            await log.cluster.remove_controller(node)

    run(task)
    say(f"{node} is out of the group")


@controllers.command()
@click.option(
    "--config", "path", required=True, type=click.Path(dir_okay=False), help="Configuration of that controller."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--beyond", type=click.IntRange(0, 1 << 52), default=0, help="An index that somebody has seen.")
def rescue(path: str, yes: bool, beyond: int) -> None:
    """Let a controller that is stopped continue alone, because the majority is lost for good, or the metadata went
    back.

    Works on its disk, without the cluster. Decisions of the other controllers that this one had not received are
    lost. Records are not: the replica servers report what they know, and each partition is led by one that has
    everything. If several controllers are left take the one with the greatest term, then index. The others must never
    run again with the disks they have: empty them, start the survivor, then 'tidelog controllers add'."""
    from tidelog_controller.config import ControllerConfig
    from tidelog_controller.rescue import examine
    from tidelog_controller.rescue import rescue as let_it_go_on

    config = load(ControllerConfig, path)
    found = examine(config)
    others = ", ".join(found.others) or "no others"
    say(f"{found.node} knows everything up to term {found.term}, index {found.index}; with it were {others}")
    if not yes:
        click.confirm(f"Go on without {others}?", abort=True, err=True)
    let_it_go_on(config, time.time_ns() // 1_000_000, beyond=beyond)
    say(f"{found.node} is a group of its own: start it, then take others in, with empty disks")
