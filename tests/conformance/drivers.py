"""The drivers of all libraries of this repository."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from support.js_tools import CHROMIUM, NODE, NODE_20

HERE = Path(__file__).resolve().parent
DRIVERS: dict[str, list[str]] = {
    "trio": [sys.executable, str(HERE / "trio_driver.py")],
    "aio": [sys.executable, str(HERE / "aio_driver.py")],
    "sync": [sys.executable, str(HERE / "sync_driver.py")],
    "node": [NODE or "node", str(HERE / "node_driver.js")],
    "node20": [NODE_20 or "node20", str(HERE / "node_driver.js")],
    "chromium": [sys.executable, str(HERE / "chromium_driver.py"), CHROMIUM or "chromium"],
}
"""The command that starts the driver, by name of the library."""
PROGRAMS = {"node": NODE or "node", "node20": NODE_20 or "node20", "chromium": CHROMIUM or "chromium"}
"""The program of a driver that a machine may lack."""


def missing(name: str) -> str:
    """Return the program that this machine lacks for a driver; "" if none."""
    program = PROGRAMS.get(name, DRIVERS[name][0])
    return "" if shutil.which(program) else program
