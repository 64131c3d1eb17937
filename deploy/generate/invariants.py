"""The index of invariants and rules (``docs/invariants.md``): what each demands, and its modules, tests and mutants.

Nothing is listed by hand here. Sentences and modules of the invariants are in
``shared/tidelog/testing/invariants/replication.py``, sentences of the numbered rules in ``tests/mutants/rules.py``,
everything else at the mutants (``@breaks``):

    module    the one whose function or class a mutant replaces; of an invariant what its table says
    test      the scenarios and unit tests that noticed a mutant (``tests/mutants/records.json``) or that it names,
              and the simulation's or the model's functions that demand an invariant
    mutant    the ones that cite the rule; of an invariant also those that were seen as its violation
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import sys
import textwrap
import types
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
sys.path[:0] = [folder for folder in (str(TESTS), str(ROOT / "deploy")) if folder not in sys.path]

from model.mutants import DESIGN  # noqa: E402
from mutants import MUTANTS  # noqa: E402
from mutants.rules import RULES, Mutant  # noqa: E402
from tidelog.testing.invariants.replication import INVARIANTS  # noqa: E402

CHECKERS = (TESTS / "model", ROOT / "shared" / "tidelog" / "testing")
"""Where the functions are that demand invariants."""
RECORDS = TESTS / "mutants" / "records.json"
PACKAGES = ("tidelog", "tidelog_controller", "tidelog_replica", "tidelog_gateway")
PLACES = {
    "tidelog": "shared/tidelog",
    "tidelog_controller": "services/controller/tidelog_controller",
    "tidelog_replica": "services/replica/tidelog_replica",
    "tidelog_gateway": "services/gateway/tidelog_gateway",
}
NONE: dict[tuple[str, str], str] = {}
"""Reason why an invariant or numbered rule has no ``modules``, ``tests`` or ``mutants``, by (id, which of these)."""
WIDTH = 100
HEAD = """\
# Invariants and rules

Generated from the code by `make pages`. *Invariants* must hold after every step of every process;
the simulation and the models check them. *Rules* are what the product does so that they hold. A
*mutant* is the code with one rule broken on purpose, and some test must fail then
([mutants](lab/mutants.md)). The terms are explained in
[vocabulary.md](vocabulary.md).

- *Kept by*: the modules with the code of the rule: those that its mutants change. For invariants
  only the modules where a reader should begin.
- *Shown by*: the tests that failed when the rule was broken, the unit tests written for it, and
  for invariants the functions that demand them in the simulation and the models.
- *Broken by*: the mutants, each with the file that it is in. `M_…` are mutants of the design
  (`tests/model/replication.pml`)."""
INVARIANTS_HEAD = """\
## Invariants

The ids stand in texts of violations, in names of tests and in docstrings. Sentences and modules
are in [replication.py](../shared/tidelog/testing/invariants/replication.py)."""
RULES_HEAD = """\
## Numbered rules

Small model checks showed that each of them is needed: without it acknowledged records are lost
within 5 to 14 steps, or a reader gets an end that is too old. The sentences are in
[tests/mutants/rules.py](../tests/mutants/rules.py). (What docstrings call "rule 1 of the producer"
is in [protocol.md](protocol.md).)"""
OTHERS_HEAD = """\
## Other rules with a mutant

By the source that the mutant cites: a KIP, a section of the Raft paper or dissertation, a
[decision](decisions), a scenario, a system, or a word for the part of the product."""


@dataclass(slots=True)
class Entry:
    """The facts of one invariant or rule on the page."""

    sentence: str
    modules: dict[str, None] = field(default_factory=dict)
    """Paths of modules from the root of the repository, in order."""
    tests: dict[tuple[str, str], None] = field(default_factory=dict)
    """(text that the page shows, path) of each test."""
    mutants: dict[tuple[str, str], None] = field(default_factory=dict)
    """(name, path) of each mutant."""


class Recorder:
    """A ``MonkeyPatch`` that also records which modules of the product define what a mutant replaces."""

    def __init__(self) -> None:
        self._patch = pytest.MonkeyPatch()
        self.modules: dict[str, None] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._patch, name)

    def setattr(self, target: Any, name: Any, *value: Any, **options: Any) -> None:
        """Replace an attribute, and record the module that defined it."""
        if isinstance(target, str):
            module, _, attribute = target.rpartition(".")
            self._note(importlib.import_module(module), attribute)
        else:
            self._note(target, name)
        self._patch.setattr(target, name, *value, **options)

    def setitem(self, table: Any, key: Any, value: Any) -> None:
        """Replace an entry of a table of functions, and record the module of the function."""
        self.modules[table[key].__module__] = None
        self._patch.setitem(table, key, value)

    def _note(self, target: Any, name: str) -> None:
        home = target.__name__ if isinstance(target, types.ModuleType) else ""
        if isinstance(target, types.ModuleType):
            value = vars(target).get(name)
            own = getattr(value, "__module__", None) if isinstance(value, types.FunctionType | type) else None
            home = own if own is not None and own.startswith(PACKAGES) else home
        elif isinstance(target, type):
            home = next((one.__module__ for one in target.__mro__ if name in vars(one)), target.__module__)
        if home.startswith(PACKAGES):
            self.modules[home] = None


@cache
def modules_of(mutant: Mutant) -> tuple[str, ...]:
    """Return the paths of the modules whose code the mutant replaces. Applies the mutant and undoes it."""
    recorder = Recorder()
    try:
        mutant.apply(recorder)  # type: ignore[arg-type]
    finally:
        recorder.undo()
    return tuple(map(path_of, (*mutant.where, *(name for name in recorder.modules if not mutant.where))))


def path_of(module: str) -> str:
    """Return the path of a module of the product, from the root of the repository."""
    package, _, rest = module.partition(".")
    path = f"{PLACES[package]}/{rest.replace('.', '/')}" if rest else PLACES[package]
    return f"{path}.py" if (ROOT / f"{path}.py").exists() else f"{path}/__init__.py"


@cache
def _test_files() -> dict[tuple[str, str], str]:
    """Return the file of each test function of units and scenarios, by folder and name."""
    found: dict[tuple[str, str], str] = {}
    for path in sorted(path for folder in ("unit", "scenarios") for path in (TESTS / folder).rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found[path.relative_to(TESTS).parts[0], node.name] = _from_root(path)
    return found


def tests_of(mutant: Mutant) -> Iterator[tuple[str, str]]:
    """Yield the tests that have noticed a mutant, and the modules of unit tests that it names, as (text, path)."""
    record = _records().get(mutant.name, {})
    for kind in ("scenario", "paper", "unit"):
        case = record.get(kind, "").partition("[")[0]
        folder = "scenarios" if kind == "scenario" else "unit"
        if (folder, case) in _test_files():
            yield case.removeprefix("test_").replace("_", " "), _test_files()[folder, case]
        elif case == "power losses":
            yield "power losses of the real disk", f"tests/crash_points/{'store' if mutant.store else 'replay'}.py"
    for name in mutant.tests:
        path = f"tests/{name.replace('.', '/')}.py"
        yield path.rpartition("/")[2], path
    if record.get("seed", -1) >= 0:
        yield "the simulation", "shared/tidelog/testing/runner.py"
    if record.get("walk", -1) >= 0:
        walks = "tests/unit/controller/raft/test_random_walks.py" if mutant.raft else "tests/model/walks.py"
        yield "random walks", walks


@cache
def _records() -> dict[str, dict[str, Any]]:
    return json.loads(RECORDS.read_text())  # type: ignore[no-any-return]


@cache
def _demands() -> dict[str, list[tuple[str, str]]]:
    """Return the functions of simulation and models that demand an invariant: id -> (function, path)."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for path in [path for folder in CHECKERS for path in sorted(folder.rglob("*.py"))]:
        if path.name.startswith("test_"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                cited = set(re.findall(r"\bR\d+\b", ast.get_docstring(node) or ""))
                for id in {id for text in _texts(node) for id in re.findall(r"^(R\d+|RAFT)\b[ :]", text)} | cited:
                    found[id].append((f"`{node.name}`", _from_root(path)))
    return found


@cache
def _named() -> dict[str, list[tuple[str, str]]]:
    """Return the unit tests and scenarios whose names begin with the id of an invariant: id -> (rest of the name,
    path)."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for (_, test), path in _test_files().items():
        if (match := re.match(r"test_(R\d+|RAFT)_(.*)", test)) is not None:
            found[match[1]].append((match[2].replace("_", " "), path))
    return found


def _texts(function: ast.AST) -> Iterator[str]:
    documented = ast.get_docstring(function, clean=False) if isinstance(function, ast.FunctionDef) else None
    for node in ast.walk(function):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value != documented:
            yield node.value


def _file_of(mutant: Mutant) -> str:
    return f"tests/{mutant.apply.__module__.replace('.', '/')}.py"


def _add(entry: Entry, mutant: Mutant, with_modules: bool = True) -> None:
    entry.mutants[mutant.name, _file_of(mutant)] = None
    entry.tests.update(dict.fromkeys(tests_of(mutant)))
    if with_modules:
        entry.modules.update(dict.fromkeys(modules_of(mutant)))


def sources_of(mutant: Mutant) -> tuple[str, ...]:
    """Return what a mutant cites: each invariant and numbered rule by itself, then the rest as one text."""
    parts = mutant.source.split(", ")
    known = [part for part in parts if part in RULES or part in INVARIANTS]
    rest = ", ".join(part for part in parts if part not in known)
    return (*known, *([rest] if rest else ()))


def invariants() -> dict[str, Entry]:
    """Return the facts of every invariant, by id."""
    entries = {}
    for id, invariant in INVARIANTS.items():
        entry = entries[id] = Entry(invariant.sentence, dict.fromkeys(map(path_of, invariant.kept_by)))
        entry.tests.update(dict.fromkeys((*_demands()[id], *_named()[id])))
        for mutant in MUTANTS.values():
            seen = re.match(r"(?:Violation: )?(R\d+|RAFT)\b", _records().get(mutant.name, {}).get("told", ""))
            if id in sources_of(mutant) or (seen is not None and seen[1] == id):
                _add(entry, mutant, with_modules=False)
    return entries


def numbered() -> dict[str, Entry]:
    """Return the facts of every numbered rule, by name."""
    entries = {name: Entry(sentence) for name, sentence in RULES.items()}
    for mutant in MUTANTS.values():
        for source in sources_of(mutant):
            if source in entries:
                _add(entries[source], mutant)
    for name, design in DESIGN.items():
        if design.source in entries:
            entries[design.source].mutants[name, "tests/model/mutants.py"] = None
    return entries


def others() -> dict[str, list[Entry]]:
    """Return the facts of every other rule that has a mutant, by its source, in order. Mutants with one sentence are
    one rule."""
    found: dict[str, dict[str, Entry]] = defaultdict(dict)
    for mutant in MUTANTS.values():
        for source in sources_of(mutant):
            if source not in RULES and source not in INVARIANTS:
                _add(found[source].setdefault(mutant.rule, Entry(mutant.rule)), mutant)
    found |= {design.source: {} for design in DESIGN.values() if design.source not in {*RULES, *INVARIANTS, *found}}
    return {source: list(rules.values()) for source, rules in sorted(found.items(), key=lambda one: _key(one[0]))}


def page() -> str:
    """Return the whole page."""
    parts = [HEAD, INVARIANTS_HEAD]
    for id, entry in invariants().items():
        parts += [f"### {id}: {INVARIANTS[id].title}", _wrapped(entry.sentence), _facts(id, entry)]
    parts.append(RULES_HEAD)
    for name, entry in numbered().items():
        parts += [f"### {name.capitalize()}", _wrapped(entry.sentence), _facts(name, entry)]
    parts.append(OTHERS_HEAD)
    for source, entries in others().items():
        parts.append(f"### {source[0].upper()}{source[1:]}")
        if (decision := _decision(source)) is not None:
            parts.append(f"[{decision.name}](decisions/{decision.name})")
        parts.append("\n".join([*map(_other, entries), *_of_design(source)]))
    return "\n\n".join(parts) + "\n"


def _facts(id: str, entry: Entry) -> str:
    lines = []
    for label, kind in (("Kept by", "modules"), ("Shown by", "tests"), ("Broken by", "mutants")):
        links = _links(getattr(entry, kind))
        lines.append(_wrapped(f"- {label}: {links or 'none: ' + NONE[id, kind]}", "  "))
    return "\n".join(lines)


def _other(entry: Entry) -> str:
    text = f"- **{entry.sentence}** Kept by {_links(entry.modules)}. "
    text += f"Shown by {_links(entry.tests)}. Broken by {_links(entry.mutants)}."
    return _wrapped(text, "  ")


def _of_design(source: str) -> Iterator[str]:
    """Yield a line for each rule of the design that cites a source, with its mutant."""
    for name, design in DESIGN.items():
        if design.source == source:
            text = f"- **{design.rule}** A rule of the design: kept, shown and broken in "
            text += "[model/replication.pml](../tests/model/replication.pml), "
            yield _wrapped(f"{text}by `{name}` in [model/mutants.py](../tests/model/mutants.py).", "  ")


def _links(found: dict[Any, None]) -> str:
    """Return links to files; if several things are in one file, the last has the link."""
    by_path: dict[str, list[str]] = defaultdict(list)
    for one in found:
        if isinstance(one, str):
            by_path[one].append("")
        else:
            by_path[one[1]].append(f"`{one[0]}`" if re.fullmatch(r"\w*_\w*", one[0]) else one[0])
    links = []
    for path, texts in by_path.items():
        said = [text for text in texts if text and text != path.rpartition("/")[2]]
        link = f"[{_short(path)}](../{path})"
        links.append(f"{', '.join(said)} in {link}" if said else link)
    return "; ".join(links)


def _short(path: str) -> str:
    """Return the path as a reader names it: a module from its package on, a test by its file."""
    for package, place in PLACES.items():
        if path.startswith(f"{place}/"):
            return f"{package.removeprefix('tidelog_')}/{path.removeprefix(place + '/')}"
    return path.removeprefix("tests/").removeprefix("unit/").removeprefix("scenarios/")


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _decision(source: str) -> Path | None:
    number = re.fullmatch(r"decision (\d+)", source)
    return next((ROOT / "docs" / "decisions").glob(f"{int(number[1]):04}-*.md"), None) if number else None


def _key(source: str) -> tuple[Any, ...]:
    return tuple(
        (0, int(part), "") if part.isdigit() else (1, 0, part.lower()) for part in re.split(r"(\d+)", source)
    )


def _from_root(path: Path) -> str:
    return str(path.relative_to(ROOT))
