"""HTTP on the gateway's port: programs without a WebSocket append, read and follow records (``docs/http.md``).

A client over HTTP is a client like any other. Its connection is an ``HttpLink`` (``http_link.py``), which
``clients/connections.py`` authenticates and registers as it does the link of a WebSocket. Each request becomes the
messages that a WebSocket client would send for it. So rights, quotas, limits, audit and shutdown are decided in one
place, and no handler here decides about them.

Start at ``http_port.py``, which serves one connection: request after request, each with its answer. Its cores do no
I/O:

    request_head.py     checks the head of a request, more strictly than HTTP asks for
    request_body.py     receives the body, and refuses one that is too long or in too many pieces
    routes.py           finds the operation for a path and method
    cross_origin.py     decides which web pages may ask
    responses.py        statuses, problem documents, and the bytes of a response
    record_bodies.py    makes records of a body
    record_formats.py   writes records as NDJSON, JSON, CBOR, events or single values
    idempotency.py      makes a producer id of an Idempotency-Key, and recognises the records of an earlier try
    openapi.py          describes all of it

The operations (``appends.py``, ``reads.py``, ``events.py``, ``administration.py``) are coroutines that call the link.

Invariants: a request that is refused has changed nothing. A head or body that two parsers could read differently is
refused and ends the connection, so no request hides in another. Only ``server.py`` imports this room.
"""
