"""Confines a bug of the gateway to the client whose request meets it: only the connection of that client is
closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import structlog
from tidelog.net.link import INTERNAL_ERROR

from tidelog_gateway.client_link import ClientLink


@contextmanager
def contained(link: ClientLink, op: str) -> Iterator[None]:
    """Run the ``with`` block as work for one client. An exception of the block is logged and closes the client's
    link, since the outcome of the request is unknown; it is not raised further. ``op``: the request, for the log."""
    try:
        yield
    except Exception:
        structlog.get_logger().exception("request_failed", op=op, remote=link.remote)
        link.close(INTERNAL_ERROR, "internal error")


def do_all(*steps: Callable[[], object]) -> None:
    """Call every step in order, even if an earlier one raises. Afterwards raise the exception of the last step that
    failed, if any did."""
    with ExitStack() as stack:
        for step in reversed(steps):
            stack.callback(step)
