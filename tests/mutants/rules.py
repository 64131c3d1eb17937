"""The type of a mutant: one rule that guards an invariant, broken on purpose by a patch of a few lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

Patch = pytest.MonkeyPatch
Break = Callable[[Patch], None]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One rule of the product and a function that breaks it, by patching the code that keeps the rule."""

    name: str
    source: str
    """Where the rule comes from: a KIP, a section of a paper, a decision, an invariant, or a number of ``RULES``."""
    rule: str
    """The rule as it should be, one sentence."""
    broken: str
    """What the mutant does instead."""
    apply: Break
    raft: bool = False
    """A rule of Raft, which has engines of its own."""
    disk: bool = False
    """A rule of the real disk, which only the power losses of ``crash_points`` can notice."""
    tests: tuple[str, ...] = ()
    """Modules of unit tests with a test of this rule."""
    store: bool = False
    """A rule of the real disk that the store of a controller keeps."""
    units_only: bool = False
    """Only the unit tests that the mutant names are tried: the other engines run the code of the rule rarely or
    never. This holds for the admission of connections to a gateway, for permissions and limits, the command line and
    files."""
    where: tuple[str, ...] = ()
    """Modules that keep the rule, for ``docs/invariants.md``; (): the modules whose code the mutant patches."""


MUTANTS: dict[str, Mutant] = {}
"""All mutants, by name."""

RULES = {
    "rule 1": "Every start of a process is a new broker epoch, which the controller gives through Raft. Until its"
    " registration is answered, a replica server ignores every message of the controllers and serves nobody.",
    "rule 2": "No leader epoch is resumed after a restart: a leader that comes back gets a new leader epoch, even if"
    " the same server is chosen again.",
    "rule 3": "An ISR member that registers leaves the ISR if others remain.",
    "rule 4": "A follower's acknowledged offset is its flushed end, and the leader counts itself by its own flushed"
    " end.",
    "rule 5": "A removal from the ISR takes effect at the leader when the controller's new state arrives; an addition"
    " counts from the moment it is proposed. A lost proposal is sent again as it was, and only a newer epoch settles"
    " it.",
    "rule 6": "A follower joins the ISR only at or past both the HW and the start of the leader epoch.",
    "rule 7": "The leader-epoch dialogue ends before the first fetch of every new leader epoch. It goes on until both"
    " sides know the epoch, and an epoch that the leader does not know is never a reason to cut at the HW.",
    "rule 8": "Every message between replicas carries the leader epoch and is dropped where it differs, in both"
    " directions; only the controllers raise an epoch.",
    "rule 9": "A leader reports the latest offset only when its HW has reached the start of its leader epoch and its"
    " leadership was confirmed after the request came.",
}
"""Rules of replication that small model checks showed to be needed: without any one of them acknowledged records are
lost within 5 to 14 steps, or a reader receives an end offset that is too old. ``docs/invariants.md`` is made from
them."""


def breaks(
    source: str,
    rule: str,
    *,
    raft: bool = False,
    disk: bool = False,
    tests: tuple[str, ...] = (),
    store: bool = False,
    units_only: bool = False,
    where: tuple[str, ...] = (),
) -> Callable[[Break], Break]:
    """Return a decorator that registers a function in `MUTANTS` as the one that breaks this rule. The docstring of
    the function becomes the text of what is done instead."""

    def add(function: Break) -> Break:
        name = function.__name__
        assert name not in MUTANTS and function.__doc__
        broken = " ".join(function.__doc__.split())
        assert all(part in RULES for part in source.split(", ") if part.startswith("rule ")), source
        of_disk = disk or store
        MUTANTS[name] = Mutant(name, source, rule, broken, function, raft, of_disk, tests, store, units_only, where)
        return function

    return add
