"""Following a stream over HTTP with server-sent events (Durable Streams, version 1.0).

Each ``data`` event has the bytes of some appends, and the ``control`` event behind it the position after them.
Readers that wait at the same position share one request to the coordinator.
"""

from __future__ import annotations

import json

from tidelog.errors import TidelogError
from tidelog.wire.codec import payload_buffers
from tidelog.wire.messages import ReadStream, StreamData

from tidelog_gateway.http.events import EventSender
from tidelog_gateway.http.http_link import HttpLink
from tidelog_gateway.http.responses import Headers
from tidelog_gateway.http.streams.content import data_event, is_text
from tidelog_gateway.http.streams.cursors import next_cursor
from tidelog_gateway.http.streams.stream_requests import position_text
from tidelog_gateway.shell import GatewayShell

WAIT_MS = 15_000
"""How long one wait for an append lasts, in milliseconds; then a comment is sent, and the next wait begins."""
HEARTBEAT = b": nothing new\n\n"


class StreamEvents:
    """The events of one reader, from what its first read has found on."""

    def __init__(self, shell: GatewayShell, link: HttpLink, path: str, first: StreamData, cursor: str) -> None:
        self._shell = shell
        self._link = link
        self._path = path
        self._first = first
        self._cursor = cursor
        self.headers: Headers = (("cache-control", "no-cache"), ("cross-origin-resource-policy", "cross-origin"))
        if not is_text(first.content_type):
            self.headers += (("stream-sse-data-encoding", "base64"),)

    async def run(self, sender: EventSender) -> None:
        """Send what the stream has, and then what is appended, until the stream is complete or gone, or the gateway
        closes the link."""
        found = self._first
        await sender.send(self._events(found))
        while not self._link.closed:
            position = found.position + len(_bytes(found))
            if found.closed and position == found.end:
                return
            waits = WAIT_MS if position == found.end else 0
            try:
                read = ReadStream(self._path, position, found.stream_id, max_wait_ms=waits)
                found = await self._link.call(read, StreamData)
            except TidelogError:
                return  # the reader learns why when it connects again
            news = found.payload or found.closed
            await sender.send(self._events(found) if news else HEARTBEAT)

    def _events(self, found: StreamData) -> bytes:
        """Return the events that tell what a read has found."""
        data = _bytes(found)
        end = found.position + len(data)
        control: dict[str, object] = {"streamNextOffset": position_text(found.stream_id, end)}
        if end == found.end and found.closed:
            control["streamClosed"] = True
        else:
            cursor = next_cursor(self._cursor, self._shell.wall_ms())
            self._cursor = control["streamCursor"] = str(cursor)
            if end == found.end:
                control["upToDate"] = True
        text = json.dumps(control, separators=(",", ":")).encode()
        return (data_event(found.content_type, data) if data else b"") + b"event: control\ndata:" + text + b"\n\n"


def _bytes(found: StreamData) -> bytes:
    return b"".join(map(bytes, payload_buffers(found.payload)))
