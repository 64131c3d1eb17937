"""Hostile bytes at everything that reads a stranger's: a fixed budget of what ``make fuzz`` does for long. Tests
``wire/codec.py``, ``net/websocket/frame_stream.py`` and ``net/origins.py``."""

from __future__ import annotations

import pytest
from support.fuzz_targets import TARGETS, run


@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes(name: str) -> None:
    run(name, TARGETS[name][1], start=1)
