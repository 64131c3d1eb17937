"""The story that a capture tells (docs/capture.md), played again: the same cluster, and what happened to it as faults
and wishes at the same distances in virtual time, under load, with all invariants checked; then both courses beside
each other.

The timeline tells effects, not causes. What is played is the simplest cause of each:

    server_fenced, then server_registered     the server dies when it was last heard of, until it registered
    server_fenced, then server_unfenced       it is cut off from everybody for that time
    server_fenced, and nothing more           it dies, until everything heals at the end
    server_registered without a fence         it is restarted at that moment
    a registration after an unclean restart   its machine lost power; with another data directory: it was wiped
    another active controller                 the one before is cut off from everybody for ``DEPOSED_S``
    leader_reported                           the leader that was reported is cut off from the other servers, unless
                                              one of these explains it
    isr_shrunk, follower_lagging              who left was cut off from the leader, from the time it lagged on, until
                                              the ISR has it again
    transfers, moves, drains, pauses          the same request, from an operator

Silences longer than ``LONGEST_S`` are cut to that: nothing happens in them. The cluster begins as the timeline has it
before the first event that is played; servers, topics and partitions that come later are there from the beginning."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tidelog.captures import Capture
from tidelog.errors import ConfigError
from tidelog.testing.faults.strikes import Strike
from tidelog.timeline.replay import Past
from tidelog.types import INTERNAL_PREFIX
from tidelog.wire.messages import DrainServer, Message, PauseTopic, Reassign, SetReadOnly, TransferLeader

LONGEST_S = 10.0
DEPOSED_S = 3.0
RESTART_S = 0.3
REPORTED_S = 2.0
FOR_GOOD_S = 1e6
BEGIN_S = 6.0
"""The virtual time at which the story begins; before it the cluster is brought into its first state."""

Record = dict[str, Any]
Course = list[tuple[str, int]]
"""The leaders of a partition in order, "-" for none, each with its leader epoch."""


@dataclass
class Story:
    """The cluster to build and what happens to it. Names are those of the simulation: c1, c2 …, r1, r2 …"""

    controllers: int
    racks: dict[str, str]
    """The rack of each server."""
    topics: list[dict[str, Any]]
    """For each topic ``name``, ``config`` and ``partitions``, with the replicas and the leader of each."""
    names: dict[str, str]
    """The simulated name of each server and controller of the capture."""
    strikes: list[Strike] = field(default_factory=list)
    wishes: list[tuple[float, Message]] = field(default_factory=list)
    length_s: float = 0.0
    courses: dict[str, Course] = field(default_factory=dict)
    """The leaders by ``topic/partition``, from the beginning on."""
    not_played: dict[str, int] = field(default_factory=dict)
    """The number of events that are not played, by kind."""


def story_of(capture: Capture, last: int) -> Story:
    """Return the story of the last ``last`` events of a capture. Raises ``ConfigError`` if its timeline has no events
    or no cluster with a topic."""
    known = [r for r in capture.part("timeline") if r["type"] in ("event", "keyframe", "gap")]
    events = [record for record in known if record["type"] == "event"]
    if not events:
        raise ConfigError("the capture's timeline has no events")
    first = events[-last:][0]["event"]
    past = Past()
    begun = False
    for record in known:
        begun = begun or record["type"] == "keyframe" or record["event"] == 1
        if record["type"] == "event" and record["event"] >= first and past.servers:
            break
        if begun:
            past.apply_record(record)
    rest = [record for record in events if record["event"] > past.event]
    story = _StoryBuilder(past, rest).story
    if not story.racks or not story.topics:
        raise ConfigError("the capture's timeline does not tell of a cluster with a topic")
    return story


def _topics(past: Past, events: list[Record]) -> list[dict[str, Any]]:
    """Return the topics that exist at the beginning or are created later, without internal ones."""
    found: dict[str, dict[str, Any]] = {}
    for topic in past.topics.values():
        partitions = [topic.partitions[n] for n in sorted(topic.partitions)]
        found[topic.name] = {"name": topic.name, "config": topic.config, "partitions": partitions}
    for record in events:
        if record["kind"] == "topic_created":
            made = {"name": record["topic"], "config": record["after"], "partitions": []}
            found.setdefault(record["topic"], made)
        elif record["kind"] == "created" and len(found[record["topic"]]["partitions"]) == record["partition"]:
            found[record["topic"]]["partitions"].append(record["after"])
    mine = (topic for name, topic in found.items() if not name.startswith(INTERNAL_PREFIX))
    return [topic for topic in mine if topic["partitions"]]


class _StoryBuilder:
    """Turns the events of a timeline into a story."""

    def __init__(self, past: Past, events: list[Record]) -> None:
        servers = sorted({*past.servers, *(r["server"] for r in events if r.get("server"))})
        controllers = sorted({*past.controllers, *(r["controller"] for r in events if "controller" in r)}) or ["c1"]
        names = {name: f"c{n}" for n, name in enumerate(controllers, 1)}
        names |= {name: f"r{n}" for n, name in enumerate(servers, 1)}
        racks = {names[s]: past.servers.get(s, {}).get("rack", "") for s in servers}
        topics = _topics(past, events)
        self.story = Story(len(controllers), racks, topics, names)
        for topic in topics:
            for number, partition in enumerate(topic["partitions"]):
                self.story.courses[f"{topic['name']}/{number}"] = [self._led(partition)]
        self._active = past.active
        self._reported: list[tuple[str, float]] = []
        self._events = events
        self._times = self._virtual(past.time_ms)
        for place, record in enumerate(events):
            self._add(place, record)
        self._add_reports()
        self.story.length_s = (self._times[-1] if events else BEGIN_S) + 1.0
        self.story.strikes.sort(key=lambda strike: strike.at)
        self.story.wishes.sort(key=lambda wish: wish[0])

    def _led(self, partition: Record) -> tuple[str, int]:
        """Return leader and leader epoch of a partition, in simulated names."""
        return self.story.names.get(partition["leader"] or "", "-"), partition["leader_epoch"]

    def _virtual(self, begin_ms: int) -> list[float]:
        """Return the virtual time of each event; silences are cut to ``LONGEST_S``."""
        times, at, before = [], BEGIN_S, begin_ms or (self._events[0]["time_ms"] if self._events else 0)
        for record in self._events:
            at += min(max(0, record["time_ms"] - before) / 1000, LONGEST_S)
            before = max(before, record["time_ms"])
            times.append(at)
        return times

    def _strike(self, kind: str, target: str, at: float, **values: Any) -> None:
        self.story.strikes.append(Strike(kind, target, values, max(at, BEGIN_S)))

    def _everybody_but(self, name: str) -> list[str]:
        return [other for other in self.story.names.values() if other != name]

    def _add(self, place: int, record: Record) -> None:
        kind, at = record["kind"], self._times[place]
        if record.get("topic", "").startswith(INTERNAL_PREFIX):
            return
        if "partition" in record:
            self._add_partition(place, record)
        elif kind == "server_fenced":
            self._add_fence(place, record)
        elif kind == "server_registered":
            self._add_restart(place, record)
        elif kind == "controller_active":
            before, self._active = self._active, record["controller"]
            if before and before != self._active:
                name = self.story.names[before]
                self._strike("isolate", name, at - 1.0, others=self._everybody_but(name), seconds=DEPOSED_S)
        elif kind in ("server_draining", "server_undrained"):
            wish = DrainServer(self.story.names[record["server"]], kind == "server_draining")
            self.story.wishes.append((at, wish))
        elif kind not in ("server_unfenced", "server_joined", "topic_created"):
            self.story.not_played[kind] = self.story.not_played.get(kind, 0) + 1

    def _next(self, place: int, server: str, kinds: Iterable[str]) -> int | None:
        """Return the position of the next event of a server with one of these kinds; None if there is none."""
        later = range(place + 1, len(self._events))
        of_it = (n for n in later if self._events[n].get("server") == server and self._events[n]["kind"] in kinds)
        return next(of_it, None)

    def _add_fence(self, place: int, record: Record) -> None:
        """Add the fault behind a fenced server: a cut, a kill, a power loss or a wiped disk."""
        name = self.story.names[record["server"]]
        lost = self._times[place] - int(record["evidence"].get("silent_ms", "0")) / 1000
        after = self._next(place, record["server"], ("server_registered", "server_unfenced"))
        seconds = FOR_GOOD_S if after is None else self._times[after] - lost
        if after is not None and self._events[after]["kind"] == "server_unfenced":
            self._strike("isolate", name, lost, others=self._everybody_but(name), seconds=seconds)
            return
        evidence = {} if after is None else self._events[after]["evidence"]
        kind = "wipe_disk" if "data" in evidence else "power" if evidence.get("restart") == "unclean" else "kill"
        self._strike(kind, name, lost, seconds=seconds)

    def _add_restart(self, place: int, record: Record) -> None:
        """Add a restart for a registration without a fence before it."""
        earlier = (self._events[n] for n in range(place - 1, -1, -1))
        mine = next((r for r in earlier if r.get("server") == record["server"]), None)
        if mine is None or mine["kind"] != "server_fenced":
            kind = "power" if record["evidence"].get("restart") == "unclean" else "kill"
            self._strike(kind, self.story.names[record["server"]], self._times[place] - RESTART_S, seconds=RESTART_S)

    def _add_partition(self, place: int, record: Record) -> None:
        """Add the new leader of a partition to its course, and the fault or request behind the event."""
        names, at, kind = self.story.names, self._times[place], record["kind"]
        evidence, cause = record["evidence"], record["cause"]
        course = self.story.courses.setdefault(f"{record['topic']}/{record['partition']}", [])
        led = self._led(record["after"])
        if not course or led != course[-1]:
            course.append(led)
        where = record["topic"], record["partition"]
        if cause == "leader_reported" and evidence.get("leader") in names:
            name = names[evidence["leader"]]
            self._reported.append((name, at))
        elif kind == "isr_shrunk" and cause == "follower_lagging":
            self._add_lag(place, record)
        elif kind == "transfer_began":
            self.story.wishes.append((at, TransferLeader(*where, names[record["after"]["successor"]])))
        elif kind == "reassignment_began":
            target = record["after"].get("target") or record["after"]["replicas"]
            self.story.wishes.append((at, Reassign(*where, tuple(names[node] for node in target))))
        elif kind in ("paused", "resumed"):
            self.story.wishes.append((at, PauseTopic(where[0], (where[1],), kind == "paused")))
        elif kind in ("read_only", "writable"):
            self.story.wishes.append((at, SetReadOnly(where[0], (where[1],), kind == "read_only")))
        elif kind in ("settings_changed", "records_lost", "learners_changed"):
            self.story.not_played[kind] = self.story.not_played.get(kind, 0) + 1

    def _add_reports(self) -> None:
        """Add a cut for each reported leader that no other fault explains."""
        struck = [(one.target, one.at - 1.0, one.at + one.values["seconds"] + 1.0) for one in self.story.strikes]
        for name, at in dict.fromkeys(self._reported):
            if not any(target == name and begin <= at <= end for target, begin, end in struck):
                others = [other for other in self._everybody_but(name) if other.startswith("r")]
                self._strike("isolate", name, at - 1.0, others=others, seconds=REPORTED_S)

    def _add_lag(self, place: int, record: Record) -> None:
        """Cut each follower that left the ISR off from the leader until the ISR has it again."""
        leader = self.story.names[record["after"]["leader"]]
        was = (record["before"] or {}).get("isr", ())
        for node in was:
            if node in record["after"]["isr"]:
                continue
            behind = int(record["evidence"].get(f"{node}.behind_ms", "0")) / 1000
            back = next(
                (
                    self._times[n]
                    for n in range(place + 1, len(self._events))
                    if self._events[n].get("topic") == record["topic"]
                    and self._events[n].get("partition") == record["partition"]
                    and node in self._events[n]["after"]["isr"]
                ),
                self._times[place] + LONGEST_S,
            )
            begin = self._times[place] - behind
            seconds = max(back - 1.0 - begin, behind)
            self._strike("cut_pair", self.story.names[node], begin, other=leader, seconds=seconds)
