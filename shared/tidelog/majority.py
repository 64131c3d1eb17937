"""Which copies of a partition are the odd ones, where copies do not say the same.

The odd copies are those that a majority of the partition's replicas contradicts, where all of that majority say the
same. Two copies that differ have no such majority: nobody can say which one is right, and a third is needed. Learners
are judged, and do not vote.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from tidelog.types import NodeId


def find_odd_copies(
    values: Mapping[NodeId, Hashable], replicas: Sequence[NodeId]
) -> tuple[tuple[NodeId, ...], tuple[NodeId, ...]]:
    """The replicas that say the same, where they are more than half of all ``replicas`` and at least two; and the
    copies that say something else. Both are empty where no majority says the same. ``values``: what each copy says
    that was asked."""
    for value in set(values.values()):
        majority = tuple(node for node in replicas if node in values and values[node] == value)
        if len(majority) >= 2 and 2 * len(majority) > len(replicas):
            return majority, tuple(node for node in values if values[node] != value)
    return (), ()
