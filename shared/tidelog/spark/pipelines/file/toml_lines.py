"""Finds the line of every key of a TOML text, which ``tomllib`` does not tell. Pure.

The text must be one that ``tomllib`` has accepted: the scanner here checks nothing."""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_left
from dataclasses import dataclass, field

Path = tuple[str | int, ...]
"""Place of a value in a TOML text: the names of tables and the key, and for an item of an array its number."""

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_BASIC = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_LITERAL = re.compile(r"'[^'\n]*'")
_LONG_BASIC = re.compile(r'"""(?:[^\\]|\\.)*?""""{0,2}', re.DOTALL)
_LONG_LITERAL = re.compile(r"'''.*?''''{0,2}", re.DOTALL)
_SCALAR = re.compile(r"[^,\]}#\n]*")
_BREAK = re.compile(r"\\[ \t\r]*\n\s*|\\.|\n", re.DOTALL)
"""In a text between three quotes: a backslash at the end of a line, an escape, or a line break."""


@dataclass(slots=True)
class Lines:
    """The lines of a TOML text, which count from 1: of every table and key by its path (``keys``), and of every line
    of a text that is a value (``texts``)."""

    keys: dict[Path, int] = field(default_factory=dict)
    texts: dict[Path, tuple[int, ...]] = field(default_factory=dict)

    def of(self, path: Path) -> int:
        """Return the line of a table or key; if there is none with that path, the line of the nearest table that
        would hold it, and 1 at the top."""
        while path and path not in self.keys:
            path = path[:-1]
        return self.keys.get(path, 1)

    def within(self, path: Path, line: int) -> int:
        """Return the line of the file where the ``line``-th line of the text at ``path`` is; the nearest one if the
        text has fewer lines."""
        lines = self.texts.get(path) or (self.of(path),)
        return lines[max(0, min(line, len(lines)) - 1)]


def scan(text: str) -> Lines:
    """Return the lines of all tables, keys and texts of a valid TOML text."""
    return _Scanner(text).scan()


class _Scanner:
    """Reads a TOML text from its beginning to its end and notes where things are."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._breaks = [found.start() for found in re.finditer("\n", text)]
        self._arrays: dict[Path, int] = {}
        self._found = Lines()

    def scan(self) -> Lines:
        table: Path = ()
        while self._skip() < len(self._text):
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)
        return self._found

    def _line(self) -> int:
        return bisect_left(self._breaks, self._at) + 1

    def _skip(self) -> int:
        """Move over white space, line breaks and comments; return the place behind them."""
        found = _BLANK.match(self._text, self._at)
        self._at = found.end() if found else self._at
        return self._at

    def _take(self, pattern: re.Pattern[str]) -> str:
        """Return the part of the text that matches here, and move behind it."""
        found = pattern.match(self._text, self._at)
        assert found is not None, f"no TOML at {self._at}"
        self._at = found.end()
        return found[0]

    def _header(self) -> Path:
        """Read ``[a.b]`` or ``[[a.b]]``, and return the path of its table."""
        line, array = self._line(), self._text.startswith("[[", self._at)
        self._at += 2 if array else 1
        path: Path = ()
        keys = self._keys()
        for number, key in enumerate(keys):
            path = (*path, key)
            self._found.keys.setdefault(path, line)
            if array and number == len(keys) - 1:
                self._arrays[path] = self._arrays.get(path, -1) + 1
            if path in self._arrays:
                path = (*path, self._arrays[path])
        self._found.keys[path] = line
        self._at += 2 if array else 1
        return path

    def _keys(self) -> list[str]:
        """Read a key with its dots, and return its parts."""
        keys: list[str] = []
        while True:
            self._skip()
            if self._text[self._at] in "\"'":
                quoted = self._take(_BASIC if self._text[self._at] == '"' else _LITERAL)
                keys.append(tomllib.loads(f"key = {quoted}")["key"])
            else:
                keys.append(self._take(_BARE))
            self._skip()
            if self._text[self._at] != ".":
                return keys
            self._at += 1

    def _pair(self, table: Path) -> None:
        """Read ``key = value`` of a table."""
        self._skip()
        line = self._line()
        path = table
        for key in self._keys():
            path = (*path, key)
            self._found.keys.setdefault(path, line)
        self._at += 1
        self._value(path)

    def _value(self, path: Path) -> None:
        """Read the value of a key, or an item of an array."""
        self._skip()
        self._found.keys.setdefault(path, self._line())
        match self._text[self._at]:
            case "[":
                self._list(path)
            case "{":
                self._table(path)
            case '"' | "'":
                self._string(path)
            case _:
                self._take(_SCALAR)

    def _list(self, path: Path) -> None:
        self._at += 1
        number = 0
        while self._text[self._skip()] != "]":
            self._value((*path, number))
            number += 1
            if self._text[self._skip()] == ",":
                self._at += 1
        self._at += 1

    def _table(self, path: Path) -> None:
        self._at += 1
        while self._text[self._skip()] != "}":
            self._pair(path)
            if self._text[self._skip()] == ",":
                self._at += 1
        self._at += 1

    def _string(self, path: Path) -> None:
        """Read a text, and note in which line of the file each of its lines begins."""
        line = self._line()
        quote = self._text[self._at]
        if not self._text.startswith(quote * 3, self._at):
            self._take(_BASIC if quote == '"' else _LITERAL)
            lines = [line]
        else:
            raw = self._take(_LONG_BASIC if quote == '"' else _LONG_LITERAL)[3:-3]
            if first := re.match(r"\r?\n", raw):
                raw, line = raw[first.end() :], line + 1
            lines = [line]
            for found in (_BREAK if quote == '"' else re.compile("\n")).finditer(raw):
                line += found[0].count("\n")
                if found[0] in ("\n", "\\n"):
                    lines.append(line)
        self._found.texts[path] = tuple(lines)
