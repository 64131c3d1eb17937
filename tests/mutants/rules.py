"""What a mutant is: one rule that guards an invariant, broken on purpose by a few lines put in its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

Patch = pytest.MonkeyPatch
Break = Callable[[Patch], None]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A broken rule."""

    name: str
    source: str
    """Where the rule comes from: a KIP, or its number among the rules that small model checks showed to be needed."""
    rule: str
    """The rule as it should be, one sentence."""
    broken: str
    """What is done instead."""
    apply: Break
    raft: bool = False
    """A rule of Raft, which has engines of its own."""
    disk: bool = False
    """A rule of the real disk, which only the power losses of ``crash_points`` can notice."""
    tests: tuple[str, ...] = ()
    """Modules of unit tests with a test of this rule."""
    store: bool = False
    """A rule of the real disk that a controller's store keeps."""
    units_only: bool = False
    """Only its unit tests are tried: the other engines run the code of the rule rarely or never. That is so of a
    gateway's door, of rights and bounds, the command line and files."""


MUTANTS: dict[str, Mutant] = {}
"""All, by name."""


def breaks(
    source: str,
    rule: str,
    *,
    raft: bool = False,
    disk: bool = False,
    tests: tuple[str, ...] = (),
    store: bool = False,
    units_only: bool = False,
) -> Callable[[Break], Break]:
    """The function breaks this rule; its docstring says how."""

    def add(function: Break) -> Break:
        name = function.__name__
        assert name not in MUTANTS and function.__doc__
        broken = " ".join(function.__doc__.split())
        MUTANTS[name] = Mutant(name, source, rule, broken, function, raft, disk or store, tests, store, units_only)
        return function

    return add
