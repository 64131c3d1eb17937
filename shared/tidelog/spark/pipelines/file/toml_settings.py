"""Makes objects of dataclasses from the tables of a TOML text, and reports every wrong setting. Pure.

The dataclass is the grammar. A field is a setting of the same name, with ``-`` for ``_``; a field without a default
must be given. Its type says what the setting is:

| type of the field | in TOML |
|---|---|
| ``str``, ``bool``, ``int``, ``float`` | the same |
| ``tuple[str, ...]`` | an array of texts |
| ``Mapping[str, str]`` | a table of texts, numbers and truth values, all of which become texts |
| a dataclass, or a dataclass ``| None`` | a table with the settings of that dataclass |
| ``tuple[D, ...]`` of a dataclass ``D`` with a field ``name`` | tables by name: ``[key.NAME]`` |

``Annotated`` adds a ``Key`` (the setting has another name), a ``OneOf`` or a ``Grammar`` (what the text may be)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import UnionType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from tidelog.spark.pipelines.file.toml_lines import Lines, Path
from tidelog.spark.pipelines.file.variables import has_variables

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Pattern of a name of a table, an output or a plot: an identifier of SQL."""
_SIMPLE = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Key:
    """The name of a setting in TOML where it is not that of its field."""

    name: str


@dataclass(frozen=True, slots=True)
class OneOf:
    """The words that a text setting may be. "" is none of them, but may be the default."""

    words: tuple[str, ...]

    def refuse(self, text: str) -> str:
        """Return what the text should be, and is not; "" if it is one of the words."""
        return "" if text in self.words else f"one of {', '.join(self.words)}; not {text!r}"


@dataclass(frozen=True, slots=True)
class Grammar:
    """What a text setting may be: ``refuse`` returns what the text should be and is not, or "" if it may be so."""

    refuse: Callable[[str], str]


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """Something wrong in a pipeline's file: the line, which counts from 1, and what is wrong. With a ``warning`` the
    pipeline runs, but perhaps not as it is meant."""

    line: int
    text: str
    warning: bool = False

    def shown(self, file: object) -> str:
        """Return the fault as compilers write theirs: ``FILE:LINE: text``."""
        return f"{file}:{self.line}: {'warning: ' if self.warning else ''}{self.text}"


class Faults:
    """The faults found in a file so far. ``parts`` has the paths of the tables ``[section.NAME]`` with errors."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.parts: set[Path] = set()
        self._found: set[Fault] = set()

    def add(self, path: Path, text: str, *, warning: bool = False) -> None:
        """Add a fault of the setting or table at ``path``."""
        self.add_at(self.lines.of(path), path, text, warning=warning)

    def add_at(self, line: int, path: Path, text: str, *, warning: bool = False) -> None:
        """Add a fault in a line of the text at ``path``."""
        self._found.add(Fault(line, text, warning))
        if not warning:
            self.parts.add(path[:2])

    def count(self) -> int:
        """Return the number of faults."""
        return len(self._found)

    def sorted(self) -> list[Fault]:
        """Return all faults in the order of their lines."""
        return sorted(self._found)


Checks = Mapping[type, Callable[[Any], list[str]]]
"""For a dataclass the function that returns what is wrong with an object of it. A text that begins with the name of a
setting is reported at the line of that setting, any other at the line of the table."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a dataclass: its name in TOML, its field, the type of its value without what ``Annotated`` adds,
    and that."""

    key: str
    field: str
    hint: Any
    extras: tuple[Any, ...]
    required: bool


def settings_of(kind: type[Any]) -> Iterator[Setting]:
    """Yield the settings of a dataclass in the order of its fields."""
    hints = get_type_hints(kind, include_extras=True)
    for one in fields(kind):
        hint: Any = hints[one.name]
        extras: list[Any] = []
        if get_origin(hint) is Annotated:
            hint, *extras = get_args(hint)
        if get_origin(hint) is UnionType:
            hint = next(arg for arg in get_args(hint) if arg is not type(None))
        key = next((extra.name for extra in extras if isinstance(extra, Key)), one.name.replace("_", "-"))
        required = one.default is MISSING and one.default_factory is MISSING
        yield Setting(key, one.name, hint, tuple(extras), required)


def is_section(hint: Any) -> bool:
    """Return whether a type is that of tables by name: ``tuple[D, ...]`` of a dataclass."""
    return get_origin(hint) is tuple and is_dataclass(get_args(hint)[0])


class Maker:
    """Makes objects from a parsed TOML text. What is wrong is added to ``faults``, and the object is made without
    it, so that all faults are found at once."""

    def __init__(self, faults: Faults, checks: Checks) -> None:
        self._faults = faults
        self._checks = checks

    def make(self, kind: type[T], table: Mapping[str, Any], path: Path, name: str = "") -> T:
        """Return an object of the dataclass ``kind`` with the settings of the table at ``path``. ``name``: the value
        of its field ``name``, which then is no setting."""
        known = {one.key: one for one in settings_of(kind) if not (name and one.field == "name")}
        where = f"[{'.'.join(map(str, path))}]: " if path else ""
        for given in table:
            if given not in known:
                self._faults.add((*path, given), f"{where}{_unknown(given, list(known))}")
        values: dict[str, Any] = {"name": name} if name else {}
        before = self._faults.count()
        for key, one in known.items():
            value = self._value(one, table[key], (*path, key), where, key) if key in table else MISSING
            if value is not MISSING:
                values[one.field] = value
            elif one.required:
                values[one.field] = () if is_section(one.hint) else ""
        if missing := [key for key, one in known.items() if one.required and table.get(key, {}) == {}]:
            sections = [key for key in missing if is_section(known[key].hint)]
            for key in sections:
                self._faults.add(path, f"a pipeline has at least one [{key}.NAME]")
            if plain := [key for key in missing if key not in sections]:
                self._faults.add(path, f"{where}{_listed(plain)} must be given")
        made = kind(**values)
        if self._faults.count() == before:
            for text in self._checks.get(kind, lambda one: [])(made):
                subject = text.split(" ", 1)[0]
                self._faults.add((*path, subject) if subject in table else path, f"{where}{text}")
        return made

    def _value(self, setting: Setting, value: Any, path: Path, where: str, what: str) -> Any:
        """Return the value of a setting as its field keeps it, or ``MISSING`` if it is of another type."""
        hint: Any = setting.hint
        if is_section(hint):
            return self._section(get_args(hint)[0], value, path)
        if isinstance(hint, type) and is_dataclass(hint):
            if isinstance(value, dict):
                return self.make(hint, value, path)
            like = ", ".join(f"{one.key} = …" for one in settings_of(hint))
            return self._refuse(path, f"{where}{what} is a table such as {{{like}}}, not {_kind_of(value)}")
        if get_origin(hint) is tuple:
            return self._texts(value, path, f"{where}{what}")
        if hint not in _SIMPLE:
            return self._map(value, path, f"{where}{what}")
        fits = isinstance(value, (int, float) if hint is float else hint)
        if not fits or (isinstance(value, bool) and hint is not bool):
            return self._refuse(path, f"{where}{what} is {_SIMPLE[hint]}, not {_kind_of(value)}")
        for rule in setting.extras:
            if isinstance(rule, OneOf | Grammar) and not has_variables(value) and (fault := rule.refuse(value)):
                self._faults.add(path, f"{where}{what} is {fault}")
        return value

    def _section(self, kind: type, value: Any, path: Path) -> Any:
        """Return the objects of all tables ``[key.NAME]``."""
        if not isinstance(value, dict):
            return self._refuse(path, f"{path[-1]} is tables [{path[-1]}.NAME], not {_kind_of(value)}")
        made: list[Any] = []
        for name, table in value.items():
            if not NAME.fullmatch(name):
                fault = f"[{path[-1]}.{name}]: a name is letters, digits and _, and begins with no digit"
                self._faults.add((*path, name), fault)
            elif not isinstance(table, dict):
                fault = f"{path[-1]}.{name} is a table [{path[-1]}.{name}], not {_kind_of(table)}"
                self._faults.add((*path, name), fault)
            else:
                made.append(self.make(kind, table, (*path, name), name))
        return tuple(made)

    def _texts(self, value: Any, path: Path, what: str) -> Any:
        """Return an array of texts."""
        if not isinstance(value, list):
            return self._refuse(path, f"{what} is an array of texts, not {_kind_of(value)}")
        for number, one in enumerate(value):
            if not isinstance(one, str):
                self._faults.add((*path, number), f"{what} is an array of texts, and has {_kind_of(one)}")
        return tuple(map(str, value))

    def _map(self, value: Any, path: Path, what: str) -> Any:
        """Return a table of texts, numbers and truth values, with all values as texts."""
        if not isinstance(value, dict):
            return self._refuse(path, f"{what} is a table, not {_kind_of(value)}")
        for name, one in value.items():
            if not isinstance(one, str | bool | int | float):
                text = f"{what}: {name} is a text, a number, true or false; not {_kind_of(one)}"
                self._faults.add((*path, name), text)
        return {name: str(one).lower() if isinstance(one, bool) else str(one) for name, one in value.items()}

    def _refuse(self, path: Path, text: str) -> Any:
        self._faults.add(path, text)
        return MISSING


def _unknown(given: str, known: list[str]) -> str:
    """Return the fault of a setting that does not exist, with the one that is most like it, if one is."""
    close = difflib.get_close_matches(given.lower().replace("_", "-"), known, n=1)
    meant = f"do you mean {close[0]}? " if close else ""
    return f"there is no setting {given}: {meant}There are {', '.join(known)}"


def _kind_of(value: Any) -> str:
    """Return what a value of TOML is, in words, without the value itself."""
    kinds = {dict: "a table", list: "an array", str: "a text", bool: "true or false"}
    return next((words for kind, words in kinds.items() if isinstance(value, kind)), _number_or_date(value))


def _number_or_date(value: Any) -> str:
    return "a number" if isinstance(value, int | float) else "a date or time"


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
