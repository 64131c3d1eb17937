"""When the odd copy of a partition may be given up, and what copies are compared by.

What is compared must be comparable. Below the smallest high watermark of the copies every log is the same, batch by
batch, once it agrees with its leader's in the present leader epoch. The hash chain at an offset there is a digest of
all headers below it, with the CRCs of the batches as their producers sent them. Retention and compaction keep it.
``tidelog.majority`` says which copy is the odd one.
"""

from __future__ import annotations

from collections.abc import Collection

from tidelog.types import NodeId, PartitionState

Edge = tuple[int, bytes]
"""The last end of a batch at or below an offset, and the hash chain of the log up to there."""


def why_kept(
    node: NodeId, state: PartitionState, majority: Collection[NodeId], min_insync_replicas: int
) -> str | None:
    """Why the odd copy on ``node`` must not be given up now; None where it may be. Without it the ISR must hold the
    copies that are believed, and be large enough to go on. The copy is fetched again from the leader, or from whoever
    leads when this one has resigned: that must be one of them."""
    left = [other for other in state.isr if other != node]
    sources = left if state.leader == node else [state.leader]
    if not set(sources) <= set(majority):
        return f"it might be fetched again from a copy that is not one of {', '.join(majority)}"
    if not set(majority) <= set(left):
        return f"not all of {', '.join(majority)} are in sync"
    if len(left) < min_insync_replicas:
        return f"{len(left)} replicas would be in sync, and min_insync_replicas is {min_insync_replicas}"
    return None
