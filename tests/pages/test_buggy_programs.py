"""The programs of ``docs/examples/buggy``: a world finds the bug of some of them, and their mended twins pass.

``make buggy`` runs all of them over many more seeds, and measures."""

from __future__ import annotations

import re
from importlib import import_module
from types import ModuleType

import pytest
from pages.place import ROOT
from tidelog.testing.world.search import search

FOLDER = ROOT / "docs" / "examples" / "buggy"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in ("__init__", "shop"))
QUICK = ("hand_off_to_workers", "random_application", "starts_at_latest")
"""The programs that are run here: their bugs are found in the first seed or without faults."""
MOST_SEEDS = 20
"""Within so many seeds the bug of each must be found."""
TWIN_SEEDS = 1


@pytest.fixture
def example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of a program."""
    monkeypatch.syspath_prepend(FOLDER.parent)
    return import_module(f"buggy.{request.param}")


def test_there_are_twenty_and_each_says_what_is_wrong_and_who_has_met_it() -> None:
    assert len(NAMES) == 20
    texts = {name: (FOLDER / f"{name}.py").read_text() for name in NAMES}
    for text in texts.values():
        assert len(text.splitlines()) <= 150
        assert re.search(r'^""".+?\n\nSymptom: .+?\nBug: .+?\nReport: .+?\n"""', text, re.S)
    assert sum("\nReport: invented" not in text for text in texts.values()) >= 10


@pytest.mark.parametrize("example", QUICK, indirect=True)
def test_a_bug_is_found_and_its_mended_twin_passes(example: ModuleType) -> None:
    found = search(lambda world: example.check(world, example.buggy), range(MOST_SEEDS), shrink=False)
    assert found is not None, f"{example.__name__}: no seed below {MOST_SEEDS} finds the bug"
    assert found.result.kind == "InvariantBroken", found.result.text
    twin = search(lambda world: example.check(world, example.mended), range(TWIN_SEEDS), shrink=False)
    assert twin is None, twin.result.text


@pytest.mark.parametrize(
    ("example", "seed"),
    [("growing_topic", 74), ("hand_off_to_workers", 7), ("random_application", 50)],
    indirect=["example"],
)
def test_a_world_waits_for_a_right_program(example: ModuleType, seed: int) -> None:
    """With the first two seeds the partitions of a member that died while the world healed go to another one late:
    the first process ended by an error, the second was cut off. With the third, two processes fenced each other again
    and again, since both were started after the same time."""
    twin = search(lambda world: example.check(world, example.mended), [seed], shrink=False)
    assert twin is None, twin.result.text


def test_the_page_names_each() -> None:
    page = (ROOT / "docs" / "testing-your-programs.md").read_text()
    assert [name for name in NAMES if f"(examples/buggy/{name}.py)" not in page] == []
