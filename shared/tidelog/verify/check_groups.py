"""Checks of consumer groups in a history: which positions are committed, by which member, and whether the members
were shown every record below these positions."""

from __future__ import annotations

from tidelog.verify.history import OK, CommitCall
from tidelog.verify.ledger import Facts, after, show, span

Place = tuple[str, str]
"""Names of a group and of a partition."""


def check(facts: Facts) -> None:
    """Check the commits of all consumer groups in a history: which members committed, whether a position went back,
    and whether each record below a committed position was shown to a member. Add every anomaly to ``facts``."""
    places: dict[Place, list[CommitCall]] = {}
    for op in facts.commits:
        if op.result == OK:
            places.setdefault((op.group, op.partition), []).append(op)
    for place, commits in sorted(places.items()):
        _check_members(facts, place, commits)
        _check_positions(facts, place, commits)
    _check_shown(facts, places)


def _check_members(facts: Facts, place: Place, commits: list[CommitCall]) -> None:
    """Add a ``double_commit`` (A14) if two members committed in one generation of a group's partition, or if a member
    committed in a generation after a commit in a later one. Only the first case of each group and partition is
    reported."""
    group, partition = place
    owners: dict[int, CommitCall] = {}
    for op in commits:
        first = owners.setdefault(op.generation, op)
        if first.process != op.process:
            text = f"{first.process} ({span(first)}) and {op.process} ({span(op)}) both committed"
            facts.flag("double_commit", f"{partition} of {group}: {text} in generation {op.generation}")
            return
    for op, newest in after(commits, lambda op: op.generation):
        if op.generation < newest.generation:
            text = f"{op.process} committed in generation {op.generation} ({span(op)}) after {newest.process}"
            facts.flag("double_commit", f"{partition} of {group}: {text} in {newest.generation} ({span(newest)})")
            return


def _check_positions(facts: Facts, place: Place, commits: list[CommitCall]) -> None:
    """Add a ``commit_back`` (A14) if a later commit of a group is below an earlier one, or if the group's position at
    the end is below a committed one. Only the first case of each group and partition is reported."""
    group, partition = place
    for op, highest in after(commits, lambda op: op.offset):
        if op.offset < highest.offset:
            text = f"{op.process} committed {op.offset} ({span(op)}) after {highest.process} had committed"
            facts.flag("commit_back", f"{partition} of {group}: {text} {highest.offset} ({span(highest)})")
            return
    highest = max(commits, key=lambda op: op.offset)
    end = facts.history.committed.get(place)
    if end is not None and end < highest.offset:
        text = f"{highest.process} committed {highest.offset} ({span(highest)}); at the end the group stands at {end}"
        facts.flag("commit_back", f"{partition} of {group}: {text}")


def _check_shown(facts: Facts, places: dict[Place, list[CommitCall]]) -> None:
    """Add a ``consumer_skip`` (A7) for the first record of each group and partition that was shown to no member,
    although its offset is between the first record that was shown and the group's committed position."""
    shown: dict[Place, set[int]] = {}
    for read in facts.reads:
        if read.group:
            shown.setdefault((read.group, read.partition), set()).update(offset for offset, _ in read.rows)
    for place, commits in sorted(places.items()):
        group, partition = place
        seen = shown.get(place)
        if not seen:
            continue
        first, end = max(min(seen), facts.history.retained_from.get(partition, 0)), max(op.offset for op in commits)
        for offset, value in facts.history.final.get(partition, ()):
            if first <= offset < end and offset not in seen:
                text = f"{end} was committed, and {show(value)} at {offset} was shown to no member"
                facts.flag("consumer_skip", f"{partition} of {group}: {text}")
                break
