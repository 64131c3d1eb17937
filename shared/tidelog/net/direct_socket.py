"""Reading and writing the socket of a stream without waiting: plain TCP, or TLS (``tls_stream.py``).

Most of what a service sends fits into the kernel at once. trio's ``send_all`` would cost a task switch all the same.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import trio

from tidelog.net.tls_stream import TlsStream
from tidelog.types import Buffer

IOV_MAX = 1024
"""Most buffers that the kernel takes at once."""
PIECE_BYTES = 64 << 10
"""Most bytes of one ``flush_some``, and of what is written without waiting."""


class DirectSocket(Protocol):
    """A socket that is read and written without waiting: plain TCP, or a ``TlsStream``."""

    socket: trio.socket.SocketType
    """The socket to wait for until it is readable or writable."""

    def read_now(self, most: int) -> bytes | None:
        """Read at most ``most`` bytes without waiting and return what has arrived; None if nothing has, b"" at the
        end of the connection. Raises ``OSError`` if the connection breaks."""

    def write_now(self, buffers: Sequence[Buffer]) -> int:
        """Write as much of the buffers as is possible without waiting. Return how many bytes were taken. Raises
        ``OSError`` if none can be taken or the connection breaks."""

    @property
    def has_unsent(self) -> bool:
        """Return whether bytes that were taken have not been handed to the kernel yet."""


@dataclass(slots=True)
class _TcpSocket:
    """A plain TCP socket, read and written without waiting."""

    socket: trio.socket.SocketType
    has_unsent: bool = False
    """Always False: the kernel has all bytes that were taken."""

    def read_now(self, most: int) -> bytes | None:
        try:
            return os.read(self.socket.fileno(), most)
        except BlockingIOError:
            return None

    def write_now(self, buffers: Sequence[Buffer]) -> int:
        return os.writev(self.socket.fileno(), buffers[:IOV_MAX])


def direct_socket(stream: trio.abc.Stream) -> DirectSocket | None:
    """Return an object that reads and writes the socket of a stream without waiting; None if the stream is neither
    TCP nor a ``TlsStream``."""
    if isinstance(stream, TlsStream):
        return stream
    return _TcpSocket(stream.socket) if isinstance(stream, trio.SocketStream) else None


async def read_when_ready(direct: DirectSocket, most: int) -> bytes:
    """Wait until bytes arrive, and read at most ``most`` of them from the socket itself; b"" at the end of the
    connection. The stream would ask the kernel twice, which costs as much as a small message. Raises ``OSError`` if
    the connection breaks."""
    while True:
        await trio.lowlevel.wait_readable(direct.socket)
        data = direct.read_now(most)
        if data is not None:
            return data


class StreamSender:
    """Sends bytes on a stream, in order: at once as long as the kernel takes them, and the rest with ``flush_some``.
    Only one task flushes; any task may ``put``."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._direct = direct_socket(stream)
        self._rest = memoryview(b"")
        """What was put and is not written yet."""
        self._flushing = False

    @property
    def is_free(self) -> bool:
        """Return whether the stream can be written without waiting, and nothing has to be sent before."""
        return self._direct is not None and not self._flushing and not self.has_unsent

    @property
    def has_unsent(self) -> bool:
        """Return whether ``flush_some`` has something to send."""
        return len(self._rest) > 0 or (self._direct is not None and self._direct.has_unsent)

    @property
    def unsent_bytes(self) -> int:
        """Return how many bytes were put and are not written."""
        return len(self._rest)

    def put(self, data: bytes) -> None:
        """Write bytes as far as the kernel takes them now, and keep the rest. If the connection is broken, all is
        kept, and ``flush_some`` will notice it."""
        view = memoryview(data)
        if self.is_free:
            assert self._direct is not None
            with suppress(OSError):  # no room in the kernel, or a fault
                view = view[self._direct.write_now((view[:PIECE_BYTES],)) :]
        self._rest = memoryview(b"".join((self._rest, view))) if self._rest else view

    async def flush_some(self) -> None:
        """Wait until the kernel has taken ``PIECE_BYTES`` of what is left, or all of it. Raises
        ``trio.BrokenResourceError`` if the connection is broken. After it was cancelled nothing may be sent any
        more."""
        self._flushing = True
        piece, self._rest = self._rest[:PIECE_BYTES], self._rest[PIECE_BYTES:]
        await self._stream.send_all(piece)
        self._flushing = False
