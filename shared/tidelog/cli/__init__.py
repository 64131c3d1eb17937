"""The ``tidelog`` command: one entry point, sub-commands loaded when they are used."""

from __future__ import annotations

from tidelog.cli.main import main

__all__ = ["main"]
