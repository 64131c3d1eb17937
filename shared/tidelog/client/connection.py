"""One client's connection to the gateways: a link to one reachable gateway at a time, opened again whenever it is
lost. ``core/gateway_addresses.py`` decides which address is tried next, and how a client finds further gateways.

Producers and consumers register here. The connection calls them when the link is lost and when a new one is open.
Their cores decide what happens then (send again, subscribe again).
"""

from __future__ import annotations

import itertools
import math
import random
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from tidelog.client.core.gateway_addresses import GatewayAddresses
from tidelog.client.core.produce_window import ProduceWindow
from tidelog.client.loop import GatewayLink, Loop, LoopEvent, Work, no_gateway
from tidelog.errors import TidelogError, TimedOut, Unreachable, refuse, without_frames
from tidelog.wire import messages
from tidelog.wire.capabilities import OF_CLIENTS
from tidelog.wire.link_session import PROTOCOL_VERSION
from tidelog.wire.messages import Hello, Message

if TYPE_CHECKING:
    from tidelog.tracing import Tracing
    from tidelog.wire.messages import Delivery, ProduceAck

BACKOFF_S = 0.05
"""First pause after a round in which no gateway could be reached. It doubles up to ``BACKOFF_MAX_S``."""
BACKOFF_MAX_S = 1.0
DISCOVER_S = 300.0
"""Seconds after which a connected client asks again which gateways there are."""
CAUSE = "cause"
"""Key of an error's detail with which a gateway names why it refuses a connection."""
REFUSED = ("UNAUTHENTICATED", "FORBIDDEN")
"""Error codes of a hello after which another try is useless until an operator changes something."""
RETRY_S = 0.05
"""Shortest pause in seconds before a request is repeated after a retriable error."""
A = TypeVar("A", bound=Message)
_PRODUCER_SHIFT = 40  # the id of a batch: the producer's number, then a count of its batches


class Attached(Protocol):
    """The interface of an object that the connection calls when a link opens and when it is lost."""

    def on_link_up(self) -> None: ...
    def on_link_down(self) -> None: ...


class AckReceiver(Attached, Protocol):
    """The interface of a producer towards the connection, which also passes it the acks of its batches."""

    def on_acks(self, acks: Sequence[ProduceAck]) -> None: ...


class Subscriber(Attached, Protocol):
    """The interface of a consumer towards the connection, which also passes it the deliveries of its
    subscriptions."""

    def on_delivery(self, delivery: Delivery) -> None: ...


class GatewayConnection:
    """A client's link to one reachable gateway, replaced by a link to the next gateway whenever it is lost. ``link``
    is the open link, or None. Each ``Log`` has one connection, until its end."""

    def __init__(
        self,
        urls: Sequence[str],
        loop: Loop,
        node: str,
        request_timeout_s: float,
        token: str = "",
        tracing: Tracing | None = None,
        *,
        discover: bool = True,
        operator: bool = False,
    ) -> None:
        self.tracing = tracing
        self._addresses = GatewayAddresses(urls, random.shuffle, discover=discover)
        self._url = ""
        """The address of the open link, or of the last one."""
        self._cluster = ""
        """The cluster whose gateways were found."""
        self.loop = loop
        self.request_timeout_s = request_timeout_s
        self.link: GatewayLink | None = None
        self.error: TidelogError | None = None
        """The error of the last try to connect that failed, or of the last link that ended; None if there was
        neither."""
        self._failures: dict[str, TidelogError] = {}
        """The last failure of each gateway that could not be used since a link was last open, by URL."""
        self.down_since = -math.inf
        version = PROTOCOL_VERSION
        self._hello = Hello(
            version,
            "client",
            node,
            token=token,
            version_min=version,
            version_max=version,
            capabilities=OF_CLIENTS,
            operator=operator,
        )
        self._changed = self.loop.event()
        self._numbers = itertools.count(1)
        self._producers: dict[int, AckReceiver] = {}
        self._consumers: weakref.WeakValueDictionary[int, Subscriber] = weakref.WeakValueDictionary()
        self._subs: weakref.WeakValueDictionary[int, Subscriber] = weakref.WeakValueDictionary()
        self._open_subs: set[int] = set()
        self._tickets: dict[int, tuple[int, str]] = {}
        """Epoch and ticket of each producer id that is in use, by producer id."""
        self.limits: Mapping[str, int] = {}
        """What the gateway of the open link, or of the last one, has announced: limits of the connection by name."""
        self.window = ProduceWindow()
        """What all producers of this connection have in flight."""
        self.waits: dict[object, TidelogError] = {}
        """The last refusal of each request that is being repeated, by request."""
        self.on_close: dict[object, Callable[[], LoopEvent]] = {}
        """Functions to call when the connection is closed, by owner. Each sends a last message and returns an event
        that is set when the message has been answered."""
        self._start: Callable[[Work], None] | None = None

    def open(self, start: Callable[[Work], None]) -> None:
        """Start the task that keeps a link open. This and all later tasks are started with the function ``start``,
        until the owner calls ``close``."""
        self._start = start
        start(self.run)
        if self._addresses.discover:
            start(self._renew)

    def close(self) -> None:
        """Start no further tasks: ``start`` does nothing from now on. The owner cancels the tasks that run."""
        self._start = None

    def start(self, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Start a task beside the connection that calls ``work(*arguments)`` and is cancelled at the end of the
        connection. Does nothing if the connection is closed."""
        if self._start is not None:
            self._start(partial(work, *arguments))

    # --- keeping the link --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep a link open: connect to the gateways in turn, and to the next one whenever the link is lost. After a
        round in which no gateway could be reached it pauses, each time twice as long, up to ``BACKOFF_MAX_S``. Never
        returns."""
        self.down_since = self.loop.now()
        pause = BACKOFF_S
        while True:
            url = self._addresses.next()
            if await self._use(url):
                self._addresses.on_lost(url)
                pause = BACKOFF_S
            elif self._addresses.round_over:
                await self.loop.sleep(pause)
                pause = min(2 * pause, BACKOFF_MAX_S)

    async def _renew(self) -> None:
        """Ask every ``DISCOVER_S`` seconds which gateways there are. Never returns."""
        while True:
            await self.loop.sleep(DISCOVER_S)
            if self.link is not None:
                self.link.start_call(messages.Metadata(), self.request_timeout_s, partial(self._learn, self._url))

    def _learn(self, url: str, answer: Message | TidelogError) -> None:
        """Keep the gateways that an answer to ``metadata`` names, which came over the link to this address. Does
        nothing with another answer."""
        if isinstance(answer, messages.MetadataAnswer):
            self._cluster = answer.cluster
            self._addresses.learn([gateway.url for gateway in answer.gateways], url)

    async def _use(self, url: str) -> bool:
        """Open a link to this gateway, pass its messages on, and wait until it is lost; return True then. Returns
        False if the gateway could not be reached or refused the hello; ``error`` is then the reason. A gateway that
        was found must be of the cluster that has named it."""
        opened = False
        given = url in self._addresses.given
        hello = self._hello if given else replace(self._hello, cluster=self._cluster)
        try:
            async with self.loop.open_link(url, hello, self._on_message) as link:
                opened = True
                self._url = url
                self._up(link)
                try:
                    await link.wait_closed()
                finally:
                    self._down(link)
        except TidelogError as error:
            role = error.detail.get("role")
            if role:  # a controller, say
                error = no_gateway(str(role))
            self.error = self._failures[url] = error
            self._note_change()
        return opened

    def _up(self, link: GatewayLink) -> None:
        """Make this the open link: present all tickets on it, then report it to the producers and consumers, and wake
        ``wait_up``."""
        self.link = link
        assert isinstance(link.peer, messages.Welcome)
        self.limits = link.peer.limits
        self.window.begin(self.limits)
        self._failures.clear()
        for producer_id in self._tickets:
            self._present(link, producer_id)
        for attached in self._attached():
            attached.on_link_up()
        self._note_change()

    def _down(self, link: GatewayLink) -> None:
        """Record that the link was lost, report that to the producers and consumers, and wake ``wait_up``."""
        self.link = None
        self.window.begin({})
        self.error = link.error or self.error
        self.down_since = self.loop.now()
        self._open_subs.clear()
        for attached in self._attached():
            attached.on_link_down()
        self._note_change()

    def _attached(self) -> list[Attached]:
        return [*self._producers.values(), *self._consumers.values()]

    def _note_change(self) -> None:
        """Wake the tasks in ``wait_up``, because a link was opened, lost or refused."""
        self._changed.set()
        self._changed = self.loop.event()

    def unreachable(self) -> Unreachable:
        """Return the error ``Unreachable`` for a caller that waited too long for a link; its message has the last
        error of each gateway, and its detail the cause, if all gateways that refuse the client name the same."""
        given = dict.fromkeys(self._addresses.given)
        texts = [_failure_of(url, self._failures.get(url, self.error)) for url in given]
        texts += [_failure_of(url, error) for url, error in self._failures.items() if url not in given]
        error = Unreachable(f"no gateway can be reached: {'; '.join(texts)}")
        causes = {str(failed.detail[CAUSE]) for failed in self._failures.values() if CAUSE in failed.detail}
        if len(causes) == 1:
            error.detail[CAUSE] = causes.pop()
        return error

    async def wait_up(self, deadline: float, failed_deadline: float = math.inf) -> GatewayLink:
        """Wait for an open link and return it. Raises ``Unreachable`` at ``deadline`` (loop time), or at
        ``failed_deadline`` if by then every given gateway has failed. Raises at once if every given gateway has
        refused this client's identity (``UNAUTHENTICATED`` or ``FORBIDDEN``), or is none (``Unreachable``)."""
        given = set(self._addresses.given)
        while self.link is None or self.link.closed:
            failures = [error for url, error in self._failures.items() if url in given]
            until = deadline
            if len(failures) == len(given):
                until = min(deadline, failed_deadline)
                if all("role" in error.detail for error in failures):
                    raise self.unreachable()
                if all(error.code in REFUSED or "role" in error.detail for error in failures):
                    error = next(error for error in reversed(failures) if error.code in REFUSED)
                    refusal = refuse(error.code, error.message)
                    refusal.detail = dict(error.detail)
                    raise refusal
            changed = self._changed
            await self.loop.wait(changed, until)
            if not changed.is_set():
                raise self.unreachable()
        return self.link

    async def say_goodbye(self, deadline: float) -> None:
        """Call the functions in ``on_close``, each of which sends a last message, and wait for the answers until
        ``deadline`` (loop time)."""
        for over in [call() for call in self.on_close.values()]:
            await self.loop.wait(over, deadline)

    # --- requests ----------------------------------------------------------------------------------------

    async def call(
        self, request: Message, timeout_s: float | None = None, *, again: bool = True, patience_s: float = math.inf
    ) -> Message:
        """Send a request and return its answer, on as many links as it takes, within ``timeout_s`` seconds (by
        default the client's ``request_timeout_s``). Retriable errors are waited out, for ``patience_s`` seconds at
        most. ``again``: the request may be executed twice without harm, so it is repeated after a lost link and after
        an error of unknown outcome.

        Raises ``BrokerError``, ``TimedOut`` or ``Unreachable``. If the time ends during a repeated try of a request
        that may be executed twice, the last refusal is raised instead of ``TimedOut``, because it names the cause.
        """
        deadline = self.loop.now() + (timeout_s or self.request_timeout_s)
        patient_until = min(deadline, self.loop.now() + patience_s)
        key = object()
        try:
            while True:
                link = await self.wait_up(deadline)
                url = self._url
                try:
                    answer = await link.call(request, max(0.001, deadline - self.loop.now()))
                    self._learn(url, answer)
                    return answer
                except Unreachable as error:
                    if not again:
                        error.unknown_outcome = True
                        raise
                    await self.loop.checkpoint()
                except TimedOut:
                    if again and key in self.waits:
                        raise self.waits[key] from None
                    raise
                except TidelogError as error:
                    hopeless = not error.retriable or (error.unknown_outcome and not again)
                    pause_s = max(RETRY_S, error.pause_s)
                    if hopeless or self.loop.now() + pause_s >= patient_until:
                        raise
                    self.waits[key] = without_frames(error)
                    await self.loop.sleep(pause_s)
        finally:
            self.waits.pop(key, None)

    async def ask(
        self,
        request: Message,
        answer: type[A],
        timeout_s: float | None = None,
        *,
        again: bool = True,
        patience_s: float = math.inf,
    ) -> A:
        """Send a request by ``call`` and return its answer, which must be an instance of the message class
        ``answer``. Raises what ``call`` raises."""
        found = await self.call(request, timeout_s, again=again, patience_s=patience_s)
        assert isinstance(found, answer)
        return found

    # --- producer ids ------------------------------------------------------------------------------------

    def use_producer(self, producer_id: int, epoch: int, ticket: str) -> None:
        """Present the ticket of this producer id and epoch to the gateway, so that batches under the id may follow:
        on this link now, and on every later link before anything else is sent. Does nothing if ``ticket`` is "",
        because the cluster needs none then."""
        if ticket:
            self._tickets[producer_id] = epoch, ticket
            if self.link is not None:
                self._present(self.link, producer_id)

    def release_producer(self, producer_id: int, epoch: int) -> None:
        """Forget the ticket of this producer id, and report to the gateway that the id is no longer used. Does
        nothing if the id is in use at another epoch or was never announced."""
        if producer_id in self._tickets and self._tickets[producer_id][0] == epoch:
            del self._tickets[producer_id]
            if self.link is not None:
                self.link.start_call(messages.ReleaseProducer(producer_id), self.request_timeout_s, _ignore)

    def _present(self, link: GatewayLink, producer_id: int) -> None:
        """Send the ticket of a producer id over this link, without waiting for the answer; batches may follow at
        once. The answer brings a ticket that is valid for longer and replaces the present one. If the ticket is
        refused, the batches are refused, too, and their producers decide what to do."""
        epoch, ticket = self._tickets[producer_id]

        def answered(answer: Message | TidelogError) -> None:
            if isinstance(answer, messages.ProducerTicket) and self._tickets.get(producer_id) == (epoch, ticket):
                self._tickets[producer_id] = epoch, answer.ticket or ticket

        link.start_call(messages.UseProducer(producer_id, epoch, ticket), self.request_timeout_s, answered)

    async def send_batches(self, link: GatewayLink, message: messages.Produce, deadline: float) -> None:
        """Send batches that the caller has put together over this link, when the link and the window of the
        connection have room for them. Nothing was sent if it raises: ``Unreachable`` if the link has ended,
        ``TimedOut`` if the window has no room at ``deadline`` (loop time)."""
        size = sum(part.size for part in message.parts)
        while not link.closed and not self.window.has_room(size, len(message.parts)):
            room = self.loop.event()
            self.window.wait(room.set)
            await self.loop.wait(room, deadline)
            if not room.is_set():
                raise TimedOut("too much waits for acknowledgements on this connection")
        if not link.closed:
            self.window.add(message.parts)
        await link.send(message)

    # --- who listens -------------------------------------------------------------------------------------

    def add_producer(self, producer: AckReceiver) -> tuple[int, Callable[[], int]]:
        """Register a producer for acks and link changes. Returns its number, for ``remove_producer``, and a function
        that returns the next id for its batches. The producer gets the acks with these ids."""
        number = next(self._numbers)
        self._producers[number] = producer
        return number, itertools.count((number << _PRODUCER_SHIFT) + 1).__next__

    def remove_producer(self, number: int) -> None:
        """Stop passing acks and link changes to the producer of this number. Does nothing if it is not registered."""
        self._producers.pop(number, None)

    def add_consumer(self, consumer: Subscriber) -> None:
        """Register a consumer for link changes, until it is garbage-collected: the connection holds only a weak
        reference."""
        self._consumers[next(self._numbers)] = consumer

    def add_sub(self, consumer: Subscriber) -> int:
        """Return the number of a new subscription, unique in this connection. Deliveries with this number are passed
        to ``consumer`` until ``stop_sub``."""
        sub = next(self._numbers)
        self._subs[sub] = consumer
        self._open_subs.add(sub)
        return sub

    def stop_sub(self, sub: int) -> None:
        """End a subscription: unsubscribe at the gateway if the subscription was made on the open link, and drop
        deliveries that still arrive for it."""
        self._subs.pop(sub, None)
        if sub in self._open_subs:
            self._open_subs.remove(sub)
            if self.link is not None:
                self.link.start_call(messages.Unsubscribe(sub), self.request_timeout_s, _ignore)

    def _on_message(self, link: GatewayLink, id: int | None, message: Message) -> None:
        """Pass a delivery to the consumer of its subscription, and acks to their producers. A subscription without a
        consumer is ended. Other messages are ignored."""
        if isinstance(message, messages.Delivery):
            consumer = self._subs.get(message.sub)
            if consumer is not None:
                consumer.on_delivery(message)
            else:
                self.stop_sub(message.sub)  # its consumer was garbage-collected
        elif isinstance(message, messages.Produced):
            self._on_produced(message.acks)

    def _on_produced(self, acks: Sequence[ProduceAck]) -> None:
        self.window.remove(acks)
        for number, group in itertools.groupby(acks, key=lambda ack: ack.id >> _PRODUCER_SHIFT):
            producer = self._producers.get(number)
            if producer is not None:
                producer.on_acks(tuple(group))


def _failure_of(url: str, error: TidelogError | None) -> str:
    """Return in words why a gateway cannot be used, with the error's code if the gateway has refused the client;
    ``error`` is None if the gateway has not answered yet."""
    text = "it does not answer" if error is None else str(error)
    text = text.removeprefix("[UNREACHABLE] ")
    return text if text.startswith(url) else f"{url}: {text}"


def _ignore(_: Message | TidelogError) -> None:
    """Do nothing with an answer: the callback of requests whose outcome does not matter."""
