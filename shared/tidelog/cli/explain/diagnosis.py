"""Diagnosis of a cluster: what is wrong, and what to do about it, derived from a snapshot without further requests.

A *problem* does not work now, a *warning* is a weakness at the next failure, a *note* may well be intended."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from tidelog.cli.explain.disk_growth import Growth
from tidelog.cli.explain.histories import Histories
from tidelog.cli.explain.retention_waits import AwaitedGroup, KeptForGroup, lost_in_words
from tidelog.cli.explain.sentences import (
    awaited_in_words,
    doubt_in_words,
    lost_offsets_in_words,
    refill_in_words,
    refuses_all,
    state_in_words,
)
from tidelog.wire.messages import (
    DifferingCopies,
    FeaturesAnswer,
    HistoryEntry,
    MetadataAnswer,
    PartitionInfo,
    QuorumAnswer,
    ServerInfo,
    StableOffset,
    TopicInfo,
    TransactionInfo,
    UnreadablePlace,
)

PROBLEM, WARNING, NOTE = "problem", "warning", "note"
LITTLE_ROOM_BYTES = 1 << 30
"""Free bytes below which a disk is a warning."""
SOON_FULL_S = 7 * 86_400
"""A disk that will be full within this many seconds is a warning."""
FAR_FULL_S = 90 * 86_400
"""A disk that will be full later than in this many seconds is not reported."""
FEW_FILES = 4096
"""Number of files below which the limit of open files is reported."""
LONG_WAIT = 0.5
"""Share of the bound of a wait of retention for a group from which on the wait is reported."""
OWN_REPLICAS = 3
"""Number of replicas that the cluster's own topics should have, if there are enough servers."""
FAR_OFF_S = 2.0
"""Seconds by which clocks may differ without a report: timestamps, tokens and retention depend on them."""
UNEVEN = 0.25
"""A server may lead or hold this share more or less than the average, plus two partitions, without a report."""
FAR_BEHIND = 10_000
"""Number of records that a group with members may lag without a report."""
LONG_TRANSACTION_MS = 60_000
"""Milliseconds for which a transaction may hold up readers without a warning: the time-out of a transaction that sets
none."""
HANGING = (
    "Find out whether its program was told that it is committed; then 'tidelog transactions settle WHERE --commit',"
    " or --abort. docs/transactions.md, A transaction that no coordinator has, says more."
)
"""Next step for a transaction that no coordinator has."""
MOST_NAMED = 5
"""Most partitions of one kind that a finding names; the others are counted."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of ``tidelog doctor``: its level (``PROBLEM``, ``WARNING`` or ``NOTE``), what is wrong, and what
    the operator can do next."""

    level: str
    what: str
    next_step: str


@dataclass(frozen=True, slots=True)
class WaitingReaders:
    """A partition in which readers of committed records have waited long at one offset, ``stable``, for a transaction
    to end. ``transaction`` is the transaction as its coordinator describes it; None: no coordinator has it."""

    partition: str
    leader: str
    stable: StableOffset
    transaction: TransactionInfo | None


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


def examine(view: ClusterSnapshot) -> list[Finding]:
    """Derive all findings from a snapshot, without further requests, and return them, problems first. An empty list
    if nothing is to be reported."""
    metadata = view.metadata
    found = [*_controllers(view.quorum), *_servers(metadata, view.metrics), *_partitions(metadata, view.histories)]
    found += [
        *_filling(view),
        *_limited(view.limits),
        *_unreadable(view),
        *_differing(view),
        *_processes(view),
        *_levels(view.features),
        *_heirs(view.heirs),
        *_balance(metadata),
        *_groups(view.lags),
        *_retention_waits(view),
    ]
    found += [_wait(one) for one in view.waits]
    return in_order(found)


def in_order(found: list[Finding]) -> list[Finding]:
    """Return the findings sorted by level: problems, then warnings, then notes. Findings of one level keep their
    order."""
    return sorted(found, key=lambda finding: (PROBLEM, WARNING, NOTE).index(finding.level))


def _controllers(quorum: QuorumAnswer | None) -> Iterator[Finding]:
    """Yield findings about the controllers: none is active, some do not answer, too few vote, a store is lost, or a
    member has no vote. ``quorum`` is None if no controller answered."""
    if quorum is not None:
        yield from _old_copies(quorum)
    if quorum is None or not quorum.active:
        what = (
            "no active controller: leaders go on while every replica that could be elected confirms them; no new"
            " leader is elected, a server that restarts serves no clients, and nothing about the cluster can be"
            " changed"
        )
        yield Finding(PROBLEM, what, "Start controllers until a majority runs; their logs say whom they miss.")
        return
    voters = [one for one in quorum.controllers if one.voter and not one.lost]
    silent = [one.node for one in voters if one.role == "unknown"]
    spare = len(voters) - len(silent) - sum(one.rolled_back for one in voters) - (len(voters) // 2 + 1)
    if silent:
        more = f"{spare} more may fail" if spare > 0 else "no other may fail"
        what = f"controllers do not answer: {', '.join(silent)}; {more}, of {len(voters)}"
        yield Finding(WARNING, what, "Start them again; for good: 'tidelog controllers remove' and 'add' another.")
    elif len(voters) < 3:
        what = f"{len(voters)} voting controller{'s' * (len(voters) > 1)}: none may fail"
        yield Finding(NOTE, what, "Three or five bear the loss of one or two: 'tidelog controllers add'.")
    for one in quorum.controllers:
        if one.lost:
            what = f"controller {one.node} lost its store, and has no vote"
            yield Finding(PROBLEM, what, f"'tidelog controllers add {one.node} {one.url}' takes it in again.")
        elif not one.voter:
            what = f"controller {one.node} has no vote yet"
            yield Finding(WARNING, what, f"'tidelog controllers add {one.node} {one.url}' waits until it has.")


def _old_copies(quorum: QuorumAnswer) -> Iterator[Finding]:
    """Yield a finding for each controller that runs on an old copy of its disk, and one more if therefore no
    controller can be elected until certain controllers run again, each with the disk that it had."""
    for one in quorum.controllers:
        if one.rolled_back:
            what = f"controller {one.node} runs on an old copy of its disk: {refill_in_words(one)}; it has no vote"
            yield Finding(
                PROBLEM, what, "Keep the others running until it votes again; find out how the old disk came there."
            )
    if quorum.disks_needed:
        what = f"nobody can be elected without the disks of {', '.join(quorum.disks_needed)}"
        yield Finding(
            PROBLEM, what, "Start them with the disks that they had; if gone: 'tidelog controllers rescue'."
        )


def _servers(metadata: MetadataAnswer, metrics: Mapping[str, Mapping[str, float]]) -> Iterator[Finding]:
    """Yield findings about replica servers: those that are down or drained, and the disks and sessions of the live
    ones."""
    servers = sorted(metadata.servers, key=lambda server: server.node)
    if all(server.fenced for server in servers):
        yield Finding(PROBLEM, "no replica server is live", "Start them: nothing can be written or read.")
    for server in servers:
        if server.fenced:
            step = f"Start it, or see its log; for good: 'tidelog servers drain {server.node}' and move its replicas."
            yield Finding(PROBLEM, f"replica server {server.node} is down", step)
        elif server.draining:
            what = f"replica server {server.node} is drained: it leads nothing"
            yield Finding(NOTE, what, f"'tidelog servers resume {server.node}' after the maintenance.")
        if not server.fenced and server.node in metrics:
            yield from _disk(server, metrics[server.node])
            yield from _session(server, metrics[server.node])


def _disk(server: ServerInfo, metrics: Mapping[str, float]) -> Iterator[Finding]:
    """Yield findings about the disk of one server: it is full or nearly full, or has damaged logs."""
    free = int(metrics.get("tidelog_replica_disk_free_bytes", 0))
    if metrics.get("tidelog_replica_disk_full"):
        what = f"the disk of {server.node} is full: it takes no records"
        yield Finding(PROBLEM, what, "Make room, or shorten retention: 'tidelog topics configure'.")
    elif 0 < free < LITTLE_ROOM_BYTES:
        what = f"the disk of {server.node} has {free >> 20} MiB of room left"
        yield Finding(WARNING, what, "Make room, or shorten retention: 'tidelog topics configure'.")
    if damaged := int(metrics.get("tidelog_replica_damaged_partitions", 0)):
        what = f"{server.node} has {damaged} damaged logs, yet to be repaired"
        yield Finding(PROBLEM, what, "docs/operations.md, Damage, says what it does by itself, and what is yours.")


def _filling(view: ClusterSnapshot) -> Iterator[Finding]:
    """Yield a finding for each server whose disk will be full within ``FAR_FULL_S`` if the topics without retention
    go on growing as they do now."""
    topics = ", ".join(view.growth.topics[:MOST_NAMED])
    more = len(view.growth.topics) - MOST_NAMED
    named = f"{topics} and {more} more" if more > 0 else topics
    for node, rate in sorted(view.growth.rates.items()):
        free = view.metrics.get(node, {}).get("tidelog_replica_disk_free_bytes", 0.0)
        if not free or not rate or (left_s := free / rate) > FAR_FULL_S:
            continue
        what = (
            f"the disk of {node} is full in about {_duration(left_s)} at the present rate of {rate / (1 << 20):.1f}"
            f" MiB/s: {free / (1 << 30):.1f} GiB are free, and no retention is set for {named}"
        )
        step = (
            f"'tidelog topics configure {view.growth.topics[0]} retention_ms=604800000', for example, keeps a week."
        )
        yield Finding(WARNING if left_s <= SOON_FULL_S else NOTE, what, step)


def _duration(seconds: float) -> str:
    """Return a number of seconds as text in one unit, such as "3 hours"."""
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds"


def _session(server: ServerInfo, metrics: Mapping[str, float]) -> Iterator[Finding]:
    """Yield a finding for a server whose session has lapsed because no controller answers it. It is a problem if the
    server therefore refuses the clients of some partitions, otherwise a warning."""
    lapsed_s = metrics.get("tidelog_replica_session_lapsed_seconds", 0.0)
    if refused := int(metrics.get("tidelog_replica_unconfirmed_partitions", 0)):
        what = (
            f"{server.node} refuses the clients of {refused} partitions: no controller answers, and a replica that"
            " could be elected does not confirm it as their leader"
        )
        step = f"The log of {server.node} names the replica (leadership_unconfirmed): start it, and the controllers."
        yield Finding(PROBLEM, what, step)
    elif lapsed_s > 0:
        what = f"no controller has answered {server.node} for {lapsed_s:.0f} s since its session was over"
        step = "Start controllers until a majority runs; if one does, repair the network between them."
        yield Finding(WARNING, what, step)


def _limited(limits: Mapping[str, float]) -> Iterator[Finding]:
    """Yield a finding for each slow server to which the gateway limits the bytes per second. ``limits`` is server ->
    limit."""
    for server, rate in sorted(limits.items()):
        what = (
            f"{server} is slow: the gateway sends it {rate / (1 << 20):.1f} MiB/s at most,"
            " and asks producers to pause"
        )
        step = (
            f"Look at the disk and the CPU of {server}, and at the followers of its partitions;"
            " docs/operations.md, A server that is slow, says more."
        )
        yield Finding(WARNING, what, step)


def _unreadable(view: ClusterSnapshot) -> Iterator[Finding]:
    """Yield one finding that names the batches that no reader can decode; none if there are none. Every replica of a
    partition reports the same batches, so duplicates are dropped."""
    names = {topic.topic_id: topic.name for topic in view.metadata.topics}
    places = sorted({replace(at, topic_id=names.get(at.topic_id, at.topic_id)) for at in view.unreadable}, key=_order)
    if not places:
        return
    counts = [int(metrics.get("tidelog_replica_unreadable_batches", 0)) for metrics in view.metrics.values()]
    more = max(len(places), *counts, 0) - MOST_NAMED
    named = ", ".join(
        f"{at.topic_id}/{at.partition} offsets {at.base_offset} to {at.last_offset} (producer id {at.producer_id})"
        for at in places[:MOST_NAMED]
    )
    what = (
        f"no reader can decode these batches: {named}{f' and {more} more' if more > 0 else ''}; consumers stop there"
    )
    step = "Consumers skip them with on_unreadable; docs/operations.md, Batches that cannot be decoded, says more."
    yield Finding(WARNING, what, step)


def _differing(view: ClusterSnapshot) -> Iterator[Finding]:
    """Yield a finding for each partition whose copies differ. If several servers report one partition, the report
    that names the odd copies counts, then one with a difference below a log start."""
    names = {topic.topic_id: topic.name for topic in view.metadata.topics}
    found: dict[str, DifferingCopies] = {}
    for one in sorted(view.differing, key=lambda one: (not one.odd, not one.below, one.start)):
        found.setdefault(f"{names.get(one.topic_id, one.topic_id)}/{one.partition}", one)
    for name, one in sorted(found.items()):
        place = f"below offset {one.start}" if one.below else f"between offsets {one.start} and {one.end}"
        place = f"the first difference is {place}"
        if one.odd:
            others = " and ".join(node for node in one.compared if node not in one.odd)
            what = f"{name}: the copy on {', '.join(one.odd)} is not what {others} hold; {place}"
            step = f"It is given up and fetched again automatically when that is safe: see the log of {one.odd[0]}."
            if one.below:
                step = f"No server repairs a difference below a log start: have the copy on {one.odd[0]} made again."
        else:
            what = f"{name}: the copies on {' and '.join(one.compared)} differ; {place}"
            step = "No majority of the replicas agrees, so none is replaced."
        more = f"'tidelog verify replicas {name}' shows where; docs/operations.md, Copies that differ, says more."
        yield Finding(PROBLEM, what, f"{step} {more}")


def _order(place: UnreadablePlace) -> tuple[str, int, int]:
    return place.topic_id, place.partition, place.base_offset


def _partitions(metadata: MetadataAnswer, histories: Histories) -> Iterator[Finding]:
    """Yield findings about partitions. If several partitions have the same one, it is yielded once, and names the
    first ``MOST_NAMED`` and counts the others."""
    live = {server.node for server in metadata.servers if not server.fenced}
    kinds: dict[tuple[str, str, str], list[str]] = {}
    for topic in metadata.topics:
        for partition in topic.partitions:
            history = histories.get((topic.name, partition.partition), ())
            for kind in (*_kinds(topic, partition, live), *_history_kinds(topic, partition, history)):
                kinds.setdefault(kind, []).append(f"{topic.name}/{partition.partition}")
    for (level, what, step), names in kinds.items():
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        yield Finding(level, f"{', '.join(names[:MOST_NAMED])}{more}: {what}", step.replace("WHERE", names[0]))


def _history_kinds(
    topic: TopicInfo, partition: PartitionInfo, history: Sequence[HistoryEntry]
) -> Iterator[tuple[str, str, str]]:
    """Yield findings that only the history of a partition shows: reports that it waits for after a rescue, doubtful
    tails, and lost records. They are (level, text, next step), as in ``_kinds``."""
    if awaited := awaited_in_words(partition, history):
        yield PROBLEM, f"sealed by a rescue: {awaited}", "Start those that have not reported."
    if doubt := doubt_in_words(partition, history):
        if partition.leader:
            yield WARNING, doubt, "Nothing: it fetches from the leader. 'tidelog why WHERE' shows the steps."
        else:
            step = (
                "Start the servers that it names. If one is gone for good, with its disk: 'tidelog topics configure"
            )
            allow = f"{topic.name} unclean_election=true' cuts the tail and reports what is possibly lost."
            yield PROBLEM, doubt, f"{step} {allow}"
    for lost in lost_offsets_in_words(history):
        step = "'tidelog why WHERE' says which copy was cut: send again what the source of the records still has."
        yield WARNING, lost, step


def _kinds(topic: TopicInfo, partition: PartitionInfo, live: set[str]) -> Iterator[tuple[str, str, str]]:
    """Yield (level, text, next step) for everything unusual in the present state of a partition. In the next step
    ``WHERE`` stands for the partition's name. ``live`` are the servers that are live."""
    behind = sorted(set(partition.replicas) - set(partition.isr))
    if partition.paused:
        yield NOTE, "paused: nothing is written or read", f"'tidelog topics resume {topic.name}' ends that."
    elif partition.doubtful and not partition.leader:
        pass  # ``_history_kinds`` says more
    elif not partition.leader or refuses_all(topic, partition):
        words = state_in_words(topic, partition)[0]
        yield PROBLEM, words, "'tidelog why WHERE' says how that came; start the servers that it names."
    if behind and not partition.paused:
        down = [node for node in behind if node not in live]
        what = f"not in sync: {', '.join(behind)}" + (f" (down: {', '.join(down)})" if down else ", catching up")
        yield WARNING, what, "Start what is down and wait; 'tidelog partitions list' shows how far it is."
    if lost := [node for node in partition.learners if node not in live]:
        yield WARNING, f"learners are down: {', '.join(lost)}", "Start them, or 'tidelog topics learners WHERE'."
    if partition.target:
        yield NOTE, "being reassigned", "'tidelog partitions reassignments' shows how far that is."
    if partition.read_only:
        yield NOTE, "read-only", f"'tidelog topics set-readonly {topic.name} --off' ends that."
    if topic.name.startswith("__") and len(partition.replicas) < min(OWN_REPLICAS, len(live)):
        more = sorted(live - set(partition.replicas))
        servers = ",".join((*partition.replicas, *more)[:OWN_REPLICAS])
        what = f"made when there were fewer servers: replicas only on {', '.join(partition.replicas)}"
        step = f"'tidelog partitions reassign WHERE {servers}', each; then 'tidelog topics configure"
        yield NOTE, what, f"{step} {topic.name} min_insync_replicas=2'."
    elif len(partition.replicas) == 1:
        what = f"a single replica, on {partition.replicas[0]}: lost with it"
        yield NOTE, what, "'tidelog partitions reassign WHERE SERVER,SERVER,SERVER' makes more."


def _processes(view: ClusterSnapshot) -> Iterator[Finding]:
    """Yield a finding if processes run different versions, and one for each clock that differs by more than
    ``FAR_OFF_S`` from the median, or from this machine's."""
    if len(set(view.versions.values())) > 1:
        named = ", ".join(f"{node} {version}" for node, version in sorted(view.versions.items()))
        yield Finding(
            NOTE, f"several versions run: {named}", "Finish the upgrade: restart the older ones, one by one."
        )
    if not view.clocks:
        return
    middle = median(view.clocks.values())
    for node, ahead in sorted(view.clocks.items()):
        if abs(ahead - middle) > FAR_OFF_S:
            how = "ahead of" if ahead > middle else "behind"
            what = f"the clock of {node} is {abs(ahead - middle):.0f} s {how} those of most others"
            yield Finding(WARNING, what, "Have its machine keep time (chrony): timestamps and retention go by it.")
    if abs(middle) > FAR_OFF_S:
        how = "behind" if middle > 0 else "ahead of"
        what = f"the clock of this machine is {abs(middle):.0f} s {how} the cluster's"
        yield Finding(NOTE, what, "Records that are produced here carry its timestamps, unless they bring their own.")


def _levels(features: FeaturesAnswer | None) -> Iterator[Finding]:
    """Yield a finding for an upgrade that is not finished: some processes are of an earlier release, or all
    understand a higher feature level than the cluster has. None if the levels are not known."""
    known = [one for one in features.processes if one.level_max] if features else []
    if features is None or not known:
        return
    newest, oldest = max(one.level_max for one in known), min(one.level_max for one in known)
    behind = [one.node for one in known if one.level_max < newest]
    if behind:
        what = (
            f"of an earlier release, which understands feature level {oldest} and not {newest}: {', '.join(behind)}"
        )
        yield Finding(NOTE, what, "Finish the upgrade: docs/upgrade.md has the order.")
    elif newest > features.level:
        what = f"the cluster is at feature level {features.level}, and all its processes understand {newest}"
        yield Finding(NOTE, what, "'tidelog features raise' ends the upgrade, for good: docs/upgrade.md.")


def _heirs(heirs: tuple[str, ...]) -> Iterator[Finding]:
    """Yield a finding if principals may change tokens and rules only because they could before an upgrade."""
    if heirs:
        what = f"may administer the cluster, and so inherit the right to make tokens and rules: {', '.join(heirs)}"
        step = "For those who need it 'tidelog acls add WHO security cluster'; then 'tidelog acls drop-inherited'."
        yield Finding(WARNING, what, step)


def _balance(metadata: MetadataAnswer) -> Iterator[Finding]:
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
    for counts, what, step in (
        (leads, "lead", "They even out within minutes, unless that is off: 'tidelog partitions transfer'."),
        (holds, "hold", "'tidelog partitions rebalance --dry-run' shows what would be moved."),
    ):
        share = sum(counts.values()) / max(1, len(counts))
        if any(abs(count - share) > share * UNEVEN + 2 for count in counts.values()):
            named = ", ".join(f"{node} {count}" for node, count in sorted(counts.items()))
            yield Finding(NOTE, f"servers {what} uneven numbers of partitions: {named}", step)


def _groups(lags: Mapping[str, tuple[int, int]]) -> Iterator[Finding]:
    """Yield a finding for each consumer group that is behind and has no members, or is more than ``FAR_BEHIND``
    records behind. ``lags`` is group -> (members, records behind)."""
    for group, (members, behind) in sorted(lags.items()):
        step = f"'tidelog groups describe {group}' says where."
        if behind > 0 and not members:
            yield Finding(NOTE, f"group {group} has no members, and is {behind} records behind", step)
        elif behind > FAR_BEHIND:
            what = f"group {group} is {behind} records behind, with {members} member{'s' * (members > 1)}"
            yield Finding(WARNING, what, f"{step} More members, or faster ones, catch up.")


def _retention_waits(view: ClusterSnapshot) -> Iterator[Finding]:
    """Yield findings about retention that waits for groups: records that were deleted before a group had read them,
    waits that have used ``LONG_WAIT`` of their bound, and groups that have no position, so that they read nothing."""
    for one in view.awaited:
        if one.lost:
            step = (
                f"Find out what stopped {one.group}. To let it go on with what is left: 'tidelog groups reset"
                f" {one.group} -t {one.topic} --to earliest'; docs/operations.md, Retention that waits for a group,"
                " says more."
            )
            yield Finding(WARNING, f"{one.topic}/{one.partition}: {lost_in_words(one)}", step)
    for kept in view.kept:
        if kept.share >= LONG_WAIT:
            what = (
                f"{kept.topic}/{kept.partition}: retention keeps {kept.held_bytes / (1 << 20):.1f} MiB for group"
                f" {kept.group}, which has not read them: {kept.share:.0%} of the bound of the wait is used"
            )
            step = (
                f"Start what reads as {kept.group}, or raise retention_waits_max_ms and retention_waits_max_bytes:"
                f" 'tidelog topics configure {kept.topic}'. At 100% the oldest records are deleted unread."
            )
            yield Finding(WARNING, what, step)
    absent: dict[tuple[str, str], list[str]] = {}
    for one in view.awaited:
        if one.position < 0 and not one.error:
            absent.setdefault((one.topic, one.group), []).append(f"{one.topic}/{one.partition}")
    for (topic, group), names in absent.items():
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        what = f"{', '.join(names[:MOST_NAMED])}{more}: retention waits for group {group}, which has no position"
        step = f"Start what reads as {group}, or 'tidelog topics configure {topic} retention_waits_for='."
        yield Finding(NOTE, what, step)


def _wait(one: WaitingReaders) -> Finding:
    """Return the finding for a partition whose readers wait for a transaction. Its level depends on who can end the
    transaction: a problem if nobody does, or if the leader does not take the marker."""
    stable, known = one.stable, one.transaction
    since = f"{one.partition}: readers of what is committed have waited at {stable.offset} for {_span(stable.age_ms)}"
    whose = f"of producer {stable.producer_id} epoch {stable.producer_epoch}"
    if stable.producer_epoch < 0:
        what = f"{since}: the end of the transaction of producer {stable.producer_id} is written, and not committed"
        return Finding(WARNING, what, f"'tidelog why {one.partition}' says which replicas {one.leader} waits for.")
    if known is None:
        what = f"{since}: for a transaction {whose} that no coordinator has, so nothing will end it"
        place = f"{one.partition} --producer {stable.producer_id} --epoch {stable.producer_epoch}"
        return Finding(PROBLEM, what, HANGING.replace("WHERE", place))
    named = f"the {'staged ' * bool(known.staged)}transaction of {known.app} ({whose[3:]})"
    if known.state in ("committing", "aborting"):
        what = f"{since}: {named} is {known.state}, and {one.leader} has not taken the marker yet"
        return Finding(PROBLEM, what, f"The coordinator goes on trying: see the log of {one.leader}, and its disk.")
    level = NOTE if stable.age_ms < LONG_TRANSACTION_MS else WARNING
    how = f" --staged {known.staged}" if known.staged else ""
    step = f"It is aborted when its time is over; 'tidelog transactions abort {known.app}{how}' does so now."
    return Finding(level, f"{since}: {named} is {known.state}", step)


def _span(ms: int) -> str:
    """Return a number of milliseconds as text, in seconds or minutes."""
    return f"{ms / 1000:.0f} s" if ms < 120_000 else f"{ms / 60_000:.0f} min"
