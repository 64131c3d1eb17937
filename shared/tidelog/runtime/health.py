"""The pages ``/healthz`` (must the process be restarted?) and ``/readyz`` (may the service get work?).

A process is *healthy* if it answers. Nothing else counts: a restart repairs no fault of another process, a disk or a
network, and a service whose own fault is final ends by itself. A service is *ready* if it can do its work now. One
that is not ready answers with status 503 and a reason on each line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidelog.net.transport import Page, Pages

HEALTH_PATH = "/healthz"
READY_PATH = "/readyz"

NotReady = Callable[[], Sequence[str]]
"""Returns the reasons why the service is not ready; none if it is."""


def health_pages(reasons_not_ready: NotReady) -> Pages:
    """Return the pages ``/healthz`` and ``/readyz`` by path. The first always answers "ok". The second calls
    ``reasons_not_ready`` at each request, and answers "ready", or status 503 with the reasons."""
    return {HEALTH_PATH: lambda accept: Page(b"ok\n"), READY_PATH: lambda accept: _ready(reasons_not_ready())}


def _ready(reasons: Sequence[str]) -> Page:
    if not reasons:
        return Page(b"ready\n")
    return Page("".join(f"{reason}\n" for reason in reasons).encode(), status=503)
