"""Words for the state of a partition and for its events, as an operator on call wants to read them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from tidelog.explain.partition_state import (
    LOSSES,
    is_unclean_election,
    needed_in_sync,
    refuses_all,
    tells_of_loss,
)

if TYPE_CHECKING:
    from tidelog.wire.messages import ControllerInfo, HistoryEntry, PartitionInfo, TopicInfo


def partition_of(where: str) -> tuple[str, int]:
    """Parse ``TOPIC/PARTITION``, such as ``orders/0``, and return (topic, number). Raises ``click.BadParameter`` if
    the text has another form."""
    name, _, number = where.rpartition("/")
    if not name or not (number.isascii() and number.isdigit()):
        raise click.BadParameter(f"{where!r} is not TOPIC/PARTITION, such as orders/0")
    return name, int(number)


def clock(entry: HistoryEntry) -> str:
    """Return the time of a history's entry as local time of day with milliseconds, after the date unless that is
    today."""
    return clock_time(entry.time_ms)


def clock_time(ms: int) -> str:
    """Return a time in milliseconds since 1970 as local time of day with milliseconds, after the date unless that is
    today."""
    at = datetime.fromtimestamp(ms / 1000)
    day = "" if at.date() == datetime.now().date() else at.strftime("%Y-%m-%d ")
    return day + at.strftime("%H:%M:%S.%f")[:-3]


def refill_in_words(one: ControllerInfo) -> str:
    """Describe how far the controllers have refilled the log of a controller that runs on an old copy of its disk."""
    if not one.refill_to:
        return "waits for an active controller to refill it"
    return f"being refilled, at index {max(one.match, 0)} of {one.refill_to}"


def state_in_words(topic: TopicInfo, partition: PartitionInfo) -> list[str]:
    """Describe what is unusual about a partition's present state, in a list with a sentence for each; an empty list
    if all is well. If it has no leader, or its leader refuses writes, that comes first."""
    words = []
    if not partition.leader:
        words.append(f"no leader: {_why_no_leader(topic, partition)}")
    elif refuses_all(topic, partition):
        least = needed_in_sync(topic, partition)
        words.append(f"{len(partition.isr)} in sync of {least} that writes with acks all need: they are refused")
    if partition.leader and partition.elr:
        many = len(partition.elr) > 1
        words.append(
            f"{', '.join(partition.elr)} left the in-sync set when it was too small to commit anything: nothing "
            f"committed is missing there, {'they' if many else 'it'} may lead"
        )
    if partition.paused:
        words.append("paused: nothing is written, read or copied; 'tidelog topics resume' ends that")
    if partition.read_only:
        words.append("read-only: no records are taken; 'tidelog topics set-readonly --off' ends that")
    if partition.successor:
        words.append(f"leadership is being transferred to {partition.successor}")
    if partition.target:
        words.append(f"being reassigned to {', '.join(partition.target)}")
    if partition.learners:
        words.append(f"copied, beside the replicas, by {', '.join(partition.learners)}")
    return words


def doubt_in_words(partition: PartitionInfo, entries: Iterable[HistoryEntry]) -> str:
    """Describe which copies of a partition have a doubtful tail, from which offset on, and what they wait for; "" if
    there are none. The offsets come from ``entries``, the partition's history."""
    if not partition.doubtful:
        return ""
    starts = {e.evidence["node"]: e.evidence["start"] for e in entries if e.cause == "tail_doubtful"}
    named = [f"{node} from offset {starts[node]} on" if node in starts else node for node in partition.doubtful]
    others = [node for node in (*partition.isr, *partition.elr) if node not in partition.doubtful]
    if partition.leader:
        waits = f"gives up its tail for that of {partition.leader}, when that has answered"
    elif others:
        waits = f"waits for {' or '.join(others)}, which may hold what is missing"
    else:
        waits = "the other replicas are asked for what is missing; those that do not answer are waited for"
    return f"doubtful: {', '.join(named)}; {waits}"


def lost_offsets_in_words(entries: Iterable[HistoryEntry]) -> list[str]:
    """Describe each report of lost or possibly lost records in a partition's history: the offsets and the time of the
    report. Returns a list with a sentence for each, empty if there are none."""
    lost = [e for e in entries if e.event in LOSSES]
    return [
        f"{LOSSES[e.event]}: offsets {e.evidence['start']} up to {e.evidence['end']}, at {clock(e)}" for e in lost
    ]


def awaited_in_words(partition: PartitionInfo, entries: Iterable[HistoryEntry]) -> str:
    """Describe which replicas' reports a partition without a leader waits for since a rescue of the controllers; ""
    if it waits for none, or ``entries``, its history, does not say."""
    awaiting = next((e for e in reversed(tuple(entries)) if e.event == "awaiting"), None)
    return event_in_words(awaiting) if awaiting is not None and partition.sealing and not partition.leader else ""


def _why_no_leader(topic: TopicInfo, partition: PartitionInfo) -> str:
    """Describe why a partition has no leader, what it waits for, and which setting would let another replica lead
    it."""
    configure = f"'tidelog topics configure {topic.name} unclean_election=true'"
    allow = f"{configure} lets one lead that may lack records"
    if topic.config["unclean_election"] == "true":
        allow = "or for any replica (unclean_election)"
    if partition.sealing and topic.config["commit_rule"] != "quorum":
        return (
            f"after a rescue, waiting until enough of {', '.join(partition.replicas)} have reported what they know"
            f" ('tidelog why' says who has not); {allow}"
        )
    if topic.config["commit_rule"] == "quorum":
        if 2 * len(partition.isr) > len(partition.replicas):
            return f"waiting until a majority of {', '.join(partition.isr)} has told how far its log reaches"
        return f"a majority of {', '.join(partition.replicas)} has lost its data; {allow}"
    holders = (*partition.isr, *partition.elr)
    if partition.doubtful:
        others = [node for node in holders if node not in partition.doubtful]
        doubt = f"the end of the log on {', '.join(partition.doubtful)} is doubtful: some of it may be missing there"
        waits = f"waiting for {' or '.join(others)}" if others else "they ask each other for what is missing"
        return f"{doubt}; {waits}; {allow}"
    if {*holders} >= {*partition.replicas}:  # nobody else could be elected, so no setting helps while they are down
        leads = "it leads" if topic.config["unclean_election"] == "true" else f"{configure} has it lead"
        lost = "the disk is lost, start the server" if len(holders) == 1 else "all disks are lost, start one of them"
        return (
            f"waiting for {' or '.join(holders)}: nothing committed is missing there, and no other server has a copy;"
            f" if {lost} with an empty one: then {leads} without the records"
        )
    if holders:
        return f"waiting for {' or '.join(holders)}: nothing committed is missing there; {allow}"
    return f"whoever held everything committed has lost data; {allow}"


def event_in_words(entry: HistoryEntry) -> str:
    """Describe an entry of a partition's history in a sentence: what happened, and what that means for its records.
    Returns "" for entries whose event and cause need no explanation."""
    facts = entry.evidence
    if entry.event == "refused":
        return f"{facts['asked_by'] or 'somebody'} asked for {facts['op']}: {facts['message']} ({entry.cause})"
    if entry.event == "awaiting":
        down = f"; down: {facts['down']}" if facts["down"] else ""
        return f"reported: {facts['reported'] or 'nobody'}; waiting for one or more of {facts['awaited']}{down}"
    if entry.event == "records_possibly_lost" and entry.cause == "doubtful_tail":
        return (
            f"{facts['node']} opened its log without offsets {facts['start']} up to {facts['end']}, which may have"
            " been committed: a batch there is whole on no member"
        )
    if entry.event in LOSSES:
        reason = (
            "the leader lacked them (unclean election)"
            if entry.cause == "unclean_election"
            else "they came from a leader that did not wait for copies (commit_rule leader)"
        )
        kind = "committed records" if entry.event == "records_lost" else "records that may have been committed"
        return f"{facts['node']} cut {facts['count']} {kind}, offsets {facts['start']} up to {facts['end']}: {reason}"
    if entry.cause == "unclean_election":
        before = facts.get("in_sync_before") or "nobody"
        return (
            f"unclean election: nobody was live who held everything committed (in sync was {before}); "
            f"{entry.leader} leads with what it has, records may be lost"
        )
    if entry.event == "held_back":
        return (
            f"{entry.leader} is reported, but this partition had {facts['elections']} elections by reports in 20 s:"
            " the next one waits until it has been reported for a session time-out"
        )
    if worse := facts.get("passed_over", "").split():
        ranks = "; ".join(f"{node}: {facts[f'rank_{node}']}" for node in worse)
        first = ", ".join(worse)
        return f"{entry.leader} leads though {first} came first in replica order: its rank is better ({ranks})"
    if facts.get("elected_from") == "elr":
        return f"{entry.leader} was eligible (ELR): nothing committed is missing there"
    if "data" in facts:
        return f"the data directory of {facts['node']} was {facts['data']}: it vouches for nothing"
    if moved := _move_in_words(entry):
        return moved
    return {
        "rescue": "the metadata went back: nobody leads before the replicas have reported what they know",
        "recovered": f"{entry.leader} has everything, as the reports say ({facts.get('rule')})",
        "sealing": "every replica stops taking records of the old leader; the one that reaches furthest will lead",
        "data_lost": f"{facts.get('node')} says that its copy is damaged",
    }.get(entry.event if entry.event == "sealing" and entry.cause != "rescue" else entry.cause, "")


def change_in_words(entry: HistoryEntry, before: HistoryEntry | None) -> str:
    """Describe in a sentence what an entry of a history changed against the entry ``before`` it, and why, in the
    words of the timeline. ``before`` is None for the first entry. An entry has less detail than the timeline, so some
    changes are described less exactly."""
    facts = entry.evidence

    def state(of: HistoryEntry) -> dict[str, Any]:
        replicas = of.evidence.get("replicas", " ".join(of.isr)).split()
        return {
            "replicas": replicas,
            "isr": list(of.isr),
            "leader": of.leader or None,
            "leader_epoch": of.leader_epoch,
        }

    after = state(entry) | {"successor": facts.get("to"), "learners": facts.get("learners", "").split()}
    after |= {"target": facts.get("reassigned_to", "").split(), "elr": facts.get("elr", "").split()}
    was = {} if before is None else {"isr": list(before.isr), "leader": before.leader or None}
    record = {"kind": entry.event, "before": was, "after": after, "evidence": facts}
    from tidelog.timeline.sentences import change, reason

    return f"{change(record)}, because {reason(entry.cause, facts)}"


def _move_in_words(entry: HistoryEntry) -> str:
    """Describe an entry of a history that moves a leadership or replicas: from where to where, and at whose request.
    Returns "" for any other entry."""
    facts = entry.evidence
    if entry.event == "transfer_began":
        wish = {
            "operator": f"{facts.get('asked_by', 'an operator')} wants it",
            "preferred_leader": f"{facts.get('to')} is the preferred replica",
            "draining": f"{facts.get('from')} is being drained",
            "reassignment": f"{facts.get('from')} is to be no replica any more",
        }.get(entry.cause, entry.cause)
        return f"{facts.get('from')} takes no more records until {facts.get('to')} has all that there are: {wish}"
    return {
        "transferred": f"{facts.get('to')} had everything that {facts.get('from')} had; nothing is lost",
        "transfer_timed_out": f"{facts.get('successor')} did not get to the log's end in {facts.get('waited_s')} s:"
        f" {entry.leader} goes on leading, nothing is lost",
        "rebalance": f"rebalanced ({facts.get('sake')}): the replicas are to be"
        f" {facts.get('reassigned_to') or facts.get('replicas')}",
        "reassign": f"the replicas are to be {facts.get('reassigned_to')}",
        "reassignment_cancelled": f"the replicas are to be {facts.get('reassigned_to')}, as they were",
        "reassigned": f"{facts.get('target')} are in sync: {facts.get('gone')} is a replica no more",
    }.get(entry.cause, "")


def elections_in_words(entries: Iterable[HistoryEntry]) -> tuple[str, str]:
    """Describe the unclean elections in a partition's history: how many there were, and what the last one means for
    records; and as a second sentence why it came to that. Both are "" if there were none."""
    from tidelog.timeline.sentences import reason

    unclean = [entry for entry in entries if is_unclean_election(entry)]
    if not unclean:
        return "", ""
    last = unclean[-1]
    before = last.evidence.get("in_sync_before") or "nobody"
    many = f"{len(unclean)} unclean elections, the last" if len(unclean) > 1 else "unclean election"
    what = (
        f"{many} at {clock(last)}: {last.leader} was elected with what it had, so records that had been acknowledged"
        f" may be missing (in sync was {before})"
    )
    return what, reason(last.cause, last.evidence)


def losses_in_words(entries: Iterable[HistoryEntry]) -> list[str]:
    """Describe the unclean elections in a partition's history, and the records that were lost or possibly lost, in a
    list with a sentence for each; an empty list if there are none."""
    return [f"at {clock(entry)} {event_in_words(entry)}" for entry in entries if tells_of_loss(entry)]


def waits_in_words(partition: PartitionInfo) -> list[str]:
    """Describe the transaction for which readers of committed records wait in a partition, as a list with one
    sentence; an empty list if they wait for none."""
    stable = partition.stable
    if stable is None:
        return []
    if stable.producer_epoch < 0:
        why = f"the end of the transaction of producer {stable.producer_id} is written, and not committed yet"
    else:
        why = f"the transaction of producer {stable.producer_id} epoch {stable.producer_epoch} is open"
    age = f"at least {stable.age_ms / 1000:.1f} s"  # each leader measures it anew
    return [f"readers of what is committed have waited at {stable.offset} for {age}: {why}"]
