"""The console: web pages that the gateway serves under ``/console/`` on the port of its WebSocket.

The files are served as they are in ``static``, with the JavaScript client in ``static/client`` and what others wrote
in ``static/vendor``. The page has no
rights of its own: it asks this gateway over the public protocol, as any client does, with the token that its reader
gives it. It loads nothing from anywhere else, and its policy makes the browser refuse to.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tidelog.net.transport import Page, Pages

PATH = "/console/"
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
    ("cache-control", "no-cache"),
)


@cache
def console_pages() -> Pages:
    """Return the console's static files, by path, as page handlers. The files are read once. ``/console/`` serves
    ``index.html``; ``/`` and ``/console`` redirect to it."""
    folders = (
        "*",
        "vendor/*",
        "client/*",
        "client/src/**/*",
    )  # a pattern with ** alone does not follow the link to src
    files = [path for folder in folders for path in sorted(_FILES.glob(folder))]
    pages = {f"{PATH}{path.relative_to(_FILES)}": _read(path) for path in files if path.suffix in _TYPES}
    there = Page(b"", status=302, headers=(("location", PATH),))
    pages |= {PATH: pages.pop(f"{PATH}index.html"), PATH.rstrip("/"): there, "/": there}
    return {path: lambda accept, page=page: page for path, page in pages.items()}  # type: ignore[misc]


def _read(path: Path) -> Page:
    return Page(path.read_bytes(), _TYPES[path.suffix], headers=_HEADERS)
