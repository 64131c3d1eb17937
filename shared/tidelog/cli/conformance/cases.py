"""``Case`` and ``Chapter``: the checks of the conformance suite, by what they are about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tidelog.cli.conformance.library import Library


@dataclass(frozen=True, slots=True)
class Case:
    """One check. ``run`` raises ``Failed`` or ``Refused`` if the library does not pass it. ``needs`` is the feature
    without which the case does not apply; "": it applies to every library. ``disturbs``: it stops processes of the
    cluster, which must be started again afterwards."""

    name: str
    sentence: str
    run: Callable[[Library], None]
    needs: str = ""
    disturbs: bool = False


@dataclass(frozen=True, slots=True)
class Chapter:
    """Cases about one part of the protocol."""

    name: str
    cases: list[Case] = field(default_factory=list)

    def case(
        self, sentence: str, *, needs: str = "", disturbs: bool = False
    ) -> Callable[[Callable[[Library], None]], Callable[[Library], None]]:
        """Return a decorator that adds a function to the chapter as a case; ``sentence`` says what must be true."""

        def add(run: Callable[[Library], None]) -> Callable[[Library], None]:
            name = f"{self.name}.{run.__name__}"
            self.cases.append(Case(name, sentence, run, needs, disturbs))
            return run

        return add
