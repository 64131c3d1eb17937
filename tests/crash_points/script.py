"""The program that is recorded: ``python -m crash_points.script FOLDER PROMISES SEED ROUNDS [MUTANT]``.

It drives logs and the identity of a data directory over the real ``Disk`` of a replica server. It writes promises to
the file PROMISES, one JSON object a line (``promises.py``): what must be found if the power is lost from then on.
Before an action it promises what may be found during the action, after it what must be found.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import pytest
from support.log_builders import produced
from tidelog.batch.format import NewRecord, encode_batch, read_header, split, stamp_prefix
from tidelog.runtime.disk import RealDisk
from tidelog_replica.maintenance.log_deletion import DeleteLog
from tidelog_replica.registration.incarnations import Incarnations
from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.storage.checkpoints import CLEANED
from tidelog_replica.storage.compaction import Compaction
from tidelog_replica.storage.log import CopyStart, Log
from tidelog_replica.storage.open_files import OpenFiles

from crash_points.promises import BOOT, Config, digest_of

OPEN_FILES = 3
"""So few open files that some are closed and opened again."""


class PromiseWriter:
    """Writes promises to a file, each with one system call."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, **promise: object) -> None:
        """Write promises that hold from now on."""
        os.write(self._fd, json.dumps(promise).encode() + b"\n")


@dataclass(slots=True)
class History:
    """The batches of a log, and how much of them may be found after a power loss."""

    past: bytes
    """The producer state before the first batch; b"" for none."""
    batches: list[tuple[int, str, list[str]]]
    """Base offset of each batch, also of those that retention has removed, the digest of the original, and the
    digests that may be found: compaction adds one and then removes the others."""
    starts: list[int]
    """The log starts that may be found."""
    durable: int
    """The lowest log end offset that may be found."""

    def to_map(self) -> dict[str, object]:
        """Return the history in the form of ``promises``."""
        return {
            "past": self.past.hex(),
            "batches": self.batches,
            "starts": self.starts,
            "durable": self.durable,
        }


class DrivenLog:
    """One log on which the script performs all actions."""

    def __init__(
        self, promises: PromiseWriter, disk: OpenFiles, data: str, name: str, config: Config, random: Random
    ) -> None:
        self._promises = promises
        self._disk = config.over(disk)
        self._directory = f"{data}/{name}"
        self._name = name
        self._config = config
        self._random = random
        self._epoch = 0
        self._sequences: dict[int, int] = {}
        self._history = History(b"", [], [0], 0)
        self._highest_committed = [0, 0]
        self._registered = set[str]()
        self._log: Log | None = None
        self.open()

    @property
    def log(self) -> Log:
        """The open log."""
        assert self._log is not None
        return self._log

    def actions(self) -> list[Callable[[], None]]:
        """Return the actions of a round; frequent ones occur several times."""
        log_actions = [
            *([self.append] * 3),
            *([self.flush] * 3),
            self.flush_beside_appends,
            self.roll,
            self.truncate,
            self.retire,
            self.write_high_watermark,
            self.lower_high_watermark,
            self.sync_all,
            self.reopen,
        ]
        return [*log_actions, *([self.compact] if self._config.cleanup == "compact" else [self.reset])]

    # --- promises ----------------------------------------------------------------------------------------

    def _promise(self, *others: History) -> None:
        histories = [self._history, *others]
        promise = {
            "config": self._config._asdict(),
            "highest_committed": self._highest_committed,
            "histories": [history.to_map() for history in histories],
        }
        self._promises.write(logs={self._name: promise})

    def _promise_durable(self) -> None:
        lazy = self._config.flush == "os"
        self._history.durable = max(self._history.durable, self.log.start if lazy else self.log.durable)
        self._promise()

    def _register(self, batch: bytes) -> str:
        digest = digest_of(batch)
        if digest not in self._registered:
            self._registered.add(digest)
            self._promises.write(headers={digest: batch[: read_header(batch).header_length].hex()})
        return digest

    # --- actions -----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the log; everything in it is durable afterwards."""
        self._promise()
        self._log = Log.open(self._disk, self._directory, self._config.of_topic())
        self._promise_durable()
        self._epoch += 1
        self.log.assign_epoch(self._epoch)

    def _make(self, count: int) -> list[bytes]:
        made, base = [], self.log.end
        for _ in range(count):
            producer, records = self._random.randrange(1, 4), self._random.randrange(1, 4)
            sequence = self._sequences.get(producer, 0)
            self._sequences[producer] = sequence + records
            if self._config.cleanup == "compact":
                rows = [NewRecord(b"%d" % base, b"key-%d" % self._random.randrange(4), base) for _ in range(records)]
                new = encode_batch(rows, producer_id=producer, base_sequence=sequence)
                made.append(stamp_prefix(base, self._epoch, read_header(new).crc32c) + new[16:])
            else:
                made.append(produced(base, self._epoch, producer, sequence, records))
            base += records
        return made

    def append(self) -> None:
        """Append some batches; they are not durable yet."""
        made = self._make(self._random.randrange(1, 4))
        for batch in made:
            digest = self._register(batch)
            self._history.batches.append((read_header(batch).base_offset, digest, [digest]))
        self._promise()
        self.log.append(made)
        self._take_snapshot()

    def _take_snapshot(self) -> None:
        snapshot = self.log.begin_snapshot()
        if snapshot is not None:
            snapshot.run()
            self.log.complete_snapshot(snapshot)

    def flush(self) -> None:
        """Flush the log as its flush policy says."""
        pending = self.log.begin_flush()
        if pending is not None:
            pending.run()
            self.log.complete_flush(pending)
            self._promise_durable()

    def flush_beside_appends(self) -> None:
        """Append during a flush: these batches belong to the next one."""
        self.append()
        pending = self.log.begin_flush()
        self.append()
        if pending is not None:
            pending.run()
            self.append()
            self.log.complete_flush(pending)
            self._promise_durable()

    def roll(self) -> None:
        """Close the segment and begin another."""
        self.append()
        self.log.roll()
        self._take_snapshot()

    def sync_all(self) -> None:
        """Make everything durable, whatever the flush policy."""
        self.log.sync_all()
        self._history.durable = self.log.end
        self._promise()

    def truncate(self) -> None:
        """Cut the end off and continue in another leader epoch."""
        log = self.log
        end = max(log.start, log.end - self._random.randrange(1, 12))
        old = self._history
        old.durable = min(old.durable, log.chain_at(end)[0])
        self._promise()
        log.truncate(end)
        kept = [batch for batch in old.batches if batch[0] < log.end]
        self._history = History(old.past, kept, old.starts, log.end)
        self._promise()
        self._sequences = {
            id: (batches[-1].base_sequence + batches[-1].record_count) % 2**32
            for id, (_, batches) in log.producers.snapshot().items()
        }
        self._epoch += 1
        log.assign_epoch(self._epoch)

    def retire(self) -> None:
        """Remove all segments but the last two, as retention does."""
        bases = [extent.base for extent in self.log.segments.extents()]
        advance = self.log.begin_advance(bases[max(0, len(bases) - 2)])
        if advance is None:
            return
        self._history.starts = [*self._history.starts, self.log.start]
        self._promise()
        advance.run()
        self.log.complete_advance(advance)
        self._history.starts, self._history.durable = [self.log.start], max(self._history.durable, self.log.start)
        self._promise()

    def write_high_watermark(self) -> None:
        """Store an HW as a leader or follower does, durably or not."""
        high_watermark = self._random.randint(self.log.start, self.log.durable)
        sync = self._random.random() < 0.5 and self._config.flush != "os"
        self._highest_committed = [
            min(self._highest_committed[0], high_watermark),
            max(self._highest_committed[1], high_watermark),
        ]
        self._promise()
        self.log.write_high_watermark(high_watermark, sync=sync)
        if sync:
            self._highest_committed[0] = high_watermark
            self._promise()

    def lower_high_watermark(self) -> None:
        """Store a lower HW."""
        high_watermark = self._random.randint(self.log.start, self.log.durable)
        self._highest_committed = [
            min(self._highest_committed[0], high_watermark),
            max(self._highest_committed[1], high_watermark),
        ]
        self._promise()
        self.log.lower_high_watermark(high_watermark)
        self._highest_committed = [high_watermark, high_watermark]
        self._promise()

    def compact(self) -> None:
        """Compact the closed segments until nothing is left to do."""
        self.log.roll()
        compaction = self.log.begin_compaction(self.log.durable, 10**9, 0.0)
        while compaction is not None:
            cleaned = compaction.run()
            if cleaned is not None:
                thinned = self._promise_thinned(compaction)
            going_on = self.log.complete_compaction(compaction, cleaned)
            if cleaned is not None:
                for batch in self._history.batches:
                    if batch[0] in thinned:
                        del batch[2][:-1]
            self._promise()
            compaction = compaction if going_on else None

    def _promise_thinned(self, compaction: Compaction) -> set[int]:
        source = compaction.source
        assert source is not None
        data = self._disk.read(f"{self._directory}/{source.base:020d}.log{CLEANED}")
        thinned = {header.base_offset: self._register(bytes(batch)) for header, batch in split(data)}
        for base, _, digests in self._history.batches:
            if base in thinned and thinned[base] not in digests:
                digests.append(thinned[base])
        self._promise()
        return set(thinned)

    def reset(self) -> None:
        """Drop the log and begin it at a later offset, with the producer state until then."""
        start = self.log.end + self._random.randrange(5)
        past = ProducerState.from_bytes(self.log.producers.to_bytes())
        new = History(past.to_bytes(), [], [start], start)
        self._highest_committed = [0, max(self._highest_committed[1], start)]
        self._promise(new)
        self.log.reset(CopyStart(start, self._epoch, bytes(16), new.past), past)
        self._history = new
        self._promise()

    def reopen(self) -> None:
        """Close the log and open it again, as a restart does."""
        self.log.close()
        self.open()

    def delete(self) -> None:
        """Delete the log. Nothing is promised meanwhile, afterwards that the log is gone."""
        self.log.close(for_good=True)
        self._promises.write(logs={self._name: None})
        DeleteLog(self._disk, self._directory).run()
        self._promises.write(deleted=[self._name])


class DrivenIncarnations:
    """The identity of a data directory, over several incarnations of its server."""

    def __init__(self, promises: PromiseWriter, disk: OpenFiles, data: str) -> None:
        self._promises = promises
        self._disk = disk
        self._data = data
        self._numbers = itertools.count(1)
        self._names: list[str] = []
        self._incarnations: Incarnations | None = None
        self._cluster = ""

    def _promise(self, names: Sequence[Sequence[str]], clusters: Sequence[str], clean: Sequence[bool]) -> None:
        self._promises.write(lives={"names": [*map(list, names)], "clusters": [*clusters], "clean": [*clean]})

    def begin(self) -> None:
        """Begin an incarnation, after one that ended in order or not."""
        before, name = self._names, f"life-{next(self._numbers)}"
        self._incarnations = Incarnations(self._disk, self._data, "node", "", BOOT)
        after = [*before[:1], *before[1:], name]
        self._promise([before, after], [self._cluster], [False, True] if before else [False])
        self._incarnations.begin_incarnation(name)
        self._names = after
        self._promise([after], [self._cluster], [False])

    def register(self) -> None:
        """Record that the controller has registered this incarnation."""
        assert self._incarnations is not None
        self._promise([self._names, self._names[-1:]], [self._cluster, "cluster"], [False])
        self._incarnations.on_registered("cluster")
        self._names, self._cluster = self._names[-1:], "cluster"
        self._promise([self._names], [self._cluster], [False])

    def end(self) -> None:
        """End the incarnation in order."""
        assert self._incarnations is not None
        self._promise([self._names], [self._cluster], [False, True])
        assert self._incarnations.end_incarnation(True)
        self._promise([self._names], [self._cluster], [True])


CONFIGS = (
    Config("fsync-0", "fsync", "delete"),
    Config("compact-0", "fsync", "compact"),
    Config("os-0", "os", "delete"),
    Config("encrypted-0", "fsync", "delete", encrypted=True),
)


def drive(data: str, promises: PromiseWriter, seed: int, rounds: int) -> None:
    """Perform all actions on logs and the data directory, in an order that depends on the seed."""
    random, disk = Random(seed), OpenFiles(RealDisk(), OPEN_FILES)
    lives = DrivenIncarnations(promises, disk, data)
    lives.begin()
    lives.register()
    logs = [DrivenLog(promises, disk, data, config.name, config, random) for config in CONFIGS]
    for log in logs:
        for _ in range(rounds):
            actions = log.actions()
            random.shuffle(actions)
            for act in actions:
                act()
        log.reopen()
    disk.allocate(f"{data}/reserve", 4096)
    lives.end()
    lives.begin()
    lives.begin()
    logs[0].delete()


def main() -> None:
    """Run the program that is recorded."""
    data, path, seed, rounds, *mutant = sys.argv[1:]
    promises = PromiseWriter(path)
    with pytest.MonkeyPatch.context() as patch:
        for name in mutant:
            from mutants import MUTANTS

            MUTANTS[name].apply(patch)
        drive(data, promises, int(seed), int(rounds))


if __name__ == "__main__":
    main()
