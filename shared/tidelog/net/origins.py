"""Which web pages may connect: the check of a handshake's ``Origin`` (RFC 6454, RFC 6455 §10.2).

A browser lets a page of any origin open a WebSocket to any address that its machine can reach, and only reports the
page's origin. So a page of another origin than the port itself is refused, unless its origin is listed. That includes
pages of other ports of this machine, which may belong to other people. Programs that are not browsers send no
``Origin``, or an arbitrary one: it identifies nobody, which is the task of authentication.

*The port itself* is the host and port that the page's own address names, as the header ``Host`` repeats it. Without
TLS a name there proves nothing: the owner of any name can let it resolve to this address (DNS rebinding) and serve a
page under it. So without TLS the host is an address, or ``localhost``; a name has to be listed.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import SplitResult, urlsplit

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Origins:
    """What a port accepts in a request's headers ``Origin`` and ``Host``: the origins whose web pages may connect,
    and the names of the port itself."""

    allowed: Collection[str] = ()
    """Origins whose pages may connect, such as ``https://app.example``, ``http://10.0.0.7:3000``; ``*``: pages of any
    origin."""
    secure: bool = False
    """Whether the port speaks TLS."""
    hosts: Collection[str] = ()
    """Names of this port itself, without a port number."""
    browsers: bool = True
    """Whether web pages may connect. False for a port for services: no page may connect, not even one of the port
    itself."""

    def admits(self, origin: str, host: str) -> bool:
        """Return whether a request with these headers ``Origin`` and ``Host`` ("": no such header) may open a
        WebSocket. A page of a listed origin or of the port itself may, unless the port accepts no browsers. A request
        without an origin does not come from a browser, and always may."""
        if not origin or not self.browsers:
            return not origin
        if "*" in self.allowed or origin.lower() in {one.lower() for one in self.allowed}:
            return True
        page, here = _split(origin), _split(f"{'https' if self.secure else 'http'}://{host}")
        if page is None:  # "null": a file, or a page in a sandbox
            return False
        same = here is not None and _place(page) == _place(here)
        return same and (self.secure or _is_address(page.hostname or ""))

    def knows(self, host: str) -> bool:
        """Return whether the header ``Host`` of a request names this port: an IP address, ``localhost`` or a listed
        name. With TLS the answer is always True, since the certificate proves the name. Refusing other names stops
        pages that reach the port under a name of their own (DNS rebinding)."""
        return self.secure or _knows(host, tuple(self.hosts), tuple(self.allowed))


@lru_cache(maxsize=256)
def _knows(host: str, hosts: tuple[str, ...], allowed: tuple[str, ...]) -> bool:
    """Return whether a header ``Host`` is an IP address, ``localhost``, one of ``hosts``, or the host of an origin in
    ``allowed``."""
    here = _split(f"http://{host}")
    if here is None or here.username is not None:
        return False
    name = here.hostname or ""
    listed = {one.lower() for one in hosts} | {page.hostname for page in map(_split, allowed) if page}
    return _is_address(name) or name in listed


def is_origin(text: str) -> bool:
    """Return whether ``text`` may be an entry in a list of allowed origins: ``scheme://host``, ``scheme://host:port``
    (``http`` or ``https``), ``null`` or ``*``."""
    page = _split(text)
    return text in ("*", "null") or (page is not None and text == f"{page.scheme}://{page.netloc}")


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached only from this machine: a loopback IP address or ``localhost``. Return
    False for any other name, since it may resolve to any address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_address(host: str) -> bool:
    """Return whether ``host`` is an IP address or ``localhost``, and no name that DNS could resolve otherwise."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return True


def _split(url: str) -> SplitResult | None:
    """Return the parts of an ``http`` or ``https`` URL; None if it is malformed, has another scheme or no host."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises where it is none
    except ValueError:
        return None
    return parts if parts.scheme in _PORTS and parts.hostname else None


def _place(url: SplitResult) -> tuple[str, str | None, int]:
    return url.scheme, url.hostname, url.port or _PORTS[url.scheme]
