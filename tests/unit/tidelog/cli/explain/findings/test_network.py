"""What is said about a network that is cut between processes which run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tidelog.cli.explain.findings.diagnosis import examine
from tidelog.cli.explain.findings.finding import PROBLEM, WARNING, Finding
from tidelog.cli.explain.findings.snapshot import ClusterSnapshot
from tidelog.cli.explain.links import connected_in, unreachable_in

from unit.tidelog.cli.explain.findings.snapshots import SERVERS, WHOLE, healthy

BEHIND = replace(WHOLE, isr=("r1", "r3"))
NODES = ("r1", "r2", "r3")


def page(unreachable: Mapping[str, float], connected: Iterable[str]) -> str:
    """The metrics of a replica server that cannot reach some others; others are connected to it."""
    lines = [f'tidelog_replica_peer_unreachable_seconds{{peer="{peer}"}} {s}' for peer, s in unreachable.items()]
    lines += [f'tidelog_replica_connections{{peer="{peer}",role="replica"}} 1.0' for peer in connected]
    return "\n".join(lines)


def cut(unreachable: Mapping[str, Mapping[str, float]], connected: Iterable[str] = NODES) -> ClusterSnapshot:
    """A replica of r2 is behind, and some servers cannot reach others. ``connected``: who is connected to all."""
    return replace(healthy(BEHIND), pages={node: page(unreachable.get(node, {}), connected) for node in NODES})


def cause_and_rest(view: ClusterSnapshot) -> tuple[Finding, dict[str, str]]:
    """The one cause, and the cause of each other finding."""
    (cause,) = [one for one in examine(view) if not one.because_of]
    return cause, {one.cause: one.because_of for one in examine(view) if one.because_of}


def test_a_server_that_cannot_reach_one_which_reaches_it_is_cut_off_one_way() -> None:
    found, rest = cause_and_rest(cut({"r2": {"r1": 12.4}}))
    assert (found.level, found.cause, found.about) == (WARNING, "network-cut-one-way", ("r2", "r1"))
    assert "r2 cannot connect to r1, but r1 is connected to r2" in found.what
    assert "r2 has tried for 12 s" in found.evidence and "from r2 to r1" in found.next_step
    assert rest == {"replica-out-of-sync": "network-cut-one-way"}


def test_two_servers_that_cannot_reach_each_other_are_one_cut_in_both_directions() -> None:
    found, rest = cause_and_rest(cut({"r2": {"r1": 12.4}, "r1": {"r2": 11.0}}))
    assert (found.cause, found.about) == ("network-cut", ("r1", "r2"))
    assert "cut in both directions" in found.what
    assert rest == {"replica-out-of-sync": "network-cut"}


def test_where_the_other_does_not_try_no_direction_is_claimed() -> None:
    found, _ = cause_and_rest(cut({"r2": {"r1": 12.4}}, connected=()))
    assert found.cause == "network-cut" and "one way" not in found.what and "r1 does not try" in found.evidence


def test_a_server_that_is_down_or_answers_nobody_is_no_cut() -> None:
    down = replace(SERVERS[0], fenced=True)
    view = cut({"r2": {"r1": 12.4}})
    view = replace(view, metadata=replace(view.metadata, servers=(down, *SERVERS[1:])))
    assert not [one for one in examine(view) if one.cause.startswith("network")]
    silent = replace(cut({"r2": {"r1": 12.4}}), metrics={})
    assert not [one for one in examine(silent) if one.cause.startswith("network")]


def test_an_attempt_that_has_just_failed_is_not_reported() -> None:
    assert not [one for one in examine(cut({"r2": {"r1": 2.0}})) if one.cause.startswith("network")]


def test_attempts_that_failed_before_the_other_server_was_started_are_not_reported() -> None:
    view = cut({"r2": {"r1": 12.4}})
    for seconds, causes in ((4.5, set()), (6.0, {"network-cut-one-way"})):
        times = f"process_start_time_seconds 1000.0\ntidelog_wall_clock_seconds {1000 + seconds}\n"
        pages = {**view.pages, "r1": f"{times}{view.pages['r1']}"}
        found = {one.cause for one in examine(replace(view, pages=pages)) if one.cause.startswith("network")}
        assert found == causes


def test_a_gateway_that_cannot_reach_a_live_server_is_cut_off() -> None:
    found, _ = cause_and_rest(
        replace(
            healthy(), pages={"gateway ws://g1": 'tidelog_gateway_server_unreachable_seconds{server="r3"} 31.0\n'}
        )
    )
    assert (found.level, found.cause, found.about) == (PROBLEM, "network-cut-to-gateway", ("r3",))
    assert "gateway ws://g1 cannot connect to r3" in found.what and "for 31 s" in found.evidence


def test_the_metrics_of_a_server_say_whom_it_does_not_reach_and_who_reaches_it() -> None:
    text = (
        'tidelog_replica_peer_unreachable_seconds{peer="r1"} 12.5\n'
        'tidelog_replica_connections{peer="r3",role="replica"} 1.0\n'
        'tidelog_replica_connections{role="gateway",peer="g1"} 2.0\n'
    )
    assert unreachable_in(text) == {"r1": 12.5} and connected_in(text) == {"r3"}
    assert unreachable_in('tidelog_gateway_server_unreachable_seconds{server="r2"} 3.0\n') == {"r2": 3.0}
