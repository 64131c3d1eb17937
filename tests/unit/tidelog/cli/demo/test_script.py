"""The records of the demo: metrics of this host, or the lines of a file."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest
from tidelog.cli.demo.script import host_metrics


def first(count: int) -> dict[str, float]:
    """The first metrics by name; the key of each record is its name."""
    found = {}
    for key, value in islice(host_metrics(), count):
        document = json.loads(value)
        assert key == document["metric"].encode() and document["time"] > 0
        found[document["metric"]] = document["value"]
    return found


def test_a_host_tells_of_its_processors_its_memory_and_its_network() -> None:
    kinds = {name.partition(".")[0] for name in first(500)}
    assert {"cpu", "memory", "load", "net"} <= kinds


def test_a_host_without_proc_tells_what_any_system_has(monkeypatch: pytest.MonkeyPatch) -> None:
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: not path.is_relative_to("/proc") and exists(path))
    found = first(20)
    assert {"cpu.user_ticks", "cpu.children_system_ticks", "load.15m", "disk.free_bytes"} <= set(found)
    assert len(found) == 9, "and then all of them again"
