"""``python -m simulation --capture FILE``: plays a story (``story.py``) with one seed or several, and prints its
elections beside those of the capture."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from tidelog.captures import Capture
from tidelog.testing.captures.story import BEGIN_S, Course, Story, story_of
from tidelog.testing.clients.mover import Mover
from tidelog.testing.clients.producer import ProducerOptions
from tidelog.testing.cluster import Cluster, Options, TopicOptions
from tidelog.testing.faults.strikes import Swarm
from tidelog.testing.hardware.disk import PowerLost
from tidelog.testing.runner import Fault
from tidelog.types import TopicPartition, TopicState
from tidelog.wire.messages import DrainServer, Message, PauseTopic, Reassign, SetReadOnly, TransferLeader

LAST = 200
"""The number of last events that are played by default."""
PLACE_S, LEAD_S = 2.0, 4.5
"""When partitions are moved to where they were, and led by whom they were."""


class Operator(Mover):
    """The operator of a replayed story: it makes the story's requests and at the end resumes everything."""

    name = "operator"

    def __init__(self, cluster: Cluster, story: Story) -> None:
        self.cluster = cluster
        self._rng = random.Random(0)  # never thrown
        cluster.network.attach(self)
        for topic in story.topics:
            for number, was in enumerate(topic["partitions"]):
                replicas = tuple(story.names[node] for node in was["replicas"])
                self._at(PLACE_S, Reassign(topic["name"], number, replicas))
                if was["leader"]:
                    self._at(LEAD_S, TransferLeader(topic["name"], number, story.names[was["leader"]]))
        for at, wish in story.wishes:
            self._at(at, wish)
        cluster.loop.at(story.length_s, self._rest)

    def _at(self, at: float, wish: Message) -> None:
        self.cluster.loop.at(at, lambda: self._ask(wish))

    def _ends(self) -> list[Message]:
        metadata = self.cluster.invariants.metadata
        ends: list[Message] = [DrainServer(one.node, False) for one in metadata.servers.values() if one.draining]
        for topic in metadata.topics.values():
            if any(partition.paused for partition in topic.partitions):
                ends.append(PauseTopic(topic.name, pause=False))
            if any(partition.read_only for partition in topic.partitions):
                ends.append(SetReadOnly(topic.name, read_only=False))
        return ends


@dataclass(frozen=True)
class Replay:
    """The outcome of playing a story with one seed."""

    seed: int
    fault: Fault | None
    courses: dict[str, Course]
    counts: dict[str, int]

    def sameness(self, story: Story) -> tuple[int, int]:
        """Return the number of leader changes that are the same in both courses, in order, and the most that could
        be."""
        pairs = [alike(course, self.courses.get(name, [])) for name, course in story.courses.items()]
        return sum(same for same, _ in pairs), sum(most for _, most in pairs)


def alike(there: Course, here: Course) -> tuple[int, int]:
    """Return how many leader changes of two courses are the same, in order, and the length of the longer one. The
    first leader of each course does not count."""
    left, right = [leader for leader, _ in there[1:]], [leader for leader, _ in here[1:]]
    blocks = SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks()
    return sum(block.size for block in blocks), max(len(left), len(right))


def play(story: Story, seed: int, trace: Callable[[str], None] | None = None) -> Replay:
    """Play a story once, to its end or its first failure, and return the outcome."""
    topics = tuple(
        TopicOptions(
            topic["name"], len(topic["partitions"]), len(topic["partitions"][0]["replicas"]), topic["config"]
        )
        for topic in story.topics
    )
    options = Options(
        seed,
        replicas=len(story.racks),
        controllers=story.controllers,
        topics=topics,
        producers=(ProducerOptions(window=3, pace=0.1), ProducerOptions(idempotent=False, pace=0.2, patience=2.0)),
        consumers=2,
        swarm=Swarm({"told": 1.0}, until=story.length_s),
        duration=story.length_s,
        patience=60.0,
        strikes=tuple(story.strikes),
    )
    cluster = Cluster(options, trace)
    cluster.racks = dict(story.racks)
    cluster.suspender = Operator(cluster, story)
    begun: dict[TopicPartition, tuple[str, int]] = {}

    def begin() -> None:
        for key in cluster.partitions:
            state = cluster.state(key)
            begun[key] = state.leader or "-", state.leader_epoch

    cluster.loop.at(BEGIN_S, begin)
    fault = None
    try:
        cluster.run()
    except (Exception, PowerLost) as error:
        fault = Fault.of(error)
    return Replay(seed, fault, dict(_courses(cluster, begun)), cluster.counts)


def _courses(cluster: Cluster, begun: dict[TopicPartition, tuple[str, int]]) -> list[tuple[str, Course]]:
    """Return the leaders of each partition from the beginning of the story until the faults healed."""
    metadata = cluster.invariants.metadata
    found = []
    for key, first in begun.items():
        topic: TopicState | None = metadata.topics.get(key.topic_id)
        if topic is None:
            continue
        course = [first]
        for entry in metadata.history[key.topic_id][key.partition]:
            if entry.leader_epoch > course[-1][1]:
                course.append((entry.leader or "-", entry.leader_epoch))
        found.append((f"{topic.name}/{key.partition}", course))
    return found


def beside(story: Story, replay: Replay) -> list[str]:
    """Return lines that show both courses of each partition and how many changes are the same."""
    lines = []
    for name, there in sorted(story.courses.items()):
        here = replay.courses.get(name, [])
        same, most = alike(there, here)
        lines.append(
            f"{name}: {same} of {most} changes of leader the same" if most else f"{name}: no change of leader"
        )
        for place, course in (("there", there), ("here", here)):
            lines.append(f"  {place:5}  {' '.join(f'{leader}@{epoch}' for leader, epoch in course) or 'unknown'}")
    return lines


def play_all(file: Path, seeds: range, last: int, trace: Callable[[str], None] | None) -> int:
    """Play a capture with each of these seeds and print the outcomes; with a single seed also both courses. Returns
    the exit code: 1 if a run failed."""
    story = story_of(Capture.load(file), last)
    named = ", ".join(f"{there} is {here}" for there, here in story.names.items() if there != here)
    built = f"{story.controllers} controllers, {len(story.racks)} servers, {len(story.topics)} topics"
    played = f"{len(story.strikes)} faults and {len(story.wishes)} wishes in {story.length_s:.0f} s"
    print(f"{built}; {played}{f'; {named}' if named else ''}")
    for kind, count in sorted(story.not_played.items()):
        print(f"  not played: {count} {kind}")
    failed = 0
    for seed in seeds:
        replay = play(story, seed, trace)
        same, most = replay.sameness(story)
        print(f"seed {seed}: {replay.fault or 'all invariants held'}; {same} of {most} changes of leaders the same")
        failed += replay.fault is not None
        if len(seeds) == 1:
            print("\n".join(beside(story, replay)))
    return 1 if failed else 0
