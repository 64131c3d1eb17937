"""Idle followers that may have missed an update of the high watermark or the log start, by partition.

A follower that has everything stops fetching and is notified of new records. A notify may get lost, and there is none
for a move of the HW or the log start. So every ``replica_max_idle_wait_s`` the follower asks each leader server,
together with its next fetch, which partitions it must ask for: one small message, however many partitions idle.

    settled   the follower waits at the log end, and has shown a stamp (``leadership_confirmation.py``) that is
              greater than those of all messages before HW and log start became what they are
    unaware   any other follower of a partition that is led here, and every follower of one that was led here and is
              offline now: such a follower is to learn that soon, and to report it

Why nothing is missed. A follower fetches from a partition again until an answer has brought nothing new. A fetch
without an answer counts for nothing, and when a link breaks, everything is asked for over another one. A change after
the leader has processed that last fetch makes the follower unaware, by a stamp that neither the fetch nor a late copy
of it can have shown. The follower is settled again when a later fetch shows that a later message has arrived.

The price: after the last record of a burst each follower fetches twice more, first to learn the HW, then to show it.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.types import NodeId, TopicPartition

from tidelog_replica.replication.leader_state import LeaderState


class IdleFollowers:
    """The lists, one for each follower server, of the partitions of which that follower may have missed an update of
    HW or log start, in the order in which it became unaware. A replica server has one such object, for all partitions
    that it leads."""

    def __init__(self) -> None:
        self._unaware: dict[NodeId, dict[TopicPartition, None]] = {}

    def update(self, key: TopicPartition, core: LeaderState) -> None:
        """Record for each follower of a partition that is led here whether it is unaware. A follower is aware if it
        idles and has shown that it received a message with the present HW and log start
        (``LeaderState.aware_after``)."""
        for node, progress in core.followers.items():
            if progress.waiting is None or progress.shown <= core.aware_after:
                self._unaware.setdefault(node, {})[key] = None
            elif (keys := self._unaware.get(node)) is not None:
                keys.pop(key, None)

    def forget(self, key: TopicPartition, unaware: Iterable[NodeId] = ()) -> None:
        """Remove a partition that this server no longer leads from the lists of all followers. Then add it to the
        lists of the followers ``unaware``, which thereby learn that the partition is offline here."""
        for keys in self._unaware.values():
            keys.pop(key, None)
        for node in unaware:
            self._unaware.setdefault(node, {})[key] = None

    def of(self, node: NodeId) -> tuple[TopicPartition, ...]:
        """Return the partitions of which follower server ``node`` may have missed an update, and which it must fetch
        from this server; an empty tuple if there are none."""
        return tuple(self._unaware.get(node, ()))
