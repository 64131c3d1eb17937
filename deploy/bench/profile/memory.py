"""Prints what the memory of a local cluster consists of: ``memory.py FOLDER``, with the folder of ``tidelog cluster
up``. Each process is a row, in MB. Memory that processes share is divided among them (PSS)."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

from tidelog.cli.local.local_cluster import LocalCluster

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.harness.processes import require_linux

KINDS = ("objects", "heap", "arenas", "libraries", "other")
"""Python's small objects; glibc's main heap; glibc's heaps of threads; the files of Python and its libraries."""
_MAPPING = re.compile(r"([0-9a-f]+)-[0-9a-f]+ (\S+) \S+ \S+ \S+\s*(.*)")
_THREAD_HEAP_BYTES = 64 << 20
"""glibc maps the heap of a thread at a multiple of this."""


def memory_of(smaps: str) -> Counter[str]:
    """Return the bytes of a process by kind, and those that it shares with no other as ``private``. ``smaps``: the
    content of its file of that name in ``/proc``."""
    found: Counter[str] = Counter()
    kind = "other"
    for line in smaps.splitlines():
        if mapping := _MAPPING.fullmatch(line):
            kind = _kind(int(mapping[1], 16), mapping[3])
        elif line.startswith("Pss:"):
            found[kind] += int(line.split()[1]) << 10
        elif line.startswith(("Private_Clean:", "Private_Dirty:")):
            found["private"] += int(line.split()[1]) << 10
    return found


def _kind(start: int, path: str) -> str:
    """Return the kind of a mapping from its address and its path, which is empty for anonymous memory."""
    if path == "[heap]":
        return "heap"
    if path:
        return "other" if path.startswith("[") else "libraries"
    return "objects" if start % _THREAD_HEAP_BYTES else "arenas"


def main() -> None:
    """Print a row for each process that runs, and one for their sum."""
    require_linux()
    total: Counter[str] = Counter()
    print("process", *(f"{name:>9}" for name in (*KINDS, "sum", "private")))
    for process in LocalCluster.load(Path(sys.argv[1])).processes:
        if process.is_alive():
            found = memory_of(Path(f"/proc/{process.pid}/smaps").read_text())
            total += found
            _print_row(process.id, found)
    _print_row("all", total)


def _print_row(name: str, found: Counter[str]) -> None:
    figures = [*(found[kind] for kind in KINDS), sum(found[kind] for kind in KINDS), found["private"]]
    print(f"{name:7}", *(f"{figure / 1e6:9.1f}" for figure in figures))


if __name__ == "__main__":
    main()
