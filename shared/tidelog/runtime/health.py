"""``/healthz`` and ``/readyz`` of a service: is its process to be started again, is it to be given work?

*Healthy* is a process that answers. Nothing else counts: no fault of another process, a disk or a network is mended
by ending this one, and a service whose own fault is final ends by itself. *Ready* is one that can do now what it is
there for; who is not says why, a reason on each line, with status 503.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidelog.net.transport import Page, Pages

HEALTH_PATH = "/healthz"
READY_PATH = "/readyz"

WhyNot = Callable[[], Sequence[str]]
"""Why the service is not ready; nothing: it is."""


def health_pages(why_not_ready: WhyNot) -> Pages:
    """Return the pages for health and readiness, by path."""
    return {HEALTH_PATH: lambda accept: Page(b"ok\n"), READY_PATH: lambda accept: _ready(why_not_ready())}


def _ready(reasons: Sequence[str]) -> Page:
    if not reasons:
        return Page(b"ready\n")
    return Page("".join(f"{reason}\n" for reason in reasons).encode(), status=503)
