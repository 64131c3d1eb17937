"""Readers spread over the copies of a partition, those in the gateway's rack where there are any: each goes where the
fewest of this gateway's readers are.

A copy that has just failed a reader is out of the question for that reader only, and for a while only: what it
lacked (freshness, an offset, a connection) the reader gets from the leader meanwhile.
"""

from __future__ import annotations

from tidelog.types import NodeId, PartitionState

from tidelog_gateway.cluster_view import ClusterView


class ReplicaSelector:
    """How many readers each replica server has from here."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster
        self._readers: dict[NodeId, int] = {}

    def select(self, state: PartitionState) -> NodeId | None:
        """A copy for one more reader, to be given back by ``release``; None where there is none but the leader."""
        node = min(self._cluster.copies(state), key=lambda node: self._readers.get(node, 0), default=None)
        if node is not None:
            self._readers[node] = self._readers.get(node, 0) + 1
        return node

    def is_fit(self, node: NodeId, state: PartitionState) -> bool:
        """Whether a reader may stay there."""
        return node in self._cluster.copies(state)

    def release(self, node: NodeId) -> None:
        """The reader reads elsewhere."""
        self._readers[node] -= 1
        if not self._readers[node]:
            del self._readers[node]
