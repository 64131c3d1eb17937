"""A controller as one async function: opens the store, listens, and runs the shell."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial

import structlog
import trio
from tidelog.errors import TidelogError, refuse
from tidelog.feature_levels import Levels, refuse_levels, service_hello
from tidelog.net.link import PROTOCOL_VERSION
from tidelog.net.transport import MAX_MESSAGE_BYTES, Transport
from tidelog.runtime.listener import Listener
from tidelog.runtime.service import Leave, Serving, serve_in_order
from tidelog.wire.messages import (
    AddController,
    AllocateProducerIds,
    AlterAcls,
    AlterIsr,
    AlterLearners,
    AlterQuotas,
    AlterTopic,
    AnnounceGateway,
    AppendEntries,
    AppendResult,
    CancelReassignment,
    ConfirmLeader,
    CreateTopic,
    DeleteTopic,
    DescribeFeatures,
    DescribeMetrics,
    DescribeQuorum,
    DrainServer,
    ForgetServer,
    GrowTopic,
    HandOver,
    Heartbeat,
    Hello,
    History,
    InstallSnapshot,
    Meet,
    PauseTopic,
    PlanRebalance,
    PrepareAudit,
    PrepareGroups,
    PrepareStreams,
    PrepareTransactions,
    PutToken,
    RaiseLevel,
    Reassign,
    Rebalance,
    Register,
    RemoveController,
    ReportDoubt,
    ReportLeader,
    ReportLoss,
    RequestVote,
    RevokeTokens,
    RotateTicketKeys,
    Seal,
    SetReadOnly,
    SnapshotResult,
    TimeoutNow,
    TransferLeader,
    Vote,
    Watch,
    Welcome,
)

from tidelog_controller.config import ControllerConfig
from tidelog_controller.controller import Controller
from tidelog_controller.observability.metrics import metrics_page, reasons_not_ready
from tidelog_controller.raft.log import PersistentState
from tidelog_controller.shell import ControllerShell
from tidelog_controller.storage import Damaged, RaftStorage, set_aside, was_set_aside

_ANYBODY = frozenset({DescribeQuorum.OP})
ALLOWED = {
    "controller": _ANYBODY
    | {RequestVote.OP, Vote.OP, AppendEntries.OP, AppendResult.OP, InstallSnapshot.OP, SnapshotResult.OP}
    | {TimeoutNow.OP, Meet.OP},
    "replica": _ANYBODY
    | {Register.OP, Heartbeat.OP, AlterIsr.OP, ReportLeader.OP, Watch.OP}
    | {HandOver.OP, Seal.OP, ConfirmLeader.OP, ReportLoss.OP, ReportDoubt.OP},
    "gateway": _ANYBODY
    | {CreateTopic.OP, DeleteTopic.OP, AlterTopic.OP, AlterLearners.OP, GrowTopic.OP}
    | {SetReadOnly.OP, PauseTopic.OP, PrepareGroups.OP, PrepareTransactions.OP, PrepareStreams.OP}
    | {TransferLeader.OP, Reassign.OP, CancelReassignment.OP, DrainServer.OP, PlanRebalance.OP, Rebalance.OP}
    | {DescribeFeatures.OP, RaiseLevel.OP, ForgetServer.OP}
    | {History.OP, DescribeMetrics.OP, AllocateProducerIds.OP, Watch.OP, AnnounceGateway.OP}
    | {AddController.OP, RemoveController.OP}
    | {PutToken.OP, RevokeTokens.OP, AlterAcls.OP, AlterQuotas.OP, PrepareAudit.OP, RotateTicketKeys.OP},
    "client": _ANYBODY,
}
"""The messages that a peer of each role may send. Clients send theirs to a gateway."""
MAX_IN_FLIGHT = 1024
"""Number of unanswered requests that a peer may have on one link."""


def wall_ms() -> int:
    """Return the wall clock in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


async def serve(
    config: ControllerConfig,
    *,
    transport: Transport,
    clock: Callable[[], float] = trio.current_time,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a controller until cancelled; then let it hand leadership to another controller, for at most ``shutdown_s``
    seconds, and end. Reports its URL through ``task_status`` when it listens. ``clock`` is trio's clock. Raises
    ``ConfigError`` if the port or the data directory is in use, or if the data belong to another controller."""
    storage, stored = await trio.to_thread.run_sync(open_storage, config)
    try:
        run = partial(_run, config, storage, stored, transport, clock)
        await serve_in_order(run, config.shutdown_s, task_status)
    finally:
        storage.close()


def open_storage(config: ControllerConfig) -> tuple[RaftStorage, PersistentState]:
    """Open the store of a controller and return it with its content; blocks. If the store is damaged and the
    configuration names other controllers, the store is renamed, an error is logged, and an empty store takes its
    place, marked ``lost``: this controller has no vote until it is added again. The mark is set even if the process
    ends between the two steps and starts again. Raises ``Damaged`` for the damaged store of a controller without
    others."""
    storage, name = None, f"{random.SystemRandom().getrandbits(64):016x}"
    lost = len(config.peers) > 1 and was_set_aside(config.data_dir)
    try:
        storage = RaftStorage(config.data_dir, config.cluster, config.node, name, lost=lost)
        return storage, storage.load()
    except Damaged as error:
        if storage is not None:
            storage.close()
        if len(config.peers) < 2:
            raise
        aside = set_aside(config.data_dir)
        fields = {"error": error.message, "kept_as": str(aside)}
        again = f"tidelog controllers add {config.node} {config.peers[config.node]}"
        structlog.get_logger().error("raft_store_damaged", node=config.node, next_step=again, **fields)
    storage = RaftStorage(config.data_dir, config.cluster, config.node, name, lost=True)
    return storage, storage.load()


async def _run(
    config: ControllerConfig,
    storage: RaftStorage,
    stored: PersistentState,
    transport: Transport,
    clock: Callable[[], float],
    serving: Serving,
    task_status: trio.TaskStatus[tuple[Leave, str]],
) -> None:
    """Listen and run the shell until cancelled. Reports the function that stops the shell, and the URL, through
    ``task_status``. The port is open before the shell exists, since the shell needs the URL."""
    shell: ControllerShell | None = None

    def welcome(hello: Hello) -> Welcome | TidelogError:
        """Return the answer to the hello of a new link. Return the error ``WRONG_CLUSTER`` for another cluster,
        ``FORBIDDEN`` for a controller with this one's name, or an error for a service that does not support the
        cluster's feature level."""
        if hello.cluster not in ("", config.cluster):
            return refuse("WRONG_CLUSTER", f"this is cluster {config.cluster!r}, not {hello.cluster!r}")
        if hello.role == "controller" and hello.node == config.node:
            return refuse("FORBIDDEN", f"this is {config.node} itself: two controllers have one name")
        if hello.role != "client" and shell is not None:
            unfit = refuse_levels(hello.node, Levels(hello.level_min, hello.level_max), shell.core.state.level or 1)
            if unfit is not None:
                return unfit
        return Welcome(PROTOCOL_VERSION, config.cluster, config.node, "controller", MAX_MESSAGE_BYTES, MAX_IN_FLIGHT)

    entrance = Listener(config.node, welcome, config.metrics)
    own = (config.peers.get(config.node, ""),)
    port = config.host, config.port
    listen = partial(entrance.serve, transport, *port, ALLOWED, own, role="controller", hosts=config.allowed_hosts)
    with serving.shielded():
        async with trio.open_nursery() as nursery:
            url = await nursery.start(listen)
            shell = _make_shell(config, storage, stored, transport, clock, url)
            entrance.open(
                shell, metrics_page(shell, transport.tls), partial(reasons_not_ready, shell.core), shell.on_refused
            )
            await nursery.start(shell.peers.run)
            await nursery.start(shell.servers.run)
            urls = shell.core.metadata_log.urls
            shell.peers.set_addresses({node: url for node, url in urls.items() if node != config.node})
            nursery.start_soon(shell.run)
            nursery.start_soon(shell.run_snapshots)
            fields = {"entries": len(stored.entries), "store": stored.store}
            structlog.get_logger().info("controller_started", node=config.node, url=url, **fields)
            task_status.started((shell.stop, url))


def _make_shell(
    config: ControllerConfig,
    storage: RaftStorage,
    stored: PersistentState,
    transport: Transport,
    clock: Callable[[], float],
    url: str,
) -> ControllerShell:
    """Return the shell of a new core with the state in ``stored``. A controller without ``peers`` founds a cluster
    alone."""
    peers = config.peers or {config.node: url}
    core = Controller(
        config.node,
        peers,
        config.cluster,
        config.settings,
        stored,
        random.SystemRandom(),
        clock(),
        join=config.join,
        levels=config.levels,
    )
    hello = service_hello("controller", config.node, config.cluster, config.levels)
    return ControllerShell(core, storage, transport, hello, clock, wall_ms)
