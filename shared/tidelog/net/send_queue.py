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

import trio

from tidelog.net.transport import Connection, Outgoing

OUTBOX_BYTES = 64 << 20
OUTBOX_MESSAGES = 16_384
"""Most bytes and messages in a queue. If there are more, the peer does not read, and the link is dropped."""
ROOM_BYTES = 8 << 20
ROOM_MESSAGES = 2_048
"""Bytes and messages up to which a sender that can wait may queue more."""
BURST_BYTES = 1 << 20
"""Bytes after which one send is closed; the rest goes with the next send."""
BURST_CONNECTIONS = 8
"""Connections with collected messages at which a burst is sent early, so that the first does not wait for all
others."""

FAIR_MESSAGES = 128
"""Messages after which a reader lets other tasks run."""
ACCEPTED_TURN_S, CONNECTED_TURN_S = 0.005, 0.02
"""Seconds after which a reader lets other tasks run, too. The turn is shorter if the peer has connected to this end,
since that peer chooses what its messages cost. If this end has connected, it gets what it asked for, and short turns
slow bulk reads."""


class _Burst(threading.local):
    """State of each thread's burst, in which messages are collected to be sent together: ``outboxes`` has the queues
    with collected messages. It is None while there is no burst."""

    outboxes: list[SendQueue] | None = None


_burst = _Burst()


def begin_burst() -> None:
    """Begin a burst of this thread: from now on messages that are queued on any connection are collected, until
    ``end_burst``. Does nothing if a burst has begun. The task must not wait for anything before the end of the
    burst."""
    if _burst.outboxes is None:
        _burst.outboxes = []


def end_burst() -> None:
    """End the burst of this thread, and hand the messages that were collected on all connections to the kernel,
    without waiting. Does nothing if there is no burst."""
    outboxes, _burst.outboxes = _burst.outboxes, None
    for outbox in outboxes or ():
        outbox.flush()


class burst:
    """Collect the messages that are queued in the ``with`` block, on any connection, and send them together at its
    end. If they are for ``BURST_CONNECTIONS`` connections, they are sent earlier. The block must not wait. Inside
    another burst this does nothing, and the messages are sent at the end of that burst."""

    __slots__ = ("_is_outer",)

    def __enter__(self) -> None:
        self._is_outer = _burst.outboxes is None
        if self._is_outer:
            _burst.outboxes = []

    def __exit__(self, *error: object) -> None:
        if self._is_outer:
            end_burst()


class Turn:
    """The turn of a link's reader: the time from its first message until it waits for more, or must let other tasks
    run. All messages that are queued meanwhile form one burst. One object serves all turns of a reader."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._messages = 0
        self._ends = math.inf

    def count_and_collect(self) -> None:
        """Count a message that the reader handles. The first message of a turn starts its time and a burst, so that
        messages that are queued during the turn are sent together at its end."""
        if self._messages == 0:
            begin_burst()
            self._ends = trio.current_time() + self._longest_s
        self._messages += 1

    @property
    def is_over(self) -> bool:
        """Return whether the reader has handled ``FAIR_MESSAGES`` in this turn, or has used up its time, so that
        other tasks must run before the next message. False before the first message of a turn."""
        return self._messages > 0 and (self._messages >= FAIR_MESSAGES or trio.current_time() >= self._ends)

    def send_collected(self) -> None:
        """End the turn, and send the messages that its burst has collected. The next message begins another turn."""
        end_burst()
        self._messages = 0


class SendQueue:
    """The messages that wait to be sent over one connection, in order. The link's writer task calls ``send`` and
    ``wait_work`` in a loop; at the end of a burst ``flush`` sends without the writer."""

    def __init__(self, connection: Connection) -> None:
        self.taken_bytes = 0
        """Bytes of all messages that were queued since the connection was opened."""
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
        """Return whether more than ``OUTBOX_BYTES`` or ``OUTBOX_MESSAGES`` are queued: the peer does not read, and
        the link is to be dropped. A single message is never too much."""
        count = len(self._messages)
        return count > 1 and (self._bytes > OUTBOX_BYTES or count > OUTBOX_MESSAGES)

    @property
    def is_filling(self) -> bool:
        """Return whether the queue is more than half full, so that the reader must not handle further messages."""
        return 2 * self._bytes > OUTBOX_BYTES or 2 * len(self._messages) > OUTBOX_MESSAGES

    @property
    def has_room(self) -> bool:
        """Return whether a sender that can wait may queue a message now: at most ``ROOM_BYTES`` and ``ROOM_MESSAGES``
        are queued."""
        return self._bytes <= ROOM_BYTES and len(self._messages) <= ROOM_MESSAGES

    def put(self, message: Outgoing) -> None:
        """Queue a message, without waiting. It is sent at the end of the burst; if there is no burst, the writer is
        woken to send it."""
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
        """Hand up to about ``BURST_BYTES`` of the queued messages to the kernel, as much as it takes without waiting.
        Wake the writer if messages are left or the connection cannot send now. Called at the end of a burst."""
        self._in_burst = False
        if self.sending_since is None and self._connection.can_send_now:
            batch, size = self._take()
            self._give_room(size)
            if self._connection.send_now(batch) and not self._messages:
                return
        self._work.set()

    async def send(self) -> None:
        """Send about ``BURST_BYTES`` of the queued messages and the connection's own frames, and wait until the
        kernel has them. Only the writer calls this. Raises ``Unreachable`` if the connection is closed or breaks."""
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
        """Wait until some messages were sent, or ``stop_waiting`` is called. The caller must then check ``has_room``
        again."""
        self._room = trio.Event() if self._room.is_set() else self._room
        await self._room.wait()

    def stop_waiting(self) -> None:
        """Wake all tasks in ``wait_room``, since the link ends."""
        self._room.set()

    def _give_room(self, size: int) -> None:
        """Count bytes as sent, and wake the tasks that wait for room."""
        self._bytes -= size
        if not self._room.is_set():
            self._room.set()

    def _take(self) -> tuple[list[Outgoing], int]:
        """Remove messages of together about ``BURST_BYTES`` from the front of the queue. Return them and their size
        in bytes; an empty list and 0 if the queue is empty."""
        batch: list[Outgoing] = []
        size = 0
        while self._messages and size < BURST_BYTES:
            message = self._messages.popleft()
            size += message[2]
            batch.append(message)
        return batch, size
