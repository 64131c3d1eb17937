"""Replays records of the timeline, in order, and holds the resulting state of the cluster.

``complete`` is true if the state is the whole truth: it began with the first event of all, or with a keyframe, and no
gap came since. If it is false, everything that an event has reported since is true nevertheless; other things may be
missing, or be older.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tidelog.timeline.records import Document, is_repeat


@dataclass(slots=True)
class PastTopic:
    """A topic as it was at some moment."""

    topic_id: str
    name: str
    config: dict[str, str]
    partitions: dict[int, Document] = field(default_factory=dict)
    """By number; as in the records."""


class Past:
    """The cluster after the replayed records."""

    def __init__(self) -> None:
        self.event = 0
        """Number of the last replayed event."""
        self.time_ms = 0
        self.complete = True
        self.missing: tuple[int, int] | None = None
        """The gap that makes the state incomplete; None: it began in the middle."""
        self.topics: dict[str, PastTopic] = {}
        """Topics by id."""
        self.servers: dict[str, Document] = {}
        self.controllers: dict[str, Document] = {}
        self.active = ""
        self.term = 0
        self._frame: Past | None = None
        self._parts = 0

    def take(self, record: Document) -> None:
        """Replay the next record."""
        match record["type"]:
            case "event":
                self._frame = None
                self._take_event(record)
            case "gap":
                self._frame = None
                self.complete, self.missing = False, (record["from"], record["event"])
                self._move_on(record)
            case "keyframe":
                self._take_frame(record)

    def topic_named(self, name: str) -> PastTopic | None:
        """Return the topic that had the name."""
        return next((topic for topic in self.topics.values() if topic.name == name), None)

    def _move_on(self, record: Document) -> None:
        self.event, self.time_ms = record["event"], record["time_ms"]

    def _take_event(self, record: Document) -> None:
        if is_repeat(record, self.event):
            return
        if record["event"] != self.event + 1:
            self.complete = False
        self._move_on(record)
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
        known = self.topics.get(record["topic_id"])
        if known is None:
            known = self.topics[record["topic_id"]] = PastTopic(record["topic_id"], record["topic"], {})
        return known

    def _take_frame(self, record: Document) -> None:
        """Add a part of a keyframe. With the last part the state becomes that of the keyframe."""
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
        for told in record["topics"]:
            topic = frame._topic(told)
            topic.config = told["config"]
            topic.partitions |= dict(enumerate(told["partitions"], told["first"]))
        if self._parts < record["parts"]:
            return
        self._move_on(record)
        self.complete, self.missing = True, None
        self.topics, self.servers, self.controllers = frame.topics, frame.servers, frame.controllers
        self.active, self.term, self._frame = frame.active, frame.term, None

    def image(self) -> dict[str, Any]:
        """Return the whole state in a fixed order: equal for equal states."""
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
    """Return the state after these records."""
    past = Past()
    for record in records:
        past.take(record)
    return past


def _put(things: dict[str, Document], name: str, after: Document | None) -> None:
    if after is None:
        things.pop(name, None)
    else:
        things[name] = after
