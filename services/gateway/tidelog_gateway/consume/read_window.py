"""Flow control of reads: how much replica servers are asked for at a time, and who asks next.

Theory. What a replica server reads it queues for its link, which the acks and reads of all clients share. So the
bytes that may be on their way from one server are bounded, by a *window*. A read takes as much of it as its answer
may have, until it is answered; one that finds no room waits here.

- An ack that a server sends waits behind the reads that are before it. So the window is small: what a connection
  within a data centre carries in some milliseconds. It fills that connection all the same.
- Who waits is let through in turn: one read of each tenant, and within a tenant one of each connection.
- A tenant takes what ``FairShare`` leaves it, and a read no more than half of the window, but for a single batch that
  is larger. A tenant that has its share is passed over. One that has nothing on its way is
  not: no smaller read overtakes a large one for ever.
- A read that waits for *news* at the end of a partition would hold its room for seconds. It takes none. It is asked
  with a limit that its answer keeps (``hard_limit``): a part of what is left of ``news_bytes``. What is larger than
  that the server only announces, by an empty answer, and a read through the window brings it. The number of these
  waits is bounded and shared fairly, too: each is a request that the server keeps.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from math import inf

from tidelog.types import NodeId

from tidelog_gateway.limits.fair_share import FairShare
from tidelog_gateway.limits.server_limits import Tenant

LEAST_BYTES = 32 << 10
"""Every request takes so much, so that their number is bounded, too: to 512 in the largest window."""
WAIT_PART = 256
"""A wait gets this part of what is left for news: 64 KiB of 16 MiB, and less the more of them there are."""


@dataclass(frozen=True, slots=True)
class WindowSettings:
    """Bounds of the reads in flight to one replica server."""

    max_bytes: int = 2 << 20
    """What answers to reads may have, all together."""
    wait_bytes: int = 16 << 20
    """What answers to waits may have, all together."""
    max_waits: int = 2048
    """Waits for news: half of what a link takes of requests."""


@dataclass(slots=True, eq=False)
class _WindowedRead:
    """``until``: when it gives up waiting for room."""

    token: int
    node: NodeId
    tenant: Tenant
    source: int
    size: int
    until: float
    waits: bool = True


@dataclass(slots=True)
class _Server:
    share: FairShare
    waits: FairShare
    wait_bytes_left: int
    queue: OrderedDict[Tenant, OrderedDict[int, deque[_WindowedRead]]] = field(default_factory=OrderedDict)


class ReadWindow:
    """The windows of all replica servers. A token names a read; its owner never uses it again. Times are seconds."""

    def __init__(self, settings: WindowSettings) -> None:
        self._settings = settings
        self._servers: dict[NodeId, _Server] = {}
        self._reads: dict[int, _WindowedRead] = {}
        self._ends: list[tuple[float, int]] = []

    @property
    def share(self) -> int:
        """What a tenant may have that is alone, of one window."""
        return self._settings.max_bytes // 2

    @property
    def bytes(self) -> int:
        """What is taken, of all windows."""
        return sum(server.share.total for server in self._servers.values())

    @property
    def waiting(self) -> int:
        """Reads that wait for room."""
        return sum(read.waits for read in self._reads.values())

    @property
    def waits(self) -> int:
        """Waits for news that replica servers keep."""
        return sum(server.waits.total for server in self._servers.values())

    # --- reads --------------------------------------------------------------------------------------------------

    def enqueue(self, token: int, node: NodeId, tenant: Tenant, source: int, size: int, until: float = inf) -> None:
        """A read of connection ``source``, whose answer has at most ``size`` bytes, is to go to the server."""
        read = _WindowedRead(token, node, tenant, source, max(size, LEAST_BYTES), until)
        self._reads[token] = read
        connections = self._server(node).queue.setdefault(tenant, OrderedDict())
        connections.setdefault(source, deque()).append(read)
        if until < inf:
            heapq.heappush(self._ends, (until, token))

    def admit(self, node: NodeId) -> int | None:
        """The next read that may go to the server now; None: there is none."""
        server = self._server(node)
        for _ in range(len(server.queue)):
            tenant, connections = next(iter(server.queue.items()))
            source, reads = next(iter(connections.items()))
            if server.share.try_hold(tenant, reads[0].size):
                read = reads[0]
                self._unqueue(read)
                if source in connections:
                    connections.move_to_end(source)
                if tenant in server.queue:
                    server.queue.move_to_end(tenant)
                return read.token
            if not server.share.held(tenant):
                return None
            server.queue.move_to_end(tenant)
        return None

    def remove(self, token: int) -> None:
        """A read that was let through is answered, or a waiting one is not wanted any more."""
        read = self._reads.pop(token, None)
        if read is None:
            return
        if read.waits:
            self._unqueue(read)
        else:
            self._servers[read.node].share.release(read.tenant, read.size)

    def waiting_of(self, tenant: Tenant, source: int) -> list[int]:
        """The reads of a connection that wait for room."""
        queues = (server.queue.get(tenant) for server in self._servers.values())
        return [read.token for queue in queues if queue is not None for read in queue.get(source, ())]

    def _unqueue(self, read: _WindowedRead) -> None:
        read.waits = False
        queue = self._servers[read.node].queue
        connections = queue[read.tenant]
        connections[read.source].remove(read)
        if not connections[read.source]:
            del connections[read.source]
        if not connections:
            del queue[read.tenant]

    # --- time ---------------------------------------------------------------------------------------------------

    def overdue(self, now: float) -> list[int]:
        """Reads that have waited for room until their time was over; they have left."""
        tokens = []
        while self._ends and self._ends[0][0] <= now:
            _, token = heapq.heappop(self._ends)
            if self._is_waiting(token):
                tokens.append(token)
                self.remove(token)
        return tokens

    def deadline(self) -> float | None:
        """When ``overdue`` is to be called; perhaps earlier than there is anything."""
        while self._ends and not self._is_waiting(self._ends[0][1]):
            heapq.heappop(self._ends)
        return self._ends[0][0] if self._ends else None

    def _is_waiting(self, token: int) -> bool:
        read = self._reads.get(token)
        return read is not None and read.waits

    # --- waits for news -----------------------------------------------------------------------------------------

    def begin_wait(self, node: NodeId, tenant: Tenant) -> int | None:
        """How many bytes a wait of this tenant at the server may bring, to be given back by ``end_wait``. None: the
        tenant has its share of the waits."""
        server = self._server(node)
        if not server.waits.try_hold(tenant):
            return None
        size = server.wait_bytes_left // WAIT_PART
        server.wait_bytes_left -= size
        return size

    def end_wait(self, node: NodeId, tenant: Tenant, size: int) -> None:
        """It is answered."""
        server = self._server(node)
        server.waits.release(tenant)
        server.wait_bytes_left += size

    def _server(self, node: NodeId) -> _Server:
        server = self._servers.get(node)
        if server is None:
            settings = self._settings
            shares = FairShare(settings.max_bytes), FairShare(settings.max_waits, reserved=True)
            server = self._servers[node] = _Server(*shares, settings.wait_bytes)
        return server
