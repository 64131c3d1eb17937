"""Chooses the replica that a reader reads from (KIP-392): of the copies in the gateway's rack, or of all if there are
none, the one with the fewest readers of this gateway.

A copy that has just failed a reader is avoided by that reader only, and for a while only. Meanwhile the leader serves
the reader with what the copy lacked (freshness, an offset, a connection).
"""

from __future__ import annotations

from tidelog.types import NodeId, PartitionState

from tidelog_gateway.cluster_view import ClusterView


class ReplicaSelector:
    """The number of this gateway's readers at each replica server, by which new readers are spread over the copies of
    a partition."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster
        self._readers: dict[NodeId, int] = {}

    def select(self, state: PartitionState) -> NodeId | None:
        """Return the server whose copy of the partition has the fewest readers, and count one more reader there until
        ``release``. None, and nothing is counted, if only the leader may serve readers."""
        node = min(self._cluster.copies(state), key=lambda node: self._readers.get(node, 0), default=None)
        if node is not None:
            self._readers[node] = self._readers.get(node, 0) + 1
        return node

    def is_fit(self, node: NodeId, state: PartitionState) -> bool:
        """Return whether the copy of the partition on ``node`` may still serve readers by the present metadata."""
        return node in self._cluster.copies(state)

    def release(self, node: NodeId) -> None:
        """Count one reader less at ``node``, a server that ``select`` returned."""
        self._readers[node] -= 1
        if not self._readers[node]:
            del self._readers[node]
