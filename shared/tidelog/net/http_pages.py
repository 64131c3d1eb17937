"""Plain HTTP on a service's WebSocket port: a request that does not ask for WebSocket gets a page, or an error.

Sans-I/O: the head of a request in, the whole answer out. One request per connection; bodies are not read.
"""

from __future__ import annotations

import re

import h11

from tidelog.net.origins import Origins
from tidelog.net.transport import SUBPROTOCOL, Page, Pages

NO_ORIGINS = Origins()
METRICS_PATH = "/metrics"
"""Shown only if the request names this port by a known name (``Origins.knows``)."""


_ASKS_FOR_WEBSOCKET = re.compile(rb"\r\nupgrade:[ \t]*websocket", re.IGNORECASE)


def is_for(head: bytes, prefix: str) -> bool:
    """Return whether a request, of which ``head`` has at least the first line, is for a path that begins with
    ``prefix`` (``/v1/``) and does not ask for WebSocket."""
    target = head.partition(b"\r\n")[0].split(b" ")[1:2]
    path = re.sub(rb"^https?://[^/]*", b"", target[0]) if target else b""
    return path.startswith(prefix.encode()) and _ASKS_FOR_WEBSOCKET.search(head) is None


def answer(head: bytes, pages: Pages, origins: Origins = NO_ORIGINS) -> bytes | None:
    """Return the whole HTTP answer to a request with this head: a page, or an error (403, 404, 405). Return None if
    the request asks for WebSocket and its origin may connect, or if it is not an HTTP request; the WebSocket
    handshake answers these. Raises the exception of the page's function."""
    connection = h11.Connection(h11.SERVER)
    try:
        connection.receive_data(head)
        request = connection.next_event()
    except h11.RemoteProtocolError:
        return None
    if not isinstance(request, h11.Request):
        return None
    if "upgrade" not in _header(request, b"connection").lower():
        page = _page(request, pages, origins)
    elif origins.admits(origin := _header(request, b"origin"), _header(request, b"host")):
        return None
    else:
        listed = "allowed_origins lists those that may" if origins.browsers else "web pages connect to gateways"
        why = f"pages of {origin} may not connect here; {listed}\n"
        page = Page(why.encode(), status=403)
    gzipped = page.gzipped and _accepts_gzip(request)
    body = page.gzipped if gzipped else page.body
    headers = [("content-type", page.content_type), ("content-length", str(len(body))), ("connection", "close")]
    headers += page.headers
    if page.gzipped:
        headers.append(("vary", "accept-encoding"))
    if page.shared:
        headers.append(("vary", "origin"))
        if (origin := _header(request, b"origin")) and origins.admits(origin, _header(request, b"host")):
            headers.append(("access-control-allow-origin", origin))
    if gzipped:
        headers.append(("content-encoding", "gzip"))
    if page.status == 405:
        headers.append(("allow", "GET, HEAD"))
    out = connection.send(h11.Response(status_code=page.status, headers=headers)) or b""
    return out if request.method == b"HEAD" else out + body


def _page(request: h11.Request, pages: Pages, origins: Origins) -> Page:
    """Return the page for a request, or an error page: 405 for another method than GET and HEAD, 404 for an unknown
    path, and 403 for the metrics and for a private page under a host name that is not known."""
    path = request.target.split(b"?")[0].decode("ascii")
    if request.method not in (b"GET", b"HEAD"):
        return Page(b"pages are for GET\n", status=405)
    if path not in pages:
        there = "".join(f"{name}\n" for name in pages if "." not in name)
        return Page(f"there is no {path}; this port speaks WebSocket, {SUBPROTOCOL}\n{there}".encode(), status=404)
    is_known = origins.knows(host := _header(request, b"host"))
    if is_known or path != METRICS_PATH:
        page = pages[path](_header(request, b"accept"))
        if is_known or not page.private:
            return page
    why = f"{host} is not known as a name of this service; allowed_hosts lists those that are\n"
    return Page(why.encode(), status=403)


def _accepts_gzip(request: h11.Request) -> bool:
    """Return whether the request names gzip among the encodings that it accepts (RFC 9110, 12.5.3), without a
    weight of 0."""
    accepted = _header(request, b"accept-encoding").replace(" ", "").lower().split(",")
    return any(one == "gzip" or re.fullmatch(r"gzip;q=(1|0\.0*[1-9]).*", one) for one in accepted)


def _header(request: h11.Request, name: bytes) -> str:
    return ", ".join(value.decode("latin-1") for known, value in request.headers if known == name)
