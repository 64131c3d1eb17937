"""An earlier release, as far as others see it: its version, and the newest feature level that it understands.

The sources are the present ones. A process is made an earlier one by its environment: Python finds the metadata of
another version of the package, and a setting for tests lowers the feature level."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tidelog.feature_levels import NEWEST

VERSION = "0.0.9"
METADATA = f"Metadata-Version: 2.1\nName: tidelog\nVersion: {VERSION}\n"


def make_earlier(folder: Path) -> None:
    """Write the metadata of the earlier version into ``folder``."""
    at = folder / "earlier" / f"tidelog-{VERSION}.dist-info"
    at.mkdir(parents=True)
    (at / "METADATA").write_text(METADATA)


def variables(folder: Path) -> Mapping[str, str]:
    """Return the environment variables of a process of the earlier release."""
    return {"PYTHONPATH": str(folder / "earlier"), "TIDELOG_FEATURE_LEVEL_MAX": str(NEWEST - 1)}
