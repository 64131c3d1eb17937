"""Every fault by name. A fault is a function that begins it, yields, and heals it; what comes between is the fault.

It says what it strikes (``leader`` and ``follower`` of a partition, ``active`` controller, ``controller``,
``gateway``, ``replica``, the query of ``spark``, or everything), what it needs of the machine
(``cluster/capabilities.py``), for how long it lasts, and whether it destroys what is on a disk: such faults come one
at a time, each when the replicas are in sync again after the last. Nothing else is held back: that what is
acknowledged survives whatever happens to a minority of disks, and to any number of processes, links and hosts without
damage, is what a run is to show. The modules of faults import this one; it imports none of them.
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
    """One fault. ``words`` say what happens, for people; ``hold`` how many seconds it lasts, at least and at most."""

    name: str
    words: str
    strikes: str
    needs: tuple[str, ...]
    hold: tuple[float, float]
    part: str
    """What of the struck process is taken up: ``HOST`` or ``NET``. Faults of different parts may overlap."""
    spoils: bool
    """It destroys data or takes a controller's vote, and is over when every replica is in sync again."""
    module: str
    begin: Callable[[Stage, str, Random], AbstractAsyncContextManager[None]]

    async def target(self, stage: Stage, random: Random) -> str:
        """Whom it strikes, as things are now; ``ALL``."""
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
        """What it has for itself meanwhile."""
        if target == ALL:
            return [ALL]
        return [f"{self.part} {target}", *([DISK] if self.spoils else [])]


FAULTS: dict[str, Fault] = {}


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
    """Enter the function in ``FAULTS``."""

    def enter(begin: Begin) -> Begin:
        assert name not in FAULTS, name
        made = asynccontextmanager(begin)
        module = begin.__module__.rpartition(".")[2]
        FAULTS[name] = Fault(name, words, strikes, needs, hold, part, spoils, module, made)
        return begin

    return enter
