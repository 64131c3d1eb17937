"""Every line that a service writes is in the table, and every line of the table is written somewhere."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path

import pytest
import structlog
from tidelog.runtime import logs
from tidelog.runtime.log_events import ANY, BY_SERVICE, PIPELINE, LogEvent, counted
from tidelog.sansio.effects import Event

ROOT = Path(__file__).resolve().parents[4]
TABLE = {event.name: event for table in (ANY, PIPELINE, *BY_SERVICE.values()) for event in table}
LEVELS = ("debug", "info", "warning", "error", "exception")
MAKERS = ("Event", "event", "_event", "_say", "_tell")
OTHER_EVENTS = {
    "metadata/changeset.py": "kinds of the history",
    "audit/events.py": "kinds of audit records",
}
"""Modules in which such a call makes something else."""


def written(service: str) -> Iterator[tuple[str, str | None]]:
    """Each name that a service writes, and the level where it is said at the call."""
    for path in sorted((ROOT / "services" / service).rglob("*.py")):
        if not str(path).endswith(tuple(OTHER_EVENTS)):
            yield from written_by(ast.parse(path.read_text()))


def written_by(tree: ast.AST) -> Iterator[tuple[str, str | None]]:
    """Yield the events that one module writes to the log."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and [ast.unparse(t) for t in node.targets] == ["name"]:
            yield from ((name, None) for name in constants(node.value) if re.fullmatch(r"server_\w+", name))
        if not isinstance(node, ast.Call) or not node.args:
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in MAKERS:
            yield from ((name, None) for name in constants(node.args[0]))
        elif called in LEVELS and "log" in ast.unparse(node.func):
            yield from ((name, called) for name in constants(node.args[0]))


def constants(node: ast.expr) -> Iterator[str]:
    """The texts that it may be."""
    if isinstance(node, ast.IfExp):
        yield from constants(node.body)
        yield from constants(node.orelse)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield re.split(r"[: ]", node.value)[0]
    elif isinstance(node, ast.JoinedStr) and ast.unparse(node) == "f'partition_{entry.event}'":
        yield from (f"partition_{kind}" for kind in kinds_of_changes())


def kinds_of_changes() -> Iterator[str]:
    """What the history of a partition calls its changes, but for those that are not logged."""
    page = (ROOT / "docs" / "timeline.md").read_text()
    row = re.search(r"^\| a partition \| (.*?) \|", page, re.MULTILINE)
    assert row is not None
    yield from (kind for kind in re.findall(r"`(\w+)`", row[1]) if kind not in ("created", "settings_changed"))


def shared() -> Iterator[tuple[str, str | None]]:
    """What modules that all services have in common write."""
    home = ROOT / "shared" / "tidelog"
    for path in (*home.glob("*.py"), *(home / "net").rglob("*.py"), *(home / "runtime").glob("*.py")):
        yield from ((name, level) for name, level in written_by(ast.parse(path.read_text())) if level)


def pipelines() -> Iterator[tuple[str, str | None]]:
    """What ``tidelog pipeline`` writes."""
    home = ROOT / "shared" / "tidelog"
    for path in (*(home / "spark" / "pipelines").glob("*.py"), home / "cli" / "pipeline.py"):
        yield from written_by(ast.parse(path.read_text()))


WRITERS = {
    **{service: list(written(service)) for service in BY_SERVICE},
    "any": list(shared()),
    "pipeline": list(pipelines()),
}
TABLES = {**BY_SERVICE, "any": ANY, "pipeline": PIPELINE}


@pytest.mark.parametrize("service", TABLES)
def test_every_written_event_is_in_the_table_with_its_level(service: str) -> None:
    known = {event.name: event for event in TABLES[service]}
    for name, level in WRITERS[service]:
        assert name in known, f"{name} has no entry"
        assert level in (None, known[name].level) or (level, known[name].level) == ("exception", "error"), name


@pytest.mark.parametrize("service", TABLES)
def test_every_event_of_the_table_is_written(service: str) -> None:
    names = [event.name for event in TABLES[service]]
    assert set(names) <= {name for name, _ in WRITERS[service]}
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("event", TABLE.values(), ids=lambda event: event.name)
def test_an_entry_says_what_it_means_and_what_to_do(event: LogEvent) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", event.name)
    for text in (event.meaning, event.todo):
        assert text.endswith(".") and "|" not in text
    assert event.level in ("info", "debug") or event.todo != "Nothing.", "what nobody need look at is no warning"


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What a service writes, as it does in production."""
    shared = logging.getLogger("tidelog")
    before = shared.handlers, shared.propagate, shared.level
    with redirect_stderr(io.StringIO()) as text:
        logs.configure(as_json=True)
        yield text
    structlog.reset_defaults()
    shared.handlers, shared.propagate, shared.level = before


def test_a_line_is_of_the_level_that_the_table_says(lines: io.StringIO) -> None:
    for name in ("registered", "disk_stalled", "disk_full"):
        logs.perform(Event(name, {"seconds": 7}), node="r1")
    told = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert [(one["event"], one["level"]) for one in told] == [
        ("registered", "info"),
        ("disk_stalled", "warning"),
        ("disk_full", "error"),
    ]
    assert told[0]["node"] == "r1" and told[0]["seconds"] == 7 and "timestamp" in told[0]


def test_a_log_call_of_a_shared_module_is_a_line_like_all_others(lines: io.StringIO) -> None:
    log = logging.getLogger("tidelog")
    log.warning("certificates_not_read: %s: gone", "a.pem")
    log.debug("connection_ended remote=%s: %s", "x", "y")
    try:
        raise RuntimeError("a fault of ours")
    except RuntimeError:
        log.exception("page_failed")
    told = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert [(one["event"], one["level"], one["detail"]) for one in told] == [
        ("certificates_not_read", "warning", "a.pem: gone"),
        ("page_failed", "error", ""),
    ]
    assert "a fault of ours" in told[1]["exception"]


def test_warnings_and_errors_are_counted_from_the_start() -> None:
    table = (
        LogEvent("fine", "info", "."),
        LogEvent("bad", "error", "."),
        LogEvent("odd", "warning", ".", counted=False),
    )
    assert counted(table, {"fine": 2}) == {"bad": 0, "fine": 2}
    assert counted(table, {"bad": 3}) == {"bad": 3}
