"""Findings about the members of consumer groups: groups that rebalance for ever, members that are expelled although
they live, members that are silent, do not commit or stand still, and groups that are slower than their producers.

What a member does is judged only by what was heard of it: without a sign of life for ``HEARD_S`` nobody says that it
works, and one that is silent is called silent and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidelog.cli.explain.findings.finding import MOST_NAMED, PROBLEM, WARNING, Finding, waiting
from tidelog.cli.explain.group_looks import HEARD_S, LATE_S, GroupLook, PartitionLook, is_silent
from tidelog.cli.explain.sentences import clock_time
from tidelog.explain.group import name_of
from tidelog.quantities import counted
from tidelog.wire.messages import GroupEvent, GroupMember

WINDOW_MS = 60_000
"""Milliseconds for which events of a group count."""
SILENT_S = 5.0
"""Seconds without a heartbeat from which on a member is named as silent, however short its session timeout is."""
LAST_MS = 30_000
"""A group rebalances no more if for so many milliseconds nothing has happened to its members."""
OFTEN = 3
"""Number of members that came and went again within ``WINDOW_MS`` from which on that is reported."""
_EXPELLED = ("expelled_silent", "expelled_slow")
_WHY = {
    "expelled_silent": "it sent no heartbeat for its session timeout of {} ms",
    "expelled_slow": "it did not give up partitions within its rebalance timeout of {} ms",
}
_STEPS = {
    "expelled_silent": (
        "Find what stops the program for so long (a blocked event loop, a long computation, a paused process), give"
        " it smaller portions of work, or raise session_timeout_s."
    ),
    "expelled_slow": "Let on_revoked return sooner, or raise rebalance_timeout_s.",
}


def examine_members(groups: Sequence[GroupLook]) -> Iterator[Finding]:
    """Yield findings about the members of each group: first those that change, then those that hold it up."""
    for look in groups:
        if look.now_ms < 0:
            continue
        recent = [event for event in look.events if look.now_ms - event.time_ms <= WINDOW_MS]
        if recent and look.now_ms - recent[-1].time_ms <= LAST_MS:
            yield from _expelled(look, recent)
            yield from _passing(look, recent)
            yield from _replaced(look, recent)
        yield from _late(look)


def _expelled(look: GroupLook, recent: Sequence[GroupEvent]) -> Iterator[Finding]:
    """Yield a finding for each member that was expelled and came back, so that it lives: what it had processed since
    its last commit is processed again. One that was expelled several times makes the group rebalance for ever."""
    for member in dict.fromkeys(event.member for event in recent if event.event in _EXPELLED):
        own = [event for event in recent if event.member == member]
        times = [event for event in own if event.event in _EXPELLED]
        if not any(
            event.event in ("joined", "commit_refused") and event.time_ms >= times[0].time_ms for event in own
        ):
            continue
        last = times[-1]
        why = _WHY[last.event].format(last.timeout_ms)
        ago = f"{(look.now_ms - last.time_ms) / 1000:.0f} s ago"
        refused = sum(event.times for event in own if event.event == "commit_refused")
        told = f"; {refused} of its commits were refused" if refused else ""
        evidence = f"Last expelled {ago}, generation {max((m.generation for m in look.members), default=0)}{told}."
        if len(times) > 1:
            what = (
                f"group {look.group} rebalances again and again: {look.program(member)} was expelled {len(times)}"
                f" times within {WINDOW_MS // 1000} s, each time since {why}, and joined again"
            )
            yield Finding(
                PROBLEM, what, _STEPS[last.event], "member-expelled-repeatedly", (look.group, member), evidence
            )
        else:
            what = (
                f"group {look.group} processes records again: {look.program(member)} was expelled while it worked,"
                f" since {why}; what it had not committed went to others"
            )
            yield Finding(WARNING, what, _STEPS[last.event], "member-expelled-while-alive", (look.group,), evidence)


def _passing(look: GroupLook, recent: Sequence[GroupEvent]) -> Iterator[Finding]:
    """Yield a finding if members join and soon go again, without having got on: programs that end and are started
    again. Members that were there before, as in a rolling restart, and those that did some work do not count."""
    joined = {event.member: event.time_ms for event in recent if event.event == "joined"}
    lives = {
        event.member: event.time_ms - joined[event.member]
        for event in recent
        if event.event in ("left", *_EXPELLED)
        and not event.advanced
        and event.time_ms >= joined.get(event.member, event.time_ms + 1)
    }
    if len(lives) < OFTEN:
        return
    names = ", ".join(dict.fromkeys(look.program(member) for member in list(lives)[-MOST_NAMED:]))
    what = (
        f"group {look.group} rebalances again and again: {len(lives)} members joined and were gone again within"
        f" {WINDOW_MS // 1000} s, each after {max(lives.values()) / 1000:.1f} s at most, and none had processed"
        " anything"
    )
    step = "Their programs end and are started again: see the logs of those programs, and of what starts them."
    yield Finding(PROBLEM, what, step, "members-come-and-go", (look.group,), f"The last of them: {names}.")


def _replaced(look: GroupLook, recent: Sequence[GroupEvent]) -> Iterator[Finding]:
    """Yield a finding if processes of static members begin again and again, without having got on. A new process
    takes the place of the one before, which neither leaves nor is expelled: it has joined, and is no member any
    more. Those that were there before, as in a rolling restart, do not count."""
    members = {member.member for member in look.members}
    gone = {event.member for event in recent if event.event in ("left", *_EXPELLED)}
    joined = [event for event in recent if event.event == "joined" and event.member not in gone]
    replaced = [event for event in joined if event.member not in members]
    young = {m.member: m for m in look.members if m.instance and look.now_ms - m.joined_ms <= WINDOW_MS}
    if len(replaced) < OFTEN or not young:
        return
    own = [one for one in look.partitions if one.member in young and one.committed_ms >= replaced[0].time_ms]
    if any(one.position > one.earlier for one in own):  # the first commit of a group is where it begins
        return
    names = ", ".join(name_of(member) for member in [*young.values()][:MOST_NAMED])
    what = (
        f"group {look.group}: the program of static member {names} is started again and again:"
        f" {len(replaced) + len(young)} processes joined within {WINDOW_MS // 1000} s, and none had processed"
        " anything"
    )
    step = "See the log of that program (FENCED_INSTANCE: two have one --instance), and of what starts it again."
    ago = (look.now_ms - joined[-1].time_ms) / 1000
    evidence = f"Each took the place of the one before as static member; the last joined {ago:.0f} s ago."
    yield Finding(PROBLEM, what, step, "members-come-and-go", (look.group,), evidence)


def _late(look: GroupLook) -> Iterator[Finding]:
    """Yield a finding for each member in whose partitions records wait too long: it is silent, it commits nothing, it
    stands still, or it works and is too slow. The group's slow members are one finding."""
    slow: list[PartitionLook] = []
    for member in look.members:
        late = [one for one in look.partitions if one.member == member.member and one.is_late]
        joined_s = (look.now_ms - member.joined_ms) / 1000 if member.joined_ms >= 0 else 0.0
        if late and is_silent(member):
            if member.away or member.heard_ms >= SILENT_S * 1000:
                yield _silent(look, member, late)
            continue
        if not late or joined_s < LATE_S:
            continue
        lag = sum(one.lag for one in late)
        named = ", ".join(one.name for one in late[:MOST_NAMED])
        about = _about(look, late)
        if member.advanced_ms < 0:
            what = (
                f"group {look.group}: {look.program(member.member)} has committed no progress since it joined"
                f" {joined_s:.0f} s ago, and {waiting(lag)} in {named}"
            )
            step = (
                f"{_sign_of_life(look, member)} Let it call commit() after its work, or set auto_commit_s; if it"
                " hangs in its first record, find out where. After a restart it begins at the old position again."
            )
            yield Finding(WARNING, what, step, "member-commits-nothing", about, _positions(late))
        elif (still_s := (look.now_ms - member.advanced_ms) / 1000) > 2 * LATE_S:
            what = (
                f"group {look.group}: {look.program(member.member)} has stood still for {still_s:.0f} s, and"
                f" {waiting(lag)} in {named}"
            )
            step = f"{_sign_of_life(look, member)} Find out what its processing waits for, or restart it."
            yield Finding(WARNING, what, step, "member-stands-still", about, _positions(late))
        elif 0 <= look.heard_s(member) <= HEARD_S:
            slow += [one for one in late if one.falls_behind(look.now_ms)]
    if slow:
        yield _too_slow(look, slow)


def _sign_of_life(look: GroupLook, member: GroupMember) -> str:
    """Return a sentence that says what was heard of a member, and so whether its program runs."""
    heard_s = look.heard_s(member)
    if heard_s < 0:
        return "See whether its program runs."
    if heard_s <= HEARD_S:
        return f"It was heard of {heard_s:.0f} s ago, so its program runs."
    return f"It was last heard of {heard_s:.0f} s ago: see whether its program runs."


def _silent(look: GroupLook, member: GroupMember, late: Sequence[PartitionLook]) -> Finding:
    """Return the finding for a member that is silent, though records wait in its partitions."""
    if member.away:
        does, step = "is a static member whose process has ended", "Start it again."
    else:
        does = f"has sent no heartbeat for {member.heard_ms / 1000:.0f} s"
        step = "Look at its process (ended, stopped, blocked?) and its network, or start it again."
    what = (
        f"group {look.group}: {name_of(member)} {does}, and {waiting(sum(one.lag for one in late))} in"
        f" {', '.join(one.name for one in late[:MOST_NAMED])}"
    )
    session_s = f"{member.session_timeout_ms / 1000:g} s"
    step += f" Its partitions go to others, if there are any, {session_s} after its last heartbeat (session timeout)."
    heard = f"Last heartbeat at {clock_time(look.now_ms - member.heard_ms)}. " if member.heard_ms >= 0 else ""
    about = (look.group, *(one.name for one in late), *filter(None, (look.coordinator,)))
    return Finding(WARNING, what, step, "member-silent", about, heard + _positions(late))


def _too_slow(look: GroupLook, slow: Sequence[PartitionLook]) -> Finding:
    """Return the finding for a group whose members work, and process less than is written."""
    written = sum(one.written_s for one in slow)
    processed = sum(one.processed_s(look.now_ms) for one in slow)
    lag, number = sum(one.lag for one in slow), len(look.members)
    what = (
        f"group {look.group} is too slow for what is written: it processes {processed:.1f} records a second of"
        f" {written:.1f} in {', '.join(one.name for one in slow[:MOST_NAMED])}, and {waiting(lag)}"
    )
    if number < len(look.partitions):
        read = f"{counted(number, 'member')} for {counted(len(look.partitions), 'partition')}"
        step = f"There {'is' if number == 1 else 'are'} {read}: start more members, or make them faster."
    else:
        step = "Each member has one partition or none: make them faster, or 'tidelog topics grow' and start more."
    return Finding(WARNING, what, step, "consumers-too-slow", _about(look, slow), _positions(slow))


def _about(look: GroupLook, places: Sequence[PartitionLook]) -> tuple[str, ...]:
    """Return the group, the partitions, their leaders and the group's coordinator: what can hold a member up."""
    servers = (*(one.leader for one in places), look.coordinator)
    return (look.group, *(one.name for one in places), *filter(None, dict.fromkeys(servers)))


def _positions(late: Sequence[PartitionLook]) -> str:
    """Return positions and ends in words, as evidence."""
    each = (f"{one.name} at offset {one.position} of {one.end}" for one in late[:MOST_NAMED])
    return f"Positions: {', '.join(each)}; records have waited there for more than {LATE_S:.0f} s."
