"""``python -m model.spin``: the design model ``replication.pml`` under SPIN, in its larger scopes.

SPIN turns the model into C, the compiler makes it fast, and the program visits every reachable state. Both tools are
Debian's (``apt-get install spin gcc``); where one is missing, the tests are skipped, visibly.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MODEL = Path(__file__).with_name("replication.pml")
MEMORY_MB = 12_000


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search: to its end (``error`` ""), or to the first violation."""

    states: int
    depth: int
    seconds: float
    error: str


QUICK: dict[str, dict[str, int]] = {
    "3 replicas, 2 records, 4 epochs": {"N": 3, "R": 2, "E": 4, "ALTERS": 1},
    "3 replicas, high watermarks of followers, late messages": {
        "R": 1,
        "E": 3,
        "ALTERS": 1,
        "FOLLOWER_HW": 1,
        "LATES": 1,
    },
    "4 replicas, 1 record, 3 epochs, no crash": {"N": 4, "R": 1, "E": 3, "ALTERS": 1, "CRASHES": 0},
    "ELR, lost disks": {"R": 1, "E": 4, "ALTERS": 1, "CRASHES": 1, "LOSSES": 1, "MIN": 2},
    "last member with a lost disk": {"R": 1, "E": 4, "ALTERS": 1, "CRASHES": 1, "LOSSES": 1},
    "quorum": {"QUORUM": 1, "R": 2, "E": 5, "FENCES": 2, "ALTERS": 0, "CRASHES": 0},
    "quorum, lost disks": {"QUORUM": 1, "R": 1, "E": 5, "FENCES": 2, "ALTERS": 1, "LOSSES": 1, "CRASHES": 0},
    "leaders ask their voters": {"CONFIRM": 1, "R": 1, "E": 3, "ALTERS": 1},
    "leaders ask their voters, 2 replicas, ELR, lost disks": {
        "CONFIRM": 1,
        "N": 2,
        "R": 1,
        "E": 5,
        "ALTERS": 2,
        "FENCES": 2,
        "MIN": 2,
        "LOSSES": 1,
    },
    "leaders ask their voters, quorum": {
        "CONFIRM": 1,
        "QUORUM": 1,
        "R": 1,
        "E": 5,
        "FENCES": 2,
        "ALTERS": 0,
        "CRASHES": 0,
    },
}
"""The scopes of ``make test``; parameters that are not named have their default in the model."""

LARGE: dict[str, dict[str, int]] = {
    "3 replicas, 3 records, 4 epochs": {"N": 3, "R": 3, "E": 4, "ALTERS": 1},
    "3 replicas, 2 records, 4 epochs, two proposals": {"R": 2, "E": 4, "ALTERS": 2},
    "3 replicas, 1 record, 5 epochs, two crashes": {"R": 1, "E": 5, "CRASHES": 2, "FENCES": 2},
    "4 replicas, 2 records, 3 epochs": {"N": 4, "R": 2, "E": 3, "ALTERS": 1, "CRASHES": 0},
    "4 replicas, 1 record, 3 epochs": {"N": 4, "R": 1, "E": 3, "ALTERS": 1},
    "ELR, lost disks": {"R": 2, "E": 4, "ALTERS": 1, "CRASHES": 1, "LOSSES": 1, "MIN": 2},
    "late messages": {"R": 2, "E": 4, "ALTERS": 1, "LATES": 1, "FOLLOWER_HW": 1},
    "quorum": {"QUORUM": 1, "R": 2, "E": 7, "FENCES": 3, "ALTERS": 0},
    "quorum, lost disks": {"QUORUM": 1, "R": 2, "E": 6, "FENCES": 2, "ALTERS": 1, "LOSSES": 1, "CRASHES": 0},
    "leaders ask their voters, ELR, lost disks": {"CONFIRM": 1, "R": 1, "E": 3, "ALTERS": 1, "MIN": 2, "LOSSES": 1},
    "leaders ask their voters, quorum": {"CONFIRM": 1, "QUORUM": 1, "R": 1, "E": 6, "FENCES": 3, "ALTERS": 0},
}
"""The scopes of ``make model-check``."""


def missing() -> str:
    """Return the tools that are missing, in words; "" if none is."""
    return ", ".join(tool for tool in ("spin", "gcc") if shutil.which(tool) is None)


def search(defines: Mapping[str, int], *, shortest: bool = False) -> Found:
    """Visit every state, or all up to the first violation, and return the result; ``shortest``: breadth first."""
    flags = [f"-D{name}={value}" for name, value in defines.items()]
    with tempfile.TemporaryDirectory(prefix="tidelog-spin-") as folder:
        shutil.copy(MODEL, folder)
        # breadth first wants no hidden variables; they are scratch, and the same between steps
        _run(["spin", "-a", *flags, *(["-Dhidden="] if shortest else []), MODEL.name], folder)
        fast = ["-O2", "-w", "-DSAFETY", "-DNOFAIR", "-DNOREDUCE", "-DNOBOUNDCHECK", "-DVECTORSZ=1024"]
        options = [*fast, f"-DMEMLIM={MEMORY_MB}", *(["-DBFS"] if shortest else [])]
        _run(["gcc", *options, "-o", "pan", "pan.c"], folder)
        output = _run(["./pan", "-E", "-n", "-m100000"], folder)
        error = re.search(r"pan:1: (.*)", output)
        told = error.group(1) if error else ""
        if told and not shortest:
            told += "\n" + _steps(_run(["spin", "-t", "-p", "-g", *flags, MODEL.name], folder))
    states = re.search(r"(\d+) states, stored", output)
    depth = re.search(r"depth reached (\d+), errors: (\d+)", output)
    seconds = re.search(r"elapsed time ([\d.e+]+)", output)
    assert states and depth and seconds, f"the search did not end: {output}"
    assert bool(told) == (depth.group(2) != "0"), output
    assert "out of memory" not in output and "max search depth too small" not in output, output
    return Found(int(states.group(1)), int(depth.group(1)), float(seconds.group(1)), told)


def _run(command: list[str], folder: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or command[0] == "./pan", f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def _steps(replay: str) -> str:
    """Return the variables as they change along the trail, shortened."""
    return "\n".join(line for line in replay.splitlines() if "proc" in line or "=" in line)[-6000:]


def main() -> int:
    """Run the command. Returns the exit code: 0 if no scope has a state that breaks an invariant, 2 if nothing was
    checked."""
    if missing():
        print(f"the design model was NOT checked, missing here: {missing()}")
        return 2
    failed = 0
    for scope, defines in LARGE.items():
        found = search(defines)
        failed += bool(found.error)
        print(f"{scope}: {found.states} states, depth {found.depth}, {found.seconds} s {found.error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
