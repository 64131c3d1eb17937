"""The gateway's trio shell: links in and out, the turn that flushes the router, and the timer.

Messages are handled inline in the reader task of the link that they came over. A read is sent to its leader as soon
as the window has room for it (``consume/server_reads.py``); a read that found nothing may wait
(``consume/polls.py``). A produced batch goes into a queue of the router, which ``GatewayShell.run_turns`` flushes.
Each request that needs the controller (``requests/requests.py``) gets a task of its own; such requests are rare.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import trio
from tidelog.acl import ANONYMOUS
from tidelog.errors import TidelogError, Unreachable, refuse
from tidelog.net.controller_link import ControllerLink
from tidelog.net.link import burst
from tidelog.net.peers import Peers
from tidelog.net.transport import Transport, outgoing
from tidelog.runtime.shell import AcceptedLinks, EventLog, Wakeup
from tidelog.sansio.effects import Answer, Call, Event, Post, Send
from tidelog.types import NodeId
from tidelog.wire.codec import encode
from tidelog.wire.messages import (
    Credit,
    ErrorInfo,
    Hello,
    ListOffset,
    Message,
    MetadataUpdate,
    Produce,
    Produced,
    ProducePart,
    Read,
    Subscribe,
    Unsubscribe,
    Watch,
)
from tidelog.wire.metadata_image import apply_update

from tidelog_gateway.client_faults import contained, do_all
from tidelog_gateway.client_link import ClientLink
from tidelog_gateway.cluster_view import ClusterView
from tidelog_gateway.consume.polls import Polls
from tidelog_gateway.consume.replica_selector import ReplicaSelector
from tidelog_gateway.consume.server_read_window import WindowSettings
from tidelog_gateway.consume.server_reads import READ_TIMEOUT_S, ReaderId, ServerReads
from tidelog_gateway.consume.subscriptions import Effect as Subscribed
from tidelog_gateway.consume.subscriptions import Polled, Subscriptions
from tidelog_gateway.consume.timestamp_lookup import find_by_time
from tidelog_gateway.counters import RequestCounts
from tidelog_gateway.limits.fair_share import FairShare
from tidelog_gateway.limits.heavy_requests import UNFOLDING, HeavyRequests, cost_of
from tidelog_gateway.limits.server_limits import Tenant
from tidelog_gateway.produce.accumulators import AckAccumulator
from tidelog_gateway.produce.router import Router
from tidelog_gateway.refusals import Refusals, asker_of
from tidelog_gateway.settings import RouterSettings, SubscriptionSettings
from tidelog_gateway.shared_requests import Seats

RETRY_S = 0.05
OWN = 0
"""The source number that stands for this gateway itself; links count from 1."""
OWN_READER = ReaderId(("", OWN), OWN)
MAX_REQUESTS = 65_536
"""Reads, offset and controller requests of all clients, who share this number fairly."""
MAX_CALLS = 1536
"""Requests of all clients that are neither reads nor look-ups of offsets. Each waits at a replica server or a
controller, and counts for the limit of 4,096 requests of a link that all share; reads and long polls have the
rest."""
DEFAULT_WINDOW = WindowSettings()
UNFOLDING_REST = 9.0
"""After a check of batches that took long to decompress, no batch of the principal is checked for the time of the
check times this number: a principal gets a tenth of the time."""
UNFOLDING_REST_OF_ALL = 1.0
"""After such a check no batch of any principal is checked for the time of the check times this number: all
principals together get half of the time."""

Answered = Callable[[Message | TidelogError], None]


class GatewayShell:
    """The part of a gateway that performs I/O: it hands the messages of all links to the cores and performs the
    effects that they return. A process has one. The server runs its ``run_turns``, ``peers`` and ``controllers``."""

    def __init__(
        self,
        transport: Transport,
        hello: Hello,
        controllers: Sequence[str],
        router: RouterSettings,
        subscriptions: SubscriptionSettings,
        clock: Callable[[], float],
        nursery: trio.Nursery,
        wall_ms: Callable[[], int] = lambda: 0,
        rack: str = "",
        window: WindowSettings = DEFAULT_WINDOW,
        random_bits: Callable[[int], int] = secrets.randbits,
    ) -> None:
        self.cluster = ClusterView(rack)
        self.wall_ms = wall_ms
        self.refusals = Refusals(hello.node, self.cluster, wall_ms, random_bits)
        self.router = Router(self.cluster, router, AckAccumulator(self._name_error))
        self.subscriptions = Subscriptions(self.cluster, subscriptions, wall_ms, self._name_error)
        self.peers = Peers(
            transport,
            hello,
            on_message=self.on_peer_message,
            on_up=self.on_peer_up,
            on_down=self.on_peer_down,
            on_trouble=lambda node, error: self.log.event("peer_failed", peer=node, error=str(error)),
            keep=True,
        )
        self.controllers = ControllerLink(
            transport,
            controllers,
            hello,
            on_message=self.on_controller_message,
            on_up=self.on_controller_up,
            on_trouble=lambda url, error: self.log.event("controller_failed", url=url, error=str(error)),
        )
        self.nursery = nursery
        self.clock = clock
        self.reads = ServerReads(self.peers.start_call, self.cluster, window, clock)
        self._polls = Polls(self, self.subscriptions, clock)
        self._tenants: dict[int, Tenant] = {}
        self._request_share = FairShare(MAX_REQUESTS, reserved=True)
        self._call_share = FairShare(MAX_CALLS, reserved=True)
        self._replica_selector = ReplicaSelector(self.cluster)
        self.links: AcceptedLinks[ClientLink] = AcceptedLinks()
        self.log = EventLog()
        self._heavy_requests = HeavyRequests()
        self._checking: dict[int, str] = {}
        """Clients whose batches a task checks, since these decompress to much, and their principals. A client may
        have disconnected: the pause of its principal goes on."""
        self._resting = Seats(sys.maxsize, 1)
        self._unfolding = Seats(1, 1)
        self._requests: dict[int, int] = {}
        self._wakeup = Wakeup()
        self._change = trio.Event()
        self.on_own_acks: Callable[[Message], None] = lambda _: None
        self.on_settled: Callable[[ClientLink], None] = lambda _: None
        """Called with a client's link after acks or an answer were sent over it."""
        self.counts = RequestCounts()

    def owes(self, link: ClientLink) -> bool:
        """Return whether a batch or a request of the link's client has not been answered yet."""
        source = link.source
        return source in self.router.held or self._requests.get(source, 0) > 0

    # --- links in -------------------------------------------------------------------------------------------

    def on_open(self, link: ClientLink, principal: str, *, strangers_are_one: bool = False) -> None:
        """Register a client that has connected, so that its messages are accepted. ``principal`` is ``anonymous`` for
        a client without a name. Each such client is a tenant of its own in shared bounds; with ``strangers_are_one``
        all of them are one tenant, except at slow servers."""
        named = principal != ANONYMOUS
        self.router.on_link_opened(link.source, principal, named=named, strangers_are_one=strangers_are_one)
        self.subscriptions.on_link_opened(link.source, principal)
        by_connection = principal == ANONYMOUS and not strangers_are_one
        self._tenants[link.source] = principal, link.source if by_connection else 0
        self.links.add(link)
        self._requests[link.source] = 0

    def tenant_of(self, source: int) -> Tenant:
        """Return the tenant for which a connected client counts in shared bounds. Raises ``KeyError`` for an unknown
        client."""
        return self._tenants[source]

    def on_close(self, link: ClientLink) -> None:
        """Forget a client that has disconnected: drop its waiting batches, subscriptions and reads, and end its long
        polls with ``UNREACHABLE``. If one of these steps raises, the others are done all the same."""
        source = link.source
        self.links.remove(link)
        do_all(
            partial(self.router.on_link_closed, source),
            partial(self.subscriptions.on_link_closed, source),
            partial(self._polls.on_link_closed, source),
            partial(self.perform, []),  # gives up what the subscriptions alone have asked for
            partial(self.reads.on_link_closed, self._reader_of(source)),
            partial(self._requests.pop, source, None),
            partial(self._tenants.pop, source, None),
        )

    def on_message(self, link: ClientLink, id: int | None, message: Message) -> None:
        """Handle a client's produce, credit, read, offset or subscription message: queue its batches, or send reads
        for it. Raises ``TidelogError`` if the message is refused: ``OVERLOADED``, or ``UNSUPPORTED`` for every other
        type. Batches are sent at once if none is in flight, and at the end of the turn otherwise."""
        now = self.clock()
        match message:
            case Produce():
                merge = self.router.in_flight > 0
                self._on_produce(link, message, now)
                if merge:  # others are on their way: what comes in this turn travels together
                    self._wakeup.wake()
                else:
                    self._flush(now)
            case Credit():
                self.perform(self.subscriptions.on_credit(link.source, message, now))
            case Read() if id is not None:
                done = self.begin_request(link, id, message, is_call=False)
                self._polls.on_read(message, self._reader_of(link.source), done)
            case ListOffset(at="timestamp") if id is not None:
                self.nursery.start_soon(
                    self._find_by_time, link, message, self.begin_request(link, id, message, is_call=False)
                )
            case ListOffset() if id is not None:
                self.ask_leader(
                    message,
                    READ_TIMEOUT_S,
                    self.begin_request(link, id, message, is_call=False),
                    self._reader_of(link.source),
                )
            case Subscribe() if id is not None:
                self.perform(self.subscriptions.on_subscribe(link.source, id, message, now))
            case Unsubscribe() if id is not None:
                self.perform(self.subscriptions.on_unsubscribe(link.source, id, message))
            case _:
                raise refuse("UNSUPPORTED", f"{message.OP} is not for a gateway")

    async def _find_by_time(self, link: ClientLink, message: ListOffset, done: Answered) -> None:
        """Find the offset of the first record at or after a time, and answer the client with it or with the error. A
        bug closes the client's link."""
        ask = partial(self.ask_leader, reader=self._reader_of(link.source))
        found: list[Message | TidelogError] = []
        with contained(link, message.OP):
            await find_by_time(ask, message, READ_TIMEOUT_S, found.append)
        done(found[0] if found else Unreachable("internal error"))

    def _on_produce(self, link: ClientLink, message: Produce, now: float) -> None:
        """Hand a client's batches to the router. If some were not checked on arrival, since decompressing takes long,
        start the task that checks the client's batches, unless it runs already."""
        source = link.source
        principal = self._tenants[source][0]
        self.router.on_produce(source, message, now, defer_all=principal in self._checking.values())
        if self.router.has_unfolded_much:
            self._count(link, message.OP, UNFOLDING)
        if source not in self._checking and self.router.has_unchecked(source):
            self._checking[source] = principal
            self.nursery.start_soon(self._check, link, principal, self.clock() - now)

    async def _check(self, link: ClientLink, principal: str, took_s: float) -> None:
        """Check a client's batches that decompress to much, some at a time, and send those that pass, until none is
        left. After each step the client's principal pauses for ``UNFOLDING_REST`` times as long as the step took, and
        all other principals for ``UNFOLDING_REST_OF_ALL`` times as long. ``took_s``: seconds that the checks on
        arrival took. A bug in a check closes the client's link."""
        source = link.source
        try:
            with contained(link, Produce.OP):
                while True:
                    async with self._resting.seat(principal):
                        await trio.sleep((UNFOLDING_REST - UNFOLDING_REST_OF_ALL) * took_s)
                        async with self._unfolding.seat(principal):
                            began = self.clock()
                            self.router.check(source)
                            took_s = self.clock() - began
                            self._flush(began)
                            await trio.sleep(UNFOLDING_REST_OF_ALL * took_s)
                    if not self.router.has_unchecked(source):
                        return
        finally:
            del self._checking[source]

    def _count(self, link: ClientLink, op: str, cost: int) -> None:
        """Count the cost of a client's request for its principal, and log a principal whose requests cost much."""
        line = self._heavy_requests.count(self._tenants[link.source][0], link.remote, op, cost, self.clock())
        if line is not None:
            self.log.perform(line)

    def on_request(self, link: ClientLink, message: Message) -> None:
        """Count the cost of a client's request that is not on the hot path for its principal, and log a principal
        whose requests cost much."""
        self._count(link, message.OP, cost_of(message, len(self.cluster.image.topics)))

    def begin_request(
        self, link: ClientLink, id: int, message: Message | None = None, *, is_call: bool = True
    ) -> Answered:
        """Count a client's request as waiting, and return the function that sends its answer and counts it no more.
        An error gets an id (``refusals.py``).
        ``is_call``: the request counts for ``MAX_CALLS``, too. An answer for a client that is gone is dropped. Raises
        ``OVERLOADED``, and counts nothing, if the client's tenant has used up its share. How many requests of one
        connection wait is bounded before (``client_max_in_flight``)."""
        source = link.source
        tenant = self._tenants[source]
        if not self._request_share.try_hold(tenant):
            raise refuse("OVERLOADED", "this client has its share of the requests that may wait for answers")
        if is_call and not self._call_share.try_hold(tenant):
            self._request_share.release(tenant)
            raise refuse(
                "OVERLOADED", "this client has its share of the requests to servers that may wait for answers"
            )
        self._requests[source] = self._requests.get(source, 0) + 1

        def done(answer: Message | TidelogError) -> None:
            self._request_share.release(tenant)
            if is_call:
                self._call_share.release(tenant)
            if source in self._requests:
                self._requests[source] -= 1
                if isinstance(answer, TidelogError) and not link.closed:
                    op = "" if message is None else message.OP
                    answer = self.refusals.name_error(asker_of(link, tenant[0]), op, message, answer)
                link.answer(id, answer)
                self.on_settled(link)

        return done

    def _name_error(self, source: int, op: str, request: ProducePart | Message | None, error: ErrorInfo) -> ErrorInfo:
        """Keep the refusal of a client's batch or subscription, and return the error with its id; unchanged if the
        client is gone or is the gateway itself."""
        link = self.links.by_source.get(source)
        if link is None:
            return error
        return self.refusals.name_info(asker_of(link, self._tenants[source][0]), op, request, error)

    def produce(self, message: Produce) -> None:
        """Send batches of the gateway itself through the router, at once if their leader has room. Their acks are
        passed to ``on_own_acks``."""
        now = self.clock()
        self.router.on_produce(OWN, message, now)
        self._flush(now)

    # --- links out ------------------------------------------------------------------------------------------

    def on_peer_message(self, node: NodeId, message: Message) -> None:
        """Settle the batches that a replica server has acked, and send the acks to the clients. Any other message
        that is no answer to a request is ignored."""
        if isinstance(message, Produced):
            now = self.clock()
            self.router.on_produced(node, message, now)
            self._flush(now)

    def on_peer_up(self, node: NodeId) -> None:
        """Log that a link to a replica server is open, and let the next turn send the batches that waited for it.
        Wakes the tasks in ``wait_change``."""
        self.log.event("replica_link_up", peer=node)
        self.router.on_peer_up(node)
        self._changed()

    def on_peer_down(self, node: NodeId) -> None:
        """Let the router retry or fail the batches in flight to a replica server whose link broke or was refused.
        Wakes the tasks in ``wait_change``."""
        self.router.on_peer_down(node, self.clock())
        self._changed()

    def on_controller_up(self) -> None:
        """Log that there is a link to the active controller, and ask over it for updates of the metadata. If the
        controller refuses or does not answer within ``READ_TIMEOUT_S``, the link is closed, so that ``controllers``
        connects anew."""
        self.log.event("controller_link_up")
        link = self.controllers.link

        def done(answer: Message | TidelogError) -> None:
            if isinstance(answer, TidelogError) and link is not None:
                link.close()  # without a watch it is of no use: find one again

        self.controllers.start_call(Watch(), READ_TIMEOUT_S, done)

    def on_controller_message(self, message: Message) -> None:
        """Apply an update of the metadata to the cluster view, the addresses of the replica servers, the router and
        the subscriptions. Wakes the tasks in ``wait_change``. Any other message is ignored."""
        if not isinstance(message, MetadataUpdate):
            return
        changed = self.cluster.update(apply_update(self.cluster.image, message))
        now = self.clock()
        self.peers.set_addresses({s.node: s.url for s in self.cluster.image.servers})
        self.router.on_metadata(changed, now)
        self.perform(self.subscriptions.on_metadata(changed, now))
        self._changed()

    def serves(self, topic_id: str) -> bool:
        """Return whether every partition of the topic has a live leader to which there is a link. False for an
        unknown topic."""
        topic = self.cluster.topic(topic_id)
        return (
            topic is not None
            and self.cluster.has_leaders(topic_id)
            and all(state.leader is not None and self.peers.is_up(state.leader) for state in topic.partitions)
        )

    async def wait_change(self) -> None:
        """Wait until the metadata change, or a link to a replica server opens or breaks, after this call."""
        await self._change.wait()

    def _changed(self) -> None:
        """Wake the tasks in ``wait_change`` and the task that runs the turns."""
        self._change.set()
        self._change = trio.Event()
        self._wakeup.wake()

    def _reader_of(self, source: int) -> ReaderId:
        """Return the ``ReaderId`` of a client: its connection, and the tenant whose share of the read windows its
        reads use."""
        return ReaderId(self._tenants.get(source, ("", OWN)), source)

    def ask_reader(self, message: Read, timeout_s: float, done: Answered, reader: ReaderId) -> None:
        """Send a client's read to a replica and pass the answer, or the error, to ``done``. If any replica may answer
        and the read is not linearizable, a copy chosen by ``ReplicaSelector`` gets it first; if the copy fails, the
        leader gets it. ``done`` gets ``UNREACHABLE`` if the client is gone."""
        if self.is_gone(reader):
            done(Unreachable("the client that asked is gone"))
            return
        state = self.cluster.state(message.topic_id, message.partition)
        copy = None
        if message.any_replica and message.consistency != "linearizable" and state is not None:
            copy = self._replica_selector.select(state)
        at_leader = replace(message, any_replica=False)
        if copy is None or state is None:
            self.ask_leader(at_leader, timeout_s, done, reader)
            return

        def first(answer: Message | TidelogError) -> None:
            self._replica_selector.release(copy)
            if isinstance(answer, TidelogError):
                self.ask_leader(at_leader, timeout_s, done, reader)
            else:
                done(answer)

        self.reads.ask(copy, replace(message, leader_epoch=state.leader_epoch), reader, timeout_s, first)
        self._wakeup.wake_before(self.reads.deadline())

    def ask_leader(
        self, message: Read | ListOffset, timeout_s: float, done: Answered, reader: ReaderId = OWN_READER
    ) -> None:
        """Send a read or offset request to the partition's leader and pass the answer to ``done``, exactly once.
        Retriable errors are retried until ``timeout_s`` seconds are over; then ``done`` gets the last error.
        ``reader``: the client that the request is for; by default the gateway itself."""
        end = trio.current_time() + timeout_s

        def first(answer: Message | TidelogError) -> None:
            if isinstance(answer, TidelogError) and self._may_pass(message, answer, reader):
                self.nursery.start_soon(self._ask_again, message, answer, end, done, reader)
            else:
                done(answer)

        self._ask_once(message, timeout_s, first, reader)

    def _ask_once(self, message: Read | ListOffset, timeout_s: float, done: Answered, reader: ReaderId) -> None:
        """Send a read or offset request to the partition's leader, as soon as the window of reads has room, and pass
        the answer or the error to ``done``; nothing is retried. ``done`` is called at once, with an error, if the
        client is gone, the partition is unknown, or there is no leader."""
        state = self.cluster.state(message.topic_id, message.partition)
        if self.is_gone(reader):
            done(Unreachable("the client that asked is gone"))
        elif state is None:
            done(refuse("UNKNOWN_TOPIC", f"no partition {message.topic_id}/{message.partition}"))
        elif state.leader is None:
            done(refuse("OFFLINE", f"{message.topic_id}/{message.partition} has no leader now"))
        else:
            request = replace(message, leader_epoch=state.leader_epoch)
            self.reads.ask(state.leader, request, reader, timeout_s, done)
            self._wakeup.wake_before(self.reads.deadline())

    def is_gone(self, reader: ReaderId) -> bool:
        """Return whether the client that a read is for has disconnected. Never true for the gateway itself."""
        return reader.source != OWN and reader.source not in self.links.by_source

    def _may_pass(self, message: Read | ListOffset, error: TidelogError, reader: ReaderId) -> bool:
        """Return whether a failed read is to be tried again: its client is connected, and the error is retriable or
        shows that the server's metadata are older than those of the gateway."""
        if self.is_gone(reader):
            return False
        return error.retriable or self.cluster.knows_better(message.topic_id, message.partition, error.code)

    async def _ask_again(
        self, message: Read | ListOffset, last: TidelogError, end: float, done: Answered, reader: ReaderId
    ) -> None:
        """Repeat a failed request to the leader, each time after ``RETRY_S`` or a change of the metadata, until it
        succeeds, fails for good, or ``end`` (trio's clock) is reached. Then pass the answer to ``done``. At ``end``
        that is the last error other than a timeout, since that error names the cause."""
        while True:
            with trio.move_on_after(RETRY_S):
                await self.wait_change()
            left_s = end - trio.current_time()
            if left_s <= 0:
                done(last)
                return
            answered = trio.Event()
            answers: list[Message | TidelogError] = []

            def keep(
                answer: Message | TidelogError,
                answers: list[Message | TidelogError] = answers,
                answered: trio.Event = answered,
            ) -> None:
                answers.append(answer)
                answered.set()

            self._ask_once(message, left_s, keep, reader)
            await answered.wait()
            answer = answers[0]
            if not (isinstance(answer, TidelogError) and self._may_pass(message, answer, reader)):
                done(answer)
                return
            if answer.code != "REQUEST_TIMED_OUT":
                last = answer

    # --- effects and time -----------------------------------------------------------------------------------

    def perform(self, effects: list[Subscribed]) -> None:
        """Perform the effects of the subscriptions: send answers, deliveries and reads, and answer polls. A delivery
        that many clients get is encoded once. Then join and give up the reads that the subscriptions have listed for
        that."""
        encoded_of: Message | None = None
        for effect in effects:
            match effect:
                case Post(source, message):
                    if message is not encoded_of:
                        encoded_of, encoded = message, outgoing(*encode(message))
                    if (link := self.links.by_source.get(source)) is not None:
                        link.post_encoded(message, encoded)
                case Answer():
                    self.links.perform(effect)
                case Call(to, token, message, timeout_s):
                    assert isinstance(message, Read)
                    self._ask_for_many(to, token, message, timeout_s)
                case Polled():
                    self._polls.on_polled(effect)
        subscriptions = self.subscriptions
        while subscriptions.joined:
            token, source = subscriptions.joined.pop()
            self.reads.join(token, self._reader_of(source))
        while subscriptions.given_up:
            self.reads.give_up(subscriptions.given_up.pop())
        self._wakeup.wake_before(subscriptions.deadline())

    def _ask_for_many(self, to: NodeId, token: int, read: Read, timeout_s: float) -> None:
        """Send a read that subscriptions share to a server, at once if it waits there for new records, otherwise
        through the read window. Its answer is handed to the subscriptions. Does nothing if the read was given up."""
        asked = self.subscriptions.asked_for(token)
        if asked is None:
            return
        source, waits = asked
        reader = self._reader_of(source)

        def done(answer: Message | TidelogError) -> None:
            self.perform(self.subscriptions.on_answer(token, answer, self.clock()))

        if waits:
            self.reads.wait(to, read, reader, timeout_s, done)
        else:
            self.reads.ask_shared(token, to, read, reader, timeout_s, done)

    async def run_turns(self) -> None:
        """Flush the router after every turn with input, and call the cores at their deadlines, until cancelled.

        Handling messages inline is right for a gateway because each message concerns one client and one partition,
        and nothing has to be durable before it is sent on. Turns are for throughput: this task runs once per turn of
        the scheduler, after the reader tasks, so that the batches of one turn travel in one message. While nothing is
        in flight a batch would only be delayed by that, and ``on_message`` flushes at once."""
        while True:
            deadlines = self.router.deadline(), self.subscriptions.deadline(), self.reads.deadline()
            times = [t for t in deadlines if t is not None]
            await self._wakeup.sleep(min(times, default=None))
            now = self.clock()
            with burst():
                if now >= self._wakeup.deadline:
                    self.router.on_tick(now)
                    self.perform(self.subscriptions.on_tick(now))
                    self.reads.on_tick(now)
                self._flush(now)

    def _flush(self, now: float) -> None:
        """Perform the effects of the router: send batches to leaders and acks to clients, and write events to the
        log. Nothing is sent to a client that has disconnected."""
        links = self.links.by_source
        for effect in self.router.flush(now):
            if isinstance(effect, Send):
                self.peers.post(effect.to, effect.message)
            elif isinstance(effect, Event):
                self.log.perform(effect)
            elif (link := links.get(effect.source)) is not None:
                link.post(effect.message)
                self.on_settled(link)
            elif effect.source == OWN:
                self.on_own_acks(effect.message)
        self._wakeup.wake_before(self.router.deadline())
