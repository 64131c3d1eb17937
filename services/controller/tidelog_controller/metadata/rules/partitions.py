"""Partitions: ISR proposals, leaders that are replaced, hand over or lost their data, and sealed elections.

A proposed ISR whose members are not all live is refused, *and* the epoch moves on. The leader counts a proposed
member until it sees a newer epoch. If the epoch stayed, a delayed copy of the refused proposal could still be applied
after the leader had stopped counting that member.

Sources: KIP-497 (compare-and-set of the ISR), KIP-841 and KIP-903 (fenced members, broker epochs of members), KIP-501
(a leader hands over).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tidelog.errors import TidelogError, refuse
from tidelog.types import TopicPartition
from tidelog.wire.messages import AlterIsrAnswer, Done

from tidelog_controller.metadata.changeset import ChangeSet
from tidelog_controller.metadata.commands import ChangeIsr, ConfirmLeadership, ElectSealed, LeaveParts, ReplaceLeaders
from tidelog_controller.metadata.registry import applies
from tidelog_controller.metadata.rules.leader_election import (
    can_be_sealed,
    can_take_over,
    elect,
    elect_recovered,
    elect_sealed,
    is_recovering,
    passed_over,
    ranks_by_server,
    without,
)
from tidelog_controller.metadata.rules.reassignment import pass_on, with_proposed
from tidelog_controller.metadata.rules.servers import remaining_isr
from tidelog_controller.metadata.state import MetadataState


def refuse_other_leader(state: MetadataState, request: ChangeIsr | ConfirmLeadership) -> TidelogError | None:
    """Return why a request is refused that only the leader of a partition may make: ``UNKNOWN_TOPIC`` if the
    partition does not exist, ``FENCED_BROKER_EPOCH`` if the sender's incarnation is over, ``NOT_LEADER``, or
    ``FENCED_LEADER_EPOCH``. Return None if the sender leads in the leader epoch of the request."""
    partition = state.partition(request.topic_id, request.partition)
    if partition is None:
        return refuse("UNKNOWN_TOPIC", f"no partition {request.partition} of topic id {request.topic_id}")
    if not state.is_incarnation(request.node, request.broker_epoch):
        return refuse("FENCED_BROKER_EPOCH", f"{request.node} has begun another incarnation")
    if partition.leader != request.node:
        return refuse("NOT_LEADER", f"{partition.leader or 'nobody'} leads, not {request.node}")
    if partition.leader_epoch != request.leader_epoch:
        now = partition.leader_epoch
        return refuse("FENCED_LEADER_EPOCH", f"the leader epoch is {now}", leader_epoch=now)
    return None


@applies(ConfirmLeadership)
def confirm_leadership(changes: ChangeSet, command: ConfirmLeadership) -> Done | TidelogError:
    """Return ``Done`` if the server leads the partition at this place in the log, otherwise the error of
    ``refuse_other_leader``. Nothing is changed."""
    return refuse_other_leader(changes.state, command) or Done()


@applies(ChangeIsr)
def change_isr(changes: ChangeSet, command: ChangeIsr) -> AlterIsrAnswer | TidelogError:
    """Change the ISR of a partition as its leader proposed, and return the new epoch and ISR. Proposed learners that
    belong to the target of a reassignment become replicas; once the whole target is in the ISR, replicas outside of
    it leave. Refused if the sender does not lead, if the partition is at another epoch (``STALE_EPOCH``), or if the
    members are impossible (``NOT_REPLICA``, ``UNSUPPORTED``). Also refused if a member is fenced or has restarted
    (``STALE_EPOCH``); only then the epoch grows."""
    state, key = changes.state, TopicPartition(command.topic_id, command.partition)
    refusal, partition = refuse_other_leader(state, command), state.partition(*key)
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
    if config.commit_rule == "quorum":  # members may be away: what they acknowledged counts
        if any(node not in members for node in partition.isr if node in moved.replicas):
            return refuse("UNSUPPORTED", "with commit rule quorum nobody is taken out of the ISR")
        judged = tuple(member for member in command.isr if member.node not in partition.isr)
    unfit = [m.node for m in judged if not (state.is_live(m.node) and state.is_incarnation(m.node, m.broker_epoch))]
    if unfit:
        same = replace(partition, epoch=partition.epoch + 1)
        changes.change(key, same, command.cause, {**command.evidence, "unfit": ", ".join(unfit)})
        return refuse(
            "STALE_EPOCH",
            f"fenced or restarted since: {', '.join(unfit)}; now epoch {same.epoch}",
            epoch=same.epoch,
        )
    # no change is also a change, so that the proposer sees a newer epoch
    new = replace(elect(moved, config, members, changes.is_live, drains=changes.drains), epoch=partition.epoch + 1)
    assert new.leader == command.node
    changes.change(key, new, command.cause, command.evidence)
    return AlterIsrAnswer(new.epoch, new.isr)


@applies(ReplaceLeaders)
def replace_leaders(changes: ChangeSet, command: ReplaceLeaders) -> Done:
    """Elect other leaders for partitions whose leader was reported dead. The old leader leaves the ISR in the same
    change: no replica fetches in its epoch any more, so it commits nothing, and the new leader's high watermark does
    not wait for it. A partition that has changed since the report is left alone; so is one in which no other replica
    could lead without loss, since the reported leader may be alive. Always returns ``Done``."""
    ranks = ranks_by_server(command.ranks)
    for part in command.parts:
        key = TopicPartition(part.topic_id, part.partition)
        partition = changes.state.partition(*key)
        if partition is None or (partition.leader, partition.leader_epoch, partition.epoch) != (
            command.leader,
            part.leader_epoch,
            part.epoch,
        ):
            continue
        config, others = changes.state.topics[part.topic_id].config, without(partition.isr, command.leader)
        sealable = config.commit_rule != "quorum" or can_be_sealed(partition, partition.isr, changes.is_live)
        if sealable and any(map(changes.is_live, others)):
            isr = remaining_isr(partition, config, command.leader)
            new = elect(partition, config, isr, changes.is_live, drains=changes.drains, renew=True, ranks=ranks)
            evidence = part.evidence | passed_over(partition, new, command.ranks)
            changes.change(key, new, "leader_reported", evidence)
    return Done()


@applies(LeaveParts)
def leave_parts(changes: ChangeSet, command: LeaveParts) -> Done | TidelogError:
    """Take a server out of leadership and ISR of partitions, at its own request, and elect other leaders. A partition
    that has changed since, or in which no other replica can lead, is skipped. With ``lost`` none is skipped: each
    partition begins a newer epoch, in which the server does not count or leads by an unclean election, so that no
    older ISR proposal counts any more. With ``ready`` the named successors lead instead (``pass_on``). Refused with
    ``FENCED_BROKER_EPOCH`` if the server's incarnation is over, and, only with ``lost``, with ``STALE_EPOCH`` if a
    partition has changed. Returns ``Done`` otherwise."""
    if command.ready:
        return pass_on(changes, command)
    node = command.node
    if not changes.state.is_incarnation(node, command.broker_epoch):
        return refuse("FENCED_BROKER_EPOCH", f"{node} has begun another incarnation")
    parts = []
    for part in dict.fromkeys(command.parts):
        key = TopicPartition(part.topic_id, part.partition)
        partition = changes.state.partition(*key)
        if partition is not None and (partition.leader_epoch, partition.epoch) == (part.leader_epoch, part.epoch):
            if node in partition.replicas + partition.learners:
                parts.append((key, partition))
        elif command.lost:
            return refuse("STALE_EPOCH", f"partition {key.partition} of {key.topic_id} is not in epoch {part.epoch}")
    evidence = {"node": node, "reason": command.reason}
    chosen = partial(elect, is_live=changes.is_live, drains=changes.drains, ranks=ranks_by_server(command.ranks))
    for key, partition in parts:
        config = changes.state.topics[key.topic_id].config
        if command.lost:
            new = chosen(partition, config, partition.isr, lost=node, wiped=True)
            new = new if new != partition else replace(partition, epoch=partition.epoch + 1)
            changes.change(key, new, "data_lost", evidence | passed_over(partition, new, command.ranks))
        elif is_recovering(partition, config):
            continue  # no server leads, and its promise holds
        elif node in partition.isr and can_take_over(partition, config, node, changes.is_live):
            quorum = config.commit_rule == "quorum"
            isr = partition.isr if quorum else without(partition.isr, node)
            new = chosen(partition, config, isr, renew=partition.leader == node, leaving=node)
            changes.change(key, new, "handed_over", evidence | passed_over(partition, new, command.ranks))
    return Done()


@applies(ElectSealed)
def elect_sealed_parts(changes: ChangeSet, command: ElectSealed) -> Done:
    """Elect the leaders that the command names, for partitions whose old epochs are sealed or that await reports
    after a rescue. A partition is skipped if it is not sealed in this leader epoch, if a server whose report was
    counted has restarted or lost its data, or if the new leader is not live. Always returns ``Done``."""
    for part in command.parts:
        key = TopicPartition(part.topic_id, part.partition)
        partition = changes.state.partition(*key)
        if partition is None or not partition.sealing or partition.leader_epoch != part.leader_epoch:
            continue
        config = changes.state.topics[part.topic_id].config
        recovering = is_recovering(partition, config)
        lost = [n for n in partition.replicas if n not in partition.isr + partition.elr]
        promised = [n for n in partition.isr if n not in partition.doubtful]
        counts = [m.node not in lost if recovering else m.node in promised for m in part.sealed_by]
        hold = all(counts) and all(changes.state.is_incarnation(m.node, m.broker_epoch) for m in part.sealed_by)
        if hold and changes.is_live(part.leader):
            elected = elect_recovered if recovering else elect_sealed
            cause = "recovered" if recovering else "sealed"
            changes.change(key, elected(partition, part.leader, part.above), cause, part.evidence)
    return Done()
