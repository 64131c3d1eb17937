"""Flow control of reads: the bytes that replica servers are asked for at a time, and which read is sent next.

Theory. A replica server queues its answers to reads on its link, which the acks and reads of all clients share. So
the bytes that may be on their way from one server are bounded, by a *window*. A read holds as many bytes of the
window as its answer may have, until it is answered. A read that does not fit waits here.

- An ack that a server sends waits behind the answers before it. So the window is small: the bytes that a connection
  within a data centre carries in some milliseconds. That is enough to keep the connection busy.
- Waiting reads are admitted in turn: one of each tenant, and within a tenant one of each connection.
- ``FairShare`` bounds the bytes of a tenant. A read holds at most half of the window, unless a single batch is
  larger. A tenant that has its share is passed over. A tenant without a read on its way is not passed over, so
  smaller reads do not overtake a large one for ever.
- A read that waits for new records at the end of a partition (a *wait*) would hold its bytes for seconds. So it holds
  none, but has a limit that its answer keeps (``hard_limit``): a part of the rest of ``wait_bytes``. If the new
  records are larger, the server only announces them by an empty answer, and a read through the window fetches them.
  The number of waits is bounded and shared fairly, too, since each is a request that the server keeps.
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
"""Every read holds at least this much, which bounds their number: to 512 in the largest window."""
WAIT_PART = 256
"""A wait may bring a 256th of what is left of ``wait_bytes``: 64 KiB of 16 MiB, and less with each further wait."""


@dataclass(frozen=True, slots=True)
class WindowSettings:
    """The bounds on the reads in flight to one replica server: the bytes of their answers, and the number of those
    that wait for new records."""

    max_bytes: int = 2 << 20
    """Bytes of the answers to all reads together."""
    wait_bytes: int = 16 << 20
    """Bytes of the answers to all waits together."""
    max_waits: int = 2048
    """Number of waits: half of the requests that a link allows."""


@dataclass(slots=True, eq=False)
class _WindowedRead:
    """A read that waits for room in a server's window, or that holds bytes of the window. ``until``: when it stops
    waiting for room (seconds); ``waits``: it has no room yet."""

    token: int
    node: NodeId
    tenant: Tenant
    source: int
    size: int
    until: float
    waits: bool = True


@dataclass(slots=True)
class _Server:
    """The window of one replica server: what the tenants hold, and the queue of the reads that wait for room."""

    share: FairShare
    waits: FairShare
    wait_bytes_left: int
    queue: OrderedDict[Tenant, OrderedDict[int, deque[_WindowedRead]]] = field(default_factory=OrderedDict)


class ServerReadWindow:
    """The windows of all replica servers, which bound the bytes of answers on their way to this gateway: which reads
    hold bytes, and which wait for room. Each read has a token that is never used again. It sends nothing itself.
    Times are in seconds."""

    def __init__(self, settings: WindowSettings) -> None:
        self._settings = settings
        self._servers: dict[NodeId, _Server] = {}
        self._reads: dict[int, _WindowedRead] = {}
        self._ends: list[tuple[float, int]] = []

    @property
    def share(self) -> int:
        """Return the most bytes that one read may hold of a window: the half that a tenant without competitors
        gets."""
        return self._settings.max_bytes // 2

    @property
    def bytes(self) -> int:
        """Return the bytes that unanswered reads hold in the windows of all servers together."""
        return sum(server.share.total for server in self._servers.values())

    @property
    def waiting(self) -> int:
        """Return the number of reads that wait for room in the window of any server."""
        return sum(read.waits for read in self._reads.values())

    @property
    def waits(self) -> int:
        """Return the number of reads that were sent to any server and wait there for new records."""
        return sum(server.waits.total for server in self._servers.values())

    # --- reads --------------------------------------------------------------------------------------------------

    def enqueue(self, token: int, node: NodeId, tenant: Tenant, source: int, size: int, until: float = inf) -> None:
        """Add a read of connection ``source`` to those that wait for room in the window of ``node``. ``size``: most
        bytes of its answer. ``until``: when ``overdue`` removes the read if it has no room by then. The caller sends
        the read after ``admit`` has returned its token."""
        read = _WindowedRead(token, node, tenant, source, max(size, LEAST_BYTES), until)
        self._reads[token] = read
        connections = self._server(node).queue.setdefault(tenant, OrderedDict())
        connections.setdefault(source, deque()).append(read)
        if until < inf:
            heapq.heappush(self._ends, (until, token))

    def admit(self, node: NodeId) -> int | None:
        """Choose the next waiting read for ``node`` that has room, in turn of the tenants, let it hold its bytes, and
        return its token. None if no read waits or none has room now."""
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
        """Forget a read that was answered or is not wanted any more. It leaves the queue, or the bytes that it holds
        become free. An unknown token is ignored."""
        read = self._reads.pop(token, None)
        if read is None:
            return
        if read.waits:
            self._unqueue(read)
        else:
            self._servers[read.node].share.release(read.tenant, read.size)

    def waiting_of(self, tenant: Tenant, source: int) -> list[int]:
        """Return the tokens of a connection's reads that wait for room, at any server; an empty list if there are
        none."""
        queues = (server.queue.get(tenant) for server in self._servers.values())
        return [read.token for queue in queues if queue is not None for read in queue.get(source, ())]

    def _unqueue(self, read: _WindowedRead) -> None:
        """Remove a read from the queue of its server, since it was admitted or is not wanted any more."""
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
        """Remove the reads that have waited for room until their time limit, and return their tokens; an empty list
        if there are none."""
        tokens = []
        while self._ends and self._ends[0][0] <= now:
            _, token = heapq.heappop(self._ends)
            if self._is_waiting(token):
                tokens.append(token)
                self.remove(token)
        return tokens

    def deadline(self) -> float | None:
        """Return when ``overdue`` is to be called (seconds): the earliest time limit of a read that waits for room.
        None if no waiting read has one."""
        while self._ends and not self._is_waiting(self._ends[0][1]):
            heapq.heappop(self._ends)
        return self._ends[0][0] if self._ends else None

    def _is_waiting(self, token: int) -> bool:
        read = self._reads.get(token)
        return read is not None and read.waits

    # --- waits --------------------------------------------------------------------------------------------------

    def begin_wait(self, node: NodeId, tenant: Tenant) -> int | None:
        """Count a read of the tenant that is about to wait at the server for new records. Return the most bytes that
        its answer may have, which are reserved until ``end_wait``; None, and nothing is counted, if the tenant has
        used up its share of such reads."""
        server = self._server(node)
        if not server.waits.try_hold(tenant):
            return None
        size = server.wait_bytes_left // WAIT_PART
        server.wait_bytes_left -= size
        return size

    def end_wait(self, node: NodeId, tenant: Tenant, size: int) -> None:
        """Count a read less that waits at the server for new records, since it was answered, and free its reserved
        bytes. ``size``: what ``begin_wait`` returned."""
        server = self._server(node)
        server.waits.release(tenant)
        server.wait_bytes_left += size

    def _server(self, node: NodeId) -> _Server:
        """Return the window of a replica server; a new, empty one if there is none yet."""
        server = self._servers.get(node)
        if server is None:
            settings = self._settings
            shares = FairShare(settings.max_bytes), FairShare(settings.max_waits, reserved=True)
            server = self._servers[node] = _Server(*shares, settings.wait_bytes)
        return server
