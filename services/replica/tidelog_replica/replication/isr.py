"""Which ISR a leader proposes to the controller, and with it which replicas join and leave a partition (KIP-497).

    removed   members that are overdue (``overdue_at`` in ``progress.py``)
    added     replicas that may join, and learners that a reassignment is to make replicas, as soon as they may join
    gone      when all of the reassignment's target is in sync, this leader included: the replicas outside the target.
              They are left out of the proposed ISR, and are replicas no more

Each is proposed when nothing before it is due. Under commit rule ``quorum`` one learner joins, or one replica leaves,
at a time: any majority before that step and any majority after it have a member in common. Without a further rule two
steps could lose what no majority between them had. So a replica leaves only when a majority of the present replicas
has everything that is committed, the start of this leader epoch included. In Raft every step shows that by committing
its own entry (dissertation, 4.1). A replica that joins has all of it.

Catch-up barrier: followers that the high watermark waits for although they are not in the ISR yet.

A follower joins when it has reached the HW (``leader_state.py``). A leader that is alone in its ISR commits what it
has flushed itself. Under a steady load that is always a round trip ahead of what a fetch can show, and no follower
would ever join. So the HW waits for a follower that *keeps up*: one that has everything that was in the log
``PATIENCE`` of ``max_lag_s`` ago. Its next fetch shows that it has reached the HW, and it is proposed. If it stops
fetching or falls behind instead, the HW waits no longer.

Under commit rule ``leader`` a copy may lag: a follower that keeps up joins at once. Under ``quorum`` the HW waits for
no follower: a majority has what lies below the HW, and a follower reaches that often enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tidelog.types import NodeId, PartitionState
from tidelog.wire.messages import IsrMember

from tidelog_replica.replication.progress import FollowerProgress


@dataclass(frozen=True, slots=True)
class Proposal:
    """An ISR that a leader asks the controller to commit. The controller commits it only if the partition's epoch is
    still ``epoch``. ``cause`` and ``evidence`` (names and values) are shown to people in the timeline."""

    epoch: int
    isr: tuple[IsrMember, ...]
    cause: str
    evidence: dict[str, str]


PATIENCE = 0.1
"""The part of ``max_lag_s`` for which the HW waits for a follower since it last had everything."""


class CatchUpBarrier:
    """The set of followers outside the ISR that keep up, and for which the HW waits so that they can join. It holds
    for each the time (seconds) until which it counts as keeping up. A leader has one for its leader epoch."""

    def __init__(self) -> None:
        self._until: dict[NodeId, float] = {}

    def __contains__(self, node: NodeId) -> bool:
        return node in self._until

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """Return the followers for which the HW waits; an empty tuple if there are none."""
        return tuple(self._until)

    def on_fetch(self, node: NodeId, caught_up_at: float, max_lag_s: float, now: float) -> None:
        """Record a fetch of a follower that may join as soon as it has reached the HW. If it last had everything at
        most ``PATIENCE`` of ``max_lag_s`` ago (``caught_up_at``, seconds), the HW waits for it from now on; otherwise
        no longer."""
        until = caught_up_at + PATIENCE * max_lag_s
        if until > now:
            self._until[node] = until
        else:
            self._until.pop(node, None)

    def forget(self, nodes: Sequence[NodeId]) -> None:
        """Stop waiting for these followers, because the maximal ISR contains them now."""
        for node in nodes:
            self._until.pop(node, None)

    def clear(self) -> None:
        """Stop waiting for all followers."""
        self._until.clear()

    def expire(self, now: float) -> bool:
        """Stop waiting for the followers that no longer count as keeping up at ``now`` (seconds). Return whether
        there was one."""
        late = [node for node, until in self._until.items() if until <= now]
        for node in late:
            del self._until[node]
        return bool(late)

    def deadline(self) -> float:
        """Return the earliest time, in seconds, at which ``expire`` removes a follower; ``inf`` if the HW waits for
        none."""
        return min(self._until.values(), default=math.inf)


def joiners(state: PartitionState) -> tuple[NodeId, ...]:
    """Return the learners of a partition that a reassignment is to make replicas, in the order of the state; an empty
    tuple if there are none."""
    return tuple(node for node in state.learners if node in state.target)


def propose(
    node: NodeId,
    state: PartitionState,
    rule: str,
    followers: Mapping[NodeId, FollowerProgress],
    is_overdue: Callable[[NodeId], bool],
    may_join: Callable[[NodeId], bool],
    has_all: Callable[[], bool],
    now: float,
) -> tuple[tuple[NodeId, ...], str, dict[str, str]] | None:
    """Return the members, the cause and the evidence of the ISR that leader ``node`` should propose to the
    controller. Return None if the present ISR needs no change. Overdue members are left out and followers that may
    join are added; only if there is neither does a reassignment remove replicas. ``has_all``, called under commit
    rule ``quorum`` only, must return whether a majority has everything that is committed."""
    evidence: dict[str, str] = {}
    members = [node]
    for other in state.isr:
        if other != node and is_overdue(other):
            behind_ms = round((now - followers[other].caught_up_at) * 1000)
            evidence[f"{other}.behind_ms"] = str(behind_ms)
            evidence[f"{other}.durable"] = str(followers[other].durable)
        elif other != node:
            members.append(other)
    new = [other for other in state.replicas if other not in (node, *state.isr) and may_join(other)]
    learned = [other for other in joiners(state) if may_join(other)]
    new += learned if rule != "quorum" else learned[:1]
    for other in new:
        evidence[f"{other}.durable"] = str(followers[other].durable)
    cause = "follower_lagging" if len(members) + len(new) < len(state.isr) else "follower_caught_up"
    members += new
    if not evidence:
        gone = _gone(node, state) if rule != "quorum" else _gone(node, state)[:1]
        if not gone or (rule == "quorum" and not has_all()):
            return None
        members = [other for other in members if other not in gone]
        cause, evidence = "reassigned", {"gone": " ".join(gone), "target": " ".join(state.target)}
    order = state.replicas + state.learners
    return tuple(other for other in order if other in members), cause, evidence


def _gone(node: NodeId, state: PartitionState) -> list[NodeId]:
    """Return the replicas that a reassignment removes. An empty list until this leader and the whole target of the
    reassignment are in sync."""
    if node not in state.target or not set(state.target) <= set(state.isr):
        return []
    return [other for other in state.replicas if other not in state.target]
