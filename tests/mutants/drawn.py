"""Mutants that are drawn at random: ``python -m mutants.drawn``.

The mutants of ``rules.py`` break rules that somebody thought of. These mutants do not depend on that: a generator
with a fixed seed draws 60 places in the safety modules, 20 of each kind. ``--draw`` writes the list ``drawn.json``,
which is committed before any mutant is run, so that nobody can choose.

    comparison   the boundary moves (``<`` and ``<=``), the sense turns (``==`` and ``!=``, ``in``, ``is``)
    extreme      ``max`` and ``min`` are exchanged
    order        two statements in a row that are calls are exchanged

Each mutant is made in a copy of the sources, and the quick engines run there, one after the other until one fails:
the unit tests that name the module, the scenarios, the power losses of the real disk, random walks, seeds of the
simulation, all unit tests. An engine that does not end in time counts as one that fails. ``drawn_results.json``
stores the results. A place is identified by module, function, text and number, not by its line; if it no longer
exists, the outcome is ``gone``.
"""

from __future__ import annotations

import argparse
import ast
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parent.parent.parent
LIST = Path(__file__).with_name("drawn.json")
RESULTS = Path(__file__).with_name("drawn_results.json")
SEED = 20
EACH = 20
"""The number of places that are drawn of each kind."""
ENGINE_TIMEOUT_S = 1800
MEMORY_BYTES = 16 << 30
"""The largest address space of an engine, since a mutant may allocate memory without end."""

REPLICA = "services/replica/tidelog_replica"
CONTROLLER = "services/controller/tidelog_controller"
GATEWAY = "services/gateway/tidelog_gateway"
SAFETY = (
    *(
        f"{REPLICA}/storage/{name}.py"
        for name in (
            "checkpoints",
            "compaction",
            "flush",
            "log",
            "producer_snapshots",
            "segment_list",
            "retention",
            "segment",
            "segment_scrub",
            "tail_cache",
        )
    ),
    *(
        f"{REPLICA}/replication/{name}.py"
        for name in (
            "follower_state",
            "isr",
            "leader_state",
            "leader_epochs",
            "leadership_confirmation",
            "producer_state",
            "progress",
            "transaction_index",
        )
    ),
    *(
        f"{REPLICA}/partition/{name}.py"
        for name in (
            "follower_replica",
            "leader_replica",
            "partition",
            "pending_reads",
            "produce_admission",
            "purgatory",
            "transaction_gate",
        )
    ),
    *(f"{REPLICA}/coordinators/groups/{name}.py" for name in ("coordinator", "group")),
    *(
        f"{REPLICA}/coordinators/transactions/{name}.py"
        for name in ("coordinator", "markers", "service", "transaction")
    ),
    *(f"{REPLICA}/storage/recovery/{name}.py" for name in ("damage", "recovery", "reset")),
    *(f"{REPLICA}/assignment/{name}.py" for name in ("assignment", "isr_proposals")),
    *(
        f"{REPLICA}/maintenance/{name}.py"
        for name in ("checkpointer", "log_cleaner", "log_deletion", "log_opener", "log_repairer")
    ),
    f"{REPLICA}/coordinators/runtime.py",
    *(f"{REPLICA}/registration/{name}.py" for name in ("incarnations", "session")),
    *(f"{CONTROLLER}/{name}.py" for name in ("metadata_log", "rescue", "storage")),
    *(
        f"{CONTROLLER}/metadata/{name}.py"
        for name in ("application", "changeset", "client_sessions", "registry", "state", "state_machine")
    ),
    *(f"{CONTROLLER}/active/{name}.py" for name in ("leader_replacement", "server_sessions")),
    *(
        f"{CONTROLLER}/raft/{name}.py"
        for name in (
            "bootstrap",
            "effects",
            "leadership_transfer",
            "log",
            "membership",
            "progress",
            "raft",
            "read_index",
            "snapshot_transfer",
            "snapshots",
        )
    ),
    *(
        f"{CONTROLLER}/metadata/rules/{name}.py"
        for name in ("leader_election", "partitions", "reassignment", "servers")
    ),
    f"{GATEWAY}/cluster_view.py",
    *(f"{GATEWAY}/produce/{name}.py" for name in ("queues", "router")),
    *(f"{GATEWAY}/consume/{name}.py" for name in ("subscriptions", "tail_cache")),
    "shared/tidelog/runtime/disk.py",
    "shared/tidelog/batch/format.py",
)
"""Modules in which a mistake can lose, duplicate or change an acknowledged record, or return a record that was never
acknowledged."""

COMPARISON, EXTREME, ORDER = KINDS = ("comparison", "extreme", "order")
_OTHERS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A comparison, a call of ``max`` or ``min``, or two statements in a row of a safety module, which can be
    mutated."""

    kind: str
    module: str
    function: str
    """Qualified by classes and outer functions; "" in the module's body."""
    text: str
    """The code, as ``ast.unparse`` writes it; for ``order``, both statements, one on each line."""
    number: int
    """The number among equal texts in one function, from 0; in a chain of comparisons, each operator counts."""

    @property
    def label(self) -> str:
        """Return a text of one line that identifies the place; the results are stored under it."""
        return f"{self.kind} {self.module}:{self.function}: {self.text!r} [{self.number}]"


@dataclass(frozen=True, slots=True)
class Edit:
    """A replacement of the characters of a source from offset ``begin`` to before ``end`` by ``text``."""

    begin: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one mutant."""

    label: str
    outcome: str
    """``noticed``, ``survived``, or ``gone`` if the place no longer exists."""
    engine: str
    """The engine that noticed the mutant, and how; "" if none did."""
    seconds: float


# --- places ----------------------------------------------------------------------------------------------


class _Source:
    """The text of one module, with the edit for every place in it that can be mutated."""

    def __init__(self, module: str, text: str) -> None:
        self._module = module
        self._text = text
        lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in lines:
            self._starts.append(self._starts[-1] + len(line))
        self._lines = lines
        self.places: dict[Place, Edit] = {}
        self._counts: dict[tuple[str, str, str], int] = {}
        self._visit(ast.parse(text), "")

    def _offset(self, line: int, column: int) -> int:
        """Return the offset in the text, in characters, of a position of ``ast``, which counts columns in bytes."""
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def _add(self, kind: str, function: str, text: str, edit: Edit) -> None:
        number = self._counts.get((kind, function, text), 0)
        self._counts[kind, function, text] = number + 1
        self.places[Place(kind, self._module, function, text, number)] = edit

    def _visit(self, node: ast.AST, function: str) -> None:
        if isinstance(node, ast.Assert):
            return  # a check for our own bugs: not to be met
        if isinstance(node, ast.Compare):
            self._add_comparisons(node, function)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("max", "min"):
            begin = self._offset(node.func.lineno, node.func.col_offset)
            other = "min" if node.func.id == "max" else "max"
            self._add(EXTREME, function, ast.unparse(node), Edit(begin, begin + 3, other))
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            if isinstance(statements, list):
                self._add_orders(statements, function)
        for child in ast.iter_child_nodes(node):
            inner = function
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{function}.{child.name}" if function else child.name
            self._visit(child, inner)

    def _add_comparisons(self, node: ast.Compare, function: str) -> None:
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            old, new = _OTHERS[type(operator)]
            assert left.end_lineno is not None and left.end_col_offset is not None
            begin = self._offset(left.end_lineno, left.end_col_offset)
            end = self._offset(right.lineno, right.col_offset)
            pattern = r"\b" + old.replace(" ", r"\s+") + r"\b" if old[0].isalpha() else re.escape(old)
            found = re.search(pattern, self._text[begin:end])
            assert found is not None, f"{self._module}: no {old} in {ast.unparse(node)}"
            edit = Edit(begin + found.start(), begin + found.end(), new)
            self._add(COMPARISON, function, ast.unparse(node), edit)
            left = right

    def _add_orders(self, statements: list[ast.stmt], function: str) -> None:
        for first, second in pairwise(statements):
            if not (_is_effect(first) and _is_effect(second)):
                continue
            parts = [self._span(each) for each in (first, second)]
            (begin, middle), (next_begin, end) = parts
            swapped = self._text[next_begin:end] + self._text[middle:next_begin] + self._text[begin:middle]
            text = f"{ast.unparse(first)}\n{ast.unparse(second)}"
            self._add(ORDER, function, text, Edit(begin, end, swapped))

    def _span(self, statement: ast.stmt) -> tuple[int, int]:
        assert statement.end_lineno is not None and statement.end_col_offset is not None
        begin = self._offset(statement.lineno, statement.col_offset)
        return begin, self._offset(statement.end_lineno, statement.end_col_offset)

    def mutate(self, place: Place) -> str:
        """Return the text of the module with one place mutated. Raises ``KeyError`` if the module has no such
        place."""
        edit = self.places[place]
        return self._text[: edit.begin] + edit.text + self._text[edit.end :]


def _is_effect(statement: ast.stmt) -> bool:
    """Return whether a statement is a bare call, awaited or not."""
    if not isinstance(statement, ast.Expr):
        return False
    value = statement.value.value if isinstance(statement.value, ast.Await) else statement.value
    return isinstance(value, ast.Call)


def source_of(module: str) -> _Source:
    """Read a module from the working tree. Raises ``FileNotFoundError`` if it does not exist."""
    return _Source(module, (ROOT / module).read_text())


def draw() -> list[Place]:
    """Draw 20 places of each kind at random. The seed is fixed: the same sources give the same places."""
    random = Random(SEED)
    places = [place for module in SAFETY for place in source_of(module).places]
    drawn = []
    for kind in KINDS:
        of_kind = sorted(place for place in places if place.kind == kind)
        print(f"{len(of_kind)} places of kind {kind}")
        drawn += random.sample(of_kind, EACH)
    return drawn


def load() -> list[Place]:
    """Read the places that were drawn from ``drawn.json``."""
    return [Place(**place) for place in json.loads(LIST.read_text())]


# --- engines ---------------------------------------------------------------------------------------------


def engines(module: str, tree: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the engines that may notice a mutant of the module, the most likely first: a name, and a command to run
    in the folder ``tests``."""
    pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    near = sorted(str(path) for path in (tree / "tests" / "unit").rglob("test_*.py") if _names(path, module))
    if near:
        yield "its unit tests", [*pytest, *near]
    yield "scenarios", [*pytest, "scenarios"]
    if "tidelog_replica" in module or module.startswith("shared"):
        yield "power losses", [*pytest, "crash_points"]
    yield "walks", [sys.executable, "-m", "model.walks", "--seeds", "0:400"]
    yield "simulation", [sys.executable, "-m", "simulation", "--seeds", "0:40", "--jobs", "1", "--no-shrink"]
    yield "all unit tests", [*pytest, "unit"]


def _names(path: Path, module: str) -> bool:
    """Return whether the source of a test contains the module's dotted name."""
    dotted = module.removeprefix("shared/").removesuffix(".py").replace("/", ".")
    dotted = re.sub(r"^services\.\w+\.", "", dotted)
    return re.search(rf"\b{re.escape(dotted)}\b", path.read_text()) is not None


def run(place: Place) -> Result:
    """Mutate a copy of the sources, and run the engines on it until one fails or does not end. Return the outcome:
    ``noticed``, ``survived``, or ``gone`` if the place does not exist."""
    began = time.monotonic()
    try:
        text = source_of(place.module).mutate(place)
    except (FileNotFoundError, KeyError):
        return Result(place.label, "gone", "", 0.0)
    compile(text, place.module, "exec")
    with _copy() as tree:
        (tree / place.module).write_text(text)
        for engine, command in engines(place.module, tree):
            if fault := _fault_of(command, tree):
                return Result(place.label, "noticed", f"{engine}, which {fault}", time.monotonic() - began)
    return Result(place.label, "survived", "", time.monotonic() - began)


@contextmanager
def _copy() -> Iterator[Path]:
    """Copy the whole repository, without builds and environments, to a temporary directory, which is deleted at the
    end of the context."""
    with tempfile.TemporaryDirectory(prefix="tidelog-drawn-") as folder:
        tree = Path(folder) / "tidelog"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", ".venv", "build", "dist", "__pycache__"))
        yield tree


def _fault_of(command: list[str], tree: Path) -> str:
    """Run a command on the copy. Return "fails" if its exit code is not 0, "does not end" if it was killed after
    ``ENGINE_TIMEOUT_S``, and "" if it passes."""
    services = [tree / "services" / name for name in ("controller", "gateway", "replica")]
    paths = [tree / "shared", *services, tree / "tests", tree / "deploy"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        ["prlimit", f"--as={MEMORY_BYTES}", *command],
        cwd=tree / "tests",
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as engine:
        try:
            return "fails" if engine.wait(ENGINE_TIMEOUT_S) else ""
        except subprocess.TimeoutExpired:
            os.killpg(engine.pid, signal.SIGKILL)  # with what it has started
            return "does not end"


def control() -> str:
    """Run all engines on an unmutated copy. Return the first that fails, and how, or "" if all pass."""
    with _copy() as tree:
        for engine, command in engines(f"{REPLICA}/storage/log.py", tree):
            if fault := _fault_of(command, tree):
                return f"{engine}, which {fault}"
    return ""


def main() -> int:
    """Run the drawn mutants, or with ``--draw`` write the list. Return 0 if each mutant is noticed or its place is
    gone, 1 if one survives, and 2 if an engine fails with nothing mutated."""
    parser = argparse.ArgumentParser(prog="python -m mutants.drawn", description=__doc__)
    parser.add_argument("--draw", action="store_true", help="write the list, and run nothing")
    parser.add_argument("--only", type=int, nargs="*", help="run these of the list, from 0")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--trust", action="store_true", help="do not first see that everything passes unmutated")
    parser.add_argument("--write", action="store_true", help="keep what is seen in drawn_results.json")
    options = parser.parse_args()
    if options.draw:
        LIST.write_text(json.dumps([asdict(place) for place in draw()], indent=1) + "\n")
        return 0
    if not options.trust and (fails := control()):
        print(f"with nothing mutated it fails, too: {fails}")
        return 2
    places = load()
    chosen = [places[number] for number in options.only] if options.only else places
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    counts: dict[str, int] = {}
    with multiprocessing.Pool(options.jobs, maxtasksperchild=1) as pool:
        for result in pool.imap_unordered(run, chosen):
            counts[result.outcome] = counts.get(result.outcome, 0) + 1
            by = f" by {result.engine}" if result.engine else ""
            print(f"{result.outcome}{by}: {result.label} ({result.seconds:.0f} s)", flush=True)
            known[result.label] = {"outcome": result.outcome, "engine": result.engine}
            if options.write:
                RESULTS.write_text(json.dumps(known, indent=1) + "\n")
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
    return 1 if counts.get("survived") else 0


if __name__ == "__main__":
    sys.exit(main())
