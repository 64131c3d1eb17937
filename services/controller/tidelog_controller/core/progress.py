"""What a leader knows of one follower's log, and what it has sent it (after etcd's ``tracker/progress.go``).

Two modes. *Probing*: it is not known where the logs part ways; one AppendEntries is on its way, and its answer
decides. *Streaming*: the logs agree up to ``next - 1`` if nothing was lost; messages are pipelined, at most
``window`` of them unanswered.

    probing --ok--> streaming --rejected--> probing (at the follower's hint)

There is no timer for lost messages. A heartbeat claims (index, term) of ``next - 1``; a follower that misses
something of what was sent rejects it, which leads back to probing; if only answers were lost, its ok confirms
everything. Answers carry no number of their request, so old ones are told apart by what they say:

- ``match`` never decreases: an ok below it is old;
- a true rejection of a message that claims ``next - 1`` or less points strictly below it: another one is old;
- a true rejection points at or above ``match``, because what a follower has acknowledged it never loses.

An old rejection that slips through costs only messages: ``next > match`` holds always.
"""

from __future__ import annotations

from collections import deque


class Progress:
    """One follower, from the leader's side, for one term of leadership."""

    def __init__(self, next_index: int, window: int, now: float) -> None:
        self.match = 0
        """The follower has everything up to here, durably."""
        self.next = next_index
        """First index of the next message with entries."""
        self.probing = True
        self.heard_at = now
        """When the last answer of this term came; a new leader gives everybody the benefit of the doubt."""
        self._window = window
        self._probe_sent = False
        self._in_flight: deque[int] = deque()

    @property
    def can_send(self) -> bool:
        """Whether a message with entries may go out now."""
        return not self._probe_sent if self.probing else len(self._in_flight) < self._window

    def on_sent(self, last_index: int) -> None:
        """Entries ``next`` to ``last_index`` went out (none if ``last_index`` is ``next - 1``)."""
        if self.probing:
            self._probe_sent = True
        elif last_index >= self.next:
            self._in_flight.append(last_index)
            self.next = last_index + 1

    def on_ok(self, match: int) -> bool:
        """The follower agrees up to ``match``. True if that is news."""
        news = match > self.match
        self.match = max(self.match, match)
        if self.probing and match >= self.next - 1:
            self.probing = False
            self._probe_sent = False
        self.next = max(self.next, self.match + 1)
        while self._in_flight and self._in_flight[0] <= self.match:
            self._in_flight.popleft()
        return news

    def on_rejected(self, hint: int) -> bool:
        """The logs agree at ``hint`` at most. True if that is news: then send a probe."""
        if not self.match <= hint < self.next - 1:
            return False
        self.probing = True
        self._probe_sent = False
        self._in_flight.clear()
        self.next = hint + 1
        return True
