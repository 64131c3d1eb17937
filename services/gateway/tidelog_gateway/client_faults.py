"""Faults of ours, kept to the client that meets them: its connection ends, as it does where the link's own task
fails. All others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import structlog
from tidelog.net.link import INTERNAL_ERROR, Link


@contextmanager
def contained(link: Link, op: str) -> Iterator[None]:
    """Work for one client, in a task of its own. An exception that is no refusal is logged, and closes the link: what
    of the request was done is unknown."""
    try:
        yield
    except Exception:
        structlog.get_logger().exception("request_failed", op=op, remote=link.remote)
        link.close(INTERNAL_ERROR, "internal error")


def do_all(*steps: Callable[[], object]) -> None:
    """Do each step in turn, also where one before it fails. Raises what the last one that fails raises."""
    with ExitStack() as stack:
        for step in reversed(steps):
            stack.callback(step)
