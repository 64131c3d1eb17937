"""When faults strike: drawn from the seed, or taken from the list of an earlier run.

Drawn strikes are short, violent and overlapping. Some come at random times, as many right after something happened in
the protocol (an election, an ISR change, a truncation, a flush): that is where bugs live. After ``Swarm.until``
everything heals.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidelog.testing.faults.damage import Damage
from tidelog.testing.faults.strikes import REPLICAS_ONLY, TRIGGERS, Dice, Names, Strike, Swarm, Values
from tidelog.testing.hardware.loop import stream

if TYPE_CHECKING:
    from tidelog.testing.cluster import Cluster
    from tidelog.testing.processes.process import SimProcess


FOUNDING = ("kill", "kill", "pause", "isolate", "one_way", "cut_pair")
"""The kinds of faults that hit controllers while they found the cluster."""
FOUNDING_LOSS = 0.4
"""The share of messages that are lost while the controllers found the cluster."""
FOUNDING_S = 1.5
"""The seconds in which the faults of the founding come; controllers meet every 0.5 s."""


class Faults(Damage):
    """The faults of one run. ``given`` are the exact strikes; None draws them from the swarm. ``struck`` lists the
    strikes that came about."""

    def __init__(
        self, cluster: Cluster, swarm: Swarm, rng: random.Random, given: Sequence[Strike] | None = None
    ) -> None:
        super().__init__(cluster)
        self.swarm = swarm
        self.rng = rng
        self.struck: list[Strike] = []
        self.healed = not swarm.rates
        self._armed: dict[str, int] = {}
        """The number of strikes that wait for a protocol event, by kind of event."""
        self._seen: dict[tuple[str, str], int] = {}
        """The number of times that an event has happened, by kind and process."""
        self._given = None if given is None else {strike.after: strike for strike in given if strike.after}
        if self.healed:
            return
        if given is None:
            self.loop.after(rng.uniform(0.5, 1.8), self._strike_again)
            seed = cluster.options.seed
            if swarm.founding:
                self._plan_founding(swarm.founding)
            if swarm.group:
                dice = stream(seed, "group strikes")
                self._plan(dice, swarm.group, dice.choice((1, 2, 4)), cluster.controllers)
            if swarm.rots:
                self._plan(stream(seed, "rots"), "rot_store", swarm.rots, cluster.controllers)
            if swarm.mutes:
                self._plan(stream(seed, "mutes"), "mute", swarm.mutes, (*cluster.controllers, *cluster.replicas))
            if swarm.majorities:
                dice = stream(seed, "majorities of controllers")
                self._plan(dice, "controllers_majority", swarm.majorities, cluster.controllers)
            if swarm.old_stores:
                self._plan(stream(seed, "old stores"), "old_store", swarm.old_stores, cluster.controllers)
        for strike in given or ():
            if strike.after is None:
                self._strike_at(strike)
        self.loop.at(swarm.until, self.heal)

    def _plan(self, rng: random.Random, kind: str, count: int, targets: Sequence[str]) -> None:
        """Schedule so many strikes of a kind at random times, beside all others."""
        for _ in range(count):
            target, at = rng.choice(targets), rng.uniform(1.0, self.swarm.until)
            self._strike_at(Strike(kind, target, self._values(rng, kind, target), at))

    def _values(self, rng: random.Random, kind: str, target: str) -> Values:
        names = Names(self.cluster.controllers, self.cluster.replicas, self.cluster.client_names, ())
        return Dice(rng, names).draw(kind, target)

    def _strike_at(self, strike: Strike) -> None:
        self.loop.at(strike.at, lambda: self.strike(strike))

    def _plan_founding(self, count: int) -> None:
        """Schedule the faults of the founding: lost messages and failing controllers."""
        rng, controllers = stream(self.cluster.options.seed, "faults of the founding"), self.cluster.controllers
        values = {**self._values(rng, "weather", controllers[0]), "loss": FOUNDING_LOSS, "seconds": FOUNDING_S}
        self._strike_at(Strike("weather", controllers[0], values, 0.0))
        for _ in range(count - 1):
            kind, target = rng.choice(FOUNDING), rng.choice(controllers)
            self._strike_at(Strike(kind, target, self._values(rng, kind, target), rng.uniform(0.0, FOUNDING_S)))

    def _strike_again(self) -> None:
        """Strike now or arm a strike for a protocol event, and schedule the next; stops after healing."""
        if self.healed:
            return
        if self.rng.random() < self.swarm.trigger:
            event = self.rng.choice((*TRIGGERS, "flush", "flush"))
            if self._armed.get(event, 0) >= 1:
                event = "flush"  # the other is rare in this run
            self._armed[event] = self._armed.get(event, 0) + 1
        else:
            self.strike(self._draw(at=self.loop.now))
        self.loop.after(self.rng.expovariate(1 / self.swarm.mean_pause), self._strike_again)

    def on_protocol_event(self, kind: str, process: SimProcess) -> None:
        """Strike at a process where a delicate event has just happened, if a strike waits for it."""
        assert kind in TRIGGERS, kind
        if self.healed:
            return
        number = self._seen[kind, process.name] = self._seen.get((kind, process.name), 0) + 1
        after = (kind, process.name, number)
        if self._given is not None:
            strike = self._given.get(after)
            if strike is not None:
                self.strike(strike)
        elif self._armed.get(kind):
            self._armed[kind] -= 1
            self.strike(self._draw(target=process.name, after=after))

    def _draw(self, target: str | None = None, at: float = -1.0, after: tuple[str, str, int] | None = None) -> Strike:
        """Return a random fault, at ``target`` or at any process that the kind applies to."""
        cluster, rates = self.cluster, self.swarm.rates
        kind = self.rng.choices(list(rates), list(rates.values()))[0]
        if kind in REPLICAS_ONLY and target not in cluster.replicas:
            target = self.rng.choice(cluster.replicas)
        elif target is None:
            target = self.rng.choice([*cluster.replicas, *(cluster.controllers if self.swarm.controllers else ())])
        names = Names(
            cluster.controllers,
            cluster.replicas,
            cluster.client_names,
            tuple(topic.name for topic in cluster.options.topics),
        )
        return Strike(kind, target, Dice(self.rng, names).draw(kind, target), at, after)

    def strike(self, strike: Strike) -> None:
        """Perform a strike now and count it; does nothing after healing."""
        if self.healed:
            return
        self.struck.append(strike)
        self.cluster.count(f"fault {strike.kind}")
        self.cluster.count("strikes after an event" if strike.after else "strikes at a time")
        self.loop.note("--", f"FAULT {strike}")
        getattr(self, strike.kind)(self.cluster.processes[strike.target], **strike.values)

    def heal(self) -> None:
        """End all faults."""
        self.loop.note("--", "HEAL")
        self.healed = True
        self.repair()
