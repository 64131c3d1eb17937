"""One run of a world: the cluster starts, programs and faults run, everything heals, the invariants are judged."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import trio

from tidelog.client.log import Log
from tidelog.client.options import ConsumerOptions
from tidelog.client.trio_loop import connect
from tidelog.errors import TidelogError
from tidelog.net import controller_link
from tidelog.net.link import PATIENCE
from tidelog.net.websocket import frame_stream
from tidelog.net.websocket.frame_stream import FrameStream
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.testing.hardware.loop import stream
from tidelog.testing.shells.determinism import determined
from tidelog.testing.shells.streams import NODE
from tidelog.testing.world.clock import EventClock
from tidelog.testing.world.cluster import ADDRESS, CHECK_S, HEARTBEATS_MS, LATENCIES_S, WorldServices
from tidelog.testing.world.entropy import WallClocks, seeded, without_collection
from tidelog.testing.world.faults import Calm, WorldFault
from tidelog.testing.world.outcome import Invariant, Outcome, judge
from tidelog.testing.world.programs import Processes, Program
from tidelog.testing.world.stopped_tasks import StoppedTasks
from tidelog.testing.world.strikes import Strikes
from tidelog.testing.world.traffic import Traffic
from tidelog.testing.world.wires import Wires

T = TypeVar("T")
MEMORY = Path("/dev/shm")
"""A folder in memory on Linux: the controller's store is a real file."""
LOAD_S = 120.0
"""Virtual seconds after which everything heals, if the programs have not returned before."""
FINISH_S = 300.0
"""Virtual seconds that the programs have to return after everything is healed."""
BOOT_S = 60.0
QUIET_S = 8.0
"""The programs are quiet when they have neither sent, received nor committed records for so many seconds."""
REBALANCE_S = 7.0
"""Seconds after its session timeout until the partitions of a dead member have gone to others, and these work."""
NOTICED_S = PATIENCE.most_s + QUIET_S
"""Seconds after which every side has closed its mute connections, and works again."""
PAUSE_S = 0.5


class ProgramsStuck(AssertionError):
    """The error that programs have not returned though everything was healed long ago."""


class InvariantBroken(AssertionError):
    """The error that an invariant of a world does not hold. The text has the seed, the faults and the way to replay
    the run."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of a world."""

    name: str
    partitions: int
    config: dict[str, object]


@dataclass(slots=True)
class Setting:
    """Everything that a run consists of besides its seed and its faults."""

    topics: list[Topic] = field(default_factory=list)
    programs: list[Program] = field(default_factory=list)
    invariants: list[Invariant] = field(default_factory=list)


class WorldRun:
    """One run. ``trace`` has a line for everything that has happened; ``calm`` says afterwards what the programs
    did."""

    def __init__(self, setting: Setting, seed: int, faults: Sequence[WorldFault]) -> None:
        self.trace: list[str] = []
        self.struck: list[WorldFault] = []
        self.seconds = 0.0
        """The virtual seconds of the whole run."""
        self.calm = Calm()
        self._setting = setting
        self._seed = seed
        self._faults = faults
        self._clock = EventClock()
        self._clocks = WallClocks(self._clock.current_time)
        settings = stream(seed, "world settings")
        self._heartbeat_ms = settings.choice(HEARTBEATS_MS)
        self._wires = Wires(stream(seed, "world network"), self._clock, settings.choice(LATENCIES_S))
        self._stopped = StoppedTasks()
        self._traffic = Traffic(self._log, self._clock.current_time)
        self._strikes: Strikes | None = None
        self._processes: Processes | None = None
        self._failure: BaseException | None = None
        self._main_scope = trio.CancelScope()

    @property
    def digest(self) -> str:
        """Return a digest of the whole trace: equal runs have equal digests."""
        return hashlib.blake2b("\n".join(self.trace).encode(), digest_size=16).hexdigest()

    def run(self) -> Outcome:
        """Run everything and return the outcome. Raises ``InvariantBroken``, ``ProgramsStuck``, or the exception of a
        program."""
        with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder, self._patches():
            outcomes: list[Outcome] = []
            trio.run(self._main, Path(folder), outcomes, clock=self._clock)
        self.seconds = self._clock.now
        if self._failure is not None:
            raise self._failure
        return outcomes[0]

    # --- what the run stands on --------------------------------------------------------------------------

    @contextmanager
    def _patches(self) -> Iterator[None]:
        """Replace what is not a function of the seed: chance, clocks, sockets, threads and the order of tasks."""
        connect_over_tcp = WebSocketTransport.connect

        async def connect_and_observe(transport: WebSocketTransport, url: str) -> Any:
            connection = await connect_over_tcp(transport, url)
            if "#" in NODE.get() and isinstance(connection, FrameStream):
                self._traffic.observe(connection)
            return connection

        wires = self._wires
        with (
            determined(stream(self._seed, "world order"), self._thread_s),
            seeded(stream(self._seed, "world entropy"), self._clock.current_time, self._clocks),
            self._stopped.installed(),
            without_collection(),
            mock.patch.object(trio.to_thread, "run_sync", self._run_in_thread),
            mock.patch.object(trio, "open_tcp_stream", wires.open_tcp_stream),
            mock.patch.object(trio, "open_tcp_listeners", wires.open_tcp_listeners),
            mock.patch.object(frame_stream, "direct_socket", wires.direct_socket),
            mock.patch.object(frame_stream, "read_when_ready", wires.read_when_ready),
            mock.patch.object(WebSocketTransport, "connect", connect_and_observe),
            mock.patch.object(controller_link, "CHECK_S", CHECK_S),
        ):
            yield

    def _thread_s(self) -> float:
        return 0.0005 if self._strikes is None else self._strikes.thread_s(NODE.get())

    async def _run_in_thread(self, call: Callable[..., T], *arguments: object, **_: object) -> T:
        """Call a function after the time that a thread takes for it; see ``trio.to_thread.run_sync``."""
        self._clock.call_later(self._thread_s(), partial(trio.lowlevel.reschedule, trio.lowlevel.current_task()))
        await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        return call(*arguments)

    def _log(self, node: str, text: str) -> None:
        self.trace.append(f"{self._clock.now:11.6f} {node} {text}")

    def _fail(self, error: BaseException) -> None:
        """End the run with an exception."""
        if self._failure is None:
            self._failure = error
            self._main_scope.cancel()

    # --- the course of the run ---------------------------------------------------------------------------

    async def _main(self, folder: Path, outcomes: list[Outcome]) -> None:
        NODE.set("world")
        self._clock.context = copy_context()
        async with trio.open_nursery() as nursery:
            disks = stream(self._seed, "world disks")
            services = WorldServices(self._wires, nursery, folder, disks, self._heartbeat_ms)
            with self._main_scope:
                for node in services.names:
                    services.start(node)
                try:
                    with trio.fail_after(BOOT_S):
                        await self._create_topics()
                    outcome = await self._play(services, nursery)
                    outcomes.append(outcome)
                    await self._judge(outcome)
                except Exception as error:  # raised by ``run``, not inside of a group
                    self._fail(error)
            if self._strikes is not None:
                self._strikes.open = False
            if self._processes is not None:
                self._processes.close()
            self._stopped.resume_all()
            nursery.cancel_scope.cancel()

    async def _create_topics(self) -> None:
        for topic in self._setting.topics:
            config = {"min_insync_replicas": 2, **topic.config}

            async def create(log: Log, topic: Topic = topic, config: dict[str, object] = config) -> None:
                if not any(found.name == topic.name for found in await log.topics.list()):
                    await log.topics.create(
                        topic.name, partitions=topic.partitions, replication_factor=3, config=config
                    )

            await self._ask(create)
        self._traffic.topics = await self._ask(_topic_names)

    async def _play(self, services: WorldServices, nursery: trio.Nursery) -> Outcome:
        """Run programs and faults, heal, wait until the programs have finished, and read the topics."""
        programs, log = self._setting.programs, self._log
        supervisor = stream(self._seed, "world supervisor")
        processes = Processes(programs, self._wires, self._stopped, nursery, supervisor, log, self._fail)
        self._processes = processes
        topics = {topic.name: topic.partitions for topic in self._setting.topics}
        self._strikes = strikes = Strikes(
            *(self._faults, processes, services, self._wires, self._clocks, stream(self._seed, "world strikes")),
            *(log, topics, self._traffic.sent_to, self._ask, nursery),
        )
        self._traffic.on_moment = strikes.on_moment
        self.struck = strikes.struck
        began = self._clock.now
        strikes.begin()
        processes.start_all()
        await self._load(processes, strikes, began)
        self._log("world", "everything is healed")
        await strikes.heal()
        await self._finish(processes)
        worked_s = max(0.1, self._traffic.worked_at - began)
        counts = {name: dict(counts) for name, counts in self._traffic.counts.items()}
        self.calm = Calm(worked_s, counts, self._traffic.session_s)
        return await self._read()

    async def _load(self, processes: Processes, strikes: Strikes, began: float) -> None:
        """Wait until the programs have returned and are quiet, or the time of the load is over; then until no process
        is dead or stands still. While faults wait for their moments, partitions of dead members go to others first:
        these get much at once, and faults may strike then. Faults whose time or moment has not come by then do not
        strike."""
        limit = began + LOAD_S
        while self._clock.now < limit and not (  # noqa: ASYNC110
            processes.finished
            and self._is_quiet(QUIET_S)
            and (not strikes.waiting or self._clock.now >= self._settles_at(processes))
        ):
            await trio.sleep(PAUSE_S)
        strikes.open = False
        while processes.interrupted and self._clock.now < limit + LOAD_S:  # noqa: ASYNC110
            await trio.sleep(PAUSE_S)

    async def _finish(self, processes: Processes) -> None:
        """Wait until all programs that end have returned, and the others are quiet. Raises ``ProgramsStuck``."""
        limit = self._clock.now + FINISH_S
        endless = any(not one.program.ends for one in processes.all.values())
        while not processes.finished or processes.interrupted:
            if self._clock.now > limit:
                raise ProgramsStuck(self._describe_stuck(processes))
            await trio.sleep(PAUSE_S)
        while endless and not (
            self._is_quiet(QUIET_S) and self._clock.now >= min(limit, self._settles_at(processes))
        ):
            if self._clock.now > limit + FINISH_S:
                raise ProgramsStuck(
                    f"programs still send or receive records {FINISH_S:g} s after everything was healed"
                )
            await trio.sleep(PAUSE_S)

    def _settles_at(self, processes: Processes) -> float:
        """Return when the partitions of dead members have gone to others, and all have noticed mute connections;
        0.0 if no fault has struck."""
        settling_s = max(NOTICED_S, self._traffic.session_s + REBALANCE_S)
        return processes.disturbed_at + settling_s if self.struck else 0.0

    def _is_quiet(self, seconds: float) -> bool:
        return self._clock.now - self._traffic.worked_at >= seconds

    def _describe_stuck(self, processes: Processes) -> str:
        stuck = [one for one in processes.all.values() if one.program.ends and one.state != "returned"]
        lines = [f"{one.name} has not returned {FINISH_S:g} s after everything was healed" for one in stuck]
        lines += [f"{one.name} ended by {type(one.error).__name__}: {one.error}" for one in stuck if one.error]
        return "\n".join(lines)

    async def _ask(self, call: Callable[[Log], Awaitable[T]]) -> T:
        """Run a function with a client of the operator; repeat it on errors of the cluster. Raises errors of
        the request, such as ``INVALID_TOPIC``."""
        while True:
            try:
                async with connect(ADDRESS, name="world") as log:
                    return await call(log)
            except TidelogError as error:
                if error.code.startswith("INVALID_"):
                    raise
                self._log("world", f"repeats a request: {error}")
                await trio.sleep(PAUSE_S)

    # --- the end -----------------------------------------------------------------------------------------

    async def _read(self) -> Outcome:
        """Wait until no transaction is open, and read the topics and positions."""
        with trio.fail_after(FINISH_S):
            while await self._ask(_has_open_transactions):  # noqa: ASYNC110
                await trio.sleep(PAUSE_S)
            topics = {topic.name: await self._ask(_reader(topic.name)) for topic in self._setting.topics}
            positions = await self._ask(self._positions)
        return Outcome(self._seed, topics, positions)

    async def _positions(self, log: Log) -> dict[tuple[str, str], dict[int, int]]:
        found = {}
        for group in await log.groups.list():
            for topic in self._setting.topics:
                positions = await log.groups.fetch_offsets(group.group, topic.name)
                found[group.group, topic.name] = {part: place.offset for part, place in sorted(positions.items())}
        return found

    async def _judge(self, outcome: Outcome) -> None:
        """Raise ``InvariantBroken`` if an invariant does not hold."""
        for invariant in self._setting.invariants:
            said = await judge(invariant, outcome)
            if said is not None:
                self._log("world", f"INVARIANT BROKEN: {said}")
                self._fail(InvariantBroken(said))
                return


async def _topic_names(log: Log) -> dict[str, str]:
    """Return the name of each topic, by topic id."""
    return {topic.topic_id: topic.name for topic in await log.topics.list()}


async def _has_open_transactions(log: Log) -> bool:
    """Return whether a transaction has not ended everywhere, so that readers may still wait for it."""
    return any(one.state in ("open", "committing", "aborting") for one in await log.transactions.list())


def _reader(topic: str) -> Callable[[Log], Awaitable[list[Any]]]:
    """Return a function that reads all committed records of a topic."""

    async def read(log: Log) -> list[Any]:
        options = ConsumerOptions(consistency="linearizable")
        records = [record async for record in log.consume(topic, start="earliest", end="latest", options=options)]
        return sorted(records, key=lambda record: (record.partition, record.offset))

    return read
