"""Seeded faults: per seed a random subset of kinds, at random rates; short, violent, overlapping.

Half of them come at random times, half right after something happened in the protocol (an election, an ISR
change, a truncation, a flush): that is where bugs live. After ``Swarm.until`` everything heals.
"""

from __future__ import annotations

import errno
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from simulation.sim_network import Weather

if TYPE_CHECKING:
    from simulation.cluster import Cluster
    from simulation.processes import SimProcess

KINDS = (
    "kill",
    "power",
    "power_all",
    "pause",
    "isolate",
    "split",
    "one_way",
    "cut_pair",
    "weather",
    "flaky_links",
    "slow_disk",
    "sync_error",
    "write_error",
    "crash_at_effect",
    "crash_at_write",
)
TRIGGERS = (
    "leader",
    "isr",
    "truncated",
    "flush",
    "fenced",
    "active",
)
"""Protocol events after which a fault may strike at once."""


@dataclass(frozen=True, slots=True)
class Swarm:
    """The faults of one run. ``rates``: relative weight of each kind; empty: nothing ever fails."""

    rates: dict[str, float] = field(default_factory=dict)
    mean_pause: float = 0.8
    """Mean time (s) between two timed faults."""
    trigger: float = 0.0
    """Probability that a protocol event triggers one."""
    until: float = 0.0
    """When everything heals, s."""
    controllers: bool = True
    """Whether controllers suffer too."""
    power_ok: bool = True
    """Whether power may fail: not where a topic's flush policy leaves that to the operating system."""

    @classmethod
    def draw(cls, rng: random.Random, until: float, power_ok: bool = True) -> Swarm:
        """A random swarm: some kinds, some rates."""
        kinds = [kind for kind in KINDS if rng.random() < 0.45] or ["power"]
        rates = {kind: rng.choice((0.3, 1.0, 3.0)) for kind in kinds}
        if "power_all" in rates:
            rates["power_all"] *= 0.3
        if not power_ok:
            for kind in ("power", "power_all", "crash_at_write"):
                rates.pop(kind, None)
        rates = rates or {"kill": 1.0}
        return cls(
            rates, rng.choice((0.1, 0.25, 0.6)), rng.choice((0.0, 0.05, 0.2)), until, rng.random() < 0.8, power_ok
        )


class Faults:
    """Strikes. A scenario calls the same methods by hand."""

    def __init__(self, cluster: Cluster, swarm: Swarm, rng: random.Random) -> None:
        self.cluster = cluster
        self.swarm = swarm
        self.rng = rng
        self.loop = cluster.loop
        self._slow: dict[str, float] = {}
        self._doomed: dict[str, int] = {}
        self.healed = not swarm.rates
        if swarm.rates:
            self.loop.after(rng.uniform(0.5, 1.8), self._strike_again)
            self.loop.at(swarm.until, self.heal)

    def _strike_again(self) -> None:
        if not self.healed:
            self.strike()
            self.loop.after(self.rng.expovariate(1 / self.swarm.mean_pause), self._strike_again)

    def on_protocol_event(self, kind: str, process: SimProcess) -> None:
        """Something delicate has just happened at ``process``."""
        assert kind in TRIGGERS, kind
        if not self.healed and self.swarm.trigger and self.rng.random() < self.swarm.trigger:
            self.strike(process)

    def strike(self, target: SimProcess | None = None) -> None:
        """One fault, at ``target`` or at anybody."""
        rates = self.swarm.rates
        kind = self.rng.choices(list(rates), list(rates.values()))[0]
        if target is None:
            names = [*self.cluster.replicas, *(self.cluster.controllers if self.swarm.controllers else ())]
            target = self.cluster.processes[self.rng.choice(names)]
        self.cluster.count(f"fault {kind}")
        self.loop.note("--", f"FAULT {kind} {target.name}")
        getattr(self, f"_{kind}")(target)

    def heal(self) -> None:
        """End of all faults: partitions and weather clear, disks are quick again, the dead return."""
        self.loop.note("--", "HEAL")
        self.healed = True
        self._slow.clear()
        self._doomed.clear()
        self.cluster.network.heal()
        for process in self.cluster.processes.values():
            disk = getattr(process, "disk", None)
            if disk is not None:
                disk.heal()
            if not process.running:
                self.loop.after(self.rng.uniform(0.0, 0.5), lambda process=process: revive(process))

    # --- kinds -------------------------------------------------------------------------------------------

    def _brief(self) -> float:
        """Most faults are short; some outlast every time-out."""
        return self.rng.choice((0.05, 0.3, 1.0, 3.0)) * self.rng.uniform(0.3, 1.5)

    def _stop(self, target: SimProcess, power: bool) -> None:
        if target.running:
            target.stop(power)
            self.loop.after(self._brief(), lambda: revive(target))

    def _kill(self, target: SimProcess) -> None:
        self._stop(target, power=False)

    def _power(self, target: SimProcess) -> None:
        self._stop(target, power=True)

    def _power_all(self, target: SimProcess) -> None:
        for name in self.cluster.replicas:
            self._stop(self.cluster.processes[name], power=True)

    def _pause(self, target: SimProcess) -> None:
        if target.running:
            target.freeze(self._brief())

    def _everybody(self) -> list[str]:
        return [*self.cluster.controllers, *self.cluster.replicas, *(c.name for c in self.cluster.clients)]

    def _isolate(self, target: SimProcess) -> None:
        """From controllers, from replica servers, from clients, or from all."""
        cluster = self.cluster
        groups = (cluster.controllers, cluster.replicas, [c.name for c in cluster.clients], self._everybody())
        until = self.loop.now + self._brief()
        for other in self.rng.choice(groups):
            if other != target.name:
                cluster.network.block(other, target.name, until)
                cluster.network.block(target.name, other, until)

    def _split(self, target: SimProcess) -> None:
        """Two sides."""
        side = {name: self.rng.random() < 0.5 for name in self._everybody()}
        until = self.loop.now + self._brief()
        for a in side:
            for b in side:
                if side[a] != side[b]:
                    self.cluster.network.block(a, b, until)

    def _one_way(self, target: SimProcess) -> None:
        """What the target sends is lost, or what is sent to it."""
        out = self.rng.random() < 0.5
        until = self.loop.now + self._brief()
        for other in self._everybody():
            if other != target.name and self.rng.random() < 0.7:
                pair = (target.name, other) if out else (other, target.name)
                self.cluster.network.block(*pair, until)

    def _cut_pair(self, target: SimProcess) -> None:
        """Partial partition: two replica servers, or a server and a controller, do not reach each other."""
        other = self.rng.choice([name for name in self._everybody() if name != target.name])
        until = self.loop.now + self._brief()
        self.cluster.network.block(target.name, other, until)
        self.cluster.network.block(other, target.name, until)

    def _weather(self, target: SimProcess) -> None:
        rng = self.rng
        weather = self.cluster.network.weather = Weather(
            latency=rng.choice((0.0005, 0.005, 0.03)),
            tail=rng.choice((0.0, 0.05, 0.3)),
            tail_max=rng.choice((0.05, 0.5, 1.5)),
            loss=rng.choice((0.0, 0.1, 0.4)),
            duplicate=rng.choice((0.0, 0.2)),
            late_copy=rng.choice((0.0, 0.05)),
        )
        self.loop.after(self._brief(), lambda: self._clear(weather))

    def _flaky_links(self, target: SimProcess) -> None:
        weather = self.cluster.network.weather = Weather(break_link=self.rng.choice((0.005, 0.03, 0.1)))
        self.loop.after(self._brief(), lambda: self._clear(weather))

    def _clear(self, weather: Weather) -> None:
        if self.cluster.network.weather is weather:
            self.cluster.network.weather = Weather()

    def _slow_disk(self, target: SimProcess) -> None:
        self._slow[target.name] = self.loop.now + self._brief()

    def _sync_error(self, target: SimProcess) -> None:
        """The next flush of a replica server fails with EIO, and what it covered never gets to the disk."""
        disk = getattr(target, "disk", None)
        if disk is not None:
            disk.fail_syncs(errno.EIO, after=self.rng.randrange(3))
            self.loop.after(self._brief(), disk.heal)

    def _write_error(self, target: SimProcess) -> None:
        """Writes of a replica server fail for a while: EIO, or no space."""
        disk = getattr(target, "disk", None)
        if disk is not None:
            disk.fail_writes(self.rng.choice((errno.EIO, errno.ENOSPC)), after=self.rng.randrange(3))
            self.loop.after(self._brief(), disk.heal)

    def _crash_at_effect(self, target: SimProcess) -> None:
        """It dies between two of its next effects."""
        self._doomed[target.name] = self.rng.choice((0, 1, 2, 5, 20))

    def _crash_at_write(self, target: SimProcess) -> None:
        """It dies in the middle of one of its next writes."""
        disk = getattr(target, "disk", None)
        if disk is not None:
            disk.lose_power(after=self.rng.randrange(12))

    # --- asked by the processes --------------------------------------------------------------------------

    def dies_before(self, process: SimProcess, effect: Any) -> bool:
        """Whether the process dies instead of performing this effect."""
        left = self._doomed.get(process.name)
        if left is None:
            return False
        if left > 0:
            self._doomed[process.name] = left - 1
            return False
        del self._doomed[process.name]
        self.cluster.count("crashed at an effect")
        self._stop(process, power=self.swarm.power_ok and self.rng.random() < 0.6)
        return True

    def power_lost(self, process: SimProcess) -> None:
        """Power went in the middle of a write."""
        self.cluster.count("crashed at a write")
        process.stop(power=True, in_mid_step=True)
        self.loop.after(self._brief(), lambda: revive(process))

    def process_ended(self, process: SimProcess, error: OSError) -> None:
        """The server gave up because of its disk; its supervisor starts it again."""
        process.note("exit", str(error))
        self.cluster.count("exited")
        process.stop(power=False, in_mid_step=True)
        self.loop.after(self._brief() + 0.1, lambda: revive(process))

    def disk_stall(self, process: SimProcess) -> float:
        """How long a blocking write takes now, s."""
        if self._slow.get(process.name, 0.0) > self.loop.now:
            return self.rng.uniform(0.0, 0.5)
        return 0.0

    def flush_time(self, process: SimProcess) -> float:
        """How long a flush takes now, s."""
        if self._slow.get(process.name, 0.0) > self.loop.now:
            return self.rng.uniform(0.0, 1.0)
        return self.rng.uniform(0.0002, 0.004)


def revive(process: SimProcess) -> None:
    """Start it if it is down."""
    if not process.running:
        process.start()
