"""Conversations between processes: transports, links, and the links that a process keeps open.

Start at ``net/link.py``: messages over one connection, with requests, answers and time-outs. ``transport.py`` has the
interface of the connection below a link, and ``websocket`` is the implementation that is used. ``tls.py`` has
certificates and identities, ``tls_stream.py`` encrypts, and ``send_queue.py`` has the messages that wait to be sent.
``peers.py`` keeps a link to each server, ``controller_link.py`` one to the active controller, and
``failure_detector.py`` decides when a silent peer counts as dead. ``origins.py`` decides which web pages may connect.

Clients use this package as services do: it imports nothing of ``runtime``.
"""
