"""The port on which a running pipeline shows its pages. A thread of its own serves it, with trio, since the main
thread waits for Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue

import trio

from tidelog.net.transport import Connection, Pages
from tidelog.net.websocket.transport import WebSocketTransport


@contextmanager
def status_port(host: str, port: int, pages: Pages) -> Iterator[str]:
    """Return a context manager that serves pages over HTTP at this address during its block, and gives the URL of the
    port. With port 0 the system chooses one. Raises ``ConfigError`` if the port cannot be opened."""
    opened: SimpleQueue[tuple[trio.lowlevel.TrioToken, str] | BaseException] = SimpleQueue()
    scope = trio.CancelScope()

    async def serve() -> None:
        with scope:
            async with trio.open_nursery() as nursery:
                transport = WebSocketTransport()
                url = await nursery.start(partial(transport.serve, host, port, _close, pages=pages, browsers=False))
                opened.put((trio.lowlevel.current_trio_token(), url.replace("ws://", "http://", 1)))

    def run() -> None:
        try:
            trio.run(serve)
        except BaseException as error:  # raised again below, to the thread that opens the port
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            opened.put(error)

    thread = threading.Thread(target=run, name="tidelog-status", daemon=True)
    thread.start()
    answer = opened.get()
    if isinstance(answer, BaseException):
        raise answer
    token, url = answer
    try:
        yield url
    finally:
        token.run_sync_soon(scope.cancel)
        thread.join()


async def _close(connection: Connection) -> None:
    """End a WebSocket connection at once: the port has pages only."""
    await connection.aclose()
