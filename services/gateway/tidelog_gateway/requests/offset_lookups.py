"""Schedules look-ups of offsets, for answers that have many partitions.

One look-up of a partition is under way at a time. Requests that come before it is sent share it. Later requests share
the next one, so an answer is never older than its question. So the number of look-ups depends on how long one takes,
and not on the number of requests.

At most ``PER_SERVER`` look-ups are under way at a server. Those that wait are sent in turn of their principals, and
in order for each principal: a principal that wants very many does not hold up another that wants few.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from tidelog.types import NodeId, TopicPartition
from tidelog.wire.messages import OffsetAnswer

PER_SERVER = 64
"""Look-ups under way at one server; each is two requests, earliest and latest. A batch that arrives at the server
waits behind them."""


@dataclass(slots=True, eq=False)
class Want:
    """The look-ups of offsets that one ``metadata`` request waits for: the number of those not ended (``left``), and
    what was found. ``found`` gets an item for each partition that was looked up; None if its offsets are unknown."""

    principal: str
    left: int = 0
    found: dict[TopicPartition, Offsets | None] = field(default_factory=dict)
    silent: dict[NodeId, None] = field(default_factory=dict)
    """Servers that did not answer for a partition in time, or to which the link broke."""
    given_up: bool = False
    """No request waits for the look-ups any more."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """The earliest and latest offsets of a partition, as its leader reported them."""

    earliest: OffsetAnswer
    latest: OffsetAnswer


@dataclass(slots=True, eq=False)
class Lookup:
    """One look-up of a partition's offsets, shared by one or several requests (``wants``), from its request to its
    answer. ``server``: the partition's leader when the look-up was first requested."""

    key: TopicPartition
    server: NodeId
    wants: list[Want] = field(default_factory=list)
    principals: dict[str, None] = field(default_factory=dict)
    is_sent: bool = False


class Lookups:
    """The queue of all look-ups of offsets, and those under way: at most one for each partition and ``PER_SERVER``
    for each server. It sends nothing itself."""

    def __init__(self) -> None:
        self._next: dict[TopicPartition, Lookup] = {}
        """Look-ups that are requested and not sent yet."""
        self._sent: dict[TopicPartition, Lookup] = {}
        self._queues: dict[NodeId, dict[str, deque[Lookup]]] = {}
        """Look-ups by server, then by principal; the principal whose turn is next comes first. A look-up that several
        principals want is in the queues of all of them."""
        self._under_way: dict[NodeId, int] = {}

    def want(self, want: Want, key: TopicPartition, server: NodeId) -> None:
        """Queue a look-up of a partition led by ``server`` for the request ``want``, or let the request share one
        that is queued and not sent. ``want.left`` rises by one."""
        want.left += 1
        lookup = self._next.get(key)
        if lookup is None:
            lookup = self._next[key] = Lookup(key, server)
        lookup.wants.append(want)
        if want.principal not in lookup.principals:
            lookup.principals[want.principal] = None
            if key not in self._sent:
                self._queue(lookup, want.principal)

    def next_to_send(self) -> Iterator[Lookup]:
        """Yield the look-ups that may be sent now, at most ``PER_SERVER`` under way at each server, in turn of the
        principals, and count each as under way when it is yielded; the caller sends it. Look-ups that no request
        wants any more are dropped."""
        for server in list(self._queues):
            queues = self._queues[server]
            while queues and self._under_way.get(server, 0) < PER_SERVER:
                principal = next(iter(queues))
                queue = queues.pop(principal)
                lookup = queue.popleft()
                if queue:
                    queues[principal] = queue  # behind the others
                if self._is_to_be_sent(lookup):
                    self._under_way[server] = self._under_way.get(server, 0) + 1
                    yield lookup
            if not queues:
                del self._queues[server]

    def on_answer(self, lookup: Lookup, offsets: Offsets | None, *, silent: bool = False) -> list[Want]:
        """End a look-up that was under way: record ``offsets`` (None: unknown) for the requests that shared it, and
        return these. A look-up of the partition that was requested meanwhile may be sent next. ``silent``: the server
        did not answer, so the requests ask it for nothing more. A refusal counts as an answer."""
        del self._sent[lookup.key]
        self._under_way[lookup.server] -= 1
        if not self._under_way[lookup.server]:
            del self._under_way[lookup.server]
        if (following := self._next.get(lookup.key)) is not None:
            for principal in following.principals:
                self._queue(following, principal)
        for want in lookup.wants:
            want.found[lookup.key] = offsets
            want.left -= 1
            if silent:
                want.silent[lookup.server] = None
        return lookup.wants

    def _queue(self, lookup: Lookup, principal: str) -> None:
        self._queues.setdefault(lookup.server, {}).setdefault(principal, deque()).append(lookup)

    def _is_to_be_sent(self, lookup: Lookup) -> bool:
        """Return whether a look-up taken from a queue is to be sent, and mark it as sent if so. False if it was sent
        from another principal's queue, or if no request wants it any more."""
        if lookup.is_sent or self._next.get(lookup.key) is not lookup:
            return False
        del self._next[lookup.key]
        if all(want.given_up for want in lookup.wants):
            return False
        lookup.is_sent = True
        self._sent[lookup.key] = lookup
        return True
