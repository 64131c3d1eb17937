"""House rules that a machine can check: sizes, style, types, dependency rules, documentation links."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
SOURCES = sorted(
    path for folder in ("shared", "services", "deploy", "tests") for path in (ROOT / folder).rglob("*.py")
)
PRODUCT = [path for path in SOURCES if path.relative_to(ROOT).parts[0] in ("shared", "services")]

SHELLS = {
    "controller": ("last_commit", "server", "shell"),
    "gateway": (
        "audit/writer",
        "client_faults",
        "clients/announcement",
        "clients/connections",
        "clients/drain",
        "consume/timestamp_lookup",
        *(f"http/{name}" for name in ("appends", "decoded_batches", "events", "http_link", "http_port", "reads")),
        "limits/quota_enforcer",
        "requests/coordinator_client",
        "requests/log_bounds",
        "requests/metadata_answers",
        "requests/requests",
        "rights/issuer_keys",
        "server",
        "shared_requests",
        "shell",
    ),
    "replica": ("server", "shell", "storage/encryption/keyring", "storage/index", "storage/open_files"),
}
"""The modules of the services that may know trio, threads, clocks, chance, sockets and the operating system. All
others are cores."""
NO_CORES = {f"services/{service}/tidelog_{service}/{module}.py" for service in SHELLS for module in SHELLS[service]}
CORES = [
    path
    for path in PRODUCT
    if (path.is_relative_to(ROOT / "services") and str(path.relative_to(ROOT)) not in NO_CORES)
    or path.is_relative_to(ROOT / "shared" / "tidelog" / "client" / "core")
]

ROOM_MODULES = 18
TEST_FILES = 30
"""In a folder of the tests."""
UNIT_TESTS = {
    "controller": "services/controller/tidelog_controller",
    "deploy": "deploy",
    "gateway": "services/gateway/tidelog_gateway",
    "replica": "services/replica/tidelog_replica",
    "tidelog": "shared/tidelog",
}
"""Where the modules are that the folders of ``tests/unit`` test."""
MODULE_LINES = 700
FUNCTION_LINES = 70
LONGER = {"services/controller/tidelog_controller/raft/raft.py": "one state machine: a server of Raft"}
"""Modules over the limit, each with its reason."""

NOUNS = {"finding", "keyring", "tracing"}
"""They end like gerunds."""

FORBIDDEN_IN_CORES = {"trio", "trio_websocket", "structlog", "time", "random", "os", "socket", "threading", "asyncio"}
FORBIDDEN_CALLS = {
    "time.sleep": "sleep in trio",
    "time.time": "only adapters read the wall clock",
    "uuid.uuid4": "randomness is injected",
    "os.urandom": "randomness is injected",
}
ADAPTERS = {"frame_stream.py", "local_cluster.py", "loop.py", "operating_system.py"}
"""Where clocks and chance come from."""


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def run(*command: str) -> None:
    """Run a checker over the tree and show what it prints when it complains."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"


def test_ruff_finds_nothing() -> None:
    run(str(BIN / "ruff"), "check", "--no-cache", ".")


def test_everything_is_formatted() -> None:
    run(str(BIN / "ruff"), "format", "--no-cache", "--check", ".")


def test_types_are_strict() -> None:
    run(str(BIN / "mypy"), "--no-error-summary")


def test_nothing_is_used_that_python_lacks_on_macos() -> None:
    run(str(BIN / "mypy"), "--no-error-summary", "--platform", "darwin", "--cache-dir", ".mypy_cache/darwin")


def test_no_two_files_have_names_that_differ_in_case_only() -> None:
    """A file system of macOS keeps one of them."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    counts = Counter(path.casefold() for path in listed.splitlines())
    assert not [path for path, count in counts.items() if count > 1]


def test_packages_depend_only_on_what_they_may() -> None:
    run(str(BIN / "lint-imports"), "--no-cache")


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_modules_and_functions_are_short_enough_to_read(path: Path) -> None:
    text = path.read_text()
    if name(path) not in LONGER:
        assert len(text.splitlines()) <= MODULE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= FUNCTION_LINES, f"{node.name} has {length} lines"


def test_rooms_are_small_enough_to_know_and_say_what_they_are_for() -> None:
    rooms: dict[Path, list[Path]] = {}
    for path in PRODUCT:
        rooms.setdefault(path.parent, []).append(path)
    for room, modules in rooms.items():
        assert ast.get_docstring(ast.parse((room / "__init__.py").read_text())), f"{name(room)} says what it is for"
        count = sum(path.name != "__init__.py" for path in modules)
        assert count <= ROOM_MODULES, f"{name(room)} has {count} modules"


def test_folders_of_tests_are_small_enough_to_know() -> None:
    folders = Counter(path.parent for path in (ROOT / "tests").rglob("*.py") if path.name != "__init__.py")
    assert not {name(folder): count for folder, count in folders.items() if count > TEST_FILES}


@pytest.mark.parametrize("path", sorted((ROOT / "tests" / "unit").rglob("test_*.py")), ids=name)
def test_a_unit_test_lies_where_its_module_does_or_says_what_it_tests(path: Path) -> None:
    place, *folders = path.parent.relative_to(ROOT / "tests" / "unit").parts
    module = ROOT.joinpath(UNIT_TESTS[place], *folders, path.stem.removeprefix("test_"))
    says = re.search(r"\bTests\s+``", (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0])
    assert module.with_suffix(".py").exists() or module.is_dir() or says, f"{name(module)}.py is not there"


def test_modules_are_named_by_nouns() -> None:
    """A gerund says that something happens, and not what does it."""
    assert not [name(path) for path in PRODUCT if path.stem.endswith("ing") and path.stem not in NOUNS]


@pytest.mark.parametrize("path", CORES, ids=name)
def test_cores_know_no_clock_no_network_and_no_chance(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = [node.module]
        for module in modules:
            assert module.split(".")[0] not in FORBIDDEN_IN_CORES, f"line {node.lineno} imports {module}"


@pytest.mark.parametrize("path", PRODUCT, ids=name)
def test_product_code_keeps_its_promises(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "a module says what it is"
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            assert not (len(node.body) == 1 and isinstance(node.body[0], ast.Pass)), f"line {node.lineno} swallows"
        if isinstance(node, ast.Call) and path.name not in ADAPTERS:
            call = ast.unparse(node.func)
            assert call not in FORBIDDEN_CALLS, f"line {node.lineno}: {call}: {FORBIDDEN_CALLS.get(call)}"
    assert not re.search(r"\b(TODO|FIXME|XXX|HACK)\b|NotImplementedError", text)


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("test_*.py")), ids=name)
def test_tests_never_sleep(path: Path) -> None:
    if path == Path(__file__):
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            call = ast.unparse(node)
            assert not re.match(r"(time|trio)\.sleep\((?!0\))", call), f"line {node.lineno}: {call}"


def test_no_two_test_modules_have_the_same_name() -> None:
    """Modules of different folders, which are no packages, would be taken for each other when all are run at once."""
    modules = [path for path in (ROOT / "tests").rglob("*.py") if path.name not in ("__init__.py", "conftest.py")]
    loose = [path for path in modules if not (path.parent / "__init__.py").exists()]
    named = {path.name: path for path in loose}
    assert not [name(path) for path in loose if named[path.name] != path]


def test_documentation_links_lead_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target and not target.startswith("mailto:"):
                assert (page.parent / target).exists(), f"{name(page)} links to {target}"


def test_generated_pages_are_up_to_date() -> None:
    pages = runpy.run_path(str(ROOT / "deploy" / "generate" / "__main__.py"))["PAGES"]
    for page, text in pages.items():
        assert (ROOT / "docs" / page).read_text() == text(), f"docs/{page}: run make pages"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
