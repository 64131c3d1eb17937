"""Findings about the network between processes that run.

A server that cannot connect to another one shows that in its metrics. That is no fault of the other server if the
controllers hear it: then the network between the two is cut. Who is connected to whom shows in which direction."""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.cli.explain.findings.finding import PROBLEM, WARNING, Finding
from tidelog.cli.explain.findings.snapshot import ClusterSnapshot
from tidelog.cli.explain.links import connected_in, running_s, unreachable_in

UNREACHABLE_S = 5.0
"""Seconds after which a server that cannot be reached is reported: longer than a session, so that one that has died
is known to be down."""
CHECK = "the rules of firewalls, security groups and network policies, the routes and the name that it advertises"


def examine_network(view: ClusterSnapshot) -> Iterator[Finding]:
    """Yield a finding for each pair of live servers of which one cannot connect to the other, and one for each live
    server that the gateway cannot connect to. What failed before the process of the other one was started does not
    count, as far as metrics show when that was."""
    live = {server.node for server in view.metadata.servers if not server.fenced}
    failing = {
        (node, peer): seconds
        for node, page in view.pages.items()
        for peer, seconds in unreachable_in(page).items()
        if peer in live and min(seconds, running_s(view.pages.get(peer, ""))) >= UNREACHABLE_S
    }
    for (node, peer), seconds in sorted(failing.items()):
        if node not in live:
            yield _cut_off_gateway(node, peer, seconds)
        elif peer not in view.metrics:
            continue  # it does not answer the gateway either, so it may be that it hangs
        elif (peer, node) not in failing:
            yield _cut_one_way(node, peer, seconds, is_connected=peer in connected_in(view.pages[node]))
        elif node < peer:
            yield _cut_both_ways(node, peer, seconds)


def _cut_off_gateway(gateway: str, server: str, seconds: float) -> Finding:
    what = f"{gateway} cannot connect to {server}, which the controllers hear"
    step = f"Look at the network from the gateway to {server}: {CHECK}."
    evidence = f"it has tried for {seconds:.0f} s; {server} has a session"
    return Finding(PROBLEM, what, step, "network-cut-to-gateway", (server,), evidence)


def _cut_one_way(node: str, peer: str, seconds: float, *, is_connected: bool) -> Finding:
    """Return the finding for a server ``node`` that cannot connect to ``peer``, whereas ``peer`` does not report that
    it cannot connect to ``node``. ``is_connected``: it has a connection."""
    step = f"Look at what lies on the way from {node} to {peer}: {CHECK}."
    if is_connected:
        what = f"the network is cut one way: {node} cannot connect to {peer}, but {peer} is connected to {node}"
        evidence = f"{node} has tried for {seconds:.0f} s; both are registered at the controllers"
        return Finding(WARNING, what, step, "network-cut-one-way", (node, peer), evidence)
    what = f"the network between {node} and {peer} is cut: {node} cannot connect to {peer}"
    evidence = f"it has tried for {seconds:.0f} s; both are registered at the controllers; {peer} does not try"
    return Finding(WARNING, what, step, "network-cut", (node, peer), evidence)


def _cut_both_ways(node: str, peer: str, seconds: float) -> Finding:
    what = f"the network between {node} and {peer} is cut in both directions"
    step = f"Look at the network between their machines: {CHECK}."
    evidence = f"each has tried to connect, {node} for {seconds:.0f} s; both are registered at the controllers"
    return Finding(WARNING, what, step, "network-cut", (node, peer), evidence)
