"""The refused requests, for the timeline: which principal asked for what, and why it was refused.

Refusals change nothing, so they are no part of the replicated state, and none of the numbered events: the timeline
writer puts them between events, at most once each. They are lost with the active controller, with an append of which
nobody knows whether it was made, and, beyond ``READY`` of them, while the timeline cannot be written.

What is refused on a link before it becomes a request is recorded, too: a hello, a message of a kind that the peer's
role may not send.

Nobody can fill the timeline with refusals:

- repetitions (op, code, subject and principal are equal, wherever they come from) are counted, and written after
  ``REPEAT_FIRST_S``, then after twice as long each time, up to ``REPEAT_MAX_S``;
- a bucket of ``BURST`` records gets one every ``REFILL_S``; a refusal that finds it empty is counted, whatever it is,
  and all of these are written as one record ``others`` when the bucket has a token again.

The last ``KEPT`` refusals about a partition are also kept in memory for the answer about its history."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tidelog.errors import TidelogError
from tidelog.printable import escaped
from tidelog.sansio.token_bucket import TokenBucket
from tidelog.types import NodeId, TopicPartition
from tidelog.wire.messages import Hello, HistoryEntry, Message, ReportLeader

from tidelog_controller.metadata.commands import Command
from tidelog_controller.metadata.state import MetadataState

BURST, REFILL_S = 50, 20.0
REPEAT_FIRST_S, REPEAT_MAX_S = 60.0, 3600.0
READY = 100
"""Number of refusals that may wait to be written, at most."""
KINDS = 500
"""Number of different refusals whose repetitions are counted."""
KEPT, PARTITIONS = 20, 500
TEXT = 300
"""Number of characters that are kept of a text that a client chose."""
ROLES = ("controller", "replica", "gateway", "client")
NOT_RECORDED = ("NOT_ACTIVE_CONTROLLER", "NO_QUORUM", "OVERLOADED")
"""Codes that are not recorded, since they describe the state of the controllers and not the request."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One refused request as it is written to the timeline. If ``count`` is more than 1 it stands for that many equal
    ones since ``since_ms``, and is the last of them. Times are wall-clock milliseconds."""

    time_ms: int
    op: str
    code: str
    message: str = ""
    asker: str = ""
    topic: str = ""
    topic_id: str = ""
    partition: int = -1
    node: NodeId = ""
    """The replica server or controller that the request is about, or that sent it."""
    evidence: dict[str, str] = field(default_factory=dict)
    count: int = 1
    since_ms: int = 0

    @property
    def sort(self) -> tuple[str, ...]:
        """Return the key by which repetitions of a refusal are recognised: operation, code, topic, partition, server
        and principal. The address and port in the name of a client are left out."""
        who = self.asker.partition(" at ")[0]
        return self.op, self.code, self.topic, str(self.partition), self.node, who


@dataclass(slots=True)
class _Repeated:
    """The repetitions of one refusal: when they are written next (``due``), the length of that pause in seconds, and
    one refusal that stands for all repetitions since the last that was written; None if there were none."""

    due: float
    pause_s: float
    last: Refusal | None = None


class RefusalLog:
    """The refused requests that wait to be written to the timeline, on the active controller, with limits so that
    refusals cannot fill it. ``ready`` holds those that may be written now, in order. In memory only. Times are
    seconds of the caller's monotonic clock."""

    def __init__(self) -> None:
        self.ready: deque[Refusal] = deque()
        self._repeated: dict[tuple[str, ...], _Repeated] = {}
        self._others: Refusal | None = None
        self._room = TokenBucket(1 / REFILL_S, BURST * REFILL_S, -math.inf)
        self._recent: dict[TopicPartition, deque[HistoryEntry]] = {}

    def clear(self) -> None:
        """Forget all refusals, since this controller is no longer active."""
        self.ready.clear()
        self._repeated.clear()
        self._recent.clear()
        self._others = None

    def record(self, refusal: Refusal, state: MetadataState, now: float) -> None:
        """Record a refused request. The first of its kind becomes ready to be written if the limits allow it; a
        repetition is only counted; any other one beyond the limits is counted among ``others``. The refusal is also
        kept for the history of its partition. Codes in ``NOT_RECORDED`` are ignored."""
        if refusal.code in NOT_RECORDED:
            return
        self._remember(refusal, state)
        known = self._repeated.get(refusal.sort)
        if known is None and len(self._repeated) < KINDS and self._take_room(now):
            self._repeated[refusal.sort] = _Repeated(now + REPEAT_FIRST_S, REPEAT_FIRST_S)
            self.ready.append(refusal)
        elif known is not None:
            known.last = _more(known.last, refusal)
        else:
            self._others = _more(self._others, Refusal(refusal.time_ms, "others", refusal.code))

    def deadline(self) -> float:
        """Return the time in seconds at which ``on_tick`` has something to do: the end of the next pause, or when the
        limits allow one more record. Infinity if nothing is counted."""
        due = min((one.due for one in self._repeated.values()), default=math.inf)
        waits = self._others is None or len(self.ready) >= READY
        return min(due, math.inf if waits else self._room.token_at)

    def on_tick(self, now: float) -> None:
        """Make counted refusals ready whose pause is over, as far as the limits allow. A refusal that was not
        repeated during its pause is forgotten, so that the next one counts as the first."""
        for sort, one in [*self._repeated.items()]:
            if now < one.due:
                continue
            if one.last is None:
                del self._repeated[sort]
                continue
            one.pause_s = min(2 * one.pause_s, REPEAT_MAX_S)
            one.due = now + one.pause_s
            if self._take_room(now):
                self.ready.append(one.last)
                one.last = None
        if self._others is not None and self._take_room(now):
            self.ready.append(self._others)
            self._others = None

    def pop_ready(self) -> Refusal:
        """Remove the first refusal from ``ready`` and return it, for the timeline. Raises ``IndexError`` if there is
        none."""
        return self.ready.popleft()

    def put_back(self, refusals: Iterable[Refusal]) -> None:
        """Put refusals that were not written to the timeline after all back at the front of ``ready``, in their
        order."""
        self.ready.extendleft(reversed([*refusals]))

    def recent(self, key: TopicPartition) -> tuple[HistoryEntry, ...]:
        """Return the last refusals of requests about a partition as history entries, oldest first; an empty tuple if
        there are none."""
        return tuple(self._recent.get(key, ()))

    def _take_room(self, now: float) -> bool:
        """Return whether the limits allow one more refusal to become ready now, and count it against them if they
        do."""
        self._room.fill(now)
        if self._room.tokens < 1 - 1e-9 or len(self.ready) >= READY:
            return False
        self._room.spend(min(1.0, self._room.tokens), now)
        return True

    def _remember(self, refusal: Refusal, state: MetadataState) -> None:
        """Keep a refusal for the history of its partition, if it names one that exists. At most ``KEPT`` are kept of
        each of the last ``PARTITIONS`` partitions."""
        key = TopicPartition(refusal.topic_id, refusal.partition)
        partition = state.partition(*key)
        if partition is None:
            return
        evidence = {"op": refusal.op, "asked_by": refusal.asker, "message": refusal.message, **refusal.evidence}
        entry = HistoryEntry(
            refusal.time_ms,
            partition.epoch,
            partition.leader_epoch,
            "refused",
            refusal.code,
            partition.leader or "",
            partition.isr,
            evidence,
        )
        if key not in self._recent and len(self._recent) >= PARTITIONS:
            del self._recent[next(iter(self._recent))]
        self._recent.setdefault(key, deque(maxlen=KEPT)).append(entry)


def _more(known: Refusal | None, refusal: Refusal) -> Refusal:
    """Return ``refusal`` with the number of all equal ones since the first, and with the time of the first. ``known``
    stands for the earlier ones; None if there are none."""
    if known is None:
        return replace(refusal, since_ms=refusal.time_ms)
    return replace(refusal, count=known.count + refusal.count, since_ms=known.since_ms)


def _words(text: str) -> str:
    """Return a text that a stranger may have chosen, cut to ``TEXT`` characters, with unprintable characters
    escaped."""
    return escaped(text[:TEXT])[:TEXT]


def refusal_of(
    request: Message | Command, error: TidelogError, state: MetadataState, time_ms: int, peer: str = ""
) -> Refusal:
    """Return the record of a refused request. ``request`` is the message, or the command that it became; ``peer`` is
    the name of the process that sent it. Principal, topic, partition and server are those that the request names.
    Texts that a client chose are escaped and shortened."""

    def said(*names: str) -> str:
        return next((str(found) for name in names if (found := getattr(request, name, ""))), "")

    op = request.KIND if isinstance(request, Command) else request.OP
    topic, topic_id, node = said("name"), said("topic_id"), said("server", "node")
    topic_id = topic_id or state.names.get(topic, "")
    if topic_id in state.topics:
        topic = state.topics[topic_id].name
    evidence = {name: _words(str(value)) for name, value in error.detail.items()}
    for name in ("broker_epoch", "epoch", "leader_epoch", "reason"):
        if hasattr(request, name):
            evidence[name] = _words(str(getattr(request, name)))
    if isinstance(request, ReportLeader):
        evidence["leader"] = _words(request.leader)
    asker = said("asker") or peer or node
    if isinstance(request, Hello):  # a peer may try any number of names: all of a role are one kind
        role = request.role if request.role in ROLES else "stranger"
        asker, node = f"a {role} at {peer.rpartition(' at ')[2]}", ""
        evidence |= {"node": _words(request.node), "cluster": _words(request.cluster)}
    return Refusal(
        time_ms,
        op,
        error.code,
        _words(error.message),
        _words(asker),
        _words(topic),
        _words(topic_id),
        getattr(request, "partition", -1),
        _words(node),
        evidence,
    )
