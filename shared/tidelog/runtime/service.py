"""What the ``__main__`` of every service does: read the configuration, log, serve until a signal says stop; and how
those services end that have something to hand over first.

Exit codes: 0 stopped by a signal; 2 wrong configuration (each fault on a line of its own). All else that ends a
service is a fault of ours: it is raised, and the supervisor starts the process again.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import trio

from tidelog.errors import ConfigError
from tidelog.net.tls import TlsFiles
from tidelog.net.transport import Transport
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.private import close_to_others, warn_of_open_secret
from tidelog.runtime import logs
from tidelog.runtime.config import load, settings_of
from tidelog.runtime.gc_settings import shorten_pauses

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_KEPT_BYTES = 256 << 20

SECRET_FILES = ("tls_key", "encryption_key_file", "cluster_secret_file")
"""Settings that name files with secrets."""

Leave = Callable[[], Awaitable[None]]
"""Hands over what others can take over, and returns when they have."""


class ServiceConfig(Protocol):
    """What every service's configuration has."""

    @property
    def log_json(self) -> bool | None:
        """None: JSON unless stderr is a terminal."""

    @property
    def tls(self) -> TlsFiles | None:
        """The certificates, where there are any."""

    @property
    def secret(self) -> bytes:
        """The cluster's secret, where there is one."""


Config = TypeVar("Config", bound=ServiceConfig)


def main(kind: type[Config], serve: Callable[..., Awaitable[None]], description: str) -> None:
    """Run one service: ``serve(config, transport=…, task_status=…)``. Never returns."""
    close_to_others()
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--config", metavar="FILE", help="TOML file with the settings")
    for setting in settings_of(kind):
        parser.add_argument(f"--{setting.name.replace('_', '-')}", dest=setting.name, help=setting.help)
    flags = vars(parser.parse_args())
    path = flags.pop("config")
    try:
        config = load(kind, path, flags=flags)
        logs.configure(config.log_json)
        for name in SECRET_FILES:
            warn_of_open_secret(name, getattr(config, name, ""))
        keep_freed_memory()
        shorten_pauses()
        trio.run(_until_signal, serve, config)
    except* ConfigError as group:
        for error in _flat(group):
            print(error.message, file=sys.stderr)
        sys.exit(2)
    sys.exit(0)


async def _until_signal(serve: Callable[..., Awaitable[None]], config: ServiceConfig) -> None:
    transport: Transport = WebSocketTransport(tls=config.tls, secret=config.secret)
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:

            async def start(task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
                await serve(config, transport=transport, task_status=task_status)

            async def stop() -> None:
                async for _ in signals:
                    nursery.cancel_scope.cancel()

            nursery.start_soon(stop)
            await nursery.start(start)
            gc.collect()
            gc.freeze()  # what lives from the start is never looked at again


class Serving:
    """Where a service serves that ends in order: a cancellation of ``serve_in_order`` does not reach it at once.
    ``from_start``: nor before it has started."""

    def __init__(self, from_start: bool = True) -> None:
        self._scope = trio.CancelScope(shield=from_start)
        self._ended = trio.Event()

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """What serves is within; behind it nothing is served any more."""
        try:
            with self._scope:
                yield
        finally:
            self._ended.set()

    async def end_in_order(self, leave: Leave, patience_s: float) -> None:
        """Wait for the end. When cancelled, let it leave first, which may take ``patience_s``."""
        self._scope.shield = True
        try:
            await self._ended.wait()
        except trio.Cancelled:
            if not self._ended.is_set():
                with trio.move_on_after(patience_s, shield=True):
                    await leave()
                self._scope.cancel()
            raise


async def serve_in_order(
    run: Callable[..., Awaitable[None]],
    patience_s: float,
    task_status: trio.TaskStatus[str],
    *,
    from_start: bool = True,
) -> None:
    """``run(serving, task_status=…)`` until it ends, or until cancelled and left: it reports how to leave, and its
    URL, which is reported on. ``from_start`` False: cancelled before it has started, it ends at once."""
    serving = Serving(from_start)
    async with trio.open_nursery() as nursery:
        started: tuple[Leave, str] = await nursery.start(run, serving)
        leave, url = started
        task_status.started(url)
        await serving.end_in_order(leave, patience_s)


def keep_freed_memory() -> None:
    """Tell glibc to keep large freed buffers: giving each back to the kernel and taking it again costs a third of
    the throughput with large batches. Nothing happens with another C library."""
    mallopt: Any = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TOP_PAD, 16 << 20)


def _flat(group: BaseExceptionGroup[ConfigError]) -> list[ConfigError]:
    found: list[ConfigError] = []
    for error in group.exceptions:
        found.extend(_flat(error) if isinstance(error, BaseExceptionGroup) else [error])
    return found
