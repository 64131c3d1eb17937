"""Finds the tables that an SQL query reads, and refuses what is no query, without Spark. Pure.

It knows words, texts, comments and brackets, not the grammar of SQL: a table is a name after FROM or JOIN, or after a
comma in the list of a FROM, unless WITH defines it in the query."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

_TOKEN = re.compile(
    r"--[^\r\n]*|/\*.*?\*/|\s+|`((?:[^`]|``)+)`|[rR](?:'[^']*'|\"[^\"]*\")|([A-Za-z_][A-Za-z_0-9]*)|"
    r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|(.)",
    re.DOTALL,
)
_WITHIN = ("extract", "trim", "substring", "substr", "overlay", "position")
"""Functions with the word FROM in their brackets."""
_ENDS = re.compile(
    "where|group|having|order|sort|cluster|distribute|limit|offset|window|union|except|intersect|minus|select|on|"
    "using|lateral|qualify"
)
"""Words that end the list of a FROM."""
_QUERIES = ("select", "with", "values", "table", "from", "map", "reduce")
"""First words of queries."""
_COMMANDS = ("insert", "merge", "update", "delete")
"""First words of commands that may follow WITH."""


@dataclass(slots=True)
class _Bracket:
    """What is known between a bracket and its end: the word before it, and whether a name of a table may follow."""

    before: str = ""
    in_from: bool = False
    expects: bool = False


@dataclass(frozen=True, slots=True)
class TableName:
    """A name of a table in a query, and the line of the query where it is, from 1."""

    name: str
    line: int = field(compare=False)


def tables_of(sql: str) -> list[TableName]:
    """Return the names of the tables that a query reads, in lower case, each once, in the order of their first place.
    Names with a database (``a.b``) are left out."""
    tokens = list(_tokens(sql))
    within = {tokens[n][0] for n in range(len(tokens)) if _is_defined(tokens, n)}
    found: dict[str, TableName] = {}
    brackets = [_Bracket()]
    for number, (word, line, is_name) in enumerate(tokens):
        here = brackets[-1]
        before = tokens[number - 1][0] if number else ""
        after = tokens[number + 1][0] if number + 1 < len(tokens) else ""
        if word == "(":
            brackets.append(_Bracket(before))
            here.expects = False
        elif word == ")":
            brackets[1:] = brackets[1:-1]
        elif word == "," and here.in_from:
            here.expects = True
        elif word == "join" or (word == "from" and before != "distinct" and here.before not in _WITHIN):
            here.in_from = here.expects = True
        elif _ENDS.fullmatch(word):
            here.in_from = here.expects = False
        elif is_name and here.expects and word != "lateral":
            here.expects = False
            if after not in (".", "(") and word not in within:
                found.setdefault(word, TableName(word, line))
    return list(found.values())


def refuse_command(sql: str) -> str:
    """Return what an SQL text should be, and is not; "" if it is a query, or empty. Spark carries out a command, such
    as INSERT OVERWRITE DIRECTORY, as soon as it analyses it."""
    tokens = list(_tokens(sql))
    first = next((word for word, _, _ in tokens if word != "("), "")
    fault = "a query, which begins with SELECT or WITH; not a command"
    if tokens and first not in _QUERIES:
        return fault
    depth, before = 0, ""
    for (word, _, _), (after, _, _) in pairwise([*tokens, ("", 0, False)]):
        depth += (word == "(") - (word == ")")
        if (not depth and before == ")" and word in _COMMANDS) or (
            word == "insert" and after in ("into", "overwrite")
        ):
            return fault
        before = word
    return ""


def _is_defined(tokens: list[tuple[str, int, bool]], number: int) -> bool:
    """Return whether the word is the name of a query in WITH: ``NAME AS (``."""
    words = [word for word, _, _ in tokens[number + 1 : number + 3]]
    before = tokens[number - 1][0] if number else ""
    return tokens[number][2] and words == ["as", "("] and before in ("with", ",", "recursive")


def _tokens(sql: str) -> Iterator[tuple[str, int, bool]]:
    """Yield the words and signs of a query as (text in lower case, line, whether it is a name)."""
    line = 1
    for found in _TOKEN.finditer(sql):
        quoted, word, sign = found.groups()
        if quoted or word or sign:
            yield (quoted or word or sign).lower(), line, not sign
        line += found[0].count("\n")
