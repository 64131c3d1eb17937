"""Records of the demo: the lines of a file, or live metrics of this host as JSON, each with a key."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

METRICS_PER_S = 2_000


def file_lines(path: Path) -> list[tuple[bytes | None, bytes]]:
    """Yield (key, value) per line, without its end. The key is None, so records are spread over the partitions."""
    lines = path.read_bytes().split(b"\n")
    if lines and not lines[-1]:
        lines.pop()
    return [(None, line.removesuffix(b"\r")) for line in lines]


def host_metrics() -> Iterator[tuple[bytes | None, bytes]]:
    """Yield (metric name, JSON) for ever, read from /proc on demand."""
    while True:
        for name, value in _sample():
            document = {"time": time.time_ns() // 1_000_000, "metric": name, "value": value}
            yield name.encode(), json.dumps(document).encode()


def _sample() -> Iterator[tuple[str, float]]:
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name.startswith("cpu"):
            for label, ticks in zip(("user", "nice", "system", "idle", "iowait"), fields, strict=False):
                yield f"{name}.{label}_ticks", float(ticks)
        elif name in ("ctxt", "processes", "procs_running"):
            yield name, float(fields[0])
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, value, *_ = line.split()
        yield f"memory.{name.rstrip(':')}_kb", float(value)
    for label, value in zip(("1m", "5m", "15m"), Path("/proc/loadavg").read_text().split(), strict=False):
        yield f"load.{label}", float(value)
    for line in Path("/proc/net/dev").read_text().splitlines()[2:]:
        device, _, rest = line.partition(":")
        fields = rest.split()
        yield f"net.{device.strip()}.received_bytes", float(fields[0])
        yield f"net.{device.strip()}.sent_bytes", float(fields[8])
