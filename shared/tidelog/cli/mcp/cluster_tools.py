"""The tools about the cluster: its state, what is wrong with it, why a partition is as it is, how things were at an
earlier time, and who may do what."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from tidelog.acl import OPERATIONS, decide, refuse_rule
from tidelog.cli.explain.describe import entries_of, topic_info
from tidelog.cli.explain.doctor import diagnose
from tidelog.cli.explain.findings.finding import NOTE, PROBLEM, WARNING
from tidelog.cli.explain.sentences import change_in_words, event_in_words
from tidelog.cli.mcp.next_steps import for_agents
from tidelog.cli.mcp.tool import Answer, CallError, Tool, clock, moment
from tidelog.cli.mcp.topic_tools import PartitionDescription, describe_partitions
from tidelog.errors import ConfigError
from tidelog.explain.questions import FORMS, PartitionQuestion, answer_question, parse_question
from tidelog.quantities import counted
from tidelog.timeline.query import TimelineReader, partition_at, topic_at
from tidelog.types import Acl
from tidelog.wire.messages import HistoryEntry, TopicInfo

if TYPE_CHECKING:
    from tidelog.client.log import Log
    from tidelog.timeline.query import Moment

MOST_EVENTS = 100
"""Most events of one history; the newest are shown."""
MOST_NAMED = 200
"""Most partitions that the state of the cluster names."""
KINDS = sorted({operation for found in OPERATIONS.values() for operation in found})
"""The operations that rules are about."""


class ClusterStatus(BaseModel, extra="forbid"):
    """Arguments of ``cluster_status``: none."""


class ServerState(BaseModel):
    """A replica server, and how much it leads."""

    server: str
    live: bool
    draining: bool
    leads: int
    replicas: int


class ControllerState(BaseModel):
    """A controller, and its part in the group of controllers."""

    controller: str
    active: bool
    voter: bool
    answers: bool


class ClusterState(BaseModel):
    """Data of ``cluster_status``."""

    cluster: str
    servers: list[ServerState]
    controllers: list[ControllerState]
    gateways: list[str]
    without_leader: list[str]
    under_replicated: list[str]
    paused: list[str]
    read_only: list[str]


async def cluster_status(log: Log, given: ClusterStatus) -> Answer:
    """Show servers, controllers and gateways, and the partitions that are not as they should be."""
    metadata, quorum = await log.cluster.status(), await log.cluster.quorum()
    partitions = [(f"{topic.name}/{p.partition}", p) for topic in metadata.topics for p in topic.partitions]
    bad = {
        "without_leader": [name for name, p in partitions if not p.leader],
        "under_replicated": [name for name, p in partitions if len(p.isr) < len(p.replicas)],
        "paused": [name for name, p in partitions if p.paused],
        "read_only": [name for name, p in partitions if p.read_only],
    }
    servers = [
        ServerState(
            server=one.node,
            live=not one.fenced,
            draining=one.draining,
            leads=sum(p.leader == one.node for _, p in partitions),
            replicas=sum(one.node in p.replicas for _, p in partitions),
        )
        for one in sorted(metadata.servers, key=lambda one: one.node)
    ]
    controllers = [
        ControllerState(
            controller=one.node, active=one.node == quorum.active, voter=one.voter, answers=one.role != "unknown"
        )
        for one in quorum.controllers
    ]
    data = ClusterState(
        cluster=metadata.cluster,
        servers=servers,
        controllers=controllers,
        gateways=list(quorum.gateways),
        **{name: found[:MOST_NAMED] for name, found in bad.items()},
    )
    live = sum(one.live for one in servers)
    counts = ", ".join(f"{len(found)} {name.replace('_', ' ')}" for name, found in bad.items())
    summary = (
        f"{live} of {len(servers)} replica servers are live;"
        f" {'there is an' if quorum.active else 'there is no'} active controller;"
        f" {len(metadata.topics)} topics, {len(partitions)} partitions: {counts}."
    )
    left_out = {name: len(found) - MOST_NAMED for name, found in bad.items() if len(found) > MOST_NAMED}
    return Answer(summary, data, left_out, "Call describe_topic for one topic.")


class Doctor(BaseModel, extra="forbid"):
    """Arguments of ``doctor``: none."""


class FindingData(BaseModel):
    """One finding of the doctor."""

    level: str = Field(
        description="problem: does not work now; warning: a weakness at the next failure; note: may be intended."
    )
    cause: str = Field(description="Stable code of what is wrong.")
    what: str
    evidence: str = Field(description="Observed facts that show it, if 'what' does not have them.")
    next_step: str
    about: list[str] = Field(description="The servers, partitions or groups that it concerns; empty: the cluster.")
    because_of: str | None = Field(description="The cause of another finding, of which this is a consequence.")


class Diagnosis(BaseModel):
    """Data of ``doctor``."""

    healthy: bool
    findings: list[FindingData] = Field(description="The worst first; consequences follow their cause.")


async def doctor(log: Log, given: Doctor) -> Answer:
    """Examine the cluster, and say what is wrong, why, and what to do next."""
    found = await diagnose(log)
    levels = [one.level for one in found]
    healthy = all(level == NOTE for level in levels)
    causes = dict.fromkeys(one.cause for one in found if one.level != NOTE and not one.because_of)
    named = f" Causes: {', '.join(causes)}." if causes else ""
    rows = [
        FindingData(
            level=one.level,
            cause=one.cause,
            what=one.what,
            evidence=one.evidence,
            next_step=for_agents(one.next_step),
            about=list(one.about),
            because_of=one.because_of or None,
        )
        for one in found
    ]
    summary = (
        f"{'Healthy' if healthy else 'Not healthy'}: {counted(levels.count(PROBLEM), PROBLEM)},"
        f" {counted(levels.count(WARNING), WARNING)}, {counted(levels.count(NOTE), NOTE)}.{named}"
    )
    return Answer(summary, Diagnosis(healthy=healthy, findings=rows))


class WhyPartition(BaseModel, extra="forbid"):
    """Arguments of ``why``."""

    topic: str = Field(description="Name of the topic.")
    partition: int = Field(ge=0)
    at: str = Field("", description="Up to this time, such as '2026-01-31T12:00:00+00:00' or '-5m'. Default: now.")


class HistoryEvent(BaseModel):
    """One change of a partition, or one refused request about it."""

    time: str | None
    event: str
    cause: str
    leader: str | None
    leader_epoch: int
    in_sync: list[str]
    evidence: dict[str, str]
    words: str = Field(description="What happened, and why, in a sentence.")


class PartitionHistory(BaseModel):
    """Data of ``why``."""

    topic: str
    partition: int
    leader: str | None
    state: list[str] = Field(description="What is unusual about it now, or at that time; empty if all is well.")
    events: list[HistoryEvent] = Field(description="Oldest first.")
    complete: bool = Field(description="False: events before these were not kept.")


async def why(log: Log, given: WhyPartition) -> Answer:
    """Explain a partition: its state, and the events that led to it."""
    if given.at:
        reader = TimelineReader(log)
        then = await reader.moment(moment(given.at, "at"))
        past = topic_at(then, given.topic)
        partition_at(past, given.partition)
        chain = await reader.chain(then, past, given.partition)
        topic, entries = topic_info(past, given.partition), entries_of(chain)
        words, complete = [str(record["words"]) for record in chain], then.past.complete
    else:
        topic, found = await _topic_now(log, given.topic, given.partition)
        entries, words, complete = list(found), [], True
    events = _events(entries, words)
    state = describe_partitions(topic)[0]
    data = PartitionHistory(
        topic=topic.name,
        partition=given.partition,
        leader=state.leader,
        state=state.state,
        events=events[-MOST_EVENTS:],
        complete=complete,
    )
    leads = "has a leader" if state.leader else "has no leader"
    summary = f"The partition {leads}. {len(events)} events, oldest first; the last one led to its present state."
    if not events:
        summary = f"The partition {leads}. Nothing is remembered about it."
    left_out = {"events": len(events) - MOST_EVENTS} if len(events) > MOST_EVENTS else {}
    return Answer(summary, data, left_out, "Give an earlier 'at' for the older ones.")


async def _topic_now(log: Log, name: str, number: int) -> tuple[TopicInfo, Iterable[HistoryEntry]]:
    """Return a topic with only one partition, and the history of that partition. Raises ``CallError`` if the topic
    has no such partition."""
    topic = await log.topics.describe(name, offsets=True)
    chosen = tuple(p for p in topic.partitions if p.partition == number)
    if not chosen:
        raise CallError("UNKNOWN_TOPIC", f"{name} has no partition {number}", "Call describe_topic.")
    history = await log.partitions.history(name, number)
    return TopicInfo(topic.topic_id, topic.name, topic.config, chosen), history


def _events(entries: list[HistoryEntry], words: list[str]) -> list[HistoryEvent]:
    """Return the entries of a history as events. ``words`` has the sentence of each; if it is empty, sentences are
    made of the entries."""
    rows = []
    before: HistoryEntry | None = None
    for number, entry in enumerate(entries):
        text = words[number] if words else event_in_words(entry)
        if entry.event != "refused":
            text = text if words else f"{change_in_words(entry, before)}. {text}".rstrip(". ")
            before = entry
        rows.append(
            HistoryEvent(
                time=clock(entry.time_ms),
                event=entry.event,
                cause=entry.cause,
                leader=entry.leader or None,
                leader_epoch=entry.leader_epoch,
                in_sync=list(entry.isr),
                evidence=dict(entry.evidence),
                words=text,
            )
        )
    return rows


class Explain(BaseModel, extra="forbid"):
    """Arguments of ``explain``."""

    question: str = Field(description="The words of a question, as the description of the tool lists them.")


class ExplanationData(BaseModel):
    """Data of ``explain``."""

    question: str = Field(description="The kind of question.")
    subject: str
    sentences: list[str]
    unknown: list[str] = Field(description="What the cluster does not know, or did not say.")
    next_steps: list[str]
    facts: dict[str, Any] = Field(description="The evidence, for programs.")


async def explain(log: Log, given: Explain) -> Answer:
    """Answer a question of ``tidelog why`` about a record, a group, a gap and so on."""
    try:
        question = parse_question(given.question.split())
    except ConfigError as error:
        raise CallError("BAD_ARGUMENTS", str(error), "Ask one of the questions in the tool's description.") from None
    if isinstance(question, PartitionQuestion):
        raise CallError("BAD_ARGUMENTS", "that is a partition", "Call 'why' with the topic and the partition.")
    found = await answer_question(log, question)
    data = ExplanationData(**found.as_document())
    data.next_steps = [for_agents(step) for step in data.next_steps]
    return Answer(f"{len(data.sentences)} sentences, {len(data.unknown)} things that are not known.", data)


class ClusterAt(BaseModel, extra="forbid"):
    """Arguments of ``cluster_at``."""

    at: str = Field(description="The time, such as '2026-01-31T12:00:00+00:00', or '-5m' for five minutes ago.")
    topic: str = Field("", description="Also the partitions of this topic, as they were then.")


class PastServer(BaseModel):
    """One replica server as it was."""

    server: str
    live: bool
    draining: bool


class PastCluster(BaseModel):
    """Data of ``cluster_at``."""

    at: str
    last_event: str | None = Field(description="Time of the last event before.")
    complete: bool = Field(description="False: older events were not kept, and what they changed may be missing.")
    active_controller: str | None
    servers: list[PastServer]
    topics: list[str]
    without_leader: list[str]
    topic: str | None
    settings: dict[str, str]
    partitions: list[PartitionDescription]


async def cluster_at(log: Log, given: ClusterAt) -> Answer:
    """Show the cluster, and one of its topics, as they were at a time."""
    then = await TimelineReader(log).moment(moment(given.at, "at"))
    past = then.past
    topic = topic_info(topic_at(then, given.topic), None) if given.topic else None
    servers = [
        PastServer(server=node, live=not one["fenced"], draining=bool(one.get("draining")))
        for node, one in sorted(past.servers.items())
    ]
    data = PastCluster(
        at=then.at.astimezone(UTC).isoformat(timespec="milliseconds"),
        last_event=clock(past.time_ms) if past.event else None,
        complete=past.complete,
        active_controller=past.active or None,
        servers=servers,
        topics=sorted(one.name for one in past.topics.values()),
        without_leader=_leaderless(then),
        topic=topic.name if topic else None,
        settings=topic.config if topic else {},
        partitions=describe_partitions(topic) if topic else [],
    )
    live = sum(one.live for one in servers)
    summary = (
        f"At that time {live} of {len(servers)} replica servers were live, and {len(data.without_leader)} partitions"
        f" had no leader. {'All is known.' if past.complete else 'Not all is known: older events were not kept.'}"
    )
    return Answer(summary, data, narrower="Give a topic.")


def _leaderless(then: Moment) -> list[str]:
    """Return the partitions that had no leader at a moment, as ``TOPIC/PARTITION``."""
    return sorted(
        f"{topic.name}/{number}"
        for topic in then.past.topics.values()
        for number, state in topic.partitions.items()
        if not state["leader"]
    )


class CheckAccess(BaseModel, extra="forbid"):
    """Arguments of ``check_access``."""

    principal: str = Field("", description="Only rules that apply to this principal.")
    operation: str = Field("", description=f"With principal and resource: is this allowed? {', '.join(KINDS)}.")
    resource: str = Field("", description="topic:NAME, group:NAME, app:NAME or cluster.")


class AccessRule(BaseModel):
    """An access rule: who may do what, or may not."""

    principal: str
    operation: str
    resource: str
    deny: bool


class AccessDescription(BaseModel):
    """Data of ``check_access``."""

    rules: list[AccessRule]
    allowed: bool | None = Field(description="Whether the rules allow what was asked; null: nothing was asked.")
    enforced: bool = Field(description="Whether the gateway enforces the rules.")
    authentication: bool = Field(description="Whether the gateway refuses clients without token and certificate.")
    caller: str = Field(description="Principal of this connection.")
    caller_is_superuser: bool


async def check_access(log: Log, given: CheckAccess) -> Answer:
    """List the rules of who may do what, and decide one question by them."""
    access = await log.access.describe()
    rules = [one for one in access.acls if not given.principal or one.principal in (given.principal, "*")]
    allowed, verdict = None, ""
    if given.operation or given.resource:
        if not (given.principal and given.operation and given.resource):
            raise CallError("BAD_ARGUMENTS", "a part is missing", "Give principal, operation and resource together.")
        if fault := refuse_rule(Acl(given.principal, given.operation, given.resource.rstrip("*"))):
            raise CallError("BAD_ARGUMENTS", fault, "See the descriptions of the arguments.")
        allowed = decide(access.acls, given.principal, given.operation, given.resource, access.heirs)
        verdict = f"The rules {'allow' if allowed else 'do not allow'} it. "
    enforced = "The gateway enforces the rules." if access.authorization else "The gateway enforces no rules."
    data = AccessDescription(
        rules=[
            AccessRule(principal=one.principal, operation=one.operation, resource=one.resource, deny=one.deny)
            for one in rules
        ],
        allowed=allowed,
        enforced=access.authorization,
        authentication=access.authentication,
        caller=access.principal,
        caller_is_superuser=access.superuser,
    )
    return Answer(f"{verdict}{len(rules)} rules. {enforced}", data, narrower="Give a principal.")


_QUESTIONS = "; ".join(re.sub(r" {2,}", ": ", line.strip()) for line in FORMS.splitlines()[2:])
"""The forms of questions that ``explain`` answers, and what each is about."""
TOOLS = (
    Tool(
        "cluster_status",
        "Show the cluster",
        "Show replica servers, controllers and gateways, and which partitions have no leader, are under-replicated,"
        " paused or read-only.",
        ClusterStatus,
        ClusterState,
        cluster_status,
    ),
    Tool(
        "doctor",
        "Diagnose the cluster",
        "Examine the whole cluster and say what is wrong, with evidence and next step: servers, disks, controllers,"
        " partitions, groups, transactions, versions, clocks. Start here.",
        Doctor,
        Diagnosis,
        doctor,
    ),
    Tool(
        "why",
        "Explain a partition",
        "Explain why a partition is as it is: each change of leader and in-sync replicas, each loss, each refused"
        " request, with cause and evidence; also as of an earlier time.",
        WhyPartition,
        PartitionHistory,
        why,
    ),
    Tool(
        "explain",
        "Explain a record, a group or another thing",
        f"Answer a question with what the cluster knows: {_QUESTIONS}. For a partition call 'why'.",
        Explain,
        ExplanationData,
        explain,
    ),
    Tool(
        "cluster_at",
        "Show the cluster at a time",
        "Show which servers were live, which topics there were and which partitions had no leader at an earlier time;"
        " with a topic its partitions and settings then. For records of a time call read_records with 'start'.",
        ClusterAt,
        PastCluster,
        cluster_at,
    ),
    Tool(
        "check_access",
        "Show who may do what",
        "List the access rules, and say whether they allow a principal an operation on a resource.",
        CheckAccess,
        AccessDescription,
        check_access,
    ),
)
