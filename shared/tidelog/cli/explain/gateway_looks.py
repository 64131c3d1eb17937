"""What gateways say of their clients: connections, quotas that are used up, and clients that were refused, for
``tidelog doctor``.

Counters say how often something happened since the gateway started. So each gateway is asked twice, and what has
happened in between counts. A gateway that refuses this client, too, is asked for its page of metrics over HTTP, which
needs no place among its clients."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tidelog.wire.messages import MetricsAnswer, RefusedClient

if TYPE_CHECKING:
    import ssl

PAGE_BYTES = 8 << 20
"""Most bytes of a page of metrics that are read."""
PAGE_S = 5.0
"""Seconds in which a gateway must send the page of its metrics."""
MOST_PRINCIPALS = 3
"""Most principals that are named as those with the most connections."""
_SAMPLE = re.compile(r"^tidelog_gateway_(\w+?)(?:\{([^}]*)\})? ([0-9.e+-]+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class UsedQuota:
    """A quota of a principal that is used up: how often something waited for it within ``seconds``, and how long the
    next must wait now."""

    principal: str
    rate: str
    times: int
    seconds: float
    pause_s: float


@dataclass(frozen=True, slots=True)
class GatewayLook:
    """What one gateway says of its clients. ``limit`` is ``client_max_connections``; -1: not known, as of an earlier
    release."""

    name: str
    connections: int = 0
    limit: int = -1
    principals: tuple[tuple[str, int], ...] = ()
    """The principals with the most connections, each with its number."""
    used: tuple[UsedQuota, ...] = ()
    refused: tuple[RefusedClient, ...] = ()
    now_ms: int = -1
    """The gateway's clock, with which the times of ``refused`` are compared."""


def look_of(name: str, before: MetricsAnswer, after: MetricsAnswer) -> GatewayLook:
    """Return what two answers of a gateway to ``describe_metrics``, the second later than the first, say of its
    clients."""
    first, last = _samples(before.page), _samples(after.page)
    seconds = max(0.0, (after.time_ms - before.time_ms) / 1000)
    used = []
    for (metric, *labels), value in last.items():
        if metric == "quota_refusals_total" and len(labels) == 2:
            key = tuple(labels)
            times = int(value - first.get((metric, *key), 0.0))
            pause_s = last.get(("quota_pause_seconds", *key), 0.0)
            if times > 0 or pause_s:
                used.append(UsedQuota(key[0], key[1], times, seconds, pause_s))
    return GatewayLook(
        name,
        *_connections(last),
        used=tuple(sorted(used, key=lambda one: (one.principal, one.rate))),
        refused=after.refused,
        now_ms=after.time_ms,
    )


def look_at_page(name: str, page: str) -> GatewayLook:
    """Return what a page of metrics says of a gateway's connections."""
    return GatewayLook(name, *_connections(_samples(page)))


def _connections(samples: dict[tuple[str, ...], float]) -> tuple[int, int, tuple[tuple[str, int], ...]]:
    """Return the number of connections, their limit, and the principals with the most of them."""
    held = [(key[1], int(value)) for key, value in samples.items() if key[0] == "principal_connections"]
    held.sort(key=lambda one: (-one[1], one[0]))
    number = int(samples.get(("connections",), 0.0))
    return number, int(samples.get(("connections_limit",), -1.0)), tuple(held[:MOST_PRINCIPALS])


def _samples(page: str) -> dict[tuple[str, ...], float]:
    """Return the values of a gateway's page by (name without the prefix, value of each label)."""
    return {(name, *_labels(labels)): float(value) for name, labels, value in _SAMPLE.findall(page)}


def _labels(text: str) -> Iterator[str]:
    for _, value in _LABEL.findall(text):
        yield value.replace('\\"', '"').replace("\\n", "\n").replace("\\\\", "\\")


def fetch_page(url: str, context: ssl.SSLContext | None) -> str:
    """Return the page of metrics of the gateway at this URL, "" if it has none or does not answer. ``context``: for
    an URL with TLS."""
    parts = urlsplit(url)
    options: dict[str, Any] = {"timeout": PAGE_S}
    kind: type[HTTPConnection] = HTTPConnection
    if parts.scheme in ("wss", "https"):
        options["context"], kind = context, HTTPSConnection
    with suppress(OSError, HTTPException, ValueError):
        connection = kind(parts.hostname or "", parts.port, **options)
        try:
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            return answer.read(PAGE_BYTES).decode(errors="replace") if answer.status == 200 else ""
        finally:
            connection.close()
    return ""
