"""The alerting rules of ``deploy/prometheus/alerts.yml``, which ``make pages`` writes."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Alert:
    """One alerting rule. ``for_``: how long ``expr`` must hold before it fires. ``help``: what it means and what to
    do."""

    name: str
    expr: str
    for_: str
    severity: str
    summary: str
    help: str


def _slowest(metric: str) -> str:
    """Return the expression for the 99th percentile of a histogram, by instance, over five minutes."""
    return f"histogram_quantile(0.99, sum by (le, instance) (rate({metric}_bucket[5m])))"


ALERTS = (
    Alert(
        "TidelogPartitionsOffline",
        "sum(tidelog_offline_partitions) > 0",
        "1m",
        "critical",
        "Partitions without a leader: {{ $value }}",
        "Nothing can be written to them or read. 'tidelog doctor' names them, 'tidelog why TOPIC/PARTITION' says"
        " whose end left them without; start those servers.",
    ),
    Alert(
        "TidelogUnderMinIsr",
        "sum(tidelog_under_min_isr_partitions) > 0",
        "1m",
        "critical",
        "Partitions that refuse records: {{ $value }}",
        "Fewer replicas are in sync than min_insync_replicas, so 'all' produces are refused. 'tidelog doctor' names"
        " them and the servers that are missing.",
    ),
    Alert(
        "TidelogServerLimited",
        "min by (server) (tidelog_gateway_server_limit_bytes_per_second) >= 0",
        "10m",
        "warning",
        "{{ $labels.server }} is slow: a gateway sends it {{ $value }} bytes a second at most",
        "Its acks took longer than throttle_target_s while batches queued, so producers are asked to pause. Look at"
        " its disk, its CPU, and the followers of its partitions.",
    ),
    Alert(
        "TidelogUnderReplicated",
        "sum(tidelog_under_replicated_partitions) > 0",
        "10m",
        "warning",
        "Partitions with a replica that is not in sync: {{ $value }}",
        "One more failure may stop them. Start what is down; what catches up shows in tidelog_partition_lag_records.",
    ),
    Alert(
        "TidelogPartitionsClosed",
        "sum(tidelog_read_only_partitions) + sum(tidelog_paused_partitions) > 0",
        "1h",
        "info",
        "Read-only partitions plus paused ones: {{ $value }}",
        "Somebody closed them. Sends to them are refused, and paused ones are not read either. 'tidelog doctor' says"
        " who did that and when, and how to open them again.",
    ),
    Alert(
        "TidelogNoActiveController",
        "absent(tidelog_controller_active == 1)",
        "1m",
        "critical",
        "No controller is active",
        "Leaders go on while every replica that could be elected confirms them. One more server that fails stops all"
        " partitions in which it has a vote, and nothing can be changed. Start controllers until a majority runs.",
    ),
    Alert(
        "TidelogTwoActiveControllers",
        "sum(tidelog_controller_active) > 1",
        "2m",
        "warning",
        "{{ $value }} controllers say that they are active",
        "One of them cannot hear the others and will find out; if this stays, two clusters are scraped as one.",
    ),
    Alert(
        "TidelogControllersElectOften",
        "sum(increase(tidelog_raft_elections_total[15m])) > 5",
        "0m",
        "warning",
        'The controllers stood for election {{ $value | printf "%.0f" }} times in 15 minutes',
        "They do not hear each other in time: look at the network, at CPU, and at tidelog_raft_persist_seconds.",
    ),
    Alert(
        "TidelogControllerRolledBack",
        "tidelog_raft_rolled_back == 1",
        "0m",
        "warning",
        "{{ $labels.instance }} runs on an old copy of its disk",
        "It does not vote until the active controller has refilled it: keep the others running. 'tidelog controllers"
        " list' shows how far it is. docs/operations.md, Controllers, says what to do where none is active.",
    ),
    Alert(
        "TidelogServersFenced",
        'sum(tidelog_servers{state="fenced"}) > 0',
        "5m",
        "warning",
        "Replica servers that are not heard of: {{ $value }}",
        "'tidelog doctor' names them; start them, or see their logs.",
    ),
    Alert(
        "TidelogServersUnsteady",
        "sum(increase(tidelog_fences_total[5m])) > 3",
        "0m",
        "warning",
        'Sessions of replica servers ended {{ $value | printf "%.0f" }} times in five minutes',
        "Leaders change each time, and sends wait. 'tidelog doctor' names a server that is restarted again and again,"
        " or goes silent again and again, and tells the two apart.",
    ),
    Alert(
        "TidelogNotRegistered",
        "tidelog_replica_registered == 0",
        "2m",
        "warning",
        "{{ $labels.instance }} runs, but is not registered at the controllers",
        "Its log says why: registration_refused, controller_failed.",
    ),
    Alert(
        "TidelogCommittedRecordsLost",
        'increase(tidelog_replica_events_total{event=~"committed_records_lost|records_possibly_lost"}[1h]) > 0',
        "0m",
        "critical",
        "{{ $labels.instance }} cut off records that were committed, or may have been",
        "The cause is an unclean election, commit_rule=leader or a doubtful tail. 'tidelog why TOPIC/PARTITION' says"
        " which, and whether the records were committed.",
    ),
    Alert(
        "TidelogRetentionWaits",
        "max by (topic, group) (tidelog_partition_retention_wait_ratio) > 0.5",
        "10m",
        "warning",
        "Retention of {{ $labels.topic }} waits for group {{ $labels.group }}:"
        " {{ $value | humanizePercentage }} of the bound is used",
        "At 1 the oldest records are deleted unread. Start what reads as the group, or raise retention_waits_max_ms"
        " and retention_waits_max_bytes. docs/operations.md, Retention that waits for a group, says more.",
    ),
    Alert(
        "TidelogDeletedUnread",
        "increase(tidelog_replica_retention_unread_records_total[1h]) > 0",
        "0m",
        "critical",
        'Records that {{ $labels.instance }} deleted and a group had not read: {{ $value | printf "%.0f" }}',
        "The bound of the wait was passed. 'tidelog doctor' names the group and the offsets, and so does the log"
        " (retention_wait_ended).",
    ),
    Alert(
        "TidelogSegmentsQuarantined",
        "increase(tidelog_replica_quarantined_segments_total[1h]) > 0",
        "0m",
        "warning",
        "{{ $labels.instance }} set damaged segments aside",
        "Look for errors of the medium. docs/operations.md, Damage, describes what the server does by itself.",
    ),
    Alert(
        "TidelogLogsDamaged",
        "tidelog_replica_damaged_partitions > 0",
        "15m",
        "warning",
        "Damaged logs on {{ $labels.instance }} that are not repaired: {{ $value }}",
        "No other replica can lead them: bring one back. See docs/operations.md, Damage.",
    ),
    Alert(
        "TidelogUnreadableBatches",
        "tidelog_replica_unreadable_batches > 0",
        "0m",
        "warning",
        "Batches on {{ $labels.instance }} that no reader can decode: {{ $value }}",
        "Consumers stop there, unless they skip. 'tidelog doctor' names the batches; docs/operations.md, Batches that"
        " cannot be decoded, says how to go on.",
    ),
    Alert(
        "TidelogCopiesDiffer",
        "tidelog_replica_differing_partitions > 0",
        "15m",
        "critical",
        "Partitions on {{ $labels.instance }} whose copies differ: {{ $value }}",
        "'tidelog doctor' names them. See docs/operations.md, Copies that differ.",
    ),
    Alert(
        "TidelogDiskFull",
        "tidelog_replica_disk_full == 1",
        "0m",
        "critical",
        "The disk of {{ $labels.instance }} is full: it takes no records",
        "Make room, or shorten retention: both work on a full disk.",
    ),
    Alert(
        "TidelogDiskFillsUp",
        "predict_linear(tidelog_replica_disk_free_bytes[6h], 86400) < 0 and tidelog_replica_disk_free_bytes > 0",
        "1h",
        "warning",
        "The disk of {{ $labels.instance }} will be full within a day, if it goes on like this",
        "Make room, or shorten retention.",
    ),
    Alert(
        "TidelogDiskSlow",
        "tidelog_replica_recent_flush_seconds > 0.5",
        "2m",
        "warning",
        "Syncs on {{ $labels.instance }} take {{ $value | humanizeDuration }}",
        "Acks wait for them. Find what else uses the disk, or what ails it.",
    ),
    Alert(
        "TidelogServerStarved",
        "tidelog_replica_late_ratio > 0.5",
        "2m",
        "warning",
        "{{ $labels.instance }} has to wait for its machine {{ $value | humanizePercentage }} of the time",
        "Acks of its partitions wait with it. Look at what takes the CPU of its machine, whether it swaps, and the"
        " limits of its container.",
    ),
    Alert(
        "TidelogServerUnreachable",
        "max by (instance, peer) (tidelog_replica_peer_unreachable_seconds) > 30",
        "1m",
        "warning",
        "{{ $labels.instance }} has not reached {{ $labels.peer }} for {{ $value | humanizeDuration }}",
        "If {{ $labels.peer }} runs, the network between them is cut. 'tidelog doctor' says in which direction.",
    ),
    Alert(
        "TidelogGatewayCutOff",
        "max by (instance, server) (tidelog_gateway_server_unreachable_seconds) > 30",
        "1m",
        "warning",
        "{{ $labels.instance }} has not reached {{ $labels.server }} for {{ $value | humanizeDuration }}",
        "Its clients cannot use what {{ $labels.server }} leads. If that server runs, look at the network from the"
        " gateway to it.",
    ),
    Alert(
        "TidelogClockOff",
        "abs(tidelog_wall_clock_seconds - timestamp(tidelog_wall_clock_seconds)) > 10",
        "5m",
        "warning",
        "The clock of {{ $labels.instance }} is {{ $value | humanizeDuration }} away from Prometheus'",
        "Timestamps, tokens and retention go by it. Have its machine keep time (chrony). If all are off, it is the"
        " clock of Prometheus.",
    ),
    Alert(
        "TidelogCertificateExpired",
        "last_over_time(tidelog_certificate_expiry_timestamp_seconds[7d]) <= time() and on (job, instance) up",
        "0m",
        "critical",
        "The certificate of {{ $labels.instance }} has expired",
        "Open connections continue; new ones fail, those of Prometheus too. Replace its files (tls_cert, tls_key):"
        " they are read again before the next handshake.",
    ),
    Alert(
        "TidelogCertificateExpires",
        "tidelog_certificate_expiry_timestamp_seconds - time() < 604800 > 0",
        "1h",
        "warning",
        "The certificate of {{ $labels.instance }} expires in {{ $value | humanizeDuration }}",
        "After that, open connections continue, and new ones fail. Replace its files (tls_cert, tls_key): they are"
        " read again before the next handshake.",
    ),
    Alert(
        "TidelogVersionsMixed",
        "count(count by (version) (tidelog_build_info)) > 1",
        "24h",
        "warning",
        "{{ $value }} versions have run side by side for a day",
        "Finish the upgrade: 'tidelog doctor' names the processes, docs/upgrade.md has the order.",
    ),
    Alert(
        "TidelogPipelineFailed",
        "tidelog_pipeline_output_failed == 1",
        "0m",
        "critical",
        "Output {{ $labels.output }} of a pipeline has given up",
        "Its log and /healthz have the error. docs/spark-operations.md says which errors end an output.",
    ),
    Alert(
        "TidelogPipelineDown",
        "max_over_time(tidelog_pipeline_output_up[10m]) == 0 or tidelog_pipeline_quiet_seconds > 600",
        "0m",
        "warning",
        "Output {{ $labels.output }} of a pipeline has not worked for ten minutes",
        "Its query waits for its next try, or hangs: see its log. Alert on 'up == 0' of the pipeline, too: one that"
        " has ended shows nothing. 'tidelog doctor' names a query with a consumer group that has died.",
    ),
    Alert(
        "TidelogFollowerLags",
        "max by (follower) (tidelog_replication_lag_seconds) > 30",
        "5m",
        "warning",
        "{{ $labels.follower }} is {{ $value | humanizeDuration }} behind",
        "Its disk, CPU or network cannot keep up, or it is down.",
    ),
    Alert(
        "TidelogServerSlow",
        "sum(tidelog_slow_servers) > 0",
        "15m",
        "warning",
        "Replica servers that lag in all that they have to do with others: {{ $value }}",
        "They are chosen last as leaders. tidelog_server_lag_seconds shows which.",
    ),
    Alert(
        "TidelogProduceErrors",
        "sum by (instance, code) (increase(tidelog_gateway_produce_errors_total[5m])) > 0",
        "5m",
        "warning",
        "Producers at {{ $labels.instance }} get {{ $labels.code }},"
        ' {{ $value | printf "%.0f" }} times in five minutes',
        "docs/errors.md says what the code means.",
    ),
    Alert(
        "TidelogProduceSlow",
        f"{_slowest('tidelog_gateway_produce_latency_seconds')} > 2",
        "10m",
        "warning",
        "One batch in a hundred at {{ $labels.instance }} waits {{ $value | humanizeDuration }} for its ack",
        "The board says where the time goes: commit, fetch, disk.",
    ),
    Alert(
        "TidelogGroupFallsBehind",
        "min_over_time(deriv(tidelog_group_lag_records[5m])[10m:1m]) > 0",
        "5m",
        "warning",
        'The lag of group {{ $labels.group }} grows by {{ $value | printf "%.3g" }} records a second',
        "Its members are too slow, stand still or never commit: 'tidelog doctor' says which.",
    ),
    Alert(
        "TidelogGroupRebalances",
        "sum by (instance) (increase(tidelog_group_short_lived_members_total[10m])) > 5"
        " or sum by (instance) (increase(tidelog_group_expelled_members_total[10m])) > 5",
        "0m",
        "warning",
        "Groups that {{ $labels.instance }} coordinates rebalance again and again:"
        ' {{ $value | printf "%.0f" }} members were gone in 10 minutes',
        "Members are expelled although they live, or their programs end and are started again. 'tidelog doctor' names"
        " the group, the members and why.",
    ),
    Alert(
        "TidelogGroupOvertaken",
        "max by (group) (tidelog_group_overtaken_partitions) > 0",
        "1m",
        "critical",
        "Partitions in which retention deleted what group {{ $labels.group }} had not processed: {{ $value }}",
        "Its readers end with OFFSET_OUT_OF_RANGE. 'tidelog doctor' says how many offsets are gone, and how to go on"
        " with what is left.",
    ),
    Alert(
        "TidelogPositionsMoved",
        "max by (group, direction) (max_over_time(tidelog_group_moved_positions[10m])) > 0",
        "0m",
        "warning",
        "Positions of group {{ $labels.group }} that a client that is no member set {{ $labels.direction }}:"
        " {{ $value }}",
        "Set back: the records between are processed again. Set forward: they are skipped. If nobody wanted that,"
        " 'tidelog doctor' names the partitions and the commands that put the positions back.",
    ),
    Alert(
        "TidelogQuotaUsedUp",
        "sum by (principal, rate) (increase(tidelog_gateway_quota_refusals_total[5m])) > 0",
        "10m",
        "info",
        "{{ $labels.principal }} waits for its quota of {{ $labels.rate }},"
        ' {{ $value | printf "%.0f" }} times in five minutes',
        "It is slow without an error. 'tidelog quotas list' shows the quota; raise it, or have the program do less.",
    ),
    Alert(
        "TidelogConnectionsRefused",
        'sum by (instance, cause) (increase(tidelog_gateway_refused_connections_total{cause=~".*_full"}[5m])) > 0',
        "1m",
        "critical",
        "{{ $labels.instance }} refuses clients: {{ $labels.cause }}",
        "The gateway, an address or a principal has as many connections as it may have."
        " tidelog_gateway_principal_connections and 'tidelog doctor' say who has them.",
    ),
    Alert(
        "TidelogTokensRefused",
        'sum by (instance, cause) (increase(tidelog_gateway_refused_connections_total{cause=~"token_.*"}[10m])) > 0',
        "0m",
        "warning",
        "{{ $labels.instance }} refuses clients with tokens that are not valid: {{ $labels.cause }}",
        "A program goes on with a token that was revoked or has expired. 'tidelog doctor' names the token, its"
        " principal and the address.",
    ),
    Alert(
        "TidelogTransactionsNotTold",
        'max(tidelog_replica_oldest_transaction_seconds{state=~"committing|aborting"}) > 60',
        "1m",
        "warning",
        "A transaction was decided {{ $value | humanizeDuration }} ago, and a leader has not heard of it",
        "Readers of what is committed wait there. 'tidelog transactions list' names it; a partition of it has no"
        " leader, or none that the coordinator reaches: 'tidelog doctor'.",
    ),
    Alert(
        "TidelogStableOffsetStands",
        "max(tidelog_replica_stable_offset_age_seconds) > 300",
        "1m",
        "warning",
        "Readers of what is committed have waited {{ $value | humanizeDuration }} for one transaction",
        "Its application has neither committed nor aborted it. 'tidelog doctor' names the partition, the producer and"
        " the application, and says what to do.",
    ),
    Alert(
        "TidelogFewDescriptors",
        "process_open_fds / process_max_fds > 0.85 and on (job, instance)"
        " (tidelog_replica_registered or tidelog_gateway_connections or tidelog_raft_term)",
        "10m",
        "warning",
        "{{ $labels.instance }} has used {{ $value | humanizePercentage }} of its descriptors",
        "Raise LimitNOFILE, or use more servers or gateways.",
    ),
    Alert(
        "TidelogLeadersUneven",
        "sum(tidelog_not_preferred_partitions) / sum(tidelog_partitions) > 0.3",
        "1h",
        "info",
        "{{ $value | humanizePercentage }} of the partitions are led by another than their preferred replica",
        "They go back by themselves where balance is on; else 'tidelog partitions rebalance'.",
    ),
)


def page() -> str:
    """Return the file of rules as Prometheus reads it; every text is quoted as in JSON, which YAML understands."""
    lines = [
        "# Generated from deploy/generate/alerts.py by `make pages`.",
        "groups:",
        "  - name: tidelog",
        "    rules:",
    ]
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(alert.expr)}",
            f"        for: {alert.for_}",
            f"        labels: {{severity: {alert.severity}}}",
            "        annotations:",
            f"          summary: {json.dumps(alert.summary)}",
            f"          description: {json.dumps(alert.help)}",
        ]
    return "\n".join(lines) + "\n"
