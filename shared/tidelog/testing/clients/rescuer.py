"""The majority of the controllers is lost for good, and a survivor that was down for a while continues alone.

Replica servers and clients live through it, with all other faults. Afterwards the other controllers are added again,
with empty disks. It is demanded that no acked record is lost, under whichever ISR and leader it was acked, and that
every number that must not be given twice is a new one (``ControllerInvariants.on_rescue``).
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tidelog_controller.rescue import plan_rescue

if TYPE_CHECKING:
    from tidelog.testing.cluster import Cluster

WAIT_S = 0.1


class Rescuer:
    """The rescue of a run: once, between the creation of the topics and the end of the faults."""

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self.cluster = cluster
        self.done = False
        """Whether the survivor has taken over."""
        self._survivor = ""
        self._down_s, self._lost_s = rng.uniform(0.3, 2.0), rng.uniform(0.0, 1.5)
        cluster.loop.after(rng.uniform(0.8, 2.0), self._begin)

    def _begin(self) -> None:
        """Stop a controller that is not active, once all agree; the others run on."""
        cluster = self.cluster
        running = [name for name in cluster.controllers if cluster.processes[name].running]
        active = [name for name in running if cluster.controller(name).core.active]
        if not active or not cluster.admin.done or not cluster.controllers_agree():
            cluster.loop.after(WAIT_S, self._begin)
            return
        self._survivor = next(name for name in running if name not in active)
        cluster.controller(self._survivor).stop(power=False)
        cluster.loop.after(self._down_s, self._lose)

    def _lose(self) -> None:
        """Stop all other controllers and empty their disks."""
        self._end_all()
        self.cluster.loop.after(self._lost_s, self._rescue)

    def _end_all(self) -> None:
        """Stop every controller and empty all stores but the survivor's."""
        for name in self.cluster.controllers:
            process = self.cluster.controller(name)
            if process.running:
                process.stop(power=False)
            if name != self._survivor:
                process.lose_store()

    def _rescue(self) -> None:
        """Let the survivor continue alone and add the others again. Other faults may have restarted controllers
        meanwhile; the operator stops them first."""
        self._end_all()
        cluster, survivor = self.cluster, self.cluster.controller(self._survivor)
        url, wall_ms = f"sim://{survivor.name}", survivor.wall_ms()
        survivor.store.perform(plan_rescue(survivor.store.stored, cluster.name, survivor.name, url, wall_ms))
        cluster.invariants.on_rescue(survivor.store)
        cluster.count("rescues")
        for name in cluster.controllers:
            cluster.controller(name).start()
            if name != survivor.name:
                cluster.admin.add_controller(name)
        self.done = True
