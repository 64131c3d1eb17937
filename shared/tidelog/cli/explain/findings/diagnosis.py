"""Diagnosis of a cluster: what is wrong, and what to do about it, derived from a snapshot without requests."""

from __future__ import annotations

from tidelog.cli.explain.findings.clocks import examine_clocks
from tidelog.cli.explain.findings.consequences import with_causes
from tidelog.cli.explain.findings.controllers import examine_controllers
from tidelog.cli.explain.findings.copies import examine_copies, examine_damage, examine_unreadable
from tidelog.cli.explain.findings.disks import examine_growth
from tidelog.cli.explain.findings.finding import Finding, in_order
from tidelog.cli.explain.findings.gateways import examine_gateways
from tidelog.cli.explain.findings.groups.lags import examine_groups, examine_retention_waits
from tidelog.cli.explain.findings.groups.members import examine_members
from tidelog.cli.explain.findings.groups.positions import examine_positions
from tidelog.cli.explain.findings.network import examine_network
from tidelog.cli.explain.findings.partitions import examine_partitions
from tidelog.cli.explain.findings.pipelines import examine_queries
from tidelog.cli.explain.findings.security import examine_certificates, examine_heirs, examine_hidden
from tidelog.cli.explain.findings.servers import (
    examine_balance,
    examine_limits,
    examine_lost_data,
    examine_servers,
)
from tidelog.cli.explain.findings.snapshot import ClusterSnapshot
from tidelog.cli.explain.findings.transactions import examine_wait
from tidelog.cli.explain.findings.unsteady_servers import examine_unsteady
from tidelog.cli.explain.findings.versions import examine_levels, examine_versions


def examine(view: ClusterSnapshot) -> list[Finding]:
    """Derive all findings from a snapshot, without further requests, and return them, problems first, and after each
    cause its consequences. An empty list if nothing is to be reported."""
    metadata = view.metadata
    found = [
        *examine_controllers(view),
        *examine_servers(view),
        *examine_partitions(view),
    ]
    found += [
        *examine_unsteady(view),
        *examine_lost_data(view),
        *examine_network(view),
        *examine_growth(view),
        *examine_limits(view.limits, metadata),
        *examine_unreadable(view),
        *examine_damage(view),
        *examine_copies(view),
        *examine_versions(view.versions),
        *examine_clocks(view.clocks),
        *examine_levels(view.features),
        *examine_heirs(view.heirs),
        *examine_hidden(view),
        *examine_balance(metadata),
        *examine_groups(view.lags, view.groups),
        *examine_queries(view.overdue),
        *examine_members(view.groups),
        *examine_positions(view.groups, frozenset((one.group, one.topic) for one in view.awaited)),
        *examine_retention_waits(view),
        *examine_gateways(view.gateways),
        *examine_certificates(view.certificates),
    ]
    found += [examine_wait(one) for one in view.waits]
    return in_order(with_causes(found))
