"""The cluster's metadata: a pure state machine over the committed Raft log.

``apply(state, command, index)`` gives the next state. It reads no clock, throws no dice and does no I/O, so every
controller that applied the same entries holds the same state, and a replayed log rebuilds it. Leaders are chosen, and
epochs grow, in ``metadata/rules/leader_election.py``; how leadership and replicas move at somebody's wish is in
``metadata/rules/reassignment.py``, how they pause in ``metadata/rules/suspension.py``.

A server that registers may have lost data. It is *safe* for a partition when its data directory is the one of its
last life (*continuous*: it knows that life's name; else it was wiped, or restored from an old copy) and nothing that
it had vouched for is gone: it ended in order or the operating system has run on (*clean*), or the topic's flush
policy is ``fsync``. Every server that registers leaves each ISR in which another can vouch; one that is safe may go
to the ELR, or stay alone and lead on; one that is not leaves both, even where that leaves nobody.

Invariants, for every partition after every command (``tests/unit/controller/metadata/test_application.py`` throws
random logs at them):

- ISR and ELR are disjoint subsets of the replicas, in replica order; the ELR is empty while the ISR holds
  ``min_insync_replicas``; learners are no replicas;
- the doubtful are members of ISR or ELR, and none of them leads;
- the leader is an unfenced member of the ISR; it was in the ISR or in the ELR before, so it holds everything
  committed (R3), unless the election was unclean and says so;
- a server that registered and is not safe is in no ISR or ELR until a leader's proposal adds it (R9) or an unclean
  election finds nobody better; only ``quorum`` keeps the promise of one that is away or restarted;
- a fenced server is in an ISR only alone, and offline; a restarted one only alone, with a new leader epoch (but for
  ``quorum``);
- ``epoch`` grows with every change, ``leader_epoch`` with every change of leader, also to none and also to a new
  life of the same server (R1; no leader epoch is ever resumed after a restart).

A proposed ISR whose members are not all live is refused, *and* the epoch moves on. The leader counts a proposed
member until it sees a newer epoch; were the epoch to stay, a delayed copy of the refused proposal could still be
applied after the leader had stopped counting that member.

Sources: KIP-497 (compare-and-set of the ISR), KIP-841 and KIP-903 (fenced members, broker epochs of members), KIP-966
(ELR, unclean restarts), KIP-501 (a leader hands over).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tidelog.errors import TidelogError, refuse
from tidelog.types import NodeId, PartitionState, ServerState, TopicConfig, TopicOwner, TopicPartition, TopicState
from tidelog.wire.messages import AlterIsrAnswer, Done, Message, ProducerIds, Registered, TopicCreated

from tidelog_controller.metadata.changeset import ChangeSet
from tidelog_controller.metadata.commands import (
    AddPartitions,
    AddTicketKey,
    AddTopic,
    ChangeAccess,
    ChangeIsr,
    ChangeQueue,
    ChangeTopic,
    Command,
    ConfirmLeadership,
    ElectSealed,
    FenceServer,
    ForgetEvents,
    ForgetServer,
    LeaveParts,
    NoteControllers,
    NoteDoubt,
    RecordLoss,
    RegisterServer,
    RemoveTopic,
    ReplaceLeaders,
    SetDraining,
    SetLearners,
    SetLevel,
    SetReplicas,
    SetSuccessor,
    Suspend,
    TakeProducerIds,
    UnfenceServer,
)
from tidelog_controller.metadata.rules.access import change_access
from tidelog_controller.metadata.rules.doubtful_tails import note_doubt
from tidelog_controller.metadata.rules.feature_level import forget_server, set_level
from tidelog_controller.metadata.rules.leader_election import (
    can_be_sealed,
    can_take_over,
    elect,
    elect_recovered,
    elect_sealed,
    first_state,
    is_recovering,
    passed_over,
    ranks_by_server,
    without,
)
from tidelog_controller.metadata.rules.losses import forget_events, note_controllers, record_loss
from tidelog_controller.metadata.rules.owners import why_no_topic, without_owner
from tidelog_controller.metadata.rules.reassignment import move, pass_on, with_proposed
from tidelog_controller.metadata.rules.suspension import suspend
from tidelog_controller.metadata.rules.ticket_keys import add_first_key, add_key
from tidelog_controller.metadata.state import Applied, MetadataState

__all__ = ["Applied", "MetadataState", "apply", "skip"]

EARLIER_LIVES = 32
"""Names of earlier lives remembered per server."""


def apply(state: MetadataState, command: Command, index: int) -> Applied:
    """The state after ``command``, which stands in the log at ``index``. Deterministic."""
    draft = ChangeSet(state, index, command.time_ms, command.asker)
    if not state.level:
        draft.level = command.level or 1
    answer = _answer(draft, command, index)
    add_first_key(draft, command, index)
    return draft.finish(answer)


def skip(state: MetadataState, index: int) -> MetadataState:
    """The state after an entry without a command (Raft's no-op)."""
    return replace(state, index=index)


def _answer(draft: ChangeSet, command: Command, index: int) -> Message | TidelogError:
    match command:
        case RegisterServer():
            return _register(draft, command, index)
        case FenceServer():
            return _fence(draft, command)
        case UnfenceServer():
            return _unfence(draft, command)
        case AddTopic():
            return _add_topic(draft, command)
        case RemoveTopic():
            return _remove_topic(draft, command)
        case ChangeTopic():
            return _change_topic(draft, command)
        case ChangeIsr():
            return _change_isr(draft, command)
        case ReplaceLeaders():
            return _replace_leaders(draft, command)
        case LeaveParts():
            return pass_on(draft, command) if command.ready else _leave_parts(draft, command)
        case ElectSealed():
            return _elect_sealed(draft, command)
        case ConfirmLeadership():
            return _leads(draft.state, command) or Done()
        case RecordLoss():
            return record_loss(draft, command)
        case NoteDoubt():
            return note_doubt(draft, command)
        case SetSuccessor() | SetReplicas() | AddPartitions() | SetDraining() | SetLearners() | ChangeQueue():
            return move(draft, command)
        case Suspend():
            return suspend(draft, command)
        case NoteControllers():
            return note_controllers(draft, command)
        case ForgetEvents():
            return forget_events(draft, command)
        case ChangeAccess():
            return change_access(draft, command)
        case ForgetServer():
            return forget_server(draft, command)
        case SetLevel():
            return set_level(draft, command)
        case AddTicketKey():
            return add_key(draft, command, index)
        case TakeProducerIds():
            first = max(draft.next_producer_id, command.first)
            draft.next_producer_id = first + command.count
            return ProducerIds(first, command.count)
        case _:
            raise AssertionError(f"no rule for {command.KIND}")


# --- servers ---------------------------------------------------------------------------------------------


def _register(draft: ChangeSet, command: RegisterServer, index: int) -> Registered | TidelogError:
    """A life begins. The name of an earlier life than the present one means that the message was under way while the
    server restarted: were it to count, the present life would look like a directory restored from an old copy."""
    node, life = command.node, command.lives[-1] if command.lives else ""
    known = draft.state.servers.get(node)
    if life and life in draft.state.earlier_lives.get(node, ()):
        return refuse("FENCED_BROKER_EPOCH", f"{node} has begun another life since")
    continuous = known is None or known.life in ("", *command.lives)
    former = (*draft.state.earlier_lives.get(node, ()), known.life if known is not None else "", *command.lives)
    earlier = tuple(dict.fromkeys(name for name in former if name not in ("", life)))[-EARLIER_LIVES:]
    draining = known is not None and known.draining
    server = ServerState(node, command.url, index, fenced=False, life=life, rack=command.rack, draining=draining)
    evidence = {"node": node, "broker_epoch": str(index), "restart": "clean" if command.clean else "unclean"}
    if not continuous:
        evidence["data"] = "wiped, or restored from an old copy"
    event = "server_joined" if known is None else "server_registered"
    draft.put_server(server, event, "registered", evidence, earlier)
    for key, partition, config in draft.copies_of(node):
        renew = partition.leader == node
        if continuous and (command.clean or config.flush == "fsync"):
            isr, lost, wiped = _remaining(partition, config, node), None, False
        else:
            isr, lost, wiped = partition.isr, node, not continuous
        new = elect(
            partition,
            config,
            isr,
            draft.is_live,
            drains=draft.drains,
            renew=renew,
            lost=lost,
            wiped=wiped,
            doubtful=without(partition.doubtful, node),
        )
        draft.change(key, new, "registered", evidence)
    return Registered(index, index, 0, draft.state.cluster)


def _fence(draft: ChangeSet, command: FenceServer) -> Done | TidelogError:
    node = command.node
    server = draft.state.servers.get(node)
    if server is None or server.broker_epoch != command.broker_epoch:
        return refuse("FENCED_BROKER_EPOCH", f"{node} is in a later life")
    if server.fenced:
        return Done()
    evidence = {"node": node, "broker_epoch": str(command.broker_epoch), **command.evidence}
    ranks = ranks_by_server(command.ranks)
    draft.put_server(replace(server, fenced=True), "server_fenced", "session_expired", evidence)
    for key, partition, config in draft.copies_of(node):
        isr = _remaining(partition, config, node)
        new = elect(partition, config, isr, draft.is_live, drains=draft.drains, ranks=ranks)
        draft.change(key, new, "session_expired", evidence | passed_over(partition, new, command.ranks))
    return Done()


def _unfence(draft: ChangeSet, command: UnfenceServer) -> Done | TidelogError:
    server = draft.state.servers.get(command.node)
    if server is None or server.broker_epoch != command.broker_epoch:
        return refuse("FENCED_BROKER_EPOCH", f"{command.node} is in a later life")
    if not server.fenced:
        return Done()
    evidence = {"node": command.node, "broker_epoch": str(command.broker_epoch)}
    draft.put_server(replace(server, fenced=False), "server_unfenced", "session_resumed", evidence)
    for key, partition, config in draft.copies_of(command.node):
        draft.change(
            key,
            elect(partition, config, partition.isr, draft.is_live, drains=draft.drains),
            "session_resumed",
            evidence,
        )
    return Done()


def _remaining(partition: PartitionState, config: TopicConfig, node: NodeId) -> tuple[NodeId, ...]:
    """The ISR without a server that ends or begins a life: it stays where it is the last one, and in a ``quorum``,
    where promises hold for longer than lives."""
    if config.commit_rule == "quorum" or partition.sealing:
        return partition.isr
    return without(partition.isr, node) or partition.isr


# --- topics ----------------------------------------------------------------------------------------------


def _add_topic(draft: ChangeSet, command: AddTopic) -> TopicCreated | TidelogError:
    if command.name in draft.state.names:
        return refuse("TOPIC_EXISTS", f"a topic named {command.name} exists")
    partitions = []
    for replicas in command.replicas:
        partition = first_state(replicas, command.config, draft.is_live, draft.drains)
        if partition is None:
            return refuse("INVALID_REPLICATION_FACTOR", f"none of the servers {', '.join(replicas)} is live", live=0)
        partitions.append(partition)
    over = why_no_topic(draft.state, command)
    if over is not None:
        return over
    draft.add_topic(TopicState(command.topic_id, command.name, command.config, tuple(partitions)))
    if command.owner:
        draft.owners = (*draft.owners, TopicOwner(command.topic_id, command.owner))
    return TopicCreated(command.topic_id)


def _remove_topic(draft: ChangeSet, command: RemoveTopic) -> Done | TidelogError:
    if command.topic_id not in draft.state.topics:
        return refuse("UNKNOWN_TOPIC", "the topic is deleted already")
    draft.remove_topic(command.topic_id)
    draft.owners = without_owner(draft.owners, command.topic_id)
    return Done()


def _change_topic(draft: ChangeSet, command: ChangeTopic) -> Done | TidelogError:
    """A smaller ``min_insync_replicas`` lets the HW move on without the ELR, which ends with the same change; an
    unclean election that is allowed now happens now. A greater one is a new epoch: who leaves the ISR from now on is
    eligible, and no proposal counts any more of a leader that may yet commit without it."""
    topic = draft.state.topics.get(command.topic_id)
    if topic is None:
        return refuse("UNKNOWN_TOPIC", "the topic is deleted already")
    config = replace(topic.config, **command.values)  # type: ignore[arg-type]
    if config == topic.config:
        return Done()
    before, after = topic.config.texts(), config.texts()
    evidence = {name: f"{before[name]} -> {after[name]}" for name in after if after[name] != before[name]}
    draft.put_config(topic, config, evidence)
    for number, partition in enumerate(topic.partitions):
        key = TopicPartition(topic.topic_id, number)
        new = elect(partition, config, partition.isr, draft.is_live, drains=draft.drains)
        if new is partition and config.min_insync_replicas > topic.config.min_insync_replicas:
            new = replace(partition, epoch=partition.epoch + 1)
        else:
            draft.note(key, "settings_changed", "alter_topic", evidence)
        draft.change(key, new, "alter_topic", evidence)
    return Done()


# --- leaders and in-sync replicas ------------------------------------------------------------------------


def _leads(state: MetadataState, asked: ChangeIsr | ConfirmLeadership) -> TidelogError | None:
    """Why this is not the present leader's request; None if it is."""
    partition = state.partition(asked.topic_id, asked.partition)
    if partition is None:
        return refuse("UNKNOWN_TOPIC", f"no partition {asked.partition} of topic id {asked.topic_id}")
    if not state.in_life(asked.node, asked.broker_epoch):
        return refuse("FENCED_BROKER_EPOCH", f"{asked.node} is in a later life")
    if partition.leader != asked.node:
        return refuse("NOT_LEADER", f"{partition.leader or 'nobody'} leads, not {asked.node}")
    if partition.leader_epoch != asked.leader_epoch:
        now = partition.leader_epoch
        return refuse("FENCED_LEADER_EPOCH", f"the leader epoch is {now}", leader_epoch=now)
    return None


def _change_isr(draft: ChangeSet, command: ChangeIsr) -> AlterIsrAnswer | TidelogError:
    state, key = draft.state, TopicPartition(command.topic_id, command.partition)
    refusal, partition = _leads(state, command), state.partition(*key)
    if refusal is not None or partition is None:
        assert refusal is not None
        return refusal
    if partition.epoch != command.epoch:
        return refuse("STALE_EPOCH", f"the epoch is {partition.epoch}, not {command.epoch}", epoch=partition.epoch)
    members = tuple(member.node for member in command.isr)
    known = partition.replicas + tuple(node for node in partition.learners if node in partition.target)
    if command.node not in members or any(node not in known for node in members):
        return refuse("NOT_REPLICA", "an ISR holds the leader and replicas only", members=", ".join(members))
    config, judged = state.topics[command.topic_id].config, command.isr
    moved = with_proposed(partition, config, members)
    if isinstance(moved, TidelogError):
        return moved
    if config.commit_rule == "quorum":  # those that are in it may be away; their promises hold all the same
        if any(node not in members for node in partition.isr if node in moved.replicas):
            return refuse("UNSUPPORTED", "with commit rule quorum nobody is taken out of the ISR")
        judged = tuple(member for member in command.isr if member.node not in partition.isr)
    unfit = [m.node for m in judged if not (state.is_live(m.node) and state.in_life(m.node, m.broker_epoch))]
    if unfit:
        same = replace(partition, epoch=partition.epoch + 1)
        draft.change(key, same, command.cause, {**command.evidence, "unfit": ", ".join(unfit)})
        return refuse(
            "STALE_EPOCH",
            f"fenced or restarted since: {', '.join(unfit)}; now epoch {same.epoch}",
            epoch=same.epoch,
        )
    # no change is also a change, so that the proposer sees a newer epoch
    new = replace(elect(moved, config, members, draft.is_live, drains=draft.drains), epoch=partition.epoch + 1)
    assert new.leader == command.node
    draft.change(key, new, command.cause, command.evidence)
    return AlterIsrAnswer(new.epoch, new.isr)


def _replace_leaders(draft: ChangeSet, command: ReplaceLeaders) -> Done:
    """The failed leader leaves the ISR in the same change: nobody fetches in its epoch any more, so it commits
    nothing, and the new leader's HW need not wait for it. A partition that moved on is left alone, as is one in which
    nobody else could lead without loss: a leader that is reported may yet be well."""
    ranks = ranks_by_server(command.ranks)
    for part in command.parts:
        key = TopicPartition(part.topic_id, part.partition)
        partition = draft.state.partition(*key)
        if partition is None or (partition.leader, partition.leader_epoch, partition.epoch) != (
            command.leader,
            part.leader_epoch,
            part.epoch,
        ):
            continue
        config, others = draft.state.topics[part.topic_id].config, without(partition.isr, command.leader)
        sealable = config.commit_rule != "quorum" or can_be_sealed(partition, partition.isr, draft.is_live)
        if sealable and any(map(draft.is_live, others)):
            isr = _remaining(partition, config, command.leader)
            new = elect(partition, config, isr, draft.is_live, drains=draft.drains, renew=True, ranks=ranks)
            evidence = part.evidence | passed_over(partition, new, command.ranks)
            draft.change(key, new, "leader_reported", evidence)
    return Done()


def _leave_parts(draft: ChangeSet, command: LeaveParts) -> Done | TidelogError:
    """Parts that moved on are passed over, as are those in which nobody else can lead. Where what the server held is
    lost, nothing is passed over: afterwards every part is in a newer epoch, in which nobody counts on it, or it leads
    by an unclean election; no older ISR proposal counts any more. Or nothing is changed."""
    node = command.node
    if not draft.state.in_life(node, command.broker_epoch):
        return refuse("FENCED_BROKER_EPOCH", f"{node} is in a later life")
    parts = []
    for part in dict.fromkeys(command.parts):
        key = TopicPartition(part.topic_id, part.partition)
        partition = draft.state.partition(*key)
        if partition is not None and (partition.leader_epoch, partition.epoch) == (part.leader_epoch, part.epoch):
            if node in partition.replicas + partition.learners:
                parts.append((key, partition))
        elif command.lost:
            return refuse("STALE_EPOCH", f"partition {key.partition} of {key.topic_id} is not in epoch {part.epoch}")
    evidence = {"node": node, "reason": command.reason}
    chosen = partial(elect, is_live=draft.is_live, drains=draft.drains, ranks=ranks_by_server(command.ranks))
    for key, partition in parts:
        config = draft.state.topics[key.topic_id].config
        if command.lost:
            new = chosen(partition, config, partition.isr, lost=node, wiped=True)
            new = new if new != partition else replace(partition, epoch=partition.epoch + 1)
            draft.change(key, new, "data_lost", evidence | passed_over(partition, new, command.ranks))
        elif is_recovering(partition, config):
            continue  # nobody leads, and its promise holds
        elif node in partition.isr and can_take_over(partition, config, node, draft.is_live):
            quorum = config.commit_rule == "quorum"
            isr = partition.isr if quorum else without(partition.isr, node)
            new = chosen(partition, config, isr, renew=partition.leader == node, leaving=node)
            draft.change(key, new, "handed_over", evidence | passed_over(partition, new, command.ranks))
    return Done()


def _elect_sealed(draft: ChangeSet, command: ElectSealed) -> Done:
    for part in command.parts:
        key = TopicPartition(part.topic_id, part.partition)
        partition = draft.state.partition(*key)
        if partition is None or not partition.sealing or partition.leader_epoch != part.leader_epoch:
            continue
        config = draft.state.topics[part.topic_id].config
        recovering = is_recovering(partition, config)
        lost = [n for n in partition.replicas if n not in partition.isr + partition.elr]
        promised = [n for n in partition.isr if n not in partition.doubtful]
        counts = [m.node not in lost if recovering else m.node in promised for m in part.sealed_by]
        hold = all(counts) and all(draft.state.in_life(m.node, m.broker_epoch) for m in part.sealed_by)
        if hold and draft.is_live(part.leader):
            elected = elect_recovered if recovering else elect_sealed
            cause = "recovered" if recovering else "sealed"
            draft.change(key, elected(partition, part.leader, part.above), cause, part.evidence)
    return Done()
