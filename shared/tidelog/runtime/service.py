"""Runs a service as a process: reads the configuration, sets up the log, and serves until a signal stops it.

A service that has something to hand over first ends in order (``serve_in_order``).

Exit codes: 0 if stopped by a signal; 2 if the configuration is wrong (each fault on a line of its own). Any other
exception is a bug: it is raised, and the supervisor starts the process again.
"""

from __future__ import annotations

import argparse
import gc
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

import trio

from tidelog.errors import ConfigError
from tidelog.net.tls import TlsFiles
from tidelog.net.transport import Transport
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.private import close_to_others, warn_of_open_secret
from tidelog.runtime import logs
from tidelog.runtime.config import load, settings_of
from tidelog.runtime.process_settings import give_back_freed_memory, keep_freed_memory, shorten_pauses

SECRET_FILES = ("tls_key", "encryption_key_file", "cluster_secret_file")
"""Settings that name files with secrets."""

Leave = Callable[[], Awaitable[None]]
"""Hands over the work of this process, and returns when others have taken it over."""


class ServiceConfig(Protocol):
    """The settings that ``main`` needs of every service's configuration."""

    @property
    def log_json(self) -> bool | None:
        """The setting of that name: whether log lines are written as JSON (True) or as text (False). None: not set;
        ``logs.configure`` then writes JSON unless stderr is a terminal."""

    @property
    def tls(self) -> TlsFiles | None:
        """Return the certificates of this process; None if it uses no TLS."""

    @property
    def max_connections(self) -> int:
        """Return the most connections that the process accepts."""

    @property
    def secret(self) -> bytes:
        """Return the secret by which the cluster's services recognise each other; empty if there is none."""


Config = TypeVar("Config", bound=ServiceConfig)


def main(kind: type[Config], serve: Callable[..., Awaitable[None]], description: str) -> None:
    """Run a service as this process: read its configuration from file, environment and flags, set up the log, and run
    ``serve(config, transport=…, task_status=…)`` until SIGTERM or SIGINT. Never returns: exits with 0 after a signal,
    and with 2 after printing each fault of the configuration to stderr. Any other exception of the service is raised.
    ``description`` is for ``--help``."""
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
    """Run ``serve`` until SIGTERM or SIGINT, which cancels it. Once the service has started, its objects are exempt
    from garbage collection."""
    transport: Transport = WebSocketTransport(
        config.max_connections, tls=config.tls, secret=config.secret, masks=False
    )
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
            give_back_freed_memory()
            gc.freeze()  # objects that live from the start are never collected


class Serving:
    """The state of one service that ends in order: when ``serve_in_order`` is cancelled, the service runs on until it
    has handed over its work. ``from_start``: this protects the service while it is starting, too."""

    def __init__(self, from_start: bool = True) -> None:
        self._scope = trio.CancelScope(shield=from_start)
        self._ended = trio.Event()

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """Run the ``with`` block, which is the whole service, shielded from cancellation of the caller; with
        ``from_start`` False only once the service has started. At the end of the block ``end_in_order`` returns."""
        try:
            with self._scope:
                yield
        finally:
            self._ended.set()

    async def end_in_order(self, leave: Leave, patience_s: float) -> None:
        """Wait until the service ends. If this call is cancelled, call ``leave`` so that the service hands over its
        work, wait at most ``patience_s`` seconds for it, and cancel the service."""
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
    """Call ``run(serving, task_status=…)`` and wait until the service ends. ``run`` reports the function that hands
    over its work, and its URL, which is passed on to ``task_status``. If this call is cancelled, that function is
    called first, and the service is cancelled when it returns or after ``patience_s`` seconds. With ``from_start``
    False a service that is still starting is cancelled at once."""
    serving = Serving(from_start)
    async with trio.open_nursery() as nursery:
        started: tuple[Leave, str] = await nursery.start(run, serving)
        leave, url = started
        task_status.started(url)
        await serving.end_in_order(leave, patience_s)


def _flat(group: BaseExceptionGroup[ConfigError]) -> list[ConfigError]:
    """Return the configuration errors in a group of exceptions, also those in groups within it, in order."""
    found: list[ConfigError] = []
    for error in group.exceptions:
        found.extend(_flat(error) if isinstance(error, BaseExceptionGroup) else [error])
    return found
