"""Types of options that many commands have: durations, sizes, rates and counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tidelog.quantities import BYTES, BYTES_PER_S, COUNT, MIB_PER_S, Unit, in_words, parse, parse_whole

_NAMES = {BYTES.noun: "size", BYTES_PER_S.noun: "rate", MIB_PER_S.noun: "rate", COUNT.noun: "number"}
"""What an option counts -> the name of its type in the help; of all others it is "duration"."""


if TYPE_CHECKING:
    Converter = click.ParamType[float]
else:
    Converter = click.ParamType  # older releases of click are generic for type checkers only


class Quantity(Converter):
    """The type of an option for a number that may have a unit, such as ``90s``, ``64MiB`` or ``10k``. click converts
    it to a number of what ``unit`` counts, a whole one with ``whole``. Other texts, and numbers that are not from
    ``least`` to ``most``, end the command with a usage error; with ``above`` the number must be greater than
    ``least``."""

    def __init__(
        self,
        unit: Unit,
        *,
        least: float | None = None,
        most: float | None = None,
        whole: bool = False,
        above: bool = False,
    ) -> None:
        self.name = _NAMES.get(unit.noun, "duration")
        self._unit, self._least, self._most, self._whole, self._above = unit, least, most, whole, above

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number that ``value`` gives, a text or the default of the option. Ends the command with a usage
        error if it is not valid."""
        try:
            number = parse_whole(str(value), self._unit) if self._whole else float(parse(str(value), self._unit))
        except ValueError as error:
            self.fail(f"{value!r} {error}.", param, ctx)
        low, high = self._least, self._most
        if low is not None and (number <= low if self._above else number < low):
            than = "more than" if self._above else "at least"
            self.fail(f"{value!r} must be {than} {self._said(low)}.", param, ctx)
        if high is not None and number > high:
            self.fail(f"{value!r} must be at most {self._said(high)}.", param, ctx)
        return number

    def _said(self, bound: float) -> str:
        """Return a bound of this option as text, in what it counts."""
        words = in_words(bound, self._unit)
        return words or f"{bound:g} {self._unit.noun}".rstrip()
