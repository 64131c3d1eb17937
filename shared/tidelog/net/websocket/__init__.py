"""WebSocket connections (RFC 6455) over trio, as fast as Python allows.

Start at ``net/websocket/transport.py``. ``frames.py`` decodes and encodes frames, ``frame_format.py`` has the mask
and the lengths, ``backlog.py`` bounds what messages that are not complete may hold.
"""
