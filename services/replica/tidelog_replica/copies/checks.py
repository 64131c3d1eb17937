"""Comparing this server's copies with those of the other replicas, and giving up a copy that is the odd one.

When the scrubber has read the log of a partition, it asks for a comparison. The disk then holds what this server has
in memory, and the hash chains show whether the copies are equal. Partitions are compared one at a time:

    bounds    every other copy answers where its log begins and how far it is committed
    edges     every copy answers with its hash chain at the greatest log start and at the smallest high watermark.
              Equal chains at the end mean equal logs
    search    a majority contradicts this copy, and the chains agree at the start: a member of the majority answers
              with its chain where the segments of this log begin, until the segment with the first difference is
              known
    given up  that segment counts as damaged from then on: the partition goes offline here, resigns and is repaired
              from the leader (``maintenance/log_repairer.py``)

A server judges its own copy only, and only by answers from the leader epoch in which it leads or follows itself
(``Partition.agreed_epoch``). ``tidelog.sansio.majority`` says which copy is the odd one, and ``reason_to_keep``
whether it may be given up. A server repairs one copy at a time. It gives up the same copy
at most ``MOST_TRIES`` times between two starts: after that the disk is not the cause. A difference below the log
start of some replica is only reported, since the batches that differed are gone there.

Only comparable copies are compared. Below the smallest high watermark of the copies all logs are equal, batch by
batch, if each agrees with its leader's in the present leader epoch. The hash chain at an offset is a digest of all
headers below it, with the CRCs of the batches as their producers sent them. Retention and compaction do not change
it.

Each server remembers the differences that it has seen, for ``describe_metrics``, and compares again every
``AGAIN_S`` until the odd copies have been seen to agree. It also remembers them while the partition is paused, or its
log is being opened or repaired. It forgets them if it no longer has a copy of the partition.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tidelog.errors import TidelogError
from tidelog.feature_levels import COPY_CHECKS
from tidelog.sansio.majority import find_odd_copies
from tidelog.types import NodeId, PartitionState, TopicPartition
from tidelog.wire.messages import DifferingCopies, Digest, DigestAnswer, Message

from tidelog_replica.assignment.assignment import Assignment
from tidelog_replica.context import NodeContext
from tidelog_replica.partition.partition import Partition
from tidelog_replica.storage.segment import CorruptLog

AGAIN_S = 30.0
"""Pause in seconds before copies that differ are compared again."""
MOST_TRIES = 2
"""How often a server gives up one copy between two starts: first a segment; then, if that differs again, all of
it."""
POINTS = 60
"""Most offsets that are requested at a time, fewer than a server answers."""
Edge = tuple[int, bytes]
"""The last end of a batch at or below an offset, and the hash chain of the log up to there."""


@dataclass(frozen=True, slots=True)
class _Check:
    """A comparison of one partition's copies that is under way, with the facts that must not change until its end:
    the open partition, the leader epoch ``epoch`` and the ``generation`` of its log."""

    key: TopicPartition
    partition: Partition
    epoch: int
    generation: int

    def holds(self, partitions: Mapping[TopicPartition, Partition]) -> bool:
        """Return whether the comparison may go on: the partition is still open in the same leader epoch, and its log
        was not cut since the comparison began."""
        mine = self.partition
        is_open = partitions.get(self.key) is mine and mine.agreed_epoch == self.epoch
        return is_open and mine.log.generation == self.generation


Answers = Mapping[NodeId, DigestAnswer]


class CopyChecks:
    """The part of a node that compares its copies with those of the other replicas, one partition at a time, and
    gives up a copy of its own that a majority contradicts. It lives as long as the node."""

    def __init__(self, context: NodeContext, assignment: Assignment) -> None:
        self._node = context.node
        self._assignment = assignment
        self._timeout_s = context.settings.controller_timeout_s
        self._effects = context.effects
        self._timers = context.timers
        self._touch = context.touch
        self._waiting: dict[TopicPartition, None] = {}
        """Partitions that wait for their comparison, in order."""
        self._check: _Check | None = None
        """The comparison under way; None if there is none."""
        self._differing: dict[TopicPartition, DifferingCopies] = {}
        """Partitions whose copies were last seen to differ."""
        self._again_at: dict[TopicPartition, float] = {}
        """When each of ``_differing`` is compared again."""
        self._tries: dict[TopicPartition, int] = {}
        """How often each copy was given up since the start."""

    def want(self, key: TopicPartition, now: float) -> None:
        """Queue a partition for a comparison of its copies. The comparison begins at once if none is under way. Does
        nothing if the partition waits already."""
        self._waiting[key] = None
        self._next(now)

    @property
    def is_busy(self) -> bool:
        """Return whether a comparison is under way."""
        return self._check is not None

    def on_tick(self, now: float) -> None:
        """Queue each partition whose copies were seen to differ at least ``AGAIN_S`` ago for another comparison, and
        set the timer for the next one. If this server has no copy of the partition any more, its difference is no
        longer remembered."""
        for key in [key for key, due in self._again_at.items() if due <= now]:
            if self._assignment.has_copy(key):
                self._again_at[key] = now + AGAIN_S
                self.want(key, now)
            else:
                self._forget(key)
        self._timers.set(self, min(self._again_at.values(), default=None))

    def differing(self) -> tuple[DifferingCopies, ...]:
        """Return the partitions whose copies were last seen to differ, with the odd copies and the range."""
        return tuple(self._differing.values())

    # --- one comparison ----------------------------------------------------------------------------------

    def _next(self, now: float) -> None:
        """Begin the comparison of the next waiting partition, unless one is under way or none waits."""
        while self._check is None and self._waiting:
            key = next(iter(self._waiting))
            del self._waiting[key]
            self._begin(key, now)

    def _begin(self, key: TopicPartition, now: float) -> None:
        """Begin to compare a partition's copies: send the other replicas a ``Digest`` that asks for the bounds of
        their logs. Does nothing if the partition is not open, its log is not known to equal the leader's, it has no
        other replica, or the cluster's feature level is too low."""
        partition = self._assignment.partitions.get(key)
        if partition is None or partition.agreed_epoch < 0 or self._assignment.image.level < COPY_CHECKS:
            return
        others = [node for node in _holders(partition) if node != self._node]
        if others:
            self._check = check = _Check(key, partition, partition.agreed_epoch, partition.log.generation)
            self._ask(check, others, (), self._on_bounds)

    def _end(self, now: float) -> None:
        """End the comparison under way, and begin that of the next waiting partition."""
        self._check = None
        self._next(now)

    def _ask(
        self,
        check: _Check,
        nodes: Sequence[NodeId],
        offsets: Sequence[int],
        done: Callable[[_Check, Answers, float], None],
    ) -> None:
        """Send each of ``nodes`` a ``Digest`` that asks for its hash chains at the offsets. When all have answered or
        failed, ``done`` is called with the answers that are from the leader epoch of the comparison. If the log here
        has changed meanwhile, the comparison ends instead."""
        answers: dict[NodeId, Message | TidelogError] = {}

        def take(node: NodeId, answer: Message | TidelogError, now: float) -> None:
            """Keep the answer of one replica. After the last one, call ``done`` with the answers from the leader
            epoch of the comparison, or end the comparison if the log here has changed meanwhile."""
            answers[node] = answer
            if len(answers) < len(nodes):
                return
            if not check.holds(self._assignment.partitions):
                self._end(now)
                return
            found = {
                node: answer
                for node, answer in answers.items()
                if isinstance(answer, DigestAnswer) and answer.role_epoch == check.epoch
            }
            done(check, found, now)

        for node in nodes:
            self._effects.call(node, Digest(node, *check.key, tuple(offsets)), self._timeout_s, partial(take, node))

    def _on_bounds(self, check: _Check, answers: Answers, now: float) -> None:
        """Ask the replicas that answered for their hash chains at two offsets: the greatest log start and the
        smallest HW of all copies. End the comparison if no replica answered or nothing lies between these offsets."""
        partition = check.partition
        start = max([partition.log.start, *(answer.log_start for answer in answers.values())])
        end = min([partition.high_watermark, *(answer.high_watermark for answer in answers.values())])
        if not answers or end <= start:
            self._end(now)
        else:
            self._ask(check, list(answers), (start, end), partial(self._on_edges, start, end))

    def _on_edges(self, start: int, end: int, check: _Check, answers: Answers, now: float) -> None:
        """Compare the hash chains of all copies at offsets ``start`` and ``end``. If they are equal at the end, the
        copies are equal, and the comparison ends. Otherwise remember the difference. If a majority contradicts this
        copy and agreed with it at the start, search for the place where the difference begins; if not, end the
        comparison."""
        own = self._own_edges(check.partition, (start, end))
        if own is None or not answers:
            self._end(now)
            return
        at_start, at_end = (
            {self._node: own[number]} | {node: edges[number] for node, edges in _edges(answers).items()}
            for number in (0, 1)
        )
        if len(set(at_end.values())) == 1:
            self._on_agreement(check, set(at_end))
            self._end(now)
            return
        majority, odd = find_odd_copies(at_end, _state(check.partition).replicas)
        below = len(set(at_start.values())) > 1
        self._remember(DifferingCopies(*check.key, odd, tuple(at_end), start, end, below), now)
        if self._node in odd and all(at_start[node] == own[0] for node in majority):
            self._narrow(check, majority, start, end, now)
        else:
            self._end(now)

    def _own_edges(self, partition: Partition, offsets: Sequence[int]) -> list[Edge] | None:
        """Return, for each offset, the last batch boundary in the local log at or below it and the hash chain up to
        that boundary. Return None if the log turns out to be damaged, which takes the partition offline."""
        edges: list[Edge] = []
        whole = partition.guard(lambda: edges.extend(partition.log.chain_at(offset) for offset in offsets))
        self._touch(partition.key)
        return edges if whole else None

    # --- the odd copy ------------------------------------------------------------------------------------

    def _narrow(self, check: _Check, majority: tuple[NodeId, ...], low: int, high: int, now: float) -> None:
        """Narrow down where this copy first differs from the majority, between offsets ``low`` and ``high``. Ask a
        member of the majority for its hash chains at offsets in that range where segments of this log begin. If no
        segment begins there, the difference lies in one segment: give that up and end the comparison."""
        bases = [extent.base for extent in check.partition.log.segments.extents() if low < extent.base < high]
        points = bases[:: -(-len(bases) // POINTS)] if bases else []
        if points:
            self._ask(check, majority[:1], points, partial(self._on_points, majority, low, high, points))
        else:
            self._give_up(check, majority, low, high)
            self._end(now)

    def _on_points(
        self,
        majority: tuple[NodeId, ...],
        low: int,
        high: int,
        points: Sequence[int],
        check: _Check,
        answers: Answers,
        now: float,
    ) -> None:
        """Compare the hash chains at ``points`` with those of a member of the majority. The difference lies between
        the last offset at which they agree and the next one: go on with that range. End the comparison if the other
        replica did not answer or the log here is damaged."""
        own = self._own_edges(check.partition, points)
        theirs = next(iter(_edges(answers).values()), None)
        if own is None or theirs is None:
            self._end(now)
            return
        for point, mine, other in zip(points, own, theirs, strict=True):
            if mine != other:
                high = point
                break
            low = point
        self._narrow(check, majority, low, high, now)

    def _give_up(self, check: _Check, majority: tuple[NodeId, ...], low: int, high: int) -> None:
        """Treat the segment that holds offset ``low`` as damaged, so that the partition goes offline here and is
        repaired from the leader; log ``odd_copy_given_up``. Instead keep the copy and log ``odd_copy_kept`` if too
        few other copies would be left, another repair runs, the disk is full, or the copy was given up too often."""
        key, partition, state = check.key, check.partition, _state(check.partition)
        self._differing[key] = replace(self._differing[key], start=low, end=high)
        kept = reason_to_keep(self._node, state, majority, partition.config.min_insync_replicas)
        if kept is None and len(self._assignment.log_repairer):
            kept = "another copy of this server is being repaired"
        if kept is None and self._effects.full:
            kept = "the disk is full"
        if kept is None and self._tries.get(key, 0) >= MOST_TRIES:
            kept = f"it was given up {MOST_TRIES} times since this server started, and differs again"
        if kept is not None:
            self._event("odd_copy_kept", key, reason=kept)
            return
        self._tries[key] = self._tries.get(key, 0) + 1
        difference = f"between offsets {low} and {high} it differs from the log on {' and '.join(majority)}"
        self._event("odd_copy_given_up", key, start=low, end=high, majority=list(majority))
        partition.on_damage(CorruptLog(partition.log.segments.segment_at(low).path, difference))
        self._touch(partition.key)

    # --- what is remembered ------------------------------------------------------------------------------

    def _remember(self, found: DifferingCopies, now: float) -> None:
        """Record that the copies of a partition differ, for ``differing``, and schedule another comparison after
        ``AGAIN_S``. Log ``copies_differ`` if the difference is new."""
        key = TopicPartition(found.topic_id, found.partition)
        known = self._differing.get(key)
        if known is None or (known.odd, known.compared) != (found.odd, found.compared):
            self._event("copies_differ", key, odd=list(found.odd), compared=list(found.compared))
        self._differing[key] = found
        self._timers.set(self, self._again_at.setdefault(key, now + AGAIN_S))

    def _on_agreement(self, check: _Check, compared: set[NodeId]) -> None:
        """Remove the recorded difference of the partition and log ``copies_agree``, if every copy that had a part in
        it either is among ``compared``, whose logs agree, or no longer belongs to the partition. Otherwise do
        nothing."""
        known = self._differing.get(check.key)
        if known is not None and set(known.odd or known.compared) & set(_holders(check.partition)) <= compared:
            self._forget(check.key)
            self._event("copies_agree", check.key, compared=sorted(compared))

    def _forget(self, key: TopicPartition) -> None:
        """Remove the recorded difference of a partition's copies, and cancel the comparison that is scheduled for
        it."""
        self._differing.pop(key, None)
        self._again_at.pop(key, None)

    def _event(self, name: str, key: TopicPartition, **fields: int | str | list[str]) -> None:
        """Log an event ``name`` with the partition and the given fields."""
        self._effects.event(name, topic_id=key.topic_id, partition=key.partition, **fields)


def reason_to_keep(
    node: NodeId, state: PartitionState, majority: Collection[NodeId], min_insync_replicas: int
) -> str | None:
    """Return why the odd copy on ``node`` must not be given up now, as a text; None if it may be. It may be if the
    ISR without this copy contains the whole ``majority`` and has at least ``min_insync_replicas`` members, and if the
    copy will surely be fetched again from a member of the majority. The source is the leader; if this server leads,
    any other member of the ISR, since each may be elected."""
    left = [other for other in state.isr if other != node]
    sources = left if state.leader == node else [state.leader]
    if not set(sources) <= set(majority):
        return f"it might be fetched again from a server that is not one of {', '.join(majority)}"
    if not set(majority) <= set(left):
        return f"not all of {', '.join(majority)} are in sync"
    if len(left) < min_insync_replicas:
        return f"{len(left)} replicas would be in sync, and min_insync_replicas is {min_insync_replicas}"
    return None


def _state(partition: Partition) -> PartitionState:
    """Return the state of a partition as the controller's metadata have it. The partition must have a role."""
    assert partition.state is not None
    return partition.state


def _holders(partition: Partition) -> tuple[NodeId, ...]:
    """Return the names of all servers that have a copy of the partition: its replicas and learners."""
    state = _state(partition)
    return (*state.replicas, *state.learners)


def _edges(answers: Answers) -> dict[NodeId, list[Edge]]:
    """Return, for each replica that answered, its batch boundaries and hash chains as pairs, in the order of the
    requested offsets."""
    return {node: [(e.boundary, e.chain) for e in answer.entries] for node, answer in answers.items()}
