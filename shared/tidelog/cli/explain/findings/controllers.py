"""Findings about the controllers."""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.cli.explain.findings.finding import NOTE, PROBLEM, WARNING, Finding
from tidelog.cli.explain.findings.snapshot import ClusterSnapshot
from tidelog.cli.explain.sentences import refill_in_words
from tidelog.wire.messages import ControllerInfo, QuorumAnswer

LAPSED = "tidelog_replica_session_lapsed_seconds"
"""Metric of a replica server that shows for how long no controller has answered it since its session was over."""


def examine_controllers(view: ClusterSnapshot) -> Iterator[Finding]:
    """Yield findings about the controllers: none is active, some do not answer, too few vote, a store is lost, or a
    member has no vote."""
    quorum = view.quorum
    if quorum is not None:
        yield from _old_copies(quorum)
    if quorum is None or not quorum.active:
        what = (
            "no active controller: leaders go on while every replica that could be elected confirms them; no new"
            " leader is elected, a server that restarts serves no clients, and nothing about the cluster can be"
            " changed"
        )
        yield Finding(
            PROBLEM,
            what,
            "Start controllers until a majority runs; their logs say whom they miss.",
            "controllers-without-majority",
            evidence=_without_majority(view),
        )
        return
    voters = [one for one in quorum.controllers if one.voter and not one.lost]
    silent = [one.node for one in voters if one.role == "unknown"]
    counting = [one for one in voters if one.role != "unknown" and not one.rolled_back]
    spare = len(counting) - (len(voters) // 2 + 1)
    if silent:
        more = f"{spare} more may fail" if spare > 0 else "no other may fail"
        what = f"controllers do not answer: {', '.join(silent)}; {more}, of {len(voters)}"
        yield Finding(
            WARNING,
            what,
            "Start them again; for good: 'tidelog controllers remove' and 'add' another.",
            "controller-silent",
            tuple(silent),
        )
    elif len(voters) < 3:
        what = f"{len(voters)} voting controller{'s' * (len(voters) > 1)}: none may fail"
        yield Finding(
            NOTE, what, "Three or five bear the loss of one or two: 'tidelog controllers add'.", "controllers-few"
        )
    for one in quorum.controllers:
        if one.lost:
            what = f"controller {one.node} lost its store, and has no vote"
            yield Finding(
                PROBLEM,
                what,
                f"'tidelog controllers add {one.node} {one.url}' takes it in again.",
                "controller-store-lost",
                (one.node,),
            )
        elif not one.voter:
            what = f"controller {one.node} has no vote yet"
            yield Finding(
                WARNING,
                what,
                f"'tidelog controllers add {one.node} {one.url}' waits until it has.",
                "controller-without-vote",
                (one.node,),
            )


def _without_majority(view: ClusterSnapshot) -> str:
    """Return what shows that no controller is active: which of them are silent, and for how long servers have had no
    answer."""
    seen = []
    if view.quorum is None:
        seen.append("no controller answered the gateway")
    elif silent := [one.node for one in view.quorum.controllers if one.role == "unknown"]:
        seen.append(f"{', '.join(silent)} of {len(view.quorum.controllers)} controllers do not answer")
    else:
        seen.append("the controllers that answer have elected none")
    lapsed = {node: values.get(LAPSED, 0.0) for node, values in view.metrics.items()}
    if waits := {node: seconds for node, seconds in sorted(lapsed.items()) if seconds > 0}:
        seen.append(f"no controller has confirmed {', '.join(waits)} for {max(waits.values()):.0f} s")
    return "; ".join(seen)


def _old_copies(quorum: QuorumAnswer) -> Iterator[Finding]:
    """Yield a finding for each controller that runs on an old copy of its disk, and one more if therefore no
    controller can be elected until certain controllers run again, each with the disk that it had."""
    for one in quorum.controllers:
        if one.rolled_back:
            what = f"controller {one.node} runs on an old copy of its disk: {refill_in_words(one)}; it has no vote"
            yield Finding(
                PROBLEM,
                what,
                "Keep the others running until it votes again; find out how the old disk came there.",
                "controller-disk-rolled-back",
                (one.node,),
            )
    if quorum.disks_needed:
        what = f"nobody can be elected without the disks of {', '.join(quorum.disks_needed)}"
        yield Finding(
            PROBLEM,
            what,
            "Start them with the disks that they had; if gone: 'tidelog controllers rescue'.",
            "controller-disks-needed",
            evidence="the others vote only with a majority that has everything acknowledged: "
            + ", ".join(f"{one.node} {_state_of(one)}" for one in quorum.controllers),
        )


def _state_of(one: ControllerInfo) -> str:
    """Return in a few words whether a controller votes."""
    if one.lost:
        return "has lost its store"
    if one.rolled_back:
        return "runs on an old copy of its disk"
    return "does not answer" if one.role == "unknown" else "votes" if one.voter else "has no vote"
