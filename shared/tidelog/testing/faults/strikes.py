"""Faults as data: kind, target, time and values of a strike; and the dice that draw them.

A run draws its strikes from the seed and records each. The list, given to another run of the same seed, brings about
the same run, byte for byte; with some of them left out it brings about a smaller one: that is how a failure is
shrunk. A strike comes at a time, or after a protocol event: "the third time that r2 became leader" still makes sense
when the strikes before it are gone.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

Values = dict[str, Any]
"""The parameters of a strike by name; JSON can hold them."""

TRIGGERS = ("leader", "isr", "truncated", "flush", "fenced", "active")
"""The protocol events right after which a fault may strike."""


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault. ``after`` is a kind of protocol event, the process where it happens, and its number there, from 1;
    without it the strike comes at the virtual time ``at`` in seconds."""

    kind: str
    target: str
    values: Values = field(default_factory=dict)
    at: float = -1.0
    after: tuple[str, str, int] | None = None

    def data(self) -> dict[str, Any]:
        """Return the strike as a document for JSON."""
        return asdict(self)

    @classmethod
    def of(cls, data: dict[str, Any]) -> Strike:
        """Return the strike of a JSON document."""
        after = data.get("after")
        return cls(**{**data, "after": None if after is None else (after[0], after[1], after[2])})

    def __str__(self) -> str:
        when = f"at {self.at:.3f} s" if self.after is None else "after {} of {} no. {}".format(*self.after)
        values = ", ".join(f"{name}={value}" for name, value in self.values.items())
        return f"{self.kind} {self.target} {when}: {values}"


@dataclass(frozen=True, slots=True)
class Names:
    """The names of all processes, clients and topics that faults may hit."""

    controllers: Sequence[str]
    replicas: Sequence[str]
    clients: Sequence[str]
    topics: Sequence[str]

    @property
    def all(self) -> list[str]:
        """The names of all processes and clients."""
        return [*self.controllers, *self.replicas, *self.clients]


FAILURE_S = 1.5
"""The session time-out of the simulated cluster in seconds."""


class Dice:
    """Draws the values of strikes: one method per kind, named as the method of ``Damage`` that takes them."""

    def __init__(self, rng: random.Random, names: Names) -> None:
        self.rng = rng
        self.names = names

    def draw(self, kind: str, target: str) -> Values:
        """Return random values for a strike of a kind at a process."""
        roll: Callable[[str], Values] = getattr(self, kind)
        return roll(target)

    def _brief(self) -> float:
        """Return a random duration in seconds; most are short, some outlast every time-out."""
        return round(self.rng.choice((0.05, 0.3, 1.0, 3.0)) * self.rng.uniform(0.3, 1.5), 4)

    def _for(self, **values: Any) -> Values:
        """Return the values with a random duration ``seconds`` added."""
        return {"seconds": self._brief(), **values}

    # --- nodes -------------------------------------------------------------------------------------------

    def kill(self, target: str) -> Values:
        return self._for()

    def power(self, target: str) -> Values:
        return self._for()

    def power_all(self, target: str) -> Values:
        return {"seconds": [self._brief() for _ in self.names.replicas]}

    def pause(self, target: str) -> Values:
        """Draw a short pause, or one just below, above or far above the failure time-out."""
        times = self.rng.choice((0.0, 0.0, 0.5, 1.5, 10.0))
        return {"seconds": round(times * FAILURE_S * self.rng.uniform(0.9, 1.1), 4) or self._brief()}

    def crash_at_effect(self, target: str) -> Values:
        return self._for(after=self.rng.choice((0, 1, 2, 5, 20)), power=self.rng.random() < 0.6)

    def crash_at_write(self, target: str) -> Values:
        return self._for(after=self.rng.randrange(12))

    # --- network -----------------------------------------------------------------------------------------

    def isolate(self, target: str) -> Values:
        names = self.names
        group = self.rng.choice((names.controllers, names.replicas, names.clients, names.all))
        return self._for(others=[name for name in group if name != target])

    def split(self, target: str) -> Values:
        return self._for(side=[name for name in self.names.all if self.rng.random() < 0.5])

    def one_way(self, target: str) -> Values:
        others = [name for name in self.names.all if name != target and self.rng.random() < 0.7]
        return self._for(others=others, out=self.rng.random() < 0.5)

    def cut_pair(self, target: str) -> Values:
        return self._for(other=self.rng.choice([name for name in self.names.all if name != target]))

    def weather(self, target: str) -> Values:
        rng = self.rng
        return self._for(
            latency=rng.choice((0.0005, 0.005, 0.03)),
            tail=rng.choice((0.0, 0.05, 0.3)),
            tail_max=rng.choice((0.05, 0.5, 1.5)),
            loss=rng.choice((0.0, 0.1, 0.4)),
            duplicate=rng.choice((0.0, 0.2)),
            late_copy=rng.choice((0.0, 0.05)),
        )

    def flaky_links(self, target: str) -> Values:
        return self._for(probability=self.rng.choice((0.005, 0.03, 0.1)))

    def reset_links(self, target: str) -> Values:
        group = self.rng.choice((self.names.replicas, self.names.clients, self.names.all))
        return {"others": [name for name in group if name != target], "slow": self.rng.random() < 0.3}

    def mute(self, target: str) -> Values:
        """Draw the links that become mute, in one or both directions; often new links work at once."""
        names, rng = self.names, self.rng
        group = rng.choice((names.controllers, names.replicas, names.clients, names.all))
        others = [name for name in group if name != target]
        if rng.random() < 0.5:
            others = [rng.choice([name for name in names.all if name != target])]
        out, back = rng.choice(((True, True), (True, False), (False, True)))
        seconds = round(rng.choice((0.0, 0.0, 1.0, 4.0)) * rng.uniform(0.5, 1.5), 4)
        return {"others": others, "out": out, "back": back, "seconds": seconds}

    # --- disks -------------------------------------------------------------------------------------------

    def slow_disk(self, target: str) -> Values:
        return self._for()

    def sync_error(self, target: str) -> Values:
        return self._for(after=self.rng.randrange(3))

    def write_error(self, target: str) -> Values:
        return self._for(error=self.rng.choice((errno.EIO, errno.ENOSPC)), after=self.rng.randrange(3))

    def read_error(self, target: str) -> Values:
        return self._for(after=self.rng.choice((0, 3, 20)))

    def disk_full(self, target: str) -> Values:
        return {"seconds": self.rng.choice((0.5, 2.0, 100.0))}

    def stall_disk(self, target: str) -> Values:
        """Draw a stall around the time after which a lagging follower leaves the ISR."""
        return {"seconds": round(self.rng.choice((0.5, 1.2, 3.0)) * FAILURE_S, 4)}

    def bit_rot(self, target: str) -> Values:
        return {"place": round(self.rng.random(), 6), "bit": self.rng.randrange(8)}

    def wipe_disk(self, target: str) -> Values:
        return self._for()

    def restore_disk(self, target: str) -> Values:
        return self._for(age=self.rng.choice((0.3, 1.0, 3.0)))

    # --- the group of controllers --------------------------------------------------------------------------

    def lose_store(self, target: str) -> Values:
        return self._for()

    def rot_store(self, target: str) -> Values:
        return self._for(power=self.rng.random() < 0.5)

    def old_store(self, target: str) -> Values:
        return self._for(age=self.rng.choice((0.3, 1.0, 3.0)))

    def change_group(self, target: str) -> Values:
        return {"add": self.rng.random() < 0.55}

    def controllers_majority(self, target: str) -> Values:
        """Draw a majority of the controllers that dies or is cut off with some replica servers, mostly for longer
        than a session lasts."""
        rng, controllers = self.rng, list(self.names.controllers)
        names = rng.sample(controllers, len(controllers) // 2 + 1)
        if rng.random() < 0.3:
            names = controllers
        cut = rng.random() < 0.6
        share = rng.choice((0.0, 0.0, 0.3, 0.6))
        beside = [name for name in self.names.replicas if cut and rng.random() < share]
        seconds = round(FAILURE_S * rng.choice((1.5, 2.5, 4.0)) * rng.uniform(0.9, 1.1), 4)
        return {"names": names, "cut": cut, "beside": beside, "seconds": seconds}

    # --- clocks, topics ----------------------------------------------------------------------------------

    def clock_jump(self, target: str) -> Values:
        return {"ms": self.rng.choice((1, -1)) * self.rng.choice((1_000, 60_000, 3_600_000, 31_536_000_000))}

    def recreate_topic(self, target: str) -> Values:
        return {"name": self.rng.choice(self.names.topics), "number": self.rng.randrange(3)}

    def alter_topic(self, target: str) -> Values:
        settings = {
            "min_insync_replicas": ("1", "2"),
            "replica_max_lag_ms": ("1600", "3000"),
            "segment_max_bytes": ("2048", "1048576"),
        }
        name = self.rng.choice(list(settings))
        return {"name": self.rng.choice(self.names.topics), "config": {name: self.rng.choice(settings[name])}}


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
    "reset_links",
    "slow_disk",
    "sync_error",
    "write_error",
    "read_error",
    "disk_full",
    "stall_disk",
    "bit_rot",
    "wipe_disk",
    "restore_disk",
    "clock_jump",
    "recreate_topic",
    "crash_at_effect",
    "crash_at_write",
)
REPLICAS_ONLY = (
    "sync_error",
    "write_error",
    "read_error",
    "disk_full",
    "stall_disk",
    "bit_rot",
    "wipe_disk",
    "restore_disk",
    "crash_at_write",
)
"""The kinds of faults that do not apply to controllers, whose simulated disk is simple."""


@dataclass(frozen=True, slots=True)
class Swarm:
    """The kinds and rates of the faults of one run. ``rates`` are relative weights; empty means no faults."""

    rates: dict[str, float] = field(default_factory=dict)
    mean_pause: float = 0.8
    """The mean time in seconds between two timed faults."""
    trigger: float = 0.0
    """The share of the faults that wait for a protocol event instead."""
    until: float = 0.0
    """The virtual time in seconds at which everything heals."""
    controllers: bool = True
    """Whether controllers suffer faults too."""
    group: str = ""
    """A fault of the group of controllers itself, in addition: ``lose_store``, ``change_group`` or "". It and the
    counts below come from random streams of their own."""
    mutes: int = 0
    """How often links become mute, in addition."""
    rots: int = 0
    """How often a controller finds its store damaged when it starts, in addition."""
    majorities: int = 0
    """How often the majority of the controllers is dead or cut off, in addition."""
    founding: int = 0
    """How many faults hit the controllers while they found the cluster, in addition."""
    old_stores: int = 0
    """How often a controller comes back with an old copy of its store, in addition."""

    @classmethod
    def draw(cls, rng: random.Random, until: float) -> Swarm:
        """Return a random swarm: some kinds with some rates."""
        kinds = [kind for kind in KINDS if rng.random() < 0.45] or ["power"]
        rates = {kind: rng.choice((0.3, 1.0, 3.0)) for kind in kinds}
        if "power_all" in rates:
            rates["power_all"] *= 0.3
        for rare in ("recreate_topic", "wipe_disk", "restore_disk"):
            if rare in rates:
                rates[rare] *= 0.2
        return cls(rates, rng.choice((0.05, 0.15, 0.4)), rng.choice((0.4, 0.7, 0.9)), until, rng.random() < 0.8)
