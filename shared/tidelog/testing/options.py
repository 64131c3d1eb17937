"""The options of a run: settings, topics, clients and faults, drawn from the seed or given by a scenario."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from tidelog_controller.config import BalanceSettings, ControllerSettings, GroupsTopicSettings, TimelineSettings
from tidelog_controller.raft.settings import RaftSettings
from tidelog_replica.config import ReplicaSettings, TransactionSettings

from tidelog.testing.clients.producer import ProducerOptions
from tidelog.testing.faults.strikes import Strike, Swarm
from tidelog.testing.hardware.loop import stream
from tidelog.types import Acks

NO_TIMELINE = TimelineSettings(replication_factor=0)
TIMELINE = TimelineSettings(settle_s=0.5, keyframe_events=30, keyframe_interval_s=3.0)
COORDINATED = GroupsTopicSettings(partitions=2)
CONTROLLER_SETTINGS = ControllerSettings(
    timeline=NO_TIMELINE,
    groups=COORDINATED,
    transactions=COORDINATED,
    streams=COORDINATED,
    session_timeout_s=1.5,
    leader_report_window_s=2.0,
    request_timeout_s=2.0,
    balance=BalanceSettings(transfer_timeout_s=1.0, leader_imbalance_check_interval_s=0.0),
    raft=RaftSettings(
        heartbeat_s=0.2,
        election_timeout_min_s=0.6,
        election_timeout_max_s=1.2,
        snapshot_threshold=12,
        snapshot_chunk_bytes=2048,
    ),
)
BALANCED = replace(
    CONTROLLER_SETTINGS,
    balance=BalanceSettings(transfer_timeout_s=1.0, leader_imbalance_check_interval_s=0.8, leader_min_term_s=1.5),
)
"""The settings of controllers in runs with moves: they move leaderships back to the preferred replicas."""
REPLICA_SETTINGS = ReplicaSettings(
    heartbeat_s=0.4,
    controller_timeout_s=1.0,
    replica_max_idle_wait_s=0.5,
    replica_max_leader_timeout_s=0.8,
    changes_at_once=2,
    leader_report_interval_s=0.4,
    isr_retry_s=0.3,
    checkpoint_interval_s=1.0,
    fetch_max_bytes=64 << 10,
    retention_check_interval_s=0.7,
    scrub_interval_s=24.0,
    reserve_bytes=0,
    transactions=TransactionSettings(visible_wait_ms=60),
)
RESERVE_BYTES = 1 << 16
"""The disk reserve of replica servers in half of the runs in which disks become full; servers without one stop when a
write fails."""


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """A topic that the run creates."""

    name: str
    partitions: int = 1
    replication_factor: int = 3
    config: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that a run depends on. ``draw`` derives it from a seed; scenarios build their own."""

    seed: int
    replicas: int = 3
    controllers: int = 3
    spares: int = 0
    """The number of controllers beyond the group, which an operator may add."""
    topics: tuple[TopicOptions, ...] = (TopicOptions("t"),)
    producers: tuple[ProducerOptions, ...] = ()
    consumers: int = 0
    swarm: Swarm = field(default_factory=Swarm)
    duration: float = 10.0
    patience: float = 30.0
    """The longest virtual time in seconds after healing until everything is in sync."""
    recode: bool = False
    """Whether every message passes through the real codec."""
    strikes: tuple[Strike, ...] | None = None
    """The exact faults of the run, instead of those drawn from the swarm; None draws them."""
    moves: bool = False
    """Whether an operator and the balancer move leaderships and replicas."""
    pauses: bool = False
    """Whether another operator pauses partitions, makes them read-only and resumes them."""
    timeline: bool = False
    """Whether events are written to ``__timeline``; at the end none may be missing."""
    encrypted: bool = False
    """Whether segments are encrypted, with another key in each run of a server."""
    upgrade: bool = False
    """Whether the cluster is upgraded to another feature level (``upgrader.py``)."""
    doubled_ids: bool = False
    """Whether two more producers share their producer ids, as after ids were given twice."""
    foreign: bool = False
    """Whether a client sends wrong values in every field that it writes (``foreign.py``)."""
    transactions: bool = False
    """Whether applications run transactions in a topic of their own (``applications.py``)."""
    streams: bool = False
    """Whether clients append to streams and follow them (``clients/streams.py``)."""
    archive: bool = False
    """Whether a consumer group reads for which retention of topics waits (``clients/archive.py``)."""
    rescue: bool = False
    """Whether the majority of the controllers is lost for good (``rescuer.py``)."""
    only: tuple[str, ...] | None = None
    """The names of the clients that take part; None means all."""

    @classmethod
    def draw(cls, seed: int, duration: float = 7.0) -> Options:
        """Return the options that a seed determines."""
        rng = stream(seed, "options")
        replicas = rng.choice((3, 3, 4, 5))
        names = ("t", "u", "v")[: rng.choice((1, 1, 2, 3))]
        topics = tuple(draw_topic(rng, name, replicas) for name in names)
        producers: tuple[ProducerOptions, ...] = (
            ProducerOptions(window=rng.choice((1, 3, 5)), pace=rng.choice((0.04, 0.15)), conditional=0.0),
            ProducerOptions(window=3, pace=0.1, acks=rng.choice((Acks.ALL, Acks.ALL, Acks.LEADER))),
            ProducerOptions(idempotent=False, pace=0.1, patience=2.0, conditional=rng.choice((0.0, 0.5))),
        )
        swarm = Swarm.draw(rng, 0.75 * duration)
        doubled_ids = stream(seed, "doubled ids").random() < DOUBLED_SHARE
        if doubled_ids:
            one = ProducerOptions(window=3, pace=0.1, first_id=DOUBLED_IDS, batches_per_id=3)
            producers += (one, replace(one, batches_per_id=9))  # more than a leader remembers
        mutes = stream(seed, "silent links").choice((*(0,) * 10, 1, 3))
        rots = stream(seed, "rotting stores").choice((*(0,) * 8, 1, 3))
        old_stores = stream(seed, "old stores of controllers").choice((*(0,) * 6, 1, 3))
        majorities = stream(seed, "majority of controllers").choice((*(0,) * 6, 1, 2))
        founding = stream(seed, "founding").choice((*(0,) * 14, 2, 4))
        group = stream(seed, "group").choice(("", "", "", "lose_store", "change_group"))
        return cls(
            seed,
            spares=2 if group == "change_group" else 0,
            replicas=replicas,
            topics=topics,
            producers=producers,
            consumers=2,
            swarm=replace(
                swarm,
                group=group,
                mutes=mutes,
                rots=rots,
                founding=founding,
                old_stores=old_stores,
                majorities=majorities,
            ),
            duration=duration,
            recode=seed % 10 == 0,
            moves=stream(seed, "moves").random() < 0.34,
            timeline=stream(seed, "timeline").random() < 0.25,
            pauses=stream(seed, "pauses").random() < 0.2,
            encrypted=stream(seed, "encryption").choice((*(False,) * 7, True)),
            upgrade=stream(seed, "upgrade").random() < 0.1,
            doubled_ids=doubled_ids,
            foreign=stream(seed, "foreign").random() < FOREIGN_SHARE,
            transactions=stream(seed, "transacted").random() < 0.03,
            streams=stream(seed, "streams").random() < 0.03,
        )

    @classmethod
    def draw_rescue(cls, seed: int) -> Options:
        """Return the options of a seed for a run in which the majority of the controllers is lost. Controllers suffer
        no other fault, no topic may lose records, and none is changed, so that the survivor's metadata lack only the
        leaders and ISRs."""
        drawn = cls.draw(seed)
        topics = tuple(replace(topic, config=_lossless(topic.config)) for topic in drawn.topics)
        rates = {kind: rate for kind, rate in drawn.swarm.rates.items() if kind not in _NOT_BESIDE_A_RESCUE}
        swarm = replace(drawn.swarm, rates=rates or {"kill": 1.0}, controllers=False, group="", rots=0)
        swarm = replace(swarm, founding=0, old_stores=0, majorities=0)
        plain = replace(drawn, spares=0, topics=topics, swarm=swarm, moves=False, timeline=False, pauses=False)
        return replace(plain, upgrade=False, transactions=False, streams=False, rescue=True)


_NOT_BESIDE_A_RESCUE = ("recreate_topic", "alter_topic", "wipe_disk", "restore_disk", "lose_store", "change_group")


def _lossless(config: dict[str, str]) -> dict[str, str]:
    rule = config["commit_rule"].replace("leader", "isr")
    return {**config, "unclean_election": "false", "commit_rule": rule, "flush": "fsync"}


FOREIGN_SHARE = 0.3
"""The share of seeds with a foreign client."""
DOUBLED_SHARE = 0.05
"""The share of seeds in which two producers share their producer ids."""
DOUBLED_IDS = 1 << 40
"""The first shared producer id; all others are smaller."""
TRANSACTED = "x"
"""The topic of the applications; it never loses committed records."""


def transacted_topic() -> TopicOptions:
    """Return the topic that transactions write to."""
    return TopicOptions(TRANSACTED, 2, 3, {"replica_max_lag_ms": "1600", "segment_max_bytes": "4096"})


UNCLEAN = "true"
COMMIT_RULES = ("isr", "isr", "isr", "quorum", "leader")


def draw_topic(rng: random.Random, name: str, replicas: int) -> TopicOptions:
    """Return a topic with random settings."""
    factor = rng.choice((3, 3, min(replicas, 5)))
    config = {
        "flush": rng.choice(("fsync", "fsync", "fsync", "interval", "os")),
        "flush_interval_ms": "200",
        "unclean_election": rng.choice(("false", "false", UNCLEAN)),
        "commit_rule": rng.choice(COMMIT_RULES),
        "replica_max_lag_ms": rng.choice(("1600", "3000")),
        "segment_max_bytes": rng.choice(("1024", "4096", "1048576")),
    }
    if config["commit_rule"] == "quorum":
        config["flush"] = "fsync"
    retention = rng.choice(("", "", "", "retention_records", "retention_bytes", "retention_ms"))
    if retention:
        config[retention] = {"retention_records": "40", "retention_bytes": "3000", "retention_ms": "2000"}[retention]
        config["segment_max_bytes"] = "1024"
    if rng.random() < 0.2:
        config["replica_max_lag_records"] = "20"
    minimum = rng.choice((0, 0, 1, factor))
    if minimum:
        config["min_insync_replicas"] = str(minimum)
    return TopicOptions(name, rng.choice((1, 1, 2)), factor, config)
