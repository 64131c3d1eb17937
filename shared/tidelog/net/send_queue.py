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

from tidelog.net.transport import Connection
from tidelog.wire import codec
from tidelog.wire.messages import Payload

OUTBOX_BYTES = 64 << 20
OUTBOX_MESSAGES = 16_384
"""More than this is not queued: the peer does not read."""
ROOM_BYTES = 8 << 20
ROOM_MESSAGES = 2_048
"""A sender that can wait waits while more is queued."""
BURST_BYTES = 1 << 20
"""At about this size a send is complete."""
BURST_CONNECTIONS = 8
"""When so many connections have something to send it is sent, so that the first does not wait for all others."""

FAIR_MESSAGES = 128
"""After so many messages a reader lets others run."""
ACCEPTED_TURN_S, CONNECTED_TURN_S = 0.005, 0.02
"""And after so long with them. The turn is shorter where the peer has connected to this end, since that peer chooses
what its messages cost. Where this end has connected, it gets what it asked for, and short turns slow bulk reads."""

Outgoing = tuple[bytes, Payload]


class _Burst(threading.local):
    """The queues that wait for the end of this thread's burst; None: there is no burst."""

    outboxes: list[SendQueue] | None = None


_burst = _Burst()


def begin_burst() -> None:
    """Begin to collect, unless a burst has begun. The burst must end before its task waits for anything."""
    if _burst.outboxes is None:
        _burst.outboxes = []


def end_burst() -> None:
    """Send what was collected, if a burst has begun."""
    outboxes, _burst.outboxes = _burst.outboxes, None
    for outbox in outboxes or ():
        outbox.flush()


@contextmanager
def burst() -> Iterator[None]:
    """Send together, at the end of the block, what is queued in it. The block must not wait."""
    if _burst.outboxes is not None:
        yield
        return
    begin_burst()
    try:
        yield
    finally:
        end_burst()


class Turn:
    """The turn of a reader: from the first message that has arrived until it waits for more, or others must run."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._messages = 0
        self._ends = math.inf

    def count(self) -> None:
        """Count a message; the first one starts the time of the turn."""
        self._messages += 1
        if self._messages == 1:
            self._ends = trio.current_time() + self._longest_s

    def count_and_collect(self) -> None:
        """Count a message, and begin a burst that lasts for the turn."""
        begin_burst()
        self.count()

    @property
    def is_over(self) -> bool:
        """Whether other tasks must run now."""
        return self._messages >= FAIR_MESSAGES or trio.current_time() >= self._ends

    def send_collected(self) -> None:
        """End the turn and its burst. The next message begins another turn."""
        end_burst()
        self._messages = 0


class SendQueue:
    """The send queue of one connection. The writer loops over ``send`` and ``wait_work``."""

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
        """Whether more waits than at a peer that reads. A single message is never too much."""
        count = len(self._messages)
        return count > 1 and (self._bytes > OUTBOX_BYTES or count > OUTBOX_MESSAGES)

    @property
    def is_filling(self) -> bool:
        """Whether so much waits that the reader must not handle further messages."""
        return 2 * self._bytes > OUTBOX_BYTES or 2 * len(self._messages) > OUTBOX_MESSAGES

    @property
    def has_room(self) -> bool:
        """Whether a sender that can wait may queue a message now."""
        return self._bytes <= ROOM_BYTES and len(self._messages) <= ROOM_MESSAGES

    def put(self, head: bytes, payload: Payload) -> None:
        """Queue a message."""
        size = len(head) + (codec.payload_size(payload) if payload else 0)
        self._bytes += size
        self.taken_bytes += size
        self._messages.append((head, payload))
        if _burst.outboxes is None:
            self._work.set()
        elif not self._in_burst:
            self._in_burst = True
            _burst.outboxes.append(self)
            if len(_burst.outboxes) >= BURST_CONNECTIONS:
                end_burst()
                begin_burst()

    def flush(self) -> None:
        """Send what is queued at the end of a burst, without the writer if that is possible."""
        self._in_burst = False
        if self.sending_since is None and self._connection.can_send_now:
            batch, size = self._take()
            self._give_room(size)
            if self._connection.send_now(batch) and not self._messages:
                return
        self._work.set()

    async def send(self) -> None:
        """Send some of what is queued; called by the writer. Raises ``Unreachable``."""
        batch, size = self._take()
        self.sending_since = trio.current_time()
        await self._connection.send_many(batch)
        self.sending_since = None
        self._give_room(size)

    def wake(self) -> None:
        """Wake the writer: the connection has something else to send, or is closing."""
        self._work.set()

    async def wait_work(self) -> None:
        """Wait until there is something to do; called by the writer."""
        await self._work.wait()
        self._work = trio.Event()

    async def wait_room(self) -> None:
        """Wait until something was sent, or until ``stop_waiting``. The caller checks ``has_room`` again."""
        self._room = trio.Event() if self._room.is_set() else self._room
        await self._room.wait()

    def stop_waiting(self) -> None:
        """Let waiting senders go on, since the link ends."""
        self._room.set()

    def _give_room(self, size: int) -> None:
        self._bytes -= size
        if not self._room.is_set():
            self._room.set()

    def _take(self) -> tuple[list[Outgoing], int]:
        """Take the messages of the next send out of the queue; return them and their size."""
        batch: list[Outgoing] = []
        size = 0
        while self._messages and size < BURST_BYTES:
            head, payload = message = self._messages.popleft()
            size += len(head) + (codec.payload_size(payload) if payload else 0)
            batch.append(message)
        return batch, size
