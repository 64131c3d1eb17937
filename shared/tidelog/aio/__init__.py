"""The client for programs on asyncio: the API of ``tidelog``, name by name.

    async with tidelog.aio.connect("ws://127.0.0.1:9292") as log:
        async with log.producer("orders") as producer:
            ack = await producer.send(b"...", key=b"k")
        async for record in log.consume("orders", start="earliest"):
            ...

``connect`` yields the classes of ``tidelog`` on another loop, so their documentation holds here. trio is neither run
nor imported. Cancelling works as everywhere in asyncio; records of a producer whose block is cancelled fail unless
they are acknowledged already.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from tidelog.aio.loop import AsyncioLoop
from tidelog.client.backward_consumer import BackwardConsumer
from tidelog.client.consumer import Consumer
from tidelog.client.group_consumer import GroupConsumer
from tidelog.client.log import DEFAULT_URL, NO_FILES, Log, open_log
from tidelog.client.producer import Pending, Producer
from tidelog.client.transactions import Transaction
from tidelog.net.tls import TlsFiles, TlsOptions

if TYPE_CHECKING:
    from tidelog.tracing import Tracing

__all__ = ["BackwardConsumer", "Consumer", "GroupConsumer", "Log", "Pending", "Producer", "Transaction", "connect"]


def connect(
    urls: str | Iterable[str] = DEFAULT_URL,
    *,
    connect_timeout_s: float = 10.0,
    request_timeout_s: float = 30.0,
    tls: TlsOptions = NO_FILES,
    token: str = "",
    name: str = "client",
    tracing: Tracing | None = None,
    discover: bool = True,
    operator: bool = False,
) -> AbstractAsyncContextManager[Log]:
    """Return the context manager that connects to any of the gateways and yields a ``Log`` on asyncio: ``async with
    tidelog.aio.connect("ws://127.0.0.1:9292") as log``. Arguments and errors are those of ``tidelog.connect``:
    entering raises ``Unreachable`` if no gateway can be reached within ``connect_timeout_s``, and ``UNAUTHENTICATED``
    if the token is invalid or missing."""
    loop = AsyncioLoop(TlsFiles(tls))
    return open_log(
        urls,
        loop,
        connect_timeout_s,
        request_timeout_s,
        token,
        name,
        tracing=tracing,
        discover=discover,
        operator=operator,
    )
