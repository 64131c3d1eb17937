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
from tidelog.sansio.recent_sums import WINDOW_S, RecentSums
from tidelog.types import NodeId, ServerState, TopicPartition
from tidelog.wire.messages import Digest, Hello, Message, MetadataUpdate

from tidelog_replica.counters import FlushCounts
from tidelog_replica.effects import Effect, Stop
from tidelog_replica.jobs import Job, run_job
from tidelog_replica.node import ReplicaNode, StartFlush, StartJob
from tidelog_replica.storage.flush import Flush

FLUSHES_AT_ONCE = 16
"""Most flushes that a worker runs in one thread call."""
DISTRUST_RETRY_S = 1.0
"""Pause after a failed attempt to record that the disk must not be trusted."""


class DiskFailed(Exception):
    """An error that says that the disk failed, so that the process must end. A supervisor starts the process again,
    as another incarnation."""


class ReplicaShell:
    """The trio shell of one node: it passes inputs to the node, and performs the effects that the node returns. It
    lives as long as the process. The server runs its tasks: ``peers``, ``controllers``, ``run_timer``,
    ``run_flushes``, ``run_jobs``, ``run_until_stopped``."""

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
        """Make the shell; nothing is sent before ``start``. ``clock`` returns the node's time in seconds.
        ``patience`` is how long another server may be silent before its link is closed. ``controllers`` are the
        controllers' URLs."""
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
        self.links: AcceptedLinks[Link] = AcceptedLinks()
        self.log = EventLog(node=node_id)
        self._effects: deque[Effect] = deque()
        self._performing = False
        self._wakeup = Wakeup()
        self.counts = FlushCounts()
        self._recent_flushes = RecentSums()
        self._flushes_begun: dict[object, float] = {}
        """When the flushes began that run in a thread now, one entry for each worker that has some."""
        self._recent_delays = RecentSums()
        self._flushes: deque[tuple[TopicPartition, Flush]] = deque()
        self._flush_work = trio.Event()
        self._jobs_in, self._jobs_out = trio.open_memory_channel[tuple[TopicPartition, Job]](math.inf)
        self._job_limiter = trio.CapacityLimiter(job_threads)
        self._job_threads = job_threads
        self._stopped = trio.Event()
        self._stop_reason = ""
        self.is_draining = False
        """Whether ``leave`` was called: the process is to end, and other servers take over its partitions first."""
        self._drain_ended = trio.Event()
        self._closing = False
        """Whether ``close`` was called: nothing is sent any more, and no job is started."""

    @property
    def node(self) -> ReplicaNode:
        """Return the node of this shell. Callers only read its state."""
        return self._node

    def now(self) -> float:
        """Return the present time of the node's clock, in seconds."""
        return self._clock()

    @property
    def drained(self) -> bool:
        """Return whether an operator has drained this server, as the metadata known here say: it must not lead any
        partition."""
        return any(server.draining for server in self._servers if server.node == self.node_id)

    @property
    def _servers(self) -> tuple[ServerState, ...]:
        return self._node.assignment.image.servers

    @property
    def flushes_waiting(self) -> int:
        """Return the number of logs whose flush no worker has begun yet."""
        return len(self._flushes)

    def recent_flush_s(self) -> float:
        """Return how many seconds a flush took on average in the last ``WINDOW_S`` seconds; 0 if there was none. A
        flush under way counts if it has taken longer than that."""
        now = self._clock()
        number, total = self._recent_flushes.total(now)
        average = total / number if number else 0.0
        return max([average, *(now - began for began in self._flushes_begun.values())])

    def late_ratio(self) -> float:
        """Return the share of the last ``WINDOW_S`` seconds in which a timer of the node was due and had to wait: the
        process did not run, or its event loop was busy."""
        return min(1.0, self._recent_delays.total(self._clock())[1] / WINDOW_S)

    # --- inputs ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the node, and perform the effects of its start. Raises what ``ReplicaNode.start`` raises."""
        self._do(self._node.start(self._clock()))

    def on_open(self, link: Link) -> None:
        """Register an accepted link from another replica server or a gateway, so that answers can be sent over it."""
        self.links.add(link)

    def on_close(self, link: Link) -> None:
        """Remove an accepted link that has ended, and have the node discard the requests that came over it. Does
        nothing if the link is not registered."""
        if self.links.remove(link):
            self._do(self._node.on_link_closed(link.source, self._clock()))

    def on_message(self, link: Link, id: int | None, message: Message) -> None:
        """Pass a message that came over an accepted link to the node, and perform the effects. Raises
        ``TidelogError``, without passing the message on, if its field ``node`` names another sender than the peer of
        the link. (In a ``Digest`` the field names the server that is asked, so it is not checked.)"""
        peer = link.peer
        sender = peer.node if isinstance(message, Digest) else getattr(message, "node", peer.node)
        if (error := refuse_other_sender(peer, sender)) is not None:
            raise error
        self._do(self._node.on_request(link.source, id, message, self._clock()))

    def _on_peer_message(self, _node: NodeId, message: Message) -> None:
        """Pass a ``Notify`` to the node, which a leader sent over the link that this server opened for its
        fetches."""
        self._do(self._node.on_request(0, None, message, self._clock()))

    def _on_peer_down(self, node: NodeId) -> None:
        self._do(self._node.on_peer_down(node, self._clock()))

    def _on_controller_message(self, message: Message) -> None:
        """Pass an update of the metadata to the node, and set the addresses of the other replica servers from it.
        Ends a drain that is complete. Other messages are ignored."""
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
        """Perform the effects of an input, in order, after those that wait already, and set the timer for the node's
        next deadline. A call that comes while an effect is being performed only queues its own; the call under way
        performs them.

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
        """Perform one effect: send a message over its link, queue a flush or a job for the workers, write a log
        event, or make ``run_until_stopped`` raise. After ``close`` was called, messages and jobs are dropped."""
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
        """Return a function that passes the answer to the call ``token``, or the error with which it failed, to the
        node."""
        return lambda answer: self._do(self._node.on_answer(token, answer, self._clock()))

    # --- tasks ----------------------------------------------------------------------------------------------

    async def run_timer(self) -> None:
        """Run the node's timer until cancelled: call its ``on_tick`` whenever its deadline has come, and perform the
        effects."""
        while True:
            began = self._clock()
            await self._wakeup.sleep(self._node.deadline())
            now = self._clock()
            if now >= self._wakeup.deadline:
                self._recent_delays.add(now - max(began, self._wakeup.deadline), now)
                with burst():  # heartbeats leave at once
                    self._do(self._node.on_tick(now))

    async def run_until_stopped(self) -> None:
        """Wait until the node decides that the process must end (effect ``Stop``); then raise ``DiskFailed`` with the
        reason that the node gave."""
        await self._stopped.wait()
        raise DiskFailed(self._stop_reason)

    async def run_flushes(self) -> None:
        """Run one flush worker until cancelled: take up to ``FLUSHES_AT_ONCE`` waiting flushes, run them in a thread,
        and pass the end of each to the node, with the error if it failed. A failed flush is not tried again. Flushes
        that were taken but had not begun when the cancellation came go back to the queue, for ``close``."""
        worker = object()
        while True:
            while not self._flushes:
                if self._flush_work.is_set():  # not the event that another worker waits for
                    self._flush_work = trio.Event()
                await self._flush_work.wait()
            taken = [self._flushes.popleft() for _ in range(min(len(self._flushes), FLUSHES_AT_ONCE))]
            began = self._clock()
            self._flushes_begun[worker] = began
            try:
                errors = await trio.to_thread.run_sync(_run_all, [flush for _, flush in taken])
            except trio.Cancelled:  # before the thread began: ``close`` runs them
                self._flushes.extendleft(reversed(taken))
                raise
            finally:
                del self._flushes_begun[worker]
            ended = self._clock()
            self.counts.flushes.observe(ended - began, len(taken))
            self._recent_flushes.add(ended - began, ended, len(taken))
            with burst():
                for (key, flush), error in zip(taken, errors, strict=True):
                    self._do(self._node.on_flushed(key, flush, error, self._clock()))

    async def leave(self) -> None:
        """Ask the controller to let other servers lead the partitions of this one, and wait until no partition
        depends on this server any more. Return at once if there is no link to a controller, since only a controller
        can elect other leaders."""
        self.is_draining = True
        self._do(self._node.leave(self._clock()))
        self._end_drain_if_done()
        await self._drain_ended.wait()

    def _end_drain_if_done(self) -> None:
        """End the wait in ``leave`` if no partition depends on this server any more, or if the link to the
        controllers is lost. Does nothing if ``leave`` was not called."""
        if not self.is_draining:
            return
        if self._node.is_drained or self.controllers.link is None:
            self._drain_ended.set()

    def close(self) -> None:
        """Shut down cleanly, when no task of the shell runs any more: run the flushes that wait, close the node, and
        log ``closed`` with whether the shutdown was recorded as clean. If a flush fails, the node is not closed; if
        closing it fails, ``close_failed`` is logged. In both cases the next start is not clean."""
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
        """Record on the disk, after ``DiskFailed``, that the next start must not rely on unflushed data. A failed
        write is logged and repeated every ``DISTRUST_RETRY_S`` seconds until one succeeds; only then this returns."""
        while True:
            try:
                self._node.distrust()
                return
            except OSError as error:
                self.log.event("distrust_failed", reason=str(error))
            await trio.sleep(DISTRUST_RETRY_S)

    async def run_jobs(self) -> None:
        """Run ``job_threads`` workers until cancelled, each of which runs the disk jobs that wait, one after another,
        in a thread."""
        async with trio.open_nursery() as nursery:
            for _ in range(self._job_threads):
                nursery.start_soon(self._run_jobs)

    async def _run_jobs(self) -> None:
        """Run one job worker until cancelled: run each waiting job in a thread and pass its result to the node."""
        async for key, job in self._jobs_out:
            result = await trio.to_thread.run_sync(run_job, job, limiter=self._job_limiter)
            with burst():
                self._do(self._node.on_job(key, job, result, self._clock()))


def _run_all(flushes: Sequence[Flush]) -> list[OSError | None]:
    """Run the flushes one after another in the calling thread. Return for each the ``OSError`` that ended it, or None
    if it succeeded."""
    errors: list[OSError | None] = []
    for flush in flushes:
        try:
            flush.run()
            errors.append(None)
        except OSError as error:
            errors.append(error)
    return errors
