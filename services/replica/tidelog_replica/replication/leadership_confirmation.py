"""When it was last certain that no other replica led: the proof behind linearizable reads, and behind leaders that go
on without controllers (``assignment/leadership.py``).

Everything here is about one leader epoch *e* and one replica, its leader. ``confirmed_at`` is a time T of which it is
proved that no leader of a newer epoch had begun before T. Whatever had been committed by then is therefore in this
leader's log; where its HW has also reached the start of the epoch, it is below the HW.

Whom the controller can make the leader of the next epochs while *e* lasts are the *electors*: the maximal ISR and the
eligible leader replicas; every replica, where unclean elections are allowed. (The controller's ISR is within the
maximal ISR as long as the leader has not heard of a newer state; a replica that leaves it for the ELR was in it; and
only a leader that has begun its epoch can bring others in.) A leader that is the only elector asks every other
replica: it may be cut off, and not have heard that unclean elections are allowed now.

    confirmed by all electors: a replica that *sends* a fetch in epoch e has not begun a newer one, and never goes
        back to e once it has. So no elector had begun before the earliest of the electors' last such moments.
    confirmed by a majority (commit rule ``quorum``): a new leader needs the seals of a majority of the replicas,
        and one that has sealed fetches in e no more. Any two majorities meet: no election ended before the moment
        since which a majority, this leader included, has confirmed.
    by the controller: it answered, through Raft, that e was the newest epoch after it had been asked.

When was a fetch sent? Its arrival does not show that; it may be old. So every answer and notice to a follower carries
a *stamp*, a number of which the leader knows the time, and a fetch names the greatest stamp that its sender had seen
in this leader epoch: it was sent after that time. This holds for delayed, doubled and reordered messages alike. A
stamp that is not remembered any more proves nothing, which is safe.

A follower that idles is notified when a confirmation is wanted, and again at once where it turns out that the fetch
which arrives was sent before: an ask costs at most two rounds. Where the electors do not all answer within
``patience_s``, or there are none, the controller is asked, but not for longer than ``ASKED_S``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from tidelog.types import NodeId

ASKED_S = 30.0
"""No request waits for a confirmation longer than this."""
_REMEMBERED = 8


class LeadershipConfirmation:
    """One leader epoch. Times are seconds of the leader's clock; ``-inf``: never."""

    def __init__(self, patience_s: float, retry_s: float) -> None:
        self.asked_at = -math.inf
        """When the followers were last asked to confirm this leadership."""
        self._wanted_at = -math.inf
        """When a proof was last wanted for which the controller may be asked."""
        self._patience_s = patience_s
        self._retry_s = retry_s
        self._stamp = 0
        self._sent: dict[NodeId, deque[tuple[int, float]]] = {}
        self._confirmed: dict[NodeId, float] = {}
        self._proved_at = -math.inf
        """The latest time for which that is proved by other means: by the controller, or by this leader itself where
        it is the only replica."""
        self.call_at: float | None = None
        """When the controller is asked, unless the followers have confirmed by then; None: it is not. Only this class
        changes it."""
        self._calling = False

    @property
    def last_stamp(self) -> int:
        """Of the newest message: what is sent from now on bears a greater one."""
        return self._stamp

    def stamp(self, node: NodeId, now: float) -> int:
        """For a message that leaves for ``node`` now."""
        self._stamp += 1
        self._sent.setdefault(node, deque(maxlen=_REMEMBERED)).append((self._stamp, now))
        return self._stamp

    def on_fetch(self, node: NodeId, stamp: int) -> None:
        """``node`` has fetched in this leader epoch, after it had seen ``stamp``."""
        sent = self._sent.get(node)
        while sent and sent[0][0] <= stamp:
            self._confirmed[node] = sent.popleft()[1]

    def confirm(self, at: float) -> None:
        """It is proved by other means that no newer leader epoch had begun before ``at``."""
        self._proved_at = max(self._proved_at, at)

    def since(self, others: Sequence[NodeId], enough: int) -> float:
        """Since when at least ``enough`` of ``others`` have confirmed, or the controller."""
        if not enough:
            return self._proved_at
        times = [self._confirmed.get(node, -math.inf) for node in others]
        if enough == len(times):
            return max(self._proved_at, min(times))
        times.sort(reverse=True)
        return max(self._proved_at, times[enough - 1])

    # --- asking ------------------------------------------------------------------------------------------

    def ask(self, now: float, alone: bool) -> None:
        """Ask for a proof that no other replica leads now."""
        self.asked_at = self._wanted_at = now
        if self.call_at is None and not self._calling:
            self.call_at = now if alone else now + self._patience_s

    def has_confirmed(self, node: NodeId) -> bool:
        """Whether ``node`` has confirmed since the followers were last asked."""
        return self.confirmed_at(node) >= self.asked_at

    def confirmed_at(self, node: NodeId) -> float:
        """The latest time at which ``node`` is known to have begun no newer leader epoch."""
        return self._confirmed.get(node, -math.inf)

    def deadline(self, confirmed_at: float) -> float | None:
        """When ``due`` may have something."""
        return self.call_at if confirmed_at < self._wanted_at else None

    def due(self, confirmed_at: float, now: float) -> bool:
        """The controller must be asked now; it is then on its way until ``on_controller``."""
        if self.call_at is None or now < self.call_at:
            return False
        self.call_at = None
        self._calling = confirmed_at < self._wanted_at and now < self._wanted_at + ASKED_S
        return self._calling

    def on_controller(self, sent: float, confirmed: bool, now: float) -> None:
        """It answered what it was asked at ``sent``; or it did not, and is asked again after a pause."""
        self._calling = False
        if confirmed:
            self.confirm(sent)
        self.call_at = now if confirmed else now + self._retry_s
