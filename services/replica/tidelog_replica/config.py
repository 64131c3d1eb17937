"""Configuration of a replica server.

``ReplicaConfig`` is read at the start. ``ReplicaSettings`` in it has the times and bounds that the cores use.
Settings of the cluster and of topics live in the metadata.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from tidelog.errors import ConfigError
from tidelog.runtime.config import setting
from tidelog.runtime.listen_config import ListenConfig
from tidelog.runtime.operating_system import can_drop_from_cache
from tidelog.types import TopicConfig


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Settings of the stream coordinators. The metadata of each field explain it (``help``) and bound it (``min``,
    ``max``)."""

    max_streams: int = setting(20_000, "Most streams of one partition of __streams.", 1, 1 << 24)
    principal_max_streams: int = setting(
        10_000, "Most streams of one partition of __streams that one principal has created.", 1, 1 << 24
    )
    max_producers: int = setting(1000, "Most idempotent producers that one stream remembers.", 1, 1 << 20)
    read_bytes: int = setting(1 << 20, "Most bytes of appends in the answer to one read; one append in any case.", 1)


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Settings of the group coordinators. The metadata of each field explain it (``help``) and bound it (``min``,
    ``max``)."""

    heartbeat_ms: int = setting(3000, "How often members of consumer groups are to heartbeat.", 10, 60_000)
    session_min_ms: int = setting(6000, "Shortest session timeout that a member may ask for.", 10, 3_600_000)
    session_max_ms: int = setting(1_800_000, "Longest session timeout that a member may ask for.", 10, 86_400_000)
    offsets_retention_ms: int = setting(
        604_800_000,
        "The positions of a group without members and commits for so long are deleted.",
        1,
        1 << 50,
    )
    max_groups: int = setting(10_000, "Most groups of one partition of __groups.", 1, 1 << 20)
    principal_max_groups: int = setting(
        2000, "Most groups of one partition of __groups that one principal has begun.", 1, 1 << 20
    )
    max_members: int = setting(1000, "Most members of one group.", 1, 1 << 16)
    principal_max_members: int = setting(
        2000, "Most members of groups of one partition of __groups that one principal has.", 1, 1 << 20
    )
    max_topics: int = setting(256, "Most topics that one member subscribes to.", 1, 1 << 16)
    max_metadata_bytes: int = setting(4096, "Longest text that a member may commit with a position.", 0, 1 << 16)
    max_joins_per_s: int = setting(
        500,
        "Most joins per second that one partition of __groups takes; further ones are refused for the moment.",
        1,
        1 << 20,
    )


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Settings of the transaction coordinators. The metadata of each field explain it (``help``) and bound it
    (``min``, ``max``)."""

    timeout_max_ms: int = setting(
        900_000, "Longest time-out of a transaction: readers may have to wait so long for it.", 10, 86_400_000
    )
    open_max_ms: int = setting(
        86_400_000,
        "Longest time that a transaction may be open whose client renews its time-out.",
        10,
        1 << 50,
    )
    staged_timeout_ms: int = setting(
        3_600_000,
        "A staged transaction that is prepared and not committed for so long is aborted.",
        10,
        1 << 50,
    )
    retention_ms: int = setting(
        604_800_000,
        "The state of an application without a transaction or a new numbered batch for so long is deleted.",
        10,
        1 << 50,
    )
    visible_wait_ms: int = setting(
        2000,
        "How long the answer to a commit waits for its markers; then it names the partitions without one.",
        0,
        2500,
    )
    retry_ms: int = setting(100, "Pause before a marker is sent again to a leader that did not answer.", 1, 60_000)
    max_transactions: int = setting(
        10_000, "Most transactions and applications of one partition of __transactions.", 1, 1 << 20
    )
    principal_max_applications: int = setting(
        2000, "Most applications of one partition of __transactions that one principal has begun.", 1, 1 << 20
    )
    principal_max_open: int = setting(
        5000, "Most transactions of one partition of __transactions that one principal has open.", 1, 1 << 20
    )
    max_partitions: int = setting(1000, "Most partitions of one transaction.", 1, 1 << 16)
    batches_kept: int = setting(
        100, "How many committed batches of an application are remembered, one by one.", 1, 10_000
    )


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """Times and bounds of a replica server, which its cores use. The metadata of each field explain it (``help``) and
    bound it (``min``, ``max``). Creating an instance raises ``ConfigError``, which names all values that are out of
    range or do not fit together."""

    heartbeat_s: float = setting(0.5, "Seconds between heartbeats to the controller.", 0.01, 60)
    controller_timeout_s: float = setting(1.5, "Longest wait for an answer of the controller.", 0.05, 60)
    controller_retry_s: float = setting(0.2, "Pause before a failed registration is tried again.", 0.01, 60)
    replica_max_idle_wait_s: float = setting(
        3.3,
        "Longest pause between a follower's requests to a leader server for what it has missed; below a third of the"
        " topics' lag time.",
        0.01,
        600,
    )
    replica_min_leader_timeout_s: float = setting(
        0.6,
        "A leader whose server has answered at once so far is reported when it is silent for so long; one that was"
        " seen to be slower gets more, up to replica_max_leader_timeout_s.",
        0.05,
        600,
    )
    replica_max_leader_timeout_s: float = setting(
        1.5,
        "A leader that is silent for so long is reported in any case; as one with no answer for four times that.",
        0.05,
        600,
    )
    changes_at_once: int = setting(
        100, "Most partitions whose changes of the metadata are acted on in one turn.", 1, 1 << 20
    )
    leader_report_interval_s: float = setting(0.5, "Pause between reports of the same silent leader.", 0.01, 600)
    fetch_max_bytes: int = setting(
        4 << 20, "Most bytes of batches in the answer to a fetch, and a batch more.", 64 << 10, 4 << 20
    )
    notify_max_bytes: int = setting(
        64 << 10, "Most bytes of batches that a partition sends to an idle follower unasked; 0: none.", 0, 1 << 20
    )
    catchup_max_bytes_per_s: int = setting(
        64 << 20,
        "Most bytes per second that this server fetches of partitions in which it is not in sync: about a third of"
        " what one link was seen to carry, so that catching up leaves most of it to live traffic. 0: no limit.",
        0,
        1 << 40,
    )
    fetch_backoff_s: float = setting(0.05, "First pause after a failed fetch; it doubles.", 0.001, 60)
    fetch_backoff_max_s: float = setting(0.5, "Longest pause after a failed fetch.", 0.001, 60)
    isr_retry_s: float = setting(0.5, "Pause before an unanswered ISR proposal is sent again.", 0.01, 60)
    disk_stall_s: float = setting(
        5.0, "A leader whose flush takes longer hands over; at most half of the topic's lag time.", 0.01, 600
    )
    shutdown_s: float = setting(
        3.0, "Longest time that a server which is stopped waits for others to take over; 0: it just ends.", 0, 600
    )
    proof_patience_s: float = setting(
        0.2, "Wait for the followers to prove who leads, before the controllers are asked.", 0.001, 60
    )
    ack_timeout_s: float = setting(5.0, "Wait for an ack when the producer names none.", 0.01, 600)
    ack_timeout_max_s: float = setting(120.0, "Longer waits of producers are cut to this.", 0.01, 3600)
    read_wait_max_s: float = setting(30.0, "Longest time that a read waits for records.", 0.01, 600)
    read_proof_max_s: float = setting(
        1.0, "Longest wait of a read for the proof that no other replica has committed more.", 0.01, 60
    )
    partition_max_waiting: int = setting(
        16_384, "Most unacknowledged batches, and most waiting reads, per partition.", 1, 1 << 20
    )
    retention_check_interval_s: float = setting(
        300.0,
        "Seconds between checks of what retention deletes in a log, and of what can be compacted.",
        0.01,
        86_400,
    )
    compaction_min_dirty_ratio: float = setting(
        0.5, "A log is compacted when this part of its closed segments was not compacted yet.", 0.01, 1
    )
    reserve_bytes: int = setting(
        32 << 20,
        "Disk space that a reserved file keeps for a full disk, and the free space below which a disk counts as full;"
        " 0: none.",
        0,
        1 << 40,
    )
    checkpoint_interval_s: float = setting(5.0, "Seconds between checkpoints of moved high watermarks.", 0.01, 600)
    index_cache_bytes: int = setting(
        64 << 20,
        "Memory for the indexes of full segments of all logs together: a hundredth of the segments that are read.",
        1 << 20,
        1 << 36,
    )
    tail_cache_bytes: int = setting(
        16 << 20, "Memory for the newest batches of all logs together, which are served without the disk.", 0, 1 << 36
    )

    scrub_bytes_per_s: int = setting(
        4 << 20, "Bytes a second at which segments are read again to find damage; 0: only when asked.", 0, 1 << 36
    )
    scrub_interval_s: float = setting(
        86_400.0, "Seconds from one round of scrubbing to the next; the first begins after a 24th.", 1, 31_536_000
    )

    streams: StreamSettings = field(
        default_factory=StreamSettings, metadata={"help": "Streams whose coordinator is on this server."}
    )
    groups: GroupSettings = field(
        default_factory=GroupSettings, metadata={"help": "Consumer groups coordinated here."}
    )
    transactions: TransactionSettings = field(
        default_factory=TransactionSettings, metadata={"help": "Transactions coordinated here."}
    )

    def __post_init__(self) -> None:
        faults = [
            f"{f.name} = {getattr(self, f.name)}: must be from {f.metadata['min']} to {f.metadata['max']}"
            for f in fields(self)
            if "min" in f.metadata and not f.metadata["min"] <= getattr(self, f.name) <= f.metadata["max"]
        ]
        if self.fetch_backoff_s > self.fetch_backoff_max_s:
            faults.append("fetch_backoff_s must not be larger than fetch_backoff_max_s")
        if self.ack_timeout_s > self.ack_timeout_max_s:
            faults.append("ack_timeout_s must not be larger than ack_timeout_max_s")
        if self.groups.session_min_ms > self.groups.session_max_ms:
            faults.append("groups.session_min_ms must not be larger than groups.session_max_ms")
        if faults:
            raise ConfigError("\n".join(faults))


def leader_settings(config: TopicConfig) -> dict[str, Any]:
    """Return those settings of a topic that a leader's core uses and that may change, by name: the keyword arguments
    of ``LeaderState`` and of its ``configure``. Times are in seconds."""
    return {
        "min_insync_replicas": config.min_insync_replicas,
        "max_lag_s": config.replica_max_lag_ms / 1000,
        "max_lag_records": config.replica_max_lag_records,
        "unclean_election": config.unclean_election,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaConfig(ListenConfig):
    """The configuration of a replica server, read one time at the start by ``tidelog.runtime.config.load``, which
    checks every setting against the metadata of its field."""

    node: str = setting("r1", "Name of this replica server, unique in the cluster.")
    cluster: str = setting("", "Id of the cluster; empty: what the data directory or the controllers say.")
    host: str = setting("127.0.0.1", "Address to listen on.")
    port: int = setting(9092, "Port to listen on; 0 takes a free one.", 0, 65535)
    advertised_url: str = setting("", "URL under which others reach this server; empty: the one listened on.")
    rack: str = setting(
        "", "Name of what fails together (rack, zone): replicas go to different ones; empty: a rack of its own."
    )
    data_dir: str = setting("data", "Folder of the log; one process at a time may use it.")
    controllers: tuple[str, ...] = setting(("ws://127.0.0.1:9192",), "URLs of the controllers.")
    encryption_key_file: str = setting(
        "", "File with the keys that encrypt segments at rest, `ID:KEY` each, the current one first; empty: none."
    )
    encryption_key_env: str = setting(
        "", "Name of an environment variable with the same keys as such a file. At most one of the two may be set."
    )
    flush_threads: int = setting(2, "Flushes that run side by side.", 1, 64)
    job_threads: int = setting(
        2, "Long work on the disk (opening, compacting, checking logs) that runs side by side.", 1, 64
    )
    max_open_files: int = setting(
        0,
        "Most log files open at once; 0: three quarters of what the process may open (RLIMIT_NOFILE, hard).",
        0,
        1 << 24,
    )
    cached_bytes_per_file: int = setting(
        0,
        "So much of the end of each log file stays in the page cache, what is older is given back: where memory is"
        " scarce, or a virtual machine's host takes free pages away. 0: the kernel decides. Linux only.",
        0,
        1 << 40,
    )
    metrics: bool = setting(True, "Show metrics to Prometheus: HTTP GET /metrics on the port.")
    log_json: bool | None = setting(None, "Log as JSON; unset: unless on a terminal.")
    settings: ReplicaSettings = field(default_factory=ReplicaSettings, metadata={"help": "Times and bounds."})

    def faults(self) -> list[str]:
        """Return what is wrong with single settings or their combination, one text for each fault; an empty list if
        nothing is wrong. ``tidelog.runtime.config.load`` calls it."""
        found = [f"{name}: must not be empty" for name in ("node", "data_dir") if not getattr(self, name)]
        if not self.controllers:
            found.append("controllers: name at least one")
        found += self.faults_of_urls([("controllers", url) for url in self.controllers])
        if self.encryption_key_file and self.encryption_key_env:
            found.append("encryption_key_file, encryption_key_env: set one of them")
        if self.cached_bytes_per_file and not can_drop_from_cache():
            found.append("cached_bytes_per_file: only Linux can bound its page cache for a file: leave it at 0")
        if self.advertised_url:
            found += self.faults_of_urls([("advertised_url", self.advertised_url)])
        return found + self.faults_of_listening(self.host, bool(self.tls_ca), "set tls_ca")
