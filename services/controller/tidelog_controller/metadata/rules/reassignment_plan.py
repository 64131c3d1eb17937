"""From a wish that leadership or replicas move to the command that begins it, or to the refusal that says everything
wrong with it. What the commands mean is in ``metadata/rules/reassignment.py``; random choices are made here, before
they are proposed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from tidelog.errors import TidelogError, refuse
from tidelog.types import NodeId, PartitionState, TopicState
from tidelog.wire.messages import (
    CancelReassignment,
    DrainServer,
    GrowTopic,
    Message,
    PlannedMove,
    PlanRebalance,
    Reassign,
    Rebalance,
    TransferLeader,
)

from tidelog_controller.metadata.commands import (
    AddPartitions,
    ChangeQueue,
    Command,
    QueuedMove,
    SetDraining,
    SetReplicas,
    SetSuccessor,
)
from tidelog_controller.metadata.rules.placement import Dice, candidates, placement_for
from tidelog_controller.metadata.rules.reassignment import why_not_replicas, why_not_successor
from tidelog_controller.metadata.rules.rebalance_planner import plan_rebalance
from tidelog_controller.metadata.rules.topics import MAX_PARTITIONS
from tidelog_controller.metadata.state import MetadataState

Move = TransferLeader | Reassign | CancelReassignment | GrowTopic | DrainServer | PlanRebalance | Rebalance


def plan_move(
    state: MetadataState, wish: Move, dice: Dice, wall_ms: int, slow: Collection[NodeId] = ()
) -> Command | Message | TidelogError:
    """The command that does what is wished; an answer where nothing needs to be changed; or the refusal."""
    match wish:
        case TransferLeader():
            return _plan_transfer(state, wish, wall_ms)
        case Reassign():
            return _plan_reassignment(state, wish, wall_ms)
        case CancelReassignment():
            return _plan_cancellation(state, wish, wall_ms)
        case GrowTopic():
            return _plan_growth(state, wish, dice, wall_ms, slow)
        case DrainServer():
            if wish.server not in state.servers:
                return _unknown_server(state, wish.server)
            return SetDraining(wall_ms, wish.server, wish.drain)
        case PlanRebalance():
            return plan_rebalance(state, wish.empty_drained, wish.weights, wish.unit)
        case Rebalance():
            return _plan_queue(state, wish, wall_ms)


def _plan_transfer(state: MetadataState, wish: TransferLeader, wall_ms: int) -> SetSuccessor | TidelogError:
    """Refusals: ``UNKNOWN_TOPIC``, ``UNKNOWN_SERVER``, ``OFFLINE``, ``NOT_REPLICA``, ``NOT_IN_SYNC``."""
    found = _partition(state, wish.name, wish.partition)
    if isinstance(found, TidelogError):
        return found
    server = wish.server or found.replicas[0]
    if server not in state.servers:
        return _unknown_server(state, server)
    refusal = why_not_successor(found, server, state.is_live)
    if refusal is not None:
        return refusal
    evidence = {"from": found.leader or "", "to": server}
    topic_id = state.names[wish.name]
    return SetSuccessor(wall_ms, topic_id, wish.partition, found.epoch, server, "operator", evidence)


def _plan_reassignment(state: MetadataState, wish: Reassign, wall_ms: int) -> SetReplicas | TidelogError:
    """Refusals: ``UNKNOWN_TOPIC``, ``UNKNOWN_SERVER``, ``INVALID_REPLICAS`` (all faults in one)."""
    found = _partition(state, wish.name, wish.partition)
    if isinstance(found, TidelogError):
        return found
    for server in wish.replicas:
        if server not in state.servers:
            return _unknown_server(state, server)
    topic_id = state.names[wish.name]
    refusal = why_not_replicas(found, state.topics[topic_id].config, wish.replicas, state.is_live)
    if refusal is not None:
        return refusal
    evidence = {"replicas_before": " ".join(found.replicas)}
    return SetReplicas(wall_ms, topic_id, wish.partition, found.epoch, wish.replicas, "reassign", evidence)


def _plan_queue(state: MetadataState, wish: Rebalance, wall_ms: int) -> ChangeQueue:
    """All of the plan waits for its turn; or nothing does any more."""
    if wish.cancel:
        return ChangeQueue(wall_ms, clear=True)
    plan = plan_rebalance(state, wish.empty_drained, wish.weights, wish.unit).moves
    moves = tuple(QueuedMove(state.names[m.name], m.partition, m.target, _sake(m), wish.asker) for m in plan)
    return ChangeQueue(wall_ms, moves)


def _sake(move: PlannedMove) -> str:
    """The reason for a planned move, with its figures, as ``why`` shows it."""
    return f"{move.reason} ({move.evidence})" if move.evidence else move.reason


def _plan_cancellation(
    state: MetadataState, wish: CancelReassignment, wall_ms: int
) -> SetReplicas | ChangeQueue | TidelogError:
    """One that waits for its turn does not any more. Refusals: ``UNKNOWN_TOPIC``, ``NO_REASSIGNMENT``,
    ``INVALID_REPLICAS`` (an old replica is gone meanwhile)."""
    found = _partition(state, wish.name, wish.partition)
    if isinstance(found, TidelogError):
        return found
    where = f"{wish.name}/{wish.partition}"
    waiting = f"{state.names[wish.name]}/{wish.partition}"
    if not found.target and waiting in state.queue:
        return ChangeQueue(wall_ms, drop=(waiting,))
    if not found.target:
        return refuse("NO_REASSIGNMENT", f"no reassignment of {where} is in progress")
    if found.target == found.origin:
        return refuse("NO_REASSIGNMENT", f"the reassignment of {where} is being cancelled already")
    topic_id = state.names[wish.name]
    refusal = why_not_replicas(found, state.topics[topic_id].config, found.origin, state.is_live)
    if refusal is not None:
        return refusal
    evidence = {"given_up": " ".join(found.target)}
    return SetReplicas(
        wall_ms, topic_id, wish.partition, found.epoch, found.origin, "reassignment_cancelled", evidence
    )


def _plan_growth(
    state: MetadataState, wish: GrowTopic, dice: Dice, wall_ms: int, slow: Collection[NodeId]
) -> AddPartitions | TidelogError:
    """New partitions have as many replicas as most partitions of the topic have. Refusals: ``UNKNOWN_TOPIC``,
    ``INVALID_CONFIG`` (a topic does not shrink), ``INVALID_REPLICATION_FACTOR``."""
    topic = state.topics.get(state.names.get(wish.name, ""))
    if topic is None:
        return refuse("UNKNOWN_TOPIC", f"there is no topic named {wish.name!r}")
    present = len(topic.partitions)
    if not present < wish.partitions <= MAX_PARTITIONS:
        return refuse(
            "INVALID_CONFIG",
            f"partitions is {wish.partitions}; {wish.name} has {present} and only grows, to {MAX_PARTITIONS} at most",
        )
    factor = _replication_factor(topic)
    servers = candidates(state, factor)
    if len(servers) < factor:
        names = ", ".join(sorted(servers)) or "none"
        return refuse(
            "INVALID_REPLICATION_FACTOR",
            f"{wish.name} has {factor} replicas a partition, and {len(servers)} replica servers are live: {names}",
            live=len(servers),
        )
    placement = placement_for(state, dice, slow)
    return AddPartitions(
        wall_ms, topic.topic_id, present, placement.place(servers, wish.partitions - present, factor)
    )


def _replication_factor(topic: TopicState) -> int:
    """How many replicas most partitions have, or will have after their reassignment. If two numbers are equally
    frequent: the larger one."""
    counts = Counter(len(partition.target or partition.replicas) for partition in topic.partitions)
    return max(counts, key=lambda replicas: (counts[replicas], replicas))


def _partition(state: MetadataState, name: str, number: int) -> PartitionState | TidelogError:
    found = state.partition(state.names.get(name, ""), number)
    if found is None:
        return refuse("UNKNOWN_TOPIC", f"there is no partition {number} of a topic named {name!r}")
    return found


def _unknown_server(state: MetadataState, server: str) -> TidelogError:
    known = ", ".join(sorted(state.servers)) or "none"
    return refuse("UNKNOWN_SERVER", f"no replica server {server!r} is registered; there are {known}")
