"""The records of the timeline: how events, refusals, gaps and keyframes become documents, and documents become
records."""

from __future__ import annotations

from tidelog.batch.format import NewRecord
from tidelog.timeline.records import FORMAT, Document, changed, document, encode, subject_of
from tidelog.timeline.sentences import refusal_sentence, sentence
from tidelog.types import TopicState

from tidelog_controller.active.refusal_log import Refusal
from tidelog_controller.metadata.state import MetadataState
from tidelog_controller.metadata.timeline_state import PendingTimeline, TimelineEvent

PART_PARTITIONS = 500
"""Number of partitions in one record of a keyframe, at most."""


def event_record(event: TimelineEvent) -> Document:
    """Return the document of an event for the timeline: its subject before and after, its cause and evidence, and a
    sentence for people."""
    if event.topic_id:
        about: Document = {"topic": event.topic, "topic_id": event.topic_id}
        if event.partition >= 0:
            about["partition"] = event.partition
    else:
        about = {}
    if event.node:
        about = {"controller" if event.kind.startswith("controller_") else "server": event.node}
    record = {
        **_head("event", event.number, event.time_ms),
        "index": event.index,
        "kind": event.kind,
        **about,
        "before": changed(event.before, event.after),
        "after": None if event.after is None else document(event.after),
        "cause": event.cause,
        "evidence": event.evidence,
    }
    record["words"] = sentence(record)
    return record


def gap_record(first: int, last: int, time_ms: int) -> Document:
    """Return the document for the timeline that reports that the events from ``first`` to ``last``, both included,
    are missing from it for good."""
    return {
        **_head("gap", last, time_ms),
        "from": first,
        "words": f"events {first} up to {last} are missing: they could not be written for too long, or were lost",
    }


def refused_record(refusal: Refusal, timeline: PendingTimeline) -> Document:
    """Return the document of a refused request for the timeline, with the number of the last event before it and a
    sentence for people."""
    about: Document = {}
    if refusal.topic:
        about = {"topic": refusal.topic, "topic_id": refusal.topic_id}
        if refusal.partition >= 0:
            about["partition"] = refusal.partition
    elif refusal.node:
        about = {"controller" if refusal.op.endswith("_controller") else "server": refusal.node}
    record = {
        **_head("refused", timeline.last, timeline.clock(refusal.time_ms)),
        "kind": "refused",
        **about,
        "op": refusal.op,
        "asked_by": refusal.asker,
        "cause": refusal.code,
        "message": refusal.message,
        "evidence": refusal.evidence,
        "count": refusal.count,
        "since_ms": refusal.since_ms or refusal.time_ms,
    }
    return {**record, "words": refusal_sentence(record)}


def keyframe_records(state: MetadataState) -> list[Document]:
    """Return the documents of a keyframe: the state of the whole cluster, in parts of at most ``PART_PARTITIONS``
    partitions. The first part also has the servers and controllers."""
    parts: list[list[Document]] = [[]]
    room = PART_PARTITIONS
    for topic in state.topics.values():
        first = 0
        while first < len(topic.partitions) or not topic.partitions:
            if not room:
                parts.append([])
                room = PART_PARTITIONS
            parts[-1].append(_topic(topic, first, room))
            taken = min(room, len(topic.partitions) - first)
            first, room = first + taken, room - max(taken, 1)
            if not topic.partitions:
                break
    timeline = state.timeline
    cluster = {
        "cluster": state.cluster,
        "servers": [document(server) for server in state.servers.values()],
        "controllers": [document(member) for member in timeline.controllers],
        "active": timeline.active,
        "term": timeline.term,
    }
    return [
        {
            **_head("keyframe", timeline.last, timeline.time_ms),
            "part": number,
            "parts": len(parts),
            **(cluster if number == 1 else {}),
            "topics": topics,
        }
        for number, topics in enumerate(parts, 1)
    ]


def new_record(record: Document, keyframe: tuple[int, int] | None, wall_ms: int) -> NewRecord:
    """Return a document as the record to append to the timeline. ``keyframe`` is the last complete keyframe at or
    before the record, as (offset of its first record, number of its event), or None. The time of the record is that
    of the event; a keyframe has at least ``wall_ms``, the time at which it is written."""
    time_ms = record["time_ms"]
    if record["type"] == "keyframe":
        time_ms = max(time_ms, wall_ms)
    value = encode({**record, "keyframe": None if keyframe is None else list(keyframe)})
    return NewRecord(value, subject_of(record).encode(), time_ms)


def _head(kind: str, number: int, time_ms: int) -> Document:
    return {"format": FORMAT, "type": kind, "event": number, "time_ms": time_ms}


def _topic(topic: TopicState, first: int, count: int) -> Document:
    return {
        "topic": topic.name,
        "topic_id": topic.topic_id,
        "config": dict(topic.config.texts()),
        "first": first,
        "partitions": [document(partition) for partition in topic.partitions[first : first + count]],
    }
