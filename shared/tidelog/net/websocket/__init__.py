"""WebSocket connections (RFC 6455) over trio, as fast as Python allows.

Start at ``net/websocket/transport.py``. ``frame_stream.py`` is one open connection: it receives and sends messages
and keeps the state of both directions. ``frame_codec.py`` encodes and decodes the bytes of one frame and keeps no
state. ``backlog.py`` bounds the bytes that all connections together hold of incomplete messages.
"""
