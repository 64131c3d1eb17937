"""Many seeds of the whole cluster, the seeds that once failed, and the proof that a seed replays exactly."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.options import Options
from simulation.runner import run_seed

CHUNK = 20
CHUNKS = 9
DURATION_S = 3.5
"""Of each run, before all is healed: many short and violent runs show more than few long ones."""

KNOWN_SEEDS = (
    9,  # after a failed flush the next life took for durable what was only in the page cache
    146,  # what was never committed outlived the leader's log start, which had forgotten the epoch it was of
    121,  # after an unclean election a follower whose log began above the leader's end asked for ever
    50,  # a repair waited for ever for a leader that could not commit without the member being repaired
    254,  # a former leader, now a follower, served what its new leader did not have, and refused what that had served
    294,  # the same
    7304,  # the same
    570,  # a bit that had rotted in a header made up a producer when the log was opened again
    581,  # a leader that repaired its log went on in the leader epoch in which it had led, with other records
    2301,  # retention right after a roll lost what alone told of producers whose batches were gone
    192,  # a leader whose only copy was damaged cut it and went on in the leader epoch in which it had led
    93,  # a leader epoch that a former life had failed to sync was never synced again: records went with it
    10478,  # a gap in a topic that may lose records was told as a failure for certain; readers had seen the record
    50129,  # a snapshot of the producers took the place of that of the log start, and the disk had no room
    50322,  # two replicas went in a row under commit rule quorum: those left could elect without a record
    627,  # a log was cut behind a header whose offset had rotted, and went on 2,000 offsets later
)
"""Seeds that failed because of the product, in runs of the usual length, so that they are run for ever."""

HAPPENED = {
    "elections": 40,
    "controller elections": 20,
    "isr changes": 100,
    "truncations": 3,
    "records truncated": 5,
    "records acked all": 2000,
    "rows read": 4000,
    "crashed at an effect": 1,
    "partition_offline": 3,
    "strikes after an event": 30,
    "reads linearizable": 100,
    "reads bounded": 300,
    "log_start_moved": 20,
    "messages out of date": 3,
    "processes upgraded": 1,
}
"""What must have happened in a chunk, at least: a run in which nothing fails proves nothing."""


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_R1_to_R11_hold_over_seeds(chunk):
    totals: dict[str, int] = {}
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        result = run_seed(seed, DURATION_S)
        replay = f"cd tests; python -m simulation --seed {seed} --duration {DURATION_S} --trace"
        assert result.fault is None, f"{result.fault}\nreplay: {replay}"
        for name, count in result.counts.items():
            totals[name] = totals.get(name, 0) + count
    rare = {name: totals.get(name, 0) for name, least in HAPPENED.items() if totals.get(name, 0) < least}
    assert not rare, f"too little happened for these seeds to prove anything: {rare}"


@pytest.mark.parametrize("seed", KNOWN_SEEDS)
def test_seed_that_once_failed(seed):
    assert run_seed(seed).fault is None


def test_producers_that_were_given_the_same_ids_are_told_so_and_lose_nothing_that_is_acked():
    counts: dict[str, int] = {}
    for seed in (16, 27, 40):
        assert Options.draw(seed).doubled_ids
        result = run_seed(seed, DURATION_S)
        assert result.fault is None
        for name, count in result.counts.items():
            counts[name] = counts.get(name, 0) + count
    assert counts["produce SEQUENCE_CONFLICT"] >= 10


@pytest.mark.parametrize("seed", [3, 10])
def test_a_seed_replays_byte_for_byte(seed):
    tests = Path(__file__).parents[1]
    digests = set()
    for hash_seed in ("0", "1"):
        path = os.pathsep.join([str(tests), *sys.path])
        run = subprocess.run(
            [sys.executable, "-m", "simulation", "--seed", str(seed), "--duration", "3"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.update(re.findall(r"trace ([0-9a-f]{32})", run.stdout))
    assert len(digests) == 1
