"""Tests ``deploy/bench/profile/memory.py``: the kinds of memory of a process."""

from __future__ import annotations

from bench.profile.memory import memory_of

SMAPS = """\
55917c374000-55917cdc5000 rw-p 00000000 00:00 0                          [heap]
Size:              10564 kB
Pss:                   5 kB
Private_Dirty:         4 kB
7f4700000000-7f4701001000 rw-p 00000000 00:00 0 
Pss:                   3 kB
Private_Dirty:         3 kB
7f470786a000-7f4707c6a000 rw-p 00000000 00:00 0 
Pss:                   7 kB
Private_Dirty:         1 kB
VmFlags: rd wr mr mw me ac
7f47094f5000-7f4709731000 r-xp 000f5000 fe:00 18710                      /usr/lib/lib with spaces.so
Pss:                   2 kB
Private_Clean:         1 kB
7ffe453e2000-7ffe45403000 rw-p 00000000 00:00 0                          [stack]
Pss:                   1 kB
"""  # noqa: W291 (the kernel ends such lines with a space)


def test_memory_is_counted_by_kind() -> None:
    found = {kind: size >> 10 for kind, size in memory_of(SMAPS).items()}
    assert found == {"heap": 5, "arenas": 3, "objects": 7, "libraries": 2, "other": 1, "private": 9}
