"""House rules about words that a machine can check: what docstrings and pages cite exists, every invariant and
numbered rule has its module, test and mutant, and a docstring can be read alone."""

from __future__ import annotations

import ast
import io
import re
import runpy
import subprocess
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tidelog.cli.conformance.suite import CASES
from tidelog.verify.anomalies import KINDS

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(
    path for folder in ("shared", "services", "deploy", "tests") for path in (ROOT / folder).rglob("*.py")
)
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests").rglob("*.md")])

FILE = re.compile(r"(?<![\w./*<{:-])((?:\.\./)*[\w-][\w./-]*\.(?:py|md|cddl|pml|csv))\b(?![\w*])")
SCENARIO = re.compile(r"(?<![\w.-])([A-E]\d{1,2})\b(?![.-]?\w)")
INVARIANT = re.compile(r"(?<![\w.-])(R\d{1,2})\b(?![.-]?\w)")
RULE = re.compile(r"\brules? (\d+)(?: (?:to|and) (\d+))?( of the producer)?", re.IGNORECASE)
DECISION = re.compile(r"\bdecisions? (\d+)(?: (?:to|and) (\d+))?")
SECTION = re.compile(r"(docs/[\w-]+\.md)`*, \"([^\"]+)\"")
MODULE = re.compile(r"``(tidelog(?:_controller|_replica|_gateway)?(?:\.[A-Za-z_]+)+)(?:``|\()")
CITED_PAGE = re.compile(r"\b(R\d+|rule \d+)(?:(?:,| and) R\d+)* of `+(docs/[\w-]+\.md)`+", re.IGNORECASE)

ELSEWHERE = {
    "file.py": "a file of the user, in the command line of an example",
    "setup.py": "of raftos",
    "tidelog.cddl": "a file, and no module",
    "tidelog.d.ts": "a file, and no module",
    "tidelog.zip": "a file, and no module",
}
"""What docstrings and pages name and what is not a file or module of this repository."""
BEGINNING = re.compile(r"(The same|The opposite|See|It broke|Likewise|And|As above|As before)\b")
LEAST_WORDS = 3
SERVICES = {"services", "tidelog_controller", "tidelog_replica", "tidelog_gateway"}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def index() -> dict[str, Any]:
    """The program that writes ``docs/invariants.md``."""
    return runpy.run_path(str(ROOT / "deploy" / "generate" / "invariants.py"))


@cache
def files() -> tuple[str, ...]:
    """Every file that is kept in the repository, or would be, from the root."""
    kept = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
    found = subprocess.run(kept, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    return tuple(file for file in found if (ROOT / file).is_file())


@cache
def scenarios() -> frozenset[str]:
    """The ids of scenarios, by the names of their tests, and those of anomalies in histories."""
    tests = [path for folder in ("scenarios", "unit", "real") for path in (ROOT / "tests" / folder).rglob("*.py")]
    found = {id for path in tests for id in re.findall(r"\bdef test_([A-E]\d+)_", path.read_text())}
    return frozenset(found | {kind.letter for kind in KINDS.values()})


def words_of(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings, also of attributes, and comments, each with its line."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def is_there(cited: str, source: Path) -> bool:
    """Whether a path names a file: from the root, or by its end, where a service does not mean another service."""
    if cited in ELSEWHERE:
        return True
    if cited.startswith("../"):
        return (source.parent / cited).exists()
    own = name(source).split("/")[:2]
    found = [file.split("/") for file in files() if file == cited or file.endswith(f"/{cited}")]
    others = [file for file in found if own[0] == file[0] == "services" and own != file[:2]]
    return len(found) > len(others) or ("/".join(cited.split("/")[:1]) in SERVICES and bool(found))


def is_a_module(cited: str) -> bool:
    """Whether a dotted name is a module of the product, or a word in one."""
    parts = cited.split(".")
    place = ROOT / index()["PLACES"][parts[0]]
    for number, part in enumerate(parts[1:], 1):
        module = place / f"{part}.py"
        if module.exists():
            rest = parts[number + 1 : number + 2]
            return not rest or re.search(rf"\b{rest[0]}\b", module.read_text()) is not None
        if not (place / part).is_dir():
            package = place / "__init__.py"
            return package.exists() and re.search(rf"\b{part}\b", package.read_text()) is not None
        place /= part
    return True


def faults_of(text: str, source: Path) -> Iterator[str]:
    """What a text cites and that is not there."""
    invariants, rules = index()["INVARIANTS"], index()["RULES"]
    for cited in FILE.findall(text):
        if not is_there(cited, source):
            yield f"{cited}: no such file"
    for id in INVARIANT.findall(text):
        if id not in invariants:
            yield f"{id}: no such invariant"
    for id in SCENARIO.findall(text):
        if id not in scenarios():
            yield f"{id}: no such scenario"
    for first, last, producer in RULE.findall(text):
        for number in filter(None, (first, last)):
            if producer and not re.search(rf"^{number}\. ", (ROOT / "docs/protocol.md").read_text(), re.MULTILINE):
                yield f"rule {number} of the producer is not in docs/protocol.md"
            if not producer and f"rule {number}" not in rules:
                yield f"rule {number}: no such rule"
    for number in filter(None, (number for found in DECISION.findall(text) for number in found)):
        if not any((ROOT / "docs" / "decisions").glob(f"{int(number):04}-*.md")):
            yield f"decision {number}: no such decision"
    for module in MODULE.findall(text):
        if module not in ELSEWHERE and not is_a_module(module):
            yield f"{module}: no such module, or nothing of that name in it"
    for page, heading in SECTION.findall(" ".join(text.split())):
        if not re.search(rf"^#+ {re.escape(heading)}", (ROOT / page).read_text(), re.MULTILINE):
            yield f"{page} has no section {heading!r}"
    for id, page in CITED_PAGE.findall(" ".join(text.split())):
        if not re.search(rf"^### {id}\b", (ROOT / page).read_text(), re.MULTILINE | re.IGNORECASE):
            yield f"{id} does not stand in {page}"


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_everything_that_a_docstring_cites_exists(path: Path) -> None:
    found = [f"line {line}: {fault}" for line, text in words_of(path) for fault in faults_of(text, path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_everything_that_a_page_cites_exists(page: Path) -> None:
    """Of files only those in backticks: links are looked up by ``test_tidy.py``. A file that the page tells its
    reader to save is there."""
    text = page.read_text()
    saved = re.findall(r"\b[Ss]ave\s+this\s+as\s+`([^`]+)`", text)
    found = [
        f"{cited}: no such file"
        for cited in re.findall(rf"`{FILE.pattern}`", text)
        if cited not in saved and not is_there(cited, page)
    ]
    found += [f"{id}: no such invariant" for id in INVARIANT.findall(text) if id not in index()["INVARIANTS"]]
    found += [f"{id}: no such scenario" for id in SCENARIO.findall(text) if id not in scenarios()]
    assert not found, "\n".join(found)


def test_the_cases_that_rules_name_exist() -> None:
    """A rule of a page names the case of ``tidelog conformance`` that shows it: *(faults.the_leader_is_killed)*."""
    cited = {
        (page.name, case)
        for page in PAGES
        for case in re.findall(r"\*\(?([a-z]+\.[a-z_]+_[a-z_]+)\)?\*", page.read_text())
    }
    assert len(cited) > 20
    assert {(page, case) for page, case in cited if case not in CASES} == set()


def test_references_of_the_map_lead_somewhere() -> None:
    """The table "Where is ...?" names files by links that are defined below it."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    section = text.split("## Where is …?\n")[1].split("\n## ")[0]
    rows = [row for row in section.split("\n") if row.startswith("| ")][1:]
    targets = dict(re.findall(r"^\[([^\]]+)\]: (\S+)$", text, re.MULTILINE))
    assert len(rows) >= 30
    for row in rows:
        links = re.findall(r"\[([^\]]+)\]", row.split("|")[2])
        assert links, f"no file in {row}"
        for link in links:
            assert link in targets, f"{link} is not defined"
            assert (ROOT / "docs" / targets[link]).is_file(), f"{link} leads to {targets[link]}"


def test_the_vocabulary_names_identifiers_that_the_code_has() -> None:
    """An entry may give a name in the code; a rename must change the entry, too."""
    text = " ".join((ROOT / "docs" / "vocabulary.md").read_text().split())
    code = "\n".join(path.read_text() for path in SOURCES if name(path).startswith(("services/", "shared/")))
    noted = re.findall(r"in the code: ([^)]*)\)", text)
    identifiers = {found for part in noted for found in re.findall(r"`([\w-]+…?)`", part)}
    assert len(identifiers) > 9
    missing = {one for one in identifiers if not re.search(rf"\b{one.removesuffix('…')}", code)}
    assert not missing


@pytest.mark.parametrize("kind", ["modules", "tests", "mutants"])
def test_every_invariant_and_rule_has_its_module_test_and_mutant(kind: str) -> None:
    program = index()
    entries = program["invariants"]() | program["numbered"]()
    bare = {id for id, entry in entries.items() if not getattr(entry, kind)}
    listed = {id for id, column in program["NONE"] if column == kind}
    assert bare - listed == set(), f"without {kind}"
    assert listed - bare == set(), f"have {kind}, and NONE says that they have none"
    for entry in (entry for entries in program["others"]().values() for entry in entries):
        assert getattr(entry, kind), f"{entry.sentence} has no {kind}"


def test_the_numbered_rules_are_numbered_without_a_gap() -> None:
    rules = list(index()["RULES"])
    assert rules == [f"rule {number}" for number in range(1, len(rules) + 1)]
    invariants = [id for id in index()["INVARIANTS"] if id != "RAFT"]
    assert invariants == [f"R{number}" for number in range(1, len(invariants) + 1)]


def documented(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Docstrings of a module, its classes and its functions, each with a name, in one line."""

    def within(node: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                full = f"{prefix}{child.name}"
                yield full, " ".join((ast.get_docstring(child) or "").split())
                yield from within(child, f"{full}.")
            else:
                yield from within(child, prefix)

    yield "the module", " ".join((ast.get_docstring(tree) or "").split())
    yield from within(tree, "")


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_docstring_can_be_read_alone(path: Path) -> None:
    """It begins with a verb or noun that has a meaning without the docstring before it, and says something."""
    found = {full: text for full, text in documented(ast.parse(path.read_text())) if text}
    bad = {
        full
        for full, text in found.items()
        if BEGINNING.match(text) or len(re.findall(r"\w[\w'.-]*", text)) < LEAST_WORDS
    }
    assert not bad, {full: found[full] for full in bad}
