"""WebSocket frames (RFC 6455 §5) over a trio stream: the bulk path beneath ``net/websocket/transport.py``.

Theory. trio-websocket does the opening handshake. The frames that follow are read and written here, because wsproto
copies a message several times, unmasks it byte by byte, and costs a hop between two tasks. One task calls ``receive``
and handles the messages; one task calls ``send_many``. There is no third. While the sender sleeps any task may call
``send_now``. It hands the kernel as much as the kernel takes without waiting, and leaves the rest to the sender. Most
messages are sent so, without a hop between tasks. Pings and pongs are queued in ``_urgent``, and are sent before the
next frame, or by themselves: a ping at once, a pong before the reader waits. If something else is being sent then,
``on_urgent`` is called, and the sender sends them.

- Masking (§5.3): the end that opened the connection masks each frame with a key that nobody can predict, so that no
  proxy on the way can be made to see bytes of the sender's choice. Between the services of a cluster the key is zero,
  so that nothing has to be masked and unmasked (decision 4).
- Fragments (§5.4) are accepted, and bounded: in bytes by the size of the message, in number by ``MAX_FRAGMENTS``.
- A message that has begun must make progress: ``PROGRESS_BYTES`` more of it, or its end, every ``PROGRESS_S``,
  whatever control frames arrive meanwhile. A slower peer would hold memory and a connection for ever. The bytes of
  incomplete messages of all connections are bounded (``backlog.py``): if there are too many, the oldest message ends.
- Refused with 1002: reserved bits, unknown opcodes, wrong masking, long or fragmented control frames, a
  continuation of nothing, lengths that are not minimal, floods of pings; 1003: text; 1009: too large a message.
"""

from __future__ import annotations

import math
import os
import struct
from collections import deque
from collections.abc import Callable, Sequence

import trio

from tidelog.errors import ProtocolError, Unreachable
from tidelog.net.direct_socket import direct_socket, read_when_ready
from tidelog.net.tls import NodeIdentity
from tidelog.net.transport import Outgoing, outgoing
from tidelog.net.websocket.backlog import Backlog
from tidelog.net.websocket.frame_codec import (
    BINARY,
    BROKEN_RULES,
    CLOSE,
    CONTINUATION,
    NO_MASK,
    PING,
    PONG,
    TEXT,
    close_reason,
    frame_head,
    mask_buffers,
    mask_bytes,
    plain_message,
)
from tidelog.types import Buffer
from tidelog.wire.codec import payload_buffers
from tidelog.wire.messages import Payload

MAX_FRAGMENTS = 1024
"""Most frames of one message."""
MAX_CONTROLS = 100
"""Most control frames (ping, pong) in one second."""
PROGRESS_BYTES, PROGRESS_S = 16 << 10, 15.0
"""A begun message must bring so many bytes in so many seconds."""
JOIN_BYTES = 64 << 10
"""Pieces up to this are copied together into one send; a longer one is sent as it is."""
RECEIVE_BYTES = 256 << 10
"""Most bytes of one read in the middle of a message."""
FIRST_BYTES = 64 << 10
"""Size of the read at the start of a message: glibc maps larger buffers anew for every read, and unmaps them."""
KEYS_BYTES = 1 << 10
"""Size of a read from the system's random generator: 256 masking keys."""

TEXT_FRAME, TOO_LARGE, TOO_SLOW = 1003, 1009, 1013


class FrameStream:
    """One end of an open WebSocket connection: it receives and sends whole messages as frames over a stream.
    Implements ``tidelog.net.transport.Connection``."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        remote: str,
        *,
        server: bool,
        masks: bool = True,
        max_bytes: int,
        first_bytes: int | None = None,
        early: bytes = b"",
        backlog: Backlog | None = None,
    ) -> None:
        """``server``: whether this end accepted the connection. ``masks``: whether an end that opened it uses random
        masking keys, not zeros. ``max_bytes``: length of the longest message that is accepted; ``first_bytes``, if
        given: of the first message. ``early``: bytes that already arrived after the handshake. ``backlog``: the bound
        on the incomplete messages of all connections; None: no bound."""
        self.remote = remote
        self.on_urgent: Callable[[], None] = lambda: None
        self.on_wait: Callable[[], None] = lambda: None
        """Called when all messages that have arrived were returned, before ``receive`` waits for more."""
        self.identities: tuple[NodeIdentity, ...] | None = None
        """The identities in the peer's certificate; None if none is asked for."""
        self.local_url = ""
        self.heard_at = trio.current_time()
        """When the last bytes came from the peer (trio's clock)."""
        self.answered_at: float | None = None
        """When the first bytes came from the peer after the last ping; None if none have come."""
        self._stream = stream
        self._server = server
        self._full_bytes = max_bytes
        self._max_bytes = max_bytes if first_bytes is None else min(first_bytes, max_bytes)
        self._chunk = early
        self._position = 0
        self._direct = direct_socket(stream)
        self._masks = masks and not server
        self._fixed_mask = b"" if server else NO_MASK  # unless this end masks
        self._keys, self._keys_used = b"", 0  # random bytes for masking keys, and how many of them were used
        self._rest: list[Buffer] = []  # what ``send_now`` could not send: goes before everything else
        self._urgent: deque[bytes] = deque()
        self._sending = False  # a send was begun and not ended: what the peer has may be half a frame
        self._closed = False
        self._peer_close: bytes | None = None
        self._controls = 0
        self._controls_until = 0.0
        self._begun = False
        """Whether the beginning of a message has arrived."""
        self._arrived = 0
        self._wanted, self._due = 0, math.inf
        """Count of received bytes that must be reached, and by when; inf if the rest of a message has not been waited
        for yet."""
        self._backlog = backlog
        self._patience = trio.CancelScope()
        self._overdrawn = False

    # --- receiving ---------------------------------------------------------------------------------------

    async def receive(self) -> bytes:
        """Wait for the next binary message and return it. Pings that come before it are answered with pongs. Raises
        ``ProtocolError`` if the peer breaks the rules or a begun message makes no progress; its detail ``close_code``
        is the WebSocket close code for the peer. Raises ``Unreachable`` if the connection ends."""
        if self._position == len(self._chunk):
            self._chunk, self._position = await self._receive_some(within=self._begun), 0
        if (message := self._take_plain()) is not None:
            return message
        parts: list[bytes] = []
        size = 0
        while True:
            final, opcode, length, mask = await self._read_head()
            if opcode >= CLOSE:
                self._control(opcode, await self._read_payload(length, mask))
                if parts:
                    self._wanted += length + len(mask) + 2  # it is no part of the message around it
                else:
                    self._end_message()
                continue
            if opcode == TEXT:
                raise ProtocolError("text frames are not accepted, only binary ones", close_code=TEXT_FRAME)
            if (opcode == CONTINUATION) is not bool(parts):
                raise _broken("a frame out of order")
            size += length
            if size > self._max_bytes:
                raise ProtocolError(
                    f"a message of {size} bytes or more; the limit is {self._max_bytes}", close_code=TOO_LARGE
                )
            parts.append(await self._read_payload(length, mask))
            if final:
                self._end_message()
                self._max_bytes = self._full_bytes
                return parts[0] if len(parts) == 1 else b"".join(parts)
            if len(parts) >= MAX_FRAGMENTS:
                raise _broken(f"a message of more than {MAX_FRAGMENTS} fragments")

    def _take_plain(self) -> bytes | None:
        """Return the next message if the bytes received last contain it as one short, complete frame, as is most
        often the case; None otherwise."""
        found = plain_message(self._chunk, self._position, masked=self._server)
        if found is None or (found[1] - found[0]) > self._max_bytes:
            return None
        start, end, mask = found
        self._position = end
        self._max_bytes = self._full_bytes
        data = self._chunk[start:end]
        return mask_bytes(data, mask) if mask else data

    def _end_message(self) -> None:
        """Record that a message has been received completely: its deadline is over, and its bytes are no longer
        counted as held."""
        self._begun = False
        if self._due != math.inf:
            self._due, self._overdrawn = math.inf, False
            if self._backlog is not None:
                self._backlog.remove(self)

    def give_up(self) -> None:
        """Make ``receive`` fail in the middle of its message, since all connections together hold too many bytes."""
        self._overdrawn = True
        self._patience.cancel()

    async def _read_head(self) -> tuple[bool, int, int, bytes]:
        """Read the head of a frame. Return whether the frame is the last of its message, its opcode, its length in
        bytes and its masking key. Raises ``ProtocolError`` if the frame breaks the rules."""
        first, second = await self._read(2)
        self._begun = True
        if first & 0x70:
            raise _broken("reserved bits are set")
        opcode, length = first & 0x0F, second & 0x7F
        final = bool(first & 0x80)
        if opcode not in (CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG):
            raise _broken(f"unknown opcode {opcode}")
        if opcode >= CLOSE and (length > 125 or not final):
            raise _broken("a control frame is fragmented or too long")
        if bool(second & 0x80) is not self._server:
            raise _broken("clients mask their frames, servers do not")
        if length == 126:
            (length,) = struct.unpack(">H", await self._read(2))
            if length < 126:
                raise _broken("a length that is not minimal")
        elif length == 127:
            (length,) = struct.unpack(">Q", await self._read(8))
            if length < 1 << 16 or length >> 63:
                raise _broken("a length that is not minimal")
        return final, opcode, length, await self._read(4) if self._server else b""

    async def _read_payload(self, length: int, mask: bytes) -> bytes:
        return mask_bytes(await self._read(length), mask)

    async def _read(self, count: int) -> bytes:
        """Return exactly ``count`` bytes from the stream, receiving more if necessary. Bytes from the kernel are
        copied at most once. Raises ``Unreachable`` or ``ProtocolError`` as ``_receive_some`` does."""
        end = self._position + count
        if end <= len(self._chunk):
            data = self._chunk[self._position : end]
            self._position = end
            return data
        pieces = [self._chunk[self._position :]]
        have = len(pieces[0])
        while have < count:
            piece = await self._receive_some(within=have > 0 or self._begun)
            pieces.append(piece)
            have += len(piece)
        self._chunk = pieces.pop()
        self._position = len(self._chunk) - (have - count)
        pieces.append(self._chunk[: self._position])
        return b"".join(pieces)

    async def _receive_some(self, within: bool) -> bytes:
        """Wait until bytes arrive and return them. ``within``: a message has begun, so bytes that have arrived
        already are taken without a switch of tasks, and the message must make progress. Raises ``Unreachable`` if the
        connection ends, and ``ProtocolError`` if a begun message makes no progress."""
        if not within:
            self._before_wait()
        try:
            if within:
                data = await self._receive_more()
            elif self._direct is None:
                data = bytes(await self._stream.receive_some(RECEIVE_BYTES))
            else:
                data = await read_when_ready(self._direct, FIRST_BYTES)
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError) as error:
            self._closed = True
            raise Unreachable(f"connection to {self.remote} broke") from error
        if not data:
            self._closed = True
            raise Unreachable(f"{self.remote} closed the connection without a close frame")
        self._arrived += len(data)
        self.heard_at = trio.current_time()
        if self.answered_at is None:
            self.answered_at = self.heard_at
        return data

    async def _receive_more(self) -> bytes:
        """Wait for more bytes of a message that has begun and return them; b"" at the end of the connection. Raises
        ``ProtocolError`` (if this end accepted the connection) or ``Unreachable`` (if it connected) if the message
        makes no progress, or if it has to give up because all connections together hold too many bytes of incomplete
        messages (``Backlog``). If the connection breaks, raises ``OSError`` or the error of the trio stream."""
        if self._due == math.inf or self._arrived >= self._wanted:
            self._wanted, self._due = self._arrived + PROGRESS_BYTES, trio.current_time() + PROGRESS_S
        data = None if self._direct is None else self._direct.read_now(RECEIVE_BYTES)
        if data is None:
            self._before_wait()
            with trio.CancelScope(deadline=self._due) as self._patience:
                if self._direct is None:
                    data = bytes(await self._stream.receive_some(RECEIVE_BYTES))
                else:
                    data = await read_when_ready(self._direct, RECEIVE_BYTES)
        if data is not None and self._backlog is not None:
            self._backlog.add(self, len(data))
        if data is not None and not self._overdrawn:
            return data
        text = f"a message that does not get on: less than {PROGRESS_BYTES} bytes of it in {PROGRESS_S:g} s"
        if self._overdrawn:
            text = "a message that is not complete, while too much is held of such messages"
        raise ProtocolError(text, close_code=TOO_SLOW) if self._server else Unreachable(f"{self.remote} sends {text}")

    def _before_wait(self) -> None:
        """Report that all messages that have arrived were returned, and send the pong that is still queued then."""
        self.on_wait()
        if self._urgent:
            self._send_urgent()

    def _control(self, opcode: int, data: bytes) -> None:
        """Handle a control frame: answer a ping, take a pong. Raises ``Unreachable`` for a close frame, and
        ``ProtocolError`` if more than ``MAX_CONTROLS`` control frames came within a second."""
        if self.heard_at >= self._controls_until:
            self._controls, self._controls_until = 0, self.heard_at + 1.0
        self._controls += 1
        if self._controls > MAX_CONTROLS:
            raise _broken(f"more than {MAX_CONTROLS} control frames in a second")
        if opcode == PING:
            # Only the latest needs an answer (§5.5.3): a peer that floods us with pings gets one.
            self._urgent.clear()
            self._urgent.append(self._control_frame(PONG, data))
        elif opcode == CLOSE:
            code, reason = close_reason(data)
            self._peer_close = data[:2]
            raise Unreachable(f"{self.remote} closed the connection: {code} {reason}".rstrip())

    # --- sending -----------------------------------------------------------------------------------------

    def ping(self) -> None:
        """Send a ping without waiting, and set ``answered_at`` to None. The next received bytes set ``answered_at``.
        If a control frame is queued already, none is added."""
        self.answered_at = None
        if not self._urgent:
            self._urgent.append(self._control_frame(PING, b""))
        self._send_urgent()

    def _send_urgent(self) -> None:
        """Hand the queued control frames to the kernel without waiting. If it does not take them now, or something
        else is being sent, call ``on_urgent``, so that ``send_many`` sends them."""
        if not (self.can_send_now and self.send_now(())):
            self.on_urgent()

    def _next_mask(self) -> bytes:
        """Return the masking key of the next frame: four bytes from the system's random generator if this end masks,
        else ``b""`` at the end that accepted the connection and zeros at the other."""
        if not self._masks:
            return self._fixed_mask
        if self._keys_used == len(self._keys):
            self._keys, self._keys_used = os.urandom(KEYS_BYTES), 0
        self._keys_used += 4
        return self._keys[self._keys_used - 4 : self._keys_used]

    def _control_frame(self, opcode: int, data: bytes) -> bytes:
        """Return a control frame with this payload, masked if this end masks."""
        mask = self._next_mask()
        return frame_head(opcode, len(data), mask) + mask_bytes(data, mask)

    def _add_frame(self, message: Outgoing, buffers: list[Buffer]) -> int:
        """Add one frame with this message to ``buffers`` and return its size in bytes. The payload is copied only if
        this end masks."""
        head, payload, size = message
        if not self._masks:
            first = frame_head(BINARY, size, self._fixed_mask)
            buffers.append(first + head)
            if size > len(head):
                buffers += payload_buffers(payload)
            return len(first) + size
        mask = self._next_mask()
        first = frame_head(BINARY, size, mask)
        if size <= JOIN_BYTES:
            buffers.append(first + mask_bytes(b"".join((head, *payload_buffers(payload))), mask))
        else:
            buffers.append(first + mask_bytes(head, mask))
            buffers += mask_buffers(payload_buffers(payload), mask, len(head))
        return len(first) + size

    async def send(self, head: bytes, payload: Payload = b"") -> None:
        """Send one message, and wait until the kernel has it. Raises ``Unreachable`` if the connection is closed or
        breaks."""
        await self.send_many([outgoing(head, payload)])

    @property
    def can_send_now(self) -> bool:
        """Return whether ``send_now`` may be called: the stream can be written without waiting, nothing is being
        sent, and no rest has to be sent first. False if the connection is closed."""
        if self._direct is None or self._closed or self._sending or self._rest:
            return False
        return not self._direct.has_unsent

    def send_now(self, messages: Sequence[Outgoing]) -> bool:
        """Hand messages to the kernel, after the queued control frames, as much as it takes without waiting. Return
        whether all was taken; if not, or if the connection is broken, the next ``send_many`` sends the rest first."""
        assert self._direct is not None
        buffers: list[Buffer] = [*self._urgent]
        total = sum(map(len, self._urgent))
        self._urgent.clear()
        for message in messages:
            total += self._add_frame(message, buffers)
        try:
            sent = self._direct.write_now(buffers)
        except OSError:  # no room in the kernel, or a fault, which the sender will meet again
            sent = 0
        if sent == total:
            return not self._direct.has_unsent
        for number, buffer in enumerate(buffers):
            size = buffer.nbytes if type(buffer) is memoryview else len(buffer)
            if sent < size:
                self._rest = [memoryview(buffer)[sent:], *buffers[number + 1 :]]
                return False
            sent -= size
        return True

    async def send_many(self, messages: Sequence[Outgoing]) -> None:
        """Send messages in order, small ones joined, after the rest that ``send_now`` has left and after queued
        control frames. Waits until the kernel has all of it. Raises ``Unreachable`` if the connection is closed or
        breaks."""
        while self._rest:
            await self._send_all(self._rest[0])
            del self._rest[0]
        if self._direct is not None and self._direct.has_unsent:
            await self._send_all(b"")
        joined: list[Buffer] = []
        size = 0
        while self._urgent:
            joined.append(self._urgent.popleft())
        for message in messages:
            buffers: list[Buffer] = []
            added = self._add_frame(message, buffers)
            if size + added <= JOIN_BYTES:
                joined += buffers
                size += added
                continue
            await self._send_all(b"".join((*joined, buffers[0])))
            joined, size = [], 0
            for buffer in buffers[1:]:
                await self._send_all(buffer)
        if joined:
            await self._send_all(b"".join(joined))

    async def _send_all(self, data: Buffer) -> None:
        """Write bytes to the stream and wait until it has taken all. Raises ``Unreachable`` if the connection is
        closed or breaks, or if an earlier send was interrupted, so that half a frame may have been sent."""
        if self._closed or self._sending:
            raise Unreachable(f"connection to {self.remote} is closed")
        self._sending = True
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._closed = True
            raise Unreachable(f"connection to {self.remote} broke") from error
        self._sending = False

    # --- closing -----------------------------------------------------------------------------------------

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        """Send a close frame (or answer the peer's), wait at most a second for the peer to close, too, and close the
        stream. Raises nothing if the connection is broken already."""
        try:
            with trio.move_on_after(1.0):
                if not (self._closed or self._sending or self._rest):
                    data = self._peer_close
                    if data is None:
                        data = struct.pack(">H", code) + reason.encode()[:120].decode(errors="ignore").encode()
                    await self._send_all(self._control_frame(CLOSE, data))
                    self._closed = True
                    if isinstance(self._stream, trio.abc.HalfCloseableStream):
                        await self._stream.send_eof()
                        while await self._stream.receive_some(RECEIVE_BYTES):
                            pass
                    else:  # TLS has no half-closed state: an end with both close frames hangs up
                        while self._peer_close is None:
                            await self.receive()
        except (trio.BrokenResourceError, trio.ClosedResourceError, Unreachable, ProtocolError):
            self._closed = True  # it is gone already, which is what we want
        finally:
            self._closed = True
            if self._backlog is not None:
                self._backlog.remove(self)
            await trio.aclose_forcefully(self._stream)


def _broken(text: str) -> ProtocolError:
    return ProtocolError(text, close_code=BROKEN_RULES)
