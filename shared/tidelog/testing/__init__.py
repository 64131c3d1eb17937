"""Test tools: a whole cluster that a test runs, breaks and judges, in one process.

``plugin`` has the fixtures that pytest finds. ``real`` runs real services at real ports (``tidelog_cluster``,
``tidelog_faulty_cluster``).

All else is a deterministic simulation: a seed decides everything that happens, so that every failure can be run
again. It has two levels.

    messages   ``cluster``: the real cores of controllers and replica servers, with effects that simulated processes
               perform (``processes``), simulated users (``clients``) and ``invariants`` that are checked after every
               step. It tests the product itself: ``python -m simulation`` in ``tests`` runs it, ``runner`` and
               ``shrink`` run many seeds and make a failing one small, ``captures`` plays a real cluster's troubles.
    bytes      ``shells``: the real services with their trio shells, the real client and real WebSockets; only
               sockets, disks, clocks and threads are simulated.

Both stand on ``hardware`` (disks that lose power, a network that breaks, virtual time); ``faults`` has what strikes
the message level. Services are imported here as the command line imports them: nothing else of ``tidelog`` may import
this room, except that ``tidelog dev`` runs its services by ``real``; and ``import tidelog`` does not load it.

For programs that use Tidelog there is ``world``: the byte level with the user's programs in it, and with faults
(``World``, the fixture ``tidelog_world``). The names below are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidelog.testing.real.cluster import AwaitableCluster, RealCluster
    from tidelog.testing.world.invariants import at_least_once, exactly_once, in_order, no_gap
    from tidelog.testing.world.outcome import Outcome
    from tidelog.testing.world.run import InvariantBroken, ProgramsStuck
    from tidelog.testing.world.search import Found, search
    from tidelog.testing.world.world import World

__all__ = [
    "AwaitableCluster",
    "Found",
    "InvariantBroken",
    "Outcome",
    "ProgramsStuck",
    "RealCluster",
    "World",
    "at_least_once",
    "exactly_once",
    "in_order",
    "no_gap",
    "search",
]

_HOMES = {
    "AwaitableCluster": "tidelog.testing.real.cluster",
    "Found": "tidelog.testing.world.search",
    "InvariantBroken": "tidelog.testing.world.run",
    "Outcome": "tidelog.testing.world.outcome",
    "ProgramsStuck": "tidelog.testing.world.run",
    "RealCluster": "tidelog.testing.real.cluster",
    "World": "tidelog.testing.world.world",
    "at_least_once": "tidelog.testing.world.invariants",
    "exactly_once": "tidelog.testing.world.invariants",
    "in_order": "tidelog.testing.world.invariants",
    "no_gap": "tidelog.testing.world.invariants",
    "search": "tidelog.testing.world.search",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
