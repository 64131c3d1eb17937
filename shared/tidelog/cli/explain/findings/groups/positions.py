"""Findings about the positions of consumer groups: below the log start, or moved by somebody who is no member."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidelog.cli.explain.findings.finding import MOST_NAMED, PROBLEM, WARNING, Finding
from tidelog.cli.explain.group_looks import GroupLook, PartitionLook
from tidelog.quantities import counted
from tidelog.wire.messages import MovedPosition

SETTLED_MS = 10_000
"""A position counts as overtaken by retention only if the group has committed none for so many milliseconds: until
then the next commit may be on its way."""
KNOWN_MS = 600_000
"""Milliseconds for which a position that was moved from outside is reported."""


def examine_positions(groups: Sequence[GroupLook], awaited: frozenset[tuple[str, str]]) -> Iterator[Finding]:
    """Yield findings about the positions of each group. ``awaited`` has (group, topic) where retention waits for the
    group: what was deleted there is reported with the wait."""
    for look in groups:
        if look.now_ms < 0:
            continue
        overtaken = [
            one
            for one in look.partitions
            if 0 <= one.position < one.log_start
            and look.now_ms - one.committed_ms > SETTLED_MS
            and (look.group, one.topic) not in awaited
        ]
        if overtaken:
            yield _overtaken(look, overtaken)
        yield from _moved(look)


def _overtaken(look: GroupLook, places: Sequence[PartitionLook]) -> Finding:
    """Return the finding for a group that had not read what retention has deleted."""
    lost = sum(one.log_start - one.position for one in places)
    settings = ", ".join(dict.fromkeys(one.retention for one in places if one.retention))
    by = f"retention ({settings})" if settings else "retention, as it was set then,"
    named = ", ".join(one.name for one in places[:MOST_NAMED])
    what = (
        f"group {look.group}: {by} deleted {counted(lost, 'offset')} in {named} before the group had read them; its"
        " readers end with OFFSET_OUT_OF_RANGE"
    )
    topic = places[0].topic
    step = (
        f"Keep records for longer: 'tidelog topics configure {topic}', with retention_waits_for={look.group} if"
        f" nothing may be deleted unread. To go on with what is left: 'tidelog groups reset {look.group} -t {topic}"
        " --to earliest'."
    )
    each = (f"{one.name}: position {one.position}, log start {one.log_start}" for one in places[:MOST_NAMED])
    about = (look.group, *(one.name for one in places))
    return Finding(PROBLEM, what, step, "retention-overtook-reader", about, f"{'; '.join(each)}.")


def _moved(look: GroupLook) -> Iterator[Finding]:
    """Yield a finding if positions were set back, and one if they were set forward, by a client that is no member.
    One that was set forward to where the log begins has passed over nothing that is still there."""
    starts = {one.name: one.log_start for one in look.partitions}
    recent = [(name, one) for name, one in look.moved if look.now_ms - one.time_ms <= KNOWN_MS]
    back = [(name, one) for name, one in recent if one.after < one.before]
    forward = [(name, one) for name, one in recent if one.after > max(one.before, starts.get(name, 0))]
    for places, code, how, effect in (
        (back, "position-set-back", "set back", "what is between is processed again"),
        (forward, "position-set-forward", "set forward", "what is between is not processed"),
    ):
        if places:
            number = sum(abs(one.after - one.before) for _, one in places)
            named = ", ".join(name for name, _ in places[:MOST_NAMED])
            what = (
                f"group {look.group}: positions of {named} were {how} by {counted(number, 'offset')}, by a client"
                f" that is no member; {effect}"
            )
            yield Finding(WARNING, what, _step(look.group, places), code, (look.group,), _evidence(look, places))


def _step(group: str, places: Sequence[tuple[str, MovedPosition]]) -> str:
    name, one = places[0]
    topic, _, partition = name.rpartition("/")
    reset = f"'tidelog groups reset {group} -t {topic} -p {partition} --to {one.before}'"
    return (
        f"If nobody wanted that, end the consumers and put it back, each as {reset}. The topic __audit says who did"
        " it ('commit_offsets'), where the audit is on."
    )


def _evidence(look: GroupLook, places: Sequence[tuple[str, MovedPosition]]) -> str:
    each = (f"{name} from {one.before} to {one.after}" for name, one in places[:MOST_NAMED])
    passed = " Members have processed that again by now." if all(one.passed_ms >= 0 for _, one in places) else ""
    return f"{(look.now_ms - places[0][1].time_ms) / 1000:.0f} s ago: {', '.join(each)}.{passed}"
