"""The console: web pages that the gateway serves under ``/console/`` on the port of its WebSocket.

The files are in ``static``: the JavaScript client in ``static/client``, the work of others in ``static/vendor``. The
page has no rights of its own: it asks this gateway over the public protocol, as any client does, with the token that
its reader gives it. It loads nothing from anywhere else, and its policy makes the browser refuse to.

A connection answers one request, so few requests make a page that is there at once. Browsers ask for ``index.html``
each time. It names three more files, of which ``app.js`` is made of all modules (``bundle``). Their folder has a hash
of them as its name, and browsers keep them for a year: when a file changes, so do the paths.

The JavaScript client alone is one module at ``CLIENT``, for the pages of others: those whose origin the gateway
admits may load it from there.
"""

from __future__ import annotations

import gzip
import re
from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import Path

from tidelog.net.transport import Page, Pages

from tidelog_gateway.console.bundle import bundle

PATH = "/console/"
CLIENT = f"{PATH}client/tidelog.js"
_FILES = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
_HEADERS = (
    ("content-security-policy", _POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
)
_FRESH = ("cache-control", "no-cache")
_KEPT = ("cache-control", "public, max-age=31536000, immutable")
_SCRIPT = "app.js"
"""The module that needs all others."""
_CLIENT = "client/tidelog.js"
"""The module that is the JavaScript client."""
_NAMED = re.compile(r'(?<=href="|.src=")[\w-]+\.\w+(?=")')
"""A file that is named in ``index.html``."""


@cache
def console_pages() -> Pages:
    """Return the console's files and the client, by path, as page handlers. They are read once. ``/console/`` serves
    ``index.html``; ``/`` and ``/console`` redirect to it."""
    index, modules = (_FILES / "index.html").read_text(), _modules()
    files = {name: (_FILES / name).read_bytes() for name in _NAMED.findall(index)}
    files[_SCRIPT] = bundle(modules, _SCRIPT).encode()
    folder = sha256(b"".join(files.values())).hexdigest()[:16]
    index = _NAMED.sub(lambda found: f"{folder}/{found[0]}", index)
    pages = {f"{PATH}{folder}/{name}": _page(name, body, _KEPT) for name, body in files.items()}
    there = Page(b"", status=302, headers=(("location", PATH),))
    pages |= {PATH: _page("index.html", index.encode(), _FRESH), PATH.rstrip("/"): there, "/": there}
    pages[CLIENT] = replace(_page(_CLIENT, bundle(modules, _CLIENT).encode(), _FRESH), shared=True)
    return {path: lambda accept, page=page: page for path, page in pages.items()}  # type: ignore[misc]


def _modules() -> dict[str, str]:
    """Return the texts of all modules, by path."""
    patterns = ("*.js", "*/*.js", "client/src/**/*.js")  # a pattern with ** alone does not follow the link to src
    paths = (path for pattern in patterns for path in _FILES.glob(pattern))
    return {path.relative_to(_FILES).as_posix(): path.read_text() for path in paths}


def _page(name: str, body: bytes, kept: tuple[str, str]) -> Page:
    kind = _TYPES[Path(name).suffix]
    return Page(body, kind, headers=(*_HEADERS, kept), gzipped=gzip.compress(body, mtime=0))
