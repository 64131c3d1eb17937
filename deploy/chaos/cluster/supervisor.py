"""What faults see of the cluster that they strike, and the cluster's supervisor, which starts a process again that
ended unasked."""

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
"""Claims everything: no other fault meanwhile."""
LOOK_S = 0.1
STEADY_S = 1.0
"""A gateway's view may be older than what has just been done."""
WHOLE_S = 120.0
"""How long replicas may take to be in sync again on a busy machine."""


class Unfit(Exception):
    """The fault cannot be done now: there is nothing for it to strike."""


class Unhealed(Exception):
    """What the fault did is not made good in time."""


def _last_line(log: str) -> str:
    lines = Path(log).read_text(errors="replace").splitlines()
    return lines[-1] if lines else ""


def votes(controller: ControllerInfo) -> bool:
    """It has a vote now."""
    return controller.voter and not controller.lost and not controller.rolled_back


@contextmanager
def accept_repeated(code: str) -> Iterator[None]:
    """A request that is repeated may have been done by an earlier try: this error says so."""
    try:
        yield
    except TidelogError as error:
        if error.code != code:
            raise


class _Claim:
    """What one fault wants, or has."""

    def __init__(self, parts: Iterable[str]) -> None:
        self.parts = frozenset(parts)
        self.gone = trio.Event()

    def conflicts(self, other: _Claim) -> bool:
        return bool(self.parts & other.parts) or ALL in self.parts or ALL in other.parts


class Claims:
    """What the faults under way have for themselves: a host, a host's network, the leave to damage a disk. Who came
    first goes first."""

    def __init__(self) -> None:
        self._taken: list[_Claim] = []
        """Of those that hold and of those that wait, in the order in which they came."""

    @asynccontextmanager
    async def holding(self, *claims: str, until: float = math.inf) -> AsyncIterator[None]:
        """Have them, as soon as everybody who came before and wants some of it has gone. Raises ``Unfit`` when that
        is not so by then."""
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
        """Somebody who came earlier and wants some of it."""
        earlier = itertools.takewhile(lambda other: other is not mine, self._taken)
        return next((other for other in earlier if other.conflicts(mine)), None)


@dataclass(slots=True)
class Stage:
    """One run's cluster, and a client of it."""

    cluster: ChaosCluster
    log: Log
    topic: str
    """The topic whose leaders and followers are struck."""
    overload: Callable[[bool], None]
    """Let the workload send as fast as it can, or no longer."""
    copier: Copier | None = None
    """The Spark query, where there is one."""
    claims: Claims = field(default_factory=Claims)
    down: Counter[str] = field(default_factory=Counter)
    """Processes that are down on purpose: only the fault starts them."""
    ended: list[tuple[float, str, str]] = field(default_factory=list)
    """(when, which, last line of its log) of processes that ended unasked."""
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _turn: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(1))

    # --- doing -------------------------------------------------------------------------------------------

    async def do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Something that takes its time and changes the cluster; one such thing after the other."""
        return await trio.to_thread.run_sync(function, *arguments, limiter=self._turn)

    async def kill(self, *nodes: str) -> None:
        """kill -9; they stay down until ``start``."""
        self.down.update(nodes)
        await self.do(self.cluster.kill, *nodes)

    async def start(self, *nodes: str) -> None:
        """Start them again."""
        for node in nodes:
            if not self.cluster.get(node).is_alive():
                await self.do(self.cluster.restart, node)
            self.down[node] -= 1

    async def lose_power(self, *nodes: str) -> None:
        """Cut the power of these hosts at once, until ``regain_power``."""
        self.down.update(nodes)
        await self.do(self.cluster.lose_power, *nodes)

    async def boot(self, *nodes: str) -> None:
        """Boot these hosts: their disks can be read again. ``start`` starts their processes."""
        await self.do(self.cluster.regain_power, *nodes)

    async def regain_power(self, *nodes: str) -> None:
        """Boot these hosts and start their processes."""
        await self.boot(*nodes)
        await self.start(*nodes)

    async def repeat_until(
        self, act: Callable[[], Awaitable[object]], holds: Callable[[dict[str, bool]], bool]
    ) -> None:
        """Do it, again and again, until it holds of the controllers: which are in the group, and which of them vote.
        Raises ``Unhealed``."""
        with trio.move_on_after(WHOLE_S):
            while True:
                with suppress(TidelogError):  # asked again
                    if holds(await self.votes()):
                        return
                    await act()
                await trio.sleep(LOOK_S)
        raise Unhealed(f"the group of controllers did not become as it should be within {WHOLE_S:g} s")

    async def vote_again(self, controller: str) -> None:
        """It has lost its store: when the others know that, it is added again, as its log advises the operator."""
        await self.repeat_until(trio.lowlevel.checkpoint, lambda votes: not votes.get(controller, False))
        url = self.cluster.get(controller).url
        await self.repeat_until(
            lambda: self.log.cluster.add_controller(controller, url), lambda votes: votes.get(controller, False)
        )

    async def commit(self, topics: int) -> None:
        """Have the controllers commit entries: so many topics come and go. Raises ``Unhealed``."""
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
        """Wait until it votes, and has acknowledged what is committed now. Raises ``Unhealed``."""
        wanted: list[int] = []

        async def find() -> list[str]:
            quorum = await self.log.cluster.quorum()
            wanted.append(quorum.commit_index)
            have = [one.node for one in quorum.controllers if votes(one) and one.match >= wanted[0]]
            return [controller] if controller in have else []

        await self._until(find)

    @asynccontextmanager
    async def old_copy_named(self, controller: str) -> AsyncIterator[None]:
        """From the beginning of this block on status is asked, and after it until it has said that the disk of that
        controller is an old copy. Raises ``Unhealed``."""
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
        """Whether each controller of the group has a vote."""
        return {one.node: votes(one) for one in (await self.log.cluster.quorum()).controllers}

    async def supervise(self) -> None:
        """Start every process again that ends unasked, as systemd or Kubernetes would; for ever."""
        while True:
            await trio.sleep(0.5)
            for process in self.cluster.processes:
                if process.pid and not process.is_alive() and self.down[process.id] <= 0:
                    self.ended.append((trio.current_time(), process.id, _last_line(process.log)))
                    await self.do(self.cluster.restart, process.id)

    @asynccontextmanager
    async def traced(self, node: str, inject: str) -> AsyncIterator[None]:
        """strace tampers with the system calls of that process, as ``--inject`` says."""
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
        """Every process of that role."""
        return [process.id for process in self.cluster.of_role(role)]

    def everyone(self) -> list[str]:
        """Return the ids of all processes."""
        return [process.id for process in self.cluster.processes]

    def others(self, node: str) -> list[str]:
        """Every other process."""
        return [other for other in self.everyone() if other != node]

    async def leader(self, random: Random) -> str:
        """A leader of one of the topic's partitions."""
        return random.choice(await self._until(self._leaders))

    async def follower(self, random: Random) -> str:
        """The server that leads fewest of them."""
        leaders = await self._until(self._leaders)
        nodes = self.nodes("replica")
        fewest = min(leaders.count(node) for node in nodes)
        return random.choice([node for node in nodes if leaders.count(node) == fewest])

    async def active(self, random: Random) -> str:
        """The active controller."""

        async def find() -> list[str]:
            return [node] if (node := (await self.log.cluster.quorum()).active) else []

        (node,) = await self._until(find)
        return node

    async def topic_id(self) -> str:
        """Folders are named by it."""

        async def find() -> list[str]:
            return [(await self.log.topics.describe(self.topic)).topic_id]

        (topic_id,) = await self._until(find)
        return topic_id

    async def _leaders(self) -> list[str]:
        return [p.leader for p in (await self.log.topics.describe(self.topic)).partitions if p.leader]

    async def _until(self, find: Callable[[], Any]) -> list[str]:
        """Until something is found. Raises ``Unhealed``."""
        with trio.move_on_after(WHOLE_S):
            while True:
                with suppress(TidelogError):  # nobody knows at the moment; asked again
                    if found := await find():
                        return list(found)
                await trio.sleep(LOOK_S)
        raise Unhealed(f"nobody led, or could be asked, for {WHOLE_S:g} s")

    async def is_whole(self) -> bool:
        """Every server is live, every replica of every topic is in sync, every controller votes."""
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
        """Until that is so, and has been for ``STEADY_S``; False after the time."""
        with trio.move_on_after(timeout_s):
            since = math.inf
            while not trio.current_time() - since >= STEADY_S:
                since = min(since, trio.current_time()) if await self.is_whole() else math.inf
                await trio.sleep(LOOK_S)
            return True
        return False

    async def until(self, holds: Callable[[], bool]) -> None:
        """Until something is so that is seen in files. Raises ``Unhealed`` when that takes too long."""
        with trio.move_on_after(WHOLE_S):
            while not await trio.to_thread.run_sync(holds):  # noqa: ASYNC110 (on a disk)
                await trio.sleep(LOOK_S)
            return
        raise Unhealed(f"what was damaged is not repaired after {WHOLE_S:g} s")
