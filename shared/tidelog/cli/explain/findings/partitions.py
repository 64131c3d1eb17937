"""Findings about partitions: leaders, in-sync replicas, settings, and what their histories show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tidelog.cli.explain.findings.finding import MOST_NAMED, NOTE, PROBLEM, WARNING, Finding
from tidelog.cli.explain.histories import Histories
from tidelog.cli.explain.sentences import (
    awaited_in_words,
    doubt_in_words,
    lost_offsets_in_words,
    refuses_all,
    state_in_words,
)
from tidelog.wire.messages import HistoryEntry, MetadataAnswer, PartitionInfo, TopicInfo

OWN_REPLICAS = 3
"""Number of replicas that the cluster's own topics should have, if there are enough servers."""


def examine_partitions(metadata: MetadataAnswer, histories: Histories) -> Iterator[Finding]:
    """Yield findings about partitions. If several partitions have the same one, it is yielded once, and names the
    first ``MOST_NAMED`` and counts the others."""
    live = {server.node for server in metadata.servers if not server.fenced}
    kinds: dict[Finding, list[str]] = {}
    for topic in metadata.topics:
        for partition in topic.partitions:
            history = histories.get((topic.name, partition.partition), ())
            for kind in (*_kinds(topic, partition, live), *_history_kinds(topic, partition, history)):
                kinds.setdefault(kind, []).append(f"{topic.name}/{partition.partition}")
    for kind, names in kinds.items():
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        what = f"{', '.join(names[:MOST_NAMED])}{more}: {kind.what}"
        step = kind.next_step.replace("WHERE", names[0])
        yield replace(kind, what=what, next_step=step, about=(*kind.about, *names))


def _history_kinds(topic: TopicInfo, partition: PartitionInfo, history: Sequence[HistoryEntry]) -> Iterator[Finding]:
    """Yield findings that only the history of a partition shows: reports that it waits for after a rescue, doubtful
    tails, and lost records, as ``_kinds`` does."""
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
    for lost in lost_offsets_in_words(history):
        step = "'tidelog why WHERE' says which copy was cut: send again what the source of the records still has."
        yield Finding(WARNING, lost, step, "records-lost")


def _kinds(topic: TopicInfo, partition: PartitionInfo, live: set[str]) -> Iterator[Finding]:
    """Yield a finding for everything unusual in the present state of a partition, without the partition's name: equal
    ones of several partitions are one finding. In the next step ``WHERE`` stands for the name. ``live`` are the
    servers that are live."""
    behind = sorted(set(partition.replicas) - set(partition.isr))
    if partition.paused:
        step = f"'tidelog topics resume {topic.name}' ends that."
        yield Finding(NOTE, "paused: nothing is written or read", step, "partition-paused")
    elif partition.doubtful and not partition.leader:
        pass  # ``_history_kinds`` says more
    elif not partition.leader or refuses_all(topic, partition):
        words = state_in_words(topic, partition)[0]
        step = "'tidelog why WHERE' says how that came; start the servers that it names."
        cause = "in-sync-below-minimum" if partition.leader else "partition-without-leader"
        yield Finding(PROBLEM, words, step, cause, tuple(behind))
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
        yield Finding(NOTE, "read-only", step, "partition-read-only")
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
