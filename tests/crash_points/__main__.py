"""``python -m crash_points``: more seeds, longer scripts and more power losses than ``make test`` tries. Exit code 0
when every promise was kept."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys

from crash_points.recording import missing
from crash_points.replay import Replayed, run


def _run(arguments: tuple[int, int, int]) -> tuple[int, Replayed]:
    return arguments[0], run(*arguments)


def main() -> int:
    """Run the command: replay more power losses than ``make test`` does. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m crash_points", description=__doc__)
    parser.add_argument("--seeds", default="0:20", help="first:end")
    parser.add_argument("--rounds", type=int, default=3, help="how often everything happens to each log")
    parser.add_argument("--losses", type=int, default=6, help="random power losses at each call, besides two others")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if why := missing():
        print(f"nothing can be checked here: {why}")
        return 2
    first, end = map(int, options.seeds.split(":"))
    calls = outcomes = failed = 0
    with multiprocessing.Pool(options.jobs) as pool:
        tasks = [(seed, options.rounds, options.losses) for seed in range(first, end)]
        for seed, replayed in pool.imap_unordered(_run, tasks):
            calls, outcomes = calls + replayed.calls, outcomes + replayed.outcomes
            if replayed.fault:
                failed += 1
                print(f"seed {seed}: {replayed.fault}", flush=True)
    print(f"{end - first} seeds, {calls} crash points, {outcomes} outcomes opened, {failed} seeds failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
