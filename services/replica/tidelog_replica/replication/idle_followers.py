"""Idle followers that may have missed an update of the high watermark or the log start, by partition.

A follower that has everything asks no more; it is notified. Notices may get lost, and a follower is not notified of a
HW or a log start that has moved. So every ``replica_max_idle_wait_s`` the follower asks each leader server, with
whatever fetch there is, which of its partitions it must ask for: one small message, however many partitions idle.

    settled   the follower waits at the log end, and has shown a stamp (``leadership_confirmation.py``) that is
              greater than those of all messages before HW and log start became what they are
    unaware   any other follower of a partition that is led here; or that was, and is offline now: its followers are
              to learn that soon, and report it

Why nothing is missed. A follower asks for a partition again until an answer has come with nothing new; a call
without answer counts for nothing, and when its link breaks all is asked for over another. What changes after the
leader has dealt with that last question makes the follower unaware, by a stamp that the question cannot have shown;
nor can a late copy of it. It is settled again when a later question shows that a later message has come.

The price: after the last record of a burst each follower asks twice more: first to learn the HW, then to show it.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.types import NodeId, TopicPartition

from tidelog_replica.replication.leader_state import LeaderState


class IdleFollowers:
    """For each follower server, the partitions of which it may have missed an update of HW or log start, in the order
    in which it became unaware. A replica server has one, for all partitions that it leads."""

    def __init__(self) -> None:
        self._unaware: dict[NodeId, dict[TopicPartition, None]] = {}

    def update(self, key: TopicPartition, core: LeaderState) -> None:
        """Record which followers of a partition that is led here are unaware. A follower is aware if it idles and has
        shown that it received a message that states the present HW and log start (``LeaderState.aware_after``)."""
        for node, progress in core.followers.items():
            if progress.waiting is None or progress.shown <= core.aware_after:
                self._unaware.setdefault(node, {})[key] = None
            elif (keys := self._unaware.get(node)) is not None:
                keys.pop(key, None)

    def forget(self, key: TopicPartition, unaware: Iterable[NodeId] = ()) -> None:
        """Remove a partition that this server leads no longer from the lists of all followers. Then add it for the
        followers ``unaware``: they are to find out, by asking, that the partition is offline here."""
        for keys in self._unaware.values():
            keys.pop(key, None)
        for node in unaware:
            self._unaware.setdefault(node, {})[key] = None

    def of(self, node: NodeId) -> tuple[TopicPartition, ...]:
        """Return the partitions for which follower server ``node`` has to ask its leader, this server; () if there
        are none."""
        return tuple(self._unaware.get(node, ()))
