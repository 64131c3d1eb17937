"""Logging of the services: structlog, JSON lines in production, readable text on a terminal, always on stderr.

Only shells log. Cores emit ``Event`` effects; ``perform`` writes one line for each. The client library must not
import this module: it does not depend on structlog.
"""

from __future__ import annotations

import logging
import sys

import structlog

from tidelog.effects import Event


def configure(json: bool | None = None, level: str = "info") -> None:
    """Set up logging of this process. ``json`` None: JSON unless stderr is a terminal. ``level``: debug, info,
    warning or error."""
    if json is None:
        json = not sys.stderr.isatty()
    render = structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def perform(event: Event, **context: object) -> None:
    """Write the line of one core event; ``context`` says where it happened (``node="r1"``)."""
    structlog.get_logger().info(event.name, **context, **event.fields)
