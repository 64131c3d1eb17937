"""Findings about replica servers: which are down, slow, without a session or without their data, and how evenly they
are loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tidelog.cli.explain.findings.disks import examine_disk, examine_starved
from tidelog.cli.explain.findings.finding import MOST_NAMED, NOTE, PROBLEM, WARNING, Finding
from tidelog.cli.explain.findings.snapshot import ClusterSnapshot
from tidelog.cli.explain.sentences import clock
from tidelog.quantities import counted
from tidelog.timeline.sentences import reason
from tidelog.wire.messages import HistoryEntry, MetadataAnswer, ServerInfo

UNEVEN = 0.25
"""A server may lead or hold this share more or less than the average, plus two partitions, without a report."""


def examine_servers(view: ClusterSnapshot) -> Iterator[Finding]:
    """Yield findings about replica servers: those that are down or drained, and the disks and sessions of the live
    ones."""
    metrics = view.metrics
    servers = sorted(view.metadata.servers, key=lambda server: server.node)
    if all(server.fenced for server in servers):
        yield Finding(
            PROBLEM,
            "no replica server is live",
            "Start them: nothing can be written or read.",
            "replica-servers-all-down",
        )
    for server in servers:
        if server.fenced:
            step = f"Start it, or see its log; for good: 'tidelog servers drain {server.node}' and move its replicas."
            what = f"replica server {server.node} is down"
            yield Finding(PROBLEM, what, step, "replica-server-down", (server.node,), _loss(view, server))
        elif server.draining:
            what = f"replica server {server.node} is drained: it leads nothing"
            yield Finding(
                NOTE,
                what,
                f"'tidelog servers resume {server.node}' after the maintenance.",
                "replica-server-drained",
                (server.node,),
            )
        if not server.fenced and server.node in metrics:
            yield from examine_disk(server, metrics[server.node])
            yield from examine_starved(server, metrics[server.node])
            yield from _session(server, metrics[server.node])


def _loss(view: ClusterSnapshot, server: ServerInfo) -> str:
    """Return in words since when the controllers count a server as down, and why, as its partitions' histories
    say."""
    lost = [
        entry
        for entries in view.histories.values()
        for entry in entries
        if entry.cause == "session_expired" and entry.evidence.get("node") == server.node
    ]
    if not lost:
        return f"the controllers have fenced its incarnation {server.broker_epoch}"
    last = max(lost, key=lambda entry: entry.time_ms)
    return f"since {clock(last)}: {reason(last.cause, last.evidence)}"


def examine_lost_data(view: ClusterSnapshot) -> Iterator[Finding]:
    """Yield a finding for each server that was registered without the data that it had, while it still lacks a copy
    that the controllers counted on: the histories of the partitions show both."""
    lost: dict[str, dict[str, HistoryEntry]] = {}
    for topic in view.metadata.topics:
        for partition in topic.partitions:
            for entry in view.histories.get((topic.name, partition.partition), ()):
                for node in set(lost) & set(entry.isr):  # it has copied the partition since
                    lost[node].pop(f"{topic.name}/{partition.partition}", None)
                node = entry.evidence.get("node", "")
                if "data" in entry.evidence and node in partition.replicas and node not in entry.isr:
                    lost.setdefault(node, {})[f"{topic.name}/{partition.partition}"] = entry
    for node, places in sorted(lost.items()):
        if not places:
            continue
        last = max(places.values(), key=lambda entry: entry.time_ms)
        more = f" and {len(places) - MOST_NAMED} more" if len(places) > MOST_NAMED else ""
        named = ", ".join([*places][:MOST_NAMED]) + more
        what = f"replica server {node} was registered without the data that it had: its copy of {named} is lost"
        step = (
            f"Find out what became of its disk. If that is there, start {node} with it before anything else: what no"
            f" other server has is only there. If it is gone, {node} copies by itself what the others have."
        )
        evidence = f"since {clock(last)}: {reason('registered', last.evidence)}"
        yield Finding(WARNING, what, step, "server-data-lost", (node, *places), evidence)


def _session(server: ServerInfo, metrics: Mapping[str, float]) -> Iterator[Finding]:
    """Yield a finding for a server whose session has lapsed because no controller answers it. It is a problem if the
    server therefore refuses the clients of some partitions, otherwise a warning."""
    lapsed_s = metrics.get("tidelog_replica_session_lapsed_seconds", 0.0)
    if refused := int(metrics.get("tidelog_replica_unconfirmed_partitions", 0)):
        what = (
            f"{server.node} refuses the clients of {counted(refused, 'partition')}: no controller answers, and a"
            " replica that could be elected does not confirm it as their leader"
        )
        step = f"The log of {server.node} names the replica (leadership_unconfirmed): start it, and the controllers."
        yield Finding(PROBLEM, what, step, "leadership-unconfirmed", (server.node,))
    elif lapsed_s > 0:
        what = f"no controller has answered {server.node} for {lapsed_s:.0f} s since its session was over"
        step = "Start controllers until a majority runs; if one does, repair the network between them."
        yield Finding(WARNING, what, step, "server-session-lapsed", (server.node,))


def examine_limits(limits: Mapping[str, float], metadata: MetadataAnswer) -> Iterator[Finding]:
    """Yield a finding for each slow server to which the gateway limits the bytes per second. ``limits`` is server ->
    limit. The finding is also about the replicas for which the acks of that server wait."""
    for server, rate in sorted(limits.items()):
        partitions = [one for topic in metadata.topics for one in topic.partitions if one.leader == server]
        about = (server, *sorted({node for one in partitions for node in one.isr} - {server}))
        what = (
            f"{server} is slow: the gateway sends it {rate / (1 << 20):.1f} MiB/s at most,"
            " and asks producers to pause"
        )
        step = (
            f"Look at the disk and the CPU of {server}, and at the followers of its partitions;"
            " docs/operations.md, A server that is slow, says more."
        )
        yield Finding(WARNING, what, step, "server-slow", about)


def examine_balance(metadata: MetadataAnswer) -> Iterator[Finding]:
    """Yield a finding if live servers lead uneven numbers of partitions, and one if they hold uneven numbers of
    replicas (``UNEVEN``)."""
    able = [server.node for server in metadata.servers if not (server.fenced or server.draining)]
    leads, holds = dict.fromkeys(able, 0), dict.fromkeys(able, 0)
    for topic in metadata.topics:
        for partition in topic.partitions:
            if partition.leader in leads:
                leads[partition.leader] += 1
            for node in partition.replicas:
                if node in holds:
                    holds[node] += 1
    for counts, what, step, cause in (
        (
            leads,
            "lead",
            "They even out within minutes, unless that is off: 'tidelog partitions transfer'.",
            "leaders-uneven",
        ),
        (holds, "hold", "'tidelog partitions rebalance --dry-run' shows what would be moved.", "replicas-uneven"),
    ):
        share = sum(counts.values()) / max(1, len(counts))
        if any(abs(count - share) > share * UNEVEN + 2 for count in counts.values()):
            named = ", ".join(f"{node} {count}" for node, count in sorted(counts.items()))
            yield Finding(NOTE, f"servers {what} uneven numbers of partitions: {named}", step, cause)
