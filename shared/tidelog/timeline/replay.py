"""Replays records of the timeline, in order, and holds the resulting state of the cluster.

``complete`` is true if the state is the whole truth: the replay began with the first event of all, or with a
keyframe, and no gap came since. If it is false, everything that a replayed event has reported is true nevertheless;
other things may be missing, or be older."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tidelog.timeline.records import Document, is_repeat


@dataclass(slots=True)
class PastTopic:
    """A topic as it was at some moment, with its settings and partitions."""

    topic_id: str
    name: str
    config: dict[str, str]
    partitions: dict[int, Document] = field(default_factory=dict)
    """Partitions by number, each as the records describe it."""


class Past:
    """The state of the cluster after the records that were replayed: topics, servers and controllers as the records
    describe them, and the active controller with its term. Empty at first."""

    def __init__(self) -> None:
        self.event = 0
        """Number of the last replayed event."""
        self.time_ms = 0
        self.complete = True
        """Whether the state is the whole truth: the replay began with the first event or with a keyframe, and no gap
        came since."""
        self.missing: tuple[int, int] | None = None
        """First and last number of the events that a gap names; None if there was no gap, or a keyframe came
        since."""
        self.topics: dict[str, PastTopic] = {}
        """Topics by id."""
        self.servers: dict[str, Document] = {}
        self.controllers: dict[str, Document] = {}
        self.active = ""
        self.term = 0
        self._frame: Past | None = None
        """State of a keyframe of which not all parts have come."""
        self._parts = 0

    def apply_record(self, record: Document) -> None:
        """Replay the next record: apply an event to the state, mark the state as incomplete after a gap, or add a
        part of a keyframe. A refusal changes nothing."""
        match record["type"]:
            case "event":
                self._frame = None
                self._apply_event(record)
            case "gap":
                self._frame = None
                self.complete, self.missing = False, (record["from"], record["event"])
                self._set_event(record)
            case "keyframe":
                self._apply_keyframe(record)

    def topic_named(self, name: str) -> PastTopic | None:
        """Return the topic that has this name; None if there is none."""
        return next((topic for topic in self.topics.values() if topic.name == name), None)

    def _set_event(self, record: Document) -> None:
        """Set the number and time of the last event to those of a record."""
        self.event, self.time_ms = record["event"], record["time_ms"]

    def _apply_event(self, record: Document) -> None:
        """Set the thing that an event is about to its new state, or remove the thing. The state becomes incomplete if
        event numbers are missing before this one. A repeated event changes nothing."""
        if is_repeat(record, self.event):
            return
        if record["event"] != self.event + 1:
            self.complete = False
        self._set_event(record)
        after = record["after"]
        if "partition" in record:
            topic = self._topic(record)
            topic.partitions[record["partition"]] = after
        elif "topic" in record:
            if after is None:
                self.topics.pop(record["topic_id"], None)
            else:
                self._topic(record).config = after
        elif "server" in record:
            _put(self.servers, record["server"], after)
        elif record["kind"] == "controller_active":
            self.active, self.term = record["controller"], int(record["evidence"]["term"])
        elif "controller" in record:
            _put(self.controllers, record["controller"], after)

    def _topic(self, record: Document) -> PastTopic:
        """Return the topic that a record names; a topic that is not known yet is added without settings and
        partitions."""
        known = self.topics.get(record["topic_id"])
        if known is None:
            known = self.topics[record["topic_id"]] = PastTopic(record["topic_id"], record["topic"], {})
        return known

    def _apply_keyframe(self, record: Document) -> None:
        """Add a part of a keyframe. With the last part the state becomes that of the keyframe, and complete. A
        keyframe of which a part is missing is dropped."""
        if record["part"] == 1:
            self._frame, self._parts = Past(), 0
            self._frame.servers = {server["node"]: server for server in record["servers"]}
            self._frame.controllers = {one["node"]: one for one in record["controllers"]}
            self._frame.active, self._frame.term = record["active"], record["term"]
        frame = self._frame
        if frame is None or record["part"] != self._parts + 1:
            self._frame = None
            return
        self._parts += 1
        for entry in record["topics"]:
            topic = frame._topic(entry)
            topic.config = entry["config"]
            topic.partitions |= dict(enumerate(entry["partitions"], entry["first"]))
        if self._parts < record["parts"]:
            return
        self._set_event(record)
        self.complete, self.missing = True, None
        self.topics, self.servers, self.controllers = frame.topics, frame.servers, frame.controllers
        self.active, self.term, self._frame = frame.active, frame.term, None

    def image(self) -> dict[str, Any]:
        """Return the whole state as plain maps with sorted keys, so that equal states give equal results."""
        return {
            "event": self.event,
            "active": self.active,
            "term": self.term,
            "servers": dict(sorted(self.servers.items())),
            "controllers": dict(sorted(self.controllers.items())),
            "topics": {
                topic.topic_id: [topic.name, topic.config, dict(sorted(topic.partitions.items()))]
                for _, topic in sorted(self.topics.items())
            },
        }


def past_after(records: Iterable[Document]) -> Past:
    """Replay these records on an empty state, and return the state after the last one."""
    past = Past()
    for record in records:
        past.apply_record(record)
    return past


def _put(things: dict[str, Document], name: str, after: Document | None) -> None:
    """Set the state of the thing with this name, or remove it if ``after`` is None."""
    if after is None:
        things.pop(name, None)
    else:
        things[name] = after
