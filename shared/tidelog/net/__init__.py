"""Conversations between processes: transports, links, and the links that a process keeps open.

Start at ``net/link.py``: messages over one connection, with requests, answers and time-outs. ``transport.py`` is what
a link needs of a connection, and ``websocket`` is the one that is used. ``tls.py`` has certificates and identities,
``tls_stream.py`` encrypts, and ``send_queue.py`` has what waits to be sent. ``peers.py`` keeps a link to each server,
``controller_link.py`` one to the active controller, and ``failure_detector.py`` decides when a silent peer counts as
dead. ``origins.py`` says which web pages may connect.

Clients use this room as services do: it imports nothing of ``runtime``.
"""
