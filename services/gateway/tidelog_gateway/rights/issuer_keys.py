"""Fetches the keys of an outside issuer in the background: from a file, or by one plain GET over HTTP.

Size and time of a fetch are bounded. Redirects are not followed: only the operator decides about the address.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from urllib.parse import urlsplit

import h11
import structlog
import trio
from tidelog.errors import TidelogError
from tidelog.net.tls import TlsFiles, TlsOptions

from tidelog_gateway.rights.authorizer import ClientIdentity
from tidelog_gateway.rights.oidc import Issuer
from tidelog_gateway.settings import OidcRules

MAX_BYTES = 256 << 10
"""Most bytes of a set of keys."""
TIMEOUT_S = 10.0
PORTS = {"http": 80, "https": 443}


class IssuerKeys:
    """The keys of an OpenID Connect issuer, fetched again and again in the background, and the verification of its
    tokens by them. ``where``: a file's path, or a URL. ``ca``: PEM file of the authorities of that URL's certificate;
    "": those that the system trusts. The server runs ``run``."""

    def __init__(self, rules: OidcRules, where: str, ca: str, clock: Callable[[], float]) -> None:
        self._issuer = Issuer(rules)
        self._where = where
        self._tls = TlsFiles(TlsOptions(ca))
        self._clock = clock
        self._wake = trio.Event()
        self._log = structlog.get_logger()

    def recognize(self, token: str, wall_ms: int) -> ClientIdentity | TidelogError:
        """Verify a token and return the identity of its client, or the error with which the client is refused
        (``Issuer.recognize``). If the token's key is missing, ``run`` fetches the keys soon. ``wall_ms``: the wall
        clock in milliseconds."""
        due = self._issuer.due()
        answer = self._issuer.recognize(token, wall_ms)
        if self._issuer.due() < due:
            self._wake.set()
        return answer

    async def run(self) -> None:
        """Fetch the keys whenever they are due, until cancelled. Changed keys and failures are logged; after a
        failure the former keys stay in force for ``max_age_s``."""
        while True:
            with trio.move_on_after(max(0.0, self._issuer.due() - self._clock())):
                await self._wake.wait()
                self._wake = trio.Event()
                continue
            self._issuer.on_try(self._clock())
            try:
                data = await self._get()
                if self._issuer.on_keys(data, self._clock()):
                    self._log.info("issuer_keys_changed", issuer=self._issuer.rules.issuer)
            except (OSError, ValueError, trio.TooSlowError, trio.BrokenResourceError, h11.ProtocolError) as error:
                self._issuer.on_failure(self._clock())
                self._log.warning("issuer_keys_not_read", where=self._where, error=str(error) or repr(error))

    async def _get(self) -> bytes:
        """Return the content of the file or URL with the keys. Raises ``trio.TooSlowError`` after ``TIMEOUT_S``,
        ``ValueError`` if it is too large, and the errors of file or network."""
        with trio.fail_after(TIMEOUT_S):
            if "://" in self._where:
                return await fetch(self._where, self._tls.connecting)
            async with await trio.open_file(self._where, "rb") as file:
                return _bounded(await file.read(MAX_BYTES + 1))


async def fetch(url: str, context: Callable[[], ssl.SSLContext]) -> bytes:
    """Send a GET request to ``url`` and return the body of the answer. Raises ``ValueError`` for any status but 200,
    for a redirect, too, and for a body of more than ``MAX_BYTES``; raises ``OSError`` and trio's and h11's errors if
    the connection fails."""
    parts = urlsplit(url)
    assert parts.hostname
    port = parts.port or PORTS[parts.scheme]
    stream: trio.abc.Stream = await trio.open_tcp_stream(parts.hostname, port)
    if parts.scheme == "https":
        stream = trio.SSLStream(stream, context(), server_hostname=parts.hostname, https_compatible=True)
    async with stream:
        return await _exchange(stream, parts.netloc.rpartition("@")[2], parts.path or "/", parts.query)


async def _exchange(stream: trio.abc.Stream, host: str, path: str, query: str) -> bytes:
    """Send one GET request over an open connection and return the body of the answer. Raises ``ValueError`` as
    ``fetch`` does."""
    http = h11.Connection(h11.CLIENT)
    headers = [("host", host), ("accept", "application/json"), ("connection", "close"), ("user-agent", "tidelog")]
    asked = http.send(h11.Request(method="GET", target=f"{path}?{query}" if query else path, headers=headers))
    await stream.send_all((asked or b"") + (http.send(h11.EndOfMessage()) or b""))
    body = b""
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(bytes(await stream.receive_some(16 << 10)))
        elif isinstance(event, h11.Response) and event.status_code != 200:
            raise ValueError(f"it is answered with HTTP {event.status_code}")
        elif isinstance(event, h11.Data):
            body = _bounded(body + event.data)
        elif isinstance(event, h11.EndOfMessage):
            return body
        elif isinstance(event, h11.ConnectionClosed):
            raise ValueError("the answer is cut short")


def _bounded(data: bytes) -> bytes:
    if len(data) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES} bytes")
    return data
