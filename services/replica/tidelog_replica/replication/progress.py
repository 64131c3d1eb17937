"""What a leader knows of one follower in its leader epoch: how far it is, and whether it keeps up.

    caught up  as of the last moment at which the follower is known to have had everything that was in the log then. A
               follower that has everything is caught up for as long as nothing new is appended (KIP-501)
    too far    ``RECORDS_PATIENCE`` of ``max_lag_s`` after a fetch, the follower is still more than
               ``max_lag_records`` short of where the log ended at that fetch: it could have fetched that. The present
               end of the log shows nothing, since a burst may just have been appended
    overdue    too far, or not caught up for ``max_lag_s``

Both rules use *marks*: where the log ended when the follower fetched, and when that was. A mark stands until the
follower reaches it; then the next fetch sets it anew. Times are seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from tidelog.types import NodeId, ServerState

RECORDS_PATIENCE = 0.1
"""The part of ``max_lag_s`` in which a follower has to come within ``max_lag_records`` of where the log ended."""


class IdleFollower(NamedTuple):
    """A follower that idles, and is to be notified over link ``source`` of records at ``offset`` and above: it has
    all records below."""

    node: NodeId
    source: int
    offset: int


@dataclass(slots=True)
class FollowerProgress:
    """A leader's knowledge of one follower or learner in its leader epoch: how far its log is durable, and whether it
    keeps up. A new one has not fetched yet."""

    caught_up_at: float
    """When the follower last had everything that was in the log at that moment; at first the start of the leader
    epoch."""
    mark_end: int
    """When the follower is durable up to this offset, it was caught up at ``mark_time``."""
    mark_time: float
    broker_epoch: int = -1
    """The incarnation of its server in which the follower fetched last; -1: it has not fetched in this leader
    epoch."""
    durable: int = -1
    """The offset up to which the follower has flushed its log, as far as that counts; -1: it counts for nothing."""
    level: bool = False
    """Whether the follower has everything and nothing was appended since."""
    asked_end: int = 0
    """Where the log ended when the follower asked at ``asked_at``. The follower is still ``max_lag_records`` or more
    short of that, or has not fetched since."""
    asked_at: float = math.inf
    waiting: int | None = None
    """The link over which the idle follower is to be notified of new records; None if it does not idle."""
    waits_at: int = -1
    """The end of the follower's log, and of the leader's, when it began to idle."""
    forgotten_at: int = -1
    """Only fetches that show a greater stamp (number of a leader's message) than this count."""
    reached: int = -1
    """The last known value of ``durable``, forgotten or not. It is for status displays; no rule goes by it."""
    shown: int = 0
    """The greatest stamp (number of a leader's message) that a fetch of the follower has shown to have arrived."""
    notify_above: float = math.inf
    """The idle follower is notified also when the HW rises above this offset; ``inf``: it is not."""

    def wait(self, source: int, log_end: int, notify_above: float) -> None:
        """Record that the follower has everything up to ``log_end`` and idles. It is to be notified over link
        ``source`` of new records, and also when the HW rises above ``notify_above``."""
        self.waiting, self.waits_at, self.notify_above = source, log_end, notify_above

    def forget(self, stamp: int) -> None:
        """Let the follower count for nothing until it sends a fetch that shows a greater stamp (number of a leader's
        message) than this one, and so was sent later. Called for a follower outside the ISR, whose log may have lost
        records."""
        self.durable = -1
        self.level = False
        self.forgotten_at = stamp

    def is_of(self, server: ServerState | None) -> bool:
        """Return whether the follower has fetched in the present incarnation of ``server``, and that server is not
        fenced. False if the metadata does not know the server (None)."""
        if server is None or server.fenced:
            return False
        return 0 <= self.broker_epoch == server.broker_epoch

    def on_append(self, log_end: int, now: float) -> None:
        """Record that the leader's log was extended to offset ``log_end`` at ``now`` (seconds). A follower that had
        everything was caught up until then, and is behind from now on."""
        if self.level:
            self.level = False
            self.caught_up_at = self.mark_time = now
            self.mark_end = log_end

    def on_fetch(
        self, broker_epoch: int, durable: int, log_end: int, max_lag_records: int, now: float, stamp: int = 0
    ) -> None:
        """Record a fetch of the follower: its log is flushed up to ``durable`` (-1: does not count) in incarnation
        ``broker_epoch``, while the leader's log ends at ``log_end``. ``stamp`` is the number of the last message of
        the leader that it had received. Also update when the follower was last caught up. Within one incarnation
        ``durable`` never goes back, since a follower does not cut what agrees with this leader; a smaller value comes
        from an older message."""
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
        """Return the time, in seconds, at which the follower becomes overdue unless it makes progress; ``inf`` if it
        has everything. With ``max_lag_records`` 0 only ``max_lag_s`` counts."""
        if self.level:
            return math.inf
        at = self.caught_up_at + max_lag_s
        if max_lag_records and self.durable + max_lag_records < self.asked_end:
            at = min(at, self.asked_at + RECORDS_PATIENCE * max_lag_s)
        return at
