"""Durations, sizes and counts as people write them, such as ``7d``, ``64MiB`` and ``10k``.

All code that reads a setting from text uses this module: the settings of topics, the configuration of services, the
options of commands and of Spark. A number without a unit counts what the setting counts: ``retention_ms=5000`` is
5,000 milliseconds. Case does not matter. A fraction such as ``1.5h`` is taken if it is exact in the setting's unit.
Bounds are not checked here, so negative numbers pass: ``-1`` is a valid value of some settings.

The text of a topic's setting becomes a number in the active controller, when it plans a command and before it
proposes it. So clients in all languages may send ``7d``, and the command in the log of the controllers holds a
number, as in earlier releases: controllers of different releases apply it alike, and ``describe`` shows the number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

_TEXT = re.compile(
    r"(-?(?:[0-9][0-9_]*(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]{1,2})?)\s*([a-z]*(?:/s)?)", re.ASCII | re.IGNORECASE
)
_MOST_CHARACTERS = 40
"""Longest text that is read as a number."""
_TIMES = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
"""Milliseconds of each unit of time."""
_BINARY = ("KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL = ("kB", "MB", "GB", "TB", "PB")
_SIZES = {
    "b": 1,
    **{unit[0].lower(): 1 << 10 * power for power, unit in enumerate(_BINARY, 1)},
    **{unit.lower(): 1 << 10 * power for power, unit in enumerate(_BINARY, 1)},
    **{unit.lower(): 1000**power for power, unit in enumerate(_DECIMAL, 1)},
}
"""Bytes of each unit of size; ``k``, ``m``, ``g``, ``t`` and ``p`` are powers of 1,024."""


@dataclass(frozen=True, slots=True)
class Unit:
    """What a setting counts, and the units in which people may write it."""

    noun: str
    """Name of what a number without a unit counts, such as "milliseconds"; "" for a plain count."""
    example: str
    """Description of the texts that are accepted besides a number, such as "a time such as 12h"."""
    factors: Mapping[str, Fraction]
    """Name of a unit, in lower case -> how many of what the setting counts it is."""
    shown: tuple[str, ...]
    """Units in which ``in_words`` shows numbers, the preferred one first."""

    def accepted(self, *, whole: bool) -> str:
        """Return a description of the valid texts, for errors: "a number of seconds, or a time such as 12h". With
        ``whole`` the number must be a whole one."""
        number = "a whole number" if whole else "a number"
        return f"{number} of {self.noun}, or {self.example}" if self.noun else f"{number}, {self.example}"


def _unit(noun: str, example: str, sizes: Mapping[str, int], of: int, shown: tuple[str, ...]) -> Unit:
    """Return the unit that counts ``of`` of what ``sizes`` counts."""
    return Unit(noun, example, {name: Fraction(size, of) for name, size in sizes.items()}, shown)


_TIME, _SIZE = "a time such as 500ms, 12h or 7d", "a size such as 64KiB, 64MiB or 1GB"
_SHOWN_TIMES, _SHOWN_SIZES = ("d", "h", "m", "s"), (*reversed(_BINARY), *reversed(_DECIMAL))
_RATES = _SIZES | {f"{name}/s": size for name, size in _SIZES.items()}
MILLISECONDS = _unit("milliseconds", _TIME, _TIMES, 1, _SHOWN_TIMES)
SECONDS = _unit("seconds", _TIME, _TIMES, 1000, _SHOWN_TIMES)
BYTES = _unit("bytes", _SIZE, _SIZES, 1, _SHOWN_SIZES)
_SHOWN_RATES = tuple(f"{name}/s" for name in _SHOWN_SIZES)
_RATE = "a rate such as 500KiB/s, 64MiB/s or 1GB/s"
BYTES_PER_S = _unit("bytes per second", _RATE, _RATES, 1, _SHOWN_RATES)
MIB_PER_S = _unit("MiB per second", _RATE, _RATES, 1 << 20, _SHOWN_RATES)
COUNT = _unit("", "such as 500, 10k or 5M", {"k": 1000, "m": 10**6, "g": 10**9}, 1, ())


def unit_of(setting: str) -> Unit:
    """Return what a setting counts by its name: ``MILLISECONDS`` if the name ends with ``_ms``, ``SECONDS`` with
    ``_s``, ``BYTES`` or ``BYTES_PER_S`` if ``bytes`` is a word of it, otherwise ``COUNT``."""
    words = setting.rpartition(".")[2].split("_")
    if "bytes" in words:
        return BYTES_PER_S if words[-1] == "s" else BYTES
    if words[-1] == "ms":
        return MILLISECONDS
    return SECONDS if words[-1] == "s" and "per" not in words else COUNT


def parse(text: str, unit: Unit) -> Fraction:
    """Parse a number, alone or with a unit, and return it, exactly, in what ``unit`` counts. Raises ``ValueError``
    that says what is accepted."""
    found = _TEXT.fullmatch(text.strip()) if len(text) <= _MOST_CHARACTERS else None
    factor = Fraction(1) if found and not found[2] else unit.factors.get(found[2].lower()) if found else None
    if found is None or factor is None:
        raise ValueError(f"must be {unit.accepted(whole=False)}")
    return Fraction(found[1].replace("_", "")) * factor


def parse_whole(text: str, unit: Unit) -> int:
    """Parse a number, alone or with a unit, and return it as a whole number of what ``unit`` counts. Raises
    ``ValueError`` that says what is accepted, also for a number that is not whole, such as half a millisecond."""
    try:
        value = parse(text, unit)
    except ValueError:
        value = Fraction(1, 2)
    if value.denominator != 1:
        raise ValueError(f"must be {unit.accepted(whole=True)}")
    return int(value)


def in_words(number: float, unit: Unit) -> str:
    """Return a number, in what ``unit`` counts, in the largest unit of which it is a whole multiple, such as ``7d``
    or ``64MiB``. Returns "" if the number is not positive, or is a whole multiple of no larger unit."""
    value = Fraction(str(number))
    if value <= 0:
        return ""
    for name in unit.shown:
        multiple = value / unit.factors[name.lower()]
        if multiple.denominator == 1 and unit.factors[name.lower()] != 1:
            return f"{multiple.numerator}{name}"
    return ""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as "1 partition" and "12 partitions"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
