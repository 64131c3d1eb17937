"""The addresses of gateways as people write them, and in plain words what is wrong with an address that does not lead
to one. Shared by the transports of trio and asyncio."""

from __future__ import annotations

import errno
import os
import re
import socket
from urllib.parse import urlsplit

from tidelog.errors import ConfigError
from tidelog.net.origins import is_loopback

DEFAULT_PORT = 9292
NEEDS_TLS = 426
"""HTTP status (RFC 2817) with which a port of Tidelog that speaks TLS answers plain text."""
EVERYWHERE = ("0.0.0.0", "::")
"""Hosts at which a port listens on every address of its machine."""
MAX_ADVERTISED = 64
"""Number of gateways that clients are told of, at most."""
MAX_ADVERTISED_URL = 255
"""Characters of a URL that a gateway advertises, at most."""
BAD_GATEWAYS = (502, 503, 504)
"""HTTP statuses of a full gateway, or of a proxy that does not reach one: another try may succeed."""
_ADVERTISED = re.compile(r"wss?://[!\"$->@-~]+")
"""Printable ASCII without white space, ``?`` and ``#``."""
_SECURE = ("https", "ssl", "tls")
_HEAD = re.compile(rb"HTTP/[\d.]+ (\d{3})")
_SERVER = re.compile(rb"\r\nserver: *([^\r\n]*)", re.I)


def gateway_url(address: str) -> str:
    """Return the URL that an address means: ``ws://…`` and ``wss://…`` are URLs already, ``host:port`` means
    ``ws://host:port``, and ``host`` means the default port of gateways. Raises ``ConfigError``, which says what would
    be right, for anything else, such as an address with a password."""
    scheme, separator, rest = address.partition("://")
    if separator and scheme.lower() not in ("ws", "wss"):
        better = f"{'wss' if scheme.lower() in _SECURE else 'ws'}://{rest}"
        raise ConfigError(f"{address} is no address of a gateway, which speaks WebSocket: did you mean {better}?")
    url = address if separator else f"ws://{address}"
    try:
        parts = urlsplit(url)
        if "@" in parts.netloc:
            raise ConfigError("a gateway's address has no user and password: --token-file names a file with a token")
        if not url.isprintable():
            raise ValueError("it has characters that are not printable")
        if not parts.hostname or url != "".join(url.split()):
            raise ValueError("it has no host" if not parts.hostname else "it has spaces")
        if not separator and parts.port is None:
            return f"ws://{parts.netloc.rstrip(':')}:{DEFAULT_PORT}{parts.path}"
    except ValueError as error:
        form = "host:port or wss://host:port"
        raise ConfigError(f"{address!r} is no address of a gateway, such as {form}: {error}") from None
    return url


def refuse_advertised(url: str) -> str:
    """Return what is wrong with a URL that a gateway advertises to clients; "" if nothing is. It is ``ws://`` or
    ``wss://``, a host, and perhaps a port and a path: printable ASCII, at most ``MAX_ADVERTISED_URL`` characters."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises where it is none
    except ValueError as error:
        return str(error)
    if len(url) > MAX_ADVERTISED_URL:
        return f"it is longer than {MAX_ADVERTISED_URL} characters"
    if not _ADVERTISED.fullmatch(url) or not parts.hostname or "@" in parts.netloc:
        return "it must be a URL of the form ws://host:port or wss://host:port"
    if parts.hostname in EVERYWHERE:
        return "its host means every address of a machine: name one that clients reach"
    return ""


def is_loopback_url(url: str) -> bool:
    """Return whether the host of a URL is reached only from its own machine; False for a malformed URL."""
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False


def why_no_connection(error: BaseException) -> str:
    """Return why no TCP connection was opened, without trio's group of one error for each address."""
    inner = error.__cause__
    if isinstance(inner, BaseExceptionGroup):
        inner = inner.exceptions[0]
    for one in (inner, error):
        if isinstance(one, socket.gaierror):
            return f"the name of the host is not known ({one.strerror})"
        if isinstance(one, OSError) and one.errno == errno.ECONNREFUSED:
            return "nothing listens there (connection refused)"
        if isinstance(one, OSError) and one.errno:
            return os.strerror(one.errno)
    return str(error)


def why_refused(url: str, status: int, server: str) -> str:
    """Return what answered an opening handshake to ``url`` with this HTTP status. ``server`` is the ``Server`` header
    of the answer; "" if it has none."""
    if status == NEEDS_TLS:
        return f"the port speaks TLS: use {url.replace('ws:', 'wss:', 1)}"
    if status in BAD_GATEWAYS:
        return f"refused with HTTP {status}: the gateway is full, or a proxy does not reach it"
    named = f" ({server})" if server else ""
    return f"an HTTP server{named} answers there with status {status}; it is no gateway of Tidelog"


def why_no_websocket(url: str, data: bytes) -> str:
    """Return what answered an opening handshake to ``url`` with ``data``, the first bytes or the whole HTTP head, if
    that is no WebSocket; "" if it is one, or if more bytes have to tell."""
    if data[:1] == b"\x15":  # an alert (RFC 8446 §5.1): what TLS servers answer to plain text
        return f"the port speaks TLS: use {url.replace('ws:', 'wss:', 1)}"
    if not b"HTTP/".startswith(data[:5]):
        return f"something else than a gateway answers there: {data[:40]!r}"
    head = _HEAD.match(data)
    if head is None or head[1] == b"101" or b"\r\n\r\n" not in data:
        return ""
    server = _SERVER.search(data)
    return why_refused(url, int(head[1]), server[1].decode("latin-1") if server else "")
