"""The metrics of the consumer groups that are coordinated here, and their lags.

This server has a group's positions, but the partitions may be on other servers. It knows the high watermarks of
partitions that it holds (as a follower a moment later than the leader). When the page is requested, it sends
requests to the leaders of the other partitions, and the next page shows their answers. Without requests for the page
it sends none.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from tidelog.errors import TidelogError
from tidelog.sansio.counters import Metric, Sample, by_label, metrics_of
from tidelog.types import NodeId, TopicPartition
from tidelog.wire.messages import ListOffset, Message, OffsetAnswer

from tidelog_replica.coordinators.groups.group import Group
from tidelog_replica.counters import ReplicaCounts
from tidelog_replica.node import ReplicaNode

SHOWN = 100
"""Most groups that have series of their own."""
MOVED_MS = 600_000
"""Milliseconds for which a position that a client that is no member changed is counted at most, as by the doctor."""
ASKED_AT_ONCE = 500
"""Most requests to other servers that wait for an answer at a time."""
ASK_TIMEOUT_S = 5.0

GROUPS = Metric(
    "tidelog_groups",
    "gauge",
    "groups",
    "Consumer groups coordinated here, by state. empty: without members; moving: partitions change hands.",
    ("state",),
)
MEMBERS = Metric(
    "tidelog_group_members",
    "gauge",
    "members",
    f"Members of groups coordinated here. Metrics with the label group show the {SHOWN} groups that lag most.",
    ("group",),
)
GENERATION = Metric("tidelog_group_generation", "gauge", "generation", "Newest generation of the group.", ("group",))
LAG = Metric(
    "tidelog_group_lag_records",
    "gauge",
    "records",
    "Committed records that the group has not processed, in all partitions in which it has a position.",
    ("group",),
)
LARGEST_LAG = Metric(
    "tidelog_group_largest_lag_records", "gauge", "records", "Largest lag of the group in one partition.", ("group",)
)
OVERTAKEN = Metric(
    "tidelog_group_overtaken_partitions",
    "gauge",
    "partitions",
    "Partitions in which retention has deleted what the group had not processed: its position lies below the log"
    " start. Of partitions with a copy here; absent: there is none.",
    ("group",),
)
MOVED = Metric(
    "tidelog_group_moved_positions",
    "gauge",
    "positions",
    "Positions that members committed and a client that is no member changed in the last 10 minutes. back: records"
    " are processed again; members that have done so for a minute end that. forward: records are skipped; of"
    " partitions with a copy here, if there were records between. Absent: there is none.",
    ("group", "direction"),
)
UNKNOWN = Metric(
    "tidelog_group_unknown_lag_partitions",
    "gauge",
    "partitions",
    "Partitions in which some group has a position, but whose high watermark is not known here yet, so that no lag"
    " contains them.",
)
METRICS = (
    *(GROUPS, MEMBERS, GENERATION, LAG, LARGEST_LAG, OVERTAKEN, MOVED, UNKNOWN),
    *metrics_of(ReplicaCounts, "group_generations", "group_commit_refusals"),
)

Ask = Callable[[NodeId, Message, float, Callable[[Message | TidelogError], None]], None]
"""``Peers.start_call``: send a request to another server, with a timeout in seconds and a function that takes the
answer."""


class FarEnds:
    """The last known high watermarks of partitions that only other servers hold, for the lags of consumer groups. It
    lives as long as the metrics page."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._known: dict[TopicPartition, int] = {}
        self._asking: set[TopicPartition] = set()
        """Partitions whose request is not answered yet."""
        self._asked: dict[TopicPartition, int] = {}
        """The number of the page for which each partition was last requested."""
        self._pages = 0

    def request_ends(
        self, wanted: Iterable[TopicPartition], leaders: Callable[[TopicPartition], NodeId | None]
    ) -> None:
        """Send requests for the high watermarks of the ``wanted`` partitions to their leaders, and discard what is
        known of all other partitions. ``leaders`` returns a partition's leader, or None, and then no request is sent.
        Partitions with the oldest requests come first; at most ``ASKED_AT_ONCE`` requests wait for answers. ``get``
        returns the answers later."""
        self._pages += 1
        keys = dict.fromkeys(wanted)
        self._known = {key: end for key, end in self._known.items() if key in keys}
        self._asked = {key: page for key, page in self._asked.items() if key in keys}
        for key in sorted(keys, key=lambda key: self._asked.get(key, 0)):
            if len(self._asking) >= ASKED_AT_ONCE:
                break
            leader = leaders(key)
            if leader is not None and key not in self._asking:
                self._asking.add(key)
                self._asked[key] = self._pages
                question = ListOffset(*key, "latest", isolation="uncommitted")
                self._ask(leader, question, ASK_TIMEOUT_S, partial(self._on_answer, key))

    def _on_answer(self, key: TopicPartition, answer: Message | TidelogError) -> None:
        """Keep the high watermark that a leader has answered for a partition that is still wanted. After an error
        nothing is kept, and the next page requests it again."""
        self._asking.discard(key)
        if isinstance(answer, OffsetAnswer) and key in self._asked:
            self._known[key] = answer.offset

    def get(self, key: TopicPartition) -> int | None:
        """Return the last known high watermark of a partition; None if no leader has answered for it yet."""
        return self._known.get(key)


def group_samples(node: ReplicaNode, far: FarEnds, wall_ms: int) -> Iterator[Sample]:
    """Yield the samples of all metrics about the consumer groups that are coordinated here, at ``wall_ms``
    (milliseconds since 1970). Only the ``SHOWN`` groups that lag most have series of their own. Also sends requests
    for the high watermarks that this server does not have, which the next page shows."""
    groups = list(node.groups)
    ends = {key: _end_here(node, key) for group in groups for key in group.offsets}
    leaders = (
        {
            TopicPartition(topic.topic_id, number): state.leader
            for topic in node.assignment.image.topics
            for number, state in enumerate(topic.partitions)
        }
        if None in ends.values()
        else {}
    )
    far.request_ends((key for key, end in ends.items() if end is None), leaders.get)
    ends = {key: far.get(key) if end is None else end for key, end in ends.items()}
    states = dict.fromkeys(("empty", "moving", "stable"), 0)
    for group in groups:
        states[group.state] += 1
    yield from by_label(GROUPS, states)
    yield UNKNOWN, (), sum(end is None for end in ends.values())
    lags = [(group, _lags(group, ends)) for group in groups]
    for group, lag in heapq.nlargest(SHOWN, lags, key=lambda one: (sum(one[1]), len(one[0].members), one[0].name)):
        yield MEMBERS, (group.name,), len(group.members)
        yield GENERATION, (group.name,), group.generation
        yield LAG, (group.name,), sum(lag)
        yield LARGEST_LAG, (group.name,), max(lag, default=0)
        if overtaken := sum(_is_overtaken(node, key, at.offset) for key, at in group.offsets.items()):
            yield OVERTAKEN, (group.name,), overtaken
    moves = Counter((group.name, way) for group in groups for way in _directions_moved(node, group, wall_ms))
    for labels, number in moves.most_common(SHOWN):
        yield MOVED, labels, number


def _directions_moved(node: ReplicaNode, group: Group, wall_ms: int) -> Iterator[str]:
    """Yield "back" or "forward" for each position of the group that a client that is no member changed within
    ``MOVED_MS``. One that was set forward to the log start skips no record; without a copy that start is unknown."""
    for one in group.recent.moved(wall_ms):
        found = node.partitions.get(TopicPartition(one.topic_id, one.partition))
        if wall_ms - one.time_ms > MOVED_MS:
            continue
        if one.after < one.before:
            yield "back"
        elif found is not None and found.offline is None and one.after > found.log.start:
            yield "forward"


def _lags(group: Group, ends: dict[TopicPartition, int | None]) -> list[int]:
    """Return the group's lag, in records, in each partition in which it has a position and whose high watermark is in
    ``ends``. Other partitions are left out."""
    known = ((ends[key], position.offset) for key, position in group.offsets.items())
    return [max(0, end - offset) for end, offset in known if end is not None]


def _is_overtaken(node: ReplicaNode, key: TopicPartition, offset: int) -> bool:
    """Return whether a group's position lies below the log start of a partition that this server has a copy of."""
    found = node.partitions.get(key)
    return found is not None and found.role is not None and found.offline is None and offset < found.log.start


def _end_here(node: ReplicaNode, key: TopicPartition) -> int | None:
    """Return the high watermark of a partition that this server leads or follows; None if it has no open copy in
    either role."""
    found = node.partitions.get(key)
    return None if found is None or found.role is None or found.offline is not None else found.high_watermark
