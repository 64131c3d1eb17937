"""The hints at missing packages, and the extras that they name."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from tidelog.extras import install_hint

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCES = [path for folder in ("shared", "services", "deploy") for path in (ROOT / folder).rglob("*.py")]
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]


def test_a_hint_is_a_command() -> None:
    assert install_hint("spark,plots") == "pip install 'tidelog[spark,plots]'"


def test_every_extra_is_hinted_at_and_every_hint_names_one() -> None:
    named = [each for path in SOURCES for each in re.findall(r"install_hint\([\"'](.*?)[\"']\)", path.read_text())]
    extras = set(PROJECT["optional-dependencies"]) - {"testing"}  # which has pytest, whose plugin nothing else loads
    assert {extra for names in named for extra in names.split(",")} == extras


def test_nobody_writes_a_hint_by_hand() -> None:
    by_hand = [path for path in SOURCES if re.search(r"pip install .?tidelog\[", path.read_text())]
    assert [path.name for path in by_hand] == ["extras.py"]


def test_pages_name_extras_that_there_are() -> None:
    named = {
        name
        for page in PAGES
        for names in re.findall(r"tidelog\[([a-z0-9,]+)\]", page.read_text())
        for name in names.split(",")
    }
    assert named and named <= set(PROJECT["optional-dependencies"])
