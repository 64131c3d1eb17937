"""Which findings are consequences of others: so that a cause is called a cause, and what follows from it is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tidelog.cli.explain.findings.finding import Finding, concern_the_same

_NO_MAJORITY = ("controllers-without-majority", "controller-disks-needed")
_LOST_SERVERS = ("replica-servers-all-down", "replica-server-down", "replica-server-drained")
_LOST_COPIES = ("log-damaged", "server-data-lost")
_UNSTEADY = ("server-restarting", "server-unsteady")
_HELD_UP = ("disk-full", "disk-full-of-logs", "disk-full-of-other-files", "disk-slow", "server-starved")
_CUT = ("network-cut-one-way", "network-cut", "network-cut-to-gateway")
_CERTIFICATES = ("certificate-expired", "certificate-not-valid-yet", "certificate-not-accepted")
_UNREADABLE = ("batch-unreadable", "partition-without-leader", "partition-paused", "last-stable-offset-held")
_NO_COMMITS = ("in-sync-below-minimum", *_UNSTEADY, *_LOST_SERVERS, *_NO_MAJORITY, *_HELD_UP, *_CUT)
_REBALANCES = ("member-expelled-repeatedly", "members-come-and-go", "member-expelled-while-alive")
_IDLE_MEMBERS = ("member-commits-nothing", "member-stands-still", "consumers-too-slow")
_OF_GROUPS = {
    "group-behind": (
        *(
            "streaming-query-dead",
            "member-silent",
            *_IDLE_MEMBERS,
            *_REBALANCES,
            "retention-overtook-reader",
            *_UNREADABLE,
        ),
    ),
    "group-without-members": (
        *("streaming-query-dead", "retention-overtook-reader", "members-come-and-go", *_UNREADABLE),
    ),
    **dict.fromkeys(_IDLE_MEMBERS, ("retention-overtook-reader", *_REBALANCES, *_UNREADABLE, *_NO_COMMITS)),
    "member-silent": (*_REBALANCES, *_UNSTEADY, *_LOST_SERVERS, *_HELD_UP, *_CUT),
    "member-expelled-while-alive": ("member-expelled-repeatedly", *_NO_COMMITS),
    "member-expelled-repeatedly": _NO_COMMITS,
    "members-come-and-go": (*_UNREADABLE, "retention-overtook-reader", *_NO_COMMITS),
}
FOLLOWS: Mapping[str, Sequence[str]] = {
    "controllers-without-majority": ("controller-disks-needed",),
    "controller-disk-rolled-back": ("controller-disks-needed",),
    "controllers-unreachable": _NO_MAJORITY,
    "controller-silent": (*_CERTIFICATES, *_NO_MAJORITY),
    "server-session-lapsed": _NO_MAJORITY,
    "leadership-unconfirmed": (*_NO_MAJORITY, *_UNSTEADY, *_LOST_SERVERS),
    "replica-server-down": (*_CERTIFICATES, *_UNSTEADY, "replica-servers-all-down"),
    "partition-without-leader": (*_LOST_COPIES, *_UNSTEADY, *_LOST_SERVERS, *_NO_MAJORITY, *_HELD_UP, *_CUT),
    "in-sync-below-minimum": (*_LOST_COPIES, *_UNSTEADY, *_LOST_SERVERS, *_HELD_UP, *_CUT),
    "replica-out-of-sync": (
        *(*_LOST_COPIES, *_UNSTEADY, *_LOST_SERVERS, *_HELD_UP, *_CUT),
        *("copies-differ", "in-sync-below-minimum", "partition-without-leader"),
    ),
    "records-lost": ("unclean-election",),
    **dict.fromkeys(_CUT, _UNSTEADY),
    "server-slow": (*_UNSTEADY, *_HELD_UP, *_CUT),
    "disk-nearly-full": ("retention-not-set",),
    "learner-down": (*_UNSTEADY, *_LOST_SERVERS),
    "leaders-uneven": (*_UNSTEADY, *_LOST_SERVERS, *_HELD_UP),
    "metrics-unknown": (*_UNSTEADY, *_LOST_SERVERS, *_HELD_UP, *_CUT),
    "feature-level-behind": ("versions-mixed",),
    "gateway-unreachable": _CERTIFICATES,
    **_OF_GROUPS,
    "transaction-end-uncommitted": ("in-sync-below-minimum", *_UNSTEADY, *_LOST_SERVERS, *_NO_MAJORITY),
    "transaction-marker-not-taken": ("partition-without-leader", *_LOST_SERVERS, *_NO_MAJORITY),
    "groups-unknown": ("partition-without-leader", *_LOST_SERVERS, *_NO_MAJORITY),
    "transactions-unknown": ("partition-without-leader", *_LOST_SERVERS, *_NO_MAJORITY),
}
"""By code of a finding: the codes of the causes from which it can follow, the likeliest first."""


def with_causes(found: Sequence[Finding]) -> list[Finding]:
    """Return the findings, each that follows from another with that one's code in ``because_of``. One follows from
    another if ``FOLLOWS`` has the two codes, and both are about the same partition, or the same server or group where
    one of them names no partition, or one is about the whole cluster."""
    return [replace(one, because_of=_cause_of(one, found)) for one in found]


def _cause_of(one: Finding, found: Sequence[Finding]) -> str:
    """Return the code of the finding that this one follows from; "" if it follows from none."""
    present = [other.cause for other in found if concern_the_same(one.about, other.about)]
    return next((code for code in FOLLOWS.get(one.cause, ()) if code in present), "")
