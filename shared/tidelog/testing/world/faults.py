"""The faults of a world: what may happen. ``swarm`` draws those of a run before it begins.

A fault strikes at a time, or at a *moment* of a program's traffic (``traffic``), so that a program is killed between
a commit and its answer as often as it is killed while it sleeps. Which moments there are, and how many, is known from
a run without faults, the *calm run*. The faults are data: a failing run is repeated with fewer of them until each is
needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

PROGRAM_KINDS = (
    *("kill_program", "stop_program", "restart_loop", "start_late", "pause_program", "slow_program"),
    *("lose_answer", "lose_request", "isolate_program", "refuse_sends"),
)
CLUSTER_KINDS = (
    *("kill", "power", "move_leader", "cut", "block", "mute", "slow"),
    *("disk_error", "slow_disk", "kill_gateway", "kill_controller", "clock"),
)
KINDS = (*PROGRAM_KINDS, *CLUSTER_KINDS)
TEXTS = {
    "kill_program": "{target} is killed, and started again after {back_s:g} s",
    "stop_program": "{target} is asked to stop, ends in an orderly way, and is started again after {back_s:g} s",
    "restart_loop": "{target} is asked to stop {times} times, each time {seconds:g} s after it came back",
    "start_late": "{target} starts {seconds:g} s late",
    "pause_program": "{target} stands still for {seconds:g} s",
    "slow_program": "{target} gets little CPU for {seconds:g} s",
    "lose_answer": "{target} loses its connections with the answers on their way, for {seconds:g} s",
    "lose_request": "{target} loses its connections with what it has just sent, for {seconds:g} s",
    "isolate_program": "{target} is cut off from the network for {seconds:g} s",
    "refuse_sends": "the topic to which {target} has sent last is read-only for {seconds:g} s",
    "kill": "replica server {target} is killed, and started again after {back_s:g} s",
    "power": "replica server {target} loses power, and is started again after {back_s:g} s",
    "move_leader": "the leader of a partition is moved to {target}",
    "cut": "the connections between {target} and {other} break",
    "block": "nothing gets from {target} to {other} for {seconds:g} s",
    "mute": "the connections between {target} and {other} lose everything from now on",
    "slow": "the network takes {seconds:g} s",
    "disk_error": "the disk of {target} fails",
    "slow_disk": "the disk of {target} takes up to {seconds:g} s for everything, for {back_s:g} s",
    "kill_gateway": "the gateway is killed, and started again after {back_s:g} s",
    "kill_controller": "the controller is killed, and started again after {back_s:g} s",
    "clock": "the wall clock of {target} jumps by {seconds:g} s",
}


@dataclass(frozen=True, slots=True)
class WorldFault:
    """One fault. Times are virtual seconds since the programs were started."""

    kind: str
    target: str
    """The program, as ``name-1``, or the service that it strikes."""
    at: float = 0.0
    """When it strikes, or from when on it waits for its moment."""
    moment: str = ""
    """The kind of moment of the traffic of ``program`` at which it strikes; "": it strikes at its time."""
    number: int = 1
    """Which moment of that kind, counted from the start of the run."""
    program: str = ""
    delay_s: float = 0.0
    """How long after the moment it strikes."""
    seconds: float = 0.0
    back_s: float = 0.0
    """After how many seconds a killed process is started again."""
    other: str = ""
    """The other end of a connection."""
    linger_s: float = 0.0
    """How long the network goes on to carry what a killed program has sent."""
    times: int = 1
    """How often a program is asked to stop."""

    def __str__(self) -> str:
        what = TEXTS[self.kind].format(**asdict(self))
        if not self.moment:
            return f"{self.at:.3f} s: {what}"
        after = f"{self.delay_s:g} s after " if self.delay_s else "at "
        return f"{after}'{self.moment}' number {self.number} of {self.program}: {what}"

    def data(self) -> dict[str, Any]:
        """Return the fault as a document for JSON; ``WorldFault(**document)`` reads it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Calm:
    """What a run without faults came to."""

    seconds: float = 5.0
    """How long the programs worked, in virtual seconds."""
    moments: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """How many moments of each kind each program had."""
    session_s: float = 0.0
    """The longest session timeout of the members of groups; 0 if there is no group."""
