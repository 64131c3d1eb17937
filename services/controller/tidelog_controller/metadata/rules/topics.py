"""Topics: how a command is planned from a request to create, change or delete one, or the request refused with all
its faults at once, and what the commands change.

Not every setting may change. ``commit_rule`` says what acknowledged records rest on, and each rule elects in its own
way. ``flush`` says what "durable" meant when they were acknowledged: a server that restarts is believed to hold
everything where it is ``fsync``, which must have been so from the first record on.

The topics of the consumer groups, ``__groups``, of the transactions, ``__transactions``, and of the streams,
``__streams``, are created when they are first needed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, replace

from tidelog.batch.sparse import MOST_BYTES
from tidelog.errors import TidelogError, refuse
from tidelog.feature_levels import MAX_COMPACTION_LAG, RETENTION_WAITS, VALIDATION
from tidelog.feature_levels import STREAMS as STREAMS_LEVEL
from tidelog.quantities import parse_whole, unit_of
from tidelog.types import (
    GROUPS,
    INTERNAL_PREFIX,
    STREAMS,
    TOPIC_NAME,
    TRANSACTIONS,
    NodeId,
    TopicConfig,
    TopicOwner,
    TopicPartition,
    TopicState,
)
from tidelog.wire.messages import (
    AlterLearners,
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    Done,
    GrowTopic,
    Message,
    PauseTopic,
    PrepareGroups,
    PrepareStreams,
    PrepareTransactions,
    SetReadOnly,
    TopicCreated,
)

from tidelog_controller.config import ControllerSettings
from tidelog_controller.metadata.changeset import ChangeSet
from tidelog_controller.metadata.commands import AddTopic, ChangeTopic, RemoveTopic, SetLearners
from tidelog_controller.metadata.registry import applies
from tidelog_controller.metadata.rules.leader_election import elect, first_state
from tidelog_controller.metadata.rules.owners import refuse_new_topic, without_owner
from tidelog_controller.metadata.rules.placement import Random, candidates, placement_for
from tidelog_controller.metadata.state import MetadataState


def plan_coordinated(
    request: PrepareGroups | PrepareTransactions | PrepareStreams,
    state: MetadataState,
    settings: ControllerSettings,
    rng: Random,
    wall_ms: int,
    slow: Collection[NodeId],
) -> AddTopic | TopicCreated | TidelogError:
    """Return the command that creates the topic of groups, transactions or streams; if it exists, return the answer
    with its id. Return the error ``NOT_ENOUGH_REPLICAS`` while fewer servers are live than
    the topic is to have replicas, although that many have registered: clients try again. Return
    ``UNSUPPORTED_LEVEL`` for ``__streams`` below the feature level of streams."""
    match request:
        case PrepareGroups():
            name, size = GROUPS, settings.groups
        case PrepareTransactions():
            name, size = TRANSACTIONS, settings.transactions
        case PrepareStreams():
            name, size = STREAMS, settings.streams
    topic_id = state.names.get(name)
    if topic_id is not None:
        return TopicCreated(topic_id)
    if name == STREAMS and state.level < STREAMS_LEVEL:
        return refuse("UNSUPPORTED_LEVEL", f"streams need feature level {STREAMS_LEVEL}", level=state.level)
    factor = min(size.replication_factor, len(state.servers))
    live = sum(map(state.is_live, state.servers))
    if live < max(1, factor):
        return refuse("NOT_ENOUGH_REPLICAS", f"{name} needs {max(1, factor)} replica servers, {live} are live")
    config = {"cleanup": "compact", "segment_max_bytes": str(16 << 20)}
    if name == STREAMS:
        config |= {"segment_max_bytes": str(64 << 20), "max_batch_bytes": str(MOST_BYTES)}
    return plan_topic(state, CreateTopic(name, size.partitions, factor, config), rng, wall_ms, slow)


MAX_PARTITIONS = 10_000
"""Number of partitions of one topic, at most."""

YEARS_MS = 100 * 365 * 86_400_000
CHOICES = {
    "commit_rule": ("isr", "quorum", "leader"),
    "unclean_election": ("false", "true"),
    "flush": ("fsync", "interval", "os"),
    "cleanup": ("delete", "compact", "compact,delete"),
    "validate_batches": ("true", "false"),
}
"""The values of every setting that has a fixed number of them."""
SWITCHES = ("unclean_election", "validate_batches")
"""Settings whose values "true" and "false" stand for truth values."""
RANGES = {
    "min_insync_replicas": (1, 100),
    "flush_interval_ms": (1, 3_600_000),
    "segment_max_bytes": (1 << 10, 1 << 30),
    "segment_max_age_ms": (1_000, YEARS_MS),
    "max_batch_bytes": (1 << 10, MOST_BYTES),
    "replica_max_lag_ms": (1, 3_600_000),
    "replica_max_lag_records": (0, 1 << 40),
    "retention_ms": (-1, YEARS_MS),
    "retention_bytes": (-1, 1 << 60),
    "retention_records": (-1, 1 << 60),
    "compaction_min_lag_ms": (0, YEARS_MS),
    "max_compaction_lag_ms": (0, YEARS_MS),
    "tombstone_retention_ms": (0, YEARS_MS),
    "retention_waits_max_ms": (0, YEARS_MS),
    "retention_waits_max_bytes": (0, 1 << 60),
}
"""The least and the greatest value of every setting that is a number."""
WAITING = ("retention_waits_for", "retention_waits_max_ms", "retention_waits_max_bytes")
"""The settings of retention that waits for consumer groups."""
DEFAULTS = TopicConfig()
GROUPS_SETTING = "retention_waits_for"
"""The setting that names consumer groups."""
MAX_AWAITED = 8
"""Number of groups that retention of one topic waits for, at most."""
FIXED = ("commit_rule", "flush")
"""Settings that stay as they were when the topic was created."""


def refuse_internal(request: Message) -> TidelogError | None:
    """Return why a request of a client about one of the cluster's own topics is refused; their names begin with
    ``INTERNAL_PREFIX``. Clients may not create, delete, grow, pause or make read-only such a topic, nor change the
    settings on which the cluster relies. Return None for other topics, settings and requests."""
    if not isinstance(request, CreateTopic | DeleteTopic | GrowTopic | AlterTopic | SetReadOnly | PauseTopic):
        return None
    if not request.name.startswith(INTERNAL_PREFIX):
        return None
    if isinstance(request, CreateTopic):
        text = f"{request.name!r}: names that begin with {INTERNAL_PREFIX} are for the cluster's own topics"
        return refuse("INVALID_TOPIC", text)
    if isinstance(request, AlterTopic):
        kept = [name for name in ("cleanup", "max_batch_bytes") if name in request.config]
        text = f"{request.name} is the cluster's own topic: {', '.join(kept)} stays as it is"
        return refuse("INVALID_CONFIG", text) if kept else None
    words = {DeleteTopic: "deleted", GrowTopic: "given more partitions", PauseTopic: "paused"}
    word = words.get(type(request), "made read-only")
    return refuse("FORBIDDEN", f"{request.name} is the cluster's own topic: it cannot be {word}")


def parse_topic_config(
    texts: Mapping[str, str], replication_factor: int, present: TopicConfig | None = None
) -> tuple[TopicConfig, list[str]]:
    """Return the settings of a topic that ``texts`` gives, with defaults filled in, and a list of faults, one text
    each. With faults the settings are not usable. ``present`` are the settings of a topic that exists: settings that
    are not given stay as they are, and some must stay.

    If ``min_insync_replicas`` is not given for a new topic, it is 2 with three replicas or more, otherwise 1: one
    failure may then cost neither acknowledged records nor the ability to write. With ``commit_rule=leader`` it is 1:
    a record is committed when its leader has it, so such a topic goes on with its leader alone."""
    values: dict[str, int | str | bool] = {}
    if present is None:
        secure = replication_factor >= 3 and texts.get("commit_rule") != "leader"
        present = TopicConfig(min_insync_replicas=2 if secure else 1)
        fixed: dict[str, str] = {}
    else:
        fixed = {name: text for name, text in present.texts().items() if name in FIXED}
    faults = []
    for name, text in texts.items():
        if text != fixed.get(name, text):
            faults.append(f"{name} is {fixed[name]} for as long as the topic exists: it is chosen at its creation")
        elif name in CHOICES:
            values[name] = text == "true" if name in SWITCHES else text
            if text not in CHOICES[name]:
                faults.append(f"{name} is {text!r}; it must be one of {', '.join(CHOICES[name])}")
        elif name in RANGES:
            try:
                values[name] = _number(name, text)
            except ValueError as error:
                faults.append(f"{name} is {text!r}; it {error}")
        elif name == GROUPS_SETTING:
            groups = [group.strip() for group in text.split(",")] if text.strip() else []
            values[name] = ",".join(groups)
            if not all(map(TOPIC_NAME.fullmatch, groups)) or len(set(groups)) < len(groups):
                faults.append(f"{name} is {text[:50]!r}; it must be names of groups with commas between, each once")
            elif len(groups) > MAX_AWAITED:
                faults.append(f"{name} has {len(groups)} groups; it may have {MAX_AWAITED}")
        else:
            known = ", ".join(f.name for f in fields(TopicConfig))
            faults.append(f"there is no setting {name!r}; there are {known}")
    config = replace(present, **values)  # type: ignore[arg-type]
    if config.commit_rule == "quorum" and config.flush != "fsync":
        faults.append(f"commit_rule quorum needs flush fsync, not {config.flush}: a majority must not forget")
    if config.min_insync_replicas > replication_factor:
        faults.append(
            f"min_insync_replicas is {config.min_insync_replicas}, more than replication_factor {replication_factor}"
        )
    if 0 < config.max_compaction_lag_ms < config.compaction_min_lag_ms:
        faults.append(
            f"max_compaction_lag_ms is {config.max_compaction_lag_ms}, less than compaction_min_lag_ms"
            f" {config.compaction_min_lag_ms}"
        )
    return config, faults


def _number(name: str, text: str) -> int:
    """Return the number that ``text`` gives for a setting, in the setting's unit: ``7d`` is 604,800,000 for
    ``retention_ms``. Raises ``ValueError`` that says what is accepted, and between which bounds. The number goes into
    the command, and the text does not, so that all controllers apply the same command (``tidelog.quantities``)."""
    unit = unit_of(name)
    least, most = RANGES[name]
    number = parse_whole(text, unit)
    if not least <= number <= most:
        raise ValueError(f"must be from {least} to {most}{f' {unit.noun}' if unit.noun else ''}")
    return number


def _too_early(config: TopicConfig, level: int) -> list[str]:
    """Return one text for each setting whose value the feature level ``level`` does not allow yet; an empty list if
    all are allowed."""
    faults = []
    if not config.validate_batches and level < VALIDATION:
        faults.append(
            f"validate_batches can be turned off from feature level {VALIDATION} on; the cluster is at {level}"
        )
    if config.max_compaction_lag_ms and level < MAX_COMPACTION_LAG:
        faults.append(
            f"max_compaction_lag_ms can be set from feature level {MAX_COMPACTION_LAG} on; the cluster is at {level}"
        )
    early = [name for name in WAITING if getattr(config, name) != getattr(DEFAULTS, name)]
    if early and level < RETENTION_WAITS:
        faults.append(
            f"{', '.join(early)} can be set from feature level {RETENTION_WAITS} on; the cluster is at {level}"
        )
    return faults


def plan_topic(
    state: MetadataState, request: CreateTopic, rng: Random, wall_ms: int, slow: Collection[NodeId] = ()
) -> AddTopic | TidelogError:
    """Return the command that creates a topic, with a random id and with the placement of its replicas. Return an
    error instead: ``INVALID_TOPIC``, ``TOPIC_EXISTS``, ``INVALID_CONFIG`` with all faults in one, or
    ``INVALID_REPLICATION_FACTOR`` with the number of live servers as ``live``. ``slow`` are the servers to choose
    last among equals."""
    if not TOPIC_NAME.fullmatch(request.name) or request.name in (".", ".."):
        return refuse(
            "INVALID_TOPIC", f"{request.name!r} is no topic name: use 1 to 249 of A-Z a-z 0-9 . _ -, not . or .."
        )
    if request.name in state.names:
        return refuse("TOPIC_EXISTS", f"a topic named {request.name} exists")
    config, faults = parse_topic_config(request.config, request.replication_factor)
    faults += _too_early(config, state.level)
    if not 1 <= request.partitions <= MAX_PARTITIONS:
        faults.insert(0, f"partitions is {request.partitions}; it must be a number from 1 to {MAX_PARTITIONS}")
    live = [node for node in state.servers if state.is_live(node)]
    if not 1 <= request.replication_factor <= len(live):
        return refuse(
            "INVALID_REPLICATION_FACTOR",
            f"replication_factor is {request.replication_factor}, and {len(live)} replica servers are live: "
            f"{', '.join(sorted(live)) or 'none'}",
            live=len(live),
        )
    if faults:
        return refuse("INVALID_CONFIG", "; ".join(faults))
    topic_id = f"{rng.getrandbits(128):032x}"
    placement = placement_for(state, rng, slow)
    replicas = placement.place(
        candidates(state, request.replication_factor), request.partitions, request.replication_factor
    )
    return AddTopic(wall_ms, topic_id, request.name, config, replicas)


def plan_change(state: MetadataState, request: AlterTopic, wall_ms: int) -> ChangeTopic | TidelogError:
    """Return the command that changes settings of a topic. Return an error instead: ``UNKNOWN_TOPIC``, or
    ``INVALID_CONFIG`` with all faults in one."""
    topic = state.topics.get(state.names.get(request.name, ""))
    if topic is None:
        return refuse("UNKNOWN_TOPIC", f"there is no topic named {request.name!r}")
    replication_factor = min(min(len(p.replicas), len(p.target or p.replicas)) for p in topic.partitions)
    config, faults = parse_topic_config(request.config, replication_factor, topic.config)
    faults += _too_early(config, state.level)
    if faults:
        return refuse("INVALID_CONFIG", "; ".join(faults))
    return ChangeTopic(wall_ms, topic.topic_id, {name: getattr(config, name) for name in request.config})


def plan_learners(state: MetadataState, request: AlterLearners, wall_ms: int) -> SetLearners | TidelogError:
    """Return the command that sets the learners of a partition. Return an error instead: ``UNKNOWN_TOPIC``, or
    ``INVALID_CONFIG`` if a new learner is a replica already or not live."""
    topic_id = state.names.get(request.name, "")
    partition = state.partition(topic_id, request.partition)
    if partition is None:
        return refuse("UNKNOWN_TOPIC", f"there is no partition {request.partition} of a topic named {request.name!r}")
    learners = tuple(dict.fromkeys(request.learners))
    faults = [f"{node} is a replica already" for node in learners if node in partition.replicas]
    new = [node for node in learners if node not in (*partition.replicas, *partition.learners)]
    faults += [f"{node} is no live replica server" for node in new if not state.is_live(node)]
    if faults:
        return refuse("INVALID_CONFIG", "; ".join(faults))
    return SetLearners(wall_ms, topic_id, request.partition, learners)


def plan_deletion(state: MetadataState, request: DeleteTopic, wall_ms: int) -> RemoveTopic | TidelogError:
    """Return the command that deletes a topic; the error ``UNKNOWN_TOPIC`` if there is none of this name."""
    topic_id = state.names.get(request.name)
    if topic_id is None:
        return refuse("UNKNOWN_TOPIC", f"there is no topic named {request.name!r}")
    return RemoveTopic(wall_ms, topic_id)


# --- what the commands change ----------------------------------------------------------------------------


@applies(AddTopic)
def add_topic(changes: ChangeSet, command: AddTopic) -> TopicCreated | TidelogError:
    """Add a topic, each partition with its first leader, and return its id. Refused with ``TOPIC_EXISTS`` if the name
    is taken, with ``INVALID_REPLICATION_FACTOR`` if none of the replicas of a partition is live, or if the owner
    would have too many topics or partitions."""
    if command.name in changes.state.names:
        return refuse("TOPIC_EXISTS", f"a topic named {command.name} exists")
    partitions = []
    for replicas in command.replicas:
        partition = first_state(replicas, command.config, changes.is_live, changes.drains)
        if partition is None:
            return refuse("INVALID_REPLICATION_FACTOR", f"none of the servers {', '.join(replicas)} is live", live=0)
        partitions.append(partition)
    over = refuse_new_topic(changes.state, command)
    if over is not None:
        return over
    changes.add_topic(TopicState(command.topic_id, command.name, command.config, tuple(partitions)))
    if command.owner:
        changes.owners = (*changes.owners, TopicOwner(command.topic_id, command.owner))
    return TopicCreated(command.topic_id)


@applies(RemoveTopic)
def remove_topic(changes: ChangeSet, command: RemoveTopic) -> Done | TidelogError:
    """Remove a topic with everything known of it. Refused with ``UNKNOWN_TOPIC`` if it is deleted already. Returns
    ``Done`` otherwise."""
    if command.topic_id not in changes.state.topics:
        return refuse("UNKNOWN_TOPIC", "the topic is deleted already")
    changes.remove_topic(command.topic_id)
    changes.owners = without_owner(changes.owners, command.topic_id)
    return Done()


@applies(ChangeTopic)
def change_topic(changes: ChangeSet, command: ChangeTopic) -> Done | TidelogError:
    """Change settings of a topic. A smaller ``min_insync_replicas`` lets the high watermark advance without the ELR,
    which is therefore emptied in the same change. If an unclean election is allowed now, it is held at once. A
    greater ``min_insync_replicas`` begins a new epoch: replicas that leave the ISR from now on are eligible, and ISR
    proposals of a leader that may still commit without them no longer count. Refused with ``UNKNOWN_TOPIC`` if the
    topic is deleted. Does nothing if no value changes. Returns ``Done`` otherwise."""
    topic = changes.state.topics.get(command.topic_id)
    if topic is None:
        return refuse("UNKNOWN_TOPIC", "the topic is deleted already")
    config = replace(topic.config, **command.values)  # type: ignore[arg-type]
    if config == topic.config:
        return Done()
    before, after = topic.config.texts(), config.texts()
    evidence = {name: f"{before[name]} -> {after[name]}" for name in after if after[name] != before[name]}
    changes.put_config(topic, config, evidence)
    for number, partition in enumerate(topic.partitions):
        key = TopicPartition(topic.topic_id, number)
        new = elect(partition, config, partition.isr, changes.is_live, drains=changes.drains)
        if new is partition and config.min_insync_replicas > topic.config.min_insync_replicas:
            new = replace(partition, epoch=partition.epoch + 1)
        else:
            changes.record_partition_event(key, "settings_changed", "alter_topic", evidence)
        changes.change(key, new, "alter_topic", evidence)
    return Done()
