"""Findings about partitions: leaders, in-sync replicas, settings, and what their histories show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tidelog.cli.explain.findings.finding import MOST_NAMED, NOTE, PROBLEM, WARNING, Finding
from tidelog.cli.explain.findings.snapshot import ClusterSnapshot
from tidelog.cli.explain.sentences import (
    awaited_in_words,
    change_in_words,
    clock,
    doubt_in_words,
    elections_in_words,
    lost_offsets_in_words,
    state_in_words,
)
from tidelog.explain.partition_state import refuses_all
from tidelog.explain.samples import total
from tidelog.wire.messages import HistoryEntry, PartitionInfo, TopicInfo

KNOWN_S = 7 * 86_400
"""Seconds for which records that were lost, or may have been, are reported."""
OWN_REPLICAS = 3
"""Number of replicas that the cluster's own topics should have, if there are enough servers."""
CHANGES: Mapping[str, Sequence[str]] = {
    "partition-paused": ("paused",),
    "partition-read-only": ("read_only",),
    "partition-without-leader": ("offline", "sealing"),
    "in-sync-below-minimum": ("isr_shrunk", "leader_elected", "copy_lost"),
    "replica-out-of-sync": ("isr_shrunk", "leader_elected", "copy_lost"),
}
"""By code of a finding: the events of a partition's history that bring about what it reports."""


def examine_partitions(view: ClusterSnapshot) -> Iterator[Finding]:
    """Yield findings about partitions. If several partitions have the same one, it is yielded once, and names the
    first ``MOST_NAMED`` and counts the others."""
    live = {server.node for server in view.metadata.servers if not server.fenced}
    kinds: dict[Finding, list[str]] = {}
    evidence: dict[Finding, str] = {}
    for topic in view.metadata.topics:
        for partition in topic.partitions:
            history = view.histories.get((topic.name, partition.partition), ())
            for one in (
                *_kinds(topic, partition, live, view),
                *_history_kinds(topic, partition, history, view.now_ms),
            ):
                kind = replace(one, evidence="")
                kinds.setdefault(kind, []).append(f"{topic.name}/{partition.partition}")
                seen = "; ".join(filter(None, (one.evidence, _last_change(kind.cause, history))))
                evidence.setdefault(kind, seen)
    for kind, names in kinds.items():
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        what = f"{', '.join(names[:MOST_NAMED])}{more}: {kind.what}"
        step = kind.next_step.replace("WHERE", names[0])
        yield replace(kind, what=what, next_step=step, about=(*kind.about, *names), evidence=evidence[kind])


def _last_change(cause: str, history: Sequence[HistoryEntry]) -> str:
    """Return in words when and why a partition came into the state that a finding of this code reports, as its
    history says; "" if the history has no such change, or the finding says it itself."""
    events = CHANGES.get(cause, ())
    for number in range(len(history) - 1, -1, -1):
        if history[number].event in events:
            before = history[number - 1] if number else None
            return f"since {clock(history[number])}: {change_in_words(history[number], before)}"
    return ""


def _refused(view: ClusterSnapshot, partition: PartitionInfo, code: str) -> str:
    """Return in words how many batches the leader of a partition has refused with this code, in all its partitions
    since it was started; "" if none."""
    count = total(view.pages.get(partition.leader, ""), "tidelog_replica_produce_errors_total", code=code)
    return f"{partition.leader} has refused {count:.0f} batches with {code}" if count else ""


def _history_kinds(
    topic: TopicInfo, partition: PartitionInfo, history: Sequence[HistoryEntry], now_ms: int
) -> Iterator[Finding]:
    """Yield findings that only the history of a partition shows: reports that it waits for after a rescue, doubtful
    tails, unclean elections and lost records, as ``_kinds`` does."""
    if awaited := awaited_in_words(partition, history):
        yield Finding(
            PROBLEM, f"sealed by a rescue: {awaited}", "Start those that have not reported.", "rescue-incomplete"
        )
    if doubt := doubt_in_words(partition, history):
        if partition.leader:
            yield Finding(
                WARNING,
                doubt,
                "Nothing: it fetches from the leader. 'tidelog why WHERE' shows the steps.",
                "tail-doubtful",
                partition.doubtful,
            )
        else:
            step = (
                "Start the servers that it names. If one is gone for good, with its disk: 'tidelog topics configure"
            )
            allow = f"{topic.name} unclean_election=true' cuts the tail and reports what is possibly lost."
            yield Finding(PROBLEM, doubt, f"{step} {allow}", "tail-doubtful", partition.doubtful)
    recent = [entry for entry in history if now_ms - entry.time_ms <= KNOWN_S * 1000]
    unclean, why = elections_in_words(recent)
    if unclean:
        step = (
            "'tidelog why WHERE' shows it. Send again what the source of the records still has; servers that come"
            " back report the offsets that they cut."
        )
        yield Finding(WARNING, unclean, step, "unclean-election", evidence=why)
    for lost in lost_offsets_in_words(history):
        step = "'tidelog why WHERE' says which copy was cut: send again what the source of the records still has."
        yield Finding(WARNING, lost, step, "records-lost")


def _kinds(topic: TopicInfo, partition: PartitionInfo, live: set[str], view: ClusterSnapshot) -> Iterator[Finding]:
    """Yield a finding for everything unusual in the present state of a partition, without the partition's name: equal
    ones of several partitions are one finding. In the next step ``WHERE`` stands for the name. ``live`` are the
    servers that are live."""
    behind = sorted(set(partition.replicas) - set(partition.isr))
    if partition.paused:
        step = f"'tidelog topics resume {topic.name}' ends that."
        refused = _refused(view, partition, "TOPIC_PAUSED")
        level = WARNING if refused else NOTE
        yield Finding(level, "paused: nothing is written or read", step, "partition-paused", evidence=refused)
    elif partition.doubtful and not partition.leader:
        pass  # ``_history_kinds`` says more
    elif not partition.leader or refuses_all(topic, partition):
        words = state_in_words(topic, partition)[0]
        step = "'tidelog why WHERE' says how that came; start the servers that it names."
        cause = "in-sync-below-minimum" if partition.leader else "partition-without-leader"
        yield Finding(PROBLEM, words, step, cause, tuple(behind) if partition.leader else partition.replicas)
    if behind and not partition.paused:
        down = [node for node in behind if node not in live]
        what = f"not in sync: {', '.join(behind)}" + (f" (down: {', '.join(down)})" if down else ", catching up")
        step = "Start what is down and wait; 'tidelog partitions list' shows how far it is."
        yield Finding(WARNING, what, step, "replica-out-of-sync", tuple(behind))
    if lost := [node for node in partition.learners if node not in live]:
        what = f"learners are down: {', '.join(lost)}"
        yield Finding(WARNING, what, "Start them, or 'tidelog topics learners WHERE'.", "learner-down", tuple(lost))
    if partition.target:
        step = "'tidelog partitions reassignments' shows how far that is."
        yield Finding(NOTE, "being reassigned", step, "reassignment-under-way")
    if partition.read_only:
        step = f"'tidelog topics set-readonly {topic.name} --off' ends that."
        refused = _refused(view, partition, "TOPIC_READ_ONLY")
        level = WARNING if refused else NOTE
        what = "read-only: no records are taken"
        yield Finding(level, what, step, "partition-read-only", evidence=refused)
    if topic.name.startswith("__") and len(partition.replicas) < min(OWN_REPLICAS, len(live)):
        more = sorted(live - set(partition.replicas))
        servers = ",".join((*partition.replicas, *more)[:OWN_REPLICAS])
        what = f"made when there were fewer servers: replicas only on {', '.join(partition.replicas)}"
        step = f"'tidelog partitions reassign WHERE {servers}', each; then 'tidelog topics configure"
        yield Finding(NOTE, what, f"{step} {topic.name} min_insync_replicas=2'.", "internal-topic-with-few-replicas")
    elif len(partition.replicas) == 1:
        what = f"a single replica, on {partition.replicas[0]}: lost with it"
        step = "'tidelog partitions reassign WHERE SERVER,SERVER,SERVER' makes more."
        yield Finding(NOTE, what, step, "single-replica")
