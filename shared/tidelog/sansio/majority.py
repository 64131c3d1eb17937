"""Finds the odd copies of a partition, by comparing one value of each copy.

If a majority of the partition's replicas has the same value, the copies with another value are the odd ones. Two
copies that differ are no majority: a third is needed to know which one is right. Learners are compared and do not
vote.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from tidelog.types import NodeId


def find_odd_copies(
    values: Mapping[NodeId, Hashable], replicas: Sequence[NodeId]
) -> tuple[tuple[NodeId, ...], tuple[NodeId, ...]]:
    """Compare one value of each copy of a partition. If more than half of all ``replicas``, and at least two, have
    the same value, return these replicas, and the copies with another value. Otherwise return two empty tuples.
    ``values`` are those of the copies that answered, learners included."""
    for value in set(values.values()):
        majority = tuple(node for node in replicas if node in values and values[node] == value)
        if len(majority) >= 2 and 2 * len(majority) > len(replicas):
            return majority, tuple(node for node in values if values[node] != value)
    return (), ()
