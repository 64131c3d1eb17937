"""A peer that sends long messages without end: others run in between. Tests ``websocket/frame_stream.py`` and
``websocket/transport.py``."""

from __future__ import annotations

import socket

import trio
from support.hostile_wire import frame
from tidelog.net.websocket.frame_stream import FIRST_BYTES, RECEIVE_BYTES, FrameStream

LENGTH = 60_000
MANY = 5
assert FIRST_BYTES < MANY * LENGTH < FIRST_BYTES + 2 * RECEIVE_BYTES


async def test_a_read_in_the_middle_of_a_message_is_no_pause_between_messages() -> None:
    """The turn of a reader ends with what has arrived (``on_wait``). It must not begin anew where the rest of a
    message is read that is there already, and with it others: messages that come without end would be one turn."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        end.setblocking(False)
    wire = frame(2, bytes(LENGTH)) * MANY
    assert theirs.send(wire) == len(wire), "all of it is there before anything is read"
    waits: list[int] = []
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
    connection = FrameStream(stream, "peer", server=True, max_bytes=1 << 20)
    received = 0
    connection.on_wait = lambda: waits.append(received)
    for _ in range(MANY):
        assert len(await connection.receive()) == LENGTH
        received += 1
    assert waits == [0]
    await stream.aclose()
    theirs.close()
