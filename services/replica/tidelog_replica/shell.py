"""The replica server's trio shell: brings inputs to ``ReplicaNode``, and performs what the node decides, in order.

Inputs are handled inline, in the task in which they arrive, and their effects join one queue (``ReplicaShell._do``).
Nothing here waits for the network. A send that finds its queue full drops the link: everything between servers can be
requested again.

Flushes run in ``flush_threads`` worker threads. A worker runs up to ``FLUSHES_AT_ONCE`` waiting flushes in one thread
call. Jobs may be long and have ``job_threads`` of their own, so that no flush waits for a job.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

import trio
from tidelog.errors import TidelogError
from tidelog.net.controller_link import ControllerLink
from tidelog.net.failure_detector import Patience
from tidelog.net.link import Link, burst
from tidelog.net.peers import Peers
from tidelog.net.transport import Transport
from tidelog.runtime.shell import AcceptedLinks, EventLog, Wakeup, refuse_other_sender
from tidelog.sansio.effects import CONTROLLER, Answer, Call, Event, Post, Send
from tidelog.types import NodeId, ServerState, TopicPartition
from tidelog.wire.messages import Digest, Hello, Message, MetadataUpdate

from tidelog_replica.counters import FlushCounts
from tidelog_replica.effects import Effect, Stop
from tidelog_replica.jobs import Job, run_job
from tidelog_replica.node import ReplicaNode, StartFlush, StartJob
from tidelog_replica.storage.flush import Flush

FLUSHES_AT_ONCE = 16
DISTRUST_RETRY_S = 1.0
"""Pause after a failed attempt to record that the disk must not be trusted."""


class DiskFailed(Exception):
    """The disk failed, so the process must end. A supervisor starts it again."""


class ReplicaShell:
    """Drives one node. The server runs ``peers``, ``controllers``, ``run_timer``, ``run_flushes``, ``run_jobs``."""

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
        self.links = AcceptedLinks()
        self.log = EventLog(node=node_id)
        self._effects: deque[Effect] = deque()
        self._performing = False
        self._wakeup = Wakeup()
        self.counts = FlushCounts()
        self._flushes: deque[tuple[TopicPartition, Flush]] = deque()
        self._flush_work = trio.Event()
        self._jobs_in, self._jobs_out = trio.open_memory_channel[tuple[TopicPartition, Job]](math.inf)
        self._job_limiter = trio.CapacityLimiter(job_threads)
        self._job_threads = job_threads
        self._stopped = trio.Event()
        self._stop_reason = ""
        self.is_draining = False
        """The process is to end, and other servers take over its partitions first."""
        self._drain_ended = trio.Event()
        self._closing = False
        """The links are closed: nothing is sent any more."""

    @property
    def node(self) -> ReplicaNode:
        """The node; to be read only."""
        return self._node

    def now(self) -> float:
        """Return the time of the node's clock."""
        return self._clock()

    @property
    def drained(self) -> bool:
        """Whether an operator has drained this server: it must not lead any partition."""
        return any(server.draining for server in self._servers if server.node == self.node_id)

    @property
    def _servers(self) -> tuple[ServerState, ...]:
        return self._node.assignment.image.servers

    @property
    def flushes_waiting(self) -> int:
        """Number of logs that wait to be synced."""
        return len(self._flushes)

    # --- inputs ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the node."""
        self._do(self._node.start(self._clock()))

    def on_open(self, link: Link) -> None:
        """Keep an accepted link of another replica server or a gateway."""
        self.links.add(link)

    def on_close(self, link: Link) -> None:
        """Forget an accepted link that has ended."""
        if self.links.remove(link):
            self._do(self._node.on_link_closed(link.source, self._clock()))

    def on_message(self, link: Link, id: int | None, message: Message) -> None:
        """Handle a message of an accepted link. A replica server may report only its own log. Raises the refusal.

        The field ``node`` of a message names its sender; that of ``Digest`` names the server that is asked."""
        peer = link.peer
        sender = peer.node if isinstance(message, Digest) else getattr(message, "node", peer.node)
        if (error := refuse_other_sender(peer, sender)) is not None:
            raise error
        self._do(self._node.on_request(link.source, id, message, self._clock()))

    def _on_peer_message(self, _node: NodeId, message: Message) -> None:
        """Handle a ``notify``, which came back over a link of ours and has no answer."""
        self._do(self._node.on_request(0, None, message, self._clock()))

    def _on_peer_down(self, node: NodeId) -> None:
        self._do(self._node.on_peer_down(node, self._clock()))

    def _on_controller_message(self, message: Message) -> None:
        if not isinstance(message, MetadataUpdate):
            return
        effects = self._node.on_metadata(message, self._clock())
        self.peers.set_addresses({s.node: s.url for s in self._servers if s.node != self.node_id})
        self._do(effects)
        self._end_drain_if_done()

    def _on_controller_down(self) -> None:
        self._do(self._node.on_controller_down(self._clock()))
        self._end_drain_if_done()

    def _on_peer_trouble(self, node: NodeId, error: TidelogError) -> None:
        self.log.event("peer_failed", peer=node, error=str(error))

    def _on_controller_trouble(self, url: str, error: TidelogError) -> None:
        self.log.event("controller_failed", url=url, error=str(error))

    # --- effects --------------------------------------------------------------------------------------------

    def _do(self, effects: Sequence[Effect]) -> None:
        """Perform the effects of an input, after those that are being performed.

        Handling inputs inline with one queue of effects is right for a replica server because its node never waits:
        an input is a call that runs to its end, and a hop to an owner task would cost more than most inputs.
        Performing an effect can cause the next input at once, such as the answer to a call of a peer that is known to
        be down. The effects of that input go to the end of the queue, so that things happen in the order in which the
        node decided them."""
        self._effects.extend(effects)
        if self._performing:
            return
        self._performing = True
        try:
            while self._effects:
                self._perform(self._effects.popleft())
        finally:
            self._performing = False
        self._wakeup.wake_before(self._node.deadline())

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Answer() | Post() | Call() | Send() | StartJob() if self._closing:
                pass
            case Answer() | Post():
                self.links.perform(effect)
            case Send(to, message):
                self.peers.post(to, message)
            case Call(to, token, message, timeout_s):
                if to == CONTROLLER:
                    self.controllers.start_call(message, timeout_s, self._on_answer(token))
                else:
                    self.peers.start_call(to, message, timeout_s, self._on_answer(token))
            case StartFlush(key, flush):
                self._flushes.append((key, flush))
                self._flush_work.set()
            case StartJob(key, job):
                self._jobs_in.send_nowait((key, job))
            case Event():
                self.log.perform(effect)
            case Stop(reason):
                self._stop_reason = self._stop_reason or reason
                self._stopped.set()

    def _on_answer(self, token: int) -> Callable[[Message | TidelogError], None]:
        return lambda answer: self._do(self._node.on_answer(token, answer, self._clock()))

    # --- tasks ----------------------------------------------------------------------------------------------

    async def run_timer(self) -> None:
        """Call the node at its deadlines, until cancelled."""
        while True:
            await self._wakeup.sleep(self._node.deadline())
            now = self._clock()
            if now >= self._wakeup.deadline:
                with burst():  # heartbeats leave at once
                    self._do(self._node.on_tick(now))

    async def run_until_stopped(self) -> None:
        """Wait until the node ends the process; then raise ``DiskFailed``."""
        await self._stopped.wait()
        raise DiskFailed(self._stop_reason)

    async def run_flushes(self) -> None:
        """Run one flush worker. The node learns of a failed flush; nothing is tried again here."""
        while True:
            while not self._flushes:
                if self._flush_work.is_set():  # not the event that another worker waits for
                    self._flush_work = trio.Event()
                await self._flush_work.wait()
            taken = [self._flushes.popleft() for _ in range(min(len(self._flushes), FLUSHES_AT_ONCE))]
            began = self._clock()
            try:
                errors = await trio.to_thread.run_sync(_run_all, [flush for _, flush in taken])
            except trio.Cancelled:  # before the thread began: ``close`` runs them
                self._flushes.extendleft(reversed(taken))
                raise
            self.counts.flushes.observe(self._clock() - began, len(taken))
            with burst():
                for (key, flush), error in zip(taken, errors, strict=True):
                    self._do(self._node.on_flushed(key, flush, error, self._clock()))

    async def leave(self) -> None:
        """Wait until other servers lead the partitions of this one and no leader waits for it. Without a link to
        a controller, which elects the other leaders, return at once."""
        self.is_draining = True
        self._do(self._node.leave(self._clock()))
        self._end_drain_if_done()
        await self._drain_ended.wait()

    def _end_drain_if_done(self) -> None:
        if not self.is_draining:
            return
        if self._node.is_drained or self.controllers.link is None:
            self._drain_ended.set()

    def close(self) -> None:
        """Shut down cleanly, when no task of the shell runs any more: run the flushes that wait, and let the node
        record that the shutdown was clean. If the disk fails the record is missing, and the next start is not
        clean."""
        self._closing = True
        while self._flushes:
            key, flush = self._flushes.popleft()
            self._do(self._node.on_flushed(key, flush, _run_all([flush])[0], self._clock()))
        if self._stopped.is_set():
            return
        try:
            clean = self._node.close()
        except OSError as error:
            self.log.event("close_failed", reason=str(error))
        else:
            self.log.event("closed", clean=clean)

    async def wait_distrusted(self) -> None:
        """After ``DiskFailed``: record on the disk that the next start must not trust it. Try until that succeeds."""
        while True:
            try:
                self._node.distrust()
                return
            except OSError as error:
                self.log.event("distrust_failed", reason=str(error))
            await trio.sleep(DISTRUST_RETRY_S)

    async def run_jobs(self) -> None:
        """Run the job workers, until cancelled."""
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
