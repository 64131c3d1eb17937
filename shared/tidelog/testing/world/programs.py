"""The user's programs as processes: started, stopped, killed without a goodbye, paused, and started again.

A process that is killed does nothing any more, not even a ``finally``: its tasks stand still for ever
(``stopped_tasks``), and its connections break at once, or later as those of a machine that lost its power. A process
that ends by an error of the cluster (``TidelogError``) is started again, as by a supervisor.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from random import Random

import trio

from tidelog.errors import TidelogError
from tidelog.testing.shells.streams import NODE
from tidelog.testing.world.cluster import ADDRESS
from tidelog.testing.world.stopped_tasks import StoppedTasks
from tidelog.testing.world.wires import Wires

Main = Callable[[str], Awaitable[object]]
"""A program: an async function of the address of the cluster."""
SUPERVISOR_S = (0.3, 3.0)
"""Seconds after which a program that ended by an error of the cluster is started again: at least and at most. With
equal times, two processes that fence each other would do so for ever."""
GRACE_S = 30.0
"""Seconds that a program has to end after it was asked to stop; then it is killed."""

SLICE_S = (0.002, 0.5)
"""How long a slow process gets the CPU at a time, and then does not, in seconds: each power of ten as often."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program of a world, as the test declared it."""

    main: Main
    name: str
    copies: int = 1
    restarts: bool = True
    ends: bool = True

    @property
    def places(self) -> list[str]:
        """Return the name of each copy."""
        return [f"{self.name}-{number}" for number in range(1, self.copies + 1)]


@dataclass(slots=True)
class Process:
    """One copy of a program: the process that runs now, or the last one."""

    program: Program
    name: str
    starts: int = 0
    state: str = "down"
    """``up``, ``paused``, ``down``, ``returned``, or ``over`` at the end of the run."""
    error: BaseException | None = None
    """The error by which the last process ended; None if it was killed or has returned."""
    scope: trio.CancelScope | None = None
    """Cancelled to ask the process to stop."""
    back_s: float = 0.0
    """After how many seconds a process that was asked to stop is started again."""
    slow_until: float = 0.0
    """Until when the process gets little CPU."""
    is_late: bool = False
    """Whether the first process is not to start with the others."""

    @property
    def node(self) -> str:
        """Return the name of the process on the network: each incarnation has one of its own."""
        return f"{self.name}#{self.starts}"

    @property
    def is_busy(self) -> bool:
        """Return whether the process is dead or stands still for now, and will come back."""
        return self.state in ("paused", "down")


class Processes:
    """All processes of the programs of a run. ``log`` gets a line for what happens to each; ``on_failure`` is called
    with an exception that is none of the cluster, or that of a program that is not started again."""

    def __init__(
        self,
        programs: list[Program],
        wires: Wires,
        stopped: StoppedTasks,
        nursery: trio.Nursery,
        rng: Random,
        log: Callable[[str, str], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.all = {place: Process(program, place) for program in programs for place in program.places}
        self.disturbed_at = 0.0
        """When a process last ended or went on after a pause, or its network was healed: partitions may
        have to wait for the session of a dead member from then on."""
        self._wires = wires
        self._stopped = stopped
        self._nursery = nursery
        self._rng = rng
        self._log = log
        self._on_failure = on_failure

    @property
    def finished(self) -> bool:
        """Return whether every program that ends has returned."""
        return all(one.state == "returned" for one in self.all.values() if one.program.ends)

    @property
    def interrupted(self) -> bool:
        """Return whether a process is dead or stands still, and will come back."""
        return any(one.is_busy for one in self.all.values())

    def start_all(self) -> None:
        """Start all processes but those that are late."""
        for name, one in self.all.items():
            if not one.is_late:
                self.start(name)

    def start_late(self, name: str, seconds: float) -> None:
        """Start a process after some seconds instead of with the others. Does nothing if it was started."""
        one = self.all[name]
        if one.starts == 0 and not one.is_late:
            one.is_late = True
            self._wires.clock.call_later(seconds, partial(self.start, name))

    def close(self) -> None:
        """Start nothing any more, and report no errors: the run is over."""
        for one in self.all.values():
            one.state = "over"

    def start(self, name: str) -> None:
        """Start a process; does nothing if it runs or has returned."""
        one = self.all[name]
        if one.state == "down":
            one.starts += 1
            one.state, one.error, one.scope = "up", None, trio.CancelScope()
            self._log(one.node, "starts")
            self._nursery.start_soon(self._live, one, one.starts, name=one.node)

    def kill(self, name: str, back_s: float, linger_s: float) -> None:
        """Kill a process and start it again after ``back_s`` seconds, if the program restarts. ``linger_s``: how long
        the network goes on to carry what it has sent; after 1 s the machine counts as gone, without a notice to its
        peers. Does nothing if it does not run."""
        one = self.all[name]
        if one.state not in ("up", "paused") or not one.program.restarts:
            return
        node, one.state = one.node, "down"
        self.disturbed_at = self._wires.clock.now
        self._log(node, "is killed")
        self._wires.dead.add(node)
        self._stopped.stop(node)
        if linger_s >= 1.0:
            for peer in self._wires.peers(node):
                self._wires.mute(node, peer)
                self._wires.mute(peer, node)
        else:
            self._wires.clock.call_later(linger_s, partial(self._wires.detach, node))
        self._wires.clock.call_later(back_s, partial(self.start, name))

    def stop(self, name: str, back_s: float) -> None:
        """Ask a process to stop, as SIGTERM does: its tasks are cancelled, and each ``finally`` runs with the network
        intact. After ``GRACE_S`` it is killed. It is started again ``back_s`` seconds after its end, if the program
        restarts. Does nothing if it does not run or was asked before."""
        one = self.all[name]
        if one.state != "up" or one.scope is None or one.scope.cancel_called or not one.program.restarts:
            return
        one.back_s = back_s
        self.disturbed_at = self._wires.clock.now
        self._log(one.node, "is asked to stop")
        one.scope.cancel()
        self._wires.clock.call_later(GRACE_S, partial(self._lose_patience, name, one.starts))

    def _lose_patience(self, name: str, incarnation: int) -> None:
        """Kill a process that has not ended though it was asked to."""
        one = self.all[name]
        if one.starts == incarnation:
            self.kill(name, one.back_s, 0.0)

    def pause(self, name: str, seconds: float) -> None:
        """Let a process stand still for some seconds, with all its timers. Does nothing if it does not run."""
        one = self.all[name]
        if one.state != "up":
            return
        one.state = "paused"
        self._log(one.node, "stands still")
        self._stopped.stop(one.node)
        self._wires.clock.call_later(seconds, partial(self._resume, name, one.starts))

    def slow_down(self, name: str, seconds: float, rng: Random) -> None:
        """Let a process get little CPU for some seconds: it stands still again and again, and for so long that what
        it does between two waits takes time. Does nothing if it does not run."""
        one = self.all[name]
        if one.state == "up" and one.slow_until < self._wires.clock.now:
            one.slow_until = self._wires.clock.now + seconds
            self._log(one.node, "gets little CPU")
            self._starve(one, one.starts, rng)

    def speed_up(self) -> None:
        """Let all slow processes have their CPU again."""
        for one in self.all.values():
            one.slow_until = 0.0

    def _starve(self, one: Process, incarnation: int, rng: Random) -> None:
        """Take the CPU from a process for a moment, unless it has ended or is slow no more."""
        clock = self._wires.clock
        if one.starts != incarnation or one.state not in ("up", "paused") or clock.now >= one.slow_until:
            return
        if one.state == "up":
            self._stopped.stop(one.node)
        clock.call_later(_short(rng), partial(self._feed, one, incarnation, rng))

    def _feed(self, one: Process, incarnation: int, rng: Random) -> None:
        """Give a slow process the CPU for a moment."""
        if one.starts == incarnation and one.state == "up":
            self._stopped.resume(one.node)
        self._wires.clock.call_later(_short(rng), partial(self._starve, one, incarnation, rng))

    def _resume(self, name: str, incarnation: int) -> None:
        one = self.all[name]
        if one.state == "paused" and one.starts == incarnation:
            one.state = "up"
            self.disturbed_at = self._wires.clock.now
            self._log(one.node, "goes on")
            self._stopped.resume(one.node)

    async def _live(self, one: Process, incarnation: int) -> None:
        """Run a process until it returns or ends by an error."""
        NODE.set(one.node)
        scope = one.scope
        assert scope is not None
        try:
            with scope:
                work = one.program.main(ADDRESS)
                if not inspect.isawaitable(work):
                    raise TypeError(f"{one.program.name} is no async function: it returns {work!r}")
                await work
        except Exception as error:
            self._ended(one, incarnation, error)
            return
        if one.starts != incarnation or one.state != "up":
            return
        if scope.cancelled_caught:
            one.state = "down"
            self._log(one.node, "has stopped")
            self._wires.clock.call_later(one.back_s, partial(self.start, one.name))
        else:
            one.state = "returned"
            self._log(one.node, "has returned")

    def _ended(self, one: Process, incarnation: int, error: Exception) -> None:
        """Start a process again that ended by an error of the cluster; report any other error."""
        if one.starts != incarnation or one.state != "up":
            return
        first = _first_of(error)
        self._log(one.node, f"ended by {type(first).__name__}: {first}")
        if not one.program.restarts or not is_of_cluster(error):
            self._on_failure(first)
            return
        one.state, one.error = "down", first
        self.disturbed_at = self._wires.clock.now
        self._wires.clock.call_later(self._rng.uniform(*SUPERVISOR_S), partial(self.start, one.name))


def _short(rng: Random) -> float:
    """Return how long a slow process has the CPU, or has it not."""
    least, most = SLICE_S
    return float(least * (most / least) ** rng.random())


def is_of_cluster(error: BaseException) -> bool:
    """Return whether an exception is an error of the cluster, or a group of such errors."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_of_cluster(part) for part in error.exceptions)
    return isinstance(error, TidelogError)


def _first_of(error: BaseException) -> BaseException:
    """Return the first exception inside of groups that is no error of the cluster, or the first of all."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    foreign = [part for part in error.exceptions if not is_of_cluster(part)]
    return _first_of(foreign[0] if foreign else error.exceptions[0])
