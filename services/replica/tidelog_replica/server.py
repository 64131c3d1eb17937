"""A replica server as one async function: it opens the disk, makes the node and its shell, and listens."""

from __future__ import annotations

import fcntl
import os
import random
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import structlog
import trio
from tidelog.errors import ConfigError, TidelogError, refuse
from tidelog.feature_levels import service_hello
from tidelog.net.failure_detector import Patience
from tidelog.net.link import PROTOCOL_VERSION
from tidelog.net.transport import MAX_MESSAGE_BYTES, Transport
from tidelog.private import FILE_MODE, own_directory
from tidelog.runtime.disk import Disk, RealDisk
from tidelog.runtime.listener import Listener
from tidelog.runtime.operating_system import boot_id
from tidelog.runtime.process_settings import raise_open_files
from tidelog.runtime.service import Leave, Serving, serve_in_order
from tidelog.wire.messages import (
    DescribeLogs,
    DescribeMetrics,
    Digest,
    EnrolPartition,
    EpochOffset,
    Fetch,
    FetchOffsets,
    Hello,
    ListOffset,
    LogSnapshot,
    Notify,
    Produce,
    Progress,
    Read,
    ReadCopy,
    ReadTail,
    ScrubServer,
    UnreadablePlace,
    Welcome,
    WriteMarker,
)

from tidelog_replica.config import ReplicaConfig
from tidelog_replica.coordinators.groups.service import KINDS as GROUP_KINDS
from tidelog_replica.coordinators.streams.service import KINDS as STREAM_KINDS
from tidelog_replica.coordinators.transactions.service import KINDS as TRANSACTION_KINDS
from tidelog_replica.maintenance.file_pool import open_files_of
from tidelog_replica.node import ReplicaNode
from tidelog_replica.observability.metrics import metrics_page, reasons_not_ready, recent_metrics
from tidelog_replica.shell import DiskFailed, ReplicaShell
from tidelog_replica.storage.encryption.files import EncryptedDisk
from tidelog_replica.storage.encryption.keyring import Keyring, load_keys
from tidelog_replica.storage.encryption.rotation import rekey
from tidelog_replica.storage.open_files import OpenFiles

ALLOWED = {
    "replica": frozenset({Fetch.OP, Progress.OP, EpochOffset.OP, Notify.OP, ListOffset.OP, LogSnapshot.OP, Read.OP})
    | {EnrolPartition.OP, WriteMarker.OP, ReadTail.OP, Digest.OP, FetchOffsets.OP},
    "gateway": frozenset({Produce.OP, Read.OP, ListOffset.OP, Digest.OP, DescribeMetrics.OP, WriteMarker.OP})
    | {ReadCopy.OP, ScrubServer.OP, DescribeLogs.OP}
    | {kind.OP for kind in (*GROUP_KINDS, *TRANSACTION_KINDS, *STREAM_KINDS)} - {EnrolPartition.OP},
    "controller": frozenset({Produce.OP, Read.OP, ListOffset.OP}),
}
"""The messages that a peer may send, by its role: clients come through a gateway; the active controller writes the
timeline."""
MAX_IN_FLIGHT = 16_384
"""Most unanswered requests on one accepted link."""


async def serve(
    config: ReplicaConfig,
    *,
    transport: Transport,
    disk: Disk | None = None,
    clock: Callable[[], float] = trio.current_time,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a replica server until it is cancelled, then shut it down in order. The URL is reported to ``task_status``
    as soon as the server listens. With ``disk`` None the real disk is used, and the data directory is locked.
    ``clock`` returns the time in seconds. Raises ``ConfigError`` if the port or the data directory is in use, the
    directory belongs to another server, or encryption keys are missing; ``DiskFailed`` if the disk fails."""
    if disk is None:
        raise_open_files()
        keys = load_keys(config.encryption_key_file, config.encryption_key_env, os.environ)
        with lock(config.data_dir):
            await trio.to_thread.run_sync(use_current_key, config.data_dir, keys)
            disk = RealDisk(config.cached_bytes_per_file)
            files = OpenFiles(disk, config.max_open_files or default_max_open_files())
            run = partial(_run, config, transport, EncryptedDisk(files, keys), clock)
            await serve_in_order(run, config.settings.shutdown_s, task_status)
    else:
        run = partial(_run, config, transport, disk, clock)
        await serve_in_order(run, config.settings.shutdown_s, task_status)


async def _run(
    config: ReplicaConfig,
    transport: Transport,
    disk: Disk,
    clock: Callable[[], float],
    serving: Serving,
    task_status: trio.TaskStatus[tuple[Leave, str]],
) -> None:
    """Listen, run the tasks of the shell until cancelled, and close the shell. If the disk fails, the shell is not
    closed: record on the disk that it must not be trusted, and raise ``DiskFailed``."""
    shell: ReplicaShell | None = None

    def welcome(hello: Hello) -> Welcome | TidelogError:
        if config.cluster and hello.cluster not in ("", config.cluster):
            return refuse("WRONG_CLUSTER", f"this is cluster {config.cluster!r}, not {hello.cluster!r}")
        return Welcome(PROTOCOL_VERSION, config.cluster, config.node, "replica", MAX_MESSAGE_BYTES, MAX_IN_FLIGHT)

    entrance = Listener(config.node, welcome, config.metrics)
    own = (config.advertised_url,)
    port = config.host, config.port
    listen = partial(entrance.serve, transport, *port, ALLOWED, own, role="replica", hosts=config.allowed_hosts)
    try:
        with serving.shielded():
            async with trio.open_nursery() as nursery:
                listening = await nursery.start(listen)
                url = config.advertised_url or listening
                shell = _make_shell(config, transport, disk, clock, url)
                recent = recent_metrics(shell)
                entrance.open(
                    shell,
                    metrics_page(shell, open_files_of(disk), transport.tls),
                    partial(reasons_not_ready, shell),
                    unreadable=partial(_unreadable, shell),
                    differing=shell.node.copy_checks.differing,
                    recent=recent,
                )
                nursery.start_soon(recent.run)
                await _start(shell, nursery, config.flush_threads)
                structlog.get_logger().info("replica_started", node=config.node, url=url)
                task_status.started((shell.leave, url))
    except* DiskFailed:
        assert shell is not None
        with trio.CancelScope(shield=True):
            await shell.wait_distrusted()
        raise
    if shell is not None:
        shell.close()


def _unreadable(shell: ReplicaShell) -> tuple[UnreadablePlace, ...]:
    """Return the places of batches in this server's logs that no reader can decode."""
    return shell.node.scrubber.unreadable()[1]


def _make_shell(
    config: ReplicaConfig, transport: Transport, disk: Disk, clock: Callable[[], float], url: str
) -> ReplicaShell:
    """Return a shell with its node for this configuration. Nothing runs yet, and nothing is read from the disk.
    ``url`` is the URL under which others reach this server."""
    node = ReplicaNode(
        config.node,
        url,
        disk,
        config.data_dir,
        config.settings,
        random.Random(),
        config.cluster,
        boot=boot_id(),
        wall_ms=wall_ms,
        rack=config.rack,
    )
    hello = service_hello("replica", config.node, config.cluster, config.levels)
    settings = config.settings
    patience = Patience(settings.replica_min_leader_timeout_s, settings.replica_max_leader_timeout_s)
    return ReplicaShell(config.node, node, transport, hello, config.controllers, clock, patience, config.job_threads)


async def _start(shell: ReplicaShell, nursery: trio.Nursery, flush_threads: int) -> None:
    """Start the tasks of the shell in the nursery, then the node, then the link to the controllers. Returns when all
    of them run."""
    await nursery.start(shell.peers.run)
    for _ in range(flush_threads):
        nursery.start_soon(shell.run_flushes)
    nursery.start_soon(shell.run_jobs)
    nursery.start_soon(shell.run_timer)
    nursery.start_soon(shell.run_until_stopped)
    shell.start()
    nursery.start_soon(shell.controllers.run)


def wall_ms() -> int:
    """Return the wall clock in milliseconds since 1970. It is used only for the age of records; everything else uses
    the monotonic clock."""
    return time.time_ns() // 1_000_000


def default_max_open_files() -> int:
    """Return how many files the logs may keep open: three quarters of the descriptors that the process may open, at
    least 16; 1,048,576 if the process has no limit. The other descriptors are for network links."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if limit == resource.RLIM_INFINITY else max(16, limit * 3 // 4)


def use_current_key(data_dir: str, keys: Keyring) -> None:
    """Encrypt the data keys of all encrypted segments in the data directory with the current key where another key
    encrypts them, and log which keys are in use. Does nothing if there is no current key. Raises ``ConfigError`` if
    the key of some segment is missing, and ``OSError`` if the disk fails."""
    if keys.current is None:
        return
    census = rekey(RealDisk(), data_dir, keys)
    structlog.get_logger().info(
        "encryption_keys",
        current=keys.current,
        known=list(keys.keys),
        segments=dict(census.keys),
        rewrapped=census.rewrapped,
        clear=census.clear,
        missing=dict(census.missing),
    )
    if census.missing:
        needed = ", ".join(f"{key} ({count} segments)" for key, count in sorted(census.missing.items()))
        raise ConfigError(f"data_dir = {data_dir}: keys are missing or do not fit: {needed}; {census.example}")


@contextmanager
def lock(directory: str) -> Iterator[None]:
    """Create the data directory if needed, and hold its lock while the context lasts, since two processes writing to
    one log would destroy it. Raises ``ConfigError`` if another process holds the lock."""
    path = Path(directory)
    own_directory(path)
    handle = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"data_dir = {directory}: another process uses it") from None
        yield
    finally:
        os.close(handle)
