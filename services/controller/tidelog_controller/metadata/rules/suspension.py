"""Partitions that take no records, or do nothing, at the request of an operator: read-only, and paused.

**Read-only**: the leader takes no batches, from when it receives the change on, and so do later leaders; what it took
before is committed as ever. A leader that the controllers cannot reach takes none once its session is over.

**Paused**: every replica closes the log, durably, and does nothing for it; nothing is written, read or copied, and no
replica is found to lag. Leader, ISR and ELR stay as they are but for what becomes of their servers: sessions that end
and servers that register go by the same rules as ever, so that a member of the ISR holds everything committed
whenever that was. A leader that is elected meanwhile does nothing either. With commit rule ``quorum`` the logs are
opened for as long as an old epoch is being sealed: without that no replica could be elected.

When it is resumed its leader leads on, in a new leader epoch as after a restart, since it takes the log as the disk
has it (R1). It alone need have all that was acknowledged, with commit rule ``leader`` or by ``leader`` acks: so no
other replica is given the leadership while none can copy from it, not even where its server is drained; that is done
by transfer afterwards. With ``quorum`` a majority has everything, and elects. No reassignment makes progress while
the partition is paused; one that has begun goes on afterwards."""

from __future__ import annotations

from dataclasses import replace

from tidelog.errors import TidelogError, refuse
from tidelog.types import PartitionState, TopicConfig, TopicPartition
from tidelog.wire.messages import Done, PauseTopic, SetReadOnly

from tidelog_controller.metadata.changeset import ChangeSet
from tidelog_controller.metadata.commands import Suspend
from tidelog_controller.metadata.registry import applies
from tidelog_controller.metadata.rules.leader_election import elect, lead_next
from tidelog_controller.metadata.state import MetadataState


def plan_suspension(state: MetadataState, request: SetReadOnly | PauseTopic, wall_ms: int) -> Suspend | TidelogError:
    """Return the command that makes the partitions in the request read-only or paused, or writable or active again.
    Return the error ``UNKNOWN_TOPIC`` if the topic or one of the partitions does not exist."""
    topic = state.topics.get(state.names.get(request.name, ""))
    if topic is None:
        return refuse("UNKNOWN_TOPIC", f"there is no topic named {request.name!r}")
    count = len(topic.partitions)
    unknown = [str(number) for number in request.partitions if not 0 <= number < count]
    if unknown:
        return refuse("UNKNOWN_TOPIC", f"{request.name} has partitions 0 to {count - 1}, and no {', '.join(unknown)}")
    what, wanted = ("paused", request.pause) if isinstance(request, PauseTopic) else ("read_only", request.read_only)
    return Suspend(wall_ms, topic.topic_id, tuple(dict.fromkeys(request.partitions)), what, wanted)


@applies(Suspend)
def suspend(changes: ChangeSet, command: Suspend) -> Done | TidelogError:
    """Make partitions read-only or paused, or writable or active again. A partition in the wanted state stays
    unchanged. Pausing withdraws a transfer of leadership. A resumed partition begins a new leader epoch. Refused with
    ``UNKNOWN_TOPIC`` if the topic is deleted. Returns ``Done`` otherwise."""
    topic = changes.state.topics.get(command.topic_id)
    if topic is None:
        return refuse("UNKNOWN_TOPIC", "the topic is deleted already")
    for number in command.partitions or range(len(topic.partitions)):
        key, old = TopicPartition(command.topic_id, number), topic.partitions[number]
        if command.what == "read_only":
            new = replace(old, read_only=command.wanted)
        elif command.wanted:
            new = replace(old, paused=True, successor=None)
        elif old.paused:
            new = _resumed(changes, replace(old, paused=False), topic.config)
        else:
            new = old
        if new != old:
            changes.change(key, replace(new, epoch=old.epoch + 1), "operator", {})
    return Done()


def _resumed(changes: ChangeSet, base: PartitionState, config: TopicConfig) -> PartitionState:
    """Return the resumed partition: its leader leads on in a new leader epoch; without a leader, or with commit rule
    ``quorum``, one is elected."""
    if base.leader is None or config.commit_rule == "quorum":
        return elect(base, config, base.isr, changes.is_live, drains=changes.drains, renew=True)
    return lead_next(base, base.leader)
