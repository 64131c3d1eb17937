"""The grammar of schemas as Spark's SQL writes them, such as ``id BIGINT, amount DECIMAL(10,2)``. Pure.

What passes here may still be refused by Spark, such as ``DECIMAL(99,1)``. What is refused here is refused there, but
for two columns with one name: Spark lets them be declared, and refuses every query that names one."""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"\s+|--[^\n]*|/\*.*?\*/|`((?:[^`]|``)+)`|([A-Za-z_0-9]+)|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|([<>(),:])|(.)",
    re.DOTALL,
)
_PLAIN = re.compile(
    "boolean|tinyint|byte|smallint|short|int|integer|bigint|long|float|real|double|date|timestamp|timestamp_ntz|"
    "timestamp_ltz|time|string|binary|decimal|dec|numeric|void|variant|geometry|geography"
)
_SIZED = {
    "decimal": 2,
    "dec": 2,
    "numeric": 2,
    "char": 1,
    "character": 1,
    "varchar": 1,
    "time": 1,
    "geometry": 1,
    "geography": 1,
}
"""Types that may have numbers in brackets, and how many at most."""
_UNITS = ("year", "month", "day", "hour", "minute", "second")


class _Wrong(Exception):
    """Raised with what is wrong in a schema."""


def refuse_schema(text: str) -> str:
    """Return what a schema must be, for a text that is none; "" for one that is, as far as this can be judged
    without Spark."""
    try:
        tokens = _Tokens(text)
        names = tokens.fields("")
    except _Wrong as wrong:
        return f"columns with their types, such as id BIGINT, amount DECIMAL(10,2): {wrong}"
    except RecursionError:
        return "columns with their types, and these are nested too deep"
    twice = sorted({name for name in names if names.count(name) > 1})
    return f"columns with different names; {', '.join(twice)} is there twice" if twice else ""


class _Tokens:
    """The words of a schema, and a parser that takes them one by one."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        for found in _TOKEN.finditer(text):
            quoted, word, literal, sign, other = found.groups()
            if other:
                raise _Wrong(f"{other!r} has no meaning there")
            if token := (f"`{quoted}" if quoted else word or literal or sign):
                self._tokens.append(token)
        self._at = 0

    def fields(self, end: str) -> list[str]:
        """Read columns up to ``end`` ("": the end of the text), and return their names in lower case."""
        names = []
        while True:
            names.append(self._name())
            if end and self._next() == ":":
                self._at += 1
            self._type(names[-1])
            self._options()
            if self._next() == end:
                return names
            self._expect(",", f"after the column {names[-1]}")

    def _next(self) -> str:
        return self._tokens[self._at].lower() if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._next()
        self._at += 1
        return token

    def _expect(self, token: str, place: str) -> None:
        if (found := self._take()) != token:
            raise _Wrong(f"{token} is missing {place}" + (f", before {found.lstrip('`')}" if found else ""))

    def _name(self) -> str:
        token = self._take()
        if not re.match(r"[`A-Za-z_0-9]", token):
            raise _Wrong("the name of a column is missing" + (f" before {token}" if token else " at the end"))
        return token.lstrip("`")

    def _type(self, column: str) -> None:
        """Read a type."""
        kind = self._take()
        if kind == "array":
            self._expect("<", "after ARRAY")
            self._type(column)
            self._expect(">", "after the type in ARRAY<…>")
        elif kind == "map":
            self._expect("<", "after MAP")
            self._type(column)
            self._expect(",", "between the types in MAP<…, …>")
            self._type(column)
            self._expect(">", "after the types in MAP<…, …>")
        elif kind == "struct":
            self._expect("<", "after STRUCT")
            if self._next() != ">":
                self.fields(">")
            self._at += 1
        elif kind == "interval":
            self._interval()
        elif kind in _SIZED:
            self._sizes(kind)
        elif kind == "timestamp" and self._next() in ("with", "without"):
            self._at += 1
            self._expect("time", "in the type of " + column)
            self._expect("zone", "in the type of " + column)
        elif not _PLAIN.fullmatch(kind):
            raise _Wrong(
                f"{column} has no type" if kind in ("", ",", ">") else f"{column} has the unknown type {kind.upper()}"
            )

    def _sizes(self, kind: str) -> None:
        """Read the numbers in brackets behind a type."""
        if self._next() != "(":
            if _PLAIN.fullmatch(kind):
                return
            raise _Wrong(f"{kind.upper()} has a length, such as {kind.upper()}(10)")
        self._at += 1
        for number in range(_SIZED[kind]):
            if number and self._next() != ",":
                break
            self._at += bool(number)
            if not self._take().isdigit():
                raise _Wrong(f"{kind.upper()}(…) has a number in its brackets")
        self._expect(")", f"after the numbers of {kind.upper()}")

    def _interval(self) -> None:
        """Read the units that may stand behind INTERVAL."""
        if self._next() in _UNITS:
            self._at += 1
            if self._next() == "to":
                self._at += 1
                self._take()

    def _options(self) -> None:
        """Read what may stand behind the type of a column."""
        while (option := self._next()) in ("not", "comment", "collate"):
            self._at += 1
            if option == "not":
                self._expect("null", "after NOT")
            elif not self._take():
                raise _Wrong(f"a text is missing after {option.upper()}")
