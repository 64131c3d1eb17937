"""The grammar of Spark's intervals, such as ``10 seconds`` and ``1 hour 30 minutes``. Pure."""

from __future__ import annotations

import re

_UNITS = ("year", "month", "week", "day", "hour", "minute", "second", "millisecond", "microsecond")
_PART = re.compile(r"\s*([+-]?)\s*(\d+(?:\.\d*)?|\.\d+)\s+([a-z]+)(?=\s|$|[+-])")
_MAX_DIGITS = 18


def refuse_interval(text: str, *, months: bool = False) -> str:
    """Return what the time between two micro-batches, or with ``months`` the delay of a watermark, should be and a
    text is not; "" if Spark takes the text. Neither is negative. Only a delay may have years and months, which Spark
    counts as 31 days a month."""
    rest = text.strip().lower()
    rest = re.sub(r"^interval\s", "", rest)
    good = 'such as "10 seconds" or "1 hour 30 minutes"'
    if not rest:
        return f"a time, {good}"
    at = 0
    while at < len(rest.rstrip()):
        part = _PART.match(rest, at)
        if part is None:
            return f"a time, {good}; not {text!r}"
        sign, number, unit = part.groups()
        if unit.removesuffix("s") not in _UNITS or unit.endswith("ss"):
            return f"a time in {', '.join(f'{one}s' for one in _UNITS[2:])}; not {text!r}"
        if "." in number and unit.removesuffix("s") != "second":
            return f"a time in whole numbers, but for seconds; not {text!r}"
        if len(number.partition(".")[0]) > _MAX_DIGITS:
            return f"a shorter time, {good}"
        if len(number.partition(".")[2]) > 9:
            return f"a time in nanoseconds at the finest; not {text!r}"
        if sign == "-":
            return f"a time that is not negative; not {text!r}"
        if not months and unit.removesuffix("s") in ("year", "month"):
            return f"a time without years and months, which have no fixed length; not {text!r}"
        at = part.end()
    return ""
