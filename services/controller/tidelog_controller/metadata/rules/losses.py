"""Commands that change no partition: reports of records that a server had to cut, and, for the timeline, the group of
controllers and the events that are in its topic."""

from __future__ import annotations

from dataclasses import fields, replace

from tidelog.errors import TidelogError, refuse
from tidelog.feature_levels import POSSIBLE_LOSSES
from tidelog.types import TopicPartition
from tidelog.wire.messages import ControllerMember, Done, ReportLoss

from tidelog_controller.metadata.changeset import ChangeSet
from tidelog_controller.metadata.commands import ForgetEvents, NoteControllers, RecordLoss
from tidelog_controller.metadata.registry import applies
from tidelog_controller.metadata.state import MetadataState


def plan_loss(state: MetadataState, report: ReportLoss, wall_ms: int) -> RecordLoss | TidelogError:
    """Return the command that records a server's report of lost records, or the error ``MALFORMED`` if the range of
    offsets is empty. Below feature level ``POSSIBLE_LOSSES`` every loss is recorded as certain."""
    if report.end <= report.start:
        return refuse("MALFORMED", f"no records from {report.start} to {report.end}")
    values = {field.name: getattr(report, field.name) for field in fields(report)}
    if state.level < POSSIBLE_LOSSES:
        values["possible"] = False
    return RecordLoss(wall_ms, **values)


@applies(NoteControllers)
def note_controllers(changes: ChangeSet, command: NoteControllers) -> Done:
    """Record the group of controllers and the active one. Every controller that joined, left or changed its URL or
    vote makes one event in the timeline; so does a new active controller or a new term. No event is recorded if
    nothing changed. Always returns ``Done``."""
    timeline = changes.timeline
    known = {member.node: member for member in timeline.controllers}
    group = tuple(ControllerMember(m.node, m.url, m.voter) for m in command.members)
    evidence = {"term": str(command.term)}
    for member in group:
        was = known.pop(member.node, None)
        if was != member:
            kind = "controller_joined" if was is None else "controller_changed"
            changes.record_event(kind, "group", evidence, was, member, node=member.node)
    for node, was in known.items():
        changes.record_event("controller_left", "group", evidence, was, None, node=node)
    if (command.active, command.term) != (timeline.active, timeline.term):
        change = {**evidence, "before": timeline.active, "term_before": str(timeline.term)}
        now = next((member for member in group if member.node == command.active), None)
        changes.record_event("controller_active", "elected", change, now, now, node=command.active)
    changes.timeline = replace(timeline, controllers=group, active=command.active, term=command.term)
    return Done()


@applies(ForgetEvents)
def forget_events(changes: ChangeSet, command: ForgetEvents) -> Done:
    """Drop the events up to the number in the command from the metadata, since they are committed in the topic
    ``__timeline``. Always returns ``Done``."""
    changes.timeline = changes.timeline.without(command.number)
    return Done()


@applies(RecordLoss)
def record_loss(changes: ChangeSet, command: RecordLoss) -> Done | TidelogError:
    """Record in the history of a partition that a server has cut records that were committed, or may have been. A
    loss that is recorded already is not recorded again. Refused with ``UNKNOWN_TOPIC``, with ``FENCED_BROKER_EPOCH``
    if the server has begun another incarnation, or with ``NOT_REPLICA`` if it has no copy of the partition. Returns
    ``Done`` otherwise."""
    key = TopicPartition(command.topic_id, command.partition)
    partition = changes.state.partition(*key)
    if partition is None:
        return refuse("UNKNOWN_TOPIC", f"no partition {command.partition} of topic id {command.topic_id}")
    if not changes.state.is_incarnation(command.node, command.broker_epoch):
        return refuse("FENCED_BROKER_EPOCH", f"{command.node} has begun another incarnation")
    if command.node not in (*partition.replicas, *partition.learners):
        return refuse("NOT_REPLICA", f"{command.node} has no copy of this partition")
    evidence = {
        "node": command.node,
        "start": str(command.start),
        "end": str(command.end),
        "count": str(command.end - command.start),
        "leader_epoch": str(command.leader_epoch),
    }
    history = changes.state.history[key.topic_id][key.partition]
    event = "records_possibly_lost" if command.possible else "records_lost"
    if not any(entry.event == event and entry.evidence == evidence for entry in history):
        rule = changes.state.topics[key.topic_id].config.commit_rule
        changes.record_partition_event(
            key, event, "commit_rule" if rule == "leader" else "unclean_election", evidence
        )
    return Done()
