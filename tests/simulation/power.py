"""``python -m simulation.power [--losses 10000]``: power losses of all replica servers, and nothing else.

One small cluster, again and again: records are sent, at some moment all replica servers lose power at once, unsynced
sectors reach their disks in any order or not at all, and the servers come back one after the other. No bit of what
was synced changes. After each loss

- every partition has a leader again, and all replicas are in sync;
- no log was called damaged;
- everything committed before is there: the simulation checks all its invariants after every step.

Counted are the copies that were doubtful or torn when they were opened, and the reports of records that are possibly
lost: nobody can tell a batch that was synced nowhere from one that is damaged everywhere.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter

from tidelog.errors import TidelogError
from tidelog.testing.clients.producer import Producer, ProducerOptions
from tidelog.testing.cluster import Cluster, Options, TopicOptions
from tidelog.testing.hardware.loop import stream
from tidelog.testing.processes.process import SimProcess

SHARE = 500
"""The number of power losses that one job of a process covers."""
PER_CLUSTER = 50
"""The number of power losses after which a new cluster begins, since histories grow."""
BACK_S = 40.0
"""The virtual seconds within which all replicas must be in sync again."""


class PowerLosses(Cluster):
    """A small cluster that counts the events of its servers' logs."""

    def __init__(self, seed: int) -> None:
        rng = stream(seed, "losses")
        minimum, rule = rng.choice("12"), rng.choice(("isr", "isr", "quorum"))
        config = {
            "min_insync_replicas": minimum,
            "commit_rule": rule,
            "segment_max_bytes": rng.choice(("2048", "65536")),
        }
        topic = TopicOptions("t", 2, 3, {"replica_max_lag_ms": "2000", "flush": "fsync", **config})
        super().__init__(Options(seed, controllers=1, replicas=3, topics=(topic,)))
        self.rng = rng
        self.said: Counter[str] = Counter()
        self.until(self.ready)
        options = ProducerOptions(pace=0.0, patience=2.0, window=5)
        self._producers = [Producer(self, f"p{number}", stream(seed, f"p{number}"), options) for number in range(2)]
        self.clients += self._producers

    def on_event(self, process: SimProcess, event: object) -> None:
        self.said[event.name] += 1  # type: ignore[attr-defined]
        if event.name == "log_doubtful" and event.fields["torn"]:  # type: ignore[attr-defined]
            self.said["log_torn"] += 1
        super().on_event(process, event)  # type: ignore[arg-type]

    def lose_power(self) -> None:
        """Send records, let all replica servers lose power at once, restart them in random order, and wait until all
        are in sync. Raises AssertionError if that takes longer than ``BACK_S``."""
        rng = self.rng
        for producer in self._producers:
            self.until(lambda producer=producer: all(producer.partition(key) for key in self.partitions), 20.0)
            for _ in range(rng.randrange(12)):
                values = [bytes(rng.randrange(1, 900)) for _ in range(rng.randrange(1, 4))]
                producer.produce(rng.choice(self.partitions), *values)
        self.run_for(rng.uniform(0.0, 0.02))
        names = list(self.replicas)
        rng.shuffle(names)
        for name in names:
            self.processes[name].stop(power=True)
        for name in names:
            self.run_for(rng.choice((0.0, 0.01, 0.3, 3.0)) * rng.random())
            self.processes[name].start()
        self.until(self.in_sync, BACK_S)


def share(job: tuple[int, int]) -> Counter[str]:
    """Call ``lose`` with a tuple of arguments, for a pool of processes."""
    return lose(*job)


def lose(losses: int, seed: int) -> Counter[str]:
    """Run so many power losses from a seed on and return the counted events. Raises ``AssertionError`` for a loss
    after which a partition was not in sync or a log was called damaged."""
    total: Counter[str] = Counter()
    done = 0
    while done < losses:
        cluster = PowerLosses(seed)
        try:
            for _ in range(min(PER_CLUSTER, losses - done)):
                cluster.lose_power()
                done += 1
                assert not cluster.said["log_damaged"], "a log was called damaged"
        except (AssertionError, TidelogError) as error:
            raise AssertionError(f"seed {seed}, loss {done + 1}: {error}") from error
        total += cluster.said
        seed += 1
    total["power losses"] = done
    return total


def main() -> int:
    """Run the command line and print the counts."""
    parser = argparse.ArgumentParser(prog="python -m simulation.power", description=__doc__)
    parser.add_argument("--losses", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; default: one per core")
    arguments = parser.parse_args()
    began = time.monotonic()
    starts = range(0, arguments.losses, SHARE)
    jobs = [(min(SHARE, arguments.losses - done), arguments.seed + done) for done in starts]
    total: Counter[str] = Counter()
    with multiprocessing.Pool(arguments.jobs) as pool:
        for said in pool.imap_unordered(share, jobs):
            total += said
    for name in ("power losses", "log_doubtful", "log_torn", "records_possibly_lost", "log_damaged"):
        print(f"{total[name]:8} {name.replace('_', ' ')}")
    print(f"{time.monotonic() - began:.0f} s: every partition is led and in sync after each of them")
    return 0


if __name__ == "__main__":
    sys.exit(main())
