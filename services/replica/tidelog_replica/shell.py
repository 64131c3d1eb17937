"""The replica server's trio side: performs what ``ReplicaNode`` decides, in order.

The node is one synchronous state machine with one owner: every input comes from a callback that runs to its end
without a pause, and its effects join one queue. Performing an effect may cause the next input at once (a call to a
peer that is known to be down), whose effects then go to the end of the queue: the order in which the node decided
is the order in which things happen. Nothing here waits on the network; a send that finds its queue full
drops the link, and everything between servers can be asked for again.

Flushes run in ``flush_threads`` worker threads; each takes what waits, up to ``FLUSHES_AT_ONCE``, in one thread call.
Jobs, which may be long, have ``job_threads`` of their own: no flush waits for one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import trio
from tidelog.errors import TidelogError, refuse
from tidelog.net.controller_link import ControllerLink
from tidelog.net.failure_detector import Patience
from tidelog.net.link import Link, burst
from tidelog.net.peers import Peers
from tidelog.net.transport import Transport
from tidelog.runtime import logs
from tidelog.sansio.counters import LATENCIES_S, Histogram, count
from tidelog.sansio.effects import CONTROLLER, Answer, Call, Event, Post, Send
from tidelog.types import NodeId, ServerState, TopicPartition
from tidelog.wire.messages import Digest, Hello, Message, MetadataUpdate

from tidelog_replica.effects import Effect, Stop
from tidelog_replica.jobs import Job, run_job
from tidelog_replica.node import ReplicaNode, StartFlush, StartJob
from tidelog_replica.storage.log import Flush

FLUSHES_AT_ONCE = 16
DISTRUST_RETRY_S = 1.0


class DiskFailed(Exception):
    """The disk failed: the server must not go on. A supervisor starts it again."""


class ReplicaShell:
    """Drives one node. The owner runs ``peers``, ``controllers``, ``run_timer``, ``run_flushes`` and
    ``run_jobs``."""

    def __init__(
        self,
        node_id: NodeId,
        node: ReplicaNode,
        transport: Transport,
        hello: Hello,
        controllers: Sequence[str],
        clock: Callable[[], float],
        patience: Patience,
        job_threads: int = 2,
    ) -> None:
        """``patience``: how long another server may be silent before its link breaks."""
        self.node_id = node_id
        self._node = node
        self._clock = clock
        self.peers = Peers(
            transport,
            hello,
            on_message=self._on_peer_message,
            on_down=self._on_peer_down,
            on_trouble=self._on_peer_trouble,
            keep=False,
            patience=patience,
        )
        self.controllers = ControllerLink(
            transport,
            controllers,
            hello,
            on_message=self._on_controller_message,
            on_up=lambda: self._do(node.on_controller_up(clock())),
            on_down=self._on_controller_down,
            on_trouble=self._on_controller_trouble,
        )
        self._links: dict[int, Link] = {}
        self._effects: deque[Effect] = deque()
        self._performing = False
        self._timer = math.inf
        self._rearm = trio.Event()
        self.flush_times = Histogram(LATENCIES_S)
        """Seconds that it took to sync a log, with those that were synced together with it."""
        self.events: dict[str, int] = {}
        """How often each line was written that the node knows nothing of, for the metrics."""
        self._flushes: deque[tuple[TopicPartition, Flush]] = deque()
        self._flush_work = trio.Event()
        self._jobs_in, self._jobs_out = trio.open_memory_channel[tuple[TopicPartition, Job]](math.inf)
        self._job_limiter = trio.CapacityLimiter(job_threads)
        self._job_threads = job_threads
        self._stopped = trio.Event()
        self._stop_reason = ""
        self.is_draining = False
        """It is to end, and lets others lead first."""
        self._left = trio.Event()
        self._closing = False
        """Nobody is there any more to be told anything."""

    @property
    def node(self) -> ReplicaNode:
        """What decides; to look at only."""
        return self._node

    def now(self) -> float:
        """The node's time."""
        return self._clock()

    @property
    def links(self) -> Iterable[Link]:
        """All accepted links."""
        return self._links.values()

    @property
    def drained(self) -> bool:
        """An operator has said that it is to lead nothing."""
        return any(server.draining for server in self._servers if server.node == self.node_id)

    @property
    def _servers(self) -> tuple[ServerState, ...]:
        return self._node.assignment.image.servers

    @property
    def flushes_waiting(self) -> int:
        """Logs that are to be synced, and not begun."""
        return len(self._flushes)

    # --- inputs ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """The node's first effects."""
        self._do(self._node.start(self._clock()))

    def on_open(self, link: Link) -> None:
        """Another replica server or a gateway connected."""
        self._links[link.source] = link

    def on_close(self, link: Link) -> None:
        """It is gone."""
        if self._links.pop(link.source, None) is not None:
            self._do(self._node.on_link_closed(link.source, self._clock()))

    def on_message(self, link: Link, id: int | None, message: Message) -> None:
        """It sent something. A replica server cannot tell where another one's log ends. ``node`` names the sender,
        but in ``Digest`` the server that is asked."""
        peer = link.peer
        sender = peer.node if isinstance(message, Digest) else getattr(message, "node", peer.node)
        if peer.role == "replica" and sender != peer.node:
            raise refuse("FORBIDDEN", f"{peer.node} speaks for itself only")
        self._do(self._node.on_request(link.source, id, message, self._clock()))

    def _on_peer_message(self, _node: NodeId, message: Message) -> None:
        """One-way, back over a link of ours: ``notify``."""
        self._do(self._node.on_request(0, None, message, self._clock()))

    def _on_peer_down(self, node: NodeId) -> None:
        self._do(self._node.on_peer_down(node, self._clock()))

    def _on_controller_message(self, message: Message) -> None:
        if not isinstance(message, MetadataUpdate):
            return
        effects = self._node.on_metadata(message, self._clock())
        self.peers.set_addresses({s.node: s.url for s in self._servers if s.node != self.node_id})
        self._do(effects)
        self._look_whether_left()

    def _on_controller_down(self) -> None:
        self._do(self._node.on_controller_down(self._clock()))
        self._look_whether_left()

    def _on_peer_trouble(self, node: NodeId, error: TidelogError) -> None:
        self._tell("peer_failed", peer=node, error=str(error))

    def _on_controller_trouble(self, url: str, error: TidelogError) -> None:
        self._tell("controller_failed", url=url, error=str(error))

    # --- effects --------------------------------------------------------------------------------------------

    def _do(self, effects: Sequence[Effect]) -> None:
        """Perform effects behind those that are being performed."""
        self._effects.extend(effects)
        if self._performing:
            return
        self._performing = True
        try:
            while self._effects:
                self._perform(self._effects.popleft())
        finally:
            self._performing = False
        deadline = self._node.deadline()
        if deadline is not None and deadline < self._timer:
            self._rearm.set()

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Answer() | Post() | Call() | Send() | StartJob() if self._closing:
                pass
            case Answer(source, id, message):
                if (link := self._links.get(source)) is not None:
                    assert isinstance(message, Message | TidelogError)
                    link.answer(id, message)
            case Post(source, message):
                if (link := self._links.get(source)) is not None:
                    link.post(message)
            case Send(to, message):
                self.peers.post(to, message)
            case Call(to, token, message, timeout_s):
                if to == CONTROLLER:
                    self.controllers.start_call(message, timeout_s, self._answered(token))
                else:
                    self.peers.start_call(to, message, timeout_s, self._answered(token))
            case StartFlush(key, flush):
                self._flushes.append((key, flush))
                self._flush_work.set()
            case StartJob(key, job):
                self._jobs_in.send_nowait((key, job))
            case Event():
                logs.perform(effect, node=self.node_id)
            case Stop(reason):
                self._stop_reason = self._stop_reason or reason
                self._stopped.set()

    def _answered(self, token: int) -> Callable[[Message | TidelogError], None]:
        return lambda answer: self._do(self._node.on_answer(token, answer, self._clock()))

    def _tell(self, name: str, /, **fields: object) -> None:
        count(self.events, name)
        logs.perform(Event(name, fields), node=self.node_id)

    # --- tasks ----------------------------------------------------------------------------------------------

    async def run_timer(self) -> None:
        """Call the node when its deadline comes."""
        while True:
            deadline = self._node.deadline()
            self._timer = math.inf if deadline is None else deadline
            with trio.move_on_at(self._timer):
                await self._rearm.wait()
            self._rearm = trio.Event()
            now = self._clock()
            if now >= self._timer:
                with burst():  # heartbeats leave at once
                    self._do(self._node.on_tick(now))

    async def run_until_stopped(self) -> None:
        """Raises ``DiskFailed`` when the node says that the process must end."""
        await self._stopped.wait()
        raise DiskFailed(self._stop_reason)

    async def run_flushes(self) -> None:
        """One flushing worker. A failed flush is the node's to judge: nothing is tried again here."""
        while True:
            while not self._flushes:
                if self._flush_work.is_set():  # never one that another worker waits for
                    self._flush_work = trio.Event()
                await self._flush_work.wait()
            taken = [self._flushes.popleft() for _ in range(min(len(self._flushes), FLUSHES_AT_ONCE))]
            began = self._clock()
            try:
                errors = await trio.to_thread.run_sync(_run_all, [flush for _, flush in taken])
            except trio.Cancelled:  # before the thread began: ``close`` does it
                self._flushes.extendleft(reversed(taken))
                raise
            self.flush_times.observe(self._clock() - began, len(taken))
            with burst():
                for (key, flush), error in zip(taken, errors, strict=True):
                    self._do(self._node.on_flushed(key, flush, error, self._clock()))

    async def leave(self) -> None:
        """Until others have taken over what this server leads, and no leader waits for it; as long as there is a
        controller to see to that."""
        self.is_draining = True
        self._do(self._node.leave(self._clock()))
        self._look_whether_left()
        await self._left.wait()

    def _look_whether_left(self) -> None:
        if not self.is_draining:
            return
        if self._node.is_drained or self.controllers.link is None:
            self._left.set()

    def close(self) -> None:
        """End in order, when no task of the shell runs any more: flush what waits for it, and have the node write
        down that all is there. Where the disk fails, that is missing, and the next incarnation is not clean."""
        self._closing = True
        while self._flushes:
            key, flush = self._flushes.popleft()
            self._do(self._node.on_flushed(key, flush, _run_all([flush])[0], self._clock()))
        if self._stopped.is_set():
            return
        try:
            clean = self._node.close()
        except OSError as error:
            self._tell("close_failed", reason=str(error))
        else:
            self._tell("closed", clean=clean)

    async def wait_distrusted(self) -> None:
        """After ``DiskFailed``: until it is on the disk that the next incarnation must not trust what is there."""
        while True:
            try:
                self._node.distrust()
                return
            except OSError as error:
                self._tell("distrust_failed", reason=str(error))
            await trio.sleep(DISTRUST_RETRY_S)

    async def run_jobs(self) -> None:
        """All job workers."""
        async with trio.open_nursery() as nursery:
            for _ in range(self._job_threads):
                nursery.start_soon(self._run_jobs)

    async def _run_jobs(self) -> None:
        async for key, job in self._jobs_out:
            result = await trio.to_thread.run_sync(run_job, job, limiter=self._job_limiter)
            with burst():
                self._do(self._node.on_job(key, job, result, self._clock()))


def _run_all(flushes: Sequence[Flush]) -> list[OSError | None]:
    errors: list[OSError | None] = []
    for flush in flushes:
        try:
            flush.run()
            errors.append(None)
        except OSError as error:
            errors.append(error)
    return errors
