"""How many records a request of Kafka's own tool carries, and how many requests a second it gets answered, by size of
record and settings of its producer.

    .venv/bin/python deploy/bench/peers/kafka_requests.py

Three servers with default settings, one topic of three partitions for each row. The servers' code is compiled while
they run, so some settings come more than once: the first row is of cold servers.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.harness.processes import end_with_sigterm, require_linux
from bench.peers.__main__ import CORES, Round
from bench.peers.cases import CASES, PARTITIONS, Case
from bench.peers.products import Kafka

KIB = 1 << 10
BATCHES = "batch.size"
IN_FLIGHT = "max.in.flight.requests.per.connection"
ROWS: tuple[tuple[int, int, dict[str, int]], ...] = (
    (10 * KIB, 10_000, {}),
    (100, 1_000_000, {}),
    (KIB, 100_000, {}),
    (10 * KIB, 10_000, {}),
    (10 * KIB, 10_000, {IN_FLIGHT: 1}),
    (10 * KIB, 10_000, {}),
    (10 * KIB, 10_000, {IN_FLIGHT: 1}),
    (10 * KIB, 10_000, {"linger.ms": 0}),
    (KIB, 100_000, {}),
    (100, 1_000_000, {}),
    (10 * KIB, 10_000, {BATCHES: 64 * KIB}),
    (10 * KIB, 30_000, {BATCHES: 128 * KIB}),
    (10 * KIB, 30_000, {BATCHES: 128 * KIB, "linger.ms": 20}),
    (10 * KIB, 30_000, {BATCHES: 1024 * KIB, "linger.ms": 20, "buffer.memory": 64 * KIB * KIB}),
    (KIB, 200_000, {BATCHES: 128 * KIB, "linger.ms": 20}),
    (KIB, 200_000, {BATCHES: 1024 * KIB, "linger.ms": 20, "buffer.memory": 64 * KIB * KIB}),
)
"""Bytes of a record, number of records, and the settings that are not the defaults."""
PER_REQUEST = re.compile(r"producer-metrics:records-per-request-avg:.*: ([\d.]+)")


def main() -> None:
    """Run the tool once for each row, and print a Markdown table."""
    require_linux()
    end_with_sigterm()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    folder = Path(tempfile.mkdtemp(prefix="kafka-requests-"))
    measured = Round(Kafka(folder))
    try:
        measured.run([CASES[0]])
        print("| record, B | settings | records/s | records for each request | requests/s |\n" + "|---" * 5 + "|")
        for number, (size, records, settings) in enumerate(ROWS):
            given = [f"{name}={value}" for name, value in settings.items()]
            case = Case(f"row-{number}", "", "tool", partitions=PARTITIONS, size=size, records=records)
            printed = measured.tool_output(case, *given, "--print-metrics")
            speed, each = Kafka.records_per_s(printed), float(PER_REQUEST.findall(printed)[-1])
            shown = " ".join(given) or "defaults"
            figures = f"{speed:,.0f} | {each:,.1f} | {speed / each:,.0f}"
            print(f"| {size:,} | {shown} | {figures} |", flush=True)
    finally:
        measured.product.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
