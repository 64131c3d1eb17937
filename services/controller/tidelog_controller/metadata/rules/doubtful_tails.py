"""Copies with a doubtful tail: the rules of ``NoteDoubt`` (decision 20).

A member of ISR or ELR whose tail is doubtful stays a member, and is treated as away: it is not elected, and counts in
no majority. So another member that is back leads; while none is, the partition waits, as it does for a member that
does not run. A member that has settled its doubt counts again, with what it holds then. A member that gives up its
tail for a leader that serves leaves ISR and ELR before it cuts its log (decision 10).
"""

from __future__ import annotations

from dataclasses import fields, replace

from tidelog.errors import TidelogError, refuse
from tidelog.feature_levels import DOUBTFUL_TAILS
from tidelog.types import TopicPartition
from tidelog.wire.messages import Done, ReportDoubt

from tidelog_controller.metadata.changeset import ChangeSet
from tidelog_controller.metadata.commands import NoteDoubt
from tidelog_controller.metadata.registry import applies
from tidelog_controller.metadata.rules.leader_election import elect, without
from tidelog_controller.metadata.state import MetadataState

STEPS = ("doubtful", "settled", "given_up")
"""The states of a doubtful tail that a server may report, as in ``ReportDoubt``."""


def plan_doubt(state: MetadataState, message: ReportDoubt, wall_ms: int) -> NoteDoubt | TidelogError:
    """Return the command that records a server's report about the doubtful tail of its copy. Return an error instead:
    ``UNSUPPORTED_LEVEL`` below feature level ``DOUBTFUL_TAILS``, ``MALFORMED`` for an unknown step or impossible
    offsets."""
    if state.level < DOUBTFUL_TAILS:
        text = f"the cluster is at feature level {state.level}: doubtful tails are known from {DOUBTFUL_TAILS} on"
        return refuse("UNSUPPORTED_LEVEL", text, level=state.level)
    if message.step not in STEPS or message.end < message.start:
        return refuse("MALFORMED", f"step {message.step!r}, offsets {message.start} to {message.end}")
    return NoteDoubt(wall_ms, **{field.name: getattr(message, field.name) for field in fields(message)})


@applies(NoteDoubt)
def note_doubt(changes: ChangeSet, command: NoteDoubt) -> Done | TidelogError:
    """Record that the copy of a server has a doubtful tail, has settled it, or gives it up. A doubtful member of ISR
    or ELR counts as not live until it has settled; a server that gives up its tail leaves both. Other leaders are
    elected where needed, and every step begins a newer epoch. Refused if the partition does not exist or has another
    epoch, or if the server has no copy of it or has begun another incarnation. Returns ``Done`` otherwise."""
    key, node = TopicPartition(command.topic_id, command.partition), command.node
    partition = changes.state.partition(*key)
    if partition is None:
        return refuse("UNKNOWN_TOPIC", f"no partition {command.partition} of topic id {command.topic_id}")
    if not changes.state.is_incarnation(node, command.broker_epoch):
        return refuse("FENCED_BROKER_EPOCH", f"{node} has begun another incarnation")
    if node not in partition.replicas + partition.learners:
        return refuse("NOT_REPLICA", f"{node} has no copy of this partition")
    if (partition.leader_epoch, partition.epoch) != (command.leader_epoch, command.epoch):
        return refuse("STALE_EPOCH", f"the epoch is {partition.epoch}, not {command.epoch}", epoch=partition.epoch)
    config = changes.state.topics[key.topic_id].config
    evidence = {"node": node, "start": str(command.start), "end": str(command.end)}
    isr, doubtful, lost, renew = partition.isr, without(partition.doubtful, node), None, False
    if command.step == "doubtful":
        doubtful, renew = (*doubtful, node), partition.leader == node
        if config.commit_rule != "quorum":
            isr = without(isr, node) or isr
    elif command.step == "given_up":
        lost, renew = node, partition.leader == node
    new = elect(
        partition, config, isr, changes.is_live, drains=changes.drains, renew=renew, lost=lost, doubtful=doubtful
    )
    if new is partition:
        new = replace(partition, epoch=partition.epoch + 1)
    if command.step == "settled" and command.end > command.start:
        changes.record_partition_event(key, "records_possibly_lost", "doubtful_tail", evidence)
    changes.change(key, new, f"tail_{command.step}", evidence)
    return Done()
