"""Carries the faults of a run out: at their times, or at the moments of the programs' traffic that they wait for."""

from __future__ import annotations

import errno
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from random import Random

import trio

from tidelog.client.log import Log
from tidelog.errors import TidelogError
from tidelog.testing.world.cluster import GATEWAY, WorldServices
from tidelog.testing.world.entropy import WallClocks
from tidelog.testing.world.faults import PROGRAM_KINDS, WorldFault
from tidelog.testing.world.programs import Processes
from tidelog.testing.world.wires import Wires

THREAD_S = 0.001
"""Longest time of a call in a thread, as of a sync of a disk, while no fault makes it slow."""
PAUSE_S = 0.5
RESET_S = 0.03
"""Seconds after which connections break whose answers were lost."""


class Strikes:
    """The faults of a run. ``ask`` runs a function with a client of the operator; ``topics`` are the topics whose
    leaders are moved, with the number of their partitions; ``sent_to`` returns the topic to which a program has sent
    last, "" if to none."""

    def __init__(
        self,
        faults: Sequence[WorldFault],
        processes: Processes,
        services: WorldServices,
        wires: Wires,
        clocks: WallClocks,
        rng: Random,
        log: Callable[[str, str], None],
        topics: dict[str, int],
        sent_to: Callable[[str], str],
        ask: Callable[[Callable[[Log], Awaitable[object]]], Awaitable[object]],
        nursery: trio.Nursery,
    ) -> None:
        self.struck: list[WorldFault] = []
        """The faults that have struck, in order."""
        self.open = True
        """Whether faults still strike."""
        self._faults = faults
        self._processes = processes
        self._services = services
        self._wires = wires
        self._clocks = clocks
        self._rng = rng
        self._log = log
        self._topics = topics
        self._sent_to = sent_to
        self._ask = ask
        self._nursery = nursery
        self._slow: dict[str, tuple[float, float]] = {}
        self._waiting: dict[tuple[str, str, int], list[WorldFault]] = defaultdict(list)
        self._healed = trio.Event()
        self._refusals = 0
        """How many topics are read-only, or will be in a moment."""

    def begin(self) -> None:
        """Let the times of the faults count from now. Call it before the processes start."""
        now = self._wires.clock.now
        for fault in self._faults:
            if fault.kind == "start_late":
                self._strike(fault)
            elif fault.moment:
                self._waiting[fault.program, fault.moment, fault.number].append(fault)
            else:
                self._wires.clock.call_at(now + fault.at, partial(self._strike, fault))

    @property
    def waiting(self) -> bool:
        """Return whether faults wait for their moments."""
        return bool(self._waiting)

    def on_moment(self, program: str, moment: str, number: int) -> None:
        """Strike with the faults that wait for this moment of a program."""
        for fault in self._waiting.pop((program, moment, number), ()):
            if fault.delay_s:
                self._wires.clock.call_later(fault.delay_s, partial(self._strike, fault))
            else:  # in the context of the world: what it starts belongs to no program
                self._wires.clock.context.run(self._strike, fault)

    def thread_s(self, node: str) -> float:
        """Return how long the next call in a thread of a node takes."""
        slow_s, until = self._slow.get(node, (0.0, 0.0))
        longest = slow_s if until > self._wires.clock.now else THREAD_S
        return self._rng.uniform(0.0, longest)

    async def heal(self) -> None:
        """End all faults of the cluster, start its processes, and wait until all topics take records."""
        self.open = False
        self._healed.set()
        self._slow.clear()
        self._wires.heal()
        self._processes.speed_up()
        if self.struck:
            self._processes.disturbed_at = self._wires.clock.now
        for disk in self._services.disks.values():
            disk.heal()
        for node in self._services.names:
            self._services.start(node)
        while self._refusals:  # noqa: ASYNC110
            await trio.sleep(PAUSE_S)

    def _strike(self, fault: WorldFault) -> None:
        if not self.open:
            return
        self.struck.append(fault)
        self._log("FAULT", str(fault))
        if fault.kind == "refuse_sends":
            self._refusals += 1
            self._nursery.start_soon(self._refuse_sends, self._sent_to(fault.target), fault.seconds)
        elif fault.kind in PROGRAM_KINDS:
            self._strike_program(fault)
        else:
            self._strike_cluster(fault)

    def _strike_program(self, fault: WorldFault) -> None:
        wires, node = self._wires, self._processes.all[fault.target].node
        if fault.kind == "kill_program":
            self._processes.kill(fault.target, fault.back_s, fault.linger_s)
        elif fault.kind == "stop_program":
            self._processes.stop(fault.target, fault.back_s)
        elif fault.kind == "restart_loop":
            for number in range(fault.times):
                after_s = number * (fault.back_s + fault.seconds)
                wires.clock.call_later(after_s, partial(self._stop_again, fault.target, fault.back_s))
        elif fault.kind == "start_late":
            self._processes.start_late(fault.target, fault.seconds)
        elif fault.kind == "pause_program":
            self._processes.pause(fault.target, fault.seconds)
        elif fault.kind == "slow_program":
            self._processes.slow_down(fault.target, fault.seconds, self._rng)
        elif fault.kind == "lose_request":
            wires.cut(node, silent=True)
            self._isolate(node, fault.seconds)
        elif fault.kind == "lose_answer":
            wires.mute(GATEWAY, node)
            wires.clock.call_later(RESET_S, partial(wires.cut, node, silent=True))
            if fault.seconds:
                wires.clock.call_later(RESET_S, partial(self._isolate, node, fault.seconds))
        else:
            self._isolate(node, fault.seconds)

    def _stop_again(self, target: str, back_s: float) -> None:
        if self.open:
            self._processes.stop(target, back_s)

    async def _refuse_sends(self, topic: str, seconds: float) -> None:
        """Make a topic read-only for some seconds; a random one if none is named. Does nothing in a world without
        topics."""
        topic = topic or self._rng.choice(sorted(self._topics) or [""])
        if topic:
            await self._ask(lambda log: log.partitions.set_read_only(topic))
            self._log("world", f"{topic} is read-only")
            with trio.move_on_after(seconds):
                await self._healed.wait()
            await self._ask(lambda log: log.partitions.set_read_only(topic, read_only=False))
            self._log("world", f"{topic} takes records again")
        self._refusals -= 1

    def _isolate(self, node: str, seconds: float) -> None:
        self._wires.block(node, GATEWAY, seconds)
        self._wires.block(GATEWAY, node, seconds)

    def _strike_cluster(self, fault: WorldFault) -> None:
        """Perform a fault of the cluster or the network."""
        wires, services, target, other = self._wires, self._services, fault.target, fault.other
        target, other = self._node(target), self._node(other)
        if fault.kind in ("kill", "power", "kill_gateway", "kill_controller"):
            services.kill(target, power=fault.kind == "power")
            services.start_later(target, fault.back_s)
        elif fault.kind == "move_leader":
            self._nursery.start_soon(self._move_leader, target)
        elif fault.kind == "cut":
            wires.cut(target, other)
        elif fault.kind == "block":
            wires.block(target, other, fault.seconds)
        elif fault.kind == "mute":
            wires.mute(target, other)
        elif fault.kind == "slow":
            wires.latency = fault.seconds
        elif fault.kind == "slow_disk":
            self._slow[target] = (fault.seconds, wires.clock.now + fault.back_s)
        elif fault.kind == "clock":
            self._clocks.wrong_s[fault.target] = self._clocks.wrong_s.get(fault.target, 0.0) + fault.seconds
        elif target in services.disks:
            services.disks[target].fail_syncs(errno.EIO)

    def _node(self, name: str) -> str:
        process = self._processes.all.get(name)
        return name if process is None else process.node

    async def _move_leader(self, server: str) -> None:
        """Ask for another leader of a random partition. Does nothing in a world without topics."""
        if not self._topics:
            return
        topic = self._rng.choice(sorted(self._topics))
        partition = self._rng.randrange(self._topics[topic])

        async def move(log: Log) -> object:
            try:
                return await log.partitions.transfer(topic, partition, server)
            except TidelogError as error:  # it leads already, or is not in sync
                return self._log("world", f"the leader of {topic}/{partition} stays: {error}")

        await self._ask(move)
