"""The Grafana board ``deploy/grafana/tidelog.json``, which ``make pages`` writes.

Expressions here name metrics without their job; the board adds a selector for the jobs that are chosen on it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

NAMES = re.compile(r"\b((?:tidelog|process)_[a-z_]+)(\{[^}]*\})?")
"""Pattern of a metric in an expression, with its selector."""


@dataclass(frozen=True)
class Panel:
    """A plot of the board, or (``stat``) a number, red from ``alarm`` on. ``queries``: expressions with their
    legends."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    help: str
    stat: bool = False
    alarm: float | None = None


PARTS = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))


def _latency(title: str, metric: str, help: str) -> Panel:
    spread = f"sum by (le) (rate({metric}_bucket[$__rate_interval]))"
    return Panel(title, "s", tuple((f"histogram_quantile({part}, {spread})", name) for name, part in PARTS), help)


def _one(title: str, expr: str, help: str, alarm: float | None = 1, unit: str = "short") -> Panel:
    return Panel(title, unit, ((expr, ""),), help, stat=True, alarm=alarm)


def _plot(title: str, unit: str, help: str, *queries: tuple[str, str]) -> Panel:
    return Panel(title, unit, queries, help)


def _rate(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}[$__rate_interval]))"


ROWS = (
    (
        "Health",
        (
            _one("Without a leader", "sum(tidelog_offline_partitions)", "Partitions that serve nobody."),
            _one("Refuse records", "sum(tidelog_under_min_isr_partitions)", "Below min_insync_replicas."),
            _one("Not all in sync", "sum(tidelog_under_replicated_partitions)", "Partitions that miss a replica."),
            _one("Servers fenced", 'sum(tidelog_servers{state="fenced"})', "Replica servers not heard of."),
            _one("Servers live", 'sum(tidelog_servers{state="live"})', "Replica servers that are.", None),
            _one("Active controllers", "sum(tidelog_controller_active)", "One, but for seconds.", 2),
            _one("Versions", "count(count by (version) (tidelog_build_info))", "That run, beside each other.", 2),
            _one("Clients", "sum(tidelog_gateway_connections)", "Connected to all gateways.", None),
        ),
    ),
    (
        "Latency",
        (
            _latency(
                "Produce", "tidelog_gateway_produce_latency_seconds", "From a batch's arrival to its leader's ack."
            ),
            _latency("Commit", "tidelog_commit_latency_seconds", "From a batch's append until it is committed."),
            _latency("Fetch", "tidelog_replica_fetch_latency_seconds", "From a follower's fetch to the answer."),
            _latency(
                "End to end",
                "tidelog_gateway_end_to_end_latency_seconds",
                "From a batch's first timestamp to its delivery.",
            ),
        ),
    ),
    (
        "Traffic",
        (
            _plot(
                "Records",
                "ops",
                "Per second, by gateway.",
                (_rate("tidelog_gateway_produced_records_total", "instance"), "in {{instance}}"),
                (_rate("tidelog_gateway_delivered_records_total", "instance"), "out {{instance}}"),
            ),
            _plot(
                "Bytes",
                "Bps",
                "Per second, by gateway.",
                (_rate("tidelog_gateway_produced_bytes_total", "instance"), "in {{instance}}"),
                (_rate("tidelog_gateway_delivered_bytes_total", "instance"), "out {{instance}}"),
            ),
            _plot(
                "Produce errors",
                "ops",
                "Batches answered with an error, and tries that nobody saw.",
                (_rate("tidelog_gateway_produce_errors_total", "code"), "{{code}}"),
                (_rate("tidelog_gateway_produce_retries_total", "code"), "tried again: {{code}}"),
            ),
            _plot(
                "Waiting at gateways",
                "short",
                "Batches that leaders have yet to ack, and open subscriptions.",
                ("sum by (instance) (tidelog_gateway_in_flight_batches)", "batches {{instance}}"),
                ("sum by (instance) (tidelog_gateway_subscriptions)", "subscriptions {{instance}}"),
            ),
            _plot(
                "Limits of slow servers",
                "Bps",
                "What a gateway sends at most to a replica server whose acks are late. No line: no limit.",
                ("tidelog_gateway_server_limit_bytes_per_second", "{{server}} at {{instance}}"),
            ),
            _plot(
                "Producers that wait for slow servers",
                "short",
                "Pauses that acks asked for, in seconds per second; batches that waited at gateways, per second.",
                (_rate("tidelog_gateway_throttle_time_seconds_total", "principal"), "pauses of {{principal}}"),
                (_rate("tidelog_gateway_throttle_holds_total", "principal"), "waits of {{principal}}"),
            ),
        ),
    ),
    (
        "Consumer groups",
        (
            _plot(
                "Lag",
                "short",
                "Committed records that the group has not processed.",
                ("sum by (group) (tidelog_group_lag_records)", "{{group}}"),
            ),
            _plot(
                "Members",
                "short",
                "Of groups that have a coordinator.",
                ("sum by (group) (tidelog_group_members)", "{{group}}"),
            ),
            _plot(
                "Generations and members put out",
                "short",
                "Per second: news for some member; members that were silent, or too slow to give partitions up.",
                ("sum(rate(tidelog_group_generations_total[$__rate_interval]))", "generations"),
                ("sum(rate(tidelog_group_expelled_members_total[$__rate_interval]))", "members put out"),
            ),
            _plot(
                "Commits",
                "short",
                "Per second: taken, and refused by code.",
                ("sum(rate(tidelog_group_commits_total[$__rate_interval]))", "taken"),
                (_rate("tidelog_group_commit_errors_total", "code"), "{{code}}"),
            ),
        ),
    ),
    (
        "Transactions",
        (
            _plot(
                "Not at their end",
                "short",
                "By state; committing and aborting: leaders have yet to hear of it.",
                ("sum by (state) (tidelog_replica_transactions)", "{{state}}"),
            ),
            _plot(
                "The oldest",
                "s",
                "For how long it has been in that state: so long readers of what is committed have been held up.",
                ("max by (state) (tidelog_replica_oldest_transaction_seconds)", "{{state}}"),
            ),
            _plot(
                "Ended",
                "short",
                "Per second.",
                (_rate("tidelog_replica_ended_transactions_total", "outcome"), "{{outcome}}"),
            ),
        ),
    ),
    (
        "Replication",
        (
            _plot(
                "Records behind",
                "short",
                "What each follower lacks of all that is led elsewhere.",
                ("sum by (follower) (tidelog_replication_lag_records)", "{{follower}}"),
            ),
            _plot(
                "Time behind",
                "s",
                "How long ago each follower had everything of its worst partition.",
                ("max by (follower) (tidelog_replication_lag_seconds)", "{{follower}}"),
            ),
            _plot(
                "Fetches and notices",
                "ops",
                "Per second, by follower.",
                (_rate("tidelog_replica_fetches_total", "follower"), "fetches of {{follower}}"),
                (_rate("tidelog_replica_notices_total", "follower"), "notices to {{follower}}"),
            ),
            _plot(
                "Bytes to followers",
                "Bps",
                "Per second, by follower.",
                (_rate("tidelog_replica_fetched_bytes_total", "follower"), "{{follower}}"),
            ),
            _plot(
                "In-sync sets",
                "ops",
                "That shrank or grew, per second.",
                (_rate("tidelog_isr_changes_total", "event"), "{{event}}"),
            ),
            _latency("Catching up", "tidelog_follower_catch_up_seconds", "How long a replica was out of sync."),
        ),
    ),
    (
        "Leaders",
        (
            _plot(
                "Partitions led",
                "short",
                "By server.",
                ("sum by (server) (tidelog_partition_leaders)", "{{server}}"),
            ),
            _plot(
                "Elections",
                "ops",
                "Per second, by cause.",
                (_rate("tidelog_elections_total", "cause"), "{{cause}}"),
            ),
            _plot(
                "Moves",
                "short",
                "Partitions that are being moved, and those not led by their preferred replica.",
                ("sum(tidelog_reassigning_partitions)", "being moved"),
                ("sum(tidelog_not_preferred_partitions)", "not led by the preferred replica"),
            ),
        ),
    ),
    (
        "Disks",
        (
            _plot(
                "Free", "bytes", "Room on the disk of the data.", ("tidelog_replica_disk_free_bytes", "{{instance}}")
            ),
            _plot("Logs", "bytes", "Size of all logs.", ("tidelog_replica_log_bytes", "{{instance}}")),
            _latency("Syncs", "tidelog_replica_flush_seconds", "How long a sync takes."),
            _plot(
                "Damage",
                "short",
                "Damaged logs, partitions whose copies differ, batches that no reader can decode, full disks.",
                ("tidelog_replica_damaged_partitions", "damaged {{instance}}"),
                ("tidelog_replica_differing_partitions", "differing {{instance}}"),
                ("tidelog_replica_unreadable_batches", "unreadable {{instance}}"),
                ("tidelog_replica_disk_full", "full {{instance}}"),
            ),
        ),
    ),
    (
        "Controllers",
        (
            _latency(
                "Metadata commits", "tidelog_raft_commit_latency_seconds", "From a proposal until it is applied."
            ),
            _latency("Store", "tidelog_raft_persist_seconds", "One transaction, with its sync."),
            _plot(
                "Elections of controllers",
                "short",
                "How often one stood for leader.",
                ("increase(tidelog_raft_elections_total[$__rate_interval])", "{{instance}}"),
            ),
            _plot("Log", "short", "Entries that are not compacted.", ("tidelog_raft_log_entries", "{{instance}}")),
        ),
    ),
    (
        "Processes",
        (
            _plot(
                "CPU",
                "percentunit",
                "Of one core.",
                ("rate(process_cpu_seconds_total[$__rate_interval])", "{{instance}}"),
            ),
            _plot("Memory", "bytes", "Resident.", ("process_resident_memory_bytes", "{{instance}}")),
            _plot("Descriptors", "short", "Open.", ("process_open_fds", "{{instance}}")),
            _plot(
                "Lines of the log",
                "ops",
                "By event, per second; docs/operations.md says what each means.",
                (f"{_rate('tidelog_replica_events_total', 'event')} > 0", "{{event}}"),
                (f"{_rate('tidelog_controller_events_total', 'event')} > 0", "{{event}}"),
            ),
        ),
    ),
)
SOURCE = {"type": "prometheus", "uid": "${source}"}
OURS = "tidelog_raft_role|tidelog_replica_registered|tidelog_gateway_connections"
GRID = 24


def page() -> str:
    """Return the board as JSON, to be imported into Grafana 10 or newer."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS:
        place = {"x": 0, "y": y, "w": GRID, "h": 1}
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "gridPos": place, "panels": []})
        y += 1
        width, height = (GRID // len(row), 4) if row[0].stat else (GRID // min(len(row), 4), 8)
        for i, panel in enumerate(row):
            across = GRID // width
            place = {"x": i % across * width, "y": y + i // across * height, "w": width, "h": height}
            panels.append(_panel(len(panels) + 1, panel, place))
        y += (len(row) * width + GRID - 1) // GRID * height
    jobs = f'query_result(count by (job) ({{__name__=~"{OURS}"}}))'
    variables = [
        {"name": "source", "label": "Source", "type": "datasource", "query": "prometheus"},
        {
            "name": "job",
            "label": "Job",
            "type": "query",
            "datasource": SOURCE,
            "refresh": 2,
            "query": {"query": jobs, "refId": "jobs"},
            "regex": '/job="([^"]+)"/',
            "multi": True,
            "includeAll": True,
            "current": {"text": "All", "value": "$__all"},
        },
    ]
    described = {
        "title": "Tidelog",
        "uid": "tidelog",
        "tags": ["tidelog"],
        "schemaVersion": 39,
        "editable": True,
        "description": "Generated from deploy/generate/grafana_board.py by `make pages`.",
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "panels": panels,
    }
    return json.dumps(described, indent=1) + "\n"


def _panel(id: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green" if panel.alarm else "text", "value": None}]
    if panel.alarm is not None:
        steps.append({"color": "red", "value": panel.alarm})
    defaults = {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}}
    targets = [
        {"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": _of_jobs(expr), "legendFormat": legend}
        for i, (expr, legend) in enumerate(panel.queries)
    ]
    options = {"reduceOptions": {"calcs": ["lastNotNull"]}} if panel.stat else {"tooltip": {"mode": "multi"}}
    return {
        "id": id,
        "type": "stat" if panel.stat else "timeseries",
        "title": panel.title,
        "description": panel.help,
        "datasource": SOURCE,
        "gridPos": place,
        "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
    }


def _of_jobs(expr: str) -> str:
    def choose(found: re.Match[str]) -> str:
        selector = (found[2] or "{}")[1:-1]
        return f'{found[1]}{{{selector + ", " if selector else ""}job=~"$job"}}'

    return NAMES.sub(choose, expr)
