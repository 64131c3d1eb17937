"""When it was last certain that no other replica led: the proof for linearizable reads, and for leaders that continue
without controllers (``assignment/leadership.py``).

Everything here is about one leader epoch *e* and one replica, its leader. ``confirmed_at`` is a time T of which it is
proved that no leader of a newer epoch had begun before T. Whatever had been committed by then is therefore in this
leader's log; where its HW has also reached the start of the epoch, it is below the HW.

The *voters* are the replicas that the controller can make the leader of the next epochs while *e* lasts: the
maximal ISR and the eligible leader replicas, or every replica where unclean elections are allowed. (The controller's
ISR is within the maximal ISR as long as the leader knows of no newer state; a replica that leaves the ISR for the ELR
was in it; and only a leader that has begun its epoch can add others.) A leader that is the only voter asks every
other replica: it may be cut off from the controllers, and not know that unclean elections are allowed now.

    confirmed by all voters: a replica that *sends* a fetch in epoch e has not begun a newer one, and never goes
        back to e once it has. So no voter had begun before the earliest of the voters' last such moments.
    confirmed by a majority (commit rule ``quorum``): a new leader needs the seals of a majority of the replicas,
        and one that has sealed fetches in e no more. Any two majorities meet: no election ended before the moment
        since which a majority, this leader included, has confirmed.
    confirmed by the controller: it answered, through Raft, that e was the newest epoch after it had been asked.

When was a fetch sent? Its arrival does not show that, since it may be old. So every answer and notify to a follower
carries a *stamp*, a number of which the leader knows the time of sending. A fetch names the greatest stamp that its
sender had seen in this leader epoch: the fetch was sent after that time. This holds for delayed, doubled and
reordered messages alike. A stamp that is not remembered any more proves nothing, which is safe.

An idle follower is notified when a confirmation is wanted. It is notified again at once if its next fetch turns out
to have been sent before: a confirmation takes at most two rounds. If the voters do not all answer within
``patience_s``, or there are none, the controller is asked, but for at most ``ASKED_S``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from tidelog.types import NodeId

ASKED_S = 30.0
"""The controllers are asked on behalf of a request for at most so many seconds; no request waits longer."""
_REMEMBERED = 8
"""How many stamps are remembered for each follower."""


class LeadershipConfirmation:
    """The evidence that a leader still leads in its leader epoch: the stamps (numbers) of its messages with their
    times of sending, what each follower's fetches have confirmed, and when the controllers are to be asked. A leader
    has one per leader epoch. Times are seconds of the leader's clock; ``-inf`` means never."""

    def __init__(self, patience_s: float, retry_s: float) -> None:
        self.asked_at = -math.inf
        """When the followers were last asked to confirm this leadership."""
        self._wanted_at = -math.inf
        """When a proof was last wanted of which the controllers may be asked."""
        self._patience_s = patience_s
        self._retry_s = retry_s
        self._stamp = 0
        self._sent: dict[NodeId, deque[tuple[int, float]]] = {}
        self._confirmed: dict[NodeId, float] = {}
        self._proved_at = -math.inf
        """The latest time for which leadership is proved by other means than fetches: by the controllers, or by this
        leader itself if it is the only replica."""
        self.call_at: float | None = None
        """When the controllers are asked unless the followers have confirmed by then; None: they are not asked. Only
        this class changes it."""
        self._calling = False

    @property
    def last_stamp(self) -> int:
        """Return the stamp of the newest message to a follower; 0 if none was sent. Later messages get greater
        stamps."""
        return self._stamp

    def stamp(self, node: NodeId, now: float) -> int:
        """Return a new stamp, one above the last, for a message that is sent to follower ``node`` at ``now``, and
        remember that time. Only the last few stamps of each follower are remembered."""
        self._stamp += 1
        self._sent.setdefault(node, deque(maxlen=_REMEMBERED)).append((self._stamp, now))
        return self._stamp

    def on_fetch(self, node: NodeId, stamp: int) -> None:
        """Record that ``node`` has sent a fetch in this leader epoch after it had received the message with this
        stamp. It thereby confirms this leadership as of the time at which that message was sent. A stamp that is not
        remembered changes nothing."""
        sent = self._sent.get(node)
        while sent and sent[0][0] <= stamp:
            self._confirmed[node] = sent.popleft()[1]

    def confirm(self, at: float) -> None:
        """Record a proof, by other means than fetches, that no newer leader epoch had begun before time ``at``."""
        self._proved_at = max(self._proved_at, at)

    def since(self, others: Sequence[NodeId], enough: int) -> float:
        """Return the latest time as of which this leadership is confirmed: by at least ``enough`` of the replicas
        ``others``, or by other means, whichever is later. With ``enough`` 0 only other means count. ``-inf`` if it
        was never confirmed."""
        if not enough:
            return self._proved_at
        times = [self._confirmed.get(node, -math.inf) for node in others]
        if enough == len(times):
            return max(self._proved_at, min(times))
        times.sort(reverse=True)
        return max(self._proved_at, times[enough - 1])

    # --- asking ------------------------------------------------------------------------------------------

    def ask(self, now: float, alone: bool) -> None:
        """Record that a request waits for proof that no other replica leads at ``now``. Unless a question to the
        controllers is planned or under way, also plan one: at once if this leader is ``alone`` (has no voters),
        otherwise after ``patience_s``."""
        self.asked_at = self._wanted_at = now
        if self.call_at is None and not self._calling:
            self.call_at = now if alone else now + self._patience_s

    def has_confirmed(self, node: NodeId) -> bool:
        """Return whether ``node`` has confirmed this leadership as of the time at which the followers were last
        asked, or later."""
        return self.confirmed_at(node) >= self.asked_at

    def confirmed_at(self, node: NodeId) -> float:
        """Return the latest time at which ``node`` had provably not begun a newer leader epoch; ``-inf`` if none is
        known."""
        return self._confirmed.get(node, -math.inf)

    def deadline(self, confirmed_at: float) -> float | None:
        """Return the time at which the controllers are to be asked. Return None if that is not planned, or not needed
        any more, since leadership is confirmed as of ``confirmed_at``, as late as any request wanted."""
        return self.call_at if confirmed_at < self._wanted_at else None

    def due(self, confirmed_at: float, now: float) -> bool:
        """Return whether the controllers must be asked now; the question then counts as under way until
        ``on_controller``. Return False and drop a due question if leadership is confirmed as of ``confirmed_at``, as
        late as any request wanted, or if the last request for a proof is ``ASKED_S`` old."""
        if self.call_at is None or now < self.call_at:
            return False
        self.call_at = None
        self._calling = confirmed_at < self._wanted_at and now < self._wanted_at + ASKED_S
        return self._calling

    def on_controller(self, sent: float, confirmed: bool, now: float) -> None:
        """Record the controllers' answer to the question that was sent at ``sent``. If they confirmed the leadership,
        it is proved as of that time. If they refused or did not answer, the next question waits for ``retry_s``."""
        self._calling = False
        if confirmed:
            self.confirm(sent)
        self.call_at = now if confirmed else now + self._retry_s
