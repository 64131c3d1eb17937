"""Findings about consumer groups, and retention that waits for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tidelog.cli.explain.findings.finding import MOST_NAMED, NOTE, WARNING, Finding
from tidelog.cli.explain.findings.snapshot import ClusterSnapshot
from tidelog.cli.explain.group_looks import LATE_S, GroupLook
from tidelog.cli.explain.retention_waits import lost_in_words
from tidelog.explain.explanation import span
from tidelog.quantities import counted

FAR_BEHIND = 10_000
"""Number of records that a group with members may lag without a report."""
LONG_WAIT = 0.5
"""Share of the bound of a wait of retention for a group from which on the wait is reported."""


def examine_groups(lags: Mapping[str, tuple[int, int]], looks: Sequence[GroupLook] = ()) -> Iterator[Finding]:
    """Yield a finding for each consumer group that is behind and has no members, or is more than ``FAR_BEHIND``
    records behind. ``lags`` is group -> (members, records behind), and ``looks`` is what the groups do."""
    known = {look.group: look for look in looks}
    for group, (members, behind) in sorted(lags.items()):
        step = f"'tidelog groups describe {group}' says where."
        if behind > 0 and not members:
            yield Finding(
                NOTE,
                f"group {group} has no members, and is {counted(behind, 'record')} behind",
                step,
                "group-without-members",
                (group,),
                f"its positions are {counted(behind, 'record')} before the ends of its partitions, and nobody has"
                " joined it",
            )
        elif behind > FAR_BEHIND:
            what = f"group {group} is {behind} records behind, with {counted(members, 'member')}"
            yield _far_behind(Finding(WARNING, what, step, "group-behind", (group,)), known.get(group))


def _far_behind(one: Finding, look: GroupLook | None) -> Finding:
    """Return the finding ``one`` about a group that is far behind with what the group does about it. It is only a
    note if the group catches up, as when it reads again what was written before."""
    if look is None:
        return one
    places = [place for place in look.partitions if place.lag > 0]
    shares = Counter(place.member for place in look.partitions)
    helps = any(shares[place.member] > 1 for place in places)  # one partition is read by one member only
    pace = sum(place.processed_s(look.now_ms) for place in places)
    written = sum(place.written_s for place in places)
    is_known = all(place.fresh >= 0 and look.now_ms - place.committed_ms <= 2 * LATE_S * 1000 for place in places)
    if is_known and pace > written:
        left = span(look.lag * 1000 / (pace - written))
        rates = f"it processes {pace:.0f} records a second, and {written:.0f} are written"
        quicker = " More members, or faster ones, need less." if helps else ""
        step = f"{one.next_step} At this pace it needs {left} more.{quicker}"
        return replace(one, level=NOTE, what=f"{one.what}, and catches up: {rates}", next_step=step)
    faster = (
        "More members, or faster ones, catch up."
        if helps
        else "Only faster members catch up: each has one partition."
    )
    return replace(one, next_step=f"{one.next_step} {faster}")


def examine_retention_waits(view: ClusterSnapshot) -> Iterator[Finding]:
    """Yield findings about retention that waits for groups: records that were deleted before a group had read them,
    waits that have used ``LONG_WAIT`` of their bound, and groups that have no position, so that they read nothing."""
    for one in view.awaited:
        if one.lost:
            step = (
                f"Find out what stopped {one.group}. To let it go on with what is left: 'tidelog groups reset"
                f" {one.group} -t {one.topic} --to earliest'; docs/operations.md, Retention that waits for a group,"
                " says more."
            )
            yield Finding(
                WARNING,
                f"{one.topic}/{one.partition}: {lost_in_words(one)}",
                step,
                "retention-overtook-reader",
                (one.group, f"{one.topic}/{one.partition}"),
            )
    for kept in view.kept:
        if kept.share >= LONG_WAIT:
            what = (
                f"{kept.topic}/{kept.partition}: retention keeps {kept.held_bytes / (1 << 20):.1f} MiB for group"
                f" {kept.group}, which has not read them: {kept.share:.0%} of the bound of the wait is used"
            )
            step = (
                f"Start what reads as {kept.group}, or raise retention_waits_max_ms and retention_waits_max_bytes:"
                f" 'tidelog topics configure {kept.topic}'. At 100% the oldest records are deleted unread."
            )
            about = (kept.group, f"{kept.topic}/{kept.partition}")
            evidence = f"the leader reports {kept.held_bytes:.0f} bytes that it would delete, but for the group"
            yield Finding(WARNING, what, step, "retention-wait-long", about, evidence)
    absent: dict[tuple[str, str], list[str]] = {}
    for one in view.awaited:
        if one.position < 0 and not one.error:
            absent.setdefault((one.topic, one.group), []).append(f"{one.topic}/{one.partition}")
    for (topic, group), names in absent.items():
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        what = f"{', '.join(names[:MOST_NAMED])}{more}: retention waits for group {group}, which has no position"
        step = f"Start what reads as {group}, or 'tidelog topics configure {topic} retention_waits_for='."
        yield Finding(NOTE, what, step, "retention-waits-for-absent-group", (group, *names))
