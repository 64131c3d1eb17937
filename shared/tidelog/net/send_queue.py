"""What waits to be sent over one connection, and when it leaves.

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
"""Who can wait waits above this."""
BURST_BYTES = 1 << 20
"""What is handed to the connection at once, or a little more."""
BURST_CONNECTIONS = 8
"""When so many have something to send it is sent, so that the first need not wait for all who get the same."""

FAIR_MESSAGES = 128
"""After so many messages a reader lets others run."""
ACCEPTED_TURN_S, CONNECTED_TURN_S = 0.005, 0.02
"""And after so long with them. The turn is shorter where the peer has connected to this end, since that peer chooses
what its messages cost. Where this end has connected, it gets what it asked for, and short turns slow bulk reads."""

Outgoing = tuple[bytes, Payload]


class _Burst(threading.local):
    """The outboxes that wait for the end of this thread's burst; None: there is none."""

    outboxes: list[SendQueue] | None = None


_burst = _Burst()


def begin_burst() -> None:
    """From now on collect; nothing happens in a burst. It must end before its task waits for anything."""
    if _burst.outboxes is None:
        _burst.outboxes = []


def end_burst() -> None:
    """Send what was collected; nothing happens outside a burst."""
    outboxes, _burst.outboxes = _burst.outboxes, None
    for outbox in outboxes or ():
        outbox.flush()


@contextmanager
def burst() -> Iterator[None]:
    """What is queued in this block, which must not wait, leaves together at its end."""
    if _burst.outboxes is not None:
        yield
        return
    begin_burst()
    try:
        yield
    finally:
        end_burst()


class Turn:
    """Of a reader: from the first message of what has arrived until it waits for more, or others are to run."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._messages = 0
        self._ends = math.inf

    def count(self) -> None:
        """A message is here."""
        self._messages += 1
        if self._messages == 1:
            self._ends = trio.current_time() + self._longest_s

    def begin(self) -> None:
        """Count a message, and begin a burst that lasts for the turn."""
        begin_burst()
        self.count()

    @property
    def is_over(self) -> bool:
        """Others are to run."""
        return self._messages >= FAIR_MESSAGES or trio.current_time() >= self._ends

    def end(self) -> None:
        """The next message begins another."""
        end_burst()
        self._messages = 0


class SendQueue:
    """One connection's. The writer loops over ``send`` and ``wait_work``."""

    def __init__(self, connection: Connection) -> None:
        self.taken_bytes = 0
        """All that was ever queued."""
        self.sending_since: float | None = None
        """When the writer began the send that it is in (trio's clock)."""
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
        """More waits than a peer that reads would let wait; a single message never is too much."""
        count = len(self._messages)
        return count > 1 and (self._bytes > OUTBOX_BYTES or count > OUTBOX_MESSAGES)

    @property
    def is_filling(self) -> bool:
        """So much waits that whoever asks for more has to wait."""
        return 2 * self._bytes > OUTBOX_BYTES or 2 * len(self._messages) > OUTBOX_MESSAGES

    @property
    def has_room(self) -> bool:
        """A sender that can wait need not."""
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
        """The burst is over: send what is queued, without the writer where that is possible."""
        self._in_burst = False
        if self.sending_since is None and self._connection.can_send_now:
            batch, size = self._take()
            self._give_room(size)
            if self._connection.send_now(batch) and not self._messages:
                return
        self._work.set()

    async def send(self) -> None:
        """The writer's turn: send some of what is queued. Raises ``Unreachable``."""
        batch, size = self._take()
        self.sending_since = trio.current_time()
        await self._connection.send_many(batch)
        self.sending_since = None
        self._give_room(size)

    def wake(self) -> None:
        """The writer has something else to look at."""
        self._work.set()

    async def wait_work(self) -> None:
        """The writer: until there is something to do."""
        await self._work.wait()
        self._work = trio.Event()

    async def wait_room(self) -> None:
        """Until there is room, perhaps; or ``stop_waiting``."""
        self._room = trio.Event() if self._room.is_set() else self._room
        await self._room.wait()

    def stop_waiting(self) -> None:
        """The link ends: let go who waits for room."""
        self._room.set()

    def _give_room(self, size: int) -> None:
        self._bytes -= size
        if not self._room.is_set():
            self._room.set()

    def _take(self) -> tuple[list[Outgoing], int]:
        """What the next send is made of, and its length."""
        batch: list[Outgoing] = []
        size = 0
        while self._messages and size < BURST_BYTES:
            head, payload = message = self._messages.popleft()
            size += len(head) + (codec.payload_size(payload) if payload else 0)
            batch.append(message)
        return batch, size
