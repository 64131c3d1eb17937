"""How leadership and replicas move at the request of an operator: how a command is planned from the request, or the
request refused with all its faults at once, and what the commands change. Random choices are made in the planning.

**Transfer** (of leadership to a member of the ISR; for every commit rule):

    led --successor named--> handing over --leader: it has everything--> led by the successor, one leader epoch on
                                  |--withdrawn, the successor fell out, or another election--> led as before

Nothing is lost whichever way it ends: the leader takes no batch while a successor is named, so that when it says so
(``HandOver.ready``, compare-and-set on both epochs) the successor's log is its log. With commit rule ``quorum`` no
sealing is needed for the same reason: whatever is or will be counted as committed in the old epoch is in that log.

**Reassignment**: ``target`` names the replicas that are to be, ``origin`` those that were; both are there exactly
while it is in progress. New servers begin as learners, which have no part in anything. The rest is proposed by the
leader, as a change of the ISR (KIP-497), compare-and-set on the epoch:

    a learner in the target that has caught up       joins replicas and ISR in one step
    all of the target in the ISR, the leader too     a replica that is not in the target, nor in the proposal, leaves

A leader that is not in the target is replaced first, by transfer. So the state says all there is to know: another
controller goes on where one has ended, and a cancellation is a reassignment to ``origin``.

Each step keeps every promise. Commit rules ``isr`` and ``leader``: the leader counts a replica that joins from its
proposal on, and one that leaves until the new state arrives. Commit rule ``quorum``: one replica comes or goes at a
time, and only from a state that the leader knows, so that every majority that may commit or elect before and after
has a member in common (Raft's single-server change, dissertation 4.1, with the correction that the leader has acted
in its epoch); and a replica goes only when a majority of those before has all that is committed, which the leader
sees to.

A server that is no longer a replica or learner deletes its copy. Were it to return in the same leader epoch, what it
had acknowledged to the leader before might count though it is gone: so it returns in a new leader epoch
(``departed``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace

from tidelog.errors import TidelogError, refuse
from tidelog.types import NodeId, PartitionState, TopicConfig, TopicPartition, TopicState
from tidelog.wire.messages import (
    CancelReassignment,
    Done,
    DrainServer,
    GrowTopic,
    Message,
    PlannedMove,
    PlanRebalance,
    Reassign,
    Rebalance,
    TransferLeader,
)

from tidelog_controller.metadata.changeset import ChangeSet
from tidelog_controller.metadata.commands import (
    AddPartitions,
    ChangeQueue,
    Command,
    LeaveParts,
    QueuedMove,
    SetDraining,
    SetLearners,
    SetReplicas,
    SetSuccessor,
)
from tidelog_controller.metadata.registry import applies
from tidelog_controller.metadata.rules.leader_election import elect, first_state, lead_next
from tidelog_controller.metadata.rules.owners import refuse_more_partitions
from tidelog_controller.metadata.rules.placement import Random, candidates, placement_for
from tidelog_controller.metadata.rules.rebalance_planner import plan_rebalance
from tidelog_controller.metadata.rules.topics import MAX_PARTITIONS
from tidelog_controller.metadata.state import MetadataState

MoveRequest = TransferLeader | Reassign | CancelReassignment | GrowTopic | DrainServer | PlanRebalance | Rebalance


def plan_move(
    state: MetadataState, request: MoveRequest, rng: Random, wall_ms: int, slow: Collection[NodeId] = ()
) -> Command | Message | TidelogError:
    """Return the command for an operator's request to transfer a leadership, to move replicas, to add partitions, to
    drain a server or to queue a rebalance. For ``PlanRebalance``, which changes nothing, return the plan itself.
    Return an error if the request is refused. ``slow`` are the servers that get new replicas only if others do not
    suffice."""
    match request:
        case TransferLeader():
            return _plan_transfer(state, request, wall_ms)
        case Reassign():
            return _plan_reassignment(state, request, wall_ms)
        case CancelReassignment():
            return _plan_cancellation(state, request, wall_ms)
        case GrowTopic():
            return _plan_growth(state, request, rng, wall_ms, slow)
        case DrainServer():
            if request.server not in state.servers:
                return _unknown_server(state, request.server)
            return SetDraining(wall_ms, request.server, request.drain)
        case PlanRebalance():
            return plan_rebalance(state, request.empty_drained, request.weights, request.unit)
        case Rebalance():
            return _plan_queue(state, request, wall_ms)


def _plan_transfer(state: MetadataState, request: TransferLeader, wall_ms: int) -> SetSuccessor | TidelogError:
    """Return the command that begins a transfer of leadership to the server in the request, or to the preferred
    replica if it names none. Return an error instead: ``UNKNOWN_TOPIC``, ``UNKNOWN_SERVER``, ``TOPIC_PAUSED``,
    ``OFFLINE``, ``NOT_REPLICA`` or ``NOT_IN_SYNC``."""
    found = _partition(state, request.name, request.partition)
    if isinstance(found, TidelogError):
        return found
    server = request.server or found.replicas[0]
    if server not in state.servers:
        return _unknown_server(state, server)
    refusal = refuse_successor(found, server, state.is_live)
    if refusal is not None:
        return refusal
    evidence = {"from": found.leader or "", "to": server}
    topic_id = state.names[request.name]
    return SetSuccessor(wall_ms, topic_id, request.partition, found.epoch, server, "operator", evidence)


def _plan_reassignment(state: MetadataState, request: Reassign, wall_ms: int) -> SetReplicas | TidelogError:
    """Return the command that begins to move a partition to other replicas. Return an error instead:
    ``UNKNOWN_TOPIC``, ``UNKNOWN_SERVER``, or ``INVALID_REPLICAS`` with all faults in one."""
    found = _partition(state, request.name, request.partition)
    if isinstance(found, TidelogError):
        return found
    for server in request.replicas:
        if server not in state.servers:
            return _unknown_server(state, server)
    topic_id = state.names[request.name]
    refusal = refuse_replicas(found, state.topics[topic_id].config, request.replicas, state.is_live)
    if refusal is not None:
        return refusal
    evidence = {"replicas_before": " ".join(found.replicas)}
    return SetReplicas(wall_ms, topic_id, request.partition, found.epoch, request.replicas, "reassign", evidence)


def _plan_queue(state: MetadataState, request: Rebalance, wall_ms: int) -> ChangeQueue:
    """Return the command that puts every move of the present rebalance plan into the queue. If the request has
    ``cancel``, return the command that empties the queue."""
    if request.cancel:
        return ChangeQueue(wall_ms, clear=True)
    plan = plan_rebalance(state, request.empty_drained, request.weights, request.unit).moves
    moves = tuple(QueuedMove(state.names[m.name], m.partition, m.target, _reason_of(m), request.asker) for m in plan)
    return ChangeQueue(wall_ms, moves)


def _reason_of(move: PlannedMove) -> str:
    """Return the reason for a planned move as ``tidelog why`` shows it, with its figures if there are any."""
    return f"{move.reason} ({move.evidence})" if move.evidence else move.reason


def _plan_cancellation(
    state: MetadataState, request: CancelReassignment, wall_ms: int
) -> SetReplicas | ChangeQueue | TidelogError:
    """Return the command that moves a partition back to the replicas that it had before its reassignment. If its
    reassignment still waits in the queue, return the command that removes it from there. Return an error instead:
    ``UNKNOWN_TOPIC``, ``NO_REASSIGNMENT``, or ``INVALID_REPLICAS`` if an old replica no longer exists."""
    found = _partition(state, request.name, request.partition)
    if isinstance(found, TidelogError):
        return found
    where = f"{request.name}/{request.partition}"
    waiting = f"{state.names[request.name]}/{request.partition}"
    if not found.target and waiting in state.queue:
        return ChangeQueue(wall_ms, drop=(waiting,))
    if not found.target:
        return refuse("NO_REASSIGNMENT", f"no reassignment of {where} is in progress")
    if found.target == found.origin:
        return refuse("NO_REASSIGNMENT", f"the reassignment of {where} is being cancelled already")
    topic_id = state.names[request.name]
    refusal = refuse_replicas(found, state.topics[topic_id].config, found.origin, state.is_live)
    if refusal is not None:
        return refusal
    evidence = {"given_up": " ".join(found.target)}
    return SetReplicas(
        wall_ms, topic_id, request.partition, found.epoch, found.origin, "reassignment_cancelled", evidence
    )


def _plan_growth(
    state: MetadataState, request: GrowTopic, rng: Random, wall_ms: int, slow: Collection[NodeId]
) -> AddPartitions | TidelogError:
    """Return the command that adds partitions to a topic, with their placement. Each new partition has as many
    replicas as most partitions of the topic. Return an error instead: ``UNKNOWN_TOPIC``, ``INVALID_CONFIG`` (a topic
    does not shrink), or ``INVALID_REPLICATION_FACTOR`` if too few servers are live."""
    topic = state.topics.get(state.names.get(request.name, ""))
    if topic is None:
        return refuse("UNKNOWN_TOPIC", f"there is no topic named {request.name!r}")
    present = len(topic.partitions)
    if not present < request.partitions <= MAX_PARTITIONS:
        return refuse(
            "INVALID_CONFIG",
            f"partitions is {request.partitions}; {request.name} has {present} and only grows, to {MAX_PARTITIONS}"
            " at most",
        )
    factor = _replication_factor(topic)
    servers = candidates(state, factor)
    if len(servers) < factor:
        names = ", ".join(sorted(servers)) or "none"
        return refuse(
            "INVALID_REPLICATION_FACTOR",
            f"{request.name} has {factor} replicas a partition, and {len(servers)} replica servers are live: {names}",
            live=len(servers),
        )
    placement = placement_for(state, rng, slow)
    return AddPartitions(
        wall_ms, topic.topic_id, present, placement.place(servers, request.partitions - present, factor)
    )


def _replication_factor(topic: TopicState) -> int:
    """Return the number of replicas that most partitions of a topic have, or will have after their reassignment; the
    larger number if two are equally frequent."""
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


IsLive = Callable[[NodeId], bool]


# --- leadership ------------------------------------------------------------------------------------------


@applies(SetSuccessor)
def set_successor(changes: ChangeSet, command: SetSuccessor) -> Done | TidelogError:
    """Begin a transfer of leadership, or withdraw it. Refused with ``STALE_EPOCH`` if the partition has changed since
    that was decided, and with the error of ``refuse_successor`` if the successor cannot lead now. Does nothing if it
    is named already, or leads. Returns ``Done`` otherwise."""
    found = _in_epoch(changes, command.topic_id, command.partition, command.epoch)
    if isinstance(found, TidelogError):
        return found
    successor = command.successor or None
    if successor is not None:
        refusal = refuse_successor(found, successor, changes.is_live)
        if refusal is not None:
            return refusal
    if successor == found.successor or successor == found.leader:
        return Done()
    new = replace(found, successor=successor, epoch=found.epoch + 1)
    changes.change(TopicPartition(command.topic_id, command.partition), new, command.cause, command.evidence)
    return Done()


def refuse_successor(partition: PartitionState, node: NodeId, is_live: IsLive) -> TidelogError | None:
    """Return why the leadership of a partition cannot be transferred to ``node`` now: ``TOPIC_PAUSED``, ``OFFLINE``,
    ``NOT_REPLICA`` or ``NOT_IN_SYNC``. Return None if it can."""
    if partition.paused:
        return refuse("TOPIC_PAUSED", "the partition is paused, nobody serves it: resume it first")
    if partition.leader is None:
        return refuse("OFFLINE", "nobody leads the partition: there is nothing to transfer")
    if node not in partition.replicas:
        return refuse("NOT_REPLICA", f"{node} is no replica; the replicas are {', '.join(partition.replicas)}")
    if node not in partition.isr or not is_live(node):
        return refuse("NOT_IN_SYNC", f"{node} is not in sync; in sync are {', '.join(partition.isr)}")
    return None


def pass_on(changes: ChangeSet, command: LeaveParts) -> Done | TidelogError:
    """End the transfers of those partitions whose leader reports that its successor has every record: the successor
    leads in a new leader epoch. A partition is skipped if it has changed since, or if its successor is not live.
    Refused with ``FENCED_BROKER_EPOCH`` if the incarnation of the reporting server is over. Returns ``Done``
    otherwise."""
    node = command.node
    if not changes.state.is_incarnation(node, command.broker_epoch):
        return refuse("FENCED_BROKER_EPOCH", f"{node} has begun another incarnation")
    for part in dict.fromkeys(command.parts):
        key = TopicPartition(part.topic_id, part.partition)
        partition = changes.state.partition(*key)
        if partition is None or (partition.leader_epoch, partition.epoch) != (part.leader_epoch, part.epoch):
            continue
        successor = partition.successor
        if partition.leader != node or successor is None or not changes.is_live(successor):
            continue
        changes.change(key, lead_next(partition, successor), "transferred", {"from": node, "to": successor})
    return Done()


@applies(SetDraining)
def set_draining(changes: ChangeSet, command: SetDraining) -> Done | TidelogError:
    """Begin or end the draining of a server. While it drains, its leaderships move away by transfers, one after the
    other. Refused with ``UNKNOWN_SERVER`` if it is not registered. Does nothing if it is in the wanted state already.
    Returns ``Done`` otherwise."""
    server = changes.state.servers.get(command.node)
    if server is None:
        return refuse("UNKNOWN_SERVER", f"no replica server {command.node} is registered")
    if server.draining != command.draining:
        event = "server_draining" if command.draining else "server_undrained"
        changes.put_server(replace(server, draining=command.draining), event, "operator", {"node": command.node})
    return Done()


# --- replicas --------------------------------------------------------------------------------------------


@applies(SetReplicas)
def set_replicas(changes: ChangeSet, command: SetReplicas) -> Done | TidelogError:
    """Begin a reassignment of a partition, or change the target of one in progress, which may be the original
    replicas. New servers become learners first. A mere change of order is done at once. A move of the partition that
    waits in the queue is dropped. Refused with ``UNKNOWN_TOPIC``, ``STALE_EPOCH`` or ``INVALID_REPLICAS``. Returns
    ``Done`` otherwise."""
    key = TopicPartition(command.topic_id, command.partition)
    found = _in_epoch(changes, command.topic_id, command.partition, command.epoch)
    if isinstance(found, TidelogError):
        return found
    config, wanted = changes.state.topics[command.topic_id].config, command.replicas
    refusal = refuse_replicas(found, config, wanted, changes.is_live)
    if refusal is not None:
        return refusal
    kept = tuple(node for node in found.learners if node not in found.target or node in wanted)
    new_ones = tuple(node for node in wanted if node not in found.replicas + kept)
    base = replace(found, learners=kept + new_ones)
    if set(wanted) == set(found.replicas):
        base = replace(base, replicas=wanted, target=(), origin=())
    else:
        base = replace(base, target=wanted, origin=found.origin or found.replicas)
    if base != found:
        new = with_copies(found, base, config, base.isr, changes)
        changes.change(key, new, command.cause, command.evidence)
    changes.queue = {name: move for name, move in changes.queue.items() if name != f"{key.topic_id}/{key.partition}"}
    return Done()


@applies(ChangeQueue)
def change_queue(changes: ChangeSet, command: ChangeQueue) -> Done:
    """Add moves to the queue of reassignments and drop others. A new move is skipped if its partition does not exist
    any more or has a reassignment in progress. Always returns ``Done``."""
    kept = {} if command.clear else {k: move for k, move in changes.queue.items() if k not in command.drop}
    for move in command.add:
        partition = changes.state.partition(move.topic_id, move.partition)
        if partition is not None and not partition.target:
            kept[move.key] = move
    changes.queue = kept
    return Done()


def refuse_replicas(
    partition: PartitionState, config: TopicConfig, wanted: tuple[NodeId, ...], is_live: IsLive
) -> TidelogError | None:
    """Return the error ``INVALID_REPLICAS`` with every reason why the servers in ``wanted`` cannot become the
    replicas of a partition; None if they can."""
    faults = []
    if not wanted:
        faults.append("a partition keeps one replica at least")
    twice = tuple(dict.fromkeys(node for node in wanted if wanted.count(node) > 1))
    faults += [f"{node} is named more than once" for node in twice]
    present = partition.replicas + partition.learners
    faults += [f"{node} is no live replica server" for node in wanted if node not in present and not is_live(node)]
    if wanted and config.min_insync_replicas > len(set(wanted)):
        least = config.min_insync_replicas
        faults.append(f"min_insync_replicas is {least}, more than {len(set(wanted))} replicas")
    return refuse("INVALID_REPLICAS", "; ".join(faults)) if faults else None


def with_copies(
    old: PartitionState, base: PartitionState, config: TopicConfig, isr: tuple[NodeId, ...], changes: ChangeSet
) -> PartitionState:
    """Return ``base``, the partition ``old`` with other replicas or learners, one epoch on and with the leader that
    follows from ``isr``. If a server becomes a learner again that had a copy earlier in this leader epoch, a new
    leader epoch begins."""
    back = any(node in old.departed for node in base.learners if node not in old.learners)
    new = elect(base, config, isr, changes.is_live, drains=changes.drains, renew=back)
    copies = new.replicas + new.learners
    departed = tuple(node for node in new.departed if node not in copies)  # no server leads in this leader epoch
    return replace(new, departed=departed, epoch=old.epoch + 1)


def with_proposed(
    partition: PartitionState, config: TopicConfig, members: tuple[NodeId, ...]
) -> PartitionState | TidelogError:
    """Return the partition with the replicas that join or leave when its leader proposes the ISR ``members``.
    Learners in ``members`` become replicas. Once the whole target of a reassignment is in ``members``, the replicas
    outside of both leave, and the reassignment ends when only the target is left. Return the error ``UNSUPPORTED`` if
    more than one replica joins with commit rule ``quorum``."""
    joined = tuple(node for node in partition.learners if node in members)
    learners = tuple(node for node in partition.learners if node not in joined)
    replicas, target = partition.replicas + joined, partition.target
    if target and partition.leader in target and all(node in members for node in target):
        gone = tuple(node for node in partition.replicas if node not in target + members)
    else:
        gone = ()
    if config.commit_rule == "quorum":
        if len(joined) > 1:
            return refuse("UNSUPPORTED", "with commit rule quorum one replica joins at a time")
        gone = () if joined else gone[:1]
    replicas = tuple(node for node in replicas if node not in gone)
    new = replace(partition, replicas=replicas, learners=learners)
    if target and set(replicas) == set(target):
        new = replace(new, replicas=target, target=(), origin=())
    return new


@applies(SetLearners)
def set_learners(changes: ChangeSet, command: SetLearners) -> Done | TidelogError:
    """Set the learners of a partition. Servers that are to become replicas by a reassignment stay learners in any
    case. Does nothing if they are the learners already. Refused with ``UNKNOWN_TOPIC`` if the topic is deleted.
    Returns ``Done`` otherwise."""
    key = TopicPartition(command.topic_id, command.partition)
    partition = changes.state.partition(*key)
    if partition is None:
        return refuse("UNKNOWN_TOPIC", "the topic is deleted already")
    joining = tuple(node for node in partition.learners if node in partition.target)
    learners = tuple(dict.fromkeys(command.learners + joining))
    if partition.learners != learners:
        config, base = changes.state.topics[command.topic_id].config, replace(partition, learners=learners)
        new = with_copies(partition, base, config, partition.isr, changes)
        changes.change(key, new, "alter_learners", {"learners": " ".join(command.learners)})
    return Done()


@applies(AddPartitions)
def add_partitions(changes: ChangeSet, command: AddPartitions) -> Done | TidelogError:
    """Append partitions to a topic, each with its first leader. Refused with ``UNKNOWN_TOPIC`` if the topic is
    deleted, with ``STALE_EPOCH`` if it has grown meanwhile, with ``INVALID_REPLICATION_FACTOR`` if none of the
    replicas of a partition is live, or if the topic's owner would have too many partitions. Returns ``Done``
    otherwise."""
    topic = changes.state.topics.get(command.topic_id)
    if topic is None:
        return refuse("UNKNOWN_TOPIC", "the topic is deleted already")
    if len(topic.partitions) != command.first:
        return refuse("STALE_EPOCH", f"the topic has {len(topic.partitions)} partitions by now, not {command.first}")
    states = []
    for replicas in command.replicas:
        state = first_state(replicas, topic.config, changes.is_live, changes.drains)
        if state is None:
            return refuse("INVALID_REPLICATION_FACTOR", f"none of the servers {', '.join(replicas)} is live", live=0)
        states.append(state)
    over = refuse_more_partitions(changes.state, command)
    if over is not None:
        return over
    changes.add_partitions(topic, tuple(states))
    return Done()


def _in_epoch(changes: ChangeSet, topic_id: str, number: int, epoch: int) -> PartitionState | TidelogError:
    """Return the partition; the error ``UNKNOWN_TOPIC`` if it does not exist, or ``STALE_EPOCH`` if it is at another
    epoch."""
    partition = changes.state.partition(topic_id, number)
    if partition is None:
        return refuse("UNKNOWN_TOPIC", f"no partition {number} of topic id {topic_id}")
    if partition.epoch != epoch:
        return refuse("STALE_EPOCH", f"the epoch is {partition.epoch}, not {epoch}", epoch=partition.epoch)
    return partition
