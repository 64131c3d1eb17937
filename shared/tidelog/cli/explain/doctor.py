"""``tidelog doctor``: diagnoses a cluster and this machine, and names the next steps."""

from __future__ import annotations

import re
import resource
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any

import click
import trio

from tidelog.cli.exit_status import DONE, FAILED
from tidelog.cli.explain.certificate_looks import CertificateLook, look_at_certificates
from tidelog.cli.explain.disk_growth import Growth, measure_growth, record_bytes
from tidelog.cli.explain.findings.consequences import with_causes
from tidelog.cli.explain.findings.diagnosis import examine
from tidelog.cli.explain.findings.finding import MOST_NAMED, NOTE, PROBLEM, WARNING, Finding, in_order
from tidelog.cli.explain.findings.gateways import examine_refusal
from tidelog.cli.explain.findings.partitions import KNOWN_S
from tidelog.cli.explain.findings.security import examine_certificates
from tidelog.cli.explain.findings.snapshot import ClusterSnapshot, WaitingReaders
from tidelog.cli.explain.gateway_looks import GatewayLook, fetch_page, look_at_page, look_of
from tidelog.cli.explain.group_looks import MOST_GROUPS, GroupLook, TopicsRead, look_at_group
from tidelog.cli.explain.histories import Histories, ask_histories
from tidelog.cli.explain.retention_waits import AwaitedGroup, ask_awaited, awaited_names, kept_in
from tidelog.cli.explain.streaming_queries import OverdueQuery, find_overdue
from tidelog.cli.main import NEXT_STEP, connect, gateway_option, run, tls_options
from tidelog.cli.output import Table, print_for_programs, rows_output, say, say_after
from tidelog.cli.progress import Bar, shown
from tidelog.client.log import Log
from tidelog.errors import ConfigError, TidelogError
from tidelog.explain.inquiry import ASK_S, Inquiry
from tidelog.explain.partition_state import LOSSES
from tidelog.feature_levels import SECURITY
from tidelog.net.link import PROTOCOL_VERSION
from tidelog.net.tls import TlsFiles
from tidelog.quantities import counted
from tidelog.wire.messages import (
    DifferingCopies,
    FeaturesAnswer,
    MetadataAnswer,
    MetricsAnswer,
    QuorumAnswer,
    StableOffset,
    TopicInfo,
    UnreadablePlace,
)

FEW_FILES = 4096
"""Number of files below which the limit of open files is reported."""
PATIENT_S = 15.0
"""Longest time in seconds that the answers about consumer groups may take if every partition has a leader and every
process has answered: then only a busy machine keeps them waiting. Otherwise it is ``ASK_S``."""
NO_RIGHT = frozenset({"FORBIDDEN", "UNAUTHENTICATED"})
"""Codes of the refusals of a client that lacks the right to look: nothing can be said of the cluster then."""
LONG_MS = 10_000
"""Milliseconds after which a last stable offset that has not moved is examined."""
STABLE_AGE = "tidelog_replica_stable_offset_age_seconds"
"""Metric that shows how long the last stable offset has not moved."""
_LIMIT = re.compile(r'^tidelog_gateway_server_limit_bytes_per_second\{server="([^"]+)"\} ([0-9.e+-]+)', re.MULTILINE)
_SAMPLE = re.compile(r"^([a-z_]+)(?:\{[^}]*\})? ([0-9.e+-]+)", re.MULTILINE)
_STYLES: dict[str, dict[str, Any]] = {
    PROBLEM: {"fg": "red", "bold": True},
    WARNING: {"fg": "yellow"},
    NOTE: {"dim": True},
}
"""How the level of a finding is shown on a terminal, as arguments of ``click.style``."""


@click.command()
@rows_output
@gateway_option
def doctor(output: str, gateways: tuple[str, ...]) -> None:
    """Look for what is wrong with the cluster and this machine, and print the next step for each finding.

    \b
    It checks
    - the given gateways, the controllers and their majority, the replica servers;
    - disks, and how long until they are full at the present rate;
    - slow servers that the first gateway limits, and servers without their data;
    - versions, feature levels and clocks;
    - each partition's leader and in-sync replicas;
    - copies that differ or have a doubtful tail, unclean elections, and records
      that were lost or possibly lost in the last seven days (of at most 500
      partitions);
    - how evenly servers are loaded, and how far consumer groups are behind;
    - members of groups that are silent, do not commit, are too slow, are expelled
      or end, and positions that were moved from outside, or lie below the log start;
    - clients of the given gateways that were refused, or wait for their quota;
    - certificates, as this machine sees them;
    - what retention keeps for groups, and what it deleted before they read it;
    - transactions for which readers have waited long;
    - principals that inherit the right to decide about tokens and rules;
    - how many files this process may open.

    You need the right to describe the cluster: 'tidelog acls add YOU describe cluster'. Partitions and groups that
    you may not describe are not looked at, and a note says so.

    Exit code 0: nothing but notes; 1: problems or warnings."""
    found: list[Finding] = []
    seen: dict[str, object] = {"client": _version(), "protocol": PROTOCOL_VERSION}

    async def task() -> None:
        asked: dict[str, MetricsAnswer] = {}
        refusals: dict[str, TidelogError] = {}
        views = [(url, view) for url in gateways if (view := await _take_snapshot(url, found, asked, refusals))]
        if refusals and not views:
            raise next(iter(refusals.values()))
        for url, refusal in refusals.items():
            found.append(await _gateway_failed(url, refusal))
        clusters = sorted({view.metadata.cluster for _, view in views})
        if len(clusters) > 1:
            what = f"the gateways belong to several clusters: {', '.join(clusters)}"
            found.append(
                Finding(PROBLEM, what, "Name gateways of one cluster with --gateway.", "gateways-of-several-clusters")
            )
        if views:
            view = await _complete_snapshot(views[0][0], views[0][1], found)
            view = replace(view, gateways=await _look_at_gateways(asked))
            view = replace(view, certificates=await _look_at_certificates(gateways, view))
            found.extend(examine(view))
            seen.update(_counted(view.metadata, view.quorum), versions=sorted(set(view.versions.values())))
            seen["level"] = view.features.level if view.features else 1
        else:
            found.extend(examine_certificates(await _look_at_certificates(gateways, None)))

    run(task)
    found.extend(_machine())
    healthy = all(finding.level == NOTE for finding in found)
    _show(in_order(with_causes(found)), seen, healthy, output)
    raise SystemExit(DONE if healthy else FAILED)


def _version() -> str:
    """Return the version of the installed package ``tidelog``, or "not installed"."""
    try:
        return version("tidelog")
    except PackageNotFoundError:
        return "not installed"


async def _take_snapshot(
    url: str, found: list[Finding], asked: dict[str, MetricsAnswer], refusals: dict[str, TidelogError]
) -> ClusterSnapshot | None:
    """Ask the gateway ``url`` for the metadata and the state of the controllers, and return both as a snapshot. If
    the gateway does not answer, add a problem to ``found`` and return None; if it refuses this client for want of a
    right, add the error to ``refusals`` and return None. If only the controllers fail, add a warning; the snapshot
    then has no ``quorum``. What the gateway says of itself is added to ``asked``."""
    try:
        async with connect((url,), operator=True) as log:
            with suppress(TidelogError):  # without the right to it, or 'metrics = false'
                asked[url] = await log.cluster.metrics()
            return await _first_snapshot(log, url, found)
    except TidelogError as error:
        if error.code in NO_RIGHT:
            refusals[url] = error
        else:
            found.append(await _gateway_failed(url, error))
    return None


async def _gateway_failed(url: str, error: TidelogError) -> Finding:
    """Return the finding for a gateway that refuses this command, or does not answer: with the reason, if it names
    one."""
    step = NEXT_STEP.get(error.code, "See the log of this gateway.")
    other = Finding(PROBLEM, f"gateway {url}: {error}", step, "gateway-unreachable", (url,))
    return examine_refusal(await _look_from_outside(url), error) or other


async def _look_from_outside(url: str) -> GatewayLook:
    """Return what the page of metrics of a gateway that refuses this client says."""
    with suppress(ConfigError):
        context = TlsFiles(tls_options()).connecting() if url.startswith("wss") else None
        return look_at_page(url, await trio.to_thread.run_sync(fetch_page, url, context))
    return GatewayLook(url)


async def _look_at_gateways(asked: Mapping[str, MetricsAnswer]) -> tuple[GatewayLook, ...]:
    """Ask the gateways in ``asked`` again what they say of themselves, and return what has happened since. One that
    does not answer now is left out."""
    looks: dict[str, GatewayLook] = {}

    async def ask(url: str, before: MetricsAnswer) -> None:
        with suppress(TidelogError):
            async with connect((url,), operator=True) as log:
                looks[url] = look_of(url, before, await log.cluster.metrics())

    async with trio.open_nursery() as nursery:
        for url, before in asked.items():
            nursery.start_soon(ask, url, before)
    return tuple(looks[url] for url in asked if url in looks)


async def _look_at_certificates(
    gateways: tuple[str, ...], view: ClusterSnapshot | None
) -> tuple[CertificateLook, ...]:
    """Return what certificates these gateways, and the servers and controllers that ``view`` names, show."""
    urls = {url: url for url in gateways}
    if view is not None:
        urls |= {server.node: server.url for server in view.metadata.servers}
        urls |= {one.node: one.url for one in (view.quorum.controllers if view.quorum else ())}
    return await look_at_certificates(urls, TlsFiles(tls_options()), time.time_ns() / 1e9)


async def _first_snapshot(log: Log, name: str, found: list[Finding]) -> ClusterSnapshot:
    """Ask for the metadata and the state of the controllers, and return both as a snapshot. If only the controllers
    fail, add a warning that begins with ``name`` to ``found``; the snapshot then has no ``quorum``. Raises the
    refusal of a client that has no right to describe the cluster: what it does not see is not missing."""
    metadata = await log.cluster.status()
    quorum = None
    with trio.move_on_after(ASK_S):
        try:
            quorum = await log.cluster.quorum()
        except TidelogError as error:
            if error.code in NO_RIGHT:
                raise
            step = NEXT_STEP.get(error.code, "See its log.")
            found.append(Finding(WARNING, f"{name}: {error}", step, "controllers-unreachable"))
    return ClusterSnapshot(metadata, quorum)


async def _complete_snapshot(url: str, view: ClusterSnapshot, found: list[Finding]) -> ClusterSnapshot:
    """Ask servers, groups and coordinators for their state through the gateway ``url``, and return the snapshot
    ``view`` with the answers added. Failures are added to ``found`` as findings. If the gateway itself fails, the
    snapshot is returned unchanged."""
    try:
        async with connect((url,), operator=True) as log:
            with shown(Bar("measuring how fast the disks fill")):
                return await _whole_snapshot(log, f"gateway {url}", view, found)
    except TidelogError as error:
        found.append(await _gateway_failed(url, error))
        return view


async def diagnose(log: Log) -> list[Finding]:
    """Examine the cluster of a client, and return what ``tidelog doctor`` finds about it, problems first. That it may
    not see some groups or transactions is a note. Raises ``TidelogError`` if its gateway fails, or the client has no
    right to describe the cluster."""
    found: list[Finding] = []
    view = await _first_snapshot(log, "the gateway", found)
    try:
        before = await log.cluster.metrics()
    except TidelogError:  # no right to it, or 'metrics = false'
        before = None
    view = await _whole_snapshot(log, "the gateway", view, found)
    if before is not None:
        view = replace(view, gateways=(look_of("the gateway", before, await log.cluster.metrics()),))
    return in_order(with_causes([*found, *examine(view)]))


async def _whole_snapshot(log: Log, name: str, view: ClusterSnapshot, found: list[Finding]) -> ClusterSnapshot:
    """Ask servers, groups and coordinators for their state, and return the snapshot ``view`` with the answers added.
    ``name`` is that of the gateway in findings. Failures of others than the gateway are added to ``found``."""
    reports = await _ask_servers(log, name, view)
    features = await _features(log) if view.quorum is not None else None
    live = any(not server.fenced for server in view.metadata.servers)
    topics = view.metadata.topics
    patience_s = (
        ASK_S if reports.silent or any(not p.leader for topic in topics for p in topic.partitions) else PATIENT_S
    )
    groups, overdue = await _groups(log, topics, found, reports.cluster_time(), patience_s) if live else ((), ())
    histories = await _recent(log, view.metadata) if view.quorum is not None else {}
    waits = await _waits(log, reports, found) if live else ()
    awaited = await _awaited(log, view.metadata) if live else ()
    size = record_bytes(reports.metrics)
    heirs = await _heirs(log, features)
    growth = await measure_growth(log, view.metadata.topics, size) if live else Growth()
    if reports.silent:
        what = f"{', '.join(sorted(reports.silent))} did not answer: disk, version and clock are not known"
        found.append(
            Finding(
                NOTE,
                what,
                "They need 'metrics = true', and you the right to describe the cluster.",
                "metrics-unknown",
                tuple(reports.silent),
            )
        )
    return ClusterSnapshot(
        view.metadata,
        view.quorum,
        reports.metrics,
        reports.versions,
        reports.clocks,
        {look.group: (len(look.members), look.lag) for look in groups},
        histories,
        reports.unreadable,
        waits,
        reports.differing,
        features,
        growth,
        reports.limits,
        heirs,
        awaited,
        kept_in(tuple(reports.pages.values())),
        reports.pages,
        _controllers_clock(view.quorum, reports.clocks),
        overdue,
        groups,
    )


def _controllers_clock(quorum: QuorumAnswer | None, clocks: Mapping[str, float]) -> int:
    """Return the present time by the clock of the active controller, in milliseconds; by this machine's if that is
    not known."""
    ahead_s = clocks.get(quorum.active, 0.0) if quorum is not None else 0.0
    return time.time_ns() // 1_000_000 + round(ahead_s * 1000)


async def _recent(log: Log, metadata: MetadataAnswer) -> Histories:
    """Ask the controllers for the histories of all partitions, and return them without losses of records older than
    ``KNOWN_S``."""
    since = time.time_ns() // 1_000_000 - KNOWN_S * 1000
    histories = await ask_histories(log, metadata.topics)
    return {
        place: tuple(e for e in entries if e.event not in LOSSES or e.time_ms >= since)
        for place, entries in histories.items()
    }


async def _features(log: Log) -> FeaturesAnswer | None:
    """Ask for the feature levels of the cluster and its processes; return None if the release has no levels, or the
    controllers do not answer within ``ASK_S``."""
    with trio.move_on_after(ASK_S):
        try:
            return await log.cluster.features()
        except TidelogError:  # the release has no levels, or the controllers do not answer, which other findings show
            return None
    return None


async def _heirs(log: Log, features: FeaturesAnswer | None) -> tuple[str, ...]:
    """Ask for the principals that inherit the right to change tokens and rules, and return their names. An empty
    tuple if the cluster's feature level does not separate that right yet, or this client may not see it."""
    if features is None or features.level < SECURITY:
        return ()
    try:
        return (await log.access.describe()).heirs
    except TidelogError:  # this client lacks the right to know them
        return ()


def _counted(metadata: MetadataAnswer, quorum: QuorumAnswer | None) -> dict[str, object]:
    """Return the cluster's name and active controller, and the numbers of its controllers, servers, topics and
    partitions, for the first line of the output."""
    return {
        "cluster": metadata.cluster,
        "active_controller": quorum.active if quorum else "",
        "controllers": len(quorum.controllers) if quorum else 0,
        "servers": len(metadata.servers),
        "topics": len(metadata.topics),
        "partitions": sum(len(topic.partitions) for topic in metadata.topics),
    }


@dataclass
class _Reports:
    """The reports of single processes that ``_ask_servers`` collects. The fields are those of ``ClusterSnapshot``;
    ``silent`` has the names of the processes that did not answer."""

    metrics: dict[str, Mapping[str, float]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    clocks: dict[str, float] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)
    unreadable: set[UnreadablePlace] = field(default_factory=set)
    differing: set[DifferingCopies] = field(default_factory=set)
    limits: dict[str, float] = field(default_factory=dict)
    pages: dict[str, str] = field(default_factory=dict)
    """The metrics as they came, by name."""

    def cluster_time(self) -> float:
        """Return the time of most clocks of the cluster, in seconds since 1970; that of this machine if no process
        has told its time."""
        return time.time_ns() / 1e9 + (median(self.clocks.values()) if self.clocks else 0.0)

    async def ask(self, log: Log, node: str, name: str) -> None:
        """Ask the process ``node`` ("": the gateway) for its metrics, and add its report under ``name``; a process
        that does not answer is added to ``silent``. The answer takes time, so a clock counts as off only by what it
        is off for every moment between request and answer."""
        sent = time.time_ns()
        try:
            answer = await log.cluster.metrics(node)
        except TidelogError:
            self.silent.append(name)
            return
        came = time.time_ns()
        self.metrics[name] = _summed(answer.page)
        self.limits.update(limits_in(answer.page))
        self.pages[name] = answer.page
        self.versions[name] = answer.version
        self.unreadable.update(answer.unreadable)
        self.differing.update(answer.differing)
        there = answer.time_ms * 1_000_000
        self.clocks[name] = (max(0, there - came) - max(0, sent - there)) / 1e9


async def _ask_servers(log: Log, gateway: str, view: ClusterSnapshot) -> _Reports:
    """Ask the live servers, the active controller and the gateway for their reports, all at the same time, and return
    the reports. Processes that do not answer are in ``silent``."""
    reports = _Reports()
    nodes = {server.node: server.node for server in view.metadata.servers if not server.fenced}
    if view.quorum is not None and view.quorum.active:
        nodes[view.quorum.active] = view.quorum.active
    async with trio.open_nursery() as nursery:
        for node, name in {**nodes, "": gateway}.items():
            nursery.start_soon(reports.ask, log, node, name)
    return reports


async def _groups(
    log: Log, topics: tuple[TopicInfo, ...], found: list[Finding], now: float, within_s: float
) -> tuple[tuple[GroupLook, ...], tuple[OverdueQuery, ...]]:
    """Ask for the list of consumer groups, and look at no more than ``MOST_GROUPS`` of them, side by side: a
    partition without a leader keeps the answer about its groups waiting. List and groups take at most
    ``within_s`` each. Returns what the groups do, and the streaming queries that are overdue at ``now``, the time of
    the cluster's clocks. Groups without an answer are left out, and named in a note that is added to ``found``."""
    try:
        with trio.fail_after(within_s):
            groups = [group.group for group in (await log.groups.list())[:MOST_GROUPS]]
    except (TidelogError, trio.TooSlowError) as error:
        code, words = (error.code, str(error)) if isinstance(error, TidelogError) else ("", _too_late(within_s))
        what = f"how far consumer groups are is not known: {words}"
        found.append(Finding(NOTE, what, NEXT_STEP.get(code, "Try again."), "groups-unknown"))
        return (), ()
    read = TopicsRead(log, topics)

    async def ask(group: str) -> tuple[GroupLook, tuple[OverdueQuery, ...]]:
        look = await look_at_group(log, group, read)
        if look.members:
            return look, ()
        return look, tuple(await find_overdue(log, group, await log.groups.progress(group), now))

    inquiry = Inquiry()
    asked = {group: inquiry.ask(group, partial(ask, group)) for group in groups}
    await inquiry.run(within_s)
    known = [one.value for one in asked.values() if one.value is not None]
    errors = {group: one.error for group, one in asked.items() if one.value is None}
    silent = {group: error for group, error in errors.items() if error is None or error.code != "UNKNOWN_GROUP"}
    if silent:
        found.append(_silent_groups(silent, within_s))
    overdue = sorted((query for _, late in known for query in late), key=lambda query: (query.group, query.topic))
    return tuple(look for look, _ in known), tuple(overdue)


def _too_late(within_s: float) -> str:
    return f"no answer within {within_s:g} s"


def _silent_groups(groups: Mapping[str, TidelogError | None], within_s: float) -> Finding:
    """Return the note that it is not known how far these groups are; each has its error, None: it took longer than
    ``within_s``."""
    errors = sorted({str(error) if error else _too_late(within_s) for error in groups.values()})
    named = ", ".join(list(groups)[:MOST_NAMED]) + (" …" if len(groups) > MOST_NAMED else "")
    what = f"how far {len(groups)} consumer group{'s are' if len(groups) > 1 else ' is'} is not known: {named}"
    step = "A partition without a leader may be the cause; 'tidelog groups describe GROUP' waits longer."
    return Finding(NOTE, f"{what} ({'; '.join(errors)})", step, "groups-unknown")


async def _awaited(log: Log, metadata: MetadataAnswer) -> tuple[AwaitedGroup, ...]:
    """Ask how far the groups have read that retention waits for, for all topics that name groups, and return the
    answers. Topics that are deleted meanwhile are left out."""
    found: list[AwaitedGroup] = []
    for topic in filter(awaited_names, metadata.topics):
        try:
            found += await ask_awaited(log, await log.topics.describe(topic.name, offsets=True))
        except TidelogError:  # the topic was deleted meanwhile; other findings show every other cause
            continue
    return tuple(found)


async def _waits(log: Log, reports: _Reports, found: list[Finding]) -> tuple[WaitingReaders, ...]:
    """Return the partitions whose readers have waited at one offset for ``LONG_MS``, with the transaction that each
    waits for. An empty tuple at once if every server reports metrics and none has such a partition. Leaders are asked
    before and after the coordinators: a transaction hangs if it is open both times and no coordinator has it in
    between. If a request fails, a note is added to ``found``."""
    ages = [metrics.get(STABLE_AGE, 0.0) for metrics in reports.metrics.values()]
    if not reports.silent and max(ages, default=0.0) * 1000 < LONG_MS:
        return ()
    try:
        if not (before := _stuck_offsets(await log.cluster.status(offsets=True))):
            return ()
        listed = {(one.producer_id, one.producer_epoch): one for one in await log.transactions.list()}
        after = _stuck_offsets(await log.cluster.status(offsets=True))
    except TidelogError as error:
        what = f"for which transactions readers wait is not known: {error}"
        found.append(Finding(NOTE, what, NEXT_STEP.get(error.code, "Try again."), "transactions-unknown"))
        return ()
    return tuple(
        WaitingReaders(place, leader, stable, listed.get((stable.producer_id, stable.producer_epoch)), records)
        for place, (leader, stable, records) in after.items()
        if place in before and _is_same(before[place][1], stable)
    )


def _stuck_offsets(metadata: MetadataAnswer) -> dict[str, tuple[str, StableOffset, int]]:
    """Return (leader, last stable offset, records from there up to the high watermark) by partition, for the
    partitions whose last stable offset has not moved for ``LONG_MS``."""
    return {
        f"{topic.name}/{one.partition}": (one.leader, one.stable, one.high_watermark - one.stable.offset)
        for topic in metadata.topics
        for one in topic.partitions
        if one.stable is not None and one.stable.age_ms >= LONG_MS
    }


def _is_same(one: StableOffset, other: StableOffset) -> bool:
    """Return whether two last stable offsets are the same offset, held back by the same transaction."""
    return (one.offset, one.producer_id, one.producer_epoch) == (
        other.offset,
        other.producer_id,
        other.producer_epoch,
    )


def _summed(page: str) -> dict[str, float]:
    """Parse a page of metrics, and return name -> value, summed over all labels."""
    values: dict[str, float] = {}
    for name, value in _SAMPLE.findall(page):
        values[name] = values.get(name, 0.0) + float(value)
    return values


def limits_in(page: str) -> dict[str, float]:
    """Parse the metrics page of a gateway, and return slow server -> the most bytes per second that the gateway sends
    to it; an empty map if it limits none."""
    return {server: float(value) for server, value in _LIMIT.findall(page)}


def _machine() -> list[Finding]:
    """Return a finding if a process may open few files on this machine; an empty list if the limit suffices."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= FEW_FILES:
        return []
    what = f"a process may open {hard} files on this machine: few for a replica server, or a gateway of many clients"
    return [
        Finding(
            NOTE,
            what,
            "Raise it where they are started: 'ulimit -n', or LimitNOFILE= of a systemd unit.",
            "few-open-files",
        )
    ]


def _show(found: list[Finding], seen: dict[str, object], healthy: bool, output: str) -> None:
    """Print the findings with their next steps in the format ``output``; for people after a line with the facts
    ``seen`` about the cluster, and a consequence as one line below its cause."""
    table = Table("level", "what", "next_step", "cause", "evidence", "because_of")
    for finding in found:
        table.add(finding.level, finding.what, finding.next_step, finding.cause, finding.evidence, finding.because_of)
    document = {"healthy": healthy, "seen": seen, "findings": [asdict(finding) for finding in found]}
    if print_for_programs(output, table, document):
        return
    say(", ".join(f"{name.replace('_', ' ')} {_text(value)}" for name, value in seen.items()))
    for finding in found:
        if finding.because_of:
            say(f"    therefore: {finding.what}")
            continue
        say_after(finding.level, finding.what, **_STYLES[finding.level])
        if finding.evidence:
            say(f"    {finding.evidence}")
        say(f"    {finding.next_step}")
    causes = sum(finding.level != NOTE and not finding.because_of for finding in found)
    say("healthy" if healthy else counted(causes, "finding"))


def _text(value: object) -> str:
    return " ".join(map(str, value)) or "none" if isinstance(value, list) else str(value) or "none"
