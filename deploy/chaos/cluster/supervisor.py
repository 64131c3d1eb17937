"""The view that faults have of the cluster that they strike, and the supervisor, which restarts a process that ended
although no fault ended it."""

from __future__ import annotations

import itertools
import math
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import trio
from chaos.cluster.cluster import ChaosCluster
from chaos.workload.spark_copy import Copier
from tidelog.client.log import Log
from tidelog.errors import TidelogError
from tidelog.wire.messages import ControllerInfo

ALL = "*"
"""A claim to everything: no other fault runs meanwhile."""
LOOK_S = 0.1
"""Pause in seconds between two checks of a condition."""
STEADY_S = 1.0
"""Seconds for which the cluster must be whole before it counts as whole: a gateway's view may be older than the last
change."""
WHOLE_S = 120.0
"""Seconds that replicas may take to be in sync again on a busy machine."""


class Unfit(Exception):
    """Raised if a fault cannot be done now, because there is nothing that it could strike."""


class Unhealed(Exception):
    """Raised if the damage of a fault is not repaired in time."""


def _last_line(log: str) -> str:
    lines = Path(log).read_text(errors="replace").splitlines()
    return lines[-1] if lines else ""


def votes(controller: ControllerInfo) -> bool:
    """Return whether a controller has a vote now: it is a voter, and its store is the one that the group knows, not
    rolled back."""
    return controller.voter and not controller.lost and not controller.rolled_back


@contextmanager
def accept_repeated(code: str) -> Iterator[None]:
    """Ignore an error of this code in the block: the request is repeated, and an earlier try may have been carried
    out."""
    try:
        yield
    except TidelogError as error:
        if error.code != code:
            raise


class _Claim:
    """The parts of the cluster that one fault wants or holds. ``gone`` is set when it gives them up."""

    def __init__(self, parts: Iterable[str]) -> None:
        self.parts = frozenset(parts)
        self.gone = trio.Event()

    def conflicts(self, other: _Claim) -> bool:
        return bool(self.parts & other.parts) or ALL in self.parts or ALL in other.parts


class Claims:
    """The parts of the cluster that faults under way hold: a host, a host's network, the right to damage a disk.
    Faults get them in the order in which they ask."""

    def __init__(self) -> None:
        self._taken: list[_Claim] = []
        """The claims of the faults that hold something or wait, in the order in which they asked."""

    @asynccontextmanager
    async def holding(self, *claims: str, until: float = math.inf) -> AsyncIterator[None]:
        """Hold these parts during the block, after waiting until no earlier fault wants one of them. Raises ``Unfit``
        if that takes until the time ``until``."""
        mine = _Claim(claims)
        self._taken.append(mine)
        try:
            with trio.move_on_at(until):
                while (blocker := self._before(mine)) is not None:
                    await blocker.gone.wait()
            if self._before(mine) is not None:
                raise Unfit("its turn did not come while the run lasted")
            yield
        finally:
            self._taken.remove(mine)
            mine.gone.set()

    def _before(self, mine: _Claim) -> _Claim | None:
        """Return an earlier claim that wants one of the same parts; None if there is none."""
        earlier = itertools.takewhile(lambda other: other is not mine, self._taken)
        return next((other for other in earlier if other.conflicts(mine)), None)


@dataclass(slots=True)
class Stage:
    """The cluster of one run, as its faults see and change it, with a client of it."""

    cluster: ChaosCluster
    log: Log
    topic: str
    """The topic whose leaders and followers are struck."""
    overload: Callable[[bool], None]
    """A function that lets the workload send as fast as it can (True), or no longer (False)."""
    copier: Copier | None = None
    """The Spark query; None if the run has none."""
    claims: Claims = field(default_factory=Claims)
    down: Counter[str] = field(default_factory=Counter)
    """For each process the number of faults that keep it down; it is restarted only by them."""
    ended: list[tuple[float, str, str]] = field(default_factory=list)
    """(time, process, last line of its log) of the processes that ended although no fault ended them."""
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _turn: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(1))

    # --- doing -------------------------------------------------------------------------------------------

    async def do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function that changes the cluster, in a thread, and return its result. Such calls run one after the
        other."""
        return await trio.to_thread.run_sync(function, *arguments, limiter=self._turn)

    async def kill(self, *nodes: str) -> None:
        """Kill these processes with SIGKILL; the supervisor does not restart them before ``start``."""
        self.down.update(nodes)
        await self.do(self.cluster.kill, *nodes)

    async def start(self, *nodes: str) -> None:
        """Start these processes, if they do not run, and let the supervisor watch them again."""
        for node in nodes:
            if not self.cluster.get(node).is_alive():
                await self.do(self.cluster.restart, node)
            self.down[node] -= 1

    async def lose_power(self, *nodes: str) -> None:
        """Cut the power of these hosts at once, until ``regain_power``: writes that were not synced are lost."""
        self.down.update(nodes)
        await self.do(self.cluster.lose_power, *nodes)

    async def boot(self, *nodes: str) -> None:
        """Boot these hosts, so that their disks can be read again. Their processes are started by ``start``."""
        await self.do(self.cluster.regain_power, *nodes)

    async def regain_power(self, *nodes: str) -> None:
        """Boot these hosts and start their processes."""
        await self.boot(*nodes)
        await self.start(*nodes)

    async def repeat_until(
        self, act: Callable[[], Awaitable[object]], holds: Callable[[dict[str, bool]], bool]
    ) -> None:
        """Call ``act`` again and again until ``holds`` is true of the controllers in the group, given as name ->
        whether it votes. Errors of the cluster are ignored. Raises ``Unhealed`` after ``WHOLE_S`` seconds."""
        with trio.move_on_after(WHOLE_S):
            while True:
                with suppress(TidelogError):  # asked again
                    if holds(await self.votes()):
                        return
                    await act()
                await trio.sleep(LOOK_S)
        raise Unhealed(f"the group of controllers did not become as it should be within {WHOLE_S:g} s")

    async def vote_again(self, controller: str) -> None:
        """Add a controller that has lost its store to the group again, once the others know of the loss, as its log
        advises the operator. Returns when it votes. Raises ``Unhealed`` if that takes too long."""
        await self.repeat_until(trio.lowlevel.checkpoint, lambda votes: not votes.get(controller, False))
        url = self.cluster.get(controller).url
        await self.repeat_until(
            lambda: self.log.cluster.add_controller(controller, url), lambda votes: votes.get(controller, False)
        )

    async def commit(self, topics: int) -> None:
        """Have the controllers commit entries, by creating and deleting this many topics. Raises ``Unhealed`` if that
        takes too long."""
        for _ in range(topics):
            name = f"passing-{next(self._numbers)}"

            async def create(name: str = name) -> list[str]:
                with accept_repeated("TOPIC_EXISTS"):
                    await self.log.topics.create(name, replication_factor=1)
                return [name]

            async def delete(name: str = name) -> list[str]:
                with accept_repeated("UNKNOWN_TOPIC"):
                    await self.log.topics.delete(name)
                return [name]

            await self._until(create)
            await self._until(delete)

    async def acknowledged(self, controller: str) -> None:
        """Wait until a controller votes, and has acknowledged all that is committed now. Raises ``Unhealed`` if that
        takes too long."""
        wanted: list[int] = []

        async def find() -> list[str]:
            quorum = await self.log.cluster.quorum()
            wanted.append(quorum.commit_index)
            have = [one.node for one in quorum.controllers if votes(one) and one.match >= wanted[0]]
            return [controller] if controller in have else []

        await self._until(find)

    @asynccontextmanager
    async def old_copy_named(self, controller: str) -> AsyncIterator[None]:
        """Ask for the controllers' status from the beginning of the block on, and at its end wait until a status has
        reported the controller's disk as an old copy. Raises ``Unhealed`` if that takes too long."""
        named = trio.Event()

        async def ask() -> None:
            while not named.is_set():
                with suppress(TidelogError):  # asked again
                    if any(
                        one.rolled_back
                        for one in (await self.log.cluster.quorum()).controllers
                        if one.node == controller
                    ):
                        named.set()
                await trio.sleep(LOOK_S / 10)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            yield
            with trio.move_on_after(WHOLE_S):
                await named.wait()
            nursery.cancel_scope.cancel()
        if not named.is_set():
            raise Unhealed(f"status did not say that the disk of {controller} is an old copy")

    async def votes(self) -> dict[str, bool]:
        """Return for each controller of the group whether it has a vote. Raises ``TidelogError`` if the cluster does
        not answer."""
        return {one.node: votes(one) for one in (await self.log.cluster.quorum()).controllers}

    async def supervise(self) -> None:
        """Restart every process that ends although no fault keeps it down, as systemd or Kubernetes would, and note
        its end; for ever."""
        while True:
            await trio.sleep(0.5)
            for process in self.cluster.processes:
                if process.pid and not process.is_alive() and self.down[process.id] <= 0:
                    self.ended.append((trio.current_time(), process.id, _last_line(process.log)))
                    await self.do(self.cluster.restart, process.id)

    @asynccontextmanager
    async def traced(self, node: str, inject: str) -> AsyncIterator[None]:
        """Let strace tamper with the system calls of a process during the block, as its option ``--inject`` says."""
        calls = inject.partition(":")[0]
        command = ["strace", "--follow-forks", "--quiet=all", "--output=/dev/null", f"--trace={calls}"]
        command += [f"--inject={inject}", f"--attach={self.cluster.get(node).pid}"]
        tracer = subprocess.Popen(command, stderr=subprocess.DEVNULL)  # noqa: ASYNC220 (starts at once)
        try:
            yield
        finally:
            tracer.terminate()
            tracer.wait()

    # --- looking -----------------------------------------------------------------------------------------

    def nodes(self, role: str) -> list[str]:
        """Return the ids of all processes of a role."""
        return [process.id for process in self.cluster.of_role(role)]

    def everyone(self) -> list[str]:
        """Return the ids of all processes."""
        return [process.id for process in self.cluster.processes]

    def others(self, node: str) -> list[str]:
        """Return the ids of all processes but this one."""
        return [other for other in self.everyone() if other != node]

    async def leader(self, random: Random) -> str:
        """Return the leader of a random partition of the topic. Raises ``Unhealed`` if there is none in time."""
        return random.choice(await self._until(self._leaders))

    async def follower(self, random: Random) -> str:
        """Return the replica server that leads the fewest partitions of the topic. Raises ``Unhealed`` if no
        partition is led in time."""
        leaders = await self._until(self._leaders)
        nodes = self.nodes("replica")
        fewest = min(leaders.count(node) for node in nodes)
        return random.choice([node for node in nodes if leaders.count(node) == fewest])

    async def active(self, random: Random) -> str:
        """Return the active controller. Raises ``Unhealed`` if there is none in time."""

        async def find() -> list[str]:
            return [node] if (node := (await self.log.cluster.quorum()).active) else []

        (node,) = await self._until(find)
        return node

    async def topic_id(self) -> str:
        """Return the id of the topic, by which the folders of its partitions are named."""

        async def find() -> list[str]:
            return [(await self.log.topics.describe(self.topic)).topic_id]

        (topic_id,) = await self._until(find)
        return topic_id

    async def _leaders(self) -> list[str]:
        return [p.leader for p in (await self.log.topics.describe(self.topic)).partitions if p.leader]

    async def _until(self, find: Callable[[], Any]) -> list[str]:
        """Call ``find`` until it returns something that is not empty, and return that as a list. Errors of the
        cluster are ignored. Raises ``Unhealed`` after ``WHOLE_S`` seconds."""
        with trio.move_on_after(WHOLE_S):
            while True:
                with suppress(TidelogError):  # nobody knows at the moment; asked again
                    if found := await find():
                        return list(found)
                await trio.sleep(LOOK_S)
        raise Unhealed(f"nobody led, or could be asked, for {WHOLE_S:g} s")

    async def is_whole(self) -> bool:
        """Return whether every process runs, every server is registered and not fenced, every replica of every topic
        is in sync, and every controller votes; False if the cluster does not answer."""
        try:
            status = await self.log.cluster.status()
            votes = await self.votes()
        except TidelogError:
            return False
        partitions = [p for topic in status.topics for p in topic.partitions]
        return (
            len(votes) == len(self.nodes("controller"))
            and all(votes.values())
            and all(process.is_going() for process in self.cluster.processes)
            and all(self.cluster.is_registered(node) for node in self.nodes("replica"))
            and not any(server.fenced for server in status.servers)
            and all(p.leader and sorted(p.isr) == sorted(p.replicas) for p in partitions)
        )

    async def wait_whole(self, timeout_s: float = WHOLE_S) -> bool:
        """Wait until the cluster has been whole (``is_whole``) for ``STEADY_S`` seconds, and return True; False after
        ``timeout_s``."""
        with trio.move_on_after(timeout_s):
            since = math.inf
            while not trio.current_time() - since >= STEADY_S:
                since = min(since, trio.current_time()) if await self.is_whole() else math.inf
                await trio.sleep(LOOK_S)
            return True
        return False

    async def until(self, holds: Callable[[], bool]) -> None:
        """Call ``holds``, which looks at files, in a thread until it returns True. Raises ``Unhealed`` after
        ``WHOLE_S`` seconds."""
        with trio.move_on_after(WHOLE_S):
            while not await trio.to_thread.run_sync(holds):  # noqa: ASYNC110 (on a disk)
                await trio.sleep(LOOK_S)
            return
        raise Unhealed(f"what was damaged is not repaired after {WHOLE_S:g} s")
