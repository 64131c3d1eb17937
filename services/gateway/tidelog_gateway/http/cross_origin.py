"""Which web pages may ask, and what their browser is told (CORS, Fetch standard). Sans-I/O.

A page of an origin that ``allowed_origins`` lists may ask, and a page of the port itself, by the rules of
``tidelog.net.origins``. Requests of all other pages are refused, also those that a browser would send unasked.

A browser sends no ``Origin`` with a GET of the same origin. So a page that reaches the port under a name of its own
(DNS rebinding) is recognised by that name: without TLS and without a token, ``Host`` must be an address,
``localhost`` or a name in ``allowed_hosts``.
"""

from __future__ import annotations

from tidelog.net.origins import Origins

from tidelog_gateway.http.request_head import RequestHead
from tidelog_gateway.http.responses import Headers, HttpError

_HEADERS = (
    "authorization, content-type, idempotency-key, if-none-match, last-event-id, producer-epoch, producer-id,"
    " producer-seq, stream-closed, stream-expires-at, stream-seq, stream-ttl"
)
_EXPOSED = (
    "tidelog-offset, tidelog-timestamp, tidelog-key, tidelog-leader-epoch, tidelog-next-offset,"
    " tidelog-next-epoch, tidelog-high-watermark, retry-after, etag, location, producer-epoch, producer-expected-seq,"
    " producer-received-seq, producer-seq, stream-closed, stream-cursor, stream-expires-at, stream-next-offset,"
    " stream-sse-data-encoding, stream-ttl, stream-up-to-date"
)


def refuse_page(head: RequestHead, origins: Origins) -> HttpError | None:
    """Return the refusal of a request that a page of another origin makes, or one by way of another name of this
    port; None if it may be served."""
    origin = head.header("origin")
    if origin:
        if origins.admits(origin, head.host):
            return None
        text = f"pages of {origin} may not ask here; allowed_origins lists those that may"
        return HttpError(403, text, code="FORBIDDEN")
    if not head.header("authorization") and not origins.knows(head.host):
        text = f"{head.host} is not known as a name of this gateway: send a token, or list the name in allowed_hosts"
        return HttpError(403, text, code="FORBIDDEN")
    return None


def headers_for(head: RequestHead) -> Headers:
    """Return the headers by which a browser lets an admitted page see the response; none for other clients."""
    origin = head.header("origin")
    if not origin:
        return ()
    return (
        ("access-control-allow-origin", origin),
        ("access-control-expose-headers", _EXPOSED),
        ("vary", "origin"),
    )


def preflight_headers(methods: str) -> Headers:
    """Return what the answer to a browser that asks what an admitted page may send has beside ``headers_for``. A
    browser refuses an answer that names the origin twice."""
    return (
        ("access-control-allow-methods", methods),
        ("access-control-allow-headers", _HEADERS),
        ("access-control-max-age", "600"),
    )
