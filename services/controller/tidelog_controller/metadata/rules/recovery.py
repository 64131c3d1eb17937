"""Recovery of the metadata after they went back: a rescue, or stores that were restored from an old copy.

A rescued survivor knows a past of the cluster. What was decided since is lost, but replica servers, gateways and
clients have acted on it. Two rules keep that from doing harm.

**Every number that must not be given twice jumps** (``recovered``), far beyond what can have been given since: the
index, and with it broker epochs and the ids of ticket keys; epoch and leader epoch of every partition; producer ids;
numbers of events. What they jump from is the survivor's number or, where that is greater, the time since 2025: so two
rescues from one copy of a store differ, too. Topic ids are random.

**No leader is elected from what the survivor believes** (from feature level ``RECOVERY`` on). Every partition is
*sealed*, whatever its commit rule: its replicas take nothing of earlier epochs any more, and report (``SealPart``)
how far their logs reach, the highest leader epoch that they know, and, where they led in that epoch until now, which
servers could be elected after them. Meanwhile of a partition

    isr    holds everything that was committed when the survivor's knowledge ends (its ISR and ELR then), in K below
    elr    the other replicas: what they have acknowledged since they still have

A replica that registers and may have lost something leaves both. With n replicas and ``min_insync_replicas`` m one is
elected as soon as one of these rules allows it:

1. *The last leader*: a server led in the highest leader epoch that any server reports, in the same process until now.
   Every server that could be elected after it (its maximal ISR and ELR) has reported, too. Then no server led after
   it, since a leader writes down its leader epoch before it appends. It leads on, also where the survivor does not
   know of the reassignment that made it a replica.
2. *Enough copies*: n - m + 1 replicas, one of them of K, have reported a log that is not empty of all knowledge. The
   greatest (last epoch, log end) leads. What was committed before is on every member of K. What was committed since
   is durable on m replicas, so on one of those that reported; and whatever a replica has that is the greatest, the
   leader of its last epoch had all that was committed before (Raft 5.4.1; flexible quorums). But not where a server
   that is no replica has a copy that is greater.
3. *Everybody*: every replica has reported, and every server that there is has been live for a session time-out, so
   that one which has a copy by a later reassignment would have reported it, too. So an empty log is one that never
   had more, or was cut. Of the replicas the greatest (last epoch, log end, highest leader epoch) leads, unless a
   server that is no replica has a copy that is greater.

Else the partition waits for the others, and ``tidelog why`` names them. With commit rule ``quorum`` a majority of the
members of the ISR decides as ever (``active/leader_replacement.py``). An unclean election is held where the topic
allows it and fewer replicas are live than *enough copies* needs. What is not covered: a topic whose replicas were
made *more* since, of which only the first are known to the survivor; and a replica that has lost its disk since and
has not registered afterwards with a directory that says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tidelog.feature_levels import RECOVERY
from tidelog.types import (
    REPORTED_IDS_END,
    SHARE_IDS,
    SHARES,
    YEAR_2025_MS,
    NodeId,
    PartitionState,
    TopicConfig,
    TopicPartition,
    share_of,
)
from tidelog.wire.messages import Done, SealPart

from tidelog_controller.metadata.changeset import ChangeSet
from tidelog_controller.metadata.rules.leader_election import copies_needed
from tidelog_controller.metadata.rules.ticket_keys import keys_after_rescue
from tidelog_controller.metadata.state import MetadataState

EPOCH_JUMP, MAX_CLOCK_EPOCH = 1 << 18, 1 << 31
"""The jump of epochs and leader epochs, and the bound of what the clock yields for them: the seconds since 2025. A
leader epoch has 32 bits in a batch."""
INDEX_JUMP, MAX_CLOCK_INDEX = 1 << 36, 1 << 51
"""The jump of the index and of the numbers of events, and the bound of what the clock yields: 256 for each ms since
2025."""
ID_JUMP, MAX_CLOCK_ID = 1 << 40, REPORTED_IDS_END
"""The jump of producer ids, and the bound of what the clock yields: 4096 for each ms since 2025. Each of the three
jumps is as far as three days by the clock, so the clocks of controllers may differ by that much."""


def _since_2025(wall_ms: int) -> int:
    return max(0, wall_ms - YEAR_2025_MS)


def first_free_id(next_id: int, wall_ms: int) -> int:
    """Return the lowest producer id that may be given away now: the greater of the counter ``next_id`` and the number
    that the clock yields (4096 ids for each ms since 2025). A block of a share may begin later (``first_of_share``).
    The number of the clock is bounded, so that a clock that is wrong by decades does not use up the ids."""
    return max(next_id, min(_since_2025(wall_ms) << 12, MAX_CLOCK_ID))


def first_of_share(first: int, count: int, share: int) -> int:
    """Return the lowest id from ``first`` on with which a block of ``count`` ids can begin that all belong to the
    share ``share`` (``tidelog.types.share_of``). At most ``SHARES`` x ``SHARE_IDS`` ids are skipped, which is 8 s by
    the clock."""
    if share_of(first) == share and first % SHARE_IDS + count <= SHARE_IDS:
        return first
    cycle = SHARES * SHARE_IDS
    begin = first - first % cycle + share * SHARE_IDS
    return begin if begin >= first else begin + cycle


def id_beyond(next_id: int, wall_ms: int) -> int:
    """Return a producer id greater than any that can have been given away after a state in which ``next_id`` was the
    next."""
    return first_free_id(next_id, wall_ms) + ID_JUMP


def index_beyond(index: int, wall_ms: int) -> int:
    """Return an index of the log, or number of an event, greater than any that can have been reached after
    ``index``."""
    return max(index, min(_since_2025(wall_ms) << 8, MAX_CLOCK_INDEX)) + INDEX_JUMP


def epoch_beyond(epoch: int, wall_ms: int) -> int:
    """Return an epoch, or leader epoch, greater than any that can have been reached after ``epoch``."""
    return max(epoch, min(_since_2025(wall_ms) // 1000, MAX_CLOCK_EPOCH)) + EPOCH_JUMP


def recovered(state: MetadataState, index: int, wall_ms: int) -> MetadataState:
    """Return the metadata ``state`` of a rescued survivor as they are after entry ``index``: all numbers have jumped,
    no partition has a leader, and every server has to register again. The event ``metadata_recovered`` is
    recorded."""
    changes = ChangeSet(state, index, wall_ms)
    changes.next_producer_id = id_beyond(state.next_producer_id, wall_ms)
    changes.timeline = replace(state.timeline, last=index_beyond(state.timeline.last, wall_ms), pending=())
    changes.ticket_keys = keys_after_rescue(state.ticket_keys, index)
    evidence = {"index_before": str(state.index), "index": str(index)}
    changes.record_event("metadata_recovered", "rescue", evidence, None, None)
    for server in state.servers.values():
        changes.renew_server(replace(server, broker_epoch=index, fenced=False))
    for topic in state.topics.values():
        for number, partition in enumerate(topic.partitions):
            new = _recovered(partition, topic.config, state.level, wall_ms)
            changes.recover(TopicPartition(topic.topic_id, number), new, evidence)
    return changes.finish(Done()).state


def _recovered(partition: PartitionState, config: TopicConfig, level: int, wall_ms: int) -> PartitionState:
    """Return a partition as it is after a rescue: without a leader, with epochs that have jumped, and from feature
    level ``RECOVERY`` on sealed until its replicas have reported."""
    new = replace(
        partition,
        leader=None,
        leader_epoch=epoch_beyond(partition.leader_epoch, wall_ms),
        epoch=epoch_beyond(partition.epoch, wall_ms),
        last_leader=partition.leader or partition.last_leader,
        successor=None,
        departed=(),
        sealing=level >= RECOVERY or config.commit_rule == "quorum",
    )
    if level < RECOVERY or config.commit_rule == "quorum":
        return new
    known = (*partition.isr, *partition.elr)
    return replace(
        new,
        isr=tuple(node for node in partition.replicas if node in known),
        elr=tuple(node for node in partition.replicas if node not in known),
    )


@dataclass(frozen=True, slots=True)
class Choice:
    """The leader that a recovered partition gets, and the rule of this module that allows it: ``last_leader``,
    ``enough_copies`` or ``everybody``."""

    leader: NodeId
    rule: str


def choose(
    partition: PartitionState,
    config: TopicConfig,
    seals: Mapping[NodeId, SealPart],
    drains: Mapping[NodeId, bool],
    *,
    complete: bool = False,
) -> Choice | None:
    """Return the next leader of a partition that awaits reports after a rescue, and the rule that allows it; None
    while no rule does. ``seals`` are the reports of live servers in their present incarnations, including servers
    that have a copy and are no replicas. ``drains`` says which servers are being drained: among equals they come
    last. ``complete`` says that no other server can have a copy."""
    good = {node: seals[node] for node in (*partition.isr, *partition.elr) if node in seals}
    others = {node: part for node, part in seals.items() if node not in partition.replicas}
    last = _last_leader(good | others, seals)
    if last is not None:
        return Choice(last, "last_leader")
    copies = {node: part for node, part in good.items() if not is_blank(part)}
    if len(copies) >= copies_needed(partition, config) and any(node in copies for node in partition.isr):
        best = max(copies, key=lambda node: (_reach(copies[node]), not drains[node]))
        if all(_reach(part) <= _reach(copies[best]) for part in others.values()):
            return Choice(best, "enough_copies")
    if complete and partition.isr and all(node in good for node in partition.replicas):
        best = max(good, key=lambda node: (_reach(good[node]), good[node].highest_epoch, not drains[node]))
        if all(_reach(part) <= _reach(good[best]) for part in others.values()):
            return Choice(best, "everybody")
    return None


def _reach(part: SealPart) -> tuple[int, int]:
    return part.last_epoch, part.end


def _last_leader(able: Mapping[NodeId, SealPart], seals: Mapping[NodeId, SealPart]) -> NodeId | None:
    """Return the server of ``able`` that led in the highest leader epoch of all reports, and after which provably no
    server has led (rule 1 of this module); None if there is none."""
    highest = max((part.highest_epoch for part in seals.values()), default=-1)
    for node, part in able.items():
        after = [able.get(other) for other in part.could_follow]
        if not part.could_follow or part.highest_epoch != highest or None in after:
            continue
        if part.end == 0 or not any(other is not None and is_blank(other) for other in after):
            return node
    return None


def is_blank(part: SealPart) -> bool:
    """Return whether a reported log has no records and knows of no leader. Its server may have had another copy that
    is gone."""
    return part.end == 0 and part.highest_epoch < 0


def awaited(partition: PartitionState, seals: Mapping[NodeId, SealPart]) -> tuple[NodeId, ...]:
    """Return the replicas that have not reported, or whose reported log is blank, in replica order. The election of a
    leader may wait for any of them."""
    return tuple(node for node in partition.replicas if node not in seals or is_blank(seals[node]))
