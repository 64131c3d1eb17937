"""A controller as one async function."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import structlog
import trio
from tidelog.errors import TidelogError, refuse
from tidelog.link import PROTOCOL_VERSION, Link, serve_links
from tidelog.transport import MAX_MESSAGE_BYTES, Transport
from tidelog.wire.messages import (
    AllocateProducerIds,
    AlterIsr,
    AlterLearners,
    AlterTopic,
    AppendEntries,
    AppendResult,
    CancelReassignment,
    ConfirmLeader,
    CreateTopic,
    DeleteTopic,
    DescribeQuorum,
    DrainServer,
    GrowTopic,
    HandOver,
    Heartbeat,
    Hello,
    History,
    Message,
    PlanRebalance,
    Reassign,
    Register,
    ReportLeader,
    ReportLoss,
    RequestVote,
    Seal,
    TransferLeader,
    Vote,
    Watch,
    Welcome,
)

from tidelog_controller.config import ControllerConfig
from tidelog_controller.core.controller import Controller
from tidelog_controller.shell import Shell
from tidelog_controller.storage import RaftStorage

_ANYBODY = frozenset({DescribeQuorum.OP})
ALLOWED = {
    "controller": _ANYBODY | {RequestVote.OP, Vote.OP, AppendEntries.OP, AppendResult.OP},
    "replica": _ANYBODY
    | {Register.OP, Heartbeat.OP, AlterIsr.OP, ReportLeader.OP, Watch.OP}
    | {HandOver.OP, Seal.OP, ConfirmLeader.OP, ReportLoss.OP},
    "gateway": _ANYBODY
    | {CreateTopic.OP, DeleteTopic.OP, AlterTopic.OP, AlterLearners.OP, GrowTopic.OP}
    | {TransferLeader.OP, Reassign.OP, CancelReassignment.OP, DrainServer.OP, PlanRebalance.OP}
    | {History.OP, AllocateProducerIds.OP, Watch.OP},
    "client": _ANYBODY,
}
"""Who may send what: clients come through a gateway."""
MAX_IN_FLIGHT = 1024


def wall_ms() -> int:
    """The wall clock in milliseconds; it goes into the partitions' histories and nowhere else."""
    return time.time_ns() // 1_000_000


async def serve(
    config: ControllerConfig,
    *,
    transport: Transport,
    clock: Callable[[], float] = trio.current_time,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; reports the URL when it listens. ``clock`` is trio's clock. Raises ``ConfigError`` when
    the port or the data directory is in use, or the data is another controller's."""
    storage = await trio.to_thread.run_sync(RaftStorage, config.data_dir, config.cluster, config.node)
    try:
        await _serve(config, storage, transport, clock, task_status)
    finally:
        storage.close()


async def _serve(
    config: ControllerConfig,
    storage: RaftStorage,
    transport: Transport,
    clock: Callable[[], float],
    task_status: trio.TaskStatus[str],
) -> None:
    stored = await trio.to_thread.run_sync(storage.load)
    shell: Shell | None = None

    def welcome(hello: Hello) -> Welcome | TidelogError:
        if shell is None:
            return refuse("OFFLINE", f"{config.node} is starting")
        if hello.cluster not in ("", config.cluster):
            return refuse("WRONG_CLUSTER", f"this is cluster {config.cluster!r}, not {hello.cluster!r}")
        if hello.role == "controller" and (hello.node not in config.peers or hello.node == config.node):
            return refuse("FORBIDDEN", f"{hello.node} is no other controller of this cluster: see peers")
        return Welcome(PROTOCOL_VERSION, config.cluster, config.node, "controller", MAX_MESSAGE_BYTES, MAX_IN_FLIGHT)

    def on_open(link: Link) -> None:
        assert shell is not None
        shell.on_open(link)

    def on_close(link: Link) -> None:
        assert shell is not None
        shell.on_close(link)

    def on_message(link: Link, id: int | None, message: Message) -> None:
        assert shell is not None
        shell.on_message(link, id, message)

    async with trio.open_nursery() as nursery:
        url = await nursery.start(
            lambda task_status: serve_links(
                transport,
                config.host,
                config.port,
                welcome,
                on_message,
                allowed=ALLOWED,
                on_open=on_open,
                on_close=on_close,
                task_status=task_status,
            )
        )
        voters = config.peers or {config.node: url}
        core = Controller(
            config.node, voters, config.cluster, config.settings, stored, random.SystemRandom(), clock()
        )
        hello = Hello(PROTOCOL_VERSION, "controller", config.node, config.cluster)
        shell = Shell(core, storage, transport, hello, clock, wall_ms)
        await nursery.start(shell.peers.run)
        shell.peers.set_addresses({node: peer_url for node, peer_url in voters.items() if node != config.node})
        nursery.start_soon(shell.run)
        structlog.get_logger().info("controller_started", node=config.node, url=url, entries=len(stored.entries))
        task_status.started(url)
