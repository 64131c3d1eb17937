"""When the odd copy of a partition may be given up, and what copies are compared by.

Only comparable copies are compared. Below the smallest high watermark of the copies all logs are equal, batch by
batch, if each agrees with its leader's in the present leader epoch. The hash chain at an offset there is a digest of
all headers below it, with the CRCs of the batches as their producers sent them. Retention and compaction do not
change it. From the hash chain of each copy at one offset ``tidelog.sansio.majority`` says which copy is the odd one.
"""

from __future__ import annotations

from collections.abc import Collection

from tidelog.types import NodeId, PartitionState

Edge = tuple[int, bytes]
"""The last end of a batch at or below an offset, and the hash chain of the log up to there."""


def reason_to_keep(
    node: NodeId, state: PartitionState, majority: Collection[NodeId], min_insync_replicas: int
) -> str | None:
    """Why the odd copy on ``node`` must not be given up now; None if it may be. Without it the ISR must hold the
    whole ``majority``, and be large enough to go on. The copy is fetched again from the leader, or, where this server
    leads, from the next leader: that must be a member of the majority."""
    left = [other for other in state.isr if other != node]
    sources = left if state.leader == node else [state.leader]
    if not set(sources) <= set(majority):
        return f"it might be fetched again from a server that is not one of {', '.join(majority)}"
    if not set(majority) <= set(left):
        return f"not all of {', '.join(majority)} are in sync"
    if len(left) < min_insync_replicas:
        return f"{len(left)} replicas would be in sync, and min_insync_replicas is {min_insync_replicas}"
    return None
