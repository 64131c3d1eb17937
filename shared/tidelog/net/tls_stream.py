"""TLS over one TCP connection, on OpenSSL's memory BIOs.

trio has ``SSLStream``. It returns one TLS record (at most 16 KiB) for each ``receive_some``, which costs as much as
handling a whole message, and it cannot send without waiting. This stream decrypts everything that one read of the
socket brought. It has the two calls that ``FrameStream`` uses for plain sockets: ``read_now`` and ``write_now``.

Both directions share one ``SSLObject``. It is used only between two awaits, so two tasks never use it together. What
OpenSSL has to send by itself (alerts, key updates, the session tickets of TLS 1.3) leaves with the next write.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import trio

from tidelog.types import Buffer

RECORD_BYTES = 16 << 10
"""Longest content of a TLS record (RFC 8446 §5.1)."""
JOIN_BYTES = 64 << 10
"""Buffers that together are no longer than this are joined before they are encrypted: each record costs both sides a
call."""


class TlsStream(trio.abc.Stream):
    """A TLS stream over a TCP connection, for the client's or the server's side. Call ``do_handshake`` first: unlike
    trio's ``SSLStream``, this class does not do the handshake when it sends or receives. If the other side closes
    without a ``close_notify``, the stream ends normally (``b""``), since the messages inside show by themselves
    whether they are complete. ``aclose`` sends no ``close_notify`` either."""

    def __init__(
        self,
        stream: trio.SocketStream,
        context: ssl.SSLContext,
        *,
        server_side: bool = False,
        server_hostname: str | None = None,
    ) -> None:
        self.context = context
        self.socket = stream.socket
        self._stream = stream
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_hostname
        )
        self._unsent = memoryview(b"")
        """Encrypted bytes that the kernel has not taken yet."""
        self._ended = False
        """Whether the other end sends nothing more."""

    # --- the handshake -----------------------------------------------------------------------------------

    async def do_handshake(self) -> None:
        """Do the TLS handshake with the other side, and wait for its end. Raises ``trio.BrokenResourceError`` if the
        connection breaks or TLS fails; its cause is then the ``ssl.SSLError``, and ``flush`` can still send the alert
        to the other side."""
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self.flush()
                self._feed(await self._stream.receive_some(RECORD_BYTES))
            except ssl.SSLError as error:
                raise trio.BrokenResourceError from error
        if not self._tls.server_side or self._tls.version() != "TLSv1.3":
            await (
                self.flush()
            )  # a server's session tickets wait: the client may not read before it has sent something

    def getpeercert(self) -> dict[str, Any] | None:
        """Return the verified certificate of the other side, in the form of ``ssl.SSLSocket.getpeercert``: None
        without a certificate, an empty dict if it was not verified."""
        return self._tls.getpeercert()

    # --- without waiting ---------------------------------------------------------------------------------

    def read_now(self, most: int) -> bytes | None:
        """Read at most ``most`` bytes from the socket without waiting, decrypt them and return the result. Return
        None if nothing can be decrypted yet, and b"" at the end of the connection. Raises ``OSError`` if the
        connection breaks or the bytes are no valid TLS."""
        try:
            data = os.read(self.socket.fileno(), most)
        except BlockingIOError:
            return None
        self._feed(data)
        return self._decrypt()

    def write_now(self, buffers: Sequence[Buffer]) -> int:
        """Encrypt all the buffers, and hand the kernel as much as it takes without waiting. Return the length of the
        buffers in bytes: none of them need be given again. The encrypted rest (``has_unsent``) leaves with the next
        write or ``flush``. Raises ``OSError`` if the connection breaks."""
        size = self._encrypt(buffers)
        self._push()
        return size

    @property
    def has_unsent(self) -> bool:
        """Return whether encrypted bytes wait to be sent, by ``flush`` or with the next write."""
        return bool(self._unsent) or self._outgoing.pending > 0

    def _feed(self, data: bytes | bytearray) -> None:
        """Give received bytes to OpenSSL; b"" is the end of the connection."""
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    def _decrypt(self) -> bytes | None:
        """Return all content that can be decrypted from the received bytes; None if there is none yet, b"" at the end
        of the connection. Raises ``ssl.SSLError`` for bytes that are no valid TLS."""
        parts: list[bytes] = []
        try:
            with suppress(ssl.SSLWantReadError):  # more has to arrive first
                while part := self._tls.read(RECORD_BYTES):
                    parts.append(part)
                self._end()
        except ssl.SSLError as error:
            if not _is_end(error):
                raise
            self._end()
        if parts:
            return parts[0] if len(parts) == 1 else b"".join(parts)
        return b"" if self._ended else None

    def _end(self) -> None:
        """Shut the socket down for reading, so that the next read returns b"" at once. Does nothing the second
        time."""
        if not self._ended:
            self._ended = True
            with suppress(OSError):  # the connection is gone already
                self.socket.shutdown(trio.socket.SHUT_RD)

    def _encrypt(self, buffers: Sequence[Buffer]) -> int:
        """Encrypt the buffers, small ones joined, into the bytes to be sent. Return their length in bytes."""
        sizes = [buffer.nbytes if type(buffer) is memoryview else len(buffer) for buffer in buffers]
        size = sum(sizes)
        if size <= JOIN_BYTES:
            if size:
                self._tls.write(b"".join(buffers))
            return size
        small: list[Buffer] = []
        for buffer, length in zip(buffers, sizes, strict=True):
            if length < RECORD_BYTES:
                small.append(buffer)
                continue
            if small:
                self._tls.write(b"".join(small))
                small = []
            self._tls.write(buffer)
        if small:
            self._tls.write(b"".join(small))
        return size

    def _push(self) -> None:
        """Hand encrypted bytes to the kernel until it takes no more without waiting. Raises ``OSError`` if the
        connection breaks."""
        while self.has_unsent:
            if not self._unsent:
                self._unsent = memoryview(self._outgoing.read())
            try:
                sent = os.write(self.socket.fileno(), self._unsent)
            except BlockingIOError:
                return
            self._unsent = self._unsent[sent:]

    # --- as a stream -------------------------------------------------------------------------------------

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Wait until content has arrived and return it, about ``max_bytes`` at most; b"" at the end of the
        connection. Raises ``trio.BrokenResourceError`` if the connection breaks or the bytes are no valid TLS."""
        await trio.lowlevel.checkpoint()
        try:
            data = self._decrypt()
            while data is None:
                await trio.lowlevel.wait_readable(self.socket)
                data = self.read_now(max_bytes or RECORD_BYTES)
        except OSError as error:
            raise trio.BrokenResourceError from error
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt the data and wait until the kernel has all of it. Raises ``trio.BrokenResourceError`` if the
        connection breaks."""
        try:
            self._encrypt([data])
        except ssl.SSLError as error:
            raise trio.BrokenResourceError from error
        await self.flush()

    async def flush(self) -> None:
        """Wait until the kernel has all encrypted bytes that were not sent yet. Raises ``trio.BrokenResourceError``
        if the connection breaks."""
        try:
            self._push()
            while self.has_unsent:
                await trio.lowlevel.wait_writable(self.socket)
                self._push()
        except OSError as error:
            raise trio.BrokenResourceError from error
        await trio.lowlevel.checkpoint()

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until the socket has room for bytes to send."""
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """Close the TCP connection at once, without a ``close_notify``."""
        await self._stream.aclose()


def _is_end(error: ssl.SSLError) -> bool:
    """Return whether an OpenSSL error means that the connection ended; releases of OpenSSL report that in different
    ways."""
    return isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError) or "UNEXPECTED_EOF_WHILE_READING" in str(error)
