"""Why the ack of a record takes long: which station of its way takes the time.

An ack passes these stations: the gateway, which takes a batch and passes it on; the leader, which appends it; the
leader's disk and the followers, whose fetches bring them the batch; and the followers' disks. Each keeps a histogram
of its times (``docs/metrics.md``), and says what it has counted in its last 5 to 10 seconds. A process of an earlier
release does not say that: it is looked at twice, ``PAUSE_S`` apart. If the gateway got no ack in that time, or the
leaders counted no commit, the times since the start of each process are taken. The histograms are those of whole
processes, not of one topic: if the leaders have counted few of the gateway's acks, no station is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from tidelog.errors import refuse
from tidelog.explain.explanation import Explanation, listed, shortened, span
from tidelog.explain.inquiry import Inquiry, describe_partition
from tidelog.explain.partition_state import refuses_all
from tidelog.explain.samples import samples, total
from tidelog.quantities import counted

if TYPE_CHECKING:
    from tidelog.client.log import Log
    from tidelog.wire.messages import MetricsAnswer, TopicInfo

PAUSE_S = 1.0
"""Time in seconds between two looks at a process of an earlier release."""
MOST_SERVERS = 30
"""Most replica servers that are looked at, in the order of their names."""
LATE_RATIO = 0.1
"""Share of its time in which a server's work had to wait, from which on that is called a cause."""
LEAST_SHARE = 0.1
"""Share of the gateway's acks that the leaders must have counted, at least. If they have counted fewer, the times of
the gateway are those of other leaders, and a difference between both means nothing."""
ACKS, COMMITS = "tidelog_gateway_produce_latency_seconds", "tidelog_commit_latency_seconds"
FETCHES, FLUSHES = "tidelog_replica_fetch_latency_seconds", "tidelog_replica_flush_seconds"
LATE = "tidelog_replica_late_ratio"
TIMES = (ACKS, COMMITS, FETCHES, FLUSHES)
HOLDS, RETRIES = "tidelog_gateway_throttle_holds_total", "tidelog_gateway_produce_retries_total"


@dataclass(frozen=True, slots=True)
class Times:
    """The times that a station has taken, as a histogram has them. ``buckets``: how many took at most so many
    seconds, in ascending order."""

    count: int = 0
    sum_s: float = 0.0
    buckets: tuple[tuple[float, int], ...] = ()

    @property
    def mean_ms(self) -> float:
        """Return the mean in milliseconds; 0 if there is no time."""
        return self.sum_s / self.count * 1000 if self.count else 0.0

    @property
    def p99_ms(self) -> float:
        """Return a bound below which 99 of 100 times lie, in milliseconds; infinite above the last bucket."""
        return next((at * 1000 for at, count in self.buckets if count >= 0.99 * self.count), float("inf"))

    def since(self, before: Times) -> Times:
        """Return the times that came after ``before``, an earlier look at the same histogram."""
        if before.count > self.count:  # the process was started again in between
            return self
        earlier = dict(before.buckets)
        left = tuple((at, count - earlier.get(at, 0)) for at, count in self.buckets)
        return Times(self.count - before.count, max(0.0, self.sum_s - before.sum_s), left)


@dataclass(frozen=True, slots=True)
class ProcessCounts:
    """What one process has counted about the way of acks."""

    interval_s: float = 0.0
    """In how many seconds; 0: since the start of the process."""
    times: Mapping[str, Times] = field(default_factory=dict)
    """Its histograms by name, those of ``TIMES``."""
    holds: int = 0
    """Waits of batches in the gateway for a share of a slow server."""
    retries: Mapping[str, int] = field(default_factory=dict)
    """Tries that were repeated by the gateway, by the code of their error."""

    def since(self, before: ProcessCounts, interval_s: float) -> ProcessCounts:
        """Return what was counted after ``before``, which is what the process had counted ``interval_s`` seconds
        earlier."""
        return ProcessCounts(
            interval_s,
            {name: found.since(before.times.get(name, Times())) for name, found in self.times.items()},
            max(0, self.holds - before.holds),
            {code: number - before.retries.get(code, 0) for code, number in self.retries.items()},
        )


@dataclass(frozen=True, slots=True)
class ProcessLook:
    """What one process says. ``counts``: since its start; ``recent``: in its last seconds, None if that is not known;
    ``late``: share of the last 10 seconds in which its work had to wait."""

    counts: ProcessCounts
    recent: ProcessCounts | None = None
    late: float = 0.0


@dataclass(frozen=True, slots=True)
class ServerTimes:
    """The stations of one replica server. ``commits``: from append to commit of what it leads; ``fetches``: its
    fetches as a follower; ``late``: share of the last 10 seconds in which its work had to wait; ``interval_s``: in
    how many seconds the times were counted, 0: since the start of the process."""

    commits: Times = Times()
    fetches: Times = Times()
    flushes: Times = Times()
    late: float = 0.0
    interval_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SlowEvidence:
    """All that was found out about the acks of a topic's partitions, or of one of them."""

    topic: TopicInfo
    partitions: tuple[int, ...]
    subject: str
    acks: Times = Times()
    """From the arrival of a batch at the gateway until the leader's ack."""
    servers: Mapping[str, ServerTimes] = field(default_factory=dict)
    interval_s: float = 0.0
    """Seconds in which the gateway has counted; 0: the times are those since the start of each process."""
    quiet_s: float = 0.0
    """Last seconds in which the gateway got acks, and the leaders of the partitions counted no commit; 0: there are
    none."""
    holds: int = 0
    """Waits of batches in the gateway for a share of a slow server."""
    retries: Mapping[str, int] = field(default_factory=dict)
    """Tries that were repeated by the gateway, by the code of their error."""
    unknown: tuple[str, ...] = ()

    @property
    def leaders(self) -> list[str]:
        """Return the servers that lead the partitions, ordered by name."""
        return sorted({self.topic.partitions[p].leader for p in self.partitions} - {""})

    @property
    def stuck(self) -> dict[str, list[int]]:
        """Return the partitions that take no batches, or none with acks ``all``, by the reason: ``leaderless``,
        ``paused``, ``read_only`` or ``too_few_in_sync``."""
        found: dict[str, list[int]] = {}
        for number in self.partitions:
            info = self.topic.partitions[number]
            if info.paused:
                found.setdefault("paused", []).append(number)
            elif not info.leader:
                found.setdefault("leaderless", []).append(number)
            elif info.read_only:
                found.setdefault("read_only", []).append(number)
            elif refuses_all(self.topic, info):
                found.setdefault("too_few_in_sync", []).append(number)
        return found

    @property
    def commits(self) -> int:
        """Return how many commits the leaders of the partitions have counted."""
        return sum(self.servers[node].commits.count for node in self.leaders if node in self.servers)

    @property
    def is_comparable(self) -> bool:
        """Return whether the times of the gateway are about what the leaders of the partitions have committed."""
        return self.commits > 0 and self.commits >= LEAST_SHARE * self.acks.count

    @property
    def followers(self) -> list[str]:
        """Return the servers in the ISR of the partitions that lead none of them in that partition, by name."""
        infos = [self.topic.partitions[p] for p in self.partitions]
        return sorted({node for info in infos for node in info.isr if node != info.leader})


# --- asking ----------------------------------------------------------------------------------------------


async def why_slow(log: Log, topic: str, partition: int | None = None, *, pause_s: float = PAUSE_S) -> Explanation:
    """Explain which station takes the time of the acks of a topic, or of one of its partitions. ``pause_s``: time
    between two looks at processes of earlier releases; 0: of these take the times since their start. Raises
    ``UNKNOWN_TOPIC``."""
    return explain_slow(await ask_slow(log, topic, partition, pause_s))


async def ask_slow(log: Log, topic: str, partition: int | None, pause_s: float) -> SlowEvidence:
    """Ask the gateway and the servers of a topic for their metrics; those of earlier releases twice. Raises
    ``UNKNOWN_TOPIC``."""
    if partition is None:
        found, subject = await log.topics.describe(topic), topic
        numbers = tuple(range(len(found.partitions)))
    else:
        found, info = await describe_partition(log, topic, partition)
        numbers, subject = (info.partition,), f"{topic}/{partition}"
    nodes = sorted({node for p in numbers for node in found.partitions[p].replicas})[:MOST_SERVERS]
    inquiry = Inquiry()
    looks = {node: look_at(answer) for node, answer in (await _answers(log, ["", *nodes], inquiry)).items()}
    older = [node for node, look in looks.items() if look.recent is None]
    if older and pause_s > 0:
        await trio.sleep(pause_s)
        for node, answer in (await _answers(log, older, inquiry)).items():
            looks[node] = look_again(looks[node], answer, pause_s)
    if not looks:
        raise refuse("UNREACHABLE", "no process has answered with its metrics")
    return evidence_of(found, numbers, subject, looks, inquiry.failures())


async def _answers(log: Log, nodes: list[str], inquiry: Inquiry) -> dict[str, MetricsAnswer]:
    """Return the metrics of each process that answered, by its name; "": the gateway."""
    asked = {
        node: inquiry.ask(f"how long {node or 'the gateway'} takes", partial(log.cluster.metrics, node))
        for node in nodes
    }
    await inquiry.run()
    return {node: one.value for node, one in asked.items() if one.value is not None}


def look_at(answer: MetricsAnswer) -> ProcessLook:
    """Return what the answer of a process to ``describe_metrics`` says."""
    recent = None if answer.recent_ms < 0 else counts_in(answer.recent, max(1, answer.recent_ms) / 1000)
    return ProcessLook(counts_in(answer.page), recent, total(answer.page, LATE))


def look_again(first: ProcessLook, answer: MetricsAnswer, pause_s: float) -> ProcessLook:
    """Return what a process of an earlier release says that is looked at again after ``pause_s`` seconds: what it has
    counted in between is recent."""
    look = look_at(answer)
    return replace(look, recent=look.recent or look.counts.since(first.counts, pause_s))


def counts_in(page: str, interval_s: float = 0.0) -> ProcessCounts:
    """Return the counts of a page of metrics. ``interval_s``: in how many seconds they were counted; 0: since the
    start of the process."""
    retries = {labels.get("code", ""): round(value) for labels, value in samples(page, RETRIES)}
    times = {name: times_in(page, name) for name in TIMES}
    return ProcessCounts(interval_s, times, round(total(page, HOLDS)), retries)


def evidence_of(
    topic: TopicInfo,
    partitions: tuple[int, ...],
    subject: str,
    looks: Mapping[str, ProcessLook],
    unknown: tuple[str, ...] = (),
) -> SlowEvidence:
    """Return the evidence in what the processes say, by name ("": the gateway). If the gateway got no ack in its last
    seconds, or the leaders counted no commit, the times since the start of each process are taken."""
    look = looks.get("", ProcessLook(ProcessCounts()))
    if look.recent is not None and look.recent.times[ACKS].count > 0:
        recent = _evidence(topic, partitions, subject, looks, True, unknown)
        if recent.commits or not any(node in looks for node in recent.leaders):
            return recent
        return replace(_evidence(topic, partitions, subject, looks, False, unknown), quiet_s=recent.interval_s)
    return _evidence(topic, partitions, subject, looks, False, unknown)


def _evidence(
    topic: TopicInfo,
    partitions: tuple[int, ...],
    subject: str,
    looks: Mapping[str, ProcessLook],
    is_recent: bool,
    unknown: tuple[str, ...],
) -> SlowEvidence:
    """Return the evidence in what the processes have counted in their last seconds, or since their start."""
    gateway = _chosen(looks.get("", ProcessLook(ProcessCounts())), is_recent)
    return SlowEvidence(
        topic,
        partitions,
        subject,
        gateway.times.get(ACKS, Times()),
        {node: _server(one, is_recent) for node, one in looks.items() if node},
        gateway.interval_s,
        0.0,
        gateway.holds,
        {code: count for code, count in sorted(gateway.retries.items()) if count > 0},
        unknown,
    )


def _chosen(look: ProcessLook, is_recent: bool) -> ProcessCounts:
    """Return what a process has counted in its last seconds, or since its start."""
    return look.recent if is_recent and look.recent is not None else look.counts


def _server(look: ProcessLook, is_recent: bool) -> ServerTimes:
    counts = _chosen(look, is_recent)
    commits, fetches, flushes = (counts.times.get(name, Times()) for name in (COMMITS, FETCHES, FLUSHES))
    return ServerTimes(commits, fetches, flushes, look.late, counts.interval_s)


def times_in(page: str, name: str) -> Times:
    """Return the histogram ``name`` of a page of metrics; without times if the page has none."""
    buckets = sorted(
        (float(labels["le"]), round(value)) for labels, value in samples(page, f"{name}_bucket") if "le" in labels
    )
    finite = tuple(one for one in buckets if one[0] != float("inf"))
    return Times(round(total(page, f"{name}_count")), total(page, f"{name}_sum"), finite)


# --- explaining ------------------------------------------------------------------------------------------


def explain_slow(evidence: SlowEvidence) -> Explanation:
    """Return the explanation of the time of acks from what was found out about it."""
    unknown = list(evidence.unknown)
    stuck, steps = _stuck_in_words(evidence)
    if not evidence.acks.count:
        text = f"No batch has been acked through this gateway since it began: nothing is known of {evidence.subject}."
        facts = _facts(evidence, {})
        return Explanation("slow", evidence.subject, (*stuck, text), facts, tuple(unknown), tuple(steps))
    when = _when(evidence.interval_s) if evidence.interval_s else "since the start of each process"
    is_open = sum(map(len, evidence.stuck.values())) < len(evidence.partitions)
    stations = stations_of(evidence) if is_open and evidence.is_comparable else {}
    sentences = [
        *stuck,
        *([_quiet_in_words(evidence)] if evidence.quiet_s and is_open else []),
        *(_verdict(evidence, stations) if stations else [_no_station(evidence, is_open)]),
        f"From a batch's arrival at the gateway to its ack: {_words(evidence.acks)}, {when}.",
        *_leaders(evidence),
        *_followers(evidence),
        *_hindrances(evidence),
    ]
    unknown.append(
        "The times are those of all topics that these processes serve: no process keeps times for one topic. Other"
        " gateways were not asked, and the way from the client to the gateway is not in them."
    )
    return Explanation(
        "slow",
        evidence.subject,
        tuple(sentences),
        _facts(evidence, stations),
        tuple(unknown),
        (*steps, *_steps(stations, evidence)),
    )


_STUCK = {
    "leaderless": "Nobody leads {places}: no batch gets an ack there.",
    "paused": "{places} {is_} paused: no batch gets an ack there.",
    "read_only": "{places} {is_} read-only: batches are refused there.",
    "too_few_in_sync": "{places} {has} too few replicas in sync for acks 'all': such batches are refused there.",
}
_STUCK_STEPS = {
    "leaderless": "'tidelog why {place}' shows why nobody leads.",
    "paused": "'tidelog topics resume {topic}' ends the pause.",
    "read_only": "'tidelog topics set-readonly {topic} --off' lets it take records again.",
    "too_few_in_sync": "'tidelog why {place}' shows which replicas left the in-sync set, and why.",
}


def _stuck_in_words(evidence: SlowEvidence) -> tuple[list[str], list[str]]:
    """Return sentences about the partitions that take no batches, and next steps."""
    sentences, steps, topic = [], [], evidence.topic.name
    for reason, numbers in evidence.stuck.items():
        places = [f"{topic}/{number}" for number in numbers]
        one = len(places) == 1
        verbs = {"is_": "is" if one else "are", "has": "has" if one else "have"}
        sentences.append(_STUCK[reason].format(places=shortened(places), **verbs))
        steps.append(_STUCK_STEPS[reason].format(place=places[0], topic=topic))
    return sentences, steps


def _quiet_in_words(evidence: SlowEvidence) -> str:
    """Return a sentence about leaders that counted no commit while the gateway got acks."""
    leaders = listed(evidence.leaders)
    return f"{_when(evidence.quiet_s).capitalize()} no ack was counted by {leaders}, where {evidence.subject} is led."


def _no_station(evidence: SlowEvidence, is_open: bool) -> str:
    """Return a sentence that says why no station is named."""
    if not is_open:
        return "No station is named: the acks that this gateway has got may all be of other topics."
    silent = [node for node in evidence.leaders if node not in evidence.servers]
    if silent:
        return f"No station is named: {listed(silent)}, where {evidence.subject} is led, did not answer."
    when = _when(evidence.interval_s) if evidence.interval_s else "since their start"
    few = f"only {counted(evidence.commits, 'ack')} of {evidence.acks.count}" if evidence.commits else "no ack"
    return (
        f"No station is named: {listed(evidence.leaders)} counted {few} {when}, so the times of the gateway are those"
        " of other leaders."
    )


def stations_of(evidence: SlowEvidence) -> dict[str, float]:
    """Return how many milliseconds of a mean ack each station takes: ``gateway`` (queue, retries and the way to the
    leader), ``leader_disk``, ``follower_disk`` and ``replication`` (the followers' fetches and all waiting for them).
    The leader's disk and the followers work side by side, so the slower one counts. Servers that have committed
    nothing are left out."""
    servers = evidence.servers
    led = [servers[node].commits for node in evidence.leaders if node in servers]
    count = sum(times.count for times in led)
    commit = sum(times.sum_s for times in led) / count * 1000 if count else 0.0
    disks = evidence.topic.config.get("flush", "fsync") == "fsync"
    leader_disk = max(
        (servers[node].flushes.mean_ms for node in evidence.leaders if node in servers and disks), default=0.0
    )
    disk = max(
        (servers[node].flushes.mean_ms for node in evidence.followers if node in servers and disks), default=0.0
    )
    found = {"gateway": max(0.0, evidence.acks.mean_ms - commit)}
    if leader_disk >= disk:
        found["leader_disk"] = min(leader_disk, commit)
    else:
        found["follower_disk"] = min(disk, commit)
    found["replication"] = max(0.0, commit - max(leader_disk, disk))
    return found


def _when(interval_s: float) -> str:
    """Return in words in which time something was counted."""
    return f"in the last {span(interval_s * 1000)}" if interval_s else "since its start"


_NAMES = {
    "gateway": "the gateway and the way to the leader (queue, retries, network)",
    "leader_disk": "the disk of the leader (flush)",
    "follower_disk": "the disk of a follower (flush)",
    "replication": "the followers' fetches and the leader itself",
}


def _verdict(evidence: SlowEvidence, stations: Mapping[str, float]) -> list[str]:
    """Return a sentence that names the station that takes the most, and one about the others."""
    ordered = sorted(stations, key=lambda name: -stations[name])
    first, rest = ordered[0], ordered[1:]
    whole = sum(stations.values()) or 1.0
    share = round(100 * stations[first] / whole)
    others = listed(f"{_NAMES[name]} {span_of(stations[name])}" for name in rest)
    return [
        f"Most of the time of an ack of {evidence.subject} goes to {_NAMES[first]}:"
        f" {span_of(stations[first])} of {span_of(whole)} ({share} %).",
        f"The rest: {others}.",
    ]


def span_of(ms: float) -> str:
    """Return a time in milliseconds as text, with decimals where it is short."""
    return f"{ms:.2g} ms" if ms < 10 else span(ms)


def _words(times: Times) -> str:
    """Return a histogram in words."""
    p99 = times.p99_ms
    most = f"99 of 100 within {span_of(p99)}" if p99 != float("inf") else "some above all buckets"
    return f"{span_of(times.mean_ms)} on average, {most} ({counted(times.count, 'time')})"


def _leaders(evidence: SlowEvidence) -> list[str]:
    words = []
    for node in evidence.leaders:
        found = evidence.servers.get(node)
        if found is None or not found.commits.count:
            continue
        flush = f"; a flush of its disk {_words(found.flushes)}" if found.flushes.count else ""
        words.append(
            f"Leader {node}, from append to commit, {_when(found.interval_s)}: {_words(found.commits)}{flush}."
        )
    return words


def _followers(evidence: SlowEvidence) -> list[str]:
    words = []
    for node in evidence.followers:
        found = evidence.servers.get(node)
        if found is None or not (found.fetches.count or found.flushes.count):
            continue
        parts = [f"a fetch {_words(found.fetches)}"] if found.fetches.count else []
        parts += [f"a flush of its disk {_words(found.flushes)}"] if found.flushes.count else []
        words.append(f"Follower {node}, {_when(found.interval_s)}: {'; '.join(parts)}.")
    return words


def _hindrances(evidence: SlowEvidence) -> list[str]:
    """Return sentences about what held batches up besides the stations."""
    words = [
        f"{node} is busy, or does not run all the time: in the last 10 s its work had to wait for"
        f" {found.late * 100:.0f} % of the time."
        for node, found in evidence.servers.items()
        if found.late > LATE_RATIO
    ]
    if evidence.holds:
        words.append(f"The gateway held batches {counted(evidence.holds, 'time')}, for the share of a slow server.")
    if evidence.retries:
        codes = listed(f"{count} {code}" for code, count in evidence.retries.items())
        words.append(f"The gateway repeated tries that failed: {codes}.")
    behind = [p for p in evidence.partitions if len((info := evidence.topic.partitions[p]).isr) < len(info.replicas)]
    if behind:
        verb = "lacks" if len(behind) == 1 else "lack"
        words.append(f"{counted(len(behind), 'partition')} of it {verb} replicas in sync.")
    return words


def _steps(stations: Mapping[str, float], evidence: SlowEvidence) -> tuple[str, ...]:
    """Return what to do about servers that are busy, and about the station that takes the most, if one does."""
    first = max(stations, key=lambda name: stations[name], default="")
    late = [node for node, found in evidence.servers.items() if found.late > LATE_RATIO]
    steps = [f"Give {listed(late)} more CPU, or move leaders away: 'tidelog partitions transfer'."] if late else []
    match first:
        case "" if not evidence.stuck:
            steps.append(f"Ask again while records are written to {evidence.subject}.")
        case "leader_disk" | "follower_disk":
            steps.append(
                "Look at the disk of that server. Larger batches share a flush; 'flush=os' of a new topic does not"
                " wait for disks."
            )
        case "gateway":
            steps.append(
                "Look at the CPU of the gateway and the network to the leaders; another gateway shares load."
            )
        case "replication":
            steps.append(
                "Look at the CPU of the leaders and the network between the servers; 'tidelog doctor' helps."
            )
    return tuple(steps)


def _facts(evidence: SlowEvidence, stations: Mapping[str, float]) -> dict[str, Any]:
    """Return the evidence as values that JSON has."""
    return {
        "topic": evidence.topic.name,
        "partitions": list(evidence.partitions),
        "interval_s": evidence.interval_s,
        "quiet_s": evidence.quiet_s,
        "stuck": evidence.stuck,
        "stations_ms": {name: round(ms, 3) for name, ms in stations.items()},
        "acks": _times_facts(evidence.acks),
        "leaders": evidence.leaders,
        "followers": evidence.followers,
        "servers": {
            node: {
                "commit": _times_facts(found.commits),
                "fetch": _times_facts(found.fetches),
                "flush": _times_facts(found.flushes),
                "late_ratio": found.late,
                "interval_s": found.interval_s,
            }
            for node, found in evidence.servers.items()
        },
        "holds": evidence.holds,
        "retries": dict(evidence.retries),
    }


def _times_facts(times: Times) -> dict[str, Any]:
    p99 = times.p99_ms
    return {
        "count": times.count,
        "mean_ms": round(times.mean_ms, 3),
        "p99_ms": round(p99, 3) if times.count and p99 != float("inf") else None,
    }
