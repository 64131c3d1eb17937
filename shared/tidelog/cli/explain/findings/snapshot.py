"""The state of a cluster that ``tidelog doctor`` has observed, from which all findings are derived."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tidelog.cli.explain.certificate_looks import CertificateLook
from tidelog.cli.explain.disk_growth import Growth
from tidelog.cli.explain.gateway_looks import GatewayLook
from tidelog.cli.explain.group_looks import GroupLook
from tidelog.cli.explain.histories import Histories
from tidelog.cli.explain.retention_waits import AwaitedGroup, KeptForGroup
from tidelog.cli.explain.streaming_queries import OverdueQuery
from tidelog.wire.messages import (
    DifferingCopies,
    FeaturesAnswer,
    MetadataAnswer,
    QuorumAnswer,
    StableOffset,
    TransactionInfo,
    UnreadablePlace,
)


@dataclass(frozen=True, slots=True)
class WaitingReaders:
    """A partition in which readers of committed records have waited long at one offset, ``stable``, for a transaction
    to end. ``transaction`` is the transaction as its coordinator describes it; None: no coordinator has it."""

    partition: str
    leader: str
    stable: StableOffset
    transaction: TransactionInfo | None
    records: int = -1
    """Number of records from that offset up to the high watermark, which these readers do not get; -1: not known."""


@dataclass(frozen=True)
class ClusterSnapshot:
    """The observed state of a cluster, from which ``examine`` derives findings. ``quorum`` is None if the controllers
    did not answer. ``metrics``, ``versions`` and ``clocks`` have an entry for each process that answered, by its
    name: the values of its metrics, summed over labels; its version; and the seconds by which its clock is ahead of
    this machine's. ``lags`` has (members, records behind) by consumer group. ``unreadable`` are batches that no
    reader can decode, and ``differing`` partitions whose copies differ, both as the servers report them."""

    metadata: MetadataAnswer
    quorum: QuorumAnswer | None
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    clocks: Mapping[str, float] = field(default_factory=dict)
    lags: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    histories: Histories = field(default_factory=dict)
    """Histories of partitions, as the controllers remember them."""
    unreadable: Collection[UnreadablePlace] = ()
    waits: tuple[WaitingReaders, ...] = ()
    differing: Collection[DifferingCopies] = ()
    features: FeaturesAnswer | None = None
    """Feature levels; None if they are not known: the controllers are of a release without levels, or no process
    answered."""
    growth: Growth = field(default_factory=Growth)
    """Growth of topics from which nothing is ever deleted."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Slow server -> most bytes per second that the gateway sends to it."""
    heirs: tuple[str, ...] = ()
    """Principals, as rules name them, that may change tokens and rules only because they could before an upgrade."""
    awaited: tuple[AwaitedGroup, ...] = ()
    """Consumer groups that retention waits for, in each partition."""
    kept: tuple[KeptForGroup, ...] = ()
    """What logs keep only because retention waits, as their leaders report."""
    pages: Mapping[str, str] = field(default_factory=dict)
    """The metrics of each process that answered, as text, by its name: for ``explain/samples.py``."""
    now_ms: int = 0
    """Time of the snapshot by the clock of the active controller, which the times in ``histories`` are of, in
    milliseconds; 0: not known."""
    overdue: tuple[OverdueQuery, ...] = ()
    """Streaming queries that have committed nothing although records wait for them."""
    groups: tuple[GroupLook, ...] = ()
    """What consumer groups are doing."""
    gateways: tuple[GatewayLook, ...] = ()
    """What gateways say of their clients."""
    certificates: tuple[CertificateLook, ...] = ()
    """Certificates that the processes show."""
