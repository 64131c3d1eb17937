"""A simulation of drivers that commit numbered batches to a table: they crash, are replaced while they are still at
work, and lose answers; files are compacted, expired, and the table is rolled back meanwhile. ``commit_protocol`` is
the code under test. The table is one in memory, or a real one of each format."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidelog.tables.commit_protocol import (
    Answer,
    LoadState,
    Marker,
    Outcome,
    ReplaceState,
    TableState,
    Verdict,
    commit_steps,
    owner_of,
)
from tidelog.tables.committer import MIN_EXPIRY_S, STAGED_S, Append
from tidelog.tables.file_writer import WrittenFile

APPS = ("a", "b")
BATCHES = 6
HOUR_S = 3600
FAULTS = ("crash", "take_over", "compact", "expire", "roll_back", "lose_answer", "lose_request", "hours")


class Subject(Protocol):
    """A table under test, and the files that are written for it."""

    table: Any

    def write(self, app: str, batch: int, attempt: int, hour: int) -> tuple[list[WrittenFile], str]:
        """Write two files of an attempt, and return them with their layout."""

    def rows(self) -> list[tuple[str, int, int, int]]:
        """Return (app, batch, attempt, number of the file) of each row in the table, and fail if a file is
        missing."""

    def compact(self) -> None:
        """Rewrite all files as one."""

    def expire(self, hour: int) -> None:
        """Delete files that are not in the table and older than ``MIN_EXPIRY_S``."""

    def roll_back(self) -> None:
        """Make the state before the last commit the newest again."""


@dataclass
class MemoryTable:
    """A table whose state is compared as Iceberg's is: by the head, and by a tag of the application."""

    head: int = 0
    states: dict[int, tuple[str, ...]] = field(default_factory=lambda: {0: ()})
    history: list[int] = field(default_factory=lambda: [0])
    markers: dict[str, Marker] = field(default_factory=dict)
    tags: dict[str, int] = field(default_factory=dict)
    files: set[str] = field(default_factory=set)
    compares_tag: bool = True

    def load(self, app: str) -> TableState:
        return TableState(self.markers.get(app), (self.head, self.tags.get(app)))

    def replace(self, state: TableState, change: Append) -> Answer:
        head, tag = state.handle
        if head != self.head or (self.compares_tag and tag != self.tags.get(change.app)):
            return Answer.CONFLICT
        self.set_head((*self.states[self.head], *(file.name for file in change.files)))
        self.tags[change.app] = self.head
        self.markers[change.app] = change.marker
        return Answer.COMMITTED

    def discard(self, names: list[str]) -> None:
        self.files -= set(names)

    def set_head(self, files: Iterable[str]) -> None:
        self.head = max(self.states) + 1
        self.states[self.head] = tuple(files)
        self.history.append(self.head)


class MemorySubject:
    def __init__(self, *, compares_tag: bool = True) -> None:
        self.table = MemoryTable(compares_tag=compares_tag)
        self._hours: dict[str, int] = {}
        self._merged = 0

    def write(self, app: str, batch: int, attempt: int, hour: int) -> tuple[list[WrittenFile], str]:
        files = [WrittenFile(f"{app}/{batch}/{attempt}/{n}", 1, 1, (), b"") for n in range(2)]
        self.table.files |= {file.name for file in files}
        self._hours |= {file.name: hour for file in files}
        return files, ""

    def rows(self) -> list[tuple[str, int, int, int]]:
        found = []
        for name in self.table.states[self.table.head]:
            for part in name.removeprefix("merged:").split("|"):
                app, batch, attempt, n = part.split("/")
                found.append((app, int(batch), int(attempt), int(n)))
            assert name in self.table.files, f"T3: {name} is in the table and was deleted"
        return found

    def compact(self) -> None:
        files = self.table.states[self.table.head]
        if len(files) > 1:
            merged = "merged:" + "|".join(name.removeprefix("merged:") for name in files)
            self.table.files.add(merged)
            self.table.set_head([merged])

    def expire(self, hour: int) -> None:
        needed = {name for at in self.table.history for name in self.table.states[at]}
        late = {name for name, written in self._hours.items() if (hour - written) * HOUR_S > MIN_EXPIRY_S}
        self.table.files -= late - needed

    def roll_back(self) -> None:
        if len(self.table.history) > 1:
            self.table.history.pop()
            self.table.head = self.table.history[-1]


@dataclass
class Driver:
    """A driver of one application: it writes a batch and commits it, then the next one."""

    app: str
    batch: int
    begun: int
    """The hour at which the files of the batch were written."""
    change: Append
    steps: Generator[LoadState | ReplaceState, Any, Outcome]
    request: LoadState | ReplaceState


class World:
    """All drivers, the table, and what Spark's checkpoints know. ``step`` lets one thing happen."""

    def __init__(self, subject: Subject, faults: tuple[str, ...] = FAULTS) -> None:
        self.subject = subject
        self.faults = faults
        self.hour = 0
        self.done = dict.fromkeys(APPS, -1)
        """By application, the last batch that a checkpoint notes as done."""
        self.drivers: list[Driver] = []
        self.in_flight: list[tuple[int, TableState, Append]] = []
        self.order: list[tuple[str, int]] = []
        self.lost: set[tuple[str, int]] = set()
        """Batches that a rollback has taken out of the table."""
        self.verdicts: Counter[Verdict] = Counter()
        self._attempts = 0
        self._shown: set[tuple[str, int]] = set()

    def step(self, dice: random.Random) -> None:
        """Let a driver go on, or a fault happen; then check the invariants."""
        for app in APPS:
            if not any(driver.app == app for driver in self.drivers) and self.done[app] + 1 < BATCHES:
                self._start(app)
        fault = dice.choice(self.faults) if self.faults and dice.random() < 0.3 else ""
        if fault in ("crash", "take_over") and self.drivers:
            driver = dice.choice(self.drivers)
            if fault == "crash":
                self.drivers.remove(driver)
            elif self.done[driver.app] + 1 < BATCHES and len(self.drivers) < 6:
                self._start(driver.app)
        elif fault == "compact":
            self.subject.compact()
        elif fault == "expire":
            self.subject.expire(self.hour)
        elif fault == "roll_back":
            before = self._batches()
            self.subject.roll_back()
            self.lost |= before - self._batches()
            self._shown -= self.lost
        elif fault == "hours":
            self.hour += dice.randrange(1, 7)
            self._deliver([one for one in self.in_flight if self.hour - one[0] > 6])
        elif self.in_flight and dice.random() < 0.3:
            self._deliver([dice.choice(self.in_flight)])
        elif self.drivers:
            self._advance(dice.choice(self.drivers), fault)
        self.check()

    def settle(self) -> None:
        """Let every application come to its end without faults."""
        self._deliver(list(self.in_flight))
        self.drivers.clear()
        for app in APPS:
            while self.done[app] + 1 < BATCHES:
                self._start(app)
                driver = self.drivers[-1]
                while driver in self.drivers and self.done[app] + 1 < BATCHES:
                    self._advance(driver, "")
                    self.check()
        assert self._batches() | self.lost == {(app, batch) for app in APPS for batch in range(BATCHES)}

    def check(self) -> None:
        """Check T1, T2 and T3."""
        attempts: dict[tuple[str, int], set[int]] = {}
        rows = self.subject.rows()
        for app, batch, attempt, _ in rows:
            attempts.setdefault((app, batch), set()).add(attempt)
        assert all(len(found) == 1 for found in attempts.values()), "T1: files of two attempts"
        assert all(count == 1 for count in Counter(rows).values()), "T1: a file twice"
        assert len(rows) == 2 * len(attempts), "T1: files of an attempt are missing"
        assert not self.lost & set(attempts), "T1: a batch came back after a rollback"
        for app, batch in sorted(set(attempts) - self._shown):
            self.order.append((app, batch))
        assert self._shown <= set(attempts), "T1: a batch has gone"
        self._shown = set(attempts)
        for app in APPS:
            mine = [batch for name, batch in self.order if name == app]
            assert mine == sorted(mine), f"T2: {mine}"

    def _batches(self) -> set[tuple[str, int]]:
        return {(app, batch) for app, batch, _, _ in self.subject.rows()}

    def _start(self, app: str) -> None:
        self.drivers.append(self._begun(app, self.done[app] + 1))

    def _begun(self, app: str, batch: int) -> Driver:
        """Return a driver that has written the files of a batch."""
        self._attempts += 1
        files, layout = self.subject.write(app, batch, self._attempts, self.hour)
        marker = Marker(batch, self._attempts, owner_of(app), app, {"t": {0: batch + 1}})
        steps = commit_steps(marker)
        return Driver(app, batch, self.hour, Append(app, marker, tuple(files), layout), steps, next(steps))

    def _advance(self, driver: Driver, fault: str) -> None:
        """Carry out the request of a driver, and give it the answer."""
        answer: Any
        if isinstance(driver.request, LoadState):
            answer = self.subject.table.load(driver.app)
        elif (self.hour - driver.begun) * HOUR_S > STAGED_S:
            self.drivers.remove(driver)  # it fails, and Spark runs the batch again
            return
        elif fault == "lose_request":
            self.in_flight.append((self.hour, driver.request.state, driver.change))
            answer = Answer.UNKNOWN
        else:
            answer = self.subject.table.replace(driver.request.state, driver.change)
            if fault == "lose_answer":
                answer = Answer.UNKNOWN
        try:
            driver.request = driver.steps.send(answer)
        except StopIteration as ended:
            self._ended(driver, ended.value)

    def _ended(self, driver: Driver, outcome: Outcome) -> None:
        """Do what follows the end of a commit: the checkpoint notes it, and the driver begins the next batch."""
        self.verdicts[outcome.verdict] += 1
        if outcome.verdict is Verdict.ANOTHER and not outcome.sent:
            self.subject.table.discard([file.name for file in driver.change.files])
        self.done[driver.app] = max(self.done[driver.app], driver.batch)
        self.drivers.remove(driver)
        if driver.batch + 1 < BATCHES:
            self.drivers.append(self._begun(driver.app, driver.batch + 1))

    def _deliver(self, requests: list[tuple[int, TableState, Append]]) -> None:
        """Let requests arrive whose senders have heard nothing."""
        for one in requests:
            self.in_flight.remove(one)
            self.subject.table.replace(one[1], one[2])


def walk(subject: Subject, seed: int, steps: int = 80, faults: tuple[str, ...] = FAULTS) -> World:
    """Let a world go on for some steps, then to its end, and return it."""
    world, dice = World(subject, faults), random.Random(seed)
    for _ in range(steps):
        world.step(dice)
    world.settle()
    return world
