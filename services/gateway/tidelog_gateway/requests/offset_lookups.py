"""Which offsets are asked for when, for answers that tell of many partitions.

Of each partition one look-up is under way at a time. Whoever wants it before it is sent shares it. Whoever comes
later shares the next one: an answer is never older than its question. So the number of look-ups follows from how
long one takes, and not from how many ask.

At most ``PER_SERVER`` look-ups are under way at a server. Behind them principals come in turn, and each has its own
in order: one that wants very many does not hold up another that wants few.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from tidelog.types import NodeId, TopicPartition
from tidelog.wire.messages import OffsetAnswer

PER_SERVER = 64
"""Look-ups under way at one server; each is two requests, earliest and latest. A batch that comes to the server waits
behind them."""


@dataclass(slots=True, eq=False)
class Want:
    """What somebody waits for. ``found`` gets an entry for each partition, None where the offsets are unknown."""

    principal: str
    left: int = 0
    found: dict[TopicPartition, Offsets | None] = field(default_factory=dict)
    silent: dict[NodeId, None] = field(default_factory=dict)
    """Servers that did not answer for a partition in time, or to which the link broke."""
    given_up: bool = False
    """Nobody waits for it any more."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """Of a partition, as its leader told them."""

    earliest: OffsetAnswer
    latest: OffsetAnswer


@dataclass(slots=True, eq=False)
class Lookup:
    """One look-up of a partition. ``server``: the leader when it was wanted first."""

    key: TopicPartition
    server: NodeId
    wants: list[Want] = field(default_factory=list)
    principals: dict[str, None] = field(default_factory=dict)
    is_sent: bool = False


class Lookups:
    """The look-ups of offsets under way, one at a time for each partition."""

    def __init__(self) -> None:
        self._next: dict[TopicPartition, Lookup] = {}
        """Wanted, and not sent yet."""
        self._sent: dict[TopicPartition, Lookup] = {}
        self._queues: dict[NodeId, dict[str, deque[Lookup]]] = {}
        """By server, then by principal, the one whose turn is next first. One that several want is in several."""
        self._under_way: dict[NodeId, int] = {}

    def want(self, want: Want, key: TopicPartition, server: NodeId) -> None:
        """Somebody wants the offsets of a partition, which this server leads."""
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
        """Those that are to be sent now."""
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
        """A look-up has ended; returns the wants that it was for. ``silent``: the server did not answer. A refusal
        is an answer: it concerns this partition alone."""
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
        if lookup.is_sent or self._next.get(lookup.key) is not lookup:
            return False
        del self._next[lookup.key]
        if all(want.given_up for want in lookup.wants):
            return False
        lookup.is_sent = True
        self._sent[lookup.key] = lookup
        return True
