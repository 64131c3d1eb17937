"""The queue of messages that wait to be sent over one connection, and the rule of when they are sent.

Theory. Messages leave in the order in which they came, by one of two ways:

- A *burst* is the time in which a reader handles everything that has arrived (or a block under ``burst``). What is
  queued meanwhile, on any connection, is collected; at the end of the burst, or when it is for many of them, it is
  handed to the kernel at once, as much as it takes. So an answer costs neither a task switch nor a send of its own.
- The rest is the writer's: what is queued outside a burst, what the kernel did not take, and everything on a
  connection that cannot send without waiting. The writer takes what there is, about ``BURST_BYTES`` at a time.

The two never send at the same time: a burst leaves all to a writer that is sending.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from tidelog.net.transport import Connection, Outgoing, outgoing
from tidelog.wire.messages import Payload

OUTBOX_BYTES = 64 << 20
OUTBOX_MESSAGES = 16_384
"""Most bytes and messages in a queue. With more, the peer does not read, and the link is dropped."""
ROOM_BYTES = 8 << 20
ROOM_MESSAGES = 2_048
"""Bytes and messages up to which a sender that can wait may queue more."""
BURST_BYTES = 1 << 20
"""Bytes at which one send is closed; the rest goes with the next."""
BURST_CONNECTIONS = 8
"""Connections with something to send at which a burst is sent, so that the first does not wait for all others."""

FAIR_MESSAGES = 128
"""Messages after which a reader lets other tasks run."""
ACCEPTED_TURN_S, CONNECTED_TURN_S = 0.005, 0.02
"""Seconds after which a reader lets others run, too. The turn is shorter where the peer has connected to this end,
since that peer chooses what its messages cost. Where this end has connected, it gets what it asked for, and short
turns slow bulk reads."""


class _Burst(threading.local):
    """The queues that wait for the end of the burst of this thread; None while there is no burst."""

    outboxes: list[SendQueue] | None = None


_burst = _Burst()


def begin_burst() -> None:
    """Begin to collect messages that are queued on any connection of this thread, unless a burst has begun. The burst
    must end before its task waits for anything."""
    if _burst.outboxes is None:
        _burst.outboxes = []


def end_burst() -> None:
    """Send everything that was collected on all connections, and end the burst. Does nothing if there is none."""
    outboxes, _burst.outboxes = _burst.outboxes, None
    for outbox in outboxes or ():
        outbox.flush()


@contextmanager
def burst() -> Iterator[None]:
    """Collect the messages that are queued in the block and send them together at its end. The block must not wait.
    Inside of another burst nothing is sent before that one ends."""
    if _burst.outboxes is not None:
        yield
        return
    begin_burst()
    try:
        yield
    finally:
        end_burst()


class Turn:
    """The turn of a link's reader: the time from the first message that has arrived until the reader waits for more,
    or must let other tasks run. One object serves all turns of a reader."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._messages = 0
        self._ends = math.inf

    def count_and_collect(self) -> None:
        """Count a message. The first message of a turn starts its time, and a burst, so that what is queued during
        the turn is sent together at its end."""
        if self._messages == 0:
            begin_burst()
            self._ends = trio.current_time() + self._longest_s
        self._messages += 1

    @property
    def is_over(self) -> bool:
        """Return whether the reader has handled so many messages in this turn, or for so long, that other tasks must
        run before the next one."""
        return self._messages > 0 and (self._messages >= FAIR_MESSAGES or trio.current_time() >= self._ends)

    def send_collected(self) -> None:
        """End the turn and send what its burst has collected. The next message begins another turn."""
        end_burst()
        self._messages = 0


class SendQueue:
    """The messages that wait to be sent over one connection. The link's writer calls ``send`` and ``wait_work`` in a
    loop."""

    def __init__(self, connection: Connection) -> None:
        self.taken_bytes = 0
        """Bytes that were queued since the connection was opened."""
        self.sending_since: float | None = None
        """When the writer began its present send (trio's clock); None while it does not send."""
        self._connection = connection
        self._messages: deque[Outgoing] = deque()
        self._bytes = 0
        self._in_burst = False
        self._work = trio.Event()
        self._room = trio.Event()

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def is_overfull(self) -> bool:
        """Return whether so much waits that the peer does not read, and the link is to be dropped. A single message
        is never too much."""
        count = len(self._messages)
        return count > 1 and (self._bytes > OUTBOX_BYTES or count > OUTBOX_MESSAGES)

    @property
    def is_filling(self) -> bool:
        """Return whether the queue is more than half full, so that the reader must not handle further messages."""
        return 2 * self._bytes > OUTBOX_BYTES or 2 * len(self._messages) > OUTBOX_MESSAGES

    @property
    def has_room(self) -> bool:
        """Return whether a sender that can wait may queue a message now."""
        return self._bytes <= ROOM_BYTES and len(self._messages) <= ROOM_MESSAGES

    def put(self, head: bytes, payload: Payload) -> None:
        """Queue a message. It is sent at the end of the burst, or by the writer if there is no burst. Never waits."""
        message = outgoing(head, payload)
        self._bytes += message[2]
        self.taken_bytes += message[2]
        self._messages.append(message)
        if _burst.outboxes is None:
            self._work.set()
        elif not self._in_burst:
            self._in_burst = True
            _burst.outboxes.append(self)
            if len(_burst.outboxes) >= BURST_CONNECTIONS:
                end_burst()
                begin_burst()

    def flush(self) -> None:
        """Hand the queued messages to the kernel at the end of a burst, as much as it takes without waiting. Wake the
        writer if something is left or the connection cannot send now."""
        self._in_burst = False
        if self.sending_since is None and self._connection.can_send_now:
            batch, size = self._take()
            self._give_room(size)
            if self._connection.send_now(batch) and not self._messages:
                return
        self._work.set()

    async def send(self) -> None:
        """Send about ``BURST_BYTES`` of the queued messages, and wait until the kernel has them. Only the writer
        calls this. Raises ``Unreachable`` if the connection is closed or breaks."""
        batch, size = self._take()
        self.sending_since = trio.current_time()
        await self._connection.send_many(batch)
        self.sending_since = None
        self._give_room(size)

    def wake(self) -> None:
        """Wake the writer, since the connection has control frames to send or is closing."""
        self._work.set()

    async def wait_work(self) -> None:
        """Wait until the writer has something to do: a message was queued outside a burst, a burst has left
        something, or ``wake`` was called. Only the writer calls this."""
        await self._work.wait()
        self._work = trio.Event()

    async def wait_room(self) -> None:
        """Wait until some messages were sent, or ``stop_waiting`` is called. The caller then checks ``has_room``
        again."""
        self._room = trio.Event() if self._room.is_set() else self._room
        await self._room.wait()

    def stop_waiting(self) -> None:
        """Wake all senders that wait for room, since the link ends."""
        self._room.set()

    def _give_room(self, size: int) -> None:
        self._bytes -= size
        if not self._room.is_set():
            self._room.set()

    def _take(self) -> tuple[list[Outgoing], int]:
        """Remove the messages of the next send from the queue, about ``BURST_BYTES``. Return them and their size in
        bytes."""
        batch: list[Outgoing] = []
        size = 0
        while self._messages and size < BURST_BYTES:
            message = self._messages.popleft()
            size += message[2]
            batch.append(message)
        return batch, size
