"""The byte level: real shells, client and WebSockets over streams in memory, as a function of a seed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tidelog.testing.runner import run_bytes

from simulation.faults.planted import forget_sequences

SILENT = 4
"""A seed in which connections go silent, too."""


START_FAILS = 107
"""A seed in which a disk fails while its server starts."""


@pytest.mark.parametrize("seed", [0, 1, 2, SILENT, START_FAILS])
def test_history_and_logs_are_sound_at_the_byte_level(seed):
    result = run_bytes(seed)
    assert result.fault is None, f"{result.fault}\nreplay: cd tests; python -m simulation --bytes --seed {seed}"
    assert result.counts["sends ok"] > 100
    assert sum(count for name, count in result.counts.items() if name.startswith("fault ")) > 5
    assert (result.counts.get("connections mute", 0) > 5) == (seed == SILENT)


def test_a_seed_replays_byte_for_byte():
    tests = Path(__file__).parents[1]
    digests = set()
    for hash_seed in ("0", "1"):
        run = subprocess.run(
            [sys.executable, "-m", "simulation", "--bytes", "--seed", "5"],
            cwd=tests,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join([str(tests), *sys.path])},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.update(re.findall(r"trace ([0-9a-f]{32})", run.stdout))
    assert len(digests) == 1


def test_a_rule_that_is_broken_on_purpose_is_noticed(monkeypatch):
    forget_sequences(monkeypatch)
    faults = (run_bytes(seed).fault for seed in range(4))
    assert any(fault is not None and fault.kind in ("duplicate", "order") for fault in faults)
