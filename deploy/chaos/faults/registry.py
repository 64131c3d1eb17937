"""The registry of all faults by name. A fault is a function that begins it, yields, and heals it; between the two the
cluster suffers it.

It says what it strikes (``leader`` and ``follower`` of a partition, ``active`` controller, ``controller``,
``gateway``, ``replica``, the query of ``spark``, or everything), what it needs of the machine
(``cluster/capabilities.py``), how long it lasts, and whether it destroys data on a disk: such faults come one at a
time, each when the replicas are in sync again after the last. Nothing else is held back. A run is to show that what
is acknowledged survives whatever happens to a minority of disks, and to any number of processes, links and hosts
without damage. The modules of faults import this one; it imports none of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from random import Random

from chaos.cluster.supervisor import ALL, Stage
from chaos.workload.spark_copy import NAME

Begin = Callable[[Stage, str, Random], AsyncIterator[None]]
HOST, NET, DISK = "host", "net", "disk"


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault. ``words`` describe it for people; ``hold`` is the shortest and the longest time in seconds
    that it lasts."""

    name: str
    words: str
    strikes: str
    needs: tuple[str, ...]
    hold: tuple[float, float]
    part: str
    """The part of the struck process that the fault takes up, such as ``HOST`` or ``NET``. Faults of different parts
    may overlap."""
    spoils: bool
    """Whether the fault destroys data or takes a controller's vote. Such a fault is over when every replica is in
    sync again."""
    module: str
    begin: Callable[[Stage, str, Random], AbstractAsyncContextManager[None]]

    async def target(self, stage: Stage, random: Random) -> str:
        """Return the process that the fault strikes, chosen at random among those that fit now; or ``ALL``. Raises
        ``Unhealed`` if the cluster cannot be asked."""
        match self.strikes:
            case "leader":
                return await stage.leader(random)
            case "follower":
                return await stage.follower(random)
            case "active":
                return await stage.active(random)
            case "all":
                return ALL
            case "spark":
                return NAME
            case role:
                return random.choice(stage.nodes(role))

    def claims(self, target: str) -> list[str]:
        """Return the claims that the fault holds while it lasts: a part of its target, and the disk if it destroys
        data; or everything."""
        if target == ALL:
            return [ALL]
        return [f"{self.part} {target}", *([DISK] if self.spoils else [])]


FAULTS: dict[str, Fault] = {}
"""Every fault by name."""


def fault(
    name: str,
    words: str,
    strikes: str,
    *,
    needs: tuple[str, ...] = (),
    hold: tuple[float, float] = (1.0, 4.0),
    part: str = HOST,
    spoils: bool = False,
) -> Callable[[Begin], Begin]:
    """Return a decorator that enters a function in ``FAULTS`` as the fault of this name, and returns the function."""

    def enter(begin: Begin) -> Begin:
        assert name not in FAULTS, name
        made = asynccontextmanager(begin)
        module = begin.__module__.rpartition(".")[2]
        FAULTS[name] = Fault(name, words, strikes, needs, hold, part, spoils, module, made)
        return begin

    return enter
