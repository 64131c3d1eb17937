"""The configuration of a controller: what the file, the environment and the command line may set."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog.runtime.config import setting
from tidelog.runtime.listen_config import ListenConfig

from tidelog_controller.raft.settings import RaftSettings


@dataclass(frozen=True, slots=True)
class BalanceSettings:
    """The settings of transfers of leadership, reassignments and slow servers. They are the same on all
    controllers."""

    transfer_timeout_s: float = setting(
        5.0, "how long a leader that is to hand over takes no batches, at most; then it goes on leading", 0.05, 600.0
    )
    transfers_at_once: int = setting(8, "transfers of leadership under way at a time", 1, 10_000)
    moves_per_server: int = setting(
        4, "reassignments of a rebalance that concern one server at a time; the others wait for their turn", 1, 10_000
    )
    leader_imbalance_percentage: int = setting(
        10,
        "percentage of the partitions that prefer a server which others may lead before all of them return to it",
        0,
        100,
    )
    leader_imbalance_check_interval_s: float = setting(
        60.0,
        "time between two checks of leader_imbalance_percentage; 0: leaderships never return by themselves",
        0.0,
        86_400.0,
    )
    leader_min_term_s: float = setting(
        60.0, "a partition whose leader changed within this time is not moved for the sake of balance", 0.0, 86_400.0
    )
    lag_threshold_s: float = setting(
        2.0,
        "a replica that was not caught up for so long, and its leader, are suspected of being slow; 0: never",
        0.0,
        600.0,
    )
    lag_patience_s: float = setting(
        15.0,
        "a server is slow when most of what its peers and it report of each other was suspect for so long",
        0.0,
        86_400.0,
    )


@dataclass(frozen=True, slots=True)
class TimelineSettings:
    """The settings of the topic ``__timeline`` and of its keyframes. They are the same on all controllers."""

    replication_factor: int = setting(
        3, "replicas of the topic __timeline, as far as there are servers; 0: no timeline is written", 0, 100
    )
    retention_ms: int = setting(
        31_536_000_000, "retention_ms of __timeline when it is created; -1: it is kept for ever", -1, 1 << 50
    )
    settle_s: float = setting(
        5.0, "how long __timeline waits for so many servers before it is created on fewer", 0.0, 600.0
    )
    keyframe_events: int = setting(2000, "a keyframe is written after so many events", 1, 1 << 30)
    keyframe_interval_s: float = setting(21_600.0, "a keyframe is written after this time, too", 1.0, 31_536_000.0)


@dataclass(frozen=True, slots=True)
class OwnerSettings:
    """The settings that limit how many topics and partitions each principal may have created. They are the same on
    all controllers."""

    principal_max_topics: int = setting(2000, "topics that one principal has created", 1, 1 << 20)
    principal_max_partitions: int = setting(20_000, "partitions of all topics that one principal has created", 1)


@dataclass(frozen=True, slots=True)
class GroupsTopicSettings:
    """The size with which the topic ``__groups``, ``__transactions`` or ``__streams`` is created. The settings are
    the same on all controllers."""

    partitions: int = setting(16, "partitions; their leaders share the coordination", 1, 1000)
    replication_factor: int = setting(3, "replicas, as far as there are servers", 1, 100)


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """The times and bounds of a controller. They are the same on all controllers."""

    session_timeout_s: float = setting(
        3.0, "time without a heartbeat after which a replica server is fenced", 0.05, 600.0
    )
    broken_link_grace_s: float = setting(
        0.75, "time after which a replica server is fenced when the link of its heartbeats broke", 0.01, 600.0
    )
    leader_report_window_s: float = setting(5.0, "how long a report of a dead leader counts", 0.05, 600.0)
    request_timeout_s: float = setting(5.0, "how long a request waits for a majority of the controllers", 0.05, 600.0)
    max_pending: int = setting(4096, "requests waiting for Raft; more are refused", 1, 1 << 20)
    balance: BalanceSettings = field(default_factory=BalanceSettings)
    owners: OwnerSettings = field(default_factory=OwnerSettings)
    timeline: TimelineSettings = field(default_factory=TimelineSettings)
    groups: GroupsTopicSettings = field(default_factory=GroupsTopicSettings)
    transactions: GroupsTopicSettings = field(default_factory=GroupsTopicSettings)
    streams: GroupsTopicSettings = field(default_factory=GroupsTopicSettings)
    raft: RaftSettings = field(default_factory=RaftSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig(ListenConfig):
    """The whole configuration of one controller. ``tidelog.runtime.config.load`` reads it once, at the start, and
    checks every setting against its metadata."""

    node: str = setting("c1", "Name of this controller, unique in the cluster.")
    cluster: str = setting("tidelog", "Id of the cluster; data and peers of another one are refused.")
    host: str = setting("127.0.0.1", "Address to listen on.")
    port: int = setting(9192, "Port to listen on; 0 takes a free one.", 0, 65535)
    data_dir: str = setting("data", "Folder of the Raft log; one process at a time may use it.")
    peers: dict[str, str] = field(
        default_factory=dict,
        metadata={"help": "URL of every controller by name, this one included; none: this one is alone."},
    )
    join: bool = setting(False, "Wait to be added to the group that peers names (tidelog controllers add).")
    shutdown_s: float = setting(5.0, "Longest wait for another controller to take over at the end.", 0.0, 60.0)
    metrics: bool = setting(True, "Show metrics to Prometheus: HTTP GET /metrics on the port.")
    log_json: bool | None = setting(None, "Log as JSON; unset: unless on a terminal.")
    settings: ControllerSettings = field(default_factory=ControllerSettings, metadata={"help": "Times and bounds."})

    def faults(self) -> list[str]:
        """Return a text for people for each fault in the combination of settings, such as peers that do not name this
        controller; an empty list if there is none."""
        found = [f"{name}: must not be empty" for name in ("node", "cluster", "data_dir") if not getattr(self, name)]
        if self.peers and self.node not in self.peers:
            found.append(
                f"peers: must name this controller too, and {self.node} is not among {', '.join(self.peers)}"
            )
        if self.join and len(self.peers) < 2:
            found.append("join: peers must name the controllers that there are, and this one")
        found += self.faults_of_urls([(f"peers.{node}", url) for node, url in self.peers.items()])
        if len(set(self.peers.values())) < len(self.peers):
            found.append("peers: two controllers have the same URL")
        return found + self.faults_of_listening(self.host, bool(self.tls_ca), "set tls_ca")
