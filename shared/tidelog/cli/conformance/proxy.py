"""A proxy between a library and the gateways, which reads every message, and may change those of the gateways."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType

import trio

BINARY, CONTINUATION, FINAL = 2, 0, 0x80

Look = Callable[[bytes, bool], None]
"""Called with each message of a connection, and whether it comes from the client."""
Change = Callable[[bytes], list[bytes]]
"""Called with each message of a gateway; returns the messages that are sent to the client in its place."""


@dataclass(slots=True)
class Passing:
    """What is done with the messages of one connection."""

    look: Look | None = None
    change: Change | None = None


@dataclass(slots=True)
class Piece:
    """Bytes of a connection that are passed on together, with the message that they hold; None: the HTTP head, or a
    control frame."""

    raw: bytes
    message: bytes | None = None


@dataclass(slots=True)
class Frames:
    """One direction of a WebSocket connection (RFC 6455), without extensions."""

    _data: bytearray = field(default_factory=bytearray)
    _raw: list[bytes] = field(default_factory=list)
    _parts: list[bytes] = field(default_factory=list)
    _is_open: bool = False

    def feed(self, data: bytes | bytearray) -> Iterator[Piece]:
        """Add bytes and yield what is complete with them."""
        self._data += data
        if not self._is_open:
            head, end, rest = bytes(self._data).partition(b"\r\n\r\n")
            if not end:
                return
            self._is_open, self._data = True, bytearray(rest)
            yield Piece(head + end)
        while (frame := self._take()) is not None:
            first, content, raw = frame
            if first & 0x0F not in (BINARY, CONTINUATION):
                yield Piece(raw)
                continue
            self._parts.append(content)
            self._raw.append(raw)
            if first & FINAL:
                yield Piece(b"".join(self._raw), b"".join(self._parts))
                self._parts, self._raw = [], []

    def _take(self) -> tuple[int, bytes, bytes] | None:
        """Remove the first frame; return its first byte, its content and its bytes, or None if it is incomplete."""
        data = self._data
        if len(data) < 2:
            return None
        length, at = data[1] & 0x7F, 2
        if length > 125:
            at = 4 if length == 126 else 10
            length = int.from_bytes(data[2:at], "big")
        mask = bytes(data[at : at + 4]) if data[1] & 0x80 else b""
        at += len(mask)
        end = at + length
        if len(data) < end:
            return None
        content, raw, first = bytes(data[at:end]), bytes(data[:end]), data[0]
        if any(mask):
            key = (mask * (length // 4 + 1))[:length]
            content = (int.from_bytes(content, "big") ^ int.from_bytes(key, "big")).to_bytes(length, "big")
        del data[:end]
        return first, content, raw


def frame_of(message: bytes) -> bytes:
    """Return the frame in which a gateway sends a message."""
    size = len(message)
    if size < 126:
        head = bytes([size])
    elif size < 1 << 16:
        head = bytes([126]) + size.to_bytes(2, "big")
    else:
        head = bytes([127]) + size.to_bytes(8, "big")
    return bytes([FINAL | BINARY]) + head + message


class Proxy:
    """A running proxy in front of gateways, in a thread of its own. A client that connects to one of its ``urls``
    reaches the gateway at the same place of ``gateways``. ``passing`` is called for each connection."""

    def __init__(self, gateways: Sequence[str], passing: Callable[[], Passing]) -> None:
        self.urls: list[str] = []
        self._gateways = gateways
        self._passing = passing
        self._ready = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._serve,))

    def __enter__(self) -> Proxy:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._token.run_sync_soon(self._scope.cancel)
        self._thread.join()

    async def _serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with trio.CancelScope() as self._scope:
            async with trio.open_nursery() as nursery:
                for gateway in self._gateways:
                    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
                    self.urls.append(f"ws://127.0.0.1:{listener.socket.getsockname()[1]}")
                    port = int(gateway.rpartition(":")[2])
                    nursery.start_soon(trio.serve_listeners, self._handler(port), [listener])
                self._ready.set()

    def _handler(self, port: int):  # type: ignore[no-untyped-def]
        async def serve(client: trio.SocketStream) -> None:
            passing = self._passing()
            try:
                gateway = await trio.open_tcp_stream("127.0.0.1", port)
            except OSError:  # it is down, and so this is
                return
            async with gateway, trio.open_nursery() as nursery:

                async def pump(source: trio.SocketStream, target: trio.SocketStream, from_client: bool) -> None:
                    frames = Frames()
                    try:
                        async for data in source:
                            for piece in frames.feed(data):
                                await target.send_all(_passed(piece, passing, from_client))
                        await target.send_eof()
                    except (trio.BrokenResourceError, trio.ClosedResourceError):
                        nursery.cancel_scope.cancel()

                nursery.start_soon(pump, client, gateway, True)
                nursery.start_soon(pump, gateway, client, False)

        return serve


def _passed(piece: Piece, passing: Passing, from_client: bool) -> bytes:
    """Return the bytes that are sent on for a piece."""
    if piece.message is None:
        return piece.raw
    if passing.look is not None:
        passing.look(piece.message, from_client)  # before it can be answered
    if passing.change is None or from_client:
        return piece.raw
    return b"".join(map(frame_of, passing.change(piece.message)))
