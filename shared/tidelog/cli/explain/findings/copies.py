"""Findings about what logs hold: batches that no reader can decode, and copies that differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tidelog.cli.explain.findings.finding import MOST_NAMED, PROBLEM, WARNING, Finding
from tidelog.cli.explain.findings.snapshot import ClusterSnapshot
from tidelog.wire.messages import DifferingCopies, UnreadablePlace


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
    yield Finding(WARNING, what, step, "batch-unreadable", about)


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
        more = f"'tidelog verify replicas {name}' shows where; docs/operations.md, Copies that differ, says more."
        yield Finding(PROBLEM, what, f"{step} {more}", "copies-differ", (name, *one.odd))


def _order(place: UnreadablePlace) -> tuple[str, int, int]:
    return place.topic_id, place.partition, place.base_offset
