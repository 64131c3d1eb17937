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
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidelog.testing.real.cluster import AwaitableCluster, RealCluster

__all__ = ["AwaitableCluster", "RealCluster"]

_HOMES = {
    "AwaitableCluster": "tidelog.testing.real.cluster",
    "RealCluster": "tidelog.testing.real.cluster",
}


def __getattr__(name: str) -> Any:
    """Import a name of this package when it is first used."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tidelog.testing' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value
