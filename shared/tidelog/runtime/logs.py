"""Logging of the services: structlog, JSON lines in production, readable text on a terminal, always on stderr.

Only shells log. Cores return ``Event`` effects; ``perform`` writes one line for each. Its level is in the table of
all events (``runtime/log_events.py``). The modules of ``shared`` that clients use log through the standard
library; their lines get the same format. The client library must not import this module.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from tidelog.printable import escaped
from tidelog.runtime.log_events import level_of
from tidelog.sansio.effects import Event


@contextmanager
def _without(module: str) -> Iterator[None]:
    """During the ``with`` block let imports of ``module`` fail, so that a library does without it. Does nothing if
    the module is loaded already."""
    modules: dict[str, Any] = sys.modules
    if module in modules:
        yield
        return
    modules[module] = None
    try:
        yield
    finally:
        del modules[module]


with _without("rich"):  # for tracebacks that ``format_exc_info`` writes: a fifth of a process's start, and 3 MB
    import structlog


def configure(as_json: bool | None = None, level: str = "info") -> None:
    """Set up logging to stderr for this process: structlog, and the standard library's loggers below ``tidelog``.
    ``as_json`` None: JSON unless stderr is a terminal. ``level``: debug, info, warning or error; lines below it are
    dropped."""
    if as_json is None:
        as_json = not sys.stderr.isatty()
    render = (
        [structlog.processors.JSONRenderer(_json_line)] if as_json else [_escape, structlog.dev.ConsoleRenderer()]
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            *render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    shared = logging.getLogger("tidelog")
    shared.handlers = [_StandardLogHandler()]
    shared.propagate = False
    shared.setLevel(level.upper())


@contextmanager
def errors_alone() -> Iterator[None]:
    """While the block runs, let the services of this process log errors alone, as text to stderr: for programs that
    run services beside their own work, such as tests. Does nothing if the program has configured structlog itself;
    the lines then go where its own go."""
    if structlog.is_configured():
        yield
        return
    structlog.configure(
        processors=[structlog.processors.format_exc_info, _escape, _plain_line],
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),  # pytest exchanges sys.stderr
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.reset_defaults()


def _plain_line(_logger: object, _method: str, line: MutableMapping[str, Any]) -> str:
    """Return a log line as text: event, fields, and the traceback on lines of its own."""
    exception = line.pop("exception", None)
    words = [str(line.pop("event", "")), *(f"{name}={value}" for name, value in line.items())]
    return " ".join(["tidelog:", *words]) + ("" if exception is None else f"\n{exception}")


def _json_line(value: Any, **how: Any) -> str:
    """Return a log line as JSON in ASCII without control characters. ``json`` escapes all of them but DEL."""
    return json.dumps(value, **how).replace("\x7f", "\\u007f")


def _escape(_logger: object, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape the control characters in the texts of a log line, in place, since texts may come from outside and must
    stay on one line. Return the line. The lines of a traceback stay apart, and are indented."""
    for name, value in line.items():
        if name == "exception":
            line[name] = "\n".join(f"  {escaped(one)}" for one in str(value).split("\n"))
        elif isinstance(value, str):
            line[name] = escaped(value)
    return line


class _StandardLogHandler(logging.Handler):
    """The handler that writes the lines of the standard library's logging through structlog, in the format of all
    others. The first word of a line becomes the event."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line of the standard library's logging through structlog, with its traceback if it has one."""
        event, _, detail = record.getMessage().partition(" ")
        fields = {"exc_info": record.exc_info} if record.exc_info else {}
        structlog.get_logger().log(record.levelno, event.rstrip(":"), detail=detail, **fields)


def perform(event: Event, **context: object) -> None:
    """Write the log line of an event, at the level that the table of events has for it. ``context``: further fields
    of the line, such as ``node="r1"``."""
    getattr(structlog.get_logger(), level_of(event.name))(event.name, **context, **event.fields)
