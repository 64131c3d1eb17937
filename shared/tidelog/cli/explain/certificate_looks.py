"""Which certificates the processes of a cluster show, and whether this machine accepts them, for ``tidelog doctor``.

When the certificate of a process has expired, open connections go on, and every new one fails, with an error that
depends on who connects. So each process is asked directly for its certificate. A process that cannot be reached from
here is left out."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import trio

from tidelog.errors import ConfigError
from tidelog.net.tls import TlsFiles

HANDSHAKE_S = 4.0
"""Seconds in which a process must have shown its certificate."""
EXPIRED, NOT_YET = 10, 9
"""Codes of OpenSSL's verification (``X509_V_ERR_…``): the certificate has expired, or is not valid yet."""


@dataclass(frozen=True, slots=True)
class CertificateLook:
    """The certificate that a process shows. ``code`` is OpenSSL's verification code, 0 if this machine accepts the
    certificate, and ``why`` its text. ``left_s``: seconds until it expires, where that is known."""

    node: str
    url: str
    code: int = 0
    why: str = ""
    left_s: float | None = None


async def look_at_certificates(urls: Mapping[str, str], files: TlsFiles, now_s: float) -> tuple[CertificateLook, ...]:
    """Ask the processes at these URLs, by name, for their certificates, all at the same time, and return what they
    show. ``files``: those of this client. ``now_s``: seconds since 1970. Processes without TLS are not asked."""
    try:
        context = files.connecting()
    except ConfigError:  # the client's own files cannot be used, which its connection reports
        return ()
    found: list[CertificateLook] = []

    async def ask(node: str, url: str) -> None:
        look = await _handshake(node, url, context, now_s)
        if look is not None:
            found.append(look)

    async with trio.open_nursery() as nursery:
        for node, url in urls.items():
            if urlsplit(url).scheme in ("wss", "https"):
                nursery.start_soon(ask, node, url)
    return tuple(sorted(found, key=lambda look: look.node))


async def _handshake(node: str, url: str, context: ssl.SSLContext, now_s: float) -> CertificateLook | None:
    """Begin a TLS connection, and return what the process shows; None if it does not get so far."""
    parts = urlsplit(url)
    with trio.move_on_after(HANDSHAKE_S):
        try:
            stream = await trio.open_tcp_stream(parts.hostname or "", parts.port or 443)
        except OSError:
            return None
        async with stream:
            tls = trio.SSLStream(stream, context, server_hostname=parts.hostname, https_compatible=True)
            try:
                await tls.do_handshake()
            except trio.BrokenResourceError as error:
                inner = error.__cause__
                if isinstance(inner, ssl.SSLCertVerificationError):
                    return CertificateLook(node, url, inner.verify_code, inner.verify_message)
                return None
            shown = tls.getpeercert()
            ends = ssl.cert_time_to_seconds(shown["notAfter"]) if shown else None
            return CertificateLook(node, url, left_s=None if ends is None else ends - now_s)
    return None
