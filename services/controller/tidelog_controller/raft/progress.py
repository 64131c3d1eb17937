"""What a leader knows of one follower's log, and what it has sent it (after etcd's ``tracker/progress.go``).

Three modes. *Probing*: it is not known where the logs part ways; one AppendEntries is on its way, and its answer
decides. *Streaming*: the logs agree up to ``next - 1`` if nothing was lost; messages are pipelined, at most
``window`` of them unanswered. *Sending*: the follower needs what is compacted away; a snapshot goes out piece by
piece.

    probing --ok--> streaming --rejected--> probing (at the follower's hint)
    probing --too far back--> sending --ok--> streaming

There is no timer for lost messages. A heartbeat claims (index, term) of ``next - 1``; a follower that misses
something of what was sent rejects it, which leads back to probing; if only answers were lost, its ok confirms
everything. Answers carry no number of their request, so old ones are recognised by their content:

- ``match`` never decreases: an ok below it is old;
- a true rejection of a message that claims ``next - 1`` or less points strictly below it: another one is old;
- a true rejection points at or above ``match``, because what a follower has acknowledged it never loses.

An old rejection that slips through costs only messages: ``next > match`` holds always.

All this is of one *store*; when another answers under the same name (``raft/membership.py``) a new
``ReplicationProgress`` begins. A store that did lose what it had acknowledged reports it (``old_copies.py``): its
*refill* begins, with ``match`` 0, and answers of its earlier incarnation, which are those to older rounds of
heartbeats, count no more."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tidelog_controller.raft.log import Snapshot
from tidelog_controller.raft.membership import Member, Standing
from tidelog_controller.raft.snapshot_transfer import SnapshotSender


@dataclass(frozen=True, slots=True)
class Refill:
    """The refill of a follower's store that is an old copy of a disk. ``id`` is the number that the follower has
    drawn for it. ``to`` is the index up to which its log must agree with the leader's before the follower counts
    again."""

    id: int
    to: int


class ReplicationProgress:
    """A leader's knowledge of one follower's log, and of what was sent to it. It lives for one term of the leader and
    one store of the follower."""

    def __init__(self, next_index: int, window: int, now: float, store: str = "") -> None:
        self.store = store
        """The name of the store that answers; "" if none has answered yet."""
        self.match = 0
        """The follower has all entries up to this index, durably."""
        self.acked = 0
        """The highest ``match`` of this term, also if the store has lost it since."""
        self.refill: Refill | None = None
        """The refill of the store while it goes on, during which the follower counts for nothing; otherwise None."""
        self.first_round = 0
        """Answers to heartbeats with a lower number are from an earlier incarnation of the store."""
        self.next = next_index
        """The first index of the next message with entries."""
        self.probing = True
        self.sending: SnapshotSender | None = None
        self.heard_at = now
        """When the last answer of this term came. A new leader begins with the present time: it takes every follower
        for live."""
        self.heard_round = 0
        """The number of the latest heartbeat that the follower has answered."""
        self._window = window
        self._probe_sent = False
        self._in_flight: deque[int] = deque()
        self._round: tuple[int, float] | None = None

    @property
    def can_send(self) -> bool:
        """Return whether a message with entries may be sent now: no snapshot is being sent, and neither the window
        nor, while probing, the one probe is used up."""
        if self.sending is not None:
            return False
        return not self._probe_sent if self.probing else len(self._in_flight) < self._window

    def on_sent(self, last_index: int) -> None:
        """Record that the entries from ``next`` to ``last_index``, both included, were sent. While streaming,
        ``next`` moves behind them; while probing, no other message is sent until the answer comes."""
        if self.probing:
            self._probe_sent = True
        elif last_index >= self.next:
            self._in_flight.append(last_index)
            self.next = last_index + 1

    def on_ok(self, match: int) -> bool:
        """Record that the follower agrees with the leader up to index ``match``. Probing turns into streaming if
        ``match`` reaches the entry before ``next``, and a snapshot up to ``match`` counts as installed. Return
        whether ``match`` is further than what was known."""
        advanced = match > self.match
        self.match = max(self.match, match)
        self.acked = max(self.acked, match)
        if self.sending is not None and self.match >= self.sending.snapshot.index:
            self.sending = None
            self.next = self.match + 1
        if self.probing and match >= self.next - 1:
            self.probing = False
            self._probe_sent = False
        self.next = max(self.next, self.match + 1)
        while self._in_flight and self._in_flight[0] <= self.match:
            self._in_flight.popleft()
        return advanced

    def on_rejected(self, hint: int) -> bool:
        """Record that the logs agree at most up to index ``hint``, and probe from there. Return whether the rejection
        was used: an old one, or one that comes while a snapshot is being sent, is ignored."""
        if self.sending is not None or not self.match <= hint < self.next - 1:
            return False
        self.probing = True
        self._probe_sent = False
        self._in_flight.clear()
        self.next = hint + 1
        return True

    def begin_refill(self, refill: Refill, round: int) -> None:
        """Begin to refill the follower's store, which is an old copy: ``match`` becomes 0, and probing begins.
        Answers to heartbeats below number ``round`` no longer count."""
        self.refill = refill
        self.match = 0
        self._begin_incarnation(round)
        self.probing = True
        self._probe_sent = False
        self._in_flight.clear()

    def end_refill(self, round: int) -> None:
        """End the refill, so that the follower counts again. Only its answers to heartbeats from number ``round`` on
        count."""
        self.refill = None
        self._begin_incarnation(round)

    def _begin_incarnation(self, round: int) -> None:
        self.first_round = round
        self.heard_round = 0

    def send_snapshot(self, snapshot: Snapshot) -> None:
        """Begin to send this snapshot, since the follower needs entries that are compacted away. No entries are sent
        until the follower has installed it."""
        self.sending = SnapshotSender(snapshot)
        self.probing = True
        self._probe_sent = False
        self._in_flight.clear()

    def has_caught_up(self, last_index: int, now: float, limit_s: float) -> bool:
        """Return whether a learner may become a voter (dissertation §4.2.1). It catches up in rounds, each up to the
        end of the log when the round began, and has caught up when a round took no longer than ``limit_s`` seconds.
        Begins the first round and each next one."""
        if self._round is None:
            self._round = (last_index, now)
        target, began = self._round
        if self.match < target:
            return False
        self._round = (last_index, now)
        return now - began <= limit_s

    def standing(self, member: Member | None) -> Standing:
        """Return the state of the follower as operators see it: how far its log agrees, whether its store was lost,
        and its refill. ``member`` is its entry in the configuration; None if it was removed."""
        lost = member is not None and member.voter and self.store != member.store
        return Standing(self.match, lost, self.refill is not None, self.refill.to if self.refill is not None else 0)
