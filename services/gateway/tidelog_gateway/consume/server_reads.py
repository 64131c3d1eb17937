"""Sends reads to replica servers, through the window (``server_read_window.py``) or as waits for new records.

A read holds as many bytes of the window as its answer may have. If the topic allows batches larger than a fair share,
or if the server may have to wait before it answers, the read is sent with a hard limit. If the first batch is larger
than the limit, the answer has its size (``needed``), and that batch is read by itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf

from tidelog.errors import TidelogError, Unreachable, refuse
from tidelog.types import NodeId
from tidelog.wire.messages import ListOffset, Message, Read, ReadAnswer

from tidelog_gateway.cluster_view import ClusterView
from tidelog_gateway.consume.server_read_window import ServerReadWindow, WindowSettings
from tidelog_gateway.counters import ReadCounts
from tidelog_gateway.limits.server_limits import Tenant

READ_TIMEOUT_S = 5.0
"""Seconds for which a read or offset request that fails with a retriable error is tried again."""
ANSWER_MAX_BYTES = 4 << 20
"""Most bytes with which a replica server answers a read, unless a single batch is larger."""
WAITING_BYTES = 64 << 10
"""Most bytes of the answer to a read for which a server may have to wait, for a proof or for a copy."""

Answered = Callable[[Message | TidelogError], None]
StartCall = Callable[[NodeId, Message, float, Answered], None]


@dataclass(frozen=True, slots=True)
class ReaderId:
    """The connection (``source``) that a read is for, and the tenant in whose share of the window its answer
    counts."""

    tenant: Tenant
    source: int


@dataclass(slots=True, eq=False)
class _PendingRead:
    """A read from the time it was asked for until its answer, or until it is given up. ``tokens``: by tenant, its
    tokens in the window while it waits for room. ``readers``: all connections that want the answer."""

    node: NodeId
    request: Read | ListOffset
    timeout_s: float
    until: float
    done: Answered
    size: int
    """Most bytes that the answer has."""
    tokens: dict[Tenant, int] = field(default_factory=dict)
    readers: dict[ReaderId, None] = field(default_factory=dict)

    @property
    def is_limited(self) -> bool:
        """Return whether the answer has a hard limit in bytes, so that it is empty if the first batch is larger."""
        return isinstance(self.request, Read) and self.request.hard_limit


class ServerReads:
    """All reads of a gateway that wait until the window of a replica server has room, or for an answer.
    ``start_call`` sends a request to a server and calls back with the answer. The ``done`` of a read is called
    exactly once unless the read is given up, possibly before the method that began the read returns."""

    def __init__(
        self, start_call: StartCall, cluster: ClusterView, settings: WindowSettings, clock: Callable[[], float]
    ) -> None:
        self.window = ServerReadWindow(settings)
        self._start_call = start_call
        self._cluster = cluster
        self._clock = clock
        self.counts = ReadCounts()
        self._tokens = itertools.count(1)
        self._asked: dict[int, _PendingRead] = {}
        """Requests that wait for the window, by token."""
        self._sent: dict[int, _PendingRead] = {}
        """Requests that were sent and are not answered, by token."""
        self._shared: dict[int, _PendingRead] = {}
        """Reads of both kinds that others may join, by name."""
        self._filling: list[NodeId] = []
        """Servers whose windows ``_fill`` has yet to fill; it is at work on the last one."""

    def ask(
        self, node: NodeId, request: Read | ListOffset, reader: ReaderId, timeout_s: float, done: Answered
    ) -> None:
        """Send a read or offset request to ``node`` as soon as the window has room, and pass the answer, or the
        error, to ``done``. ``timeout_s`` covers both the wait and the answer; if the window has no room in time,
        ``done`` gets ``OVERLOADED``."""
        first, size = self._limited(request)
        self._enter(_PendingRead(node, first, timeout_s, self._clock() + timeout_s, done, size), reader)

    def ask_shared(
        self, name: int, node: NodeId, request: Read, reader: ReaderId, timeout_s: float, done: Answered
    ) -> None:
        """Send a read that other clients may join under the number ``name``, and pass the answer, or the error, to
        ``done``. It waits for room in the window without a time limit; ``timeout_s`` is for the answer alone."""

        def answered(answer: Message | TidelogError) -> None:
            self._shared.pop(name, None)
            done(answer)

        first, size = self._limited(request)
        self._shared[name] = asked = _PendingRead(node, first, timeout_s, inf, answered, size)
        self._enter(asked, reader)

    def join(self, name: int, reader: ReaderId) -> None:
        """Add a client to those that want the answer to the read ``name``. If the read still waits for the window, it
        gets a place among the reads of this client's tenant, too, and is sent when the first of its places comes up.
        An unknown name is ignored."""
        asked = self._shared.get(name)
        if asked is None:
            return
        asked.readers[reader] = None
        if asked.tokens and reader.tenant not in asked.tokens:
            self._enter(asked, reader)

    def give_up(self, name: int) -> None:
        """Remove the read ``name`` if it waits for the window: it is not sent, and its ``done`` is not called. A read
        that was sent goes on, and its answer is passed to ``done``. An unknown name is ignored."""
        asked = self._shared.get(name)
        if asked is None:
            return
        asked.readers = {}
        if asked.tokens:
            del self._shared[name]
            self._leave(asked)

    def wait(self, node: NodeId, request: Read, reader: ReaderId, timeout_s: float, done: Answered) -> None:
        """Send a read at once that the server may keep until there are new records; it takes no room in the window.
        If the new records are larger than the bytes reserved for its answer, the server answers early without
        records. ``done`` gets the answer, or ``OVERLOADED`` if the tenant has used up its share of such reads at the
        server."""
        size = self.window.begin_wait(node, reader.tenant)
        if size is None:
            done(refuse("OVERLOADED", f"the client has its share of the reads that may wait at {node}"))
            return

        def answered(answer: Message | TidelogError) -> None:
            self.window.end_wait(node, reader.tenant, size)
            done(answer)

        limited = replace(request, max_bytes=min(request.max_bytes, size), hard_limit=True)
        self._start_call(node, limited, timeout_s, answered)

    def on_link_closed(self, reader: ReaderId) -> None:
        """Forget a client that has disconnected. A read that waits for the window only for this client ends with
        ``UNREACHABLE``. A read that other connections want, too, keeps waiting for them."""
        for wanted in (*self._shared.values(), *self._sent.values()):
            wanted.readers.pop(reader, None)
        for token in self.window.waiting_of(reader.tenant, reader.source):
            asked = self._asked.pop(token, None)
            if asked is None:  # the end of an earlier one has ended this one, too
                continue
            self.window.remove(token)
            del asked.tokens[reader.tenant]
            asked.readers.pop(reader, None)
            heir = next((other for other in asked.readers if other.tenant == reader.tenant), None)
            if heir is not None:
                self._enter(asked, heir)
            elif not asked.tokens:
                asked.done(Unreachable("the client that asked is gone"))

    def on_tick(self, now: float) -> None:
        """End the reads that have waited for the window until their time limit: their ``done`` gets
        ``OVERLOADED``."""
        for token in self.window.overdue(now):
            asked = self._asked.pop(token)
            text = f"{asked.timeout_s:g} s were not enough to wait for the reads of {asked.node} before it"
            asked.done(refuse("OVERLOADED", text))

    def deadline(self) -> float | None:
        """Return when ``on_tick`` is to be called, in seconds of the clock; None if no waiting read has a
        time limit."""
        return self.window.deadline()

    # --- through the window -------------------------------------------------------------------------------------

    def _enter(self, asked: _PendingRead, reader: ReaderId) -> None:
        """Put a read into the queue of the window for one of its readers, and send what the window has room for. A
        read that then still waits is counted in the metrics."""
        token = next(self._tokens)
        self._asked[token] = asked
        asked.readers[reader] = None
        asked.tokens[reader.tenant] = token
        self.window.enqueue(token, asked.node, reader.tenant, reader.source, asked.size, asked.until)
        self._fill(asked.node)
        if token in self._asked:
            self.counts.queued += 1

    def _limited(self, request: Read | ListOffset) -> tuple[Read | ListOffset, int]:
        """Return the request as it is sent at first, with bounds on the bytes of its answer, and the most bytes that
        the answer has; 0 for an offset request."""
        if isinstance(request, ListOffset):
            return request, 0
        waits = request.consistency != "eventual" or request.max_wait_ms > 0
        most = min(WAITING_BYTES if waits else ANSWER_MAX_BYTES, self.window.share)
        max_bytes = min(request.max_bytes, most)
        topic = self._cluster.topic(request.topic_id)
        one_batch = 0 if topic is None else topic.config.max_batch_bytes
        is_large = waits or one_batch > most
        size = max_bytes if is_large else max(max_bytes, one_batch)
        return replace(request, max_bytes=max_bytes, hard_limit=is_large), size

    def _ask_whole(self, asked: _PendingRead, needed: int) -> None:
        """Ask again for a first batch that was larger than the hard limit: for this batch alone, of ``needed`` bytes,
        without the limit. The consistency that the client asked for need not be proved again, since the batch is
        committed. If no client wants the batch any more, the read ends with ``UNREACHABLE``."""
        assert isinstance(asked.request, Read)
        one_batch = replace(asked.request, max_bytes=1, hard_limit=False)
        asked.request = replace(one_batch, max_wait_ms=0, consistency="eventual", max_staleness_ms=-1)
        asked.size = needed
        first, *others = asked.readers or [None]
        if first is None:
            asked.done(Unreachable("the client that asked is gone"))
            return
        self._enter(asked, first)
        for other in others:
            if other is not None and asked.tokens and other.tenant not in asked.tokens:
                self._enter(asked, other)

    def _fill(self, node: NodeId) -> None:
        """Send the waiting reads of ``node`` for which the window has room. If a request ends during this call, so
        that this method is called again, the inner call leaves the work to the outer one."""
        self._filling.append(node)
        if len(self._filling) > 1:
            return
        while self._filling:
            token = self.window.admit(self._filling[-1])
            if token is None:
                self._filling.pop()
            else:
                self._send(token)

    def _send(self, token: int) -> None:
        """Send a read that the window has admitted, and free its other places in the queues. Its answer frees its
        bytes and sends the next reads; an answer that is too small for the first batch is asked for again."""
        asked = self._asked.pop(token)
        asked.tokens = {tenant: other for tenant, other in asked.tokens.items() if other != token}
        self._leave(asked)
        self._sent[token] = asked

        def answered(answer: Message | TidelogError) -> None:
            del self._sent[token]
            self.window.remove(token)
            if isinstance(answer, ReadAnswer) and answer.needed and asked.is_limited:
                self._ask_whole(asked, answer.needed)
            else:
                asked.done(answer)
            self._fill(asked.node)

        timeout_s = asked.timeout_s if asked.until == inf else max(0.0, asked.until - self._clock())
        self._start_call(asked.node, asked.request, timeout_s, answered)

    def _leave(self, asked: _PendingRead) -> None:
        """Take a read out of all queues of the window."""
        for token in asked.tokens.values():
            del self._asked[token]
            self.window.remove(token)
        asked.tokens = {}
