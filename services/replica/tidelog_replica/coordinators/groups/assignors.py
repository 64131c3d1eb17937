"""The assignors: rules that assign partitions to the members of a group.

    range    for each topic the members, in the order of their names, get ranges of neighbouring partitions; the first
             members get one more if the number is not even. Partitions with the same number of several topics are
             assigned to one member
    sticky   every member keeps its partitions, as far as the result is balanced: no partition can move from a member
             to one that has at least two fewer. Free partitions go to the member that has the fewest. Then partitions
             move one by one, each along the shortest chain of members that makes the assignment more balanced. Every
             move reduces the sum of the squares of the members' numbers of partitions, so it ends. If all members
             subscribe to the same topics, their numbers differ by at most one, and no fewer moves would do

A member is known by its *name* here. That of a static member is its instance, so that its return changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush

from tidelog.types import TopicPartition

Subscriptions = Mapping[str, tuple[str, ...]]
"""The ids of the topics to which each member subscribes, by member."""
Shares = dict[str, set[TopicPartition]]
"""The partitions that are assigned to each member, by member; an empty set for a member that gets none."""
Assignor = Callable[[Subscriptions, Mapping[str, int], Mapping[TopicPartition, str]], Shares]
"""A function from the subscriptions, the number of partitions by topic id, and the member that had each partition
before, to the new assignment."""


def assign_range(
    subscriptions: Subscriptions, counts: Mapping[str, int], previous: Mapping[TopicPartition, str]
) -> Shares:
    """Return an assignment that gives each member, for each of its topics, a range of neighbouring partitions.
    ``previous`` is not used. Partitions of topics to which no member subscribes are not assigned."""
    shares: Shares = {name: set() for name in subscriptions}
    for topic_id, names in _by_topic(subscriptions, counts).items():
        least, more = divmod(counts[topic_id], len(names))
        first = 0
        for index, name in enumerate(names):
            end = first + least + (index < more)
            shares[name].update(TopicPartition(topic_id, number) for number in range(first, end))
            first = end
    return shares


def assign_sticky(
    subscriptions: Subscriptions, counts: Mapping[str, int], previous: Mapping[TopicPartition, str]
) -> Shares:
    """Return a balanced assignment in which members keep as many of their ``previous`` partitions as possible.
    Partitions of topics to which no member subscribes are not assigned."""
    shares: Shares = {name: set() for name in sorted(subscriptions)}
    by_topic = _by_topic(subscriptions, counts)
    subscribed = {name: set(topics) for name, topics in subscriptions.items()}
    left = []
    for topic_id in by_topic:
        for number in range(counts[topic_id]):
            partition = TopicPartition(topic_id, number)
            name = previous.get(partition, "")
            if topic_id in subscribed.get(name, ()):
                shares[name].add(partition)
            else:
                left.append(partition)
    _fill(shares, by_topic, sorted(left, key=lambda p: (len(by_topic[p.topic_id]), p)))
    _even_out(shares, by_topic)
    return shares


ASSIGNORS: dict[str, Assignor] = {"sticky": assign_sticky, "range": assign_range}


def _by_topic(subscriptions: Subscriptions, counts: Mapping[str, int]) -> dict[str, list[str]]:
    """Return the subscribed members of each topic, in the order of their names, by topic id. Leaves out topics
    without subscribers or partitions."""
    by_topic: dict[str, list[str]] = {}
    for name in sorted(subscriptions):
        for topic_id in subscriptions[name]:
            if counts.get(topic_id, 0):
                by_topic.setdefault(topic_id, []).append(name)
    return dict(sorted(by_topic.items()))


def _fill(shares: Shares, by_topic: Mapping[str, list[str]], left: list[TopicPartition]) -> None:
    """Assign each of the free partitions ``left``, in this order, to the subscribed member that has the fewest.
    Changes ``shares``."""
    heaps: dict[str, list[tuple[int, str]]] = {}
    for partition in left:
        heap = heaps.get(partition.topic_id)
        if heap is None:
            heap = heaps[partition.topic_id] = [(len(shares[name]), name) for name in by_topic[partition.topic_id]]
            heapify(heap)
        while heap[0][0] != len(shares[heap[0][1]]):  # shares only grow here
            name = heappop(heap)[1]
            heappush(heap, (len(shares[name]), name))
        shares[heap[0][1]].add(partition)


def _even_out(shares: Shares, by_topic: Mapping[str, list[str]]) -> None:
    """Move partitions between members until no single move, and no chain of moves, makes the assignment more
    balanced. Changes ``shares``."""
    settled: set[str] = set()
    while True:
        richest = max((name for name in shares if name not in settled), key=lambda n: len(shares[n]), default=None)
        if richest is None:
            return
        taker, came = _find_chain(richest, shares, by_topic)
        if not taker:
            settled.update((richest, *came))  # a member that gets from these has as much, and will not get less
        while taker and taker != richest:
            giver, partition = came[taker]
            shares[giver].remove(partition)
            shares[taker].add(partition)
            taker = giver


def _find_chain(
    richest: str, shares: Shares, by_topic: Mapping[str, list[str]]
) -> tuple[str, dict[str, tuple[str, TopicPartition]]]:
    """Search for a chain of moves from member ``richest`` to a member that has at least two partitions fewer. Return
    the nearest such member, of several the one with the fewest partitions, or "" if there is none. Return also, for
    each member that was reached, the giver and the partition of the move that reached it."""
    came: dict[str, tuple[str, TopicPartition]] = {}
    seen: set[str] = set()
    wave = [richest]
    while wave:
        givers, wave = wave, []
        for giver in givers:
            for topic_id, partition in _last_of_each(shares[giver]):
                if topic_id in seen:
                    continue
                seen.add(topic_id)
                for taker in by_topic[topic_id]:
                    if taker != richest and taker not in came:
                        came[taker] = giver, partition
                        wave.append(taker)
        best = min(wave, key=lambda n: (len(shares[n]), n), default="")
        if best and len(shares[best]) <= len(shares[richest]) - 2:
            return best, came
    return "", came


def _last_of_each(share: set[TopicPartition]) -> list[tuple[str, TopicPartition]]:
    """Return the topics of a member's partitions in order, each with its highest partition, which is the one to be
    moved first."""
    last: dict[str, TopicPartition] = {}
    for partition in share:
        if partition.topic_id not in last or partition > last[partition.topic_id]:
            last[partition.topic_id] = partition
    return sorted(last.items())
