"""A majority of controllers that is gone is told from one whose disks are gone."""

from __future__ import annotations

from dataclasses import replace

from unit.tidelog.cli.explain.findings.cluster_views import CONTROLLERS, QUORUM, causes, cluster, finding

LAPSED = {node: {"tidelog_replica_session_lapsed_seconds": 7.0 + n} for n, node in enumerate(("r1", "r2"))}


def test_a_majority_that_is_gone_is_the_cause_of_lapsed_sessions() -> None:
    silent = tuple(replace(one, role="unknown") for one in CONTROLLERS[1:])
    view = cluster(quorum=replace(QUORUM, active="", controllers=(CONTROLLERS[0], *silent)), metrics=LAPSED)
    (one,) = causes(view)
    assert one.cause == "controllers-without-majority"
    assert "c2, c3 of 3 controllers do not answer" in one.evidence
    assert "no controller has confirmed r1, r2 for 8 s" in one.evidence


def test_one_controller_that_is_silent_leaves_none_to_fail() -> None:
    silent = replace(CONTROLLERS[2], role="unknown")
    (one,) = causes(cluster(quorum=replace(QUORUM, controllers=(*CONTROLLERS[:2], silent))))
    assert (one.cause, one.what) == (
        "controller-silent",
        f"controllers do not answer: {silent.node}; no other may fail, of 3",
    )


def test_servers_show_it_where_no_controller_answers_the_gateway() -> None:
    (one,) = causes(cluster(quorum=None, metrics=LAPSED))
    assert one.cause == "controllers-without-majority" and "no controller answered the gateway" in one.evidence
    assert "an election" not in one.evidence


def test_disks_that_are_needed_are_the_cause_and_not_the_majority() -> None:
    lost = tuple(replace(one, rolled_back=True) for one in CONTROLLERS[1:])
    quorum = replace(QUORUM, active="", controllers=(CONTROLLERS[0], *lost), disks_needed=("c2",))
    view = cluster(quorum=quorum, metrics=LAPSED)
    assert {one.cause for one in causes(view)} == {"controller-disks-needed"}
    assert "c3 runs on an old copy of its disk" in finding(view, "controller-disks-needed").evidence
    assert finding(view, "controllers-without-majority").because_of == "controller-disks-needed"


def test_one_session_that_lapsed_is_a_cause_of_its_own_while_controllers_are_active() -> None:
    (one,) = causes(cluster(metrics={"r1": {"tidelog_replica_session_lapsed_seconds": 7.0}}))
    assert one.cause == "server-session-lapsed"
