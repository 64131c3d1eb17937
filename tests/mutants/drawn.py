"""Mutants that chance has chosen: ``python -m mutants.drawn``.

The rules of ``rules.py`` are broken where somebody thought of it. These are not: of every comparison, every ``max``
or ``min`` and every two effects in a row in the safety modules a generator with a fixed seed draws 60, 20 of each
kind. ``--draw`` writes the list ``drawn.json``; it is committed before any of them is run, so that nobody can choose.

    comparison   the boundary moves (``<`` and ``<=``), the sense turns (``==`` and ``!=``, ``in``, ``is``)
    extreme      ``max`` and ``min`` are exchanged
    order        two statements in a row that are calls are exchanged

Each is made in a copy of the sources, and the quick engines run there, one after the other until one fails: the unit
tests that name the module, the scenarios, the power losses of the real disk, random walks, seeds of the simulation,
all unit tests. An engine that does not end counts as one that fails, and says so. ``drawn_results.json`` keeps what
was seen. A place is known by module, function, text and number, not by its line; one that is gone is told as such.
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
"""Drawn of each kind."""
ENGINE_TIMEOUT_S = 1800
MEMORY_BYTES = 16 << 30
"""Address space of an engine: a mutant may allocate without end."""

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
        for name in ("follower_replica", "leader_replica", "partition", "purgatory", "reads", "transaction_gate")
    ),
    *(f"{REPLICA}/coordinators/groups/{name}.py" for name in ("coordinator", "group")),
    *(
        f"{REPLICA}/coordinators/transactions/{name}.py"
        for name in ("coordinator", "markers", "service", "transaction")
    ),
    *(f"{REPLICA}/storage/recovery/{name}.py" for name in ("damage", "recovery", "reset")),
    *(f"{REPLICA}/assignment/{name}.py" for name in ("assignment", "isr_proposals")),
    *(f"{REPLICA}/maintenance/{name}.py" for name in ("checkpointer", "log_cleaner", "log_opener", "log_repairer")),
    f"{REPLICA}/coordinators/runtime.py",
    *(f"{REPLICA}/registration/{name}.py" for name in ("incarnations", "session")),
    *(f"{CONTROLLER}/{name}.py" for name in ("metadata_log", "rescue", "storage")),
    *(
        f"{CONTROLLER}/metadata/{name}.py"
        for name in ("application", "changeset", "client_sessions", "registry", "state", "state_machine")
    ),
    *(f"{CONTROLLER}/active/{name}.py" for name in ("failure_detection", "server_sessions")),
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
"""Where a slip can lose, double or change an acknowledged record, or show one that is none."""

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
    """Something that can be mutated."""

    kind: str
    module: str
    function: str
    """Qualified by classes and outer functions; "" in the module's body."""
    text: str
    """As ``ast.unparse`` writes it; of an order both statements, a line each."""
    number: int
    """Of equal texts in one function, from 0; of a chain of comparisons each operator counts."""

    @property
    def label(self) -> str:
        """One line that names it."""
        return f"{self.kind} {self.module}:{self.function}: {self.text!r} [{self.number}]"


@dataclass(frozen=True, slots=True)
class Edit:
    """Exchange of the source between two offsets."""

    begin: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one mutant."""

    label: str
    outcome: str
    """``noticed``, ``survived``, or ``gone``: the place is not there any more."""
    engine: str
    """The one that noticed it."""
    seconds: float


# --- places ----------------------------------------------------------------------------------------------


class _Source:
    """One module, and every place in it."""

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
        """Of a place that ``ast`` names, whose columns are bytes."""
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
        """The source with one place changed. Raises ``KeyError`` where there is no such place."""
        edit = self.places[place]
        return self._text[: edit.begin] + edit.text + self._text[edit.end :]


def _is_effect(statement: ast.stmt) -> bool:
    """A statement that is a call, awaited or not."""
    if not isinstance(statement, ast.Expr):
        return False
    value = statement.value.value if isinstance(statement.value, ast.Await) else statement.value
    return isinstance(value, ast.Call)


def source_of(module: str) -> _Source:
    """The module as it is now; raises ``FileNotFoundError``."""
    return _Source(module, (ROOT / module).read_text())


def draw() -> list[Place]:
    """Draw the places to break; the same sources give the same ones."""
    random = Random(SEED)
    places = [place for module in SAFETY for place in source_of(module).places]
    drawn = []
    for kind in KINDS:
        of_kind = sorted(place for place in places if place.kind == kind)
        print(f"{len(of_kind)} places of kind {kind}")
        drawn += random.sample(of_kind, EACH)
    return drawn


def load() -> list[Place]:
    """The list that was drawn."""
    return [Place(**place) for place in json.loads(LIST.read_text())]


# --- engines ---------------------------------------------------------------------------------------------


def engines(module: str, tree: Path) -> Iterator[tuple[str, list[str]]]:
    """What may notice a mutant of that module, the most likely first: a name, and a command to run in ``tests``."""
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
    """Whether a test imports the module."""
    dotted = module.removeprefix("shared/").removesuffix(".py").replace("/", ".")
    dotted = re.sub(r"^services\.\w+\.", "", dotted)
    return re.search(rf"\b{re.escape(dotted)}\b", path.read_text()) is not None


def run(place: Place) -> Result:
    """Mutate a copy of the sources, and see which engine notices."""
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
    """The sources, with everything that tests read, for as long as they are needed."""
    with tempfile.TemporaryDirectory(prefix="tidelog-drawn-") as folder:
        tree = Path(folder) / "tidelog"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", ".venv", "build", "dist", "__pycache__"))
        yield tree


def _fault_of(command: list[str], tree: Path) -> str:
    """Run it on the copy: ``fails``, ``does not end`` in time, or "" where it passes."""
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
    """The engine that fails when nothing is mutated, and how; "" for none."""
    with _copy() as tree:
        for engine, command in engines(f"{REPLICA}/log/log.py", tree):
            if fault := _fault_of(command, tree):
                return f"{engine}, which {fault}"
    return ""


def main() -> int:
    """Exit code 0 when each was noticed, or is gone."""
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
