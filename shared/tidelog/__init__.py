"""Tidelog: a replicated, partitioned commit log. ``import tidelog`` is the published client API.

    async with tidelog.connect("ws://127.0.0.1:9292") as log:
        async with log.producer("orders") as producer:
            ack = await producer.send(b"...", key=b"k")
        async for record in log.consume("orders", start="earliest"):
            ...

``tidelog.sync`` is the same API, blocking; ``tidelog.aio`` is the same on asyncio; ``tidelog.errors`` has every
error. Names, and these three modules, are imported when they are first used: ``import tidelog`` is cheap.

The package also holds what the services share. Start reading at ``client/log.py`` (the client API),
``client/core/producer.py`` and ``client/core/consumer.py`` (what a client decides) and ``wire/messages/`` (every
message). The terms are explained in ``docs/vocabulary.md``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidelog import aio as aio
    from tidelog import errors as errors
    from tidelog import sync as sync
    from tidelog.batch.format import Record
    from tidelog.client.arrow_reader import ArrowReader
    from tidelog.client.consumer import Consumer
    from tidelog.client.group_consumer import GroupConsumer, Hooks
    from tidelog.client.log import Log
    from tidelog.client.options import ConsumerOptions, GroupOptions, ProducerOptions
    from tidelog.client.producer import Ack, DeliveryFailed, Pending, Producer
    from tidelog.client.transactions import Transaction, advice
    from tidelog.client.trio_loop import connect
    from tidelog.errors import InvalidValue, TidelogError, UnreadableBatch
    from tidelog.net.tls import TlsOptions
    from tidelog.types import Position, TopicConfig

__all__ = [
    "Ack",
    "ArrowReader",
    "Consumer",
    "ConsumerOptions",
    "DeliveryFailed",
    "GroupConsumer",
    "GroupOptions",
    "Hooks",
    "InvalidValue",
    "Log",
    "Pending",
    "Position",
    "Producer",
    "ProducerOptions",
    "Record",
    "TidelogError",
    "TlsOptions",
    "TopicConfig",
    "Transaction",
    "UnreadableBatch",
    "advice",
    "connect",
]

_HOMES = {
    "Ack": "tidelog.client.producer",
    "ArrowReader": "tidelog.client.arrow_reader",
    "Consumer": "tidelog.client.consumer",
    "ConsumerOptions": "tidelog.client.options",
    "DeliveryFailed": "tidelog.client.producer",
    "GroupConsumer": "tidelog.client.group_consumer",
    "GroupOptions": "tidelog.client.options",
    "Hooks": "tidelog.client.group_consumer",
    "InvalidValue": "tidelog.errors",
    "Log": "tidelog.client.log",
    "Pending": "tidelog.client.producer",
    "Position": "tidelog.types",
    "Producer": "tidelog.client.producer",
    "ProducerOptions": "tidelog.client.options",
    "Record": "tidelog.batch.format",
    "TidelogError": "tidelog.errors",
    "TlsOptions": "tidelog.net.tls",
    "TopicConfig": "tidelog.types",
    "Transaction": "tidelog.client.transactions",
    "UnreadableBatch": "tidelog.errors",
    "advice": "tidelog.client.transactions",
    "connect": "tidelog.client.trio_loop",
}
_MODULES = ("aio", "errors", "sync")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"tidelog.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tidelog' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return [*__all__, *_MODULES, *(name for name in globals() if name.startswith("__"))]
