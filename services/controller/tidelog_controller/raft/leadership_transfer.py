"""Transfer of leadership (dissertation §3.10).

The leader takes no more commands and brings the target's log up to date. Then it sends ``TimeoutNow``, and the target
stands for election at once. Voters grant their votes although they have just heard from the leader. The leader gives
up after an election timeout, and takes commands again.

    none --start--> catching up --target has the whole log: TimeoutNow--> notified --time is up--> none
                        '-------------------------time is up-----------------------------------------^

A controller that is *leaving* (its process is about to end) starts a transfer whenever it leads."""

from __future__ import annotations

from tidelog.types import NodeId
from tidelog.wire.messages import TimeoutNow


class LeadershipTransfer:
    """The transfer of leadership that goes on at one server, if there is one, and whether the server is about to
    stop. Lives as long as the ``Raft`` object."""

    def __init__(self) -> None:
        self.target: NodeId | None = None
        """The follower that shall lead; None if no transfer goes on."""
        self.ends_at: float | None = None
        """When the leader gives up, in seconds; None if no transfer goes on."""
        self.leaving = False
        """Whether this controller hands leadership over whenever it leads, because its process is about to end."""
        self._notified = False

    def start(self, target: NodeId, ends_at: float) -> None:
        """Begin a transfer to ``target``, which the leader gives up at the time ``ends_at`` in seconds. It replaces a
        transfer that goes on."""
        self.target, self.ends_at, self._notified = target, ends_at, False

    def clear(self) -> None:
        """Forget the transfer, because it has failed or this server has stopped leading. ``leaving`` stays."""
        self.target, self.ends_at, self._notified = None, None, False

    def notify(self, match: int, last_index: int, term: int) -> TimeoutNow | None:
        """Return the ``TimeoutNow`` message that makes the target stand for election, once its log agrees with the
        leader's up to the end: ``match`` equals ``last_index``. Return None before that, and when the message was
        returned already."""
        if match != last_index or self._notified:
            return None
        self._notified = True
        return TimeoutNow(term)
