"""A coordinator, its log and members under random inputs, against a model that only knows who may commit what.
Tests ``groups/coordinator.py`` and ``groups/records.py``.

Members crash, forget to heartbeat, hear late, give things up late, come back as static ones; the coordinator is
replaced by one that reads a beginning of the log which holds everything that anybody was told. Whatever happens:

- no two members commit the same partition in one generation, and nobody but its owner;
- what a coordinator tells is never taken back by the next one;
- when all is quiet every partition belongs to exactly one member that subscribes to it, and nobody to two.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from tidelog.errors import TidelogError
from tidelog.types import TopicPartition
from tidelog.wire.messages import (
    CommitOffsets,
    Done,
    GroupHeartbeat,
    GroupHeartbeatAnswer,
    GroupPosition,
    JoinGroup,
    JoinGroupAnswer,
    LeaveGroup,
    Message,
    TopicShare,
)
from tidelog_replica.config import GroupSettings
from tidelog_replica.coordinators.groups.coordinator import GroupCoordinator
from tidelog_replica.coordinators.groups.group import Topic, Topics
from tidelog_replica.coordinators.groups.records import Entry, StoredGroups, partitions_of, shares_of
from tidelog_replica.counters import ReplicaCounts

GROUP = "g"
SETTINGS = GroupSettings(session_min_ms=10)
SESSION_MS, REBALANCE_MS = 10_000, 20_000


@dataclass
class Process:
    """A client as the protocol wants it: it owns what it was told, less what it gave up."""

    name: str
    instance: str
    topics: tuple[str, ...]
    generation: int = -1
    owned: set[TopicPartition] = field(default_factory=set)
    assigned: set[TopicPartition] = field(default_factory=set)
    joined: bool = False
    dead: bool = False


class World:
    """One group, and the log of its coordinator."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 100.0
        self.counts = {f"t{i}": self.rng.randrange(1, 8) for i in range(3)}
        self.ids = {name: f"id-{name}" for name in self.counts}
        self.log: list[Entry] = []
        self.safe = 0
        """So many records are behind what anybody was told: no coordinator lacks them."""
        self.processes: list[Process] = []
        self.committers: dict[tuple[TopicPartition, int], str] = {}
        self.names = 0
        self.core = self.coordinator()

    def topics(self) -> Topics:
        return Topics(Topic(self.ids[name], name, count) for name, count in self.counts.items())

    def coordinator(self) -> GroupCoordinator:
        stored = StoredGroups()
        for key, value in self.log:
            stored.add_record(key, value)
        core = GroupCoordinator("r1", SETTINGS, self.topics(), ReplicaCounts())
        core.load_records(stored, self.now)
        self.log += core.take_entries()
        return core

    # --- steps -------------------------------------------------------------------------------------------

    def fail_over(self) -> None:
        """The next coordinator has what was committed, and maybe some of what was not."""
        del self.log[self.rng.randrange(self.safe, len(self.log) + 1) :]
        stored = StoredGroups()
        for key, value in self.log:
            stored.add_record(key, value)
        held = [
            p
            for member in stored.members.values()
            for p in partitions_of(member.assigned) | partitions_of(member.leaving)
        ]
        assert len(held) == len(set(held)), "no beginning of what was written gives a partition to two"
        self.core = self.coordinator()

    def ask(self, message: Message) -> Message | TidelogError:
        """The answer arrives, or is lost; a lost one may not even have been written."""
        answer = self.core.handle(message, self.now, int(self.now * 1000))
        self.log += self.core.take_entries()
        if self.rng.random() < 0.1:
            if self.rng.random() < 0.5:
                self.fail_over()
            return TidelogError("lost", code="REQUEST_TIMED_OUT")
        self.safe = len(self.log)
        return answer

    def start(self) -> None:
        self.names += 1
        names = sorted(self.counts)
        topics = tuple(self.rng.sample(names, self.rng.randrange(1, len(names) + 1)))
        instance = self.rng.choice(["", "", "s1", "s2"])
        self.processes.append(Process(f"m{self.names}", instance, topics))

    def join(self, process: Process) -> None:
        answer = self.ask(
            JoinGroup(GROUP, process.name, process.topics, process.instance, "", SESSION_MS, REBALANCE_MS)
        )
        if isinstance(answer, JoinGroupAnswer):
            process.joined = True
            self.told(process, answer)

    def told(self, process: Process, answer: JoinGroupAnswer | GroupHeartbeatAnswer) -> None:
        assert answer.generation >= process.generation, "a generation never goes back"
        process.generation = answer.generation
        process.assigned = {TopicPartition(s.topic_id, n) for s in answer.assignment for n in s.partitions}
        process.owned |= process.assigned

    def heartbeat(self, process: Process) -> None:
        process.owned -= {p for p in sorted(process.owned - process.assigned) if self.rng.random() < 0.7}
        owned = tuple(TopicShare(topic_id, tuple(n)) for topic_id, n in shares_of(process.owned).items())
        answer = self.ask(GroupHeartbeat(GROUP, process.name, process.generation, owned, process.instance))
        if isinstance(answer, GroupHeartbeatAnswer):
            self.told(process, answer)
        else:
            self.refused(process, answer)

    def refused(self, process: Process, answer: object) -> None:
        assert isinstance(answer, TidelogError)
        if answer.code in ("UNKNOWN_MEMBER", "FENCED_GENERATION", "FENCED_INSTANCE"):
            process.joined, process.owned, process.assigned, process.generation = False, set(), set(), -1
            process.dead = answer.code == "FENCED_INSTANCE"
        else:
            assert answer.code == "REQUEST_TIMED_OUT", answer

    def commit(self, process: Process) -> None:
        """Of anything: what it owns, and what it only thinks it does."""
        everything = [TopicPartition(self.ids[t], n) for t in self.counts for n in range(self.counts[t])]
        partition = self.rng.choice(sorted(process.owned) or everything)
        if self.rng.random() < 0.1:
            partition = self.rng.choice(everything)
        if not self.topics().has(partition):
            return
        position = GroupPosition(*partition, int(self.now))
        message = CommitOffsets(GROUP, (position,), process.name, process.generation, process.instance)
        before = len(self.log)
        answer = self.core.handle(message, self.now, int(self.now * 1000))
        self.log += self.core.take_entries()
        if isinstance(answer, Done):
            self.safe = len(self.log)
            first = self.committers.setdefault((partition, process.generation), process.name)
            assert first == process.name, "two members committed one partition in one generation"
            assert not self.others_told(process, partition), "another one was told that it owns it, and is in time"
        else:
            assert len(self.log) == before, "a refusal changes nothing"
            self.refused(process, answer) if answer.code == "FENCED_INSTANCE" else None  # type: ignore[union-attr]

    def others_told(self, process: Process, partition: TopicPartition) -> list[Process]:
        """Who else was told that it owns the partition, and is in its present generation."""
        members = self.core.groups[GROUP].members
        others = [p for p in self.processes if p is not process and partition in p.assigned and p.name in members]
        return [p for p in others if p.generation == members[p.name].generation]

    def change_topics(self) -> None:
        name = self.rng.choice(sorted(self.counts))
        if self.rng.random() < 0.5:
            self.counts[name] += 1
        else:
            self.ids[name] += "+"  # deleted and created again
        self.core.on_topics(self.topics(), self.now)
        self.log += self.core.take_entries()

    def step(self) -> None:
        self.now += self.rng.random() * 2
        rng, alive = self.rng, [p for p in self.processes if not p.dead]
        if rng.random() < 0.05 or not alive:
            self.start()
            return
        process = rng.choice(alive)
        dice = rng.random()
        if dice < 0.03:
            process.dead = True
            if rng.random() < 0.5:
                self.ask(LeaveGroup(GROUP, process.name, bool(process.instance)))
        elif dice < 0.06:
            self.fail_over()
        elif dice < 0.08:
            self.change_topics()
        elif not process.joined:
            self.join(process)
        elif dice < 0.5:
            self.commit(process)
        else:
            self.heartbeat(process)
        self.tick()
        self.check()

    def tick(self) -> None:
        due = self.core.deadline()
        if due is not None and due <= self.now:
            self.core.on_tick(self.now, int(self.now * 1000))
            after = self.core.deadline()
            assert after is None or after > self.now
            self.log += self.core.take_entries()

    def check(self) -> None:
        """The coordinator's own books."""
        for group in self.core.groups.values():
            held = [p for member in group.members.values() for p in (*member.assigned, *member.leaving)]
            assert len(held) == len(set(held)), "a partition belongs to two"
            assert group.owners == {p: m.name for m in group.members.values() for p in m.assigned | m.leaving}
            assert all(self.topics().has(p) for p in held)

    def settle(self) -> None:
        """All is quiet: whoever lives heartbeats."""
        for _ in range(40):
            self.now += 2.0
            self.tick()
            for process in [p for p in self.processes if not p.dead]:
                (self.heartbeat if process.joined else self.join)(process)
        for _ in range(5):
            self.now += 0.1
            for process in [p for p in self.processes if not p.dead]:
                while not process.joined:
                    self.join(process)
                self.heartbeat(process)


@pytest.mark.parametrize("seed", range(40))
def test_no_two_members_ever_commit_one_partition_in_one_generation(seed: int) -> None:
    world = World(seed)
    for _ in range(300):
        world.step()
    live = [p for p in world.processes if not p.dead]
    world.settle()
    group: Any = world.core.groups.get(GROUP)
    if group is None:
        assert not live
        return
    there = {process.name: process for process in world.processes if not process.dead}
    assert set(group.members) <= set(there)
    wanted = {t for name in group.members for t in there[name].topics}
    everything = {TopicPartition(world.ids[t], n) for t in wanted for n in range(world.counts[t])}
    assert set(group.owners) == everything, "every partition that somebody wants has one owner"
    for name, member in group.members.items():
        assert {p.topic_id for p in member.assigned} <= {world.ids[t] for t in there[name].topics}
    assert group.state == ("stable" if group.members else "empty")


def test_the_books_of_a_coordinator_are_those_that_it_wrote() -> None:
    world = World(7)
    for _ in range(200):
        world.step()
    before = world.core.groups
    world.safe = len(world.log)
    world.fail_over()
    for name, group in world.core.groups.items():
        assert group.offsets == before[name].offsets
        for member, kept in group.members.items():
            assert kept.record() == before[name].members[member].record()
