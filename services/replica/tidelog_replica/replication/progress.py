"""What a leader knows of one follower in its leader epoch: how far it is, and whether it keeps up.

    caught up  its durable offset reached the log end as it was at some moment: then, at that moment; a follower that
               has everything is caught up for as long as nothing new is appended (KIP-501)
    too far    more than ``max_lag_records`` short of where the log ended when it asked, ``RECORDS_PATIENCE`` of
               ``max_lag_s`` ago: it could have fetched that. The present end says nothing: a burst may just have come
    overdue    too far, or not caught up for ``max_lag_s``

Both times are *marks*: where the log ended when the follower asked, and when. A mark stands until it is reached; then
the next fetch sets it anew. Times are seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from tidelog.types import NodeId, ServerState

RECORDS_PATIENCE = 0.1
"""Part of ``max_lag_s`` in which a follower has to come within ``max_lag_records`` of where the log ended."""


class IdleFollower(NamedTuple):
    """A follower that idles, to be notified over link ``source``. What it has is what was below ``offset`` here."""

    node: NodeId
    source: int
    offset: int


@dataclass(slots=True)
class FollowerProgress:
    """One follower or learner; a new one has not fetched yet."""

    caught_up_at: float
    """When it last had everything that was in the log then; at first the start of the epoch."""
    mark_end: int
    """Once durable up to here, it was caught up at ``mark_time``."""
    mark_time: float
    broker_epoch: int = -1
    """Incarnation in which it fetched; -1: it has not fetched in this leader epoch."""
    durable: int = -1
    level: bool = False
    """It has everything, and nothing was appended since."""
    asked_end: int = 0
    """Where the log ended when it asked, at ``asked_at``: it is ``max_lag_records`` short of that or more."""
    asked_at: float = math.inf
    waiting: int | None = None
    """The link over which it wants to be notified of new data."""
    waits_at: int = -1
    """Where its log ended, as the leader's did, when it began to wait."""
    forgotten_at: int = -1
    """Only fetches count that show a greater stamp."""
    reached: int = -1
    """What ``durable`` was last, forgotten or not: for people, no rule goes by it."""
    shown: int = 0
    """The greatest stamp of a message that it has shown to have got."""
    notify_above: float = math.inf
    """It is also to be notified when the HW gets past this."""

    def wait(self, source: int, log_end: int, notify_above: float) -> None:
        """Idle; see ``waiting``, ``waits_at``, ``notify_above``."""
        self.waiting, self.waits_at, self.notify_above = source, log_end, notify_above

    def forget(self, stamp: int) -> None:
        """It is outside the ISR, and perhaps because what it had is lost: it counts for nothing until a fetch shows
        that it was sent after a message that bears a greater stamp than this."""
        self.durable = -1
        self.level = False
        self.forgotten_at = stamp

    def is_of(self, server: ServerState | None) -> bool:
        """Whether it has fetched in the incarnation of its server that the metadata name, which is not fenced."""
        if server is None or server.fenced:
            return False
        return 0 <= self.broker_epoch == server.broker_epoch

    def on_append(self, log_end: int, now: float) -> None:
        """The log ends at ``log_end`` now."""
        if self.level:
            self.level = False
            self.caught_up_at = self.mark_time = now
            self.mark_end = log_end

    def on_fetch(
        self, broker_epoch: int, durable: int, log_end: int, max_lag_records: int, now: float, stamp: int = 0
    ) -> None:
        """It has flushed up to ``durable``. Within one incarnation that never goes back: what agrees with the leader
        of this epoch is not truncated in it; an older message may only arrive late. ``stamp`` as in ``shown``."""
        self.shown = max(self.shown, stamp)
        if broker_epoch == self.broker_epoch:
            durable = max(durable, self.durable)
        self.broker_epoch = broker_epoch
        self.durable = durable
        self.reached = durable if durable >= 0 else self.reached
        self.level = durable >= log_end
        if self.level:
            self.caught_up_at = now
        elif durable >= self.mark_end:
            self.caught_up_at = self.mark_time
            self.mark_end, self.mark_time = log_end, now
        if durable + max_lag_records >= self.asked_end or self.asked_at == math.inf:
            self.asked_end, self.asked_at = log_end, now

    def overdue_at(self, max_lag_s: float, max_lag_records: int) -> float:
        """When it is overdue, unless it comes nearer."""
        if self.level:
            return math.inf
        at = self.caught_up_at + max_lag_s
        if max_lag_records and self.durable + max_lag_records < self.asked_end:
            at = min(at, self.asked_at + RECORDS_PATIENCE * max_lag_s)
        return at
