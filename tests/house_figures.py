"""Prints how the house stands: sizes, rooms, names, and how many calls one record takes.

    cd tests; ../.venv/bin/python house_figures.py
    cd tests; ../.venv/bin/python house_figures.py --docstrings 20    drawn by the commit's hash, for a reader

Nothing here is judged: ``test_tidy`` has the rules that must hold, and these figures show the trend. *Calls* are
those of functions of ``services`` and ``shared``. The record is sent to one of three replica servers without a
network (``support/replica_network.py``) and is acknowledged by all; another was sent before, so that nothing is done
for the first time. A change of module is a call from one file to another. A chain of 0 stands for rooms that import
each other.
"""

from __future__ import annotations

import ast
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import grimp

ROOT = Path(__file__).resolve().parents[1]

PACKAGES = ("tidelog", "tidelog_controller", "tidelog_gateway", "tidelog_replica")
SMALL_LINES = 60
VAGUE = ("take", "tell", "note", "look", "begin", "end")
"""Names of methods that mean something only where nothing else can be meant."""
CONTEXT = ("effects", "outbox", "settings", "timers", "session", "touch")
"""Arguments that many classes of the replica server take one by one."""


def sources() -> dict[Path, ast.Module]:
    """The modules of the product."""
    paths = [path for folder in ("shared", "services") for path in sorted((ROOT / folder).rglob("*.py"))]
    return {path: ast.parse(path.read_text()) for path in paths}


def lines_of(path: Path) -> int:
    """How long a file is."""
    return len(path.read_text().splitlines())


def classes(trees: dict[Path, ast.Module]) -> Iterator[tuple[Path, ast.ClassDef]]:
    """Every class, with its file."""
    for path, tree in trees.items():
        yield from ((path, node) for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def methods(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions in a class."""
    return [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]


def sizes(trees: dict[Path, ast.Module]) -> None:
    """Lines, modules and folders."""
    lengths = {path: lines_of(path) for path in trees}
    modules = {path: lines for path, lines in lengths.items() if path.name != "__init__.py"}
    print(f"modules: {len(modules)}, of {sum(lengths.values())} lines")
    print(f"  under {SMALL_LINES} lines: {sum(lines < SMALL_LINES for lines in modules.values())}")
    print(f"  longest: {max(modules.values())}, over 400: {sum(lines > 400 for lines in modules.values())}")
    folders = Counter(path.parent for path in modules)
    for folder, count in folders.most_common(3):
        print(f"  {count} modules in {folder.relative_to(ROOT)}")
    tests = Counter(path.parent for path in (ROOT / "tests").rglob("*.py") if path.name != "__init__.py")
    folder, count = tests.most_common(1)[0]
    print(f"  {count} files in {folder.relative_to(ROOT)}")


def rooms() -> None:
    """Imports between the rooms of each package, and the longest chain of them."""
    graph = grimp.build_graph(*PACKAGES)
    for package in PACKAGES:
        arrows: set[tuple[str, str]] = set()
        for module in graph.find_descendants(package):
            for other in graph.find_modules_directly_imported_by(module):
                if other.startswith(f"{package}."):
                    arrows.add((module.split(".")[1], other.split(".")[1]))
        between = {(one, other) for one, other in arrows if one != other}
        named = {room for arrow in arrows for room in arrow}
        print(f"{package}: {len(named)} rooms and modules, {len(between)} arrows, chain of {_longest(between)}")


def _longest(arrows: set[tuple[str, str]]) -> int:
    """Rooms on the longest way downwards; 0 where rooms import each other in a circle."""
    below: dict[str, set[str]] = {}
    for one, other in arrows:
        below.setdefault(one, set()).add(other)
    known: dict[str, int] = {}

    def depth(room: str, above: frozenset[str]) -> int:
        if room in above:
            raise RecursionError
        if room not in known:
            known[room] = 1 + max((depth(other, above | {room}) for other in below.get(room, ())), default=0)
        return known[room]

    try:
        return max((depth(room, frozenset()) for room in below), default=0)
    except RecursionError:
        return 0


def names(trees: dict[Path, ast.Module]) -> None:
    """Names that say too little, or mean two things."""
    shared = Counter(node.name for _, node in classes(trees) if not node.name.startswith("_"))
    twice = {name: count for name, count in shared.items() if count > 1}
    most = ", ".join(f"{name} x{count}" for name, count in Counter(twice).most_common(6))
    print(f"names of several classes: {len(twice)} ({most})")
    vague = Counter(each.name for _, node in classes(trees) for each in methods(node) if each.name in VAGUE)
    print("methods named " + ", ".join(f"{name}: {vague[name]}" for name in VAGUE))
    taken: Counter[str] = Counter()
    for path, node in classes(trees):
        if "replica" in path.parts:
            for each in methods(node):
                if each.name == "__init__":
                    taken.update(arg.arg for arg in each.args.args if arg.arg in CONTEXT)
    print("classes of the replica server made with " + ", ".join(f"{name}: {taken[name]}" for name in CONTEXT))


def explanation(trees: dict[Path, ast.Module]) -> None:
    """How much of the text is docstrings and comments."""
    explained = total = 0
    for path, tree in trees.items():
        text = path.read_text()
        total += len(text)
        explained += sum(len(line.strip()) for line in text.splitlines() if line.strip().startswith("#"))
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                explained += len(node.value.value)
    print(f"explanation: {explained / total:.0%} of the text")


def docstrings(trees: dict[Path, ast.Module], count: int) -> None:
    """Print docstrings of functions and classes without their code, drawn at random by the commit's hash.

    A reader who does not know the code says what each of them does."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    every = [(path.relative_to(ROOT), *each) for path, tree in trees.items() for each in _described(tree, "")]
    for path, name, text in random.Random(commit.strip()).sample(every, count):
        print(f"{path}: {name}\n    " + text.replace("\n", "\n    ") + "\n")


def _described(node: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield the qualified name and the docstring of each class and function below ``node`` that has a docstring."""
    for child in ast.iter_child_nodes(node):
        name = prefix
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{prefix}.{child.name}".lstrip(".")
            if text := ast.get_docstring(child):
                yield name, text
        yield from _described(child, name)


class Calls:
    """What a profiler sees of the product: calls, files, functions, and changes of file."""

    def __init__(self) -> None:
        self.calls = 0
        self.changes = 0
        self.functions: set[tuple[str, str]] = set()
        self._files: list[str] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event not in ("call", "return") or not file.startswith((f"{ROOT}/services/", f"{ROOT}/shared/")):
            return
        if event == "call":
            self.calls += 1
            self.changes += bool(self._files) and self._files[-1] != file
            self.functions.add((file, frame.f_code.co_qualname))
            self._files.append(file)
        elif self._files:
            self._files.pop()


def record() -> None:
    """Send one record to a leader with two followers."""
    from support.replica_network import cluster

    net = cluster()
    net.send("r1", b"first")
    net.run()
    seen = Calls()
    sys.setprofile(seen)
    try:
        net.send("r1", b"second")
        net.run()
    finally:
        sys.setprofile(None)
    files = {file for file, _ in seen.functions}
    print(
        f"one record in three replica servers: {seen.calls} calls, {len(files)} modules,"
        f" {len(seen.functions)} functions, {seen.changes} changes of module"
    )


def main() -> None:
    """Print all of it, or only docstrings."""
    trees = sources()
    if sys.argv[1:2] == ["--docstrings"]:
        docstrings(trees, int(sys.argv[2]))
        return
    sizes(trees)
    rooms()
    names(trees)
    explanation(trees)
    record()


if __name__ == "__main__":
    main()
