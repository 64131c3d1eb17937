"""Findings about what logs hold: damage, batches that no reader can decode, and copies that differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tidelog.cli.explain.findings.finding import MOST_NAMED, PROBLEM, WARNING, Finding
from tidelog.cli.explain.findings.snapshot import ClusterSnapshot
from tidelog.cli.explain.sentences import clock
from tidelog.wire.messages import DifferingCopies, HistoryEntry, PartitionInfo, UnreadablePlace


def examine_unreadable(view: ClusterSnapshot) -> Iterator[Finding]:
    """Yield one finding that names the batches that no reader can decode; none if there are none. Every replica of a
    partition reports the same batches, so duplicates are dropped."""
    names = {topic.topic_id: topic.name for topic in view.metadata.topics}
    places = sorted({replace(at, topic_id=names.get(at.topic_id, at.topic_id)) for at in view.unreadable}, key=_order)
    if not places:
        return
    counts = [int(metrics.get("tidelog_replica_unreadable_batches", 0)) for metrics in view.metrics.values()]
    more = max(len(places), *counts, 0) - MOST_NAMED
    named = ", ".join(
        f"{at.topic_id}/{at.partition} offsets {at.base_offset} to {at.last_offset} (producer id {at.producer_id})"
        for at in places[:MOST_NAMED]
    )
    what = (
        f"no reader can decode these batches: {named}{f' and {more} more' if more > 0 else ''}; consumers stop there"
    )
    step = "Consumers skip them with on_unreadable; docs/operations.md, Batches that cannot be decoded, says more."
    about = tuple(dict.fromkeys(f"{at.topic_id}/{at.partition}" for at in places))
    yield Finding(WARNING, what, step, "batch-unreadable", about, _who_found(view, "unreadable_batches"))


def examine_damage(view: ClusterSnapshot) -> Iterator[Finding]:
    """Yield a finding for each server with logs that are damaged and not repaired yet. It names the partitions whose
    histories show that, and says what to do if no other replica can lead them."""
    for node, values in sorted(view.metrics.items()):
        if not (count := int(values.get("tidelog_replica_damaged_partitions", 0))):
            continue
        lost = _lost_copies(view, node)
        places = ", ".join(list(lost)[:MOST_NAMED])
        what = f"{node} has {count} damaged logs, yet to be repaired{f': {places}' if places else ''}"
        step = "docs/operations.md, Damage, says what it does by itself, and what is yours."
        stuck = [place for place, (partition, _) in lost.items() if not partition.leader]
        if stuck:
            topic = stuck[0].rpartition("/")[0]
            step = (
                f"No other replica can lead {stuck[0]}. Restore it from a backup; or have the copy on {node} lead"
                f" with what is left: 'tidelog topics configure {topic} unclean_election=true'. {step}"
            )
        said = [
            f"{place} at {clock(entry)}: {entry.evidence.get('reason', '')}" for place, (_, entry) in lost.items()
        ]
        evidence = "; ".join(said[:MOST_NAMED]) or f"tidelog_replica_damaged_partitions of {node} is {count}"
        yield Finding(PROBLEM, what, step, "log-damaged", (node, *lost), evidence)


def _lost_copies(view: ClusterSnapshot, node: str) -> dict[str, tuple[PartitionInfo, HistoryEntry]]:
    """Return by name the partitions whose copy on a server is damaged, with the change of the history that shows it:
    the server has reported the damage, and is not in sync since."""
    found = {}
    for topic in view.metadata.topics:
        for one in topic.partitions:
            entries = view.histories.get((topic.name, one.partition), ())
            reports = [e for e in entries if e.cause == "data_lost" and e.evidence.get("node") == node]
            if reports and not (one.leader and node in one.isr):
                found[f"{topic.name}/{one.partition}"] = one, reports[-1]
    return found


def examine_copies(view: ClusterSnapshot) -> Iterator[Finding]:
    """Yield a finding for each partition whose copies differ. If several servers report one partition, the report
    that names the odd copies counts, then one with a difference below a log start."""
    names = {topic.topic_id: topic.name for topic in view.metadata.topics}
    found: dict[str, DifferingCopies] = {}
    for one in sorted(view.differing, key=lambda one: (not one.odd, not one.below, one.start)):
        found.setdefault(f"{names.get(one.topic_id, one.topic_id)}/{one.partition}", one)
    for name, one in sorted(found.items()):
        place = f"below offset {one.start}" if one.below else f"between offsets {one.start} and {one.end}"
        place = f"the first difference is {place}"
        if one.odd:
            others = " and ".join(node for node in one.compared if node not in one.odd)
            what = f"{name}: the copy on {', '.join(one.odd)} is not what {others} hold; {place}"
            step = f"It is given up and fetched again automatically when that is safe: see the log of {one.odd[0]}."
            if one.below:
                step = f"No server repairs a difference below a log start: have the copy on {one.odd[0]} made again."
        else:
            what = f"{name}: the copies on {' and '.join(one.compared)} differ; {place}"
            step = "No majority of the replicas agrees, so none is replaced."
        evidence = f"the servers {', '.join(one.compared)} compared the hashes of what they hold while they scrubbed"
        more = f"'tidelog verify replicas {name}' shows where; docs/operations.md, Copies that differ, says more."
        yield Finding(PROBLEM, what, f"{step} {more}", "copies-differ", (name, *one.odd), evidence)


def _order(place: UnreadablePlace) -> tuple[str, int, int]:
    return place.topic_id, place.partition, place.base_offset


def _who_found(view: ClusterSnapshot, name: str) -> str:
    """Return in words which servers report how many in the metric ``tidelog_replica_NAME``; "" if none does."""
    counts = {node: int(values.get(f"tidelog_replica_{name}", 0)) for node, values in sorted(view.metrics.items())}
    named = ", ".join(f"{count} on {node}" for node, count in counts.items() if count)
    return f"found while scrubbing: {named}" if named else ""
