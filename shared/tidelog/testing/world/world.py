"""``World``: what a test declares, and runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from tidelog.errors import ConfigError
from tidelog.testing.hardware.loop import stream
from tidelog.testing.world.faults import KINDS, Calm, WorldFault
from tidelog.testing.world.outcome import Invariant, Outcome
from tidelog.testing.world.programs import Main, Program
from tidelog.testing.world.run import Setting, Topic, WorldRun
from tidelog.testing.world.swarm import draw
from tidelog.types import TopicConfig


class World:
    """A simulated cluster in which the programs of a test run under faults. A test gets one as the fixture
    ``tidelog_world``, and is itself an ordinary function:

        def test_every_order_is_billed_once(tidelog_world):
            world = tidelog_world
            world.topic("orders", partitions=2)
            world.topic("bills", partitions=2)
            world.program(produce_orders)
            world.program(bill_orders, copies=2)
            world.invariant(exactly_once("bills", of="orders"))
            world.run()

    A *program* is an async function of the address for ``tidelog.connect``. It is an ordinary program on trio:
    nurseries, ``trio.sleep``, groups, transactions. Time is virtual: an hour of ``trio.sleep`` takes no time. What
    ``random``, ``time``, ``uuid`` and ``os.urandom`` return is a function of the seed.

    A run has four parts. Programs and faults run. Everything heals. The programs finish: those that end return, and
    the others have nothing more to do. Then all topics are read, and the invariants are judged.

    State outside of the log, such as a database, is an object of the test: a list or a dict. It survives kills. The
    test function is called once for each seed, so the object is a new one for each.
    """

    def __init__(self, seed: int = 0) -> None:
        """``seed`` decides everything that happens."""
        self.seed = seed
        self.trace: list[str] = []
        """A line for everything that happened in the run."""
        self._calm = Calm()
        self._given: Sequence[WorldFault] | None = None
        self._kinds: tuple[str, ...] = KINDS
        self._setting = Setting()
        self._on_end: Callable[[WorldRun], None] | None = None
        self.has_run = False
        """Whether ``run`` was called."""

    def prepare(
        self,
        seed: int,
        *,
        calm: Calm | None = None,
        faults: Sequence[WorldFault] | None = None,
        on_end: Callable[[WorldRun], None] | None = None,
    ) -> None:
        """Choose the seed of the run. ``calm``: what a run without faults came to, from which the moments of faults
        are drawn. ``faults``: strike with these instead of those that the seed draws. ``on_end`` is called with the
        run when it is over, also if it failed."""
        self.seed = seed
        self._calm = calm or Calm()
        self._given = faults
        self._on_end = on_end

    def topic(self, name: str, *, partitions: int = 1, **config: Any) -> None:
        """Have a topic when the programs start, with three replicas. ``config``: settings of the topic, by the names
        of ``TopicConfig``; ``min_insync_replicas`` is 2 unless it is given. Raises ``ConfigError`` for an unknown
        setting, and for a second topic of that name."""
        known = {one.name for one in fields(TopicConfig)}
        unknown = sorted(set(config) - known)
        if unknown:
            raise ConfigError(f"topic {name}: there is no setting {', '.join(unknown)}")
        if name in {topic.name for topic in self._setting.topics}:
            raise ConfigError(f"the world has topic {name} already")
        self._setting.topics.append(Topic(name, partitions, dict(config)))

    def program(
        self, main: Main, *, copies: int = 1, name: str | None = None, restarts: bool = True, ends: bool = True
    ) -> None:
        """Run a program, ``copies`` times at once, each as a process of its own. ``name``: how traces and faults name
        it; by default the name of the function. ``restarts``: a process that is killed, or ends by an error of the
        cluster (``TidelogError``), is started again, as by a supervisor; False: it is never killed, and its errors
        fail the test. Any other exception fails the test. ``ends``: the run waits until the program returns; False:
        it runs for ever and is ended when it has nothing more to do. Raises ``ConfigError`` if two programs have one
        name, for less than one copy, and if ``main`` is no function."""
        chosen = name or str(getattr(main, "__name__", "program"))
        if chosen in {program.name for program in self._setting.programs}:
            raise ConfigError(f"there are two programs with the name {chosen}: give one another name")
        if not callable(main):
            raise ConfigError(f"{main!r} is no function: give the async function itself, not what it returns")
        if copies < 1:
            raise ConfigError(f"{chosen}: {copies} copies")
        self._setting.programs.append(Program(main, chosen, copies, restarts, ends))

    def invariant(self, invariant: Invariant) -> None:
        """Judge the end of the run by a function of its ``Outcome``, sync or async, that returns None, or a sentence
        that says what is wrong. ``exactly_once`` and others make such functions."""
        self._setting.invariants.append(invariant)

    def faults(self, *kinds: str) -> None:
        """Let only faults of these kinds happen; with no kind, none. Raises ``ConfigError`` for an unknown kind.
        Kinds of programs: ``kill_program``, ``stop_program`` (its tasks are cancelled with the network intact, and it
        is started again), ``restart_loop`` (that several times), ``start_late``, ``pause_program`` (it stands still,
        up to longer than its session), ``slow_program`` (it stands still for a moment, again and again),
        ``lose_answer`` (what is on its way to it is lost, and its connections break), ``lose_request`` (what it has
        just sent is lost, too), ``isolate_program`` and ``refuse_sends`` (the topic to which it has sent last is
        read-only for a while). Kinds of the cluster: ``kill``, ``power``, ``disk_error`` and ``slow_disk`` (a replica
        server), ``move_leader``, ``kill_gateway``, ``kill_controller``, ``cut``, ``block``, ``mute`` and ``slow``
        (the network), and ``clock`` (a wall clock jumps)."""
        unknown = [kind for kind in kinds if kind not in KINDS]
        if unknown:
            raise ConfigError(f"there is no fault {', '.join(unknown)}; there are {', '.join(KINDS)}")
        self._kinds = kinds

    def run(self) -> Outcome:
        """Run the programs under the faults of the seed, and return the outcome. It is called once. Raises
        ``InvariantBroken`` if an invariant does not hold, ``ProgramsStuck`` if programs do not return though
        everything was healed, the exception of a program, or ``RuntimeError`` for a second call."""
        if self.has_run:
            raise RuntimeError("a world runs once: call world.run() once in a test")
        self.has_run = True
        run = WorldRun(self._setting, self.seed, self._drawn())
        try:
            return run.run()
        finally:
            self.trace = run.trace
            if self._on_end is not None:
                self._on_end(run)

    def _drawn(self) -> Sequence[WorldFault]:
        """Return the faults of the run."""
        if self._given is not None:
            return self._given
        places = [place for program in self._setting.programs for place in program.places]
        if not places or not self._kinds:
            return ()
        return draw(stream(self.seed, "world faults"), self.seed, places, self._kinds, self._calm)
